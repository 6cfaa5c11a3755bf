//! Any request on any node: who has the copies, who is asked, and what comes back.
//!
//! ```text
//!   REST ──▶ Coordinator ──▶ cluster state: which indices, which shards, where
//!                 │
//!                 ├── this node ──▶ Copies (the copies that are open here)
//!                 └── other nodes ─ wire ─▶ their Copies
//! ```
//!
//! Rules that hold throughout:
//! - A write goes to the process that the cluster state calls the active primary. It is sent again only where the other
//!   side certainly did nothing, or where doing it twice leaves what doing it once leaves. Compare-and-set, `create` and
//!   `update` are never sent again after an unknown outcome: the client is told that it is unknown.
//! - A read may be sent to another copy after any failure.
//! - Every wait (for a primary, for shards to start, for a quorum) has the deadline that the client gave, or a default.
//!
//! Files: [`document`] and [`bulk`] write and read by id; [`search`] scatters and gathers; [`indices`] creates, deletes and
//! changes indices; [`health`] and [`overview`] say how the cluster is; [`copies`] is the door to the copies of a node.

pub mod bulk;
pub mod copies;
pub mod document;
pub mod error;
pub mod get;
pub mod health;
pub mod indices;
pub mod local;
pub mod maintenance;
pub mod names;
pub mod overview;
pub mod route;
pub mod search;
pub mod stats;

pub use copies::Copies;
pub use error::{ApiError, ShardFailure};
pub use local::LocalCopies;

pub use names::NameOptions;

use segmentry_meta::MetaStore;
use segmentry_state::{ClusterState, NodeId};
use segmentry_wire::{Client, Identity, Routes};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::sync::Semaphore;

/// How long a call for numbers of copies may take.
pub(crate) const STATS_DEADLINE: Duration = Duration::from_secs(10);
/// How long a change of the cluster metadata may take where the client gave no time.
pub const METADATA_TIMEOUT: Duration = Duration::from_secs(30);

/// Carries out requests. Cheap to clone.
#[derive(Clone)]
pub struct Coordinator {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) identity: Identity,
    pub(crate) meta: Arc<dyn MetaStore>,
    pub(crate) client: Client,
    pub(crate) copies: Arc<dyn Copies>,
    /// Indexing budget in KiB: bodies of bulks in flight.
    pub(crate) budget: Arc<Semaphore>,
    pub(crate) budget_kib: u32,
    /// Spreads searches over copies.
    pub(crate) turn: AtomicUsize,
}

impl std::fmt::Debug for Coordinator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Coordinator")
            .field("identity", &self.inner.identity)
            .finish_non_exhaustive()
    }
}

impl Coordinator {
    /// A coordinator on the node `client` speaks as. `indexing_budget_bytes` bounds the bodies of writes in flight.
    pub fn new(
        meta: Arc<dyn MetaStore>,
        client: Client,
        copies: Arc<dyn Copies>,
        indexing_budget_bytes: u64,
    ) -> Self {
        let budget_kib = u32::try_from(indexing_budget_bytes >> 10)
            .unwrap_or(u32::MAX)
            .max(1);
        let permits = usize::try_from(budget_kib)
            .unwrap_or(Semaphore::MAX_PERMITS)
            .min(Semaphore::MAX_PERMITS);
        Self {
            inner: Arc::new(Inner {
                identity: client.identity().clone(),
                meta,
                client,
                copies,
                budget: Arc::new(Semaphore::new(permits)),
                budget_kib,
                turn: AtomicUsize::new(0),
            }),
        }
    }

    /// Routes through which other nodes reach the copies of this one.
    pub fn routes(&self) -> Routes {
        copies::routes(&self.inner.copies)
    }

    /// The cluster state as applied here.
    pub fn state(&self) -> Arc<ClusterState> {
        self.inner.meta.current()
    }

    /// The cluster metadata.
    pub fn meta(&self) -> &Arc<dyn MetaStore> {
        &self.inner.meta
    }

    /// This node.
    pub fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// The leader of the cluster metadata, as known here.
    pub fn leader(&self) -> Option<NodeId> {
        self.inner.meta.leader()
    }

    pub(crate) fn next_turn(&self) -> usize {
        self.inner.turn.fetch_add(1, Ordering::Relaxed)
    }
}

/// Milliseconds since 1970, UTC.
pub fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| u64::try_from(since.as_millis()).ok())
        .unwrap_or(0)
}
