//! Kind IndexCluster (ixc): a cluster of storage nodes.

use super::{
    Durability, ReplicationType,
    status::{Health, Identity, InProgress, NodeCounts, NodePrimaries},
};
use k8s_openapi::{
    api::core::v1::{Affinity, Toleration, TopologySpreadConstraint},
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{Condition, Time},
    },
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is declared.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[kube(
    group = "segmentry.io",
    version = "v1alpha1",
    kind = "IndexCluster",
    plural = "indexclusters",
    shortname = "ixc",
    category = "segmentry",
    namespaced,
    status = "IndexClusterStatus",
    derive = "PartialEq",
    doc = "A cluster of storage nodes that speak the OpenSearch REST API.",
    validation = Rule::new("size(self.metadata.name) <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("`metadata.name` must be a DNS label of at most 40 characters that begins with a letter: names of pods, Services and volumes are made from it; choose another name"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Health", type_ = "string", json_path = ".status.health"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes.ready"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.nodes.desired"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Upgrading", type_ = "string", json_path = ".status.conditions[?(@.type==\"Upgrading\")].status", priority = 1),
    printcolumn(name = "Balanced", type_ = "string", json_path = ".status.conditions[?(@.type==\"PrimariesBalanced\")].status", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct IndexClusterSpec {
    /// Container image of the nodes. Unset: a new cluster gets the operator's own image, a running one keeps what it has, so that
    /// an upgrade of the operator restarts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("size(self) >= 1 && size(self) <= 512 && !self.matches('[[:space:]]')").message("`image` must be an image reference without spaces of at most 512 characters; remove the field to keep the running image"))]
    pub image: Option<String>,
    /// Groups of equal nodes.
    #[schemars(length(min = 1, max = 2))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    #[x_kube(validation = Rule::new("self.all(set, oldSelf.exists(old, old.name == set.name))").message("`name` of a node set must not change: pods and volumes carry it; restore the old name"))]
    #[x_kube(validation = Rule::new("size(self) == 1").message("`nodeSets` must hold exactly one node set in this release (a later release lifts this); merge them into one"))]
    pub node_sets: Vec<NodeSetSpec>,
    /// Defaults for indices that are created later by an Index object; existing indices keep theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index_defaults: Option<IndexDefaults>,
    /// How primaries are spread over the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary_balancing: Option<PrimaryBalancing>,
    /// The Service for clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceSpec>,
    /// True: nothing is changed any more, status is still reported, deletion still works.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

/// A group of equal nodes.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.replicas == oldSelf.replicas").message("`replicas` must not change in this release (a later release lifts this); create a second IndexCluster and load it anew"))]
#[x_kube(validation = Rule::new("self.storage.size == oldSelf.storage.size || quantity(string(self.storage.size)).compareTo(quantity(string(oldSelf.storage.size))) == 0").message("`storage.size` must not change in this release (a later release lifts this); restore the old value"))]
#[x_kube(validation = Rule::new("has(self.storage.storageClassName) == has(oldSelf.storage.storageClassName) && (!has(self.storage.storageClassName) || self.storage.storageClassName == oldSelf.storage.storageClassName)").message("`storage.storageClassName` must not change in this release (a later release lifts this); restore the old value"))]
pub struct NodeSetSpec {
    /// Name, part of the pods' names.
    #[schemars(length(max = 11))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("`name` of a node set must be a DNS label that begins with a letter, of at most 11 characters"))]
    pub name: String,
    /// Number of nodes.
    #[x_kube(validation = Rule::new("self == 1 || self == 3").message("`replicas` must be 1 or 3 in this release (a later release lifts this)"))]
    pub replicas: i32,
    /// CPU and memory of a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Volume of a node.
    pub storage: Storage,
    /// Labels that a Kubernetes node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that are tolerated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// Affinity; replaces the preferred spread over hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Spread over topology domains; a constraint without a selector counts this cluster's pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Priority class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Names of Secrets for the image registry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<String>,
    /// More labels of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = Rule::new("self.all(key, !key.startsWith('app.kubernetes.io/') && !key.startsWith('segmentry.io/'))").message("`podLabels` must not set keys under app.kubernetes.io/ or segmentry.io/: the operator selects pods by them; choose another key"))]
    pub pod_labels: BTreeMap<String, String>,
    /// More annotations of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = Rule::new("self.all(key, !key.startsWith('segmentry.io/'))").message("`podAnnotations` must not set keys under segmentry.io/; choose another key"))]
    pub pod_annotations: BTreeMap<String, String>,
}

/// CPU and memory.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Default, JsonSchema)]
pub struct Resources {
    /// What is reserved.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
    /// What is not exceeded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Quantity>,
}

/// Volume of a node.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Size, e.g. `10Gi`.
    #[x_kube(validation = Rule::new("isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('64Mi')) >= 0").message("`storage.size` must be a quantity of at least 64Mi, for example 10Gi"))]
    pub size: Quantity,
    /// Storage class. Unset: the default class of the Kubernetes cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
}

/// Defaults for new indices.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IndexDefaults {
    /// Replication type of indices that do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication_type: Option<ReplicationType>,
    /// Translog durability of indices that do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translog_durability: Option<Durability>,
}

/// How primaries are spread.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Default, JsonSchema)]
pub struct PrimaryBalancing {
    /// `OnAllocation` spreads them when shards are allocated, `Off` does not regard them.
    #[serde(default)]
    pub mode: BalancingMode,
}

/// Modes of balancing. A later release adds one that moves primaries of running indices.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default, JsonSchema)]
pub enum BalancingMode {
    /// When shards are allocated.
    #[default]
    OnAllocation,
    /// Never.
    Off,
}

/// The Service for clients.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
pub struct ServiceSpec {
    /// Type of the Service.
    #[serde(default, rename = "type")]
    pub kind: ServiceType,
    /// Annotations of the Service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = Rule::new("self.all(key, !key.startsWith('segmentry.io/'))").message("`service.annotations` must not set keys under segmentry.io/; choose another key"))]
    pub annotations: BTreeMap<String, String>,
}

/// Types of Services.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default, JsonSchema)]
pub enum ServiceType {
    /// Inside the Kubernetes cluster only. REST has no users yet: keep it so where others share the network.
    #[default]
    ClusterIP,
    /// A port of every Kubernetes node.
    NodePort,
    /// A load balancer of the cloud.
    LoadBalancer,
}

impl ServiceType {
    /// As in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIP => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

/// What is observed.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct IndexClusterStatus {
    /// Generation that this was observed for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions Ready, Available, Progressing, Degraded, Upgrading, Paused, PrimariesBalanced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_string()]))]
    pub conditions: Vec<Condition>,
    /// Worst health of all indices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// Nodes ready and desired.
    #[serde(default)]
    pub nodes: NodeCounts,
    /// Lowest program version of the members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// URL of REST inside the Kubernetes cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Image that the pods are made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Which cluster this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// Primaries on each node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["node".to_string()]))]
    pub primaries_by_node: Vec<NodePrimaries>,
    /// What is under way, by node, and what it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["node".to_string(), "step".to_string()]))]
    pub in_progress: Vec<InProgress>,
    /// When counters were written last; they move at most once a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters_time: Option<Time>,
}
