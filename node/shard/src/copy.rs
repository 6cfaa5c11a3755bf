//! Opening, roles, closing.

use crate::{
    Activation, CopyError, CopyFailure, LogState, NodeResources, OpenError, OpenMode, Positions, Role,
    ShardConfig,
    actor::{Actor, Message},
    indexer::Indexer,
    open::{Parts, limits, log_config, term_of},
    queue::{Command, IndexQueue},
    record::{COPY_FILE, CopyRecord, io},
    report::Counters,
    tail::Tail,
    tracker::Tracker,
    versions::Versions,
};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use segmentry_engine::Engine;
use segmentry_mapping::{Mapping, Parser};
use segmentry_settings::ReplicationType;
use segmentry_state::{AllocationId, Index, ShardId};
use segmentry_translog::Translog;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{error, info, warn};
use uuid::Uuid;

/// Messages that may wait for the actor; each write holds its share of the budget, each replica stream sends one at a time.
const MAILBOX: usize = 1024;

/// One copy of a shard. Shared; all methods may be called from anywhere, those that say *blocks* only where blocking is allowed.
pub struct ShardCopy {
    pub(crate) node: Arc<NodeResources>,
    pub(crate) id: ShardId,
    pub(crate) allocation: AllocationId,
    pub(crate) dir: PathBuf,
    pub(crate) history: Uuid,
    pub(crate) index: ArcSwap<Index>,
    /// Prepared from the newest mapping that this copy knows.
    pub(crate) parser: ArcSwap<Parser>,
    /// Held while `parser` is replaced.
    learning: Mutex<()>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) log: Arc<Translog>,
    pub(crate) versions: Mutex<Versions>,
    pub(crate) versions_permit: Mutex<crate::Permit>,
    pub(crate) tail: Mutex<Tail>,
    pub(crate) tracker: Tracker,
    pub(crate) queue: IndexQueue,
    pub(crate) role: watch::Sender<Role>,
    /// Last operation of the log, and its term.
    pub(crate) last: watch::Sender<(Option<u64>, u64)>,
    /// Last operation that the searcher shows.
    pub(crate) visible: watch::Sender<Option<u64>>,
    /// Version of the engine's meta after the last refresh, install or flush.
    pub(crate) published: watch::Sender<u64>,
    /// Global checkpoint and last operation as the primary told them.
    pub(crate) announced: Mutex<(Option<u64>, Option<u64>)>,
    /// Highest term known.
    pub(crate) term: AtomicU64,
    /// Term in which writes are admitted.
    pub(crate) admitted: AtomicU64,
    /// Bytes logged since the last flush.
    pub(crate) unflushed: AtomicU64,
    /// The version map is over its share.
    pub(crate) refresh_soon: AtomicBool,
    pub(crate) waiting: Mutex<Option<String>>,
    pub(crate) counters: Counters,
    pub(crate) suspect: AtomicBool,
    /// Last operation of the log when it became primary: all up to it may have been acknowledged by an earlier primary.
    pub(crate) inherited: Mutex<Option<u64>>,
    /// The log of a copy that is being built begins, or has begun.
    pub(crate) begun: AtomicBool,
    /// Held while the end of a recovery is written: the folder is not to be touched.
    pub(crate) completing: Arc<tokio::sync::Mutex<()>>,
    mailbox: mpsc::Sender<Message>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    pump: Mutex<Option<tokio::task::JoinHandle<()>>>,
    stop_pump: watch::Sender<bool>,
}

impl std::fmt::Debug for ShardCopy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ShardCopy")
            .field("shard", &self.id)
            .field("allocation", &self.allocation)
            .field("role", &*self.role.borrow())
            .finish_non_exhaustive()
    }
}

impl ShardCopy {
    /// Opens a copy and starts its threads. Blocks.
    ///
    /// A complete copy is a replica afterwards, whatever it was before: only [`ShardCopy::activate`] makes a primary.
    pub fn open(config: ShardConfig, mode: OpenMode) -> Result<Arc<Self>, OpenError> {
        let shard = config.index.shard(config.shard);
        let history = shard.map(|shard| shard.history).unwrap_or_default();
        let parts = match mode {
            OpenMode::Create => Parts::create(&config, history, true)?,
            OpenMode::Recover => Parts::create(&config, history, false)?,
            OpenMode::Existing => Parts::open(&config, history)?,
        };
        let ShardConfig {
            node,
            dir,
            index,
            shard,
            allocation,
        } = config;
        let id = ShardId {
            index: index.uuid,
            shard,
        };
        let Parts {
            engine,
            log,
            last,
            suspect,
        } = parts;
        let commit = engine.commit_info();
        let log_term = log.term();
        let last_term = term_of(&log, last, &commit)?;
        let role = if mode == OpenMode::Recover {
            Role::Recovering
        } else {
            Role::Replica { term: log_term }
        };
        let (mailbox, messages) = mpsc::channel(MAILBOX);
        let published = engine.meta_versions().0;
        let pending = log
            .stats(commit.max_seq_no.map(|max| max + 1))
            .uncommitted_size_bytes;
        let copy = Arc::new(Self {
            id,
            allocation,
            dir,
            history,
            parser: ArcSwap::from_pointee(Parser::new(Arc::clone(&index.mapping), limits(&index))),
            index: ArcSwap::new(index),
            learning: Mutex::default(),
            engine: Arc::new(engine),
            log: Arc::new(log),
            versions: Mutex::default(),
            versions_permit: Mutex::new(node.budget.take(0)),
            tail: Mutex::default(),
            // A commit holds nothing above the global checkpoint.
            tracker: Tracker::new(commit.max_seq_no),
            queue: IndexQueue::default(),
            role: watch::Sender::new(role),
            last: watch::Sender::new((last, last_term)),
            visible: watch::Sender::new(commit.max_seq_no),
            published: watch::Sender::new(published),
            announced: Mutex::new((None, last)),
            term: AtomicU64::new(log_term),
            admitted: AtomicU64::new(0),
            unflushed: AtomicU64::new(pending),
            refresh_soon: AtomicBool::new(false),
            waiting: Mutex::default(),
            counters: Counters::default(),
            suspect: AtomicBool::new(suspect),
            inherited: Mutex::default(),
            begun: AtomicBool::new(false),
            completing: Arc::default(),
            mailbox,
            threads: Mutex::default(),
            pump: Mutex::default(),
            stop_pump: watch::Sender::new(false),
            node,
        });
        copy.start(messages)?;
        Ok(copy)
    }

    fn start(self: &Arc<Self>, messages: mpsc::Receiver<Message>) -> Result<(), OpenError> {
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(format!("{name}-{}", self.id.shard))
                .spawn(run)
                .map_err(io("start a thread"))
        };
        let copy = Arc::clone(self);
        let actor = spawn("actor", Box::new(move || Actor::new(copy).run(messages)))?;
        let copy = Arc::clone(self);
        let indexer = match spawn("indexer", Box::new(move || Indexer::new(copy).run())) {
            Ok(indexer) => indexer,
            Err(error) => {
                // The actor ends with its mailbox.
                if self.mailbox.try_send(Message::Stop).is_err() {
                    error!(shard = %self.id, "the actor of a copy that could not be started goes on");
                }
                return Err(error);
            }
        };
        self.threads.lock().extend([actor, indexer]);
        let copy = Arc::clone(self);
        *self.pump.lock() = Some(self.node.runtime.spawn(async move { copy.pump().await }));
        Ok(())
    }

    /// Carries the log's progress to the tracker, and the global checkpoint to the indexer.
    async fn pump(&self) {
        let mut progress = self.log.progress();
        let mut checkpoint = self.tracker.watch();
        let mut stop = self.stop_pump.subscribe();
        loop {
            {
                let progress = progress.borrow_and_update().clone();
                if let Some(reason) = progress.failed {
                    self.fail(CopyFailure::Log(reason));
                }
                let positions = Positions {
                    written: progress.written,
                    persisted: progress.persisted,
                };
                if !self.tracker.update(self.allocation, positions) {
                    self.follow_checkpoint(positions.written);
                }
                let reached = *checkpoint.borrow_and_update();
                self.tail.lock().forget(reached.min(positions.written));
                self.queue.nudge();
            }
            tokio::select! {
                changed = progress.changed() => if changed.is_err() { return },
                changed = checkpoint.changed() => if changed.is_err() { return },
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// A replica knows the checkpoint as far as its own log reaches.
    pub(crate) fn follow_checkpoint(&self, written: Option<u64>) {
        if matches!(*self.role.borrow(), Role::Replica { .. } | Role::Deposed { .. }) {
            let announced = self.announced.lock().0;
            self.tracker.raise(announced.min(written));
        }
    }

    /// Which shard.
    pub fn shard(&self) -> ShardId {
        self.id
    }

    /// Incarnation.
    pub fn allocation(&self) -> AllocationId {
        self.allocation
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The index as this copy knows it.
    pub fn index(&self) -> Arc<Index> {
        self.index.load_full()
    }

    /// The engine: for receiving files and pinning checkpoints.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// What it is.
    pub fn role(&self) -> Role {
        self.role.borrow().clone()
    }

    /// Follows what it is.
    pub fn watch_role(&self) -> watch::Receiver<Role> {
        self.role.subscribe()
    }

    /// Follows the last operation of the log, and its term.
    pub fn watch_last(&self) -> watch::Receiver<(Option<u64>, u64)> {
        self.last.subscribe()
    }

    /// Follows the global checkpoint.
    pub fn watch_checkpoint(&self) -> watch::Receiver<Option<u64>> {
        self.tracker.watch()
    }

    /// Follows what the searcher shows.
    pub fn watch_visible(&self) -> watch::Receiver<Option<u64>> {
        self.visible.subscribe()
    }

    /// Follows the version of the engine's meta: each change is a checkpoint that replicas of SEGMENT want.
    pub fn watch_published(&self) -> watch::Receiver<u64> {
        self.published.subscribe()
    }

    /// Version of the mapping that it knows.
    pub fn mapping_version(&self) -> u64 {
        self.parser.load().mapping().version
    }

    pub(crate) fn replication_type(&self) -> ReplicationType {
        self.index.load().settings.replication_type
    }

    /// Where its log stands.
    pub fn log_state(&self) -> LogState {
        let (last, last_term) = *self.last.borrow();
        LogState {
            last,
            last_term,
            log_term: self.log.term(),
            term: self.term.load(Ordering::Acquire),
            global_checkpoint: self.tracker.checkpoint(),
            positions: Positions {
                written: self.log.written(),
                persisted: self.log.persisted(),
            },
            visible: *self.visible.borrow(),
            suspect: self.suspect.load(Ordering::Acquire),
        }
    }

    /// Takes over the index as the cluster state has it: mapping, settings.
    pub fn apply_index(&self, index: &Arc<Index>) {
        let old = self.index.swap(Arc::clone(index));
        self.learn(&index.mapping);
        if old.settings != index.settings {
            self.log.configure(log_config(index));
            let _learning = self.learning.lock();
            let mapping = Arc::clone(self.parser.load().mapping());
            self.parser.store(Arc::new(Parser::new(mapping, limits(index))));
        }
        self.queue.nudge();
    }

    /// Learns a mapping; an older one changes nothing.
    pub(crate) fn learn(&self, mapping: &Arc<Mapping>) {
        let _learning = self.learning.lock();
        if self.parser.load().mapping().version >= mapping.version {
            return;
        }
        self.parser.store(Arc::new(Parser::new(
            Arc::clone(mapping),
            limits(&self.index.load()),
        )));
        self.engine.set_mapping(Arc::clone(mapping));
        self.queue.nudge();
    }

    /// Becomes primary of a term: starts it in the log, scans what no commit holds into the version map, and admits writes.
    /// Indexing follows behind. The same activation again changes nothing.
    pub async fn activate(&self, activation: Activation) -> Result<(), CopyError> {
        self.ask(|reply| Message::Activate(activation, reply)).await?
    }

    /// Admits writes to the primary of `term`: the cluster state holds that it has started, so that no copy of this shard can ever
    /// start from nothing again.
    pub fn admit(&self, term: u64) {
        self.admitted.fetch_max(term, Ordering::AcqRel);
    }

    /// Follows the primary of `term`; a primary of an older term stops being one.
    pub async fn follow(&self, term: u64) -> Result<(), CopyError> {
        self.ask(|reply| Message::Follow(term, reply)).await?
    }

    /// Learned from another copy that its own term is over.
    pub fn depose(&self, term: u64) {
        let deposed = self.role.send_if_modified(|role| {
            let own = *role == Role::Primary { term };
            if own {
                *role = Role::Deposed { term };
            }
            own
        });
        if deposed {
            info!(shard = %self.id, term, "another primary is active: no longer primary");
        }
    }

    /// The in-sync set and the list of copies, as the cluster state has them for the term of this primary.
    pub fn set_copies(&self, listed: &BTreeSet<AllocationId>, in_sync: &BTreeSet<AllocationId>) {
        self.tracker.listed(listed, in_sync, self.allocation);
    }

    pub(crate) async fn ask<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<T>) -> Message,
    ) -> Result<T, CopyError> {
        let (reply, answer) = oneshot::channel();
        let gone = || CopyError::Unusable("the copy was closed".to_owned());
        self.mailbox.send(message(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }

    /// Whatever was lost with the machine is here again, or is nowhere. Blocks.
    pub(crate) fn trust(&self) {
        if !self.suspect.load(Ordering::Acquire) {
            return;
        }
        self.suspect.store(false, Ordering::Release);
        let record = CopyRecord::new(self.allocation, false, &self.node.kernel_boot_id, true);
        if let Err(error) = record.write(self.node.fs.as_ref(), &self.dir) {
            // The next opening suspects it once more: that costs a question to the other copies.
            warn!(shard = %self.id, %error, "the record of a copy cannot be written");
        }
    }

    /// What the copy waits for, for people; none once it does not.
    pub fn note_waiting(&self, reason: Option<String>) {
        *self.waiting.lock() = reason;
    }

    /// The copy cannot go on. The first reason stays.
    pub(crate) fn fail(&self, failure: CopyFailure) {
        let failed = self.role.send_if_modified(|role| {
            if matches!(role, Role::Failed(_) | Role::Closed) {
                return false;
            }
            *role = Role::Failed(failure.clone());
            true
        });
        if failed {
            error!(shard = %self.id, allocation = %self.allocation, %failure, "the copy failed");
        }
    }

    /// Ends the copy. A usable one is flushed, and its record says that its end was clean. All its threads have ended when this
    /// returns.
    pub async fn close(&self) -> Result<(), CopyError> {
        self.end(true).await
    }

    /// Ends the copy as the end of the process would: nothing is flushed or synced.
    pub async fn abandon(&self) {
        if let Err(error) = self.end(false).await {
            warn!(shard = %self.id, %error, "the copy ended with an error");
        }
    }

    async fn end(&self, clean: bool) -> Result<(), CopyError> {
        let before = self.role.send_replace(Role::Closed);
        if before == Role::Closed {
            return Ok(());
        }
        let usable = matches!(
            before,
            Role::Primary { .. } | Role::Replica { .. } | Role::Deposed { .. }
        );
        // An error means that the actor has ended.
        let _ = self.mailbox.send(Message::Stop).await;
        self.queue.command(Command::Stop(clean && usable));
        let threads = std::mem::take(&mut *self.threads.lock());
        let joined = tokio::task::spawn_blocking(move || {
            threads
                .into_iter()
                .map(JoinHandle::join)
                .filter(Result::is_err)
                .count()
        });
        let panicked = joined
            .await
            .map_err(|error| CopyError::Unusable(error.to_string()))?;
        drop(self.completing.lock().await);
        self.stop_pump.send_replace(true);
        let pump = self.pump.lock().take();
        if let Some(pump) = pump {
            pump.await
                .map_err(|error| CopyError::Unusable(error.to_string()))?;
        }
        if panicked > 0 {
            return Err(CopyError::Unusable(format!(
                "{panicked} threads of the copy ended abnormally"
            )));
        }
        if !clean {
            return Ok(());
        }
        self.log.close().await?;
        if usable && !self.suspect.load(Ordering::Acquire) {
            let (node, dir, allocation) = (Arc::clone(&self.node), self.dir.clone(), self.allocation);
            let written = tokio::task::spawn_blocking(move || {
                CopyRecord::new(allocation, true, &node.kernel_boot_id, true).write(node.fs.as_ref(), &dir)
            });
            written
                .await
                .map_err(|error| CopyError::Unusable(error.to_string()))?
                .map_err(|error| CopyError::Unusable(format!("{COPY_FILE}: {error}")))?;
        }
        Ok(())
    }
}
