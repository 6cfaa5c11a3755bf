//! The admin API on the node's internal port: JSON over HTTP/1.1, `Authorization: Bearer <cluster token>`.
//!
//! Spoken by the operator and by `segmentry up`. Calls that change something carry [`EPOCH_HEADER`], the caller's lease
//! epoch (a number that grows with each new holder): the cluster state refuses a lower one with `stale_epoch` (409).
//! Calls that know the cluster carry [`CLUSTER_HEADER`]: a node of another cluster answers `foreign_cluster` (409).
//! Errors have OpenSearch's shape `{"error":{"type","reason"},"status"}`.
//!
//! | method and path | request | answer |
//! | --- | --- | --- |
//! | `GET  /_admin/node` | – | [`NodeStatus`]; needs no quorum |
//! | `POST /_admin/initialise` | [`Initialise`] | [`NodeStatus`]; idempotent for the same uuid and members |
//! | `POST /_admin/reset` | [`Reset`] | [`NodeStatus`]; only while the cluster holds no index |
//! | `GET  /_admin/overview` | – | [`Overview`], after a linearizable read; 503 `no_quorum` without one |
//! | `POST /_admin/indices` | [`CreateIndex`] | [`IndexOverview`]; the same owner and name again answers the existing index |
//! | `POST /_admin/indices/{uuid}/settings` | [`UpdateIndex`] | [`IndexOverview`] |
//! | `POST /_admin/indices/{uuid}/adopt` | [`Owner`] | [`IndexOverview`]; 409 `owned_by_other` |
//! | `POST /_admin/indices/{uuid}/release` | `{"uid"}` | `{}`; the index stays, ownerless |
//! | `DELETE /_admin/indices/{uuid}` | – | `{}`; 404 when it is gone already |
//! | `POST /_admin/settings` | flat map key → value or null | `{}`; persistent cluster settings |
//! | `POST /_admin/restart/prepare` | [`PrepareRestart`] | [`RestartRecord`]: flushes all shards, then records the primaries |
//! | `POST /_admin/restart/finish` | [`FinishRestart`] | `{}` |
//! | `POST /_admin/members/replace` | [`ReplaceMember`] | `{}`: the voter of a lost disk makes way for the new one |

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Header with the cluster uuid that the caller means.
pub const CLUSTER_HEADER: &str = "x-segmentry-cluster";
/// Header with the caller's lease epoch (decimal).
pub const EPOCH_HEADER: &str = "x-segmentry-epoch";

/// What one node says of itself, without asking any other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Stable name: the pod's name, or `<cluster>-<ordinal>` under `segmentry up`.
    pub name: String,
    /// Random id of the data directory, 16 hex digits; also the Raft id.
    pub node_id: String,
    /// Random id of this process start.
    pub boot_id: String,
    /// Program version.
    pub version: String,
    /// Data format that this program writes.
    pub format_written: u32,
    /// Data formats that it can read.
    pub formats_readable: Vec<u32>,
    /// The cluster that this node's disk belongs to; none on an empty disk.
    pub cluster_uuid: Option<String>,
    /// True once this node has applied a cluster state with members.
    pub formed: bool,
    /// True while the disk holds neither cluster metadata nor any index.
    pub empty: bool,
    /// Number of index folders on this disk (known to the cluster state or not).
    pub indices_on_disk: u32,
    /// What the runtime said of the volume (PVC uid; directory id under `up`).
    pub disk_id: Option<String>,
    /// Name of the Raft leader as this node knows it.
    pub leader: Option<String>,
    /// True once all copies that the cluster state puts here were opened (or failed with a report).
    pub opened: bool,
    /// Why this node waits, where it does: e.g. `foreign_format`, `waiting_for_initialise`, `no_quorum`.
    pub waiting_for: Option<String>,
}

/// A member at initialisation or replacement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// As in [`NodeStatus::node_id`].
    pub node_id: String,
    /// As in [`NodeStatus::name`].
    pub name: String,
    /// `host:port` of the internal port; a stable DNS name where there is one.
    pub address: String,
    /// As in [`NodeStatus::disk_id`].
    pub disk_id: Option<String>,
}

/// First formation of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Initialise {
    /// Written to the declared object's status before this call.
    pub cluster_uuid: String,
    /// Human name, answered by REST.
    pub cluster_name: String,
    /// All members: one, or an odd number of at least three.
    pub members: Vec<Member>,
}

/// Forgets a recorded but never used formation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    /// Must equal the node's own.
    pub cluster_uuid: String,
}

/// `green`, `yellow`, `red`, as OpenSearch defines them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Every copy is started.
    Green,
    /// Every primary is started.
    Yellow,
    /// A primary is missing.
    Red,
}

/// The whole cluster, as the declared object's status needs it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// Cluster identity.
    pub cluster_uuid: String,
    /// Human name.
    pub cluster_name: String,
    /// Version of the cluster state that this was read at.
    pub state_version: u64,
    /// Worst health of all indices.
    pub health: Health,
    /// Name of the manager leader.
    pub leader: Option<String>,
    /// Members.
    pub nodes: Vec<NodeOverview>,
    /// Indices, by name.
    pub indices: Vec<IndexOverview>,
    /// Persistent cluster settings, flat.
    pub settings: BTreeMap<String, String>,
    /// True when nothing is initialising and every copy that can be placed is in sync.
    pub settled: bool,
    /// Why not, one sentence a shard, at most ten.
    pub unsettled: Vec<String>,
    /// A restart that was prepared and not finished.
    pub restart: Option<RestartRecord>,
    /// Highest operator epoch seen.
    pub epoch: u64,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeOverview {
    /// As in [`NodeStatus::node_id`].
    pub node_id: String,
    /// As in [`NodeStatus::name`].
    pub name: String,
    /// Boot id that the cluster state holds.
    pub boot_id: Option<String>,
    /// Answers the manager's pings.
    pub alive: bool,
    /// Raft voter.
    pub voter: bool,
    /// Version that it joined with.
    pub version: String,
    /// REST `host:port`.
    pub rest_address: String,
    /// Volume identity that it joined with.
    pub disk_id: Option<String>,
    /// Primaries active here.
    pub primaries: u32,
    /// All copies here.
    pub copies: u32,
}

/// Who declared an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// uid of the Index object.
    pub uid: String,
    /// `namespace/name` of the Index object.
    pub name: String,
    /// Full setting keys that the object sets; REST may not change them.
    #[serde(default)]
    pub settings: BTreeSet<String>,
    /// The object sets mappings; REST may still add fields, dynamic mapping too.
    #[serde(default)]
    pub mappings: bool,
}

/// Creation of an index by its declared object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CreateIndex {
    /// Index name.
    pub name: String,
    /// Settings as in OpenSearch's create call.
    #[serde(default)]
    pub settings: serde_json::Value,
    /// Mappings as in OpenSearch's create call.
    #[serde(default)]
    pub mappings: serde_json::Value,
    /// Owner, if declared.
    pub owner: Option<Owner>,
}

/// Change of dynamic settings; null resets to the default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UpdateIndex {
    /// Owner as it is now (its set of owned keys replaces the recorded one).
    pub owner: Owner,
    /// Flat, full keys.
    pub settings: BTreeMap<String, Option<String>>,
}

/// One index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IndexOverview {
    /// Index name.
    pub name: String,
    /// Index uuid.
    pub uuid: String,
    /// Owner recorded in the cluster state.
    pub owner: Option<Owner>,
    /// Worst health of its shards.
    pub health: Health,
    /// Number of primaries.
    pub shards: u32,
    /// Replicas a primary.
    pub replicas: u32,
    /// Explicit settings, flat, full keys.
    pub settings: BTreeMap<String, String>,
    /// Mappings as `_mapping` answers them.
    pub mappings: serde_json::Value,
    /// Live documents on primaries.
    pub documents: u64,
    /// Bytes on disk of all copies.
    pub size_bytes: u64,
    /// Every copy that is assigned or missing.
    pub copies: Vec<CopyOverview>,
}

/// One copy of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyOverview {
    /// Shard number.
    pub shard: u32,
    /// Node name; none while unassigned.
    pub node: Option<String>,
    /// Primary or replica.
    pub primary: bool,
    /// `UNASSIGNED`, `INITIALIZING`, `STARTED`, as OpenSearch prints it.
    pub state: String,
    /// Why it is unassigned or not started, in a sentence.
    pub reason: Option<String>,
    /// In the in-sync set.
    pub in_sync: bool,
    /// What the copy itself reported; none where its node did not answer.
    pub report: Option<CopyReport>,
}

/// What a copy says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyReport {
    /// Live documents in its searcher.
    pub documents: u64,
    /// Bytes of index and translog.
    pub size_bytes: u64,
    /// Last operation in its log; -1 for none.
    pub max_seq_no: i64,
    /// Global checkpoint that it knows.
    pub global_checkpoint: i64,
    /// Operations that its primary has and its searcher does not show.
    pub lag_operations: u64,
    /// Age of the oldest checkpoint not yet visible; 0 when caught up.
    pub lag_millis: u64,
    /// Durability in force on this copy.
    pub durability: crate::Durability,
    /// Replication type in force on this copy.
    pub replication_type: crate::ReplicationType,
    /// Translog operations held.
    pub translog_operations: u64,
    /// Translog bytes held.
    pub translog_size_bytes: u64,
    /// Operations not yet in a durable commit.
    pub uncommitted_operations: u64,
    /// Their bytes.
    pub uncommitted_size_bytes: u64,
}

/// Before a full restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrepareRestart {
    /// Template hash that the restart leads to.
    pub target: String,
}

/// The one-off record of a full restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartRecord {
    /// Template hash.
    pub target: String,
    /// Primaries active at the start: `index uuid/shard` → node name.
    pub primaries: BTreeMap<String, String>,
}

/// After a full restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishRestart {
    /// Must equal the record's.
    pub target: String,
}

/// Replacement of a voter whose disk is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplaceMember {
    /// Raft id that is gone.
    pub lost_node_id: String,
    /// The empty node that takes its name.
    pub member: Member,
}
