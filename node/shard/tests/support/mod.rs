//! A copy without a cluster: an index of one shard, and a mapping that grows in memory.
#![allow(dead_code, reason = "each test file uses a part")]

use futures::future::BoxFuture;
use segmentry_mapping::Mapping;
use segmentry_settings::index::IndexSettings;
use segmentry_shard::{
    Activation, Budget, GrowMapping, NodeResources, OpenError, OpenMode, ShardConfig, ShardCopy, WriteError,
    WriteKind, WriteOp, WriteResult,
};
use segmentry_state::{AllocationId, Index, IndexUuid, NodeId, Shard, ShardCopy as Listed};
use segmentry_vfs::{RealFs, Vfs};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{runtime::Handle, time::Instant};
use uuid::Uuid;

/// The mapping of the one index, as a cluster state would hold it.
#[derive(Default)]
pub struct MemoryMapping(Mutex<Arc<Mapping>>);

impl MemoryMapping {
    pub fn set(&self, mapping: Mapping) {
        *self.0.lock().unwrap() = Arc::new(mapping);
    }

    pub fn now(&self) -> Arc<Mapping> {
        Arc::clone(&self.0.lock().unwrap())
    }
}

impl GrowMapping for MemoryMapping {
    fn grow(
        &self,
        _: IndexUuid,
        grown: Arc<Mapping>,
    ) -> BoxFuture<'static, Result<Arc<Mapping>, WriteError>> {
        let mut now = self.0.lock().unwrap();
        if grown.version == now.version + 1 {
            *now = grown;
        }
        let answer = Arc::clone(&now);
        Box::pin(async move { Ok(answer) })
    }
}

pub const INDEX: IndexUuid = Uuid::from_u128(0xA);

/// A node's worth of resources, and the folder of its copies.
pub struct Site {
    pub root: PathBuf,
    pub mapping: Arc<MemoryMapping>,
    pub node: Arc<NodeResources>,
    pub settings: IndexSettings,
}

pub fn cpu() -> Arc<rayon::ThreadPool> {
    static POOL: std::sync::OnceLock<Arc<rayon::ThreadPool>> = std::sync::OnceLock::new();
    Arc::clone(POOL.get_or_init(|| Arc::new(rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap())))
}

impl Site {
    pub fn new(root: &Path) -> Self {
        Self::on(root, Arc::new(RealFs), true, 64 << 20)
    }

    /// `map_files`: for the kernel's file system only.
    pub fn on(root: &Path, fs: Arc<dyn Vfs>, map_files: bool, budget: u64) -> Self {
        let mapping: Arc<MemoryMapping> = Arc::default();
        let node = NodeResources::new(
            fs,
            map_files,
            Handle::current(),
            cpu(),
            Budget::new(budget),
            Arc::clone(&mapping) as _,
        );
        let settings = IndexSettings {
            refresh_interval_ms: None,
            ..IndexSettings::default()
        };
        Self {
            root: root.to_owned(),
            mapping,
            node,
            settings,
        }
    }

    pub fn index(&self) -> Arc<Index> {
        let shard = Shard {
            number: 0,
            term: 0,
            history: Uuid::from_u128(7),
            created: true,
            primary: None,
            active: None,
            started: false,
            in_sync: BTreeSet::new(),
            copies: vec![Listed {
                allocation: id(1),
                node: NodeId(1),
                broken: None,
            }],
            unassigned_reason: None,
        };
        Arc::new(Index {
            uuid: INDEX,
            name: "books".to_owned(),
            settings: self.settings.clone(),
            settings_version: 1,
            mapping: self.mapping.now(),
            owner: None,
            created_ms: 0,
            shards: vec![shard],
        })
    }

    pub async fn open(&self, allocation: AllocationId, mode: OpenMode) -> Arc<ShardCopy> {
        self.try_open(allocation, mode).await.unwrap()
    }

    pub async fn try_open(
        &self,
        allocation: AllocationId,
        mode: OpenMode,
    ) -> Result<Arc<ShardCopy>, OpenError> {
        let config = ShardConfig {
            node: Arc::clone(&self.node),
            dir: self.root.join(allocation.to_string()),
            index: self.index(),
            shard: 0,
            allocation,
        };
        tokio::task::spawn_blocking(move || ShardCopy::open(config, mode))
            .await
            .unwrap()
    }

    /// A primary that is alone.
    pub async fn primary(&self, allocation: AllocationId, mode: OpenMode, term: u64) -> Arc<ShardCopy> {
        let copy = self.open(allocation, mode).await;
        activate(&copy, term, &[allocation]).await;
        copy
    }
}

pub async fn activate(copy: &Arc<ShardCopy>, term: u64, in_sync: &[AllocationId]) {
    copy.activate(Activation {
        term,
        in_sync: in_sync.iter().copied().collect(),
    })
    .await
    .unwrap();
    copy.admit(term);
}

pub fn id(number: u128) -> AllocationId {
    Uuid::from_u128(number)
}

pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

pub fn op(kind: WriteKind, id: &str, source: &str) -> WriteOp {
    WriteOp {
        kind,
        id: id.into(),
        fresh_id: false,
        routing: None,
        if_seq_no: None,
        if_primary_term: None,
        source: source.to_owned().into(),
    }
}

pub async fn write(copy: &Arc<ShardCopy>, op: WriteOp) -> Result<WriteResult, WriteError> {
    copy.write(vec![op], soon()).await.pop().unwrap()
}

/// The source of a document, as a realtime get answers it.
pub async fn source(copy: &Arc<ShardCopy>, id: &str) -> Option<String> {
    let found = copy.get(id.into(), true, soon()).await.unwrap();
    found.map(|found| String::from_utf8(found.source.to_vec()).unwrap())
}

/// Waits for a condition, with a deadline.
pub async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let end = soon();
    while !check().await {
        assert!(Instant::now() < end, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
