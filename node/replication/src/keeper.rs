//! The keeper of one shard on this node: a task that looks at each new cluster state, and does one thing after the other for its copy:
//! open, activate, follow, recover, close.
//!
//! | the cluster state says of the copy here | the keeper |
//! | --- | --- |
//! | primary, active in this process | opens it (creates it where the shard never acknowledged anything), activates it, streams to the others, proposes `PrimaryStarted`, admits writes |
//! | in sync | opens it and follows |
//! | listed, not in sync | opens or creates it, recovers it from the primary |
//! | not listed | closes it; its folder goes when `folders` allows |
//!
//! [`opening`] opens copies, and says what it means when one cannot be opened, or fails; [`suspect`]
//! judges one that may have lost writes with its machine.

mod opening;
mod suspect;

use crate::{
    applier::Inner,
    primary::Primary,
    protocol::{CALL_DEADLINE, STATE, Which, call},
    recovery,
    segments::Segments,
};
use segmentry_meta::ProposeError;
use segmentry_settings::ReplicationType;
use segmentry_shard::{Activation, LogState, Role, ShardCopy};
use segmentry_state::{AllocationId, BootId, Change, ClusterState, Shard, ShardId};
use segmentry_wire::Peer;
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

/// Pauses between attempts of a keeper.
const AGAIN: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(5);
/// Attempts of a recovery from one primary, after which the copy is reported as one that cannot be built here.
const RECOVERY_ATTEMPTS: u32 = 8;
/// A complete copy that is not in sync yet asks again after this long.
const READY_AGAIN: Duration = Duration::from_secs(2);
/// How long a primary that starts waits to show what it inherited. Longer, and one silent copy would keep a shard red.
const SHOW_INHERITED: Duration = Duration::from_secs(2);

/// Why a keeper looks again.
enum Look {
    /// At the next change.
    Later,
    /// Also after a pause, longer each time.
    Again,
    /// Also after this long.
    After(Duration),
    /// The index is gone.
    Gone,
}

/// See the module.
pub(crate) struct Keeper {
    inner: Arc<Inner>,
    shard: ShardId,
    copy: Option<Arc<ShardCopy>>,
    primary: Option<Arc<Primary>>,
    segments: Option<Segments>,
    recovery: Option<Recovery>,
    /// The copy was told the global checkpoint since it was opened.
    told: bool,
    /// Attempts to open the copy that failed.
    attempts: u32,
    /// Failures of the copy after it was open.
    failures: opening::Failures,
    /// The copy that was reported as broken, and when it was tried last.
    broken: Option<(AllocationId, Instant)>,
    /// Since when the reports of other copies are waited for, before an activation.
    asks: Option<Instant>,
    pause: Duration,
    recovery_pause: Duration,
    /// Recoveries from the present primary that failed.
    recoveries_failed: u32,
}

/// A recovery that runs, and from whom.
struct Recovery {
    task: JoinHandle<Result<(), recovery::RecoveryError>>,
    /// Cancelled when the task has ended.
    ended: CancellationToken,
    from: (u64, Option<BootId>),
}

impl Keeper {
    pub fn new(inner: Arc<Inner>, shard: ShardId) -> Self {
        Self {
            inner,
            shard,
            copy: None,
            primary: None,
            segments: None,
            recovery: None,
            told: false,
            attempts: 0,
            failures: opening::Failures::default(),
            broken: None,
            asks: None,
            pause: *AGAIN.start(),
            recovery_pause: Duration::ZERO,
            recoveries_failed: 0,
        }
    }

    /// Until `stop`, or the index is gone; the copy is closed then.
    pub async fn run(mut self, stop: CancellationToken, look: watch::Sender<bool>) {
        let mut watch = self.inner.meta.watch();
        loop {
            let state = Arc::clone(&watch.borrow_and_update());
            // Never cut short: a copy that is being opened must end up here.
            let outcome = self.look(&state).await;
            look.send_replace(true);
            let again = match outcome {
                Look::Gone => return,
                Look::Later => {
                    self.pause = *AGAIN.start();
                    None
                }
                Look::Again => {
                    let pause = self.pause;
                    self.pause = (pause * 2).min(*AGAIN.end());
                    Some(pause)
                }
                Look::After(pause) => {
                    self.pause = *AGAIN.start();
                    Some(pause)
                }
            };
            let mut role = self.copy.as_ref().map(|copy| copy.watch_role());
            let before = role.as_mut().map(|role| role.borrow_and_update().clone());
            tokio::select! {
                () = stop.cancelled() => break,
                changed = watch.changed() => if changed.is_err() { break },
                () = changed(role.as_mut(), before.as_ref()) => {}
                () = ended(self.recovery.as_ref()) => {}
                () = tokio::time::sleep(again.unwrap_or(*AGAIN.end())), if again.is_some() => {}
            }
        }
        self.close(true).await;
    }

    /// Brings the copy to what the state says.
    async fn look(&mut self, state: &Arc<ClusterState>) -> Look {
        let Some(index) = state.index(self.shard.index) else {
            self.close(false).await;
            return Look::Gone;
        };
        let Some(shard) = index.shard(self.shard.shard) else {
            return Look::Later;
        };
        let Some(listed) = shard.copy_on(self.inner.node) else {
            self.close(true).await;
            return Look::Later;
        };
        let allocation = listed.allocation;
        if self
            .copy
            .as_ref()
            .is_some_and(|copy| copy.allocation() != allocation)
        {
            self.close(true).await;
        }
        if let Some(failure) = self.failed() {
            return self.after_failure(shard, allocation, &failure).await;
        }
        let reported = listed.broken.is_some();
        if self.copy.is_none() {
            if let Some(rest) = self.rests(allocation) {
                return Look::After(rest);
            }
            if let Err(look) = self.open(index, shard, allocation).await {
                return look;
            }
        }
        if reported && let Err(look) = self.report_opened(allocation).await {
            return look;
        }
        let Some(copy) = self.copy.clone() else {
            return Look::Again;
        };
        copy.apply_index(index);
        if shard.primary == Some(allocation) && shard.active == Some(self.inner.boot) {
            self.stop_recovery().await;
            return self.be_primary(state, shard, &copy).await;
        }
        if let Role::Primary { term } = copy.role() {
            // This activation is over, whoever gets the next one.
            copy.depose(term);
        }
        self.stop_primary().await;
        if copy.role() == Role::Recovering {
            return self.recover(state, shard, &copy).await;
        }
        // The term of an activation that is not given yet is the next one.
        if shard.active.is_some()
            && let Err(error) = copy.follow(shard.term).await
        {
            info!(shard = %self.shard, %error, "the copy does not follow yet");
            return Look::Again;
        }
        if copy.index().settings.replication_type == ReplicationType::Segment && self.segments.is_none() {
            let segments = Segments::start(Arc::clone(&self.inner), Arc::clone(&copy));
            self.inner.segments.lock().insert(self.shard, segments.door());
            self.segments = Some(segments);
        }
        if shard.is_in_sync(allocation) {
            self.stop_recovery().await;
            self.recovery_pause = Duration::ZERO;
            self.recoveries_failed = 0;
            return self.learn_checkpoint(state, shard, &copy).await;
        }
        self.recover(state, shard, &copy).await
    }

    /// A copy that was opened again knows no global checkpoint above its commit, and its primary takes it to know what it was told
    /// before: without a further write it would never show what its log holds.
    async fn learn_checkpoint(
        &mut self,
        state: &Arc<ClusterState>,
        shard: &Shard,
        copy: &Arc<ShardCopy>,
    ) -> Look {
        let primary = state.primary_node(self.shard).filter(|_| shard.started);
        let (Some(node), Some(allocation)) = (primary, shard.primary) else {
            return Look::Later;
        };
        // A primary begins its term with the checkpoint.
        if self.told || copy.log_state().log_term != shard.term {
            return Look::Later;
        }
        let which = Which {
            shard: self.shard,
            allocation,
        };
        let answer: Result<Option<LogState>, _> = call(
            &self.inner.client,
            &Peer::process(node),
            STATE,
            &which,
            CALL_DEADLINE,
        )
        .await;
        match answer {
            Ok(Some(primary)) => {
                copy.learn_checkpoint(shard.term, primary.global_checkpoint);
                self.told = true;
                Look::Later
            }
            Ok(None) => Look::Again,
            Err(error) => {
                debug!(shard = %self.shard, %error, "the primary was not asked for its checkpoint");
                Look::Again
            }
        }
    }

    // ---- primary ----

    async fn be_primary(&mut self, state: &Arc<ClusterState>, shard: &Shard, copy: &Arc<ShardCopy>) -> Look {
        let term = shard.term;
        if self
            .primary
            .as_ref()
            .is_some_and(|primary| primary.term() != term)
        {
            self.stop_primary().await;
        }
        if copy.role() != (Role::Primary { term }) {
            if copy.log_state().suspect
                && let Err(look) = self.holds_most(state, shard, copy).await
            {
                return look;
            }
            self.stop_segments().await;
            let activation = Activation {
                term,
                in_sync: shard.in_sync.clone(),
            };
            if let Err(error) = copy.activate(activation).await {
                warn!(shard = %self.shard, term, %error, "a primary could not be activated");
                return Look::Again;
            }
            self.asks = None;
            copy.note_waiting(None);
        }
        if let Some(primary) = &self.primary {
            primary.follow(state);
        } else {
            let primary = Primary::start(Arc::clone(&self.inner), Arc::clone(copy), term, state);
            self.inner
                .primaries
                .lock()
                .insert(self.shard, Arc::clone(&primary));
            self.primary = Some(primary);
        }
        if !shard.started {
            match tokio::time::timeout(SHOW_INHERITED, copy.refresh()).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    warn!(shard = %self.shard, term, %error, "a primary could not show what it inherited");
                    return Look::Again;
                }
                Err(_) => {
                    info!(shard = %self.shard, term, "a primary starts before it shows all that it inherited: an in-sync copy has not answered, or there is much to index");
                }
            }
            let change = Change::PrimaryStarted {
                shard: self.shard,
                term,
                boot_id: self.inner.boot,
            };
            match self.inner.meta.propose(change).await {
                Ok(_) => {}
                Err(ProposeError::Refused(refusal)) => {
                    info!(shard = %self.shard, term, %refusal, "an activation is over before it began");
                    return Look::Later;
                }
                Err(error) => {
                    warn!(shard = %self.shard, term, %error, "a started primary could not be reported");
                    return Look::Again;
                }
            }
        }
        copy.admit(term);
        Look::Later
    }

    // ---- recovery ----

    async fn recover(&mut self, state: &Arc<ClusterState>, shard: &Shard, copy: &Arc<ShardCopy>) -> Look {
        let Some(node) = state.primary_node(self.shard).filter(|_| shard.started) else {
            self.stop_recovery().await;
            return Look::Later;
        };
        let from = (shard.term, node.boot_id);
        if let Some(running) = self.recovery.take_if(|running| running.ended.is_cancelled()) {
            let present = running.from == from;
            match running.task.await {
                // The primary has it. It is asked again, should the copy not come to be in sync.
                Ok(Ok(())) => {
                    self.recovery_pause = self.recovery_pause.max(READY_AGAIN);
                    self.recoveries_failed = 0;
                }
                Ok(Err(error)) => {
                    self.recoveries_failed += u32::from(present);
                    if self.recoveries_failed >= RECOVERY_ATTEMPTS {
                        // Another node may do better: the manager looks for one.
                        self.recoveries_failed = 0;
                        self.close(false).await;
                        let reason = format!("it cannot be built here: {error}");
                        return self.report_broken(copy.allocation(), reason).await;
                    }
                    warn!(shard = %self.shard, allocation = %copy.allocation(), %error, "a recovery failed, it is tried again");
                    self.recovery_pause = (self.recovery_pause * 2).clamp(*AGAIN.start(), *AGAIN.end());
                }
                Err(error) => {
                    error!(shard = %self.shard, %error, "a recovery ended abnormally");
                    self.recovery_pause = *AGAIN.end();
                }
            }
        }
        let mut pause = self.recovery_pause;
        if self.recovery.as_ref().is_some_and(|running| running.from != from) {
            self.stop_recovery().await;
            pause = Duration::ZERO;
            self.recoveries_failed = 0;
        }
        if self.recovery.is_none() {
            if copy.half_built() {
                // Its log begins once: no further attempt could complete it. What is opened next is complete, or made anew.
                info!(shard = %self.shard, allocation = %copy.allocation(), "a recovery was interrupted after the log had begun, it begins anew");
                self.close(false).await;
                return Look::Again;
            }
            self.start_recovery(copy, node, from, pause);
        }
        Look::Later
    }

    fn start_recovery(
        &mut self,
        copy: &Arc<ShardCopy>,
        node: &segmentry_state::Node,
        from: (u64, Option<BootId>),
        pause: Duration,
    ) {
        let (inner, copy, peer) = (Arc::clone(&self.inner), Arc::clone(copy), Peer::process(node));
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        let task = self.inner.data.spawn(async move {
            let _guard = guard;
            tokio::time::sleep(pause).await;
            recovery::recover(&inner, &copy, &peer, from.0).await
        });
        self.recovery = Some(Recovery { task, ended, from });
    }

    async fn stop_recovery(&mut self) {
        if let Some(running) = self.recovery.take() {
            running.task.abort();
            if let Err(error) = running.task.await
                && !error.is_cancelled()
            {
                error!(shard = %self.shard, %error, "a recovery ended abnormally");
            }
        }
    }

    // ---- ends ----

    async fn stop_primary(&mut self) {
        if let Some(primary) = self.primary.take() {
            self.inner.primaries.lock().remove(&self.shard);
            self.inner.source.release(self.shard);
            primary.stop().await;
        }
    }

    async fn stop_segments(&mut self) {
        self.inner.segments.lock().remove(&self.shard);
        if let Some(segments) = self.segments.take() {
            segments.stop().await;
        }
    }

    async fn close(&mut self, flush: bool) {
        self.stop_recovery().await;
        self.stop_primary().await;
        self.stop_segments().await;
        let Some(copy) = self.copy.take() else { return };
        self.inner.shards.take(self.shard);
        if flush {
            if let Err(error) = copy.close().await {
                warn!(shard = %self.shard, %error, "a copy did not end cleanly");
            }
        } else {
            copy.abandon().await;
        }
    }
}

/// Until the role is another one; forever without a copy.
async fn changed(role: Option<&mut watch::Receiver<Role>>, before: Option<&Role>) {
    match (role, before) {
        (Some(role), Some(before)) => {
            // An error means that the copy is gone: the keeper looks.
            let _ = role.wait_for(|role| role != before).await;
        }
        _ => std::future::pending().await,
    }
}

/// Until the recovery has ended; forever without one.
async fn ended(recovery: Option<&Recovery>) {
    match recovery {
        Some(recovery) => recovery.ended.cancelled().await,
        None => std::future::pending().await,
    }
}
