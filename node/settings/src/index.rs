//! One index's settings.

use crate::{Durability, ReplicationType};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The settings that this node acts on, with OpenSearch's defaults.
///
/// Times are milliseconds, sizes bytes. `refresh_interval_ms` is `None` for `-1` (no periodic refresh).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexSettings {
    /// `index.number_of_shards`, 1..=1024, fixed at creation.
    pub number_of_shards: u32,
    /// `index.number_of_replicas`, 0..=8, dynamic.
    pub number_of_replicas: u32,
    /// `index.replication.type`, fixed at creation.
    pub replication_type: ReplicationType,
    /// `index.translog.durability`, dynamic.
    pub durability: Durability,
    /// `index.translog.sync_interval`, at least 100 ms, dynamic.
    pub sync_interval_ms: u64,
    /// `index.translog.flush_threshold_size`, dynamic.
    pub flush_threshold_bytes: u64,
    /// `index.translog.generation_threshold_size`, dynamic.
    pub generation_threshold_bytes: u64,
    /// `index.refresh_interval`, dynamic.
    pub refresh_interval_ms: Option<u64>,
    /// `index.max_result_window`, dynamic.
    pub max_result_window: u64,
    /// `index.mapping.total_fields.limit`, dynamic.
    pub total_fields_limit: u64,
    /// What was set explicitly, by full key (`index.…`), as the string that OpenSearch answers. Defaults are not in here.
    pub explicit: BTreeMap<String, String>,
}

impl Default for IndexSettings {
    fn default() -> Self {
        Self {
            number_of_shards: 1,
            number_of_replicas: 1,
            replication_type: ReplicationType::Document,
            durability: Durability::Request,
            sync_interval_ms: 5_000,
            flush_threshold_bytes: 512 << 20,
            generation_threshold_bytes: 64 << 20,
            refresh_interval_ms: Some(1_000),
            max_result_window: 10_000,
            total_fields_limit: 1_000,
            explicit: BTreeMap::new(),
        }
    }
}
