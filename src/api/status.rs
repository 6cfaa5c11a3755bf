//! Parts of the status of both kinds.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Health as OpenSearch defines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Health {
    /// Every copy is started.
    Green,
    /// Every primary is started.
    Yellow,
    /// A primary is missing.
    Red,
    /// No node answers.
    Unknown,
}

impl From<segmentry_settings::admin::Health> for Health {
    fn from(value: segmentry_settings::admin::Health) -> Self {
        match value {
            segmentry_settings::admin::Health::Green => Self::Green,
            segmentry_settings::admin::Health::Yellow => Self::Yellow,
            segmentry_settings::admin::Health::Red => Self::Red,
        }
    }
}

/// Counts of nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct NodeCounts {
    /// Nodes that answer, are members and have opened their copies.
    pub ready: i32,
    /// Nodes declared.
    pub desired: i32,
}

/// Which cluster this object stands for. Written before the cluster is formed; a cluster that was formed and is gone is
/// reported, never formed anew.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Cluster uuid.
    pub cluster_uuid: String,
    /// True once the nodes stated that they form this cluster.
    #[serde(default)]
    pub formed: bool,
    /// Members as last seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<MemberRecord>,
}

/// A member and its volume.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberRecord {
    /// Node name.
    pub name: String,
    /// Random id of its data directory.
    pub node_id: String,
    /// uid of its volume claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_id: Option<String>,
}

/// Primaries on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodePrimaries {
    /// Node name.
    pub node: String,
    /// Primaries active there.
    pub primaries: i32,
}

/// What is waited for on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InProgress {
    /// Node name, or the cluster's name for what concerns all nodes.
    pub node: String,
    /// Step that is under way.
    pub step: String,
    /// What the step waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// Name of the guard that blocks the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
    /// Since when this step is under way on this node.
    pub since: Time,
}

/// One copy of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CopyStatus {
    /// Shard number.
    pub shard: i32,
    /// Node name.
    pub node: String,
    /// `Primary` or `Replica`.
    pub role: Role,
    /// `Started`, `Initializing`, `OutOfSync` or `Unassigned`.
    pub state: String,
    /// Operations that its primary has and its searcher does not show, rounded down to a power of ten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_operations: Option<i64>,
    /// Age in milliseconds of the oldest change not yet visible, rounded down to a power of ten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_milliseconds: Option<i64>,
    /// Why it is not started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Role of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Role {
    /// Accepts writes.
    Primary,
    /// Follows the primary.
    Replica,
}

/// Copies that no node holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnassignedStatus {
    /// Shard number.
    pub shard: i32,
    /// `Primary` or `Replica`.
    pub role: Role,
    /// How many.
    pub copies: i32,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Translog of all copies together.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TranslogStatus {
    /// Operations held.
    pub operations: i64,
    /// Bytes held.
    pub size_bytes: i64,
    /// Operations not yet in a durable commit.
    pub uncommitted_operations: i64,
    /// Their bytes.
    pub uncommitted_size_bytes: i64,
}
