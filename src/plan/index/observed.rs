//! What an index is seen to be: conditions and status.

use super::replication_type;
use crate::{
    api::{
        IndexStatus,
        conditions::{self, Truth, Verdict, reason},
        status::{CopyStatus, Role, TranslogStatus, UnassignedStatus},
        valid::ValidIndex,
    },
    plan::{Note, Plan},
};
use segmentry_settings::{
    Durability,
    admin::{self, CopyOverview, IndexOverview},
};
use std::collections::{BTreeMap, BTreeSet};

/// Uncommitted bytes of one copy that need attention.
const UNCOMMITTED_BYTES: u64 = 1 << 30;
/// Copies that status lists.
const LISTED: usize = 100;

/// Verdicts of all conditions of an index that exists and is ours.
pub(super) fn verdicts(index: &ValidIndex, found: &IndexOverview, out: &mut Plan) {
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
