//! The indexer of a copy: a thread that owns the engine's writer, and decides when to refresh and flush.

use crate::{
    CopyError, CopyFailure, Role, ShardCopy,
    actor::LOG_CHUNK,
    copy::failure_of,
    queue::{Answer, Command, Found, Queued},
    resources::Suspicion,
};
use segmentry_engine::{CommitPayload, EngineError, OperationRef};
use segmentry_mapping::{Mapping, ParsedDocument};
use segmentry_settings::ReplicationType;
use segmentry_translog::{Error as LogError, OperationKind};
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tokio::runtime::Handle;
use tracing::{debug, error, info, warn};

/// Bytes of operations that are indexed between two looks at commands.
const CHUNK: u64 = 4 << 20;
/// A writer without work for this long is closed: an open one holds threads.
const IDLE: Duration = Duration::from_secs(30);

/// A document, and the mapping that it was parsed with.
type Document = (ParsedDocument, Arc<Mapping>);

enum Stopped {
    No,
    Yes,
}

pub(crate) struct Indexer {
    copy: Arc<ShardCopy>,
    handle: Handle,
    /// Next operation for the engine.
    next: u64,
    /// Term of the last operation that the engine has, and the highest mapping version.
    term: u64,
    mapping_version: u64,
    /// Term to open a writer for.
    writer_term: u64,
    /// True where this copy indexes: a primary, or DOCUMENT.
    indexes: bool,
    writer_open: bool,
    refresh_at: Instant,
    last_work: Instant,
    suspicion: Suspicion,
    /// The engine failed: nothing but answers from here on.
    broken: Option<String>,
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

    fn interval(&self) -> Option<Duration> {
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
    fn limits(&self) -> (Option<u64>, u64) {
        let limit = if self.indexes && self.broken.is_none() {
            self.copy.tracker.checkpoint()
        } else {
            None
        };
        (limit, self.copy.mapping_version())
    }

    // ---- indexing ----

    fn open_writer(&mut self) -> Result<(), EngineError> {
        if !self.writer_open {
            self.copy.engine.open_writer(self.writer_term)?;
            self.writer_open = true;
            let now = Instant::now();
            self.refresh_at = now + self.interval().unwrap_or_default();
        }
        self.last_work = Instant::now();
        Ok(())
    }

    fn index_log(&mut self, to: u64) -> Result<(), EngineError> {
        let operations = match self.copy.log.read_from(self.next, LOG_CHUNK) {
            Ok(operations) => operations,
            Err(LogError::Closed) => return Ok(()),
            Err(error) => return Err(EngineError::Failed(format!("replay from {}: {error}", self.next))),
        };
        let mapping = self.copy.mapping_version();
        let mut items = Vec::new();
        let mut waits = None;
        for operation in operations {
            if operation.seq_no > to || operation.seq_no != self.next + items.len() as u64 {
                break;
            }
            if operation.mapping_version > mapping {
                waits = Some(operation.mapping_version);
                break;
            }
            items.push(Queued {
                operation,
                parsed: None,
                unique: false,
                permit: None,
            });
        }
        if items.is_empty() {
            let reason = match waits {
                Some(version) => format!("mapping version {version}, known is {mapping}"),
                None => format!("operation {} to be in the log", self.next),
            };
            debug!(shard = %self.copy.id, reason, "the indexer waits");
            *self.copy.waiting.lock() = Some(reason);
            // The next look comes with a nudge (mapping, log) at the latest; this bounds a missed one.
            std::thread::sleep(Duration::from_millis(20));
            return Ok(());
        }
        self.index(items)
    }

    fn index(&mut self, items: Vec<Queued>) -> Result<(), EngineError> {
        *self.copy.waiting.lock() = None;
        self.open_writer()?;
        let parser = self.copy.parser.load_full();
        let mut ready: Vec<(Queued, Option<Document>)> = Vec::with_capacity(items.len());
        for mut item in items {
            let parsed = match (item.operation.kind, item.parsed.take()) {
                (OperationKind::Index, Some(parsed)) => Some(parsed),
                (OperationKind::Index, None) => {
                    match parser.parse(&item.operation.id, &item.operation.source) {
                        Ok(mut parsed) => {
                            if parsed.grown.is_some() {
                                // The mapping was more tolerant when it was written: what it did not map then stays unmapped.
                                let known = parser.mapping().fields.len();
                                parsed
                                    .document
                                    .values
                                    .retain(|(field, _)| (*field as usize) < known);
                            }
                            Some((parsed.document, Arc::clone(parser.mapping())))
                        }
                        Err(error) => {
                            warn!(shard = %self.copy.id, id = %item.operation.id, seq_no = item.operation.seq_no, %error, "a logged document does not fit the mapping, it is kept unindexed");
                            None
                        }
                    }
                }
                _ => None,
            };
            ready.push((item, parsed));
        }
        let documents = ready
            .iter()
            .filter_map(|(_, parsed)| parsed.as_ref())
            .map(|(document, mapping)| (document, mapping));
        self.copy.engine.ensure_fields(documents)?;
        for (item, parsed) in ready {
            self.one(&item, parsed)?;
        }
        self.last_work = Instant::now();
        Ok(())
    }

    fn one(&mut self, item: &Queued, parsed: Option<Document>) -> Result<(), EngineError> {
        let operation = &item.operation;
        debug_assert_eq!(operation.seq_no, self.next, "a commit is an exact prefix");
        debug_assert!(
            Some(operation.seq_no) <= self.copy.tracker.checkpoint(),
            "SegmentsBelowGlobalCheckpoint"
        );
        let engine = &self.copy.engine;
        let reference = OperationRef {
            id: &operation.id,
            seq_no: operation.seq_no,
            term: operation.term,
            version: operation.version,
            routing: operation.routing.as_deref(),
            source: &operation.source,
        };
        let suspected = self
            .suspicion
            .range
            .is_some_and(|(from, to)| (from..=to).contains(&operation.seq_no));
        let guilty = self.suspicion.guilty.contains(&operation.seq_no);
        let counters = &self.copy.counters;
        match (operation.kind, parsed) {
            (OperationKind::Index, Some((document, mapping))) if !guilty => {
                self.mapping_version = self.mapping_version.max(mapping.version);
                engine.index(&reference, &document, &mapping, item.unique)?;
                counters.index_total.add(1);
            }
            (OperationKind::Index | OperationKind::Unindexable, _) => {
                if guilty {
                    error!(shard = %self.copy.id, id = %operation.id, seq_no = operation.seq_no, "a document killed the index writer twice, it is kept unindexed");
                }
                engine.add_unindexable(&reference)?;
                counters.index_total.add(1);
                counters.unindexable_total.add(1);
            }
            (OperationKind::Delete, _) => {
                engine.delete(&reference)?;
                counters.delete_total.add(1);
            }
            (OperationKind::NoOp | OperationKind::TermStart { .. }, _) => {}
        }
        self.term = operation.term;
        self.next = operation.seq_no + 1;
        if suspected {
            // One at a time: the one whose commit kills the writer is guilty.
            self.suspicion.range = Some((operation.seq_no, operation.seq_no));
            self.show()?;
            let end = self
                .copy
                .node
                .suspicion(self.copy.allocation)
                .range
                .map_or(operation.seq_no, |(_, to)| to);
            self.suspicion.range = (operation.seq_no < end).then_some((operation.seq_no + 1, end));
            self.copy
                .node
                .suspect(self.copy.allocation, self.suspicion.clone());
        }
        Ok(())
    }

    /// Indexes everything that may be indexed now.
    fn catch_up(&mut self) -> Result<(), EngineError> {
        loop {
            let (limit, mapping) = self.limits();
            let before = self.next;
            match self.copy.queue.take(self.next, limit, mapping, CHUNK) {
                Some(Found::Items(items)) => self.index(items)?,
                Some(Found::Log(to)) => self.index_log(to)?,
                _ => return Ok(()),
            }
            if self.next == before {
                return Ok(());
            }
        }
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
    fn show(&mut self) -> Result<(), EngineError> {
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

    /// The writer was killed: by one of the operations since the last commit.
    fn suspect_now(&mut self) {
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
