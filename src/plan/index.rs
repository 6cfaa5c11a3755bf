//! Everything about one Index: who owns what, creation, adoption, dynamic settings, deletion.

mod finalize;
mod observed;

pub use finalize::{FINALIZE_BOUND, Finalize, finalize};
pub use observed::observed_status;

use super::{Note, Plan, Step};
use crate::api::{
    IndexStatus,
    conditions::{self, Truth, Verdict, reason},
    valid::ValidIndex,
};
use segmentry_settings::{
    Durability, ReplicationType,
    admin::{CreateIndex, IndexOverview, Overview, UpdateIndex},
    units,
};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The IndexCluster, as an Index sees it.
#[derive(Debug, Clone)]
pub enum ClusterView {
    /// There is no such object.
    Missing,
    /// It is being deleted, or its namespace is.
    Deleting,
    /// It was never formed (as far as is recorded): it cannot hold an index of ours.
    Forming(String),
    /// It does not answer.
    NotReady(String),
    /// A linearizable read.
    Up(Box<Up>),
}

/// A cluster that answers.
#[derive(Debug, Clone)]
pub struct Up {
    /// What it says.
    pub overview: Overview,
    /// Default replication type.
    pub default_replication: Option<ReplicationType>,
    /// Default durability.
    pub default_durability: Option<Durability>,
    /// Nothing is to be changed.
    pub paused: bool,
}

/// Decides about an Index that is not being deleted.
pub fn plan(index: &ValidIndex, status: &IndexStatus, view: &ClusterView) -> (Plan, Option<IndexOverview>) {
    let mut out = Plan::default();
    let up = match view {
        ClusterView::Missing => {
            return (
                blocked(
                    out,
                    reason::CLUSTER_MISSING,
                    format!(
                        "IndexCluster '{}' does not exist in namespace '{}'; create it, or correct `clusterRef`",
                        index.cluster.name, index.cluster.namespace
                    ),
                ),
                None,
            );
        }
        ClusterView::Deleting => {
            return (
                blocked(
                    out,
                    reason::CLUSTER_MISSING,
                    format!("IndexCluster '{}' is being deleted", index.cluster.name),
                ),
                None,
            );
        }
        ClusterView::Forming(why) | ClusterView::NotReady(why) => {
            return (
                blocked(
                    out,
                    reason::CLUSTER_NOT_READY,
                    format!("waits for IndexCluster '{}': {why}", index.cluster.name),
                ),
                None,
            );
        }
        ClusterView::Up(up) => up,
    };
    let overview = &up.overview;
    let found = match &status.index_uuid {
        Some(uuid) => {
            let same_cluster = status
                .cluster_uuid
                .as_ref()
                .is_none_or(|known| *known == overview.cluster_uuid);
            let living = overview
                .indices
                .iter()
                .find(|candidate| same_cluster && candidate.uuid == *uuid);
            if living.is_none() && index.recreate.as_ref() != Some(uuid) {
                return (
                    blocked(
                        out,
                        reason::INDEX_GONE,
                        format!(
                            "index '{}' with uuid {uuid} was recorded and is gone; it is not created anew by itself. To create an empty one, annotate this object with segmentry.io/recreate={uuid}",
                            index.index_name
                        ),
                    ),
                    None,
                );
            }
            living
        }
        None => None,
    };
    let found = found.or_else(|| {
        overview
            .indices
            .iter()
            .find(|candidate| candidate.name == index.index_name)
    });
    let Some(found) = found else {
        if !up.paused {
            out.steps.push(Step::CreateIndex(Box::new(creation(index, up))));
            let why = if status.index_uuid.is_some() {
                reason::INDEX_RECREATED
            } else {
                reason::INDEX_CREATED
            };
            out.notes.push(Note::normal(
                why,
                "Create",
                format!("index '{}' with {} shards", index.index_name, index.shards),
            ));
        }
        return (
            blocked(out, reason::APPLYING, "the index is being created".to_owned()),
            None,
        );
    };
    match &found.owner {
        Some(owner) if owner.uid != index.uid => {
            return (
                blocked(
                    out,
                    reason::OWNED_BY_OTHER,
                    format!(
                        "index '{}' belongs to Index '{}'; delete one of the two, or choose another `indexName`",
                        found.name, owner.name
                    ),
                ),
                None,
            );
        }
        Some(_) => {}
        None => {
            let differs = shape_differs(index, found);
            if let (Some(what), false) = (&differs, index.adopt) {
                return (
                    blocked(
                        out,
                        reason::NOT_ADOPTED,
                        format!(
                            "index '{}' exists without an owner and differs: {what}. Change the spec, or annotate this object with segmentry.io/adopt-index=true",
                            found.name
                        ),
                    ),
                    None,
                );
            }
            if !up.paused {
                out.steps.push(Step::AdoptIndex {
                    index: found.uuid.clone(),
                    owner: index.owner(),
                });
                out.notes.push(Note::normal(
                    reason::ADOPTED,
                    "Adopt",
                    format!("the existing index '{}' was taken over", found.name),
                ));
            }
        }
    }
    if found.owner.is_some() && !up.paused {
        let changes = changed_settings(index, found);
        if !changes.is_empty() || found.owner.as_ref() != Some(&index.owner()) {
            out.steps.push(Step::UpdateIndex {
                index: found.uuid.clone(),
                update: UpdateIndex {
                    owner: index.owner(),
                    settings: changes,
                },
            });
        }
    }
    observed::verdicts(index, found, &mut out);
    (out, Some(found.clone()))
}

fn blocked(mut out: Plan, why: &'static str, message: String) -> Plan {
    for kind in conditions::INDEX_TYPES {
        out.verdicts.push(if kind == conditions::READY {
            Verdict::new(kind, false, why, message.clone())
        } else {
            Verdict::new(kind, Truth::Unknown, why, "not observed; see condition Ready")
        });
    }
    out
}

fn creation(index: &ValidIndex, up: &Up) -> CreateIndex {
    let mut settings: Map<String, Value> = index
        .settings
        .iter()
        .chain(&index.dynamic)
        .map(|(key, value)| (key.clone(), Value::String(value.clone())))
        .collect();
    settings.insert(
        "index.number_of_shards".to_owned(),
        Value::String(index.shards.to_string()),
    );
    if let Some(kind) = index.replication_type.or(up.default_replication) {
        settings.insert(
            "index.replication.type".to_owned(),
            Value::String(kind.as_str().to_owned()),
        );
    }
    if let (None, Some(durability)) = (index.durability, up.default_durability) {
        settings.insert(
            "index.translog.durability".to_owned(),
            Value::String(durability.as_str().to_owned()),
        );
    }
    CreateIndex {
        name: index.index_name.clone(),
        settings: Value::Object(settings),
        mappings: index
            .mappings
            .clone()
            .unwrap_or_else(|| Value::Object(Map::new())),
        owner: Some(index.owner()),
    }
}

/// Why an ownerless index is not the declared one; none if it is.
fn shape_differs(index: &ValidIndex, found: &IndexOverview) -> Option<String> {
    if index.shards != found.shards {
        return Some(format!(
            "`shards` is {} there and {} here",
            found.shards, index.shards
        ));
    }
    if let Some(kind) = index.replication_type
        && kind != replication_type(found)
    {
        return Some(format!(
            "`replicationType` is {} there",
            replication_type(found).as_str()
        ));
    }
    if let Some(mappings) = &index.mappings
        && !contains(&found.mappings, mappings)
    {
        return Some("`mappings` differ".to_owned());
    }
    None
}

fn replication_type(found: &IndexOverview) -> ReplicationType {
    found
        .settings
        .get("index.replication.type")
        .and_then(|text| ReplicationType::parse(text).ok())
        .unwrap_or_default()
}

/// Everything that is declared is there.
fn contains(there: &Value, declared: &Value) -> bool {
    match (there, declared) {
        (Value::Object(there), Value::Object(declared)) => declared
            .iter()
            .all(|(key, value)| there.get(key).is_some_and(|other| contains(other, value))),
        (there, declared) => {
            there == declared || scalar(there).is_some() && scalar(there) == scalar(declared)
        }
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(value) => Some(value.to_string()),
        _ => None,
    }
}

fn changed_settings(index: &ValidIndex, found: &IndexOverview) -> BTreeMap<String, Option<String>> {
    index
        .dynamic
        .iter()
        .filter(|(key, wanted)| {
            let current = if *key == "index.number_of_replicas" {
                Some(found.replicas.to_string())
            } else {
                found.settings.get(*key).cloned()
            };
            current.is_none_or(|current| !same_value(key, &current, wanted))
        })
        .map(|(key, value)| (key.clone(), Some(value.clone())))
        .collect()
}

/// `1s` and `1000ms` are the same value: a comparison of texts would write for ever.
fn same_value(key: &str, a: &str, b: &str) -> bool {
    if a.eq_ignore_ascii_case(b) {
        return true;
    }
    let time = |text: &str| units::parse_time_ms(key, text).ok();
    let bytes = |text: &str| units::parse_bytes(key, text).ok();
    time(a).is_some() && time(a) == time(b) || bytes(a).is_some() && bytes(a) == bytes(b)
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
