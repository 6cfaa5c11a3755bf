//! Proposals and linearizable reads, on any node.
//!
//! The leader's batcher makes one log entry of everything that waited while the last one was written: the library writes one
//! entry a sync. Each item carries a random id under which its outcome is remembered by the state machine, so a proposal may
//! be sent again to the next leader without being applied twice.

use super::{RaftMeta, network::READ};
use crate::{
    DEADLINE, ProposeError, ReadError, TransportError,
    store::{Batch, Item, Outcome, TypeConfig},
};
use openraft::Raft;
use segmentry_state::{Change, ClusterState, Refusal};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::Instant,
};
use tracing::debug;
use uuid::Uuid;

/// Most items that wait for the batcher; more wait in their own tasks.
const QUEUE: usize = 1_024;
/// Most items in one log entry.
const MAX_ITEMS: usize = 256;
/// How long one log entry may take before its proposers are told that its outcome is open.
const ENTRY_DEADLINE: Duration = Duration::from_secs(5);
/// One forwarded call; longer than an entry may take, so that the leader's own verdict arrives.
const FORWARD_DEADLINE: Duration = Duration::from_secs(6);
/// Between attempts while nobody leads or the leader did not answer.
const PAUSE: Duration = Duration::from_millis(50);

/// The leader's answer to an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reply {
    /// Applied.
    Done(Outcome),
    /// Not the leader: nothing was done by this attempt.
    NotLeader,
    /// Written, but not known to be committed.
    Open,
}

struct Waiting {
    item: Item,
    reply: oneshot::Sender<Reply>,
}

/// The door to the batcher.
pub(super) struct Proposer {
    queue: mpsc::Sender<Waiting>,
}

impl Proposer {
    pub(super) fn start(raft: Raft<TypeConfig>) -> (Self, JoinHandle<()>) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        (Self { queue }, tokio::spawn(write_batches(raft, waiting)))
    }

    /// Commits an item, if this node leads.
    pub(super) async fn submit(&self, item: Item) -> Reply {
        let (reply, answer) = oneshot::channel();
        if self.queue.send(Waiting { item, reply }).await.is_err() {
            return Reply::NotLeader;
        }
        // The batcher ends only at a shutdown; then it may have written the item.
        answer.await.unwrap_or(Reply::Open)
    }
}

async fn write_batches(raft: Raft<TypeConfig>, mut waiting: mpsc::Receiver<Waiting>) {
    let mut at_hand = Vec::new();
    while waiting.recv_many(&mut at_hand, MAX_ITEMS).await > 0 {
        let (items, replies): (Vec<_>, Vec<_>) = at_hand.drain(..).map(|w| (w.item, w.reply)).unzip();
        let answers = match tokio::time::timeout(ENTRY_DEADLINE, raft.client_write(Batch { items })).await {
            Ok(Ok(response)) => response.data.into_iter().map(Reply::Done).collect(),
            Ok(Err(openraft::error::RaftError::APIError(e))) => {
                // Not the leader, or cut out of the log by another one: never committed.
                debug!(error = %e, "a batch of proposals goes to another leader");
                vec![Reply::NotLeader; replies.len()]
            }
            Ok(Err(openraft::error::RaftError::Fatal(e))) => {
                debug!(error = %e, "raft has stopped under a batch of proposals");
                vec![Reply::Open; replies.len()]
            }
            Err(_) => vec![Reply::Open; replies.len()],
        };
        for (reply, answer) in replies.into_iter().zip(answers) {
            // A proposer that went away asks for no answer.
            let _ = reply.send(answer);
        }
    }
}

impl RaftMeta {
    /// Commits Changes and waits until they are applied here.
    pub(super) async fn submit(
        &self,
        changes: Vec<Change>,
    ) -> Result<(Arc<ClusterState>, Vec<Result<(), Refusal>>), ProposeError> {
        let until = Instant::now() + DEADLINE;
        let item = Item {
            id: Uuid::new_v4(),
            changes,
        };
        let mut maybe_done = false;
        while Instant::now() < until {
            let leadership = *self.leadership.borrow();
            let reply = match leadership.leader {
                None => None,
                Some(_) if leadership.local => Some(self.proposer.submit(item.clone()).await),
                Some(leader) => {
                    let deadline = FORWARD_DEADLINE.min(until.saturating_duration_since(Instant::now()));
                    match self.forward(leader, &item, deadline).await {
                        Ok(reply) => Some(reply),
                        Err(TransportError::NotSent(_)) => None,
                        Err(TransportError::NoAnswer(_)) => Some(Reply::Open),
                    }
                }
            };
            match reply {
                Some(Reply::Done(outcome)) => {
                    let state = self.applied(outcome.version, until).await;
                    return state.map(|s| (s, outcome.results)).ok_or(ProposeError::Unknown);
                }
                Some(Reply::Open) => maybe_done = true,
                Some(Reply::NotLeader) | None => {}
            }
            if self.failed().is_some() {
                break;
            }
            self.leader_changed_or(PAUSE, until).await;
        }
        Err(if maybe_done {
            ProposeError::Unknown
        } else {
            ProposeError::NoQuorum
        })
    }

    /// The version of the leader's state after everything that was committed before; none where this node does not lead.
    pub(super) async fn read_as_leader(&self) -> Option<u64> {
        let confirmed = tokio::time::timeout(ENTRY_DEADLINE, self.raft.ensure_linearizable()).await;
        matches!(confirmed, Ok(Ok(_))).then(|| self.state.borrow().version)
    }

    pub(super) async fn read_linearizable(&self, until: Instant) -> Result<Arc<ClusterState>, ReadError> {
        while Instant::now() < until {
            let leadership = *self.leadership.borrow();
            let version = match leadership.leader {
                None => None,
                Some(_) if leadership.local => self.read_as_leader().await,
                Some(leader) => {
                    let deadline = FORWARD_DEADLINE.min(until.saturating_duration_since(Instant::now()));
                    self.call_peer::<(), Option<u64>>(leader, READ, &(), deadline)
                        .await
                        .ok()
                        .flatten()
                }
            };
            if let Some(version) = version {
                return self.applied(version, until).await.ok_or(ReadError);
            }
            if self.failed().is_some() {
                break;
            }
            self.leader_changed_or(PAUSE, until).await;
        }
        Err(ReadError)
    }
}
