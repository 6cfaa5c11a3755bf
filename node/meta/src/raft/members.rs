//! Formation of a cluster, and the replacement of a voter whose disk is gone.

use super::{
    RaftMeta,
    network::{PATHS, REPLACE},
};
use crate::{DEADLINE, MetaStore, ProposeError, TransportError, store::RaftNode};
use openraft::error::{ChangeMembershipError, ClientWriteError, InitializeError, RaftError};
use segmentry_state::{Change, ClusterState, Node, NodeId, Refusal};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;
use tracing::info;

/// How long a new voter may take to catch up.
const CATCH_UP: Duration = Duration::from_secs(30);
/// Between attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a membership call failed. All of them may be repeated: the steps that are done already are passed over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum MemberError {
    /// This node belongs to a cluster with other voters.
    #[error("this node's cluster has other members: {0}")]
    OtherMembers(String),
    /// The cluster state refuses it.
    #[error(transparent)]
    Refused(Refusal),
    /// No leader in time, or the outcome is open.
    #[error("no quorum: {0}")]
    NoQuorum(String),
    /// The new voter did not catch up in time.
    #[error("node [{0}] does not take the cluster metadata; is it running and empty?")]
    NotCaughtUp(String),
}

/// A replacement, as it is forwarded to the leader.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Replacement {
    epoch: u64,
    lost: NodeId,
    node: Node,
}

fn raft_node(node: &Node) -> RaftNode {
    RaftNode {
        name: node.name.clone(),
        address: node.address.clone(),
    }
}

impl RaftMeta {
    /// Every path that [`Self::handle`] serves.
    pub const PATHS: [&'static str; 6] = PATHS;

    /// Forms a cluster of `members` (one, or an odd number of at least three; this node among them). To be called once, on
    /// one node, after every member was seen empty; a repetition with the same uuid and members is a no-op.
    ///
    /// # Errors
    /// See [`MemberError`].
    pub async fn initialise(
        &self,
        cluster_uuid: uuid::Uuid,
        cluster_name: String,
        members: Vec<Node>,
    ) -> Result<Arc<ClusterState>, MemberError> {
        let voters: BTreeMap<u64, RaftNode> = members.iter().map(|n| (n.id.0, raft_node(n))).collect();
        let form = Change::Form {
            cluster_uuid,
            cluster_name,
            members,
        };
        // What the cluster state would refuse must not become a Raft membership first.
        ClusterState::default()
            .apply(form.clone())
            .map_err(MemberError::Refused)?;
        match self.raft.initialize(voters.clone()).await {
            Ok(()) => info!(members = voters.len(), "cluster metadata initialised"),
            Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {
                // A node that was only asked for its vote holds no membership yet: the first formation reaches it by itself.
                let known: BTreeSet<u64> = self.voters().into_iter().map(|n| n.0).collect();
                if !known.is_empty() && known != voters.keys().copied().collect() {
                    let names = known
                        .iter()
                        .map(|id| NodeId(*id).to_string())
                        .collect::<Vec<_>>()
                        .join(", ");
                    return Err(MemberError::OtherMembers(names));
                }
            }
            Err(RaftError::APIError(InitializeError::NotInMembers(_))) => {
                return Err(MemberError::Refused(Refusal::Invalid(format!(
                    "node [{}] is not among the members",
                    self.me
                ))));
            }
            Err(RaftError::Fatal(e)) => return Err(MemberError::NoQuorum(e.to_string())),
        }
        match self.propose(form).await {
            Ok(state) => Ok(state),
            Err(ProposeError::Refused(refusal)) => Err(MemberError::Refused(refusal)),
            Err(other) => Err(MemberError::NoQuorum(other.to_string())),
        }
    }

    /// Puts an empty node into the place of a voter whose disk is gone, in the cluster state and among the voters: the state
    /// judges first (`lost` must be a member that is not alive), then the new one catches up as a learner, then one change of
    /// membership takes it in and the lost one out. On any node; may be repeated.
    ///
    /// # Errors
    /// See [`MemberError`].
    pub async fn replace(&self, epoch: u64, lost: NodeId, node: Node) -> Result<(), MemberError> {
        let until = Instant::now() + DEADLINE + CATCH_UP;
        let request = Replacement { epoch, lost, node };
        let mut last = "no leader".to_owned();
        while Instant::now() < until {
            let leadership = *self.leadership.borrow();
            let left = until.saturating_duration_since(Instant::now());
            let outcome: Result<Option<Result<(), MemberError>>, TransportError> = match leadership.leader {
                None => Ok(None),
                Some(_) if leadership.local => Ok(self.replace_as_leader(request.clone()).await),
                Some(leader) => self.call_peer(leader, REPLACE, &request, left).await,
            };
            match outcome {
                Ok(Some(outcome)) => return outcome,
                Ok(None) => {}
                Err(e) => last = e.to_string(),
            }
            self.leader_changed_or(PAUSE, until).await;
        }
        Err(MemberError::NoQuorum(last))
    }

    /// The replacement on the leader; `None` where this node does not lead.
    pub(super) async fn replace_as_leader(&self, request: Replacement) -> Option<Result<(), MemberError>> {
        if !self.is_leader() {
            return None;
        }
        let Replacement { epoch, lost, node } = request;
        let (id, raft_node, name) = (node.id, raft_node(&node), node.name.clone());
        match self.propose(Change::ReplaceNode { epoch, lost, node }).await {
            Ok(_) => {}
            Err(ProposeError::Refused(refusal)) => return Some(Err(MemberError::Refused(refusal))),
            Err(other) => return Some(Err(MemberError::NoQuorum(other.to_string()))),
        }
        let until = Instant::now() + CATCH_UP;
        loop {
            let mut voters: BTreeSet<u64> = self.voters().into_iter().map(|n| n.0).collect();
            if voters.contains(&id.0) && !voters.contains(&lost.0) {
                return Some(Ok(()));
            }
            voters.remove(&lost.0);
            voters.insert(id.0);
            let step = async {
                self.raft.add_learner(id.0, raft_node.clone(), true).await?;
                self.raft.change_membership(voters, false).await
            };
            match tokio::time::timeout_at(until, step).await {
                Ok(Ok(_)) => {
                    info!(lost = %lost, new = %id, name, "voter replaced");
                    return Some(Ok(()));
                }
                Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => return None,
                // Another change of membership is under way, or the learner was not there yet: look again.
                Ok(Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(
                    ChangeMembershipError::InProgress(_) | ChangeMembershipError::LearnerNotFound(_),
                )))) => tokio::time::sleep(PAUSE).await,
                Ok(Err(e)) => return Some(Err(MemberError::NoQuorum(e.to_string()))),
                Err(_) => return Some(Err(MemberError::NotCaughtUp(name))),
            }
            if Instant::now() >= until {
                return Some(Err(MemberError::NotCaughtUp(name)));
            }
        }
    }
}
