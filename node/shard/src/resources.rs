//! What the copies of a node share.

use crate::{Budget, WriteError};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use segmentry_mapping::Mapping;
use segmentry_state::{AllocationId, Index, IndexUuid};
use segmentry_vfs::Vfs;
use std::{collections::HashMap, path::PathBuf, sync::Arc};
use tokio::runtime::Handle;

/// Share of the machine's memory that writes may hold, as a divisor, and its bounds in bytes.
const BUDGET_DIVISOR: u64 = 10;
const BUDGET: std::ops::RangeInclusive<u64> = (64 << 20)..=(2 << 30);

/// Changes the mapping of an index in the cluster state.
pub trait GrowMapping: Send + Sync + 'static {
    /// Proposes `grown` (its version is one above the version that it grew from) and waits until it is applied on this node. Answers the
    /// mapping in force, which is not `grown` where another change came first: the caller parses again.
    fn grow(
        &self,
        index: IndexUuid,
        grown: Arc<Mapping>,
    ) -> BoxFuture<'static, Result<Arc<Mapping>, WriteError>>;
}

/// Shared by all copies of a node.
pub struct NodeResources {
    /// File system.
    pub fs: Arc<dyn Vfs>,
    /// True where `fs` is the kernel's, so that index files are mapped into memory.
    pub map_files: bool,
    /// Runtime of the copies' tasks.
    pub runtime: Handle,
    /// Parses documents.
    pub cpu: Arc<rayon::ThreadPool>,
    /// Memory of writes.
    pub budget: Arc<Budget>,
    /// Identity of the running kernel, see [`crate::kernel_boot_id`].
    pub kernel_boot_id: String,
    /// Way to the cluster state.
    pub mapper: Arc<dyn GrowMapping>,
    suspicions: Mutex<HashMap<AllocationId, Suspicion>>,
}

impl NodeResources {
    /// Resources of a node with a real file system: a parser thread for each processor, a tenth of the memory for writes.
    pub fn for_machine(fs: Arc<dyn Vfs>, runtime: Handle, mapper: Arc<dyn GrowMapping>) -> Arc<Self> {
        Self::new(
            fs,
            true,
            runtime,
            cpu_pool(),
            Budget::new(default_budget()),
            mapper,
        )
    }

    /// Resources, each given.
    pub fn new(
        fs: Arc<dyn Vfs>,
        map_files: bool,
        runtime: Handle,
        cpu: Arc<rayon::ThreadPool>,
        budget: Arc<Budget>,
        mapper: Arc<dyn GrowMapping>,
    ) -> Arc<Self> {
        Arc::new(Self {
            fs,
            map_files,
            runtime,
            cpu,
            budget,
            kernel_boot_id: crate::kernel_boot_id(),
            mapper,
            suspicions: Mutex::default(),
        })
    }

    pub(crate) fn suspicion(&self, allocation: AllocationId) -> Suspicion {
        self.suspicions
            .lock()
            .get(&allocation)
            .cloned()
            .unwrap_or_default()
    }

    pub(crate) fn suspect(&self, allocation: AllocationId, suspicion: Suspicion) {
        let mut all = self.suspicions.lock();
        if suspicion == Suspicion::default() {
            all.remove(&allocation);
        } else {
            all.insert(allocation, suspicion);
        }
    }
}

/// Which operations may have killed the writer of a copy. First a range: what was handed in since the last commit. When the copy is
/// opened again, that range is committed one by one, and the one that kills the writer again is guilty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Suspicion {
    /// First and last suspect.
    pub range: Option<(u64, u64)>,
    /// Operations that are stored unindexed.
    pub guilty: Vec<u64>,
}

/// How to open a copy.
pub struct ShardConfig {
    /// Shared.
    pub node: Arc<NodeResources>,
    /// Folder of this allocation alone.
    pub dir: PathBuf,
    /// Index, as the cluster state has it.
    pub index: Arc<Index>,
    /// Shard number.
    pub shard: u32,
    /// Incarnation.
    pub allocation: AllocationId,
}

/// A tenth of the machine's memory.
fn default_budget() -> u64 {
    let total = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    (total.unwrap_or(0) * 1024 / BUDGET_DIVISOR).clamp(*BUDGET.start(), *BUDGET.end())
}

fn cpu_pool() -> Arc<rayon::ThreadPool> {
    let build = |threads| {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|n| format!("parse-{n}"))
            .build()
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    match build(threads).or_else(|_| build(1)) {
        Ok(pool) => Arc::new(pool),
        Err(error) => {
            // A machine that has no thread to give cannot run a node.
            tracing::error!(%error, "no thread for parsing can be started");
            std::process::abort();
        }
    }
}
