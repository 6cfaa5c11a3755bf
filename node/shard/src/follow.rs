//! What replication needs of a copy: appending a primary's batches, reading operations for a stream, positions of other copies,
//! the end of a recovery by files, checkpoints.

use crate::{
    AppendRefusal, Batch, CopyError, LogState, Positions, Role, ShardCopy,
    actor::{LOG_CHUNK, Message},
    queue::Command,
    record::CopyRecord,
};
use segmentry_engine::Checkpoint;
use segmentry_state::AllocationId;
use segmentry_translog::{Error as LogError, Operation, Pin, Progress};
use std::sync::{Arc, atomic::Ordering};
use tokio::{sync::oneshot, time::Instant};

impl ShardCopy {
    /// Appends a batch of the primary, and answers once it is written, or persisted where the batch says so.
    pub async fn append_from_primary(&self, batch: Batch) -> Result<LogState, AppendRefusal> {
        let failed = |reason: String| AppendRefusal::Failed(reason);
        let end = batch.operations.last().map(|operation| operation.seq_no);
        let sync = batch.sync;
        let mut progress = self.log.progress();
        self.ask(|reply| Message::Append(batch, reply))
            .await
            .map_err(|error| failed(error.to_string()))??;
        if let Some(end) = end {
            let there = |progress: &Progress| {
                let reached = if sync {
                    progress.persisted
                } else {
                    progress.written
                };
                progress.failed.is_some() || reached >= Some(end)
            };
            let mut role = self.role.subscribe();
            let reached = async {
                let reached = progress.wait_for(there).await;
                reached.map_or(None, |reached| reached.failed.clone())
            };
            tokio::select! {
                biased;
                reason = reached => if let Some(reason) = reason {
                    return Err(failed(reason));
                },
                _ = role.wait_for(|role| matches!(role, Role::Closed | Role::Failed(_))) => {
                    return Err(failed("the copy ended".to_owned()));
                }
            }
        }
        self.follow_checkpoint(self.log.written());
        Ok(self.log_state())
    }

    /// Operations from `seq_no` on, for a stream: from memory, else from the log. Empty where there is none yet.
    ///
    /// Errors: [`CopyError::Trimmed`] where the log no longer holds them.
    pub async fn operations_from(
        self: &Arc<Self>,
        seq_no: u64,
        bytes: usize,
    ) -> Result<Vec<Operation>, CopyError> {
        if self.last.borrow().0 < Some(seq_no) {
            return Ok(Vec::new());
        }
        if let Some(operations) = self.tail.lock().read_from(seq_no, bytes) {
            return Ok(operations);
        }
        let copy = Arc::clone(self);
        blocking(move || match copy.log.read_from(seq_no, bytes.min(LOG_CHUNK)) {
            Ok(operations) => match operations.first() {
                Some(first) if first.seq_no != seq_no => Err(CopyError::Trimmed(seq_no)),
                _ => Ok(operations),
            },
            Err(LogError::Trimmed { asked, .. }) => Err(CopyError::Trimmed(asked)),
            Err(error) => Err(error.into()),
        })
        .await
    }

    /// Term of an operation of this log; none where the log does not hold it and no commit ends with it. Blocks.
    pub fn term_at(&self, seq_no: u64) -> Result<Option<u64>, CopyError> {
        let commit = self.engine.commit_info();
        if commit.max_seq_no == Some(seq_no) {
            return Ok(Some(commit.term));
        }
        let (last, last_term) = *self.last.borrow();
        if last == Some(seq_no) && last_term > 0 {
            return Ok(Some(last_term));
        }
        if let Some(operation) = self.tail.lock().get(seq_no) {
            return Ok(Some(operation.term));
        }
        match self.log.read(seq_no) {
            Ok(operation) => Ok(operation.map(|operation| operation.term)),
            Err(LogError::Trimmed { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Holds the operations of the log from `seq_no` on.
    pub fn pin_log(&self, seq_no: u64) -> Pin {
        self.log.pin(seq_no)
    }

    /// A copy reported its positions.
    pub fn replica_position(&self, allocation: AllocationId, positions: Positions) {
        self.tracker.update(allocation, positions);
    }

    /// Positions of a copy, as it reported them.
    pub fn position_of(&self, allocation: AllocationId) -> Option<Positions> {
        self.tracker.positions(allocation)
    }

    /// Follows a copy that is being built.
    pub fn track(&self, allocation: AllocationId) {
        self.tracker.track(allocation);
    }

    /// Acknowledgements wait for this copy from now on. False where it is behind: then nothing changes.
    pub fn await_copy(&self, allocation: AllocationId) -> bool {
        self.tracker.await_copy(allocation)
    }

    /// No longer follows a copy that was never in sync.
    pub fn untrack(&self, allocation: AllocationId) {
        self.tracker.forget(allocation);
    }

    /// Learned the global checkpoint of the primary of `term` beside the stream. It says nothing about a log that has not begun that
    /// term: its end may be void.
    pub fn learn_checkpoint(&self, term: u64, checkpoint: Option<u64>) {
        if self.log.term() != term {
            return;
        }
        {
            let mut announced = self.announced.lock();
            announced.0 = announced.0.max(checkpoint);
        }
        self.follow_checkpoint(self.log.written());
    }

    /// True where operations were given a seq_no that the global checkpoint cannot reach before this copy moves.
    pub fn holds_up(&self, allocation: AllocationId) -> bool {
        self.last.borrow().0 > self.tracker.checkpoint() && self.tracker.holds_up(allocation)
    }

    /// Last operation that counts on a copy: the position that acknowledgements wait for.
    pub fn counts_on(&self, allocation: AllocationId) -> Option<u64> {
        self.tracker.counts_on(allocation)
    }

    /// True where a write of this very activation waits for its acknowledgement.
    pub fn write_waits(&self) -> bool {
        let (last, term) = *self.last.borrow();
        last > self.tracker.checkpoint() && self.role() == (Role::Primary { term })
    }

    /// The settings ask for stable storage before an answer.
    pub fn wants_sync(&self) -> bool {
        self.index.load().settings.durability == segmentry_settings::Durability::Request
    }

    /// True once the durability of the settings is in force: `request` is only when every awaited copy has persisted every operation
    /// that was acknowledged without it.
    pub fn durability_in_force(&self) -> bool {
        match (self.wants_sync(), self.role()) {
            (false, _) => true,
            (true, Role::Primary { .. }) => self.tracker.async_is_synced(),
            (true, _) => self.log.persisted() >= self.log.written(),
        }
    }

    /// Waits for [`ShardCopy::durability_in_force`].
    pub async fn durability_settled(&self, deadline: Instant) -> Result<(), CopyError> {
        let mut pause = std::time::Duration::from_millis(5);
        while !self.durability_in_force() {
            if Instant::now() + pause > deadline {
                return Err(CopyError::Timeout(
                    0,
                    "every in-sync copy to persist its asynchronous writes".to_owned(),
                ));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(std::time::Duration::from_millis(200));
        }
        Ok(())
    }

    /// Makes the whole log durable.
    pub async fn sync_log(&self) -> Result<Positions, CopyError> {
        self.log.sync().await?;
        Ok(Positions {
            written: self.log.written(),
            persisted: self.log.persisted(),
        })
    }

    /// Shows everything that may be shown: for a primary or a copy that indexes, up to the global checkpoint that it knows. Answers the
    /// last operation that the searcher shows.
    ///
    /// A primary waits until its other in-sync copies have what it inherited, for an earlier primary may have acknowledged it. The
    /// wait has no bound of its own.
    pub async fn refresh(&self) -> Result<Option<u64>, CopyError> {
        self.inherited_is_safe().await;
        self.command(Command::Refresh).await
    }

    async fn inherited_is_safe(&self) {
        let mut role = self.role.subscribe();
        if !matches!(*role.borrow_and_update(), Role::Primary { .. }) {
            return;
        }
        let inherited = *self.inherited.lock();
        let mut checkpoint = self.tracker.watch();
        // Both senders live as long as the copy.
        tokio::select! {
            _ = checkpoint.wait_for(|reached| *reached >= inherited) => {}
            _ = role.wait_for(|role| !matches!(role, Role::Primary { .. })) => {}
        }
    }

    /// Refreshes, and makes the commit durable; the log before it is trimmed.
    pub async fn flush(&self) -> Result<Option<u64>, CopyError> {
        self.command(Command::Flush).await
    }

    /// Puts a checkpoint in force whose files were received and whose operations are in the log (or that begins the log of a copy
    /// that is being built).
    pub async fn install(&self, checkpoint: Checkpoint) -> Result<Option<u64>, CopyError> {
        self.command(|answer| Command::Install(Box::new(checkpoint), answer))
            .await
    }

    /// Ends the recovery by files of a copy that is being built: the received checkpoint is installed and made durable, the log begins
    /// behind it, and the record says that the copy is complete. It follows the primary of `term` afterwards.
    ///
    /// A log begins once: an error, or a cancel, may leave a copy that is [half built](ShardCopy::half_built).
    pub async fn complete(self: &Arc<Self>, checkpoint: Checkpoint, term: u64) -> Result<(), CopyError> {
        let last = checkpoint.payload.max_seq_no;
        self.install(checkpoint).await?;
        self.begun.store(true, Ordering::Release);
        self.ask(|reply| Message::Begin(term, last, reply)).await??;
        let completing = Arc::clone(&self.completing).lock_owned().await;
        let copy = Arc::clone(self);
        blocking(move || {
            let _completing = completing;
            copy.engine.flush()?;
            CopyRecord::new(copy.allocation, false, &copy.node.kernel_boot_id, true)
                .write(copy.node.fs.as_ref(), &copy.dir)
                .map_err(|error| CopyError::Unusable(error.to_string()))
        })
        .await?;
        self.role.send_if_modified(|role| {
            let completed = *role == Role::Recovering;
            if completed {
                *role = Role::Replica { term };
            }
            completed
        });
        Ok(())
    }

    /// True for a copy that is being built and whose log has begun, or may have: it cannot be completed from another checkpoint. Once
    /// it is closed its folder holds a complete copy, or is to be built anew.
    pub fn half_built(&self) -> bool {
        self.role() == Role::Recovering && self.begun.load(Ordering::Acquire)
    }

    async fn command(
        &self,
        command: impl FnOnce(crate::queue::Answer) -> Command,
    ) -> Result<Option<u64>, CopyError> {
        if self.role() == Role::Closed {
            return Err(CopyError::Unusable("the copy was closed".to_owned()));
        }
        let (answer, done) = oneshot::channel();
        self.queue.command(command(answer));
        done.await
            .map_err(|_| CopyError::Unusable("the copy was closed".to_owned()))?
    }
}

/// Runs something that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, CopyError> + Send + 'static,
) -> Result<T, CopyError> {
    match tokio::task::spawn_blocking(run).await {
        Ok(result) => result,
        Err(error) => Err(CopyError::Unusable(format!("a task ended abnormally: {error}"))),
    }
}
