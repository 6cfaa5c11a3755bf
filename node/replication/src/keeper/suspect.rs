//! `AsyncLossBounded`: a copy whose machine started anew after an unclean end may have lost its last asynchronous writes.
//!
//! Before it becomes primary every other in-sync copy is asked what it holds. One that holds more takes over. One that does not answer
//! may hold more as well: it is waited for, for a bounded time, and the reason is told.

use super::{Keeper, Look};
use crate::protocol::{CALL_DEADLINE, STATE, Which, call};
use futures::future::join_all;
use segmentry_shard::{LogState, ShardCopy};
use segmentry_state::{Change, ClusterState, Shard, ShardCopy as Listed};
use segmentry_wire::Peer;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use tracing::warn;

/// How long reports are waited for.
const REPORTS: Duration = Duration::from_secs(60);
/// Between two rounds of questions.
const ASK_AGAIN: Duration = Duration::from_millis(500);

impl Keeper {
    /// Whether the copy may become primary.
    pub(super) async fn holds_most(
        &mut self,
        state: &Arc<ClusterState>,
        shard: &Shard,
        copy: &Arc<ShardCopy>,
    ) -> Result<(), Look> {
        let own = copy.log_state();
        // One that cannot be opened has nothing to report.
        let asked = shard
            .in_sync_copies()
            .filter(|other| other.allocation != copy.allocation() && other.broken.is_none())
            .map(|other| self.ask(state, other));
        let mut most = None;
        let mut missing = Vec::new();
        for answer in join_all(asked).await {
            match answer {
                Ok(other) => most = most.max(Some((other.last_term, other.last))),
                Err(reason) => missing.push(reason),
            }
        }
        if most > Some((own.last_term, own.last)) {
            let reason =
                "the machine started anew after an unclean end, another in-sync copy holds more operations";
            let change = Change::PrimaryFailed {
                shard: self.shard,
                term: shard.term,
                reason: reason.to_owned(),
            };
            if let Err(error) = self.inner.meta.propose(change).await {
                warn!(shard = %self.shard, %error, "a copy that may have lost writes could not step back");
            }
            return Err(Look::Again);
        }
        if !missing.is_empty() {
            let first = self.asks.is_none();
            let since = *self.asks.get_or_insert_with(Instant::now);
            let missing = missing.join("; ");
            if since.elapsed() < REPORTS {
                let reason = format!(
                    "its machine started anew after an unclean end: waits up to {} s for the reports of other in-sync copies: {missing}",
                    REPORTS.as_secs()
                );
                if first {
                    warn!(shard = %self.shard, allocation = %copy.allocation(), reason, "a primary waits");
                }
                copy.note_waiting(Some(reason));
                return Err(Look::After(ASK_AGAIN));
            }
            warn!(shard = %self.shard, allocation = %copy.allocation(), missing, "a primary goes on without the reports of other in-sync copies");
        }
        warn!(shard = %self.shard, last = ?own.last, "asynchronous writes after this operation may be lost: the machine started anew before they were synced");
        Ok(())
    }

    /// What an in-sync copy holds, or why nobody knows.
    async fn ask(&self, state: &Arc<ClusterState>, other: &Listed) -> Result<LogState, String> {
        let Listed { allocation, node, .. } = other;
        let Some(member) = state.node(*node).filter(|_| state.is_alive(*node)) else {
            return Err(format!("copy [{allocation}]: node [{node}] is away"));
        };
        let which = Which {
            shard: self.shard,
            allocation: *allocation,
        };
        let peer = Peer::process(member);
        let answer: Result<Option<LogState>, _> =
            call(&self.inner.client, &peer, STATE, &which, CALL_DEADLINE).await;
        match answer {
            Ok(Some(state)) => Ok(state),
            Ok(None) => Err(format!(
                "copy [{allocation}] is not open yet on [{}]",
                member.name
            )),
            Err(error) => Err(format!("copy [{allocation}] on [{}]: {error}", member.name)),
        }
    }
}
