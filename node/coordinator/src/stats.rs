//! Numbers of copies, as they travel and as they are summed.

use segmentry_settings::admin::CopyReport;
use segmentry_state::{AllocationId, NodeId, ShardId};
use serde::{Deserialize, Serialize};

/// What one copy measured since it was opened. Times are milliseconds, sizes bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyStats {
    /// Shard.
    pub shard: ShardId,
    /// Incarnation.
    pub allocation: AllocationId,
    /// Where it is.
    pub node: NodeId,
    /// It is the primary of its term, as the copy itself knows.
    pub primary: bool,
    /// As the admin API answers it.
    pub report: CopyReport,
    /// Deleted documents that segments still hold.
    pub deleted: u64,
    /// Bytes of the index alone.
    pub store_bytes: u64,
    /// Segments of the searcher.
    pub segments: Vec<SegmentStats>,
    /// Age of the oldest translog generation's last change.
    pub translog_earliest_age_ms: u64,
    /// Operations applied and the work of refreshes, flushes.
    pub counters: Counters,
}

/// What is counted on a copy since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Documents put.
    pub index_total: u64,
    /// Documents removed.
    pub delete_total: u64,
    /// Writes refused.
    pub index_failed: u64,
    /// Refreshes that changed the searcher.
    pub refresh_total: u64,
    /// Time in them.
    pub refresh_time_ms: u64,
    /// Durable commits.
    pub flush_total: u64,
    /// Time in them.
    pub flush_time_ms: u64,
    /// Searches.
    pub query_total: u64,
    /// Time in them.
    pub query_time_ms: u64,
}

impl Counters {
    /// Adds another copy's.
    pub fn add(&mut self, other: &Self) {
        let Self {
            index_total,
            delete_total,
            index_failed,
            refresh_total,
            refresh_time_ms,
            flush_total,
            flush_time_ms,
            query_total,
            query_time_ms,
        } = other;
        self.index_total += index_total;
        self.delete_total += delete_total;
        self.index_failed += index_failed;
        self.refresh_total += refresh_total;
        self.refresh_time_ms += refresh_time_ms;
        self.flush_total += flush_total;
        self.flush_time_ms += flush_time_ms;
        self.query_total += query_total;
        self.query_time_ms += query_time_ms;
    }
}

/// One segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentStats {
    /// Name.
    pub name: String,
    /// Live documents.
    pub documents: u64,
    /// Deleted documents.
    pub deleted: u64,
    /// Bytes of its files.
    pub size_bytes: u64,
    /// A durable commit names it.
    pub committed: bool,
    /// The searcher reads it.
    pub searchable: bool,
}
