//! The loops. Each pass over an object: fetch, validate, observe, plan, guard, apply, status.
//!
//! - [`index_cluster`], [`index`]: one pass over one object of the kind.
//! - [`queue`]: which object is looked at when; never two passes over one object at once; back-off by object.
//! - [`status`]: what of a new status is worth a write.
//! - [`lease`]: leadership and its epoch.
//! - [`detach`]: what an operator leaves when it is uninstalled.
//! - [`operator`]: all of it against a Kubernetes API server.
//!
//! `segmentry up` runs the same [`Reconciler`] over its own doors.

pub mod detach;
pub mod index;
pub mod index_cluster;
pub mod lease;
pub mod operator;
pub mod queue;
pub mod status;

use crate::{
    api::{
        IndexCluster,
        conditions::reason,
        valid::{Key, ValidCluster},
    },
    apply::expectations::Expectations,
    nodeclient::NodeClient,
    objects::{Objects, ObjectsError, Work},
    observe::{self, Observed},
    runtime::{Runtime, RuntimeError},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// A pass over a quiet object.
pub const QUIET: Duration = Duration::from_secs(30);
/// A pass while something is under way: a change of a node raises no event.
pub const BUSY: Duration = Duration::from_secs(1);
/// Longest pass: flushes may take two minutes, everything else is far shorter.
pub const LONGEST_PASS: Duration = Duration::from_secs(180);

/// The lease epoch that node calls carry.
#[derive(Debug, Default)]
pub struct Epoch {
    current: AtomicU64,
    wanted: AtomicU64,
}

impl Epoch {
    /// An epoch that is already held.
    pub fn held(epoch: u64) -> Self {
        Self {
            current: AtomicU64::new(epoch),
            wanted: AtomicU64::new(epoch),
        }
    }

    /// The epoch that is held.
    pub fn current(&self) -> u64 {
        self.current.load(Ordering::SeqCst)
    }

    /// The epoch is stored and held from now on.
    pub fn hold(&self, epoch: u64) {
        self.current.store(epoch, Ordering::SeqCst);
        self.wanted.fetch_max(epoch, Ordering::SeqCst);
    }

    /// The lowest epoch that clusters would accept; the holder of leadership stores it and then holds it.
    pub fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::SeqCst)
    }

    /// A cluster has seen `known`. A Lease that was deleted and made anew counts from the start: its holder raises it past what
    /// clusters know, or they would refuse it for ever. True if the held epoch is too low.
    pub fn outrun(&self, known: u64) -> bool {
        if known > self.current() {
            self.wanted.fetch_max(known + 1, Ordering::SeqCst);
            return true;
        }
        false
    }
}

/// What a pass tells the queue.
#[derive(Debug)]
pub struct Outcome {
    /// When to look again.
    pub again: Duration,
    /// Others that have reason to be looked at now.
    pub wake: Vec<Work>,
}

/// Why a pass failed; it is tried again with back-off.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// The declared objects' door.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// The runtime's door.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A pass that took too long.
    #[error("the pass took longer than {} s", LONGEST_PASS.as_secs())]
    TooLong,
}

/// Which cluster restarts; one at a time per operator.
#[derive(Debug, Default)]
pub struct RestartSlot(Mutex<Option<Key>>);

impl RestartSlot {
    /// No other cluster restarts.
    pub fn is_free_for(&self, key: &Key) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .is_none_or(|holder| holder == key)
    }

    /// Takes the slot unless another cluster has it.
    pub fn take(&self, key: &Key) -> bool {
        let mut holder = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = holder.as_ref().is_none_or(|holder| holder == key);
        if free {
            *holder = Some(key.clone());
        }
        free
    }

    /// This cluster does not restart (any more).
    pub fn release(&self, key: &Key) {
        let mut holder = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if holder.as_ref() == Some(key) {
            *holder = None;
        }
    }
}

/// The last observation of a cluster; its lock is held while a new one is made, so that others wait for it and use it.
type SharedView = Arc<tokio::sync::Mutex<Option<(Instant, Arc<Observed>)>>>;

/// Settings of the loops.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Image of clusters that neither declare one nor run one.
    pub default_image: String,
}

/// Passes over declared objects, through two doors.
pub struct Reconciler<R, O> {
    /// Where nodes run.
    pub runtime: R,
    /// Where declared objects live.
    pub objects: O,
    /// Nodes.
    pub nodes: NodeClient,
    /// Settings.
    pub settings: Settings,
    /// Lease epoch.
    pub epoch: Arc<Epoch>,
    slot: RestartSlot,
    expectations: Expectations,
    views: Mutex<BTreeMap<Key, SharedView>>,
    counters: status::LastWrites,
}

impl<R: Runtime, O: Objects> Reconciler<R, O> {
    /// A reconciler over two doors.
    pub fn new(runtime: R, objects: O, nodes: NodeClient, settings: Settings, epoch: Arc<Epoch>) -> Self {
        Self {
            runtime,
            objects,
            nodes,
            settings,
            epoch,
            slot: RestartSlot::default(),
            expectations: Expectations::default(),
            views: Mutex::default(),
            counters: status::LastWrites::default(),
        }
    }

    /// One pass over one object, within [`LONGEST_PASS`].
    ///
    /// # Errors
    /// See [`PassError`]; the caller tries again with back-off.
    pub async fn reconcile(&self, work: &Work) -> Result<Outcome, PassError> {
        let pass = async {
            match work {
                Work::Cluster(key) => self.reconcile_cluster(key).await,
                Work::Index(key) => self.reconcile_index(key).await,
            }
        };
        tokio::time::timeout(LONGEST_PASS, pass)
            .await
            .unwrap_or(Err(PassError::TooLong))
    }

    /// Facts no older than `age` (a second, or zero for a fresh read), shared by the passes over all indices of a cluster: a cluster with a hundred indices is
    /// asked once, not a hundred times.
    async fn shared_view(
        &self,
        cluster: &ValidCluster,
        uuid: &str,
        age: Duration,
    ) -> Result<Arc<Observed>, RuntimeError> {
        let cell = {
            let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
            views.entry(cluster.key.clone()).or_default().clone()
        };
        let mut cell = cell.lock().await;
        if let Some((at, seen)) = cell.as_ref()
            && at.elapsed() < age
        {
            return Ok(seen.clone());
        }
        let seen = Arc::new(observe::observe(&self.runtime, &self.nodes, cluster, Some(uuid)).await?);
        *cell = Some((Instant::now(), seen.clone()));
        Ok(seen)
    }

    fn forget(&self, key: &Key) {
        self.slot.release(key);
        self.expectations.forget(key);
        self.views
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
    }

    /// Index objects of a cluster, as work.
    async fn indices_of(&self, cluster: &Key) -> Vec<Work> {
        match self.objects.list_indices(&cluster.namespace).await {
            Ok(list) => list
                .into_iter()
                .filter(|index| index.spec.cluster_ref.name == cluster.name)
                .map(|index| {
                    Work::Index(Key {
                        namespace: cluster.namespace.clone(),
                        name: kube::ResourceExt::name_any(&index),
                    })
                })
                .collect(),
            Err(error) => {
                // They look again by themselves within half a minute.
                tracing::warn!(%cluster, %error, "indices were not woken");
                Vec::new()
            }
        }
    }
}

/// Recorded uuid of a cluster object that was formed.
fn formed_uuid(object: &IndexCluster) -> Option<String> {
    object
        .status
        .as_ref()?
        .identity
        .as_ref()
        .filter(|identity| identity.formed)
        .map(|identity| identity.cluster_uuid.clone())
}

/// A failed call as condition Ready shows it.
fn retrying(error: &dyn std::fmt::Display) -> (&'static str, String) {
    (reason::RETRYING, format!("{error}; tried again"))
}
