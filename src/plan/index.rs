//! Everything about one Index: who owns what, creation, adoption, dynamic settings, deletion.

use super::{Note, Plan, Step};
use crate::api::{
    Index, IndexStatus,
    conditions::{self, Truth, Verdict, reason},
    index::DeletionPolicy,
    status::{CopyStatus, Role, TranslogStatus, UnassignedStatus},
    valid::ValidIndex,
};
use kube::ResourceExt;
use segmentry_settings::{
    Durability, ReplicationType,
    admin::{self, CopyOverview, CreateIndex, IndexOverview, Overview, UpdateIndex},
    units,
};
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Uncommitted bytes of one copy that need attention.
const UNCOMMITTED_BYTES: u64 = 1 << 30;
/// Copies that status lists.
const LISTED: usize = 100;
/// How long a deletion waits for a cluster that does not answer.
pub const FINALIZE_BOUND: Duration = Duration::from_secs(600);

/// The IndexCluster, as an Index sees it.
#[derive(Debug, Clone)]
pub enum ClusterView {
    /// There is no such object.
    Missing,
    /// It is being deleted, or its namespace is.
    Deleting,
    /// It is not formed, or does not answer.
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
        ClusterView::NotReady(why) => {
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
    verdicts(index, found, &mut out);
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

fn verdicts(index: &ValidIndex, found: &IndexOverview, out: &mut Plan) {
    let reports: Vec<&admin::CopyReport> = found
        .copies
        .iter()
        .filter_map(|copy| copy.report.as_ref())
        .collect();
    let assigned = found.copies.iter().filter(|copy| copy.node.is_some()).count();
    let wanted_copies =
        usize::try_from(u64::from(found.shards) * (1 + u64::from(found.replicas))).unwrap_or(usize::MAX);
    let in_sync = found
        .copies
        .iter()
        .filter(|copy| copy.in_sync && copy.state == "STARTED")
        .count();

    if index.shards != found.shards {
        let text = format!(
            "the index has {} shards and `shards` says {}; this never changes: create another Index",
            found.shards, index.shards
        );
        out.verdicts.push(Verdict::new(
            conditions::READY,
            false,
            reason::IMMUTABLE_DIFFERS,
            text,
        ));
    } else if let Some(kind) = index
        .replication_type
        .filter(|kind| *kind != replication_type(found))
    {
        let text = format!(
            "the index replicates by {} and `replicationType` says {}; this does not change in this release: create another Index",
            replication_type(found).as_str(),
            kind.as_str()
        );
        out.verdicts.push(Verdict::new(
            conditions::READY,
            false,
            reason::IMMUTABLE_DIFFERS,
            text,
        ));
    } else if found.health == admin::Health::Red || in_sync < wanted_copies {
        let why: BTreeSet<String> = found
            .copies
            .iter()
            .filter(|copy| copy.state != "STARTED" || !copy.in_sync)
            .take(5)
            .map(|copy| {
                format!(
                    "shard {} {}: {}",
                    copy.shard,
                    if copy.primary { "primary" } else { "replica" },
                    copy.reason.as_deref().unwrap_or(&copy.state)
                )
            })
            .collect();
        let text = format!(
            "{in_sync} of {wanted_copies} copies are in sync; {}",
            why.into_iter().collect::<Vec<_>>().join("; ")
        );
        out.verdicts.push(Verdict::new(
            conditions::READY,
            false,
            reason::SHARDS_NOT_STARTED,
            text,
        ));
    } else {
        out.verdicts.push(Verdict::new(
            conditions::READY,
            true,
            reason::AS_DECLARED,
            format!("{in_sync} of {wanted_copies} copies are in sync"),
        ));
    }

    let wanted = index
        .durability
        .or_else(|| {
            found
                .settings
                .get("index.translog.durability")
                .and_then(|text| Durability::parse("", text).ok())
        })
        .unwrap_or_default();
    let applied = reports
        .iter()
        .filter(|report| report.durability == wanted)
        .count();
    out.verdicts.push(Verdict::new(
        conditions::DURABILITY_APPLIED,
        applied == assigned && assigned > 0,
        if applied == assigned && assigned > 0 {
            reason::AS_DECLARED
        } else {
            reason::APPLYING
        },
        format!(
            "{applied} of {assigned} copies report durability {}",
            wanted.as_str()
        ),
    ));
    let kind = index.replication_type.unwrap_or_else(|| replication_type(found));
    let applied = reports
        .iter()
        .filter(|report| report.replication_type == kind)
        .count();
    out.verdicts.push(Verdict::new(
        conditions::REPLICATION_APPLIED,
        applied == wanted_copies && in_sync == wanted_copies,
        if applied == wanted_copies && in_sync == wanted_copies {
            reason::AS_DECLARED
        } else {
            reason::APPLYING
        },
        format!(
            "{applied} of {wanted_copies} copies report replication type {}, {in_sync} are in sync",
            kind.as_str()
        ),
    ));
    out.verdicts.push(balance(found));
    let worst = reports.iter().map(|report| report.uncommitted_size_bytes).max();
    out.verdicts.push(match worst {
        None => Verdict::new(conditions::TRANSLOG_HEALTHY, Truth::Unknown, reason::UNKNOWN, "no copy reports"),
        Some(bytes) if bytes > UNCOMMITTED_BYTES => {
            let text = format!("a copy holds more than 1 GiB of uncommitted operations ({} MiB): its recovery takes minutes; lower `translog.flushThreshold`", bytes >> 20);
            out.notes.push(Note::warning(reason::UNCOMMITTED_HIGH, "Observe", "a copy holds more than 1 GiB of uncommitted operations; lower `translog.flushThreshold`"));
            Verdict::new(conditions::TRANSLOG_HEALTHY, false, reason::UNCOMMITTED_HIGH, text)
        }
        Some(_) => Verdict::new(conditions::TRANSLOG_HEALTHY, true, reason::AS_DECLARED, "uncommitted operations are below 1 GiB on every copy"),
    });
}

fn balance(found: &IndexOverview) -> Verdict {
    let mut counts: BTreeMap<&str, u32> = found
        .copies
        .iter()
        .filter_map(|copy| copy.node.as_deref())
        .map(|node| (node, 0))
        .collect();
    for copy in found.copies.iter().filter(|copy| copy.primary) {
        if let Some(count) = copy.node.as_deref().and_then(|node| counts.get_mut(node)) {
            *count += 1;
        }
    }
    if counts.is_empty() {
        return Verdict::new(
            conditions::PRIMARIES_BALANCED,
            Truth::Unknown,
            reason::UNKNOWN,
            "no copy is assigned",
        );
    }
    let most = counts.values().max().copied().unwrap_or_default();
    let least = counts.values().min().copied().unwrap_or_default();
    let text: Vec<String> = counts
        .iter()
        .map(|(node, count)| format!("{node}: {count}"))
        .collect();
    let even = most - least <= 1;
    Verdict::new(
        conditions::PRIMARIES_BALANCED,
        even,
        if even { reason::EVEN } else { reason::UNEVEN },
        format!("primaries by node: {}", text.join(", ")),
    )
}

/// Fills what status shows of the index itself. Conditions and counters' times are the writer's.
pub fn observed_status(status: &mut IndexStatus, found: &IndexOverview, cluster_uuid: &str) {
    status.health = Some(found.health.into());
    status.index_uuid = Some(found.uuid.clone());
    status.cluster_uuid = Some(cluster_uuid.to_owned());
    status.documents = Some(signed(found.documents));
    status.size_bytes = Some(signed(found.size_bytes));
    let reports: Vec<&admin::CopyReport> = found
        .copies
        .iter()
        .filter_map(|copy| copy.report.as_ref())
        .collect();
    status.replication_type = common(reports.iter().map(|report| report.replication_type)).map(Into::into);
    status.durability = common(reports.iter().map(|report| report.durability)).map(Into::into);
    let mut translog = TranslogStatus::default();
    for report in &reports {
        translog.operations += signed(report.translog_operations);
        translog.size_bytes += signed(report.translog_size_bytes);
        translog.uncommitted_operations += signed(report.uncommitted_operations);
        translog.uncommitted_size_bytes += signed(report.uncommitted_size_bytes);
    }
    status.translog = (!reports.is_empty()).then_some(translog);
    let mut copies: Vec<CopyStatus> = found.copies.iter().filter_map(copy_status).collect();
    copies.sort_by(|a, b| {
        let unhealthy = |copy: &CopyStatus| copy.state != "Started";
        unhealthy(b)
            .cmp(&unhealthy(a))
            .then(a.shard.cmp(&b.shard))
            .then(a.role.cmp(&b.role))
            .then(a.node.cmp(&b.node))
    });
    // A shard has one copy a node; the API refuses a list with a repeated key.
    let mut seen = BTreeSet::new();
    copies.retain(|copy| seen.insert((copy.shard, copy.node.clone())));
    status.copies_total = Some(i32::try_from(copies.len()).unwrap_or(i32::MAX));
    copies.truncate(LISTED);
    status.copies = copies;
    status.unassigned = unassigned(found);
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn common<T: PartialEq>(mut values: impl Iterator<Item = T>) -> Option<T> {
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}

fn copy_status(copy: &CopyOverview) -> Option<CopyStatus> {
    let state = match copy.state.as_str() {
        "STARTED" if copy.in_sync => "Started",
        "STARTED" => "OutOfSync",
        "INITIALIZING" => "Initializing",
        _ => "Unassigned",
    };
    let report = copy.report.as_ref();
    Some(CopyStatus {
        shard: i32::try_from(copy.shard).unwrap_or(i32::MAX),
        node: copy.node.clone()?,
        role: if copy.primary {
            Role::Primary
        } else {
            Role::Replica
        },
        state: state.to_owned(),
        lag_operations: report.map(|report| band(report.lag_operations)),
        lag_milliseconds: report.map(|report| band(report.lag_millis)),
        reason: copy.reason.clone().filter(|_| state != "Started"),
    })
}

/// Lag in bands, so that status moves when lag matters and not with every document.
fn band(n: u64) -> i64 {
    n.checked_ilog10().map_or(0, |power| 10_i64.saturating_pow(power))
}

fn unassigned(found: &IndexOverview) -> Vec<UnassignedStatus> {
    let mut groups: BTreeMap<(u32, Role), (i32, Option<String>)> = BTreeMap::new();
    for copy in found.copies.iter().filter(|copy| copy.node.is_none()) {
        let role = if copy.primary {
            Role::Primary
        } else {
            Role::Replica
        };
        let group = groups
            .entry((copy.shard, role))
            .or_insert((0, copy.reason.clone()));
        group.0 += 1;
    }
    groups
        .into_iter()
        .take(LISTED)
        .map(|((shard, role), (copies, reason))| UnassignedStatus {
            shard: i32::try_from(shard).unwrap_or(i32::MAX),
            role,
            copies,
            reason,
        })
        .collect()
}

/// What becomes of an Index that is being deleted, or whose finalizer has to follow its policy.
#[derive(Debug, Clone, PartialEq)]
pub enum Finalize {
    /// The finalizer goes now.
    Drop(Option<Note>),
    /// The index is deleted first; the finalizer goes in the next pass.
    Delete {
        /// Index uuid.
        index: String,
    },
    /// The cluster does not answer; tried again until [`FINALIZE_BOUND`].
    Wait(String),
}

/// Decides about an Index that is being deleted since `age`. It needs no valid spec: deletion always ends.
pub fn finalize(object: &Index, view: &ClusterView, age: Duration) -> Finalize {
    if object.spec.deletion_policy == DeletionPolicy::Retain {
        return Finalize::Drop(None);
    }
    let name = object
        .spec
        .index_name
        .clone()
        .unwrap_or_else(|| object.name_any());
    let uid = object.uid().unwrap_or_default();
    let status = object.status.clone().unwrap_or_default();
    match view {
        ClusterView::Missing | ClusterView::Deleting => Finalize::Drop(Some(Note::normal(
            reason::INDEX_DATA_LEFT,
            "Delete",
            format!("the IndexCluster is gone or going; data of index '{name}' goes with its volumes"),
        ))),
        // A cluster that holds nothing recorded for this object, and never answered, has nothing to delete, unless the creation
        // was under way: so it is asked for the same bounded time.
        ClusterView::NotReady(why) if age >= FINALIZE_BOUND => Finalize::Drop(Some(Note::warning(
            reason::INDEX_DATA_LEFT,
            "Delete",
            format!(
                "the cluster did not answer for 10 minutes ({why}); index '{name}' may still be there: delete it over REST when the cluster is back"
            ),
        ))),
        ClusterView::NotReady(why) => Finalize::Wait(why.clone()),
        ClusterView::Up(up) => {
            let mine = up
                .overview
                .indices
                .iter()
                .find(|index| index.owner.as_ref().is_some_and(|owner| owner.uid == uid));
            match mine {
                Some(index) => Finalize::Delete {
                    index: index.uuid.clone(),
                },
                None => Finalize::Drop(status.index_uuid.map(|_| {
                    Note::normal(
                        reason::INDEX_DELETED,
                        "Delete",
                        format!("index '{name}' is deleted"),
                    )
                })),
            }
        }
    }
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
