//! One ordered stream of operations from a primary to one copy: at most one batch in flight, what queued meanwhile goes with the
//! next.
//!
//! ```text
//!   handshake ──▶ (term start) ──▶ batch ──▶ batch ──▶ … idle: trailing checkpoint
//!      ▲                             │
//!      └──── the copy expects another batch, or did not answer
//! ```
//!
//! A copy that a write needs and that is gone, silent, stands still, or cannot follow is failed out of the in-sync set through the
//! cluster state; the tracker awaits it until that is applied. A copy that nobody needs is tried again, for as long as it is listed.
//!
//! **What stays of a copy's log at a term start.** Each term has one writer, and a copy holds a prefix of what that writer sent. So
//! two logs that hold an operation of the same number *and* term are equal up to it: then everything stays. Otherwise what is at
//! or below the copy's global checkpoint stays (`SamePrefix`).

use crate::{
    applier::Inner,
    patience::{BUSY, Patience, Trouble},
    protocol::{
        APPEND, APPEND_DEADLINE, Appended, BATCH_BYTES, CALL_DEADLINE, SILENCE, STATE, Which, call,
        encode_batch, read_answer,
    },
};
use segmentry_meta::ProposeError;
use segmentry_shard::{AppendRefusal, Batch, LogState, Role, ShardCopy, TermStart};
use segmentry_state::{AllocationId, Change, ClusterState, NodeId};
use segmentry_translog::Pin;
use segmentry_wire::Peer;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// A trailing checkpoint waits this long for an operation that it could ride on.
const TRAILING: Duration = Duration::from_millis(10);
/// Between two looks at a copy that is idle and has not persisted everything.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// One ping.
const PING_DEADLINE: Duration = Duration::from_secs(1);
/// Pauses between attempts.
const PAUSES: std::ops::Range<u64> = 20..1000;

/// A stream.
pub(crate) struct Stream {
    pub inner: Arc<Inner>,
    pub copy: Arc<ShardCopy>,
    pub term: u64,
    pub which: Which,
    pub node: NodeId,
    /// Not in sync when the stream began: joins the in-sync set once it has caught up.
    pub joining: bool,
    /// Holds the operations that the copy needs next.
    pub pin: Option<Pin>,
    /// When the last call began.
    pub asked: Instant,
}

/// What the primary knows of the copy's log.
struct Cursor {
    next: u64,
    start: Option<TermStart>,
    known: LogState,
}

/// How a stream ends.
enum End {
    /// Not primary any more, or told to stop.
    Over,
    /// The copy is not listed any more.
    Removed,
}

impl Stream {
    /// Until the copy is gone from the list, the primary is no primary any more, or `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let allocation = self.which.allocation;
        let end = tokio::select! {
            () = stop.cancelled() => End::Over,
            end = self.keep() => end,
        };
        if matches!(end, End::Removed) {
            info!(shard = %self.which.shard, %allocation, "no longer replicates to this copy");
        }
    }

    fn is_primary(&self) -> bool {
        self.copy.role() == Role::Primary { term: self.term }
    }

    async fn keep(&mut self) -> End {
        let mut cursor: Option<Cursor> = None;
        let mut patience = Patience::default();
        let mut pause = PAUSES.start;
        loop {
            if !self.is_primary() {
                return End::Over;
            }
            let step = match cursor.take() {
                None => self.handshake().await,
                Some(known) => self.continue_log(known).await,
            };
            let (end, goes_on) = match step {
                Ok(known) => {
                    let still = self.stands_still(&mut patience);
                    let mut end = match still {
                        Some(since) if since.elapsed() >= BUSY => self.fail(&self.standstill(since)).await,
                        _ => None,
                    };
                    if let Some(known) = &known
                        && self.joining
                        && end.is_none()
                    {
                        end = self.join(known).await;
                    }
                    let goes_on = known.is_some();
                    cursor = known;
                    (end, goes_on)
                }
                Err(what) => {
                    let since = patience.since(&what, self.asked);
                    (self.judge(&what, since).await, false)
                }
            };
            if let Some(end) = end {
                return end;
            }
            if goes_on {
                pause = PAUSES.start;
            } else {
                tokio::time::sleep(Duration::from_millis(pause)).await;
                pause = (pause * 2).min(PAUSES.end);
            }
        }
    }

    /// The copy answered: since when does it hold up acknowledgements without moving?
    fn stands_still(&self, patience: &mut Patience) -> Option<Instant> {
        let allocation = self.which.allocation;
        let (counts, holds_up) = (self.copy.counts_on(allocation), self.copy.holds_up(allocation));
        patience.answered(counts, holds_up, Instant::now())
    }

    fn standstill(&self, since: Instant) -> String {
        format!(
            "it answers, and its log has stood still for {} s: its positions are {:?}",
            since.elapsed().as_secs(),
            self.copy.position_of(self.which.allocation)
        )
    }

    /// The process of the copy's node, as the cluster state has it.
    fn peer(&self) -> Result<Peer, Trouble> {
        let state = self.inner.meta.current();
        match state.node(self.node) {
            Some(node) if node.boot_id.is_some() => Ok(Peer::process(node)),
            _ => Err(Trouble::Silent(
                "its node is not a member with a process".to_owned(),
            )),
        }
    }

    /// Asks where the copy's log stands, and decides what of it stays.
    async fn handshake(&mut self) -> Result<Option<Cursor>, Trouble> {
        self.asked = Instant::now();
        let peer = self.peer()?;
        let answer: Option<LogState> =
            call(&self.inner.client, &peer, STATE, &self.which, CALL_DEADLINE).await?;
        let Some(known) = answer else {
            return Err(Trouble::Opening("the copy is not open there yet".to_owned()));
        };
        if known.term > self.term {
            self.copy.depose(self.term);
            return Ok(None);
        }
        let own_last = self.copy.log_state().last;
        let (keep, start) = if known.log_term == self.term {
            (known.last, None)
        } else {
            let keep = if self.agrees(&known).await? {
                known.last
            } else {
                known.global_checkpoint
            };
            (keep, Some(TermStart { keep_to: keep }))
        };
        if keep > own_last {
            return Err(Trouble::Cannot(format!(
                "its log ends at {keep:?} after what has to be kept, the primary's at {own_last:?}"
            )));
        }
        let next = keep.map_or(0, |keep| keep + 1);
        self.pin = Some(self.copy.pin_log(next));
        // Looked at before anything of the copy is cut.
        if own_last >= Some(next) {
            match self.copy.operations_from(next, 1).await {
                Ok(operations) if operations.is_empty() => {
                    return Err(Trouble::Silent(format!("operation {next} is not in the log yet")));
                }
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
        debug!(shard = %self.which.shard, allocation = %self.which.allocation, term = self.term, ?start, next, "continues the log of a copy");
        let cursor = Cursor { next, start, known };
        if cursor.start.is_some() {
            // The term begins on the copy even where there is nothing to send.
            return self.send(cursor, Vec::new()).await;
        }
        self.copy
            .replica_position(self.which.allocation, cursor.known.positions);
        Ok(Some(cursor))
    }

    /// True where the copy's log is a prefix of this one.
    async fn agrees(&self, known: &LogState) -> Result<bool, Trouble> {
        let Some(last) = known.last else { return Ok(true) };
        if known.last_term == 0 || known.last > self.copy.log_state().last {
            return Ok(false);
        }
        let (copy, term) = (Arc::clone(&self.copy), known.last_term);
        let own = tokio::task::spawn_blocking(move || copy.term_at(last)).await;
        match own {
            Ok(Ok(own)) => Ok(own == Some(term)),
            Ok(Err(error)) => Err(error.into()),
            Err(error) => Err(Trouble::Silent(error.to_string())),
        }
    }

    /// Waits for something to send, and sends it.
    async fn continue_log(&mut self, cursor: Cursor) -> Result<Option<Cursor>, Trouble> {
        self.wait(&cursor).await;
        if !self.is_primary() {
            return Ok(None);
        }
        let operations = self.copy.operations_from(cursor.next, BATCH_BYTES).await?;
        self.send(cursor, operations).await
    }

    /// Until there is an operation, or a checkpoint that the copy does not know, or a copy that owes a sync.
    async fn wait(&self, cursor: &Cursor) {
        let mut last = self.copy.watch_last();
        let mut checkpoint = self.copy.watch_checkpoint();
        let mut role = self.copy.watch_role();
        let term = self.term;
        let known = cursor.known;
        let more = async {
            // An error means that the copy is closed: the role tells.
            let _ = last.wait_for(|(last, _)| *last >= Some(cursor.next)).await;
        };
        let trailing = async {
            let _ = checkpoint
                .wait_for(|reached| *reached > known.global_checkpoint)
                .await;
            tokio::time::sleep(TRAILING).await;
        };
        let owes = async {
            // What it took and has not even written counts as well: its disk may hang.
            if known.positions.persisted >= known.last {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(HEARTBEAT).await;
        };
        tokio::select! {
            biased;
            _ = role.wait_for(|role| *role != Role::Primary { term }) => {}
            () = more => {}
            () = trailing => {}
            () = owes => {}
        }
    }

    async fn send(
        &mut self,
        cursor: Cursor,
        operations: Vec<segmentry_translog::Operation>,
    ) -> Result<Option<Cursor>, Trouble> {
        self.asked = Instant::now();
        let peer = self.peer()?;
        let state = self.copy.log_state();
        let batch = Batch {
            term: self.term,
            start: cursor.start,
            previous: cursor.next.checked_sub(1),
            operations,
            global_checkpoint: state.global_checkpoint,
            primary_last: state.last,
            sync: self.joining || self.copy.wants_sync(),
        };
        let sent = state.global_checkpoint;
        let body = encode_batch(self.which, &batch).map_err(Trouble::Cannot)?;
        let answer = self
            .inner
            .client
            .call_bytes(&peer, APPEND, body, APPEND_DEADLINE)
            .await?;
        match read_answer::<Appended>(APPEND, &answer)? {
            Appended::Done(mut known) => {
                self.copy.replica_position(self.which.allocation, known.positions);
                let next = known.last.map_or(0, |last| last + 1);
                self.pin = Some(self.copy.pin_log(next));
                // The checkpoint that it was told; it knows it as far as its log reaches.
                known.global_checkpoint = known.global_checkpoint.max(sent);
                Ok(Some(Cursor {
                    next,
                    start: None,
                    known,
                }))
            }
            Appended::Refused(AppendRefusal::Expect(known)) => {
                debug!(shard = %self.which.shard, ?known, next = cursor.next, "the copy expects another batch");
                Ok(None)
            }
            Appended::Refused(AppendRefusal::Stale { known, .. }) => {
                info!(shard = %self.which.shard, term = self.term, known, "a copy knows a newer term");
                self.copy.depose(self.term);
                Ok(None)
            }
            Appended::Refused(AppendRefusal::Diverged(reason)) => Err(Trouble::Cannot(reason)),
            Appended::Refused(AppendRefusal::Failed(reason)) => Err(Trouble::Failed(reason)),
            Appended::NotHere(reason) => Err(Trouble::Opening(reason)),
        }
    }

    /// Whether the copy has to go. A copy that no write needs stays.
    async fn judge(&mut self, what: &Trouble, since: Instant) -> Option<End> {
        let allocation = self.which.allocation;
        let state = self.inner.meta.current();
        let listed = state
            .shard(self.which.shard)
            .and_then(|shard| shard.copy(allocation));
        let Some(listed) = listed else {
            self.follow_state(&state);
            return Some(End::Removed);
        };
        let needed = self.copy.holds_up(allocation);
        let reason = what.reason();
        debug!(shard = %self.which.shard, %allocation, reason, needed, "a copy cannot be reached");
        if matches!(what, Trouble::Cannot(_)) {
            return self.fail(reason).await;
        }
        if !needed {
            return None;
        }
        if let Some(broken) = &listed.broken {
            // Its own node said so: there is nothing to wait for.
            return self.fail(broken).await;
        }
        let lives = matches!(what, Trouble::Silent(_)) && self.lives().await;
        let patience = what.borne(state.restart.is_some(), lives);
        // What an earlier primary left above the checkpoint holds up searches, and no client's write yet: a process that starts
        // anew gets the time to come back.
        let patience = if self.copy.write_waits() {
            patience
        } else {
            patience.max(SILENCE)
        };
        if since.elapsed() >= patience {
            return self.fail(reason).await;
        }
        None
    }

    /// True where the process of the copy's node answers on its metadata runtime.
    async fn lives(&self) -> bool {
        match self.peer() {
            Ok(peer) => self.inner.client.ping(&peer, PING_DEADLINE).await.is_ok(),
            Err(_) => false,
        }
    }

    /// Fails the copy through the cluster state; it is awaited until that is applied.
    async fn fail(&mut self, reason: &str) -> Option<End> {
        let Which { shard, allocation } = self.which;
        warn!(%shard, %allocation, reason, "a copy leaves the in-sync set");
        let change = Change::FailCopy {
            shard,
            term: self.term,
            allocation,
            reason: reason.to_owned(),
        };
        match self.inner.meta.propose(change).await {
            Ok(state) => {
                self.follow_state(&state);
                Some(End::Removed)
            }
            Err(ProposeError::Refused(refusal)) => {
                info!(%shard, %allocation, %refusal, "the removal of a copy was refused");
                None
            }
            Err(error) => {
                warn!(%shard, %allocation, %error, "a copy could not be removed, writes wait");
                None
            }
        }
    }

    fn follow_state(&self, state: &ClusterState) {
        follow_state(&self.copy, self.term, state);
    }

    /// Joins the in-sync set, once it holds what every in-sync copy holds.
    async fn join(&mut self, cursor: &Cursor) -> Option<End> {
        let Which { shard, allocation } = self.which;
        let own = self.copy.log_state();
        if cursor.known.positions.persisted < own.global_checkpoint || !self.copy.await_copy(allocation) {
            return None;
        }
        let mut pause = PAUSES.start;
        loop {
            let change = Change::AddInSync {
                shard,
                term: self.term,
                allocation,
            };
            match self.inner.meta.propose(change).await {
                Ok(state) => {
                    info!(%shard, %allocation, "a copy is in sync");
                    self.joining = false;
                    self.follow_state(&state);
                    return None;
                }
                Err(ProposeError::Refused(refusal)) => {
                    // Certainly not in the in-sync set: nothing needs to wait for it.
                    info!(%shard, %allocation, %refusal, "a copy was not taken into the in-sync set");
                    self.copy.untrack(allocation);
                    return Some(End::Over);
                }
                Err(error) => {
                    // It may be in the set: it is awaited until that is known.
                    warn!(%shard, %allocation, %error, "a copy could not be taken into the in-sync set yet");
                    if !self.is_primary() {
                        return Some(End::Over);
                    }
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                    pause = (pause * 2).min(PAUSES.end);
                }
            }
        }
    }
}

/// Tells a primary who is listed and in sync, if the state is of its term.
pub(crate) fn follow_state(copy: &ShardCopy, term: u64, state: &ClusterState) {
    let Some(shard) = state.shard(copy.shard()) else {
        return;
    };
    if shard.term == term {
        let listed = shard.copies.iter().map(|copy| copy.allocation).collect();
        copy.set_copies(&listed, &shard.in_sync);
    }
}

/// Also for the primary's supervisor.
pub(crate) fn which(copy: &ShardCopy, allocation: AllocationId) -> Which {
    Which {
        shard: copy.shard(),
        allocation,
    }
}
