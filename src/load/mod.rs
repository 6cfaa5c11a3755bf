//! `segmentry load`: bulk-loads newline-delimited JSON into an index of any OpenSearch-compatible endpoint.
//!
//! - [`source`]: a file (plain, gzip or zstd, told by its first bytes) or standard input → batches of lines;
//! - [`bulk`]: one batch → one `_bulk` call, with retries;
//! - [`summary`]: what was loaded and what was refused.
//!
//! A document is created under an id of this run (`<run>-<line>`), so that a batch whose outcome is unknown (a lost
//! connection, a time-out) can be sent again: what is there already answers 409 and counts as loaded. With `--id-field` the
//! id comes from the document and a repeated load replaces it.

mod bulk;
mod source;
mod summary;

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::IsTerminal as _,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use summary::Summary;
use tokio::sync::Mutex;

/// Arguments of `segmentry load`.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    /// Newline-delimited JSON: plain, gzip or zstd; `-` reads standard input
    pub file: PathBuf,
    /// Index to load into; created by its first document if it is not there
    #[arg(long)]
    pub index: String,
    /// REST address of any node
    #[arg(long, default_value = "http://127.0.0.1:9200", env = "SEGMENTRY_URL")]
    pub url: String,
    /// Documents in one bulk request
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub batch: u32,
    /// Bulk requests in flight
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub concurrency: u32,
    /// Take the document id from this top-level field (a string or a number) and replace what has it
    #[arg(long)]
    pub id_field: Option<String>,
    /// Give a batch up after this many seconds of rejections (429), unavailability (503) or lost connections
    #[arg(long, default_value_t = 120)]
    pub retry_seconds: u64,
}

/// Loads the file; prints progress on the terminal (or a plain line every five seconds) and a summary at the end.
///
/// # Errors
/// When the file cannot be read, when the endpoint cannot be reached, or when at least one document was not loaded: the
/// summary then lists the failures.
pub async fn run(args: LoadArgs) -> anyhow::Result<()> {
    let endpoint = bulk::Endpoint::new(&args.url, &args.index, Duration::from_secs(args.retry_seconds))?;
    let opened = source::open(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let progress = bar(opened.total_bytes);
    let ids = match &args.id_field {
        Some(field) => source::Ids::Field(field.clone()),
        None => source::Ids::Run(format!("{:012x}", rand::random::<u64>() >> 16)),
    };
    let summary = Arc::new(Mutex::new(Summary::default()));
    let began = Instant::now();

    let (batches, queue) = tokio::sync::mpsc::channel(args.concurrency as usize);
    let queue = Arc::new(Mutex::new(queue));
    let batch = args.batch as usize;
    let reader = tokio::task::spawn_blocking(move || source::read(opened, batch, &ids, &batches));
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..args.concurrency {
        let (queue, summary, endpoint, progress) =
            (queue.clone(), summary.clone(), endpoint.clone(), progress.clone());
        senders.spawn(async move {
            loop {
                let next = queue.lock().await.recv().await;
                let Some(batch) = next else {
                    return Ok::<(), anyhow::Error>(());
                };
                let position = batch.position;
                let outcome = endpoint.send(batch).await?;
                let mut summary = summary.lock().await;
                summary.add(outcome);
                progress.at(position, &summary, began);
            }
        });
    }
    let ticker = tokio::spawn(progress.clone().tick(summary.clone(), began));
    let mut stopped = None;
    while let Some(done) = senders.join_next().await {
        if let Err(error) = done.context("a sender ended unexpectedly").and_then(|r| r) {
            stopped.get_or_insert(error);
            senders.abort_all();
            // the reader ends at its next hand-over, since nobody takes it
            queue.lock().await.close();
        }
    }
    let read = reader.await.context("the reader ended unexpectedly")?;
    ticker.abort();
    progress.finish();
    let summary = summary.lock().await;
    print!("{}", summary.render(&args.index, began.elapsed()));
    if let Some(error) = stopped {
        return Err(error.context(format!("stopped after {} documents", summary.loaded)));
    }
    read.with_context(|| format!("cannot read {} to its end", args.file.display()))?;
    if summary.failed > 0 {
        bail!("{} documents were not loaded", summary.failed);
    }
    Ok(())
}

/// A bar on a terminal, plain lines elsewhere.
#[derive(Clone)]
enum Progress {
    Bar(ProgressBar),
    Lines,
}

fn bar(total_bytes: Option<u64>) -> Progress {
    if !std::io::stderr().is_terminal() {
        return Progress::Lines;
    }
    let bar = total_bytes.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    let template = if total_bytes.is_some() {
        "{bar:30} {percent:>3}% {msg} ({eta} left)"
    } else {
        "{spinner} {msg}"
    };
    // the templates are constants of this function; a fault in one falls back to indicatif's own
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    Progress::Bar(bar)
}

impl Progress {
    fn at(&self, position: u64, summary: &Summary, began: Instant) {
        if let Self::Bar(bar) = self {
            bar.set_position(position.max(bar.position()));
            bar.set_message(summary.line(began.elapsed()));
        }
    }

    async fn tick(self, summary: Arc<Mutex<Summary>>, began: Instant) {
        let mut every = tokio::time::interval(Duration::from_secs(5));
        every.tick().await;
        loop {
            every.tick().await;
            if let Self::Lines = self {
                eprintln!("{}", summary.lock().await.line(began.elapsed()));
            }
        }
    }

    fn finish(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}
