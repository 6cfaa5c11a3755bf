//! Kind Index (ix): an index in an IndexCluster.

use super::{
    Durability, ReplicationType,
    status::{CopyStatus, Health, TranslogStatus, UnassignedStatus},
};
use k8s_openapi::apimachinery::pkg::{
    api::resource::Quantity,
    apis::meta::v1::{Condition, Time},
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is declared. Fields that are set are owned by this object: REST may not change them. Unset fields belong to REST.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[kube(
    group = "segmentry.io",
    version = "v1alpha1",
    kind = "Index",
    plural = "indices",
    shortname = "ix",
    category = "segmentry",
    namespaced,
    status = "IndexStatus",
    derive = "PartialEq",
    doc = "An index in an IndexCluster of the same namespace.",
    validation = Rule::new("has(self.spec.indexName) || self.metadata.name.matches('^[a-z0-9][a-z0-9_.-]*$')").message("`metadata.name` is no valid index name: set `spec.indexName`"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterRef.name"),
    printcolumn(name = "Health", type_ = "string", json_path = ".status.health"),
    printcolumn(name = "Docs", type_ = "integer", json_path = ".status.documents"),
    printcolumn(name = "Replication", type_ = "string", json_path = ".status.replicationType"),
    printcolumn(name = "Durability", type_ = "string", json_path = ".status.durability"),
    printcolumn(name = "Balanced", type_ = "string", json_path = ".status.conditions[?(@.type==\"PrimariesBalanced\")].status", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("has(self.indexName) == has(oldSelf.indexName) && (!has(self.indexName) || self.indexName == oldSelf.indexName)").message("`indexName` must not change: create another Index"))]
#[x_kube(validation = Rule::new("self.shards == oldSelf.shards").message("`shards` must not change: create another Index with the wanted number and load it anew"))]
#[x_kube(validation = Rule::new("has(self.replicationType) == has(oldSelf.replicationType) && (!has(self.replicationType) || self.replicationType == oldSelf.replicationType)").message("`replicationType` must not change in this release (a later release lifts this); create another Index and load it anew"))]
#[x_kube(validation = Rule::new("has(self.mappings) == has(oldSelf.mappings) && (!has(self.mappings) || self.mappings == oldSelf.mappings)").message("`mappings` must not change in this release (a later release lifts this); add fields over REST with PUT /<index>/_mapping"))]
#[x_kube(validation = Rule::new("has(self.settings) == has(oldSelf.settings) && (!has(self.settings) || self.settings == oldSelf.settings)").message("`settings` must not change in this release (a later release lifts this); use the typed fields, or create another Index"))]
#[serde(rename_all = "camelCase")]
pub struct IndexSpec {
    /// The IndexCluster, in the same namespace.
    #[x_kube(validation = Rule::new("self.name == oldSelf.name").message("`clusterRef` must not change: create another Index"))]
    pub cluster_ref: ClusterRef,
    /// Name of the index. Unset: the name of this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9][a-z0-9_.-]*$')").message("`indexName` must consist of lower case letters, digits, '_', '.' and '-', and begin with a letter or digit"))]
    pub index_name: Option<String>,
    /// Number of primaries.
    #[serde(default = "one")]
    #[x_kube(validation = Rule::new("self >= 1 && self <= 64").message("`shards` must be between 1 and 64"))]
    pub shards: i32,
    /// Copies beside each primary. Unset: 1 at creation, then REST decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 2").message("`replicas` must be between 0 and 2 in this release (a later release lifts this): a cluster has at most 3 nodes and no node holds two copies of a shard"))]
    pub replicas: Option<i32>,
    /// How replicas follow the primary. Unset: the cluster's default at creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication_type: Option<ReplicationType>,
    /// The write-ahead log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translog: Option<TranslogSpec>,
    /// Interval between refreshes in milliseconds; -1 switches them off. Unset: REST decides, 1000 at creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == -1 || (self >= 100 && self <= 86400000)").message("`refreshIntervalMilliseconds` must be -1 (off) or between 100 and 86400000"))]
    pub refresh_interval_milliseconds: Option<i64>,
    /// Mappings as in OpenSearch's create call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::schema::opaque_object")]
    pub mappings: Option<serde_json::Value>,
    /// Other index settings by their full key, e.g. `index.max_result_window`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "super::schema::settings_map")]
    #[x_kube(validation = Rule::new("self.all(key, key.startsWith('index.'))").message("`settings` must use full keys that begin with 'index.'"))]
    #[x_kube(validation = Rule::new("self.all(key, !(key in ['index.number_of_shards', 'index.number_of_replicas', 'index.replication.type', 'index.translog.durability', 'index.translog.sync_interval', 'index.translog.flush_threshold_size', 'index.refresh_interval']))").message("`settings` must not hold keys that have a field of their own: use `shards`, `replicas`, `replicationType`, `translog` and `refreshIntervalMilliseconds`"))]
    pub settings: BTreeMap<String, String>,
    /// What becomes of the data when this object is deleted: `Retain` keeps the index, without an owner; `Delete` deletes it.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

const fn one() -> i32 {
    1
}

/// Reference to an IndexCluster.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
pub struct ClusterRef {
    /// Its name.
    #[schemars(length(max = 40))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("`clusterRef.name` must be the name of an IndexCluster in this namespace"))]
    pub name: String,
}

/// The write-ahead log.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct TranslogSpec {
    /// `Request` syncs before the answer, `Async` every sync interval. Unset: the cluster's default at creation, then REST decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// Interval between syncs of `Async`, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 100 && self <= 3600000").message("`translog.syncIntervalMilliseconds` must be between 100 and 3600000"))]
    pub sync_interval_milliseconds: Option<i64>,
    /// Size of the log at which a flush is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("isQuantity(string(self)) && quantity(string(self)).isInteger() && quantity(string(self)).compareTo(quantity('1Mi')) >= 0").message("`translog.flushThreshold` must be a quantity in whole bytes of at least 1Mi, for example 512Mi"))]
    pub flush_threshold: Option<Quantity>,
}

/// What becomes of the data.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default, JsonSchema)]
pub enum DeletionPolicy {
    /// The index stays.
    #[default]
    Retain,
    /// The index goes.
    Delete,
}

/// What is observed.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct IndexStatus {
    /// Generation that this was observed for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions Ready, DurabilityApplied, ReplicationApplied, PrimariesBalanced, TranslogHealthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_string()]))]
    pub conditions: Vec<Condition>,
    /// Worst health of its shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// uuid of the index that was created or adopted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index_uuid: Option<String>,
    /// uuid of the cluster that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_uuid: Option<String>,
    /// Live documents on primaries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<i64>,
    /// Bytes on disk of all copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<i64>,
    /// Replication type that every copy reports; unset while they differ or none answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication_type: Option<ReplicationType>,
    /// Durability that every copy reports; unset while they differ or none answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// Number of copies on nodes, also of those beyond the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies_total: Option<i32>,
    /// Copies, unhealthy ones first, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["shard".to_string(), "node".to_string()]))]
    pub copies: Vec<CopyStatus>,
    /// Copies that no node holds, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["shard".to_string(), "role".to_string()]))]
    pub unassigned: Vec<UnassignedStatus>,
    /// Translog of all copies together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translog: Option<TranslogStatus>,
    /// When counters were written last; they move at most once a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters_time: Option<Time>,
}
