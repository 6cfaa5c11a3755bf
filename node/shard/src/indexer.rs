//! The indexer of a copy: a thread that owns the engine's writer, and decides when to refresh and flush.

use crate::{
    CopyError, CopyFailure, Role, ShardCopy,
    open::failure_of,
    queue::{Answer, Command, Found},
    resources::Suspicion,
};
use segmentry_engine::{CommitPayload, EngineError};
use segmentry_settings::ReplicationType;
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tokio::runtime::Handle;
use tracing::{info, warn};

/// Bytes of operations that are indexed between two looks at commands.
pub(crate) const CHUNK: u64 = 4 << 20;
/// A writer without work for this long is closed: an open one holds threads.
const IDLE: Duration = Duration::from_secs(30);

/// What is written to see whether the disk works.
const PROBE_BYTES: usize = 4 << 20;

enum Stopped {
    No,
    Yes,
}

pub(crate) struct Indexer {
    pub(crate) copy: Arc<ShardCopy>,
    pub(crate) handle: Handle,
    /// Next operation for the engine.
    pub(crate) next: u64,
    /// Term of the last operation that the engine has, and the highest mapping version.
    pub(crate) term: u64,
    pub(crate) mapping_version: u64,
    /// Term to open a writer for.
    pub(crate) writer_term: u64,
    /// True where this copy indexes: a primary, or DOCUMENT.
    pub(crate) indexes: bool,
    pub(crate) writer_open: bool,
    pub(crate) refresh_at: Instant,
    pub(crate) last_work: Instant,
    pub(crate) suspicion: Suspicion,
    /// The engine failed: nothing but answers from here on.
    pub(crate) broken: Option<String>,
}

impl Indexer {
    pub fn new(copy: Arc<ShardCopy>) -> Self {
        let now = Instant::now();
        let mut indexer = Self {
            handle: copy.node.runtime.clone(),
            next: 0,
            term: 0,
            mapping_version: 0,
            writer_term: copy.log.term(),
            indexes: copy.replication_type() == ReplicationType::Document,
            writer_open: false,
            refresh_at: now,
            last_work: now,
            suspicion: copy.node.suspicion(copy.allocation),
            broken: None,
            copy,
        };
        indexer.begin_after_commit();
        indexer
    }

    fn begin_after_commit(&mut self) {
        let commit = self.copy.engine.commit_info();
        self.next = commit.max_seq_no.map_or(0, |max| max + 1);
        self.term = commit.term;
        self.mapping_version = commit.mapping_version;
    }

    pub fn run(mut self) {
        loop {
            let found = self.find();
            let outcome = match found {
                Found::Command(command) => match self.command(command) {
                    Stopped::Yes => return,
                    Stopped::No => Ok(()),
                },
                Found::Items(items) => self.index(items),
                Found::Log(to) => self.index_log(to),
                Found::Nothing => self.tick(),
            };
            let outcome = outcome.and_then(|()| self.due());
            if let Err(error) = outcome {
                self.fail(&error);
            }
        }
    }

    pub(crate) fn interval(&self) -> Option<Duration> {
        self.copy
            .index
            .load()
            .settings
            .refresh_interval_ms
            .map(Duration::from_millis)
    }

    fn find(&self) -> Found {
        let idle = self.last_work + IDLE;
        let deadline = match (self.broken.is_none() && self.writer_open, self.interval()) {
            (false, _) => None,
            (true, Some(_)) => Some(self.refresh_at.min(idle)),
            (true, None) => Some(idle),
        };
        let copy = &self.copy;
        copy.queue.find(self.next, deadline, || self.limits(), CHUNK)
    }

    /// Last operation that may be indexed now, and the mapping version that is known.
    pub(crate) fn limits(&self) -> (Option<u64>, u64) {
        let limit = if self.indexes && self.broken.is_none() {
            self.copy.tracker.checkpoint()
        } else {
            None
        };
        (limit, self.copy.mapping_version())
    }

    // ---- refresh, flush ----

    fn payload(&self) -> CommitPayload {
        CommitPayload {
            term: self.term,
            max_seq_no: self.next.checked_sub(1),
            history: self.copy.history,
            mapping_version: self.mapping_version,
        }
    }

    /// Shows what was indexed.
    pub(crate) fn show(&mut self) -> Result<(), EngineError> {
        let copy = Arc::clone(&self.copy);
        self.refresh_at = Instant::now() + self.interval().unwrap_or_default();
        if !self.writer_open {
            return Ok(());
        }
        copy.refresh_soon.store(false, Ordering::Release);
        let begun = Instant::now();
        copy.versions.lock().swap();
        let changed = copy.engine.refresh(&self.payload())?;
        self.shown(changed);
        if changed {
            copy.counters.refresh_total.add(1);
            copy.counters.refresh_time_us.add_time(begun.elapsed());
        }
        Ok(())
    }

    fn shown(&self, changed: bool) {
        let copy = &self.copy;
        let visible = copy.engine.commit_info().max_seq_no;
        let bytes = {
            let mut versions = copy.versions.lock();
            versions.installed(visible);
            versions.bytes()
        };
        copy.versions_permit.lock().resize(bytes);
        copy.lag_ends(visible);
        copy.visible.send_if_modified(|shown| {
            let other = *shown != visible;
            *shown = visible;
            other
        });
        if changed {
            copy.published.send_replace(copy.engine.meta_versions().0);
        }
    }

    fn flush(&mut self) -> Result<(), EngineError> {
        self.show()?;
        let copy = Arc::clone(&self.copy);
        let (version, durable) = copy.engine.meta_versions();
        if durable == Some(version) {
            copy.unflushed.store(self.unflushed_now(), Ordering::Relaxed);
            return Ok(());
        }
        let begun = Instant::now();
        let payload = copy.engine.flush_after(|payload| {
            if copy.log.persisted() >= payload.max_seq_no {
                return Ok(());
            }
            self.handle.block_on(copy.log.sync()).map_err(|error| {
                copy.fail(CopyFailure::Log(error.to_string()));
                std::io::Error::other(error)
            })
        })?;
        if let Some(max) = payload.max_seq_no {
            // `TrimAfterFlush`. A failed trim keeps more than is needed, and says so.
            if let Err(error) = self.handle.block_on(copy.log.trim_below(max + 1)) {
                warn!(shard = %copy.id, %error, "translog was not trimmed");
            }
        }
        copy.unflushed.store(self.unflushed_now(), Ordering::Relaxed);
        copy.counters.flush_total.add(1);
        copy.counters.flush_time_us.add_time(begun.elapsed());
        copy.published.send_replace(copy.engine.meta_versions().0);
        Ok(())
    }

    fn unflushed_now(&self) -> u64 {
        let durable = self.copy.engine.durable_info().max_seq_no;
        self.copy
            .log
            .stats(durable.map(|max| max + 1))
            .uncommitted_size_bytes
    }

    /// What is due whatever happened.
    fn due(&mut self) -> Result<(), EngineError> {
        if self.broken.is_some() {
            return Ok(());
        }
        let now = Instant::now();
        let periodic = self.interval().is_some() && self.writer_open && now >= self.refresh_at;
        if periodic || (self.writer_open && self.copy.refresh_soon.load(Ordering::Acquire)) {
            self.show()?;
        }
        let threshold = self.copy.index.load().settings.flush_threshold_bytes;
        let unflushed = self.copy.unflushed.load(Ordering::Relaxed);
        if unflushed >= threshold {
            let durable = self.copy.engine.durable_info().max_seq_no;
            let current = self.copy.engine.commit_info().max_seq_no;
            let covers = if self.indexes {
                self.next.checked_sub(1)
            } else {
                current
            };
            if covers > durable {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), EngineError> {
        if self.writer_open && self.last_work.elapsed() >= IDLE {
            self.flush()?;
            self.close_writer()?;
        }
        Ok(())
    }

    fn close_writer(&mut self) -> Result<(), EngineError> {
        if self.writer_open {
            self.show()?;
            self.copy.engine.close_writer()?;
            self.writer_open = false;
        }
        Ok(())
    }

    // ---- commands ----

    fn command(&mut self, command: Command) -> Stopped {
        match command {
            Command::Refresh(answer) => {
                let outcome = self.unless_broken(|indexer| {
                    indexer.catch_up()?;
                    indexer.show()
                });
                self.answer(answer, outcome);
            }
            Command::Flush(answer) => {
                let outcome = self.unless_broken(|indexer| {
                    indexer.catch_up()?;
                    indexer.flush()
                });
                self.answer(answer, outcome);
            }
            Command::Activate(term) => {
                let outcome = self.unless_broken(|indexer| {
                    indexer.close_writer()?;
                    indexer.begin_after_commit();
                    indexer.writer_term = term;
                    indexer.indexes = true;
                    if indexer.copy.replication_type() == ReplicationType::Segment {
                        // Opening publishes a meta of this term: above every checkpoint that a copy may have installed.
                        indexer.open_writer()?;
                    }
                    Ok(())
                });
                self.noted(outcome);
            }
            Command::Demote(term) => {
                let outcome = self.unless_broken(|indexer| {
                    indexer.writer_term = term;
                    if indexer.copy.replication_type() == ReplicationType::Segment {
                        indexer.close_writer()?;
                        indexer.indexes = false;
                        indexer.copy.queue.clear();
                    }
                    Ok(())
                });
                self.noted(outcome);
            }
            Command::Install(checkpoint, answer) => {
                let outcome = self.unless_broken(|indexer| {
                    let changed = indexer.copy.engine.install(&checkpoint)?;
                    indexer.begin_after_commit();
                    indexer.shown(changed);
                    Ok(())
                });
                if let Err(error @ (EngineError::Failed(_) | EngineError::Io { .. })) = &outcome {
                    self.fail(error);
                }
                let shown = outcome
                    .map(|()| *self.copy.visible.borrow())
                    .map_err(CopyError::from);
                // Who gave up waiting needs no answer; the same below.
                drop(answer.send(shown));
                let due = self.due();
                self.noted(due);
            }
            Command::Stop(flush) => {
                self.stop(flush);
                self.copy.queue.close();
                return Stopped::Yes;
            }
        }
        Stopped::No
    }

    fn unless_broken(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        match &self.broken {
            Some(reason) => Err(EngineError::Failed(reason.clone())),
            None => run(self),
        }
    }

    fn answer(&mut self, answer: Answer, outcome: Result<(), EngineError>) {
        let shown = match outcome {
            Ok(()) => Ok(*self.copy.visible.borrow()),
            Err(error) => {
                self.fail(&error);
                Err(error.into())
            }
        };
        drop(answer.send(shown));
    }

    fn noted(&mut self, outcome: Result<(), EngineError>) {
        if let Err(error) = outcome {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &EngineError) {
        if self.broken.is_some() {
            return;
        }
        let failure = failure_of(error);
        if matches!(failure, CopyFailure::Writer(_)) {
            self.suspect_now();
        }
        self.broken = Some(error.to_string());
        self.copy.queue.clear();
        self.copy.fail(failure);
    }

    /// True where the disk takes what a commit of one document takes: then it was the document.
    fn disk_works(&self) -> bool {
        let (fs, path) = (&self.copy.node.fs, self.copy.dir.join("probe.tmp"));
        let written = fs.create(&path).and_then(|file| {
            file.append(&vec![0; PROBE_BYTES])?;
            file.sync()
        });
        let removed = fs.remove(&path);
        match written.and(removed) {
            Ok(()) => true,
            Err(error) => {
                warn!(shard = %self.copy.id, %error, "the disk of a copy whose index writer failed does not work");
                false
            }
        }
    }

    /// The writer was killed: by one of the operations since the last commit, or by the disk.
    fn suspect_now(&mut self) {
        if !self.disk_works() {
            return;
        }
        let mut suspicion = self.copy.node.suspicion(self.copy.allocation);
        match self.suspicion.range {
            Some((only, to)) if only == to && suspicion.range.is_some() => {
                suspicion.guilty.push(only);
                suspicion.range = suspicion
                    .range
                    .filter(|(_, to)| *to > only)
                    .map(|(_, to)| (only + 1, to));
            }
            _ => {
                let from = self.copy.engine.commit_info().max_seq_no.map_or(0, |max| max + 1);
                // The operation that failed was not counted yet.
                suspicion.range = Some((from, self.next));
            }
        }
        info!(shard = %self.copy.id, ?suspicion, "operations are suspected of having killed the index writer");
        self.copy.node.suspect(self.copy.allocation, suspicion);
    }

    fn stop(&mut self, flush: bool) {
        if flush
            && self.broken.is_none()
            && let Err(error) = self.flush()
        {
            warn!(shard = %self.copy.id, %error, "the copy could not be flushed at its end");
        }
        if self.writer_open && matches!(*self.copy.role.borrow(), Role::Closed) {
            // What was not committed is in the log.
            match self.copy.engine.close_writer() {
                Ok(()) | Err(EngineError::Uncommitted(_)) => {}
                Err(error) => warn!(shard = %self.copy.id, %error, "the index writer could not be closed"),
            }
        }
    }
}
