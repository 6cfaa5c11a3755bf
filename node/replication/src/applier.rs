//! Makes the copies of this node what the cluster state says: one keeper ([`crate::keeper`]) for each shard with a copy here, so that a
//! slow shard never holds up another one; and removes what nobody needs any more.

use crate::{
    access::Shards,
    folders,
    keeper::Keeper,
    primary::Primary,
    recovery::{self, MovedWatch},
    source::Source,
};
use futures::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use segmentry_mapping::Mapping;
use segmentry_meta::{MetaStore, ProposeError};
use segmentry_shard::{GrowMapping, NodeResources, WriteError};
use segmentry_state::{AllocationId, Change, ClusterState, IndexUuid, NodeId, Refusal, ShardId};
use segmentry_vfs::Vfs;
use segmentry_wire::Client;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::Future,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

/// Between two looks at what may be removed.
const SWEEP: Duration = Duration::from_secs(10);

/// Everything between copies on one node.
pub struct Replication {
    pub(crate) inner: Arc<Inner>,
    keepers: Mutex<BTreeMap<ShardId, Keeping>>,
    opened: watch::Sender<bool>,
    unknown: Mutex<BTreeSet<IndexUuid>>,
}

struct Keeping {
    task: JoinHandle<()>,
    stop: CancellationToken,
    /// True after its first look.
    looked: watch::Receiver<bool>,
}

/// Shared with all tasks.
pub(crate) struct Inner {
    pub fs: Arc<dyn Vfs>,
    pub root: PathBuf,
    pub meta: Arc<dyn MetaStore>,
    pub client: Client,
    pub node: NodeId,
    pub boot: segmentry_state::BootId,
    /// Runtime of streams, recoveries and copies.
    pub data: Handle,
    pub resources: Arc<NodeResources>,
    pub shards: Shards,
    pub source: Source,
    pub moved: MovedWatch,
    pub primaries: Mutex<HashMap<ShardId, Arc<Primary>>>,
    pub segments: Mutex<HashMap<ShardId, Door>>,
}

type Door = mpsc::Sender<Option<oneshot::Sender<Result<(), String>>>>;

impl Inner {
    pub fn primary(&self, shard: ShardId) -> Option<Arc<Primary>> {
        self.primaries.lock().get(&shard).cloned()
    }

    pub fn segments_door(&self, shard: ShardId) -> Option<Door> {
        self.segments.lock().get(&shard).cloned()
    }
}

/// Changes mappings through the cluster state.
struct Mapper(Arc<dyn MetaStore>);

impl GrowMapping for Mapper {
    fn grow(
        &self,
        index: IndexUuid,
        grown: Arc<Mapping>,
    ) -> BoxFuture<'static, Result<Arc<Mapping>, WriteError>> {
        let meta = Arc::clone(&self.0);
        Box::pin(async move {
            let expected = grown.version.saturating_sub(1);
            let change = Change::PutMapping {
                index,
                expected,
                mapping: grown,
            };
            let state = match meta.propose(change).await {
                Ok(state) => state,
                // Another change came first.
                Err(ProposeError::Refused(Refusal::Stale(_))) => meta
                    .read()
                    .await
                    .map_err(|error| WriteError::MappingUpdate(error.to_string()))?,
                Err(error) => return Err(WriteError::MappingUpdate(error.to_string())),
            };
            match state.index(index) {
                Some(index) => Ok(Arc::clone(&index.mapping)),
                None => Err(WriteError::NotPrimary("the index was deleted".to_owned())),
            }
        })
    }
}

impl Replication {
    /// For the node that `client` speaks as; nothing is opened before [`Replication::follow`]. `metadata`: the runtime of keepers;
    /// `data`: that of streams and copies.
    pub fn new(
        fs: Arc<dyn Vfs>,
        root: PathBuf,
        meta: Arc<dyn MetaStore>,
        client: Client,
        metadata: Handle,
        data: Handle,
    ) -> Arc<Self> {
        // Keepers run where `follow` is called.
        drop(metadata);
        let resources =
            NodeResources::for_machine(Arc::clone(&fs), data.clone(), Arc::new(Mapper(Arc::clone(&meta))));
        let identity = client.identity();
        let (node, boot) = (identity.node_id, identity.boot_id);
        let inner = Arc::new(Inner {
            fs,
            root,
            meta,
            client,
            node,
            boot,
            data,
            resources,
            shards: Shards::default(),
            source: Source::default(),
            moved: watch::Sender::new(Vec::new()),
            primaries: Mutex::default(),
            segments: Mutex::default(),
        });
        Arc::new(Self {
            inner,
            keepers: Mutex::default(),
            opened: watch::Sender::new(false),
            unknown: Mutex::default(),
        })
    }

    /// Indices on this disk that the cluster state does not know. Their data is kept.
    pub fn unknown_indices(&self) -> BTreeSet<IndexUuid> {
        self.unknown.lock().clone()
    }

    /// What recoveries of copies on this node moved, since the process began.
    pub fn recoveries(&self) -> Vec<(AllocationId, recovery::Moved)> {
        self.inner.moved.borrow().clone()
    }

    /// Resolves once every copy that the first cluster state with this node listed here is open, is being built, or was reported as one
    /// that cannot be opened.
    pub async fn opened(&self) {
        let mut opened = self.opened.subscribe();
        if opened.wait_for(|opened| *opened).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Follows the cluster state until `stop`. Copies stay open then: [`Replication::close`] ends them.
    pub async fn follow(&self, stop: impl Future<Output = ()> + Send) {
        let following = async {
            let mut watch = self.inner.meta.watch();
            let mut sweep = tokio::time::interval(SWEEP);
            sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                let state = Arc::clone(&watch.borrow_and_update());
                self.keep(&state);
                self.look_if_opened(&state);
                tokio::select! {
                    changed = watch.changed() => if changed.is_err() { return },
                    _ = sweep.tick() => {
                        self.inner.source.expire();
                        self.sweep().await;
                    }
                    () = tokio::time::sleep(Duration::from_millis(50)), if !*self.opened.borrow() => {}
                }
            }
        };
        tokio::select! {
            () = following => {}
            () = stop => {}
        }
    }

    /// One keeper for each shard with a copy here; those that ended because nothing is here any more go.
    fn keep(&self, state: &Arc<ClusterState>) {
        let mut keepers = self.keepers.lock();
        keepers.retain(|_, keeping| !keeping.task.is_finished());
        for (shard, _, _, _) in state.copies_on(self.inner.node) {
            keepers.entry(shard).or_insert_with(|| {
                let stop = CancellationToken::new();
                let (look, looked) = watch::channel(false);
                let keeper = Keeper::new(Arc::clone(&self.inner), shard);
                let task = tokio::spawn(keeper.run(stop.clone(), look));
                Keeping { task, stop, looked }
            });
        }
    }

    fn look_if_opened(&self, state: &ClusterState) {
        if *self.opened.borrow() || !state.nodes.contains_key(&self.inner.node) {
            return;
        }
        let all = self
            .keepers
            .lock()
            .values()
            .all(|keeping| *keeping.looked.borrow());
        if all {
            self.opened.send_replace(true);
        }
    }

    /// Removes folders that are not needed any more. The state that judges is read after the folders were listed.
    async fn sweep(&self) {
        let (fs, root) = (Arc::clone(&self.inner.fs), self.inner.root.clone());
        let listed = tokio::task::spawn_blocking(move || folders::all(fs.as_ref(), &root)).await;
        let folders = match listed {
            Ok(Ok(folders)) => folders,
            Ok(Err(error)) => {
                warn!(%error, "the folders of copies cannot be listed");
                return;
            }
            Err(error) => {
                error!(%error, "listing the folders of copies ended abnormally");
                return;
            }
        };
        if folders.is_empty() {
            self.unknown.lock().clear();
            return;
        }
        let Ok(state) = self.inner.meta.read().await else {
            return;
        };
        let inner = Arc::clone(&self.inner);
        let swept = tokio::task::spawn_blocking(move || {
            let open: BTreeSet<AllocationId> =
                inner.shards.all().iter().map(|copy| copy.allocation()).collect();
            folders::sweep(inner.fs.as_ref(), &folders, &state, inner.node, |allocation| {
                open.contains(&allocation)
            });
            folders::sweep_indices(inner.fs.as_ref(), &inner.root, &state)
        });
        match swept.await {
            Ok(Ok(unknown)) => {
                let mut known = self.unknown.lock();
                for index in unknown.difference(&known) {
                    warn!(%index, "data of an index that the cluster does not know is kept");
                }
                *known = unknown;
            }
            Ok(Err(error)) => warn!(%error, "the folders of indices cannot be listed"),
            Err(error) => error!(%error, "removing folders ended abnormally"),
        }
    }

    /// Closes all copies, flushed. All tasks have ended when this returns.
    pub async fn close(&self) {
        let keepers: Vec<Keeping> = std::mem::take(&mut *self.keepers.lock()).into_values().collect();
        for keeping in &keepers {
            keeping.stop.cancel();
        }
        for outcome in join_all(keepers.into_iter().map(|keeping| keeping.task)).await {
            if let Err(error) = outcome {
                error!(%error, "the keeper of a shard ended abnormally");
            }
        }
    }

    /// Ends all copies as the end of the process would: for tests of crashes.
    #[doc(hidden)]
    pub async fn abandon(&self) {
        let keepers: Vec<Keeping> = std::mem::take(&mut *self.keepers.lock()).into_values().collect();
        for keeping in keepers {
            keeping.task.abort();
            drop(keeping.task.await);
        }
        let primaries: Vec<Arc<Primary>> = self
            .inner
            .primaries
            .lock()
            .drain()
            .map(|(_, primary)| primary)
            .collect();
        for primary in primaries {
            primary.stop().await;
        }
        for copy in self.inner.shards.all() {
            self.inner.shards.take(copy.shard());
            copy.abandon().await;
        }
    }
}
