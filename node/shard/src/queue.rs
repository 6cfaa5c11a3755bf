//! The way to the indexer: operations, commands, and the reason to wake up.

use crate::{CopyError, Permit};
use parking_lot::{Condvar, Mutex};
use segmentry_engine::Checkpoint;
use segmentry_mapping::{Mapping, ParsedDocument};
use segmentry_translog::Operation;
use std::{collections::VecDeque, sync::Arc, time::Instant};
use tokio::sync::oneshot;

/// Bytes that the queue of a replica holds; what is beyond is read from the log.
const REPLICA_BYTES: u64 = 16 << 20;

/// One operation on its way to the engine.
pub(crate) struct Queued {
    pub operation: Operation,
    /// On a primary: parsed before it got its seq_no.
    pub parsed: Option<(ParsedDocument, Arc<Mapping>)>,
    /// No document of this id can be in the engine.
    pub unique: bool,
    /// Its share of the indexing budget, given back when the engine has the operation.
    #[expect(dead_code, reason = "held, not read")]
    pub permit: Option<Permit>,
}

impl Queued {
    fn bytes(&self) -> u64 {
        self.operation.encoded_len() as u64
    }
}

/// Answer of a command: what the searcher shows afterwards.
pub(crate) type Answer = oneshot::Sender<Result<Option<u64>, CopyError>>;

pub(crate) enum Command {
    /// Indexes what may be indexed, and shows it.
    Refresh(Answer),
    /// The same, and makes it durable.
    Flush(Answer),
    /// The copy is primary of this term from now on.
    Activate(u64),
    /// The copy follows from now on.
    Demote(u64),
    /// Puts a received checkpoint in force.
    Install(Box<Checkpoint>, Answer),
    /// The end; true: after a flush.
    Stop(bool),
}

#[derive(Default)]
struct Inner {
    items: VecDeque<Queued>,
    bytes: u64,
    commands: VecDeque<Command>,
    nudged: bool,
    /// The indexer has ended: commands are dropped, and who waits for their answers learns it.
    closed: bool,
}

/// What the indexer finds.
pub(crate) enum Found {
    Command(Command),
    /// Contiguous operations, the first of them `next`.
    Items(Vec<Queued>),
    /// Operations from `next` up to this one are to be read from the log.
    Log(u64),
    /// Nothing, until the deadline.
    Nothing,
}

#[derive(Default)]
pub(crate) struct IndexQueue {
    inner: Mutex<Inner>,
    wake: Condvar,
}

impl IndexQueue {
    /// Hands operations over. A replica's queue is bounded by itself, a primary's by the budget.
    pub fn push(&self, items: impl IntoIterator<Item = Queued>, replica: bool) {
        let mut inner = self.inner.lock();
        for item in items {
            let bytes = item.bytes();
            let full = replica && inner.bytes > 0 && inner.bytes + bytes > REPLICA_BYTES;
            let gap = inner
                .items
                .back()
                .is_some_and(|last| last.operation.seq_no + 1 != item.operation.seq_no);
            if full || gap {
                // From the log, then; and what comes after it too, until the queue is empty: it never has a gap.
                break;
            }
            inner.bytes += bytes;
            inner.items.push_back(item);
        }
        drop(inner);
        self.wake.notify_one();
    }

    /// A term start voided what is above `keep_to`. None of it was handed to the engine.
    pub fn cut(&self, keep_to: Option<u64>) {
        let mut inner = self.inner.lock();
        while inner
            .items
            .back()
            .is_some_and(|item| Some(item.operation.seq_no) > keep_to)
            && let Some(item) = inner.items.pop_back()
        {
            inner.bytes -= item.bytes();
        }
    }

    pub fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.items.clear();
        inner.bytes = 0;
    }

    pub fn command(&self, command: Command) {
        let mut inner = self.inner.lock();
        if !inner.closed {
            inner.commands.push_back(command);
            drop(inner);
            self.wake.notify_one();
        }
    }

    /// The indexer ends.
    pub fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.commands.clear();
        inner.items.clear();
        inner.bytes = 0;
    }

    /// The checkpoint, the mapping or the settings moved.
    pub fn nudge(&self) {
        self.inner.lock().nudged = true;
        self.wake.notify_one();
    }

    /// Waits for work. `limit`: last operation that may be indexed now; none where nothing is to be indexed. `mapping`: version
    /// that unparsed operations may need at most.
    pub fn find(
        &self,
        next: u64,
        deadline: Option<Instant>,
        mut now: impl FnMut() -> (Option<u64>, u64),
        bytes: u64,
    ) -> Found {
        let mut inner = self.inner.lock();
        loop {
            if let Some(command) = inner.commands.pop_front() {
                return Found::Command(command);
            }
            let (limit, mapping) = now();
            if let Some(found) = take(&mut inner, next, limit, mapping, bytes) {
                return found;
            }
            if std::mem::take(&mut inner.nudged) {
                continue;
            }
            match deadline {
                Some(deadline) => {
                    if self.wake.wait_until(&mut inner, deadline).timed_out() {
                        return Found::Nothing;
                    }
                }
                None => self.wake.wait(&mut inner),
            }
        }
    }

    /// The same without waiting, and without commands.
    pub fn take(&self, next: u64, limit: Option<u64>, mapping: u64, bytes: u64) -> Option<Found> {
        take(&mut self.inner.lock(), next, limit, mapping, bytes)
    }
}

fn take(inner: &mut Inner, next: u64, limit: Option<u64>, mapping: u64, bytes: u64) -> Option<Found> {
    while inner
        .items
        .front()
        .is_some_and(|item| item.operation.seq_no < next)
        && let Some(item) = inner.items.pop_front()
    {
        inner.bytes -= item.bytes();
    }
    let limit = limit.filter(|limit| *limit >= next)?;
    match inner.items.front().map(|item| item.operation.seq_no) {
        Some(first) if first == next => {}
        Some(first) => return Some(Found::Log(limit.min(first - 1))),
        None => return Some(Found::Log(limit)),
    }
    let mut taken = 0;
    let mut items = Vec::new();
    let ready = |item: &Queued| {
        item.operation.seq_no <= limit && (item.parsed.is_some() || item.operation.mapping_version <= mapping)
    };
    while taken < bytes
        && inner.items.front().is_some_and(ready)
        && let Some(item) = inner.items.pop_front()
    {
        inner.bytes -= item.bytes();
        taken += item.bytes();
        items.push(item);
    }
    (!items.is_empty()).then_some(Found::Items(items))
}
