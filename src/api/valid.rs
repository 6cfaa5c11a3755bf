//! Specs as types that cannot hold a bad value. The same rules as the CRDs' CEL, for manifests that no API server checked.

use super::{
    Index, IndexCluster,
    index::DeletionPolicy,
    index_cluster::{BalancingMode, NodeSetSpec, ServiceType},
    labels,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use segmentry_settings::{Durability, ReplicationType};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Namespace and name of a declared object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Which rule a spec breaks; the text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSpec(pub String);

fn refuse<T>(text: impl Into<String>) -> Result<T, InvalidSpec> {
    Err(InvalidSpec(text.into()))
}

/// An IndexCluster that obeys every rule.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidCluster {
    /// Identity of the object.
    pub key: Key,
    /// uid of the object.
    pub uid: String,
    /// Generation of the spec.
    pub generation: i64,
    /// Declared image.
    pub image: Option<String>,
    /// The one node set.
    pub set: ValidNodeSet,
    /// Default replication type.
    pub default_replication: Option<ReplicationType>,
    /// Default durability.
    pub default_durability: Option<Durability>,
    /// Balancing of primaries.
    pub balancing: BalancingMode,
    /// Type of the client Service.
    pub service_type: ServiceType,
    /// Annotations of the client Service.
    pub service_annotations: BTreeMap<String, String>,
    /// Nothing is to be changed.
    pub paused: bool,
    /// Cluster uuid that a person decided to take over.
    pub adopt_cluster_uuid: Option<String>,
}

/// A node set that obeys every rule; embedded Kubernetes types are JSON already, so that builders cannot fail.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidNodeSet {
    /// Name.
    pub name: String,
    /// Nodes: 1 or 3.
    pub replicas: u32,
    /// `requests` and `limits`.
    pub resources: Value,
    /// Size of the volume.
    pub storage_size: String,
    /// Storage class of the volume.
    pub storage_class: Option<String>,
    /// Placement.
    pub node_selector: BTreeMap<String, String>,
    /// Placement.
    pub tolerations: Vec<Value>,
    /// Placement.
    pub affinity: Option<Value>,
    /// Placement.
    pub spread: Vec<Value>,
    /// Priority class.
    pub priority_class: Option<String>,
    /// Pull secrets.
    pub pull_secrets: Vec<String>,
    /// More pod labels.
    pub pod_labels: BTreeMap<String, String>,
    /// More pod annotations.
    pub pod_annotations: BTreeMap<String, String>,
}

impl ValidCluster {
    /// Checks every rule.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn new(object: &IndexCluster) -> Result<Self, InvalidSpec> {
        let name = object.name_any();
        if !dns_label(&name) || name.len() > 40 {
            return refuse(
                "`metadata.name` must be a DNS label of at most 40 characters that begins with a letter",
            );
        }
        let spec = &object.spec;
        let [set] = spec.node_sets.as_slice() else {
            return refuse("`nodeSets` must hold exactly one node set in this release");
        };
        if let Some(image) = &spec.image
            && (image.is_empty() || image.len() > 512 || image.chars().any(char::is_whitespace))
        {
            return refuse("`image` must be an image reference without spaces of at most 512 characters");
        }
        let defaults = spec.index_defaults.clone().unwrap_or_default();
        let service = spec.service.clone().unwrap_or_default();
        if service
            .annotations
            .keys()
            .any(|key| key.starts_with("segmentry.io/"))
        {
            return refuse("`service.annotations` must not set keys under segmentry.io/");
        }
        Ok(Self {
            key: Key {
                namespace: object.namespace().unwrap_or_default(),
                name,
            },
            uid: object.uid().unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
            image: spec.image.clone(),
            set: ValidNodeSet::new(set)?,
            default_replication: defaults.replication_type.map(Into::into),
            default_durability: defaults.translog_durability.map(Into::into),
            balancing: spec.primary_balancing.clone().unwrap_or_default().mode,
            service_type: service.kind,
            service_annotations: service.annotations,
            paused: spec.paused,
            adopt_cluster_uuid: object.annotations().get(labels::ADOPT_CLUSTER_UUID).cloned(),
        })
    }

    /// Name of pod `ordinal`.
    pub fn node_name(&self, ordinal: u32) -> String {
        format!("{}-{ordinal}", labels::set_name(&self.key.name, &self.set.name))
    }

    /// Names of all nodes.
    pub fn node_names(&self) -> Vec<String> {
        (0..self.set.replicas)
            .map(|ordinal| self.node_name(ordinal))
            .collect()
    }
}

impl ValidNodeSet {
    fn new(set: &NodeSetSpec) -> Result<Self, InvalidSpec> {
        if !dns_label(&set.name) || set.name.len() > 11 {
            return refuse(
                "`name` of a node set must be a DNS label that begins with a letter, of at most 11 characters",
            );
        }
        let replicas = match set.replicas {
            1 => 1,
            3 => 3,
            _ => return refuse("`replicas` must be 1 or 3 in this release"),
        };
        match quantity_bytes(&set.storage.size) {
            Some(bytes) if bytes >= 64 << 20 => {}
            _ => return refuse("`storage.size` must be a quantity of at least 64Mi, for example 10Gi"),
        }
        if set
            .pod_labels
            .keys()
            .any(|key| key.starts_with("app.kubernetes.io/") || key.starts_with("segmentry.io/"))
        {
            return refuse("`podLabels` must not set keys under app.kubernetes.io/ or segmentry.io/");
        }
        if set
            .pod_annotations
            .keys()
            .any(|key| key.starts_with("segmentry.io/"))
        {
            return refuse("`podAnnotations` must not set keys under segmentry.io/");
        }
        Ok(Self {
            name: set.name.clone(),
            replicas,
            resources: json(&set.resources.clone().unwrap_or_default())?,
            storage_size: set.storage.size.0.clone(),
            storage_class: set.storage.storage_class_name.clone(),
            node_selector: set.node_selector.clone(),
            tolerations: set.tolerations.iter().map(json).collect::<Result<_, _>>()?,
            affinity: set.affinity.as_ref().map(json).transpose()?,
            spread: set
                .topology_spread_constraints
                .iter()
                .map(json)
                .collect::<Result<_, _>>()?,
            priority_class: set.priority_class_name.clone(),
            pull_secrets: set.image_pull_secrets.clone(),
            pod_labels: set.pod_labels.clone(),
            pod_annotations: set.pod_annotations.clone(),
        })
    }
}

fn json(value: &impl serde::Serialize) -> Result<Value, InvalidSpec> {
    serde_json::to_value(value).map_err(|error| InvalidSpec(format!("cannot be written as JSON: {error}")))
}

/// An Index that obeys every rule.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidIndex {
    /// Identity of the object.
    pub key: Key,
    /// uid of the object.
    pub uid: String,
    /// Generation of the spec.
    pub generation: i64,
    /// IndexCluster that holds it.
    pub cluster: Key,
    /// Name of the index.
    pub index_name: String,
    /// Primaries.
    pub shards: u32,
    /// Declared replication type.
    pub replication_type: Option<ReplicationType>,
    /// Declared durability.
    pub durability: Option<Durability>,
    /// Declared replicas.
    pub replicas: Option<u32>,
    /// What the typed fields set, by full key, as OpenSearch writes values. Only dynamic ones.
    pub dynamic: BTreeMap<String, String>,
    /// Create-only settings.
    pub settings: BTreeMap<String, String>,
    /// Create-only mappings.
    pub mappings: Option<Value>,
    /// What becomes of the data.
    pub deletion_policy: DeletionPolicy,
    /// A person allows an ownerless index of another shape to be taken over.
    pub adopt: bool,
    /// uuid of the lost index that a person allows to be created anew.
    pub recreate: Option<String>,
}

/// Keys that typed fields own.
const TYPED: [&str; 7] = [
    "index.number_of_shards",
    "index.number_of_replicas",
    "index.replication.type",
    "index.translog.durability",
    "index.translog.sync_interval",
    "index.translog.flush_threshold_size",
    "index.refresh_interval",
];

impl ValidIndex {
    /// Checks every rule.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn new(object: &Index) -> Result<Self, InvalidSpec> {
        let spec = &object.spec;
        let namespace = object.namespace().unwrap_or_default();
        let index_name = spec.index_name.clone().unwrap_or_else(|| object.name_any());
        let first = index_name.chars().next().unwrap_or('.');
        let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '.' | '-');
        if !(first.is_ascii_lowercase() || first.is_ascii_digit())
            || !index_name.chars().all(valid)
            || index_name.len() > 255
        {
            return refuse(
                "`indexName` must consist of lower case letters, digits, '_', '.' and '-', and begin with a letter or digit",
            );
        }
        if !dns_label(&spec.cluster_ref.name) || spec.cluster_ref.name.len() > 40 {
            return refuse("`clusterRef.name` must be the name of an IndexCluster in this namespace");
        }
        let Ok(shards @ 1..=64) = u32::try_from(spec.shards) else {
            return refuse("`shards` must be between 1 and 64");
        };
        let replicas = match spec.replicas.map(u32::try_from) {
            None => None,
            Some(Ok(replicas @ 0..=2)) => Some(replicas),
            Some(_) => return refuse("`replicas` must be between 0 and 2 in this release"),
        };
        let translog = spec.translog.clone().unwrap_or_default();
        let mut dynamic = BTreeMap::new();
        if let Some(replicas) = replicas {
            dynamic.insert("index.number_of_replicas".to_owned(), replicas.to_string());
        }
        let durability = translog.durability.map(Durability::from);
        if let Some(durability) = durability {
            dynamic.insert(
                "index.translog.durability".to_owned(),
                durability.as_str().to_owned(),
            );
        }
        if let Some(millis) = translog.sync_interval_milliseconds {
            if !(100..=3_600_000).contains(&millis) {
                return refuse("`translog.syncIntervalMilliseconds` must be between 100 and 3600000");
            }
            dynamic.insert("index.translog.sync_interval".to_owned(), format!("{millis}ms"));
        }
        if let Some(size) = &translog.flush_threshold {
            match quantity_bytes(size) {
                Some(bytes) if bytes >= 1 << 20 => {
                    dynamic.insert(
                        "index.translog.flush_threshold_size".to_owned(),
                        format!("{bytes}b"),
                    );
                }
                _ => {
                    return refuse(
                        "`translog.flushThreshold` must be a quantity in whole bytes of at least 1Mi, for example 512Mi",
                    );
                }
            }
        }
        match spec.refresh_interval_milliseconds {
            None => {}
            Some(-1) => {
                dynamic.insert("index.refresh_interval".to_owned(), "-1".to_owned());
            }
            Some(millis @ 100..=86_400_000) => {
                dynamic.insert("index.refresh_interval".to_owned(), format!("{millis}ms"));
            }
            Some(_) => {
                return refuse("`refreshIntervalMilliseconds` must be -1 (off) or between 100 and 86400000");
            }
        }
        if spec.settings.len() > 64 {
            return refuse("`settings` must hold at most 64 keys");
        }
        for key in spec.settings.keys() {
            if !key.starts_with("index.") {
                return refuse("`settings` must use full keys that begin with 'index.'");
            }
            if TYPED.contains(&key.as_str()) {
                return refuse(format!(
                    "`settings` must not hold '{key}', which has a field of its own"
                ));
            }
        }
        if spec
            .mappings
            .as_ref()
            .is_some_and(|mappings| !mappings.is_object())
        {
            return refuse("`mappings` must be an object");
        }
        Ok(Self {
            cluster: Key {
                namespace: namespace.clone(),
                name: spec.cluster_ref.name.clone(),
            },
            key: Key {
                namespace,
                name: object.name_any(),
            },
            uid: object.uid().unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
            index_name,
            shards,
            replication_type: spec.replication_type.map(Into::into),
            durability,
            replicas,
            dynamic,
            settings: spec.settings.clone(),
            mappings: spec.mappings.clone(),
            deletion_policy: spec.deletion_policy,
            adopt: object
                .annotations()
                .get(labels::ADOPT_INDEX)
                .is_some_and(|value| value == "true"),
            recreate: object.annotations().get(labels::RECREATE).cloned(),
        })
    }

    /// Keys that REST may not change.
    pub fn owned_keys(&self) -> BTreeSet<String> {
        let mut keys: BTreeSet<String> = self.dynamic.keys().chain(self.settings.keys()).cloned().collect();
        keys.insert("index.number_of_shards".to_owned());
        if self.replication_type.is_some() {
            keys.insert("index.replication.type".to_owned());
        }
        keys
    }

    /// The owner record of this object.
    pub fn owner(&self) -> segmentry_settings::admin::Owner {
        segmentry_settings::admin::Owner {
            uid: self.uid.clone(),
            name: self.key.to_string(),
            settings: self.owned_keys(),
            mappings: self.mappings.is_some(),
        }
    }
}

fn dns_label(name: &str) -> bool {
    let bytes = name.as_bytes();
    let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
    bytes.first().is_some_and(u8::is_ascii_lowercase)
        && bytes.last().is_some_and(|b| *b != b'-')
        && bytes.iter().all(inner)
}

/// Whole bytes of a quantity; none for what is no quantity, negative, or not whole.
pub fn quantity_bytes(quantity: &Quantity) -> Option<u64> {
    let text = quantity.0.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let factor: u128 = match suffix {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "P" => 1_000_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        other => {
            let exponent: u32 = other.strip_prefix(['e', 'E'])?.parse().ok()?;
            10_u128.checked_pow(exponent)?
        }
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.len() > 18 {
        return None;
    }
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let scaled = digits.checked_mul(factor)?;
    if scaled % scale != 0 {
        return None;
    }
    u64::try_from(scaled / scale).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_does() {
        for (text, bytes) in [
            ("512Mi", Some(512 << 20)),
            ("1.5Gi", Some(3 << 29)),
            ("1e9", Some(1_000_000_000)),
            ("10", Some(10)),
            ("2k", Some(2000)),
            ("100m", None),
            ("0.5", None),
            ("x", None),
            ("", None),
            ("-1Gi", None),
        ] {
            assert_eq!(quantity_bytes(&Quantity(text.to_owned())), bytes, "{text}");
        }
    }

    fn cluster(text: &str) -> Result<ValidCluster, InvalidSpec> {
        let object: IndexCluster = serde_saphyr::from_str(text).unwrap();
        ValidCluster::new(&object)
    }

    #[test]
    fn a_minimal_cluster_is_valid_and_names_its_nodes() {
        let valid = cluster("{apiVersion: segmentry.io/v1alpha1, kind: IndexCluster, metadata: {name: quick, namespace: a}, spec: {nodeSets: [{name: nodes, replicas: 3, storage: {size: 1Gi}}]}}").unwrap();
        assert_eq!(
            valid.node_names(),
            ["quick-nodes-0", "quick-nodes-1", "quick-nodes-2"]
        );
    }

    #[test]
    fn each_broken_rule_of_a_cluster_is_named() {
        for (spec, part) in [
            ("{nodeSets: []}", "nodeSets"),
            (
                "{nodeSets: [{name: nodes, replicas: 2, storage: {size: 1Gi}}]}",
                "replicas",
            ),
            (
                "{nodeSets: [{name: Nodes, replicas: 3, storage: {size: 1Gi}}]}",
                "name",
            ),
            (
                "{nodeSets: [{name: nodes, replicas: 3, storage: {size: 1Mi}}]}",
                "storage.size",
            ),
            (
                "{image: 'a b', nodeSets: [{name: nodes, replicas: 3, storage: {size: 1Gi}}]}",
                "image",
            ),
            (
                "{nodeSets: [{name: nodes, replicas: 3, storage: {size: 1Gi}, podLabels: {app.kubernetes.io/name: x}}]}",
                "podLabels",
            ),
        ] {
            let error = cluster(&format!("{{apiVersion: segmentry.io/v1alpha1, kind: IndexCluster, metadata: {{name: quick}}, spec: {spec}}}")).unwrap_err();
            assert!(error.0.contains(part), "{spec}: {error}");
        }
    }

    #[test]
    fn typed_fields_become_settings_and_free_settings_may_not_shadow_them() {
        let index = |spec: &str| {
            let object: Index = serde_saphyr::from_str(&format!("{{apiVersion: segmentry.io/v1alpha1, kind: Index, metadata: {{name: flights, namespace: a}}, spec: {spec}}}")).unwrap();
            ValidIndex::new(&object)
        };
        let valid = index("{clusterRef: {name: quick}, shards: 3, replicas: 1, translog: {durability: Async, syncIntervalMilliseconds: 500, flushThreshold: 1Gi}, refreshIntervalMilliseconds: -1}").unwrap();
        assert_eq!(valid.dynamic["index.translog.durability"], "async");
        assert_eq!(
            valid.dynamic["index.translog.flush_threshold_size"],
            "1073741824b"
        );
        assert_eq!(valid.dynamic["index.refresh_interval"], "-1");
        assert!(!valid.owned_keys().contains("index.replication.type"));
        let error = index("{clusterRef: {name: quick}, settings: {index.refresh_interval: 1s}}").unwrap_err();
        assert!(error.0.contains("index.refresh_interval"));
        for (spec, part) in [
            ("{clusterRef: {name: quick}, shards: 0}", "shards"),
            ("{clusterRef: {name: quick}, replicas: 3}", "replicas"),
            ("{clusterRef: {name: quick}, indexName: _x}", "indexName"),
            ("{clusterRef: {name: Q}}", "clusterRef"),
        ] {
            assert!(index(spec).unwrap_err().0.contains(part));
        }
    }
}
