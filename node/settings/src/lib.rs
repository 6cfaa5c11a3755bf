//! Settings of indices and clusters: names, values, bounds, and the texts of their refusals.
//!
//! Shared by the storage node and by the operator's CRD types, so that both mean the same by a word. No I/O.
//!
//! - [`index`]: one index's settings, parsed from OpenSearch's JSON (flat, nested, with or without `index.`).
//! - [`cluster`]: persistent cluster settings.
//! - [`units`]: time and byte values as OpenSearch writes them (`5s`, `512mb`, `-1`).
//! - [`admin`]: the JSON shapes of the node's admin API, which the operator and `segmentry up` speak.

pub mod admin;
pub mod index;

use serde::{Deserialize, Serialize};

/// How the copies of a shard follow their primary (`index.replication.type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "UPPERCASE")]
pub enum ReplicationType {
    /// Each copy logs and indexes every operation itself.
    #[default]
    Document,
    /// Replicas log operations and copy the primary's segment files.
    Segment,
}

/// When an operation counts as safe on a copy (`index.translog.durability`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Synced to stable storage before the answer.
    #[default]
    Request,
    /// Handed to the kernel before the answer, synced every `sync_interval`.
    Async,
}

/// A setting that was refused; the text is what a client reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingError(pub String);
