//! Where the cluster state lives: one versioned [`ClusterState`], changed by [`Change`]s that all nodes apply in one order.
//!
//! ```text
//!   propose(Change) ──▶ leader's batcher ──one log entry──▶ Raft log (synced on a majority) ──▶ apply on every node ──▶ watch
//!        │  not the leader: forwarded                                                             │
//!        └────────────────────────── answer: applied / Refused(Refusal) ◀─────────────────────────┘
//! ```
//!
//! - [`MetaStore`]: what other rooms see. `dyn`-compatible.
//! - [`RaftMeta`]: the backend of a node, over Raft; one voter for one node, else an odd number of at least three. Log, vote
//!   and snapshots are files below one folder (`store`); no type of the Raft library leaves this crate.
//! - [`MemoryMeta`]: a double for tests of other rooms; the same `apply`, no network, no disk.
//!
//! **Outcomes.** `propose` is `Ok` once the Change is committed *and* applied on this node, so that the proposer reads its own
//! write. [`ProposeError::Refused`] is the verdict of `apply`. [`ProposeError::NoQuorum`] says that nothing was done.
//! [`ProposeError::Unknown`] says that it may be done, now or later. Each proposal carries a random id, and the state machine
//! remembers the outcomes of the last [`raft::REMEMBERED`] ids: a proposal that is sent again after a change of leader is
//! applied once and answered with its first outcome.

mod memory;
pub mod raft;
mod store;
mod transport;

pub use memory::MemoryMeta;
pub use raft::{MemberError, RaftMeta, Timing};
pub use store::OpenError;
pub use transport::{PeerAddr, RaftTransport, TransportError};

use segmentry_state::{Change, ClusterState, NodeId, Refusal};
use std::{future::Future, pin::Pin, sync::Arc, time::Duration};
use tokio::sync::watch;

/// A boxed future, so that the traits here can be `dyn`.
pub type MetaFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How long a proposal or a linearizable read tries, across changes of leader, before it gives up.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Why a proposal has no success to report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// No leader could take it in time: nothing was done.
    #[error("no quorum: the cluster metadata has no leader")]
    NoQuorum,
    /// `apply` judged it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It was handed to a leader and no answer came in time: it may be done, now or later.
    #[error("the outcome of a change of the cluster metadata is unknown")]
    Unknown,
}

/// A linearizable read that could not be made in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no quorum: the cluster metadata cannot be read")]
pub struct ReadError;

/// Who leads, as one node knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Leadership {
    /// The leader.
    pub leader: Option<NodeId>,
    /// The Raft term that it leads.
    pub term: u64,
    /// True where it is this node.
    pub local: bool,
}

/// The replicated cluster state.
pub trait MetaStore: Send + Sync + 'static {
    /// The state as last applied here; may lag behind the leader's.
    fn current(&self) -> Arc<ClusterState>;

    /// Follows the applied state. Intermediate states may be skipped.
    fn watch(&self) -> watch::Receiver<Arc<ClusterState>>;

    /// The state after everything that was committed before this call.
    fn read(&self) -> MetaFuture<'_, Result<Arc<ClusterState>, ReadError>>;

    /// Commits one Change, on any node; `Ok` holds the state as applied here, at or after the Change.
    fn propose(&self, change: Change) -> MetaFuture<'_, Result<Arc<ClusterState>, ProposeError>>;

    /// Commits several Changes in one round, in this order, each judged on its own.
    fn propose_all(
        &self,
        changes: Vec<Change>,
    ) -> MetaFuture<'_, Result<Vec<Result<(), Refusal>>, ProposeError>>;

    /// Follows who leads.
    fn leadership(&self) -> watch::Receiver<Leadership>;

    /// The leader, as known here.
    fn leader(&self) -> Option<NodeId> {
        self.leadership().borrow().leader
    }

    /// True while this node leads, as known here; the state machine, not this, is the fence.
    fn is_leader(&self) -> bool {
        self.leadership().borrow().local
    }
}
