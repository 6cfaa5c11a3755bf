//! The actor of a copy: a thread that owns the order of operations.

use crate::{
    Activation, AppendRefusal, Batch, CopyError, CopyFailure, Outcome, Permit, Role, ShardCopy, WriteError,
    WriteKind, WriteOp, WriteResult,
    open::term_of,
    queue::Queued,
    resolve::{Current, check, resolve},
    update::{Updated, apply},
};
use bytes::Bytes;
use segmentry_mapping::{Mapping, ParsedDocument};
use segmentry_settings::{Durability, ReplicationType};
use segmentry_translog::{Operation, OperationKind};
use std::sync::{Arc, atomic::Ordering};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
};
use tracing::info;

/// Bytes that are read from the log at once.
pub(crate) const LOG_CHUNK: usize = 4 << 20;
/// Share of the indexing budget that the version map of one copy may take before an internal refresh runs.
const VERSIONS_SHARE: u64 = 20;

/// A write, parsed.
pub(crate) struct Prepared {
    pub op: WriteOp,
    /// None for deletes and updates.
    pub parsed: Option<(ParsedDocument, Arc<Mapping>)>,
    pub permit: Permit,
}

/// Answer to a batch of writes: results of the first ones; the rest needs this mapping first.
pub(crate) struct Written {
    pub results: Vec<Result<WriteResult, WriteError>>,
    pub rest: Option<(Arc<Mapping>, Vec<Prepared>)>,
}

pub(crate) enum Message {
    Write(Vec<Prepared>, oneshot::Sender<Written>),
    Append(Batch, oneshot::Sender<Result<(), AppendRefusal>>),
    Activate(Activation, oneshot::Sender<Result<(), CopyError>>),
    Follow(u64, oneshot::Sender<Result<(), CopyError>>),
    /// The log of a copy that was built from files begins behind this operation.
    Begin(u64, Option<u64>, oneshot::Sender<Result<(), CopyError>>),
    Stop,
}

pub(crate) struct Actor {
    pub(crate) copy: Arc<ShardCopy>,
    pub(crate) handle: Handle,
}

/// Operations of one message, on their way to the log.
#[derive(Default)]
struct Out {
    operations: Vec<Operation>,
    queued: Vec<Queued>,
}

enum One {
    Done(WriteResult),
    Needs(Arc<Mapping>, Box<Prepared>),
}

impl Actor {
    pub fn new(copy: Arc<ShardCopy>) -> Self {
        Self {
            handle: copy.node.runtime.clone(),
            copy,
        }
    }

    /// Until [`Message::Stop`]. What still waits then is dropped, and its senders learn that the copy is closed.
    pub fn run(self, mut messages: mpsc::Receiver<Message>) {
        // A receiver of an answer that is gone has given up waiting: nothing depends on it.
        while let Some(message) = messages.blocking_recv() {
            match message {
                Message::Write(ops, reply) => drop(reply.send(self.write(ops))),
                Message::Append(batch, reply) => drop(reply.send(self.append(batch))),
                Message::Activate(activation, reply) => drop(reply.send(self.activate(&activation))),
                Message::Follow(term, reply) => drop(reply.send(self.follow(term))),
                Message::Begin(term, last, reply) => drop(reply.send(self.begin(term, last))),
                Message::Stop => return,
            }
        }
    }

    // ---- primary ----

    fn write(&self, ops: Vec<Prepared>) -> Written {
        let copy = &self.copy;
        let Role::Primary { term } = copy.role() else {
            let refused = WriteError::NotPrimary(format!("{:?}", copy.role()));
            return Written {
                results: ops.iter().map(|_| Err(refused.clone())).collect(),
                rest: None,
            };
        };
        let mut out = Out::default();
        let mut results = Vec::with_capacity(ops.len());
        let mut rest = None;
        let mut ops = ops.into_iter();
        for prepared in ops.by_ref() {
            match self.one(prepared, term, &mut out) {
                Ok(One::Done(result)) => results.push(Ok(result)),
                Ok(One::Needs(mapping, prepared)) => {
                    rest = Some((mapping, vec![*prepared]));
                    break;
                }
                Err(error) => {
                    copy.counters.index_failed.add(1);
                    results.push(Err(error));
                }
            }
        }
        if let Some((_, rest)) = &mut rest {
            rest.extend(ops);
        }
        if let Err(reason) = self.hand_over(out, term) {
            for result in &mut results {
                if result.is_ok() {
                    *result = Err(WriteError::Unknown(reason.clone()));
                }
            }
            rest = None;
        }
        Written { results, rest }
    }

    /// Numbered operations go to the streams and to the log, and to the indexer.
    fn hand_over(&self, out: Out, term: u64) -> Result<(), String> {
        let copy = &self.copy;
        let (Some(first), Some(last)) = (out.operations.first(), out.operations.last()) else {
            return Ok(());
        };
        let (first, last) = (first.seq_no, last.seq_no);
        let sync = copy.index.load().settings.durability == Durability::Request;
        copy.tail.lock().push(&out.operations);
        copy.tracker.assigned(first, last, sync);
        copy.last.send_replace((Some(last), term));
        self.log(&out.operations, sync)?;
        copy.queue.push(out.queued, false);
        let bytes = copy.versions.lock().bytes();
        copy.versions_permit.lock().resize(bytes);
        if bytes > copy.node.budget.limit() / VERSIONS_SHARE {
            copy.refresh_soon.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn log(&self, operations: &[Operation], sync: bool) -> Result<(), String> {
        let bytes: usize = operations.iter().map(Operation::encoded_len).sum();
        self.copy.unflushed.fetch_add(bytes as u64, Ordering::Relaxed);
        self.handle
            .block_on(self.copy.log.add(operations, sync))
            .map(drop)
            .map_err(|error| {
                let reason = error.to_string();
                self.copy.fail(CopyFailure::Log(reason.clone()));
                reason
            })
    }

    /// Resolves one write. Nothing is given a seq_no before everything that could refuse it has passed.
    fn one(&self, prepared: Prepared, term: u64, out: &mut Out) -> Result<One, WriteError> {
        let unique = prepared.op.fresh_id;
        let current = if unique {
            None
        } else {
            self.current(&prepared.op.id)?
        };
        check(&prepared.op, current)?;
        let Prepared { op, parsed, permit } = prepared;
        let live = current.filter(|current| !current.deleted);
        let (kind, source, parsed) = match op.kind {
            WriteKind::Update => {
                let existing = match live {
                    Some(live) => Some(self.source(&op.id, live, out)?),
                    None => None,
                };
                match (apply(&op.id, &op.source, existing.as_deref())?, live) {
                    (Updated::Noop, Some(live)) => {
                        return Ok(One::Done(WriteResult {
                            outcome: Outcome::Noop,
                            version: live.version,
                            seq_no: live.seq_no,
                            term: live.term,
                        }));
                    }
                    (Updated::Missing, _) | (Updated::Noop, None) => return Err(WriteError::Missing(op.id)),
                    (Updated::Put(source), _) => {
                        let parser = self.copy.parser.load_full();
                        let parsed = parser.parse(&op.id, &source)?;
                        if let Some(grown) = parsed.grown {
                            return Ok(One::Needs(
                                grown,
                                Box::new(Prepared {
                                    op,
                                    parsed: None,
                                    permit,
                                }),
                            ));
                        }
                        let mapping = Arc::clone(parser.mapping());
                        (WriteKind::Index, source, Some((parsed.document, mapping)))
                    }
                }
            }
            WriteKind::Delete => (op.kind, Bytes::new(), None),
            WriteKind::Index | WriteKind::Create => (op.kind, op.source, parsed),
        };
        let resolved = resolve(kind, current);
        let seq_no = match out.operations.last() {
            Some(last) => last.seq_no + 1,
            None => self.copy.last.borrow().0.map_or(0, |last| last + 1),
        };
        let operation = Operation {
            seq_no,
            term,
            version: resolved.version,
            mapping_version: parsed.as_ref().map_or(0, |(_, mapping)| mapping.version),
            kind: resolved.kind,
            id: op.id,
            routing: op.routing,
            source,
        };
        self.copy.versions.lock().put(&operation);
        out.operations.push(operation.clone());
        out.queued.push(Queued {
            operation,
            parsed,
            unique,
            permit: Some(permit),
        });
        Ok(One::Done(WriteResult {
            outcome: resolved.outcome,
            version: resolved.version,
            seq_no,
            term,
        }))
    }

    /// What wrote a document last: the version map first, then what the searcher shows.
    fn current(&self, id: &str) -> Result<Option<Current>, WriteError> {
        if let Some(entry) = self.copy.versions.lock().get(id) {
            return Ok(Some(Current {
                seq_no: entry.seq_no,
                term: entry.term,
                version: entry.version,
                deleted: entry.deleted.is_some(),
            }));
        }
        match self.copy.engine.lookup_version(id) {
            Ok(found) => Ok(found.map(|found| Current {
                seq_no: found.seq_no,
                term: found.term,
                version: found.version,
                deleted: false,
            })),
            Err(error) => Err(WriteError::Unknown(format!(
                "version of [{id}] cannot be read: {error}"
            ))),
        }
    }

    /// Source of a live document that an update merges into.
    fn source(&self, id: &str, live: Current, out: &Out) -> Result<Bytes, WriteError> {
        if let Some(first) = out.operations.first()
            && let Some(position) = live.seq_no.checked_sub(first.seq_no)
            && let Some(operation) = usize::try_from(position)
                .ok()
                .and_then(|at| out.operations.get(at))
        {
            return Ok(operation.source.clone());
        }
        self.copy
            .logged_or_stored(id, live.seq_no)
            .map_err(|error| WriteError::Unknown(format!("source of [{id}] cannot be read: {error}")))?
            .map(|found| found.source)
            .ok_or_else(|| WriteError::Unknown(format!("source of [{id}] is not there")))
    }

    // ---- replica ----

    /// Appends a batch of the primary, if it continues this log.
    fn append(&self, batch: Batch) -> Result<(), AppendRefusal> {
        let copy = &self.copy;
        let known = copy.term.load(Ordering::Acquire);
        let stale = || AppendRefusal::Stale {
            given: batch.term,
            known,
        };
        match copy.role() {
            Role::Primary { .. } | Role::Deposed { .. } if batch.term <= known => return Err(stale()),
            Role::Primary { .. } | Role::Deposed { .. } => self.demote(batch.term),
            Role::Replica { .. } => {}
            Role::Recovering => return Err(AppendRefusal::Failed("the copy is being built".to_owned())),
            Role::Failed(failure) => return Err(AppendRefusal::Failed(failure.to_string())),
            Role::Closed => return Err(AppendRefusal::Failed("the copy was closed".to_owned())),
        }
        if batch.term < known {
            return Err(stale());
        }
        self.know(batch.term);
        let failed = |error: &dyn std::fmt::Display| AppendRefusal::Failed(error.to_string());
        let (mut last, _) = *copy.last.borrow();
        let log_term = copy.log.term();
        match batch.start {
            Some(start) if batch.term > log_term => {
                if start.keep_to > last {
                    return Err(AppendRefusal::Expect(copy.log_state()));
                }
                let checkpoint = copy.tracker.checkpoint();
                if start.keep_to < checkpoint {
                    return Err(AppendRefusal::Diverged(format!(
                        "the primary of term {} keeps operations up to {:?}, the global checkpoint is {checkpoint:?}",
                        batch.term, start.keep_to
                    )));
                }
                if start.keep_to < last {
                    info!(shard = %copy.id, term = batch.term, keep_to = ?start.keep_to, ?last, "operations of an earlier term are void");
                }
                copy.queue.cut(start.keep_to);
                let started = self
                    .handle
                    .block_on(copy.log.start_term(batch.term, start.keep_to));
                if let Err(error) = started {
                    copy.fail(CopyFailure::Log(error.to_string()));
                    return Err(failed(&error));
                }
                last = start.keep_to;
                let last_term =
                    term_of(&copy.log, last, &copy.engine.commit_info()).map_err(|error| failed(&error))?;
                copy.last.send_replace((last, last_term));
            }
            None if batch.term > log_term => return Err(AppendRefusal::Expect(copy.log_state())),
            _ => {}
        }
        if batch.previous != last {
            return Err(AppendRefusal::Expect(copy.log_state()));
        }
        let first = last.map_or(0, |last| last + 1);
        for (next, operation) in (first..).zip(&batch.operations) {
            if operation.seq_no != next || operation.term > batch.term {
                return Err(failed(&format_args!(
                    "operation {} of term {} in a batch of term {}, expected {next}",
                    operation.seq_no, operation.term, batch.term
                )));
            }
        }
        *copy.announced.lock() = (batch.global_checkpoint, batch.primary_last);
        if let Some(end) = batch.operations.last() {
            let (seq_no, term) = (end.seq_no, end.term);
            copy.last.send_replace((Some(seq_no), term));
            self.log(&batch.operations, batch.sync)
                .map_err(|reason| failed(&reason))?;
            copy.lag_begins(seq_no);
            if copy.replication_type() == ReplicationType::Document {
                let queued = batch.operations.into_iter().map(|operation| Queued {
                    operation,
                    parsed: None,
                    unique: false,
                    permit: None,
                });
                copy.queue.push(queued, true);
            }
        }
        copy.follow_checkpoint(copy.log.written());
        if copy.last.borrow().0 >= batch.primary_last {
            // Whatever was lost with the machine came from the primary.
            copy.trust();
        }
        Ok(())
    }
}

/// True for what stores a document.
pub(crate) fn stores(kind: OperationKind) -> bool {
    matches!(kind, OperationKind::Index | OperationKind::Unindexable)
}
