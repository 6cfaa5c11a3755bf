//! Changes that an API server would refuse: the transition rules of the CRDs, for a file.
//!
//! The rules are CEL in the schema (`oldSelf`), their messages are read from there, so that both doors say the same.

use crate::api::{Index, IndexCluster, index_cluster::NodeSetSpec, valid::quantity_bytes};
use kube::CustomResourceExt as _;
use serde_json::Value;

/// A part of the rule's text that names it, and whether a change breaks it.
type Rule<T> = (&'static str, fn(&T, &T) -> bool);

const CLUSTER: [Rule<IndexCluster>; 4] = [
    ("oldSelf.exists(old, old.name == set.name)", |old, new| {
        old.spec
            .node_sets
            .iter()
            .any(|set| !new.spec.node_sets.iter().any(|other| other.name == set.name))
    }),
    ("self.replicas == oldSelf.replicas", |old, new| {
        any_set(old, new, |a, b| a.replicas != b.replicas)
    }),
    ("self.storage.size == oldSelf.storage.size", |old, new| {
        any_set(old, new, |a, b| {
            let (a, b) = (&a.storage.size, &b.storage.size);
            a != b && (quantity_bytes(a).is_none() || quantity_bytes(a) != quantity_bytes(b))
        })
    }),
    ("has(self.storage.storageClassName)", |old, new| {
        any_set(old, new, |a, b| {
            a.storage.storage_class_name != b.storage.storage_class_name
        })
    }),
];

const INDEX: [Rule<Index>; 6] = [
    ("self.indexName == oldSelf.indexName", |old, new| {
        old.spec.index_name != new.spec.index_name
    }),
    ("self.shards == oldSelf.shards", |old, new| {
        old.spec.shards != new.spec.shards
    }),
    ("self.replicationType == oldSelf.replicationType", |old, new| {
        old.spec.replication_type != new.spec.replication_type
    }),
    ("self.mappings == oldSelf.mappings", |old, new| {
        old.spec.mappings != new.spec.mappings
    }),
    ("self.settings == oldSelf.settings", |old, new| {
        old.spec.settings != new.spec.settings
    }),
    ("self.name == oldSelf.name", |old, new| {
        old.spec.cluster_ref != new.spec.cluster_ref
    }),
];

fn any_set(old: &IndexCluster, new: &IndexCluster, differ: fn(&NodeSetSpec, &NodeSetSpec) -> bool) -> bool {
    let sets = &new.spec.node_sets;
    old.spec
        .node_sets
        .iter()
        .any(|a| sets.iter().any(|b| a.name == b.name && differ(a, b)))
}

/// Messages of the rules that this change of an IndexCluster breaks.
pub fn cluster(old: &IndexCluster, new: &IndexCluster) -> Vec<String> {
    broken(
        &CLUSTER,
        &rules(&serde_json::json!(IndexCluster::crd())),
        old,
        new,
    )
}

/// Messages of the rules that this change of an Index breaks.
pub fn index(old: &Index, new: &Index) -> Vec<String> {
    broken(&INDEX, &rules(&serde_json::json!(Index::crd())), old, new)
}

fn broken<T>(table: &[Rule<T>], published: &[(String, String)], old: &T, new: &T) -> Vec<String> {
    let broken = table.iter().filter(|(_, breaks)| breaks(old, new));
    broken
        .map(|(part, _)| {
            let found = published.iter().find(|(rule, _)| rule.contains(part));
            found.map_or_else(|| format!("must obey {part}"), |(_, message)| message.clone())
        })
        .collect()
}

/// Rule and message of every transition rule below `value`.
fn rules(value: &Value) -> Vec<(String, String)> {
    match value {
        Value::Array(items) => items.iter().flat_map(rules).collect(),
        Value::Object(map) => {
            let text = |rule: &Value, key: &str| rule[key].as_str().unwrap_or_default().to_owned();
            let own = map
                .get("x-kubernetes-validations")
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            let mut found: Vec<(String, String)> = own
                .map(|rule| (text(rule, "rule"), text(rule, "message")))
                .filter(|(rule, _)| rule.contains("oldSelf"))
                .collect();
            found.extend(map.values().flat_map(rules));
            found
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;

    #[test]
    fn every_transition_rule_of_the_schema_is_kept_here_once() {
        let parts: [(Vec<&str>, Value); 2] = [
            (
                CLUSTER.iter().map(|rule| rule.0).collect(),
                serde_json::json!(IndexCluster::crd()),
            ),
            (
                INDEX.iter().map(|rule| rule.0).collect(),
                serde_json::json!(Index::crd()),
            ),
        ];
        for (parts, crd) in parts {
            let published = rules(&crd);
            assert_eq!(published.len(), parts.len(), "{published:#?}");
            for (rule, _) in &published {
                let here = parts.iter().filter(|part| rule.contains(**part)).count();
                assert_eq!(here, 1, "{rule}");
            }
        }
    }

    #[test]
    fn a_change_of_shards_is_refused_in_the_words_of_the_schema() {
        let text = "{apiVersion: segmentry.io/v1alpha1, kind: Index, metadata: {name: i}, spec: {clusterRef: {name: c}, shards: 3}}";
        let old: Index = serde_saphyr::from_str(text).unwrap();
        let new: Index = serde_saphyr::from_str(&text.replace("shards: 3", "shards: 4")).unwrap();
        assert!(index(&old, &old).is_empty());
        let messages = index(&old, &new);
        assert_eq!(messages.len(), 1);
        assert!(
            messages[0].starts_with("`shards` must not change"),
            "{messages:?}"
        );
    }

    #[test]
    fn a_size_in_other_words_is_no_change() {
        let text = "{apiVersion: segmentry.io/v1alpha1, kind: IndexCluster, metadata: {name: c}, spec: {nodeSets: [{name: s, replicas: 3, storage: {size: 1Gi}}]}}";
        let old: IndexCluster = serde_saphyr::from_str(text).unwrap();
        let with =
            |size: &str| -> IndexCluster { serde_saphyr::from_str(&text.replace("1Gi", size)).unwrap() };
        assert!(cluster(&old, &with("1024Mi")).is_empty());
        assert_eq!(cluster(&old, &with("2Gi")).len(), 1);
    }
}
