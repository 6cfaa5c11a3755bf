//! `segmentry up FILE`: what the operator does, without Kubernetes.
//!
//! ```text
//!  FILE ─ manifest ─▶ FileObjects ─┐
//!                                  ├─▶ Reconciler (the operator's own) ─▶ nodes
//!  child processes ─ LocalRuntime ─┘
//!          status ─▶ table on the terminal, status.yaml
//! ```
//!
//! - [`manifest`]: the file → declared objects; [`strict`]: its check against the published schema.
//! - [`table`], [`screen`]: what is shown.

mod manifest;
mod screen;
mod strict;
mod table;

use crate::{
    api::valid::Key,
    controller::{Epoch, Reconciler, Settings, queue},
    nodeclient::NodeClient,
    objects::{
        Objects as _, Work,
        file::{Declared, FileObjects},
    },
    runtime::{Runtime as _, local::LocalRuntime},
};
use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use jiff::Timestamp;
use kube::ResourceExt as _;
use screen::Screen;
use std::{
    collections::BTreeMap,
    future::Future,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

/// Between two looks at the file and at the status.
const LOOK: Duration = Duration::from_secs(1);
/// How long passes under way may go on after the word to stop.
const LAST_PASSES: Duration = Duration::from_secs(5);
/// Passes at once.
const CONCURRENCY: usize = 8;

/// Arguments of `segmentry up`.
#[derive(Debug, clap::Args)]
pub struct UpArgs {
    /// Manifest with one IndexCluster or more and their Index objects
    pub file: PathBuf,
    /// Folder for data, logs and state; made if it is not there
    #[arg(long, value_name = "DIR", default_value = ".segmentry")]
    pub data: PathBuf,
}

/// Runs what the file declares until `stop` resolves; then ends the nodes in order.
///
/// # Errors
/// The file is faulty at the start, the folder is in use or cannot be written, or the loops end by a defect.
pub async fn run(args: UpArgs, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
    let mut file = Watched::new(args.file);
    let first = file.read()?;
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let runtime = LocalRuntime::open(&args.data, program)?;
    log_to(&args.data.join("up.log"))?;
    let screen = Arc::new(Screen::default());
    let said = screen.clone();
    let objects = FileObjects::open(args.data.join("cluster.json"), move |work, note| {
        let mark = if note.warning { "warning: " } else { "" };
        said.say(&format!("{mark}{work}: {}: {}", note.reason, note.message));
    })?;
    if !first.unused.is_empty() {
        let fields: Vec<&str> = first.unused.iter().map(String::as_str).collect();
        screen.say(&format!("not used by segmentry up: {}", fields.join(", ")));
    }
    let declaration = objects.declare(&first.declared)?;
    declaration
        .refused
        .iter()
        .for_each(|text| screen.say(&format!("refused: {text}")));

    let epoch = Arc::new(Epoch::held(objects.epoch()));
    let changes = futures::stream::select(objects.changes(), runtime.events().map(Work::Cluster));
    let nodes = NodeClient::new().context("cannot make the HTTP client")?;
    let settings = Settings {
        default_image: "segmentry".to_owned(),
    };
    let reconciler = Arc::new(Reconciler::new(
        runtime,
        objects.clone(),
        nodes,
        settings,
        epoch.clone(),
    ));

    let (stopping, stopped) = tokio::sync::watch::channel(false);
    let loops = {
        let (reconciler, stopped) = (reconciler.clone(), stopped.clone());
        queue::run(changes, CONCURRENCY, until(stopped), move |work| {
            let reconciler = reconciler.clone();
            async move {
                let outcome = Box::pin(reconciler.reconcile(&work)).await;
                if let Work::Cluster(key) = &work
                    && reconciler.objects.get_cluster(key).await?.is_none()
                {
                    // what an API server's garbage collection does; never beside a pass over the same cluster
                    reconciler.runtime.retire(key).await;
                }
                outcome
            }
        })
    };
    let mut view = View {
        folder: args.data.clone(),
        screen: screen.clone(),
        declared: first.declared,
        waiting: !declaration.waiting.is_empty(),
        told_unused: first.unused,
        told: BTreeMap::new(),
        written: None,
    };
    let ended_early = {
        tokio::pin!(loops, stop);
        let mut tick = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                () = &mut stop => {
                    screen.say("stopping: nodes flush and end");
                    // the receiver lives in the loops
                    let _ = stopping.send(true);
                    if tokio::time::timeout(LAST_PASSES, &mut loops).await.is_err() {
                        tracing::info!("a pass under way is given up");
                    }
                    break false;
                }
                () = &mut loops => break true,
                _ = tick.tick() => view.look(&mut file, &objects, &epoch, &reconciler.runtime),
            }
        }
    };
    reconciler.runtime.shut_down().await;
    if ended_early {
        bail!(
            "the loops ended by a defect; {} says more",
            args.data.join("up.log").display()
        );
    }
    screen.say("stopped; the same command starts again on the same data");
    Ok(())
}

async fn until(mut stopped: tokio::sync::watch::Receiver<bool>) {
    // an error means that the sender is gone, which ends the loops as well
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// The log goes to a file: the terminal shows the table.
fn log_to(path: &Path) -> anyhow::Result<()> {
    let open = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let file = open.with_context(|| format!("cannot write {}", path.display()))?;
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(Mutex::new(file))
        .try_init();
    // a second call in one process keeps the first one's file
    drop(started);
    Ok(())
}

/// The manifest file and how it looked last.
struct Watched {
    path: PathBuf,
    seen: Option<(SystemTime, u64)>,
}

impl Watched {
    fn new(path: PathBuf) -> Self {
        Self { path, seen: None }
    }

    fn read(&mut self) -> anyhow::Result<manifest::Manifest> {
        // looked at before it is read: an edit in between is seen at the next look
        self.seen = self.stamp();
        manifest::read(&self.path)
    }

    fn stamp(&self) -> Option<(SystemTime, u64)> {
        let meta = std::fs::metadata(&self.path).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    }

    /// None while nothing changed. A file that is gone for a moment (editors rename) is not an edit.
    fn edited(&mut self) -> Option<anyhow::Result<manifest::Manifest>> {
        let now = self.stamp()?;
        (self.seen != Some(now)).then(|| self.read())
    }
}

/// What is done at each look.
struct View {
    folder: PathBuf,
    screen: Arc<Screen>,
    declared: Declared,
    /// An object is declared anew while its predecessor is being deleted.
    waiting: bool,
    told_unused: std::collections::BTreeSet<String>,
    /// REST addresses as told last, by cluster.
    told: BTreeMap<Key, Vec<String>>,
    /// Text of status.yaml as written last.
    written: Option<String>,
}

impl View {
    fn look(&mut self, file: &mut Watched, objects: &FileObjects, epoch: &Epoch, runtime: &LocalRuntime) {
        match file.edited() {
            Some(Ok(edited)) => {
                let fresh: Vec<String> = edited.unused.difference(&self.told_unused).cloned().collect();
                if !fresh.is_empty() {
                    self.screen
                        .say(&format!("not used by segmentry up: {}", fresh.join(", ")));
                    self.told_unused.extend(fresh);
                }
                self.screen
                    .say(&format!("{} was read again", file.path.display()));
                self.declared = edited.declared;
                self.declare(objects);
            }
            Some(Err(error)) => self
                .screen
                .say(&format!("refused, what runs stays as it is: {error:#}")),
            None if self.waiting => self.declare(objects),
            None => {}
        }
        if epoch.wanted() > epoch.current() {
            match objects.raise_epoch(epoch.wanted()) {
                Ok(()) => epoch.hold(epoch.wanted()),
                Err(error) => self.screen.say(&format!("warning: {error}")),
            }
        }
        let all = objects.all();
        self.addresses(&all, runtime);
        match table::tables(&all, Timestamp::now()) {
            Ok(tables) => self.screen.show(&tables, &words(&all)),
            Err(error) => tracing::error!(%error, "the table cannot be made"),
        }
        if let Err(error) = self.write_status(&all) {
            self.screen
                .say(&format!("warning: status.yaml is not written: {error:#}"));
        }
    }

    fn declare(&mut self, objects: &FileObjects) {
        match objects.declare(&self.declared) {
            Ok(declaration) => {
                declaration
                    .refused
                    .iter()
                    .for_each(|text| self.screen.say(&format!("refused: {text}")));
                self.waiting = !declaration.waiting.is_empty();
            }
            Err(error) => {
                self.screen.say(&format!("warning: {error}; tried again"));
                self.waiting = true;
            }
        }
    }

    /// Tells the addresses once a cluster is Ready, and again when they differ.
    fn addresses(&mut self, all: &Declared, runtime: &LocalRuntime) {
        for cluster in &all.clusters {
            let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
            let ready = conditions
                .into_iter()
                .any(|found| found.type_ == "Ready" && found.status == "True");
            let key = Key {
                namespace: cluster.namespace().unwrap_or_default(),
                name: cluster.name_any(),
            };
            let addresses: Vec<String> = runtime.rest_addresses(&key).into_values().collect();
            if ready && !addresses.is_empty() && self.told.get(&key) != Some(&addresses) {
                self.screen.say(&format!(
                    "cluster {} is ready, REST at {}",
                    key.name,
                    addresses.join(" ")
                ));
                self.told.insert(key, addresses);
            }
        }
    }

    /// Output only: nothing reads it back.
    fn write_status(&mut self, all: &Declared) -> anyhow::Result<()> {
        let mut items = Vec::new();
        for cluster in &all.clusters {
            items.push(serde_json::to_value(cluster)?);
        }
        for index in &all.indices {
            items.push(serde_json::to_value(index)?);
        }
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items});
        let text = serde_saphyr::to_string(&list)?;
        if self.written.as_ref() != Some(&text) {
            let beside = self.folder.join("status.yaml.new");
            std::fs::write(&beside, &text)?;
            std::fs::rename(&beside, self.folder.join("status.yaml"))?;
            self.written = Some(text);
        }
        Ok(())
    }
}

/// Below the table: what is waited for, and why something is not Ready.
fn words(all: &Declared) -> Vec<String> {
    let mut words = Vec::new();
    for cluster in &all.clusters {
        for step in cluster.status.iter().flat_map(|status| &status.in_progress) {
            let what = step
                .waiting_for
                .as_deref()
                .or(step.blocked_by.as_deref())
                .unwrap_or("under way");
            words.push(format!("{}: {}: {what}", step.node, step.step));
        }
    }
    let clusters = all
        .clusters
        .iter()
        .map(|cluster| (cluster.name_any(), cluster.status.as_ref().map(|s| &s.conditions)));
    let indices = all
        .indices
        .iter()
        .map(|index| (index.name_any(), index.status.as_ref().map(|s| &s.conditions)));
    for (name, conditions) in clusters.chain(indices) {
        for found in conditions.into_iter().flatten() {
            if found.type_ == "Ready" && found.status != "True" {
                words.push(format!("{name}: {}: {}", found.reason, found.message));
            }
        }
    }
    words
}
