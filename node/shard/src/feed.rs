//! Operations into the engine: from the queue, or from the log.

use crate::{
    actor::LOG_CHUNK,
    indexer::{CHUNK, Indexer},
    queue::{Found, Queued},
};
use segmentry_engine::{EngineError, OperationRef};
use segmentry_mapping::{Mapping, ParsedDocument};
use segmentry_translog::{Error as LogError, OperationKind};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::{debug, error, warn};

/// A document, and the mapping that it was parsed with.
type Document = (ParsedDocument, Arc<Mapping>);

impl Indexer {
    pub(crate) fn open_writer(&mut self) -> Result<(), EngineError> {
        if !self.writer_open {
            self.copy.engine.open_writer(self.writer_term)?;
            self.writer_open = true;
            let now = Instant::now();
            self.refresh_at = now + self.interval().unwrap_or_default();
        }
        self.last_work = Instant::now();
        Ok(())
    }

    pub(crate) fn index_log(&mut self, to: u64) -> Result<(), EngineError> {
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

    pub(crate) fn index(&mut self, items: Vec<Queued>) -> Result<(), EngineError> {
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
    pub(crate) fn catch_up(&mut self) -> Result<(), EngineError> {
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
}
