//! [`RaftMeta`]: the metadata of one node, over Raft.
//!
//! Files: `network` calls peers and answers them, `proposals` makes one log entry of everything that waits, `members` forms a
//! cluster and replaces a lost voter.

mod members;
mod network;
mod proposals;

pub use members::MemberError;

use crate::{
    DEADLINE, Leadership, MetaFuture, MetaStore, ProposeError, RaftTransport, ReadError,
    store::{OpenError, TypeConfig, log, machine::Machine, node_id},
};
use network::Links;
use openraft::{Config, Raft, SnapshotPolicy};
use parking_lot::Mutex;
use proposals::Proposer;
use segmentry_state::{Change, ClusterState, NodeId, Refusal};
use segmentry_vfs::{Vfs, create_dir_durably};
use std::{path::Path, sync::Arc, time::Duration};
use tokio::{sync::watch, task::JoinHandle, time::Instant};
use tracing::{error, info, warn};

/// How many outcomes of proposals are remembered, so that one which is sent again is not applied again.
pub const REMEMBERED: usize = 4_096;

/// A snapshot is due once the log file is this long, even after few entries (mappings can be large).
const SNAPSHOT_ABOVE: u64 = 16 << 20;
/// Entries that are kept behind a snapshot, for peers that are a little late: the interval of snapshots over this.
const KEEP_SHARE: u64 = 8;
/// How long a shutdown waits for each part.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// Heartbeats, elections and snapshots. A follower elects after `election_max` (the leader's lease) plus its own random election timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Between heartbeats, and the deadline of one append.
    pub heartbeat: Duration,
    /// Shortest election timeout.
    pub election_min: Duration,
    /// Longest election timeout, and the lease.
    pub election_max: Duration,
    /// Log entries between two snapshots.
    pub snapshot_every: u64,
}

impl Default for Timing {
    /// A lost leader is replaced in 1.0 to 1.5 s; three heartbeats may be lost without an election.
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(200),
            election_min: Duration::from_millis(400),
            election_max: Duration::from_millis(600),
            snapshot_every: 1_000,
        }
    }
}

/// The metadata of one node.
pub struct RaftMeta {
    me: NodeId,
    raft: Raft<TypeConfig>,
    log: log::LogStore,
    links: Arc<Links>,
    proposer: Proposer,
    state: watch::Sender<Arc<ClusterState>>,
    leadership: watch::Receiver<Leadership>,
    owned: Mutex<Option<Owned>>,
}

/// What a shutdown joins.
struct Owned {
    writer: log::LogWriter,
    batcher: JoinHandle<()>,
    watcher: JoinHandle<()>,
}

impl RaftMeta {
    /// Opens what `dir` holds, or starts empty: an empty node waits to be initialised or added, it forms nothing by itself.
    ///
    /// # Errors
    /// See [`OpenError`]; damage is refused, never repaired by forgetting.
    pub async fn open(
        fs: Arc<dyn Vfs>,
        dir: &Path,
        me: NodeId,
        transport: Arc<dyn RaftTransport>,
    ) -> Result<Arc<Self>, OpenError> {
        Self::open_with(fs, dir, me, transport, Timing::default()).await
    }

    /// [`Self::open`] with another timing.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_with(
        fs: Arc<dyn Vfs>,
        dir: &Path,
        me: NodeId,
        transport: Arc<dyn RaftTransport>,
        timing: Timing,
    ) -> Result<Arc<Self>, OpenError> {
        let state = watch::Sender::new(Arc::new(ClusterState::default()));
        let (publish, dir) = (state.clone(), dir.to_owned());
        let opened = tokio::task::spawn_blocking(move || {
            create_dir_durably(fs.as_ref(), &dir).map_err(|source| OpenError::Io {
                path: dir.clone(),
                source,
            })?;
            let machine = Machine::open(Arc::clone(&fs), &dir, publish)?;
            let (log, writer) = log::open(fs, &dir)?;
            Ok((machine, log, writer))
        });
        let (machine, log, writer) = opened.await.map_err(|e| OpenError::Raft(e.to_string()))??;
        let links = Arc::new(Links::new(me, transport));
        let raft = Raft::new(
            me.0,
            Arc::new(config(timing)?),
            Arc::clone(&links),
            log.clone(),
            machine,
        )
        .await
        .map_err(|e| OpenError::Raft(e.to_string()))?;
        let (leadership, watcher) = watch_raft(me, raft.clone(), log.clone());
        let (proposer, batcher) = Proposer::start(raft.clone());
        Ok(Arc::new(Self {
            me,
            raft,
            log,
            links,
            proposer,
            state,
            leadership,
            owned: Mutex::new(Some(Owned {
                writer,
                batcher,
                watcher,
            })),
        }))
    }

    /// This node.
    pub fn node_id(&self) -> NodeId {
        self.me
    }

    /// True while the disk holds neither a vote nor an entry: this node never belonged to a cluster.
    pub fn is_empty(&self) -> bool {
        self.log.is_empty() && self.state.borrow().version == 0
    }

    /// Why Raft has stopped on this node for good (a failed write of its log), if it has.
    pub fn failed(&self) -> Option<String> {
        self.raft
            .metrics()
            .borrow()
            .running_state
            .as_ref()
            .err()
            .map(ToString::to_string)
    }

    /// Voters, as this node knows them.
    pub fn voters(&self) -> Vec<NodeId> {
        self.raft
            .metrics()
            .borrow()
            .membership_config
            .voter_ids()
            .map(node_id)
            .collect()
    }

    /// Another address of a peer, from its hello; it is tried before the one in the membership.
    pub fn learn_address(&self, peer: NodeId, address: String) {
        self.links.learn(peer, address);
    }

    /// Stops taking part, writes what is pending, and joins every task and thread.
    pub async fn shutdown(&self) {
        let Some(owned) = self.owned.lock().take() else {
            return;
        };
        match tokio::time::timeout(SHUTDOWN, self.raft.shutdown()).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => error!(error = %e, "raft ended by a panic"),
            Err(_) => error!("raft did not stop in time"),
        }
        for (name, task) in [("batcher", owned.batcher), ("watcher", owned.watcher)] {
            task.abort();
            if let Err(e) = task.await
                && e.is_panic()
            {
                error!(task = name, error = %e, "a metadata task ended by a panic");
            }
        }
        if let Err(e) = tokio::task::spawn_blocking(move || owned.writer.stop()).await {
            error!(error = %e, "the writer of the metadata log did not stop");
        }
    }

    /// Waits until this node has applied `version`.
    async fn applied(&self, version: u64, until: Instant) -> Option<Arc<ClusterState>> {
        let mut state = self.state.subscribe();
        let waited = tokio::time::timeout_at(until, state.wait_for(|s| s.version >= version)).await;
        waited.ok()?.ok().map(|s| Arc::clone(&s))
    }

    /// Waits until the leader changes, or a short while: a call failed, or nobody leads.
    async fn leader_changed_or(&self, pause: Duration, until: Instant) {
        let mut leadership = self.leadership.clone();
        leadership.mark_unchanged();
        let wait = until.min(Instant::now() + pause);
        // Elapsed and closed both mean: look again.
        let _ = tokio::time::timeout_at(wait, leadership.changed()).await;
    }
}

fn config(timing: Timing) -> Result<Config, OpenError> {
    let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    let config = Config {
        cluster_name: "segmentry".into(),
        heartbeat_interval: millis(timing.heartbeat),
        election_timeout_min: millis(timing.election_min),
        election_timeout_max: millis(timing.election_max),
        install_snapshot_timeout: 10_000,
        max_payload_entries: 64,
        replication_lag_threshold: 2 * timing.snapshot_every,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(timing.snapshot_every),
        snapshot_max_chunk_size: 1 << 20,
        max_in_snapshot_log_to_keep: timing.snapshot_every / KEEP_SHARE,
        purge_batch_size: 1,
        ..Config::default()
    };
    config.validate().map_err(|e| OpenError::Raft(e.to_string()))
}

/// Turns the library's metrics into [`Leadership`], and asks for a snapshot where the log has grown long.
fn watch_raft(
    me: NodeId,
    raft: Raft<TypeConfig>,
    log: log::LogStore,
) -> (watch::Receiver<Leadership>, JoinHandle<()>) {
    let (publish, leadership) = watch::channel(Leadership::default());
    let mut metrics = raft.metrics();
    let task = tokio::spawn(async move {
        let mut asked_at = None;
        loop {
            let (now, applied, snapshot, failed) = {
                let m = metrics.borrow_and_update();
                let leader = m.current_leader.map(node_id).filter(|_| m.running_state.is_ok());
                let now = Leadership {
                    leader,
                    term: m.current_term,
                    local: leader == Some(me),
                };
                (now, m.last_applied, m.snapshot, m.running_state.is_err())
            };
            publish.send_if_modified(|known| {
                let changed = *known != now;
                if changed && known.leader != now.leader {
                    info!(leader = ?now.leader.map(|l| l.to_string()), term = now.term, "metadata leader");
                }
                *known = now;
                changed
            });
            if failed {
                error!(node = %me, "raft has stopped on this node");
            }
            if log.size() > SNAPSHOT_ABOVE && applied > snapshot && asked_at != applied {
                asked_at = applied;
                if let Err(e) = raft.trigger().snapshot().await {
                    warn!(error = %e, "a snapshot of the metadata could not be asked for");
                }
            }
            if metrics.changed().await.is_err() {
                publish.send_replace(Leadership::default());
                return;
            }
        }
    });
    (leadership, task)
}

impl MetaStore for RaftMeta {
    fn current(&self) -> Arc<ClusterState> {
        Arc::clone(&self.state.borrow())
    }

    fn watch(&self) -> watch::Receiver<Arc<ClusterState>> {
        self.state.subscribe()
    }

    fn read(&self) -> MetaFuture<'_, Result<Arc<ClusterState>, ReadError>> {
        Box::pin(self.read_linearizable(Instant::now() + DEADLINE))
    }

    fn propose(&self, change: Change) -> MetaFuture<'_, Result<Arc<ClusterState>, ProposeError>> {
        Box::pin(async move {
            let (state, results) = self.submit(vec![change]).await?;
            match results.into_iter().next() {
                Some(Ok(())) => Ok(state),
                Some(Err(refusal)) => Err(ProposeError::Refused(refusal)),
                None => Err(ProposeError::Unknown),
            }
        })
    }

    fn propose_all(
        &self,
        changes: Vec<Change>,
    ) -> MetaFuture<'_, Result<Vec<Result<(), Refusal>>, ProposeError>> {
        Box::pin(async move { Ok(self.submit(changes).await?.1) })
    }

    fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }
}
