//! What one node is told at its start.

use std::{net::SocketAddr, path::PathBuf};

/// Configuration of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// Stable name: the pod's name, or `<cluster>-<ordinal>`.
    pub name: String,
    /// Data directory; made if it does not exist.
    pub data_dir: PathBuf,
    /// Where REST listens.
    pub rest_listen: SocketAddr,
    /// `host:port` of REST that members and clients are told; the bound address where it is not given.
    pub rest_advertise: Option<String>,
    /// Where the internal port listens.
    pub transport_listen: SocketAddr,
    /// `host:port` of the internal port that members are told; the bound address where it is not given.
    pub advertise: Option<String>,
    /// File with the cluster's token.
    pub token_file: PathBuf,
    /// What the runtime says of the volume (PVC uid; directory id).
    pub disk_id: Option<String>,
    /// Name that is answered until the node belongs to a cluster.
    pub cluster_name: String,
    /// Bound of the bodies of writes in flight, bytes; a tenth of the machine's memory where it is not given.
    pub indexing_budget_bytes: Option<u64>,
}

/// Share of the machine's memory that the bodies of writes may take where no bound is given.
const BUDGET_SHARE: u64 = 10;
/// Bound where the memory cannot be told, bytes.
const BUDGET_FALLBACK: u64 = 256 << 20;

impl NodeConfig {
    /// The indexing budget in force, bytes.
    pub fn indexing_budget(&self) -> u64 {
        self.indexing_budget_bytes.unwrap_or_else(|| {
            std::fs::read_to_string("/proc/meminfo")
                .ok()
                .and_then(|text| total_memory(&text))
                .map_or(BUDGET_FALLBACK, |bytes| (bytes / BUDGET_SHARE).max(64 << 20))
        })
    }
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
