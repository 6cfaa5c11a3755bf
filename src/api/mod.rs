//! The declared objects of group `segmentry.io/v1alpha1`: types, constants, schemas, validation. No I/O.
//!
//! - [`index_cluster`], [`index`]: the two kinds.
//! - [`status`]: parts of both kinds' status.
//! - [`conditions`]: condition types and reasons, and how conditions are merged.
//! - [`labels`]: labels, annotations, finalizers, names of owned objects.
//! - [`valid`]: specs as types that cannot hold a bad value; what the API server checks by CEL is checked here too, because
//!   `segmentry up` reads manifests without an API server.
//! - [`schema`]: the published CRDs.

pub mod conditions;
pub mod index;
pub mod index_cluster;
pub mod labels;
pub mod schema;
pub mod status;
pub mod valid;

pub use index::{Index, IndexSpec, IndexStatus};
pub use index_cluster::{IndexCluster, IndexClusterSpec, IndexClusterStatus};

/// Port of REST on every node.
pub const REST_PORT: u16 = 9200;
/// Internal port of every node: Raft, replication, admin API.
pub const INTERNAL_PORT: u16 = 9300;

/// Replication type as Kubernetes users write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub enum ReplicationType {
    /// Every copy indexes every document.
    Document,
    /// Replicas copy the segment files of the primary.
    Segment,
}

/// Translog durability as Kubernetes users write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub enum Durability {
    /// Synced before the answer.
    Request,
    /// Synced every sync interval.
    Async,
}

impl From<ReplicationType> for segmentry_settings::ReplicationType {
    fn from(value: ReplicationType) -> Self {
        match value {
            ReplicationType::Document => Self::Document,
            ReplicationType::Segment => Self::Segment,
        }
    }
}

impl From<segmentry_settings::ReplicationType> for ReplicationType {
    fn from(value: segmentry_settings::ReplicationType) -> Self {
        match value {
            segmentry_settings::ReplicationType::Document => Self::Document,
            segmentry_settings::ReplicationType::Segment => Self::Segment,
        }
    }
}

impl From<Durability> for segmentry_settings::Durability {
    fn from(value: Durability) -> Self {
        match value {
            Durability::Request => Self::Request,
            Durability::Async => Self::Async,
        }
    }
}

impl From<segmentry_settings::Durability> for Durability {
    fn from(value: segmentry_settings::Durability) -> Self {
        match value {
            segmentry_settings::Durability::Request => Self::Request,
            segmentry_settings::Durability::Async => Self::Async,
        }
    }
}
