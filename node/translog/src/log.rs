//! The door: [`Translog`].

use crate::{
    Config, Error, Opened, Operation, OperationKind, Position, Progress, Result, Stats,
    committer::{Committer, first_checkpoint, make_generation},
    encode,
    format::{self, CHECKPOINT, HEADER, Place, Slot},
    index::Index,
    queue::{Inner, Pending, Queue, Reply, Request, TermStart, UNIT},
    scan::{self, millis},
};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use segmentry_settings::Durability;
use segmentry_vfs::{Vfs, create_dir_durably, write_durably};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
    time::SystemTime,
};
use tokio::sync::{Semaphore, oneshot, watch};
use uuid::Uuid;

/// Write-ahead log of one copy. Dropped without [`Translog::close`] it ends as a killed process would.
pub struct Translog {
    pub(crate) inner: Arc<Inner>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// Holds operations: while it lives, nothing from its `seq_no` on is trimmed.
pub struct Pin {
    inner: Arc<Inner>,
    seq_no: u64,
}

impl Pin {
    /// First operation that is held.
    pub fn seq_no(&self) -> u64 {
        self.seq_no
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut index = self.inner.index.lock();
        if let Some(count) = index.pins.get_mut(&self.seq_no) {
            *count -= 1;
            if *count == 0 {
                index.pins.remove(&self.seq_no);
            }
        }
    }
}

impl Drop for Translog {
    fn drop(&mut self) {
        self.inner.closed();
        self.inner.queue.lock().requests.push(Request::Abandon);
        self.inner.wake.notify_all();
        // at most one write and sync that are under way: nothing touches the files once this has returned
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!(dir = %self.inner.dir.display(), "translog thread panicked");
        }
    }
}

impl Translog {
    /// A new log in `dir`, which is made where it is missing. Durable at return. Blocks.
    ///
    /// # Errors
    /// [`Error::Exists`] where one is already, [`Error::Io`].
    pub fn create(fs: Arc<dyn Vfs>, dir: &Path, shard: Uuid, config: Config) -> Result<Self> {
        create_dir_durably(fs.as_ref(), dir).map_err(Error::io("create", dir))?;
        if !scan::generations(fs.as_ref(), dir)?.is_empty() {
            return Err(Error::Exists { dir: dir.to_owned() });
        }
        let generation = make_generation(fs.as_ref(), dir, shard, 1, 0, 0)?;
        let end = Place {
            generation: 1,
            offset: HEADER as u64,
        };
        let slot = Slot {
            counter: 0,
            seed: generation.seed,
            end,
            first: None,
            last: None,
        };
        let checkpoint = dir.join(CHECKPOINT);
        write_durably(fs.as_ref(), &checkpoint, &first_checkpoint(&slot))
            .map_err(Error::io("write", &checkpoint))?;
        let mut index = Index::default();
        index.generations.insert(1, generation);
        Self::start(fs, dir, shard, config, index, end, slot)
    }

    /// An existing log. Blocks.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the place, [`Error::Foreign`], [`Error::Io`].
    pub fn open(fs: Arc<dyn Vfs>, dir: &Path, shard: Uuid, config: Config) -> Result<(Self, Opened)> {
        let scan::Scanned {
            index,
            opened,
            end,
            checkpoint,
        } = scan::open(fs.as_ref(), dir, shard)?;
        // what a killed process had handed to the kernel is made durable before it counts as persisted
        if let Some(active) = index.generations.get(&end.generation) {
            active.file.sync().map_err(Error::io("sync", &active.path))?;
        }
        Ok((
            Self::start(fs, dir, shard, config, index, end, checkpoint)?,
            opened,
        ))
    }

    fn start(
        fs: Arc<dyn Vfs>,
        dir: &Path,
        shard: Uuid,
        config: Config,
        index: Index,
        end: Place,
        checkpoint: Slot,
    ) -> Result<Self> {
        let last = index.last;
        let progress = Progress {
            written: last,
            persisted: last,
            failed: None,
        };
        let units = config.queue_bytes.div_ceil(UNIT).clamp(1, 1 << 20);
        let inner = Arc::new(Inner {
            fs,
            dir: dir.to_owned(),
            shard,
            queue: Mutex::new(Queue {
                batches: Vec::new(),
                requests: Vec::new(),
                next: index.next(),
                term: index.term,
                pristine: last.is_none(),
                stopped: None,
            }),
            wake: Condvar::new(),
            config: Mutex::new(config),
            index: Mutex::new(index),
            work: Mutex::default(),
            progress: watch::Sender::new(progress),
            room: Arc::new(Semaphore::new(units)),
            room_units: u32::try_from(units).unwrap_or(u32::MAX),
        });
        let committer = Committer {
            inner: inner.clone(),
            end,
            durable: end,
            counter: checkpoint.counter,
            checkpointed: checkpoint.end,
            unsynced_since: None,
        };
        let thread = std::thread::Builder::new()
            .name("translog".to_owned())
            .spawn(move || {
                let inner = committer.inner.clone();
                // writers must hear of it: a log whose thread is gone would keep them waiting for ever
                if catch_unwind(AssertUnwindSafe(|| committer.run())).is_err() {
                    inner.fail("the committer thread panicked");
                }
            })
            .map_err(Error::io("start a thread for", dir))?;
        Ok(Self {
            inner,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Hands a batch over; waits only while too many bytes wait already. `sync`: the batch asks to be persisted. It is written
    /// (and persisted) once [`Translog::progress`] says so.
    ///
    /// # Errors
    /// [`Error::Gap`], [`Error::TermNotStarted`], [`Error::Failed`], [`Error::Closed`]: nothing was handed over.
    pub async fn add(&self, operations: &[Operation], sync: bool) -> Result<Position> {
        let (Some(first), Some(last)) = (operations.first(), operations.last()) else {
            return Err(Error::Invalid("an empty batch".to_owned()));
        };
        let mut records = Vec::new();
        encode(operations, &mut records)?;
        if u32::try_from(records.len()).is_err() {
            return Err(Error::Invalid("a batch of 4 GiB or more".to_owned()));
        }
        let bytes = (records.len() + format::FRAME) as u64;
        let units = u32::try_from(records.len().div_ceil(UNIT))
            .unwrap_or(u32::MAX)
            .clamp(1, self.inner.room_units);
        let room = self
            .inner
            .room
            .clone()
            .acquire_many_owned(units)
            .await
            .map_err(|_| Error::Closed)?;
        let mut queue = self.inner.queue.lock();
        if let Some(error) = &queue.stopped {
            return Err(error.clone());
        }
        let mut expected = queue.next;
        for operation in operations {
            if operation.seq_no != expected {
                return Err(Error::Gap {
                    given: operation.seq_no,
                    expected,
                });
            }
            if operation.term > queue.term {
                let (seq_no, given, current) = (operation.seq_no, operation.term, queue.term);
                return Err(Error::TermNotStarted {
                    seq_no,
                    given,
                    current,
                });
            }
            if matches!(operation.kind, OperationKind::TermStart { .. }) {
                return Err(Error::Invalid("a term start in a batch".to_owned()));
            }
            expected += 1;
        }
        queue.next = expected;
        queue.pristine = false;
        let (first, last) = (first.seq_no, last.seq_no);
        queue.batches.push(Pending {
            records,
            first,
            last,
            sync,
            term_start: None,
            _room: Some(room),
        });
        drop(queue);
        self.inner.wake.notify_one();
        Ok(Position { seq_no: last, bytes })
    }

    /// Last seq_no written.
    pub fn written(&self) -> Option<u64> {
        self.inner.progress.borrow().written
    }

    /// Last seq_no persisted.
    pub fn persisted(&self) -> Option<u64> {
        self.inner.progress.borrow().persisted
    }

    /// Watches the log's progress.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.inner.progress.subscribe()
    }

    /// Term in force.
    pub fn term(&self) -> u64 {
        self.inner.queue.lock().term
    }

    async fn request(&self, make: impl FnOnce(Reply) -> Request) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        {
            let mut queue = self.inner.queue.lock();
            if let Some(error) = &queue.stopped {
                return Err(error.clone());
            }
            queue.requests.push(make(reply));
        }
        self.inner.wake.notify_one();
        self.answered(answer).await
    }

    async fn answered(&self, answer: oneshot::Receiver<Result<()>>) -> Result<()> {
        if let Ok(result) = answer.await {
            return result;
        }
        // a reply is dropped only on the way to the failure, whose reason comes a moment later
        let mut progress = self.inner.progress.subscribe();
        let failed = progress.wait_for(|at| at.failed.is_some()).await;
        let reason = failed.ok().and_then(|at| at.failed.clone());
        Err(reason.map_or(Error::Closed, Error::Failed))
    }

    /// Makes all that was added durable.
    ///
    /// # Errors
    /// [`Error::Failed`]: for good.
    pub async fn sync(&self) -> Result<()> {
        self.request(Request::Sync).await
    }

    /// Syncs, writes the checkpoint, ends the committer thread. A second call does nothing.
    ///
    /// # Errors
    /// [`Error::Failed`]: the last sync failed.
    pub async fn close(&self) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        let stopped = {
            let mut queue = self.inner.queue.lock();
            let before = queue.stopped.clone();
            if before.is_none() {
                // from here on nothing is taken that the last sync might miss
                queue.stopped = Some(Error::Closed);
                queue.requests.push(Request::Close(reply));
            }
            before
        };
        let closed = match stopped {
            Some(Error::Closed) => Ok(()),
            Some(failed) => Err(failed),
            None => {
                self.inner.wake.notify_one();
                self.answered(answer).await
            }
        };
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // it ends right after its answer
            let joined = tokio::task::spawn_blocking(move || thread.join().is_ok()).await;
            if !joined.unwrap_or(false) {
                return Err(Error::Failed("the committer thread panicked".to_owned()));
            }
        }
        closed
    }

    /// Starts a term: records of earlier terms above `keep_to` are void from here on. Durable at return. On a log that never
    /// held an operation `keep_to` says where it begins: the next operation is `keep_to + 1` (a copy that was built from files).
    ///
    /// # Errors
    /// [`Error::StaleTerm`], [`Error::Invalid`] for a `keep_to` behind the log's end, [`Error::Failed`].
    pub async fn start_term(&self, term: u64, keep_to: Option<u64>) -> Result<()> {
        {
            let mut queue = self.inner.queue.lock();
            if let Some(error) = &queue.stopped {
                return Err(error.clone());
            }
            if term <= queue.term {
                return Err(Error::StaleTerm {
                    given: term,
                    current: queue.term,
                });
            }
            let next = match keep_to.map(|keep_to| keep_to.checked_add(1)) {
                None => 0,
                Some(Some(next)) => next,
                Some(None) => {
                    return Err(Error::Invalid(
                        "no operation can follow the highest seq_no".to_owned(),
                    ));
                }
            };
            if next > queue.next && !queue.pristine {
                return Err(Error::Invalid(format!(
                    "a term start keeps up to {keep_to:?}, the log ends before"
                )));
            }
            let operation = Operation {
                seq_no: 0,
                term,
                version: 0,
                mapping_version: 0,
                kind: OperationKind::TermStart { keep_to },
                id: Arc::from(""),
                routing: None,
                source: Bytes::new(),
            };
            let mut records = Vec::new();
            encode(&[operation], &mut records)?;
            queue.next = next;
            queue.term = term;
            queue.pristine = keep_to.is_none();
            let term_start = Some(TermStart { term, keep_to });
            queue.batches.push(Pending {
                records,
                first: 0,
                last: 0,
                sync: true,
                term_start,
                _room: None,
            });
        }
        self.sync().await
    }

    /// Deletes whole generations whose every operation is below `seq_no` and not pinned.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub async fn trim_below(&self, seq_no: u64) -> Result<()> {
        self.request(|reply| Request::Trim(seq_no, reply)).await
    }

    /// Pins operations from `seq_no` on.
    pub fn pin(&self, seq_no: u64) -> Pin {
        *self.inner.index.lock().pins.entry(seq_no).or_insert(0) += 1;
        Pin {
            inner: self.inner.clone(),
            seq_no,
        }
    }

    /// Changes settings; a change to request durability syncs at once.
    pub fn configure(&self, config: Config) {
        let look = {
            let mut now = self.inner.config.lock();
            let look = *now != config;
            *now = config;
            look || config.durability == Durability::Request
        };
        if look {
            self.inner.queue.lock().requests.push(Request::Look);
            self.inner.wake.notify_one();
        }
    }

    /// Statistics; `uncommitted_from`: first operation that no durable commit holds (`None` = 0, all of them).
    pub fn stats(&self, uncommitted_from: Option<u64>) -> Stats {
        let work = *self.inner.work.lock();
        let free = u64::try_from(self.inner.room.available_permits()).unwrap_or_default();
        let index = self.inner.index.lock();
        let from = uncommitted_from.unwrap_or_default();
        let uncommitted = index.runs.iter().rev().take_while(|run| run.last >= from);
        let (mut operations, mut bytes) = (0, 0);
        for run in uncommitted {
            operations += run.last - run.first.max(from) + 1;
            bytes += run.bytes;
        }
        let oldest = index
            .generations
            .values()
            .next()
            .map_or(0, |generation| generation.modified_ms);
        Stats {
            operations: index.operations(),
            size_bytes: index
                .generations
                .values()
                .map(|generation| generation.bytes)
                .sum(),
            uncommitted_operations: operations,
            uncommitted_size_bytes: bytes,
            earliest_last_modified_age_ms: millis(SystemTime::now()).saturating_sub(oldest),
            generations: index.generations.len() as u64,
            queued_bytes: u64::from(self.inner.room_units).saturating_sub(free) * UNIT as u64,
            ..work
        }
    }
}
