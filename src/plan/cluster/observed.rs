//! What a cluster is seen to be: waits, conditions, counts.

use super::Input;
use crate::{
    api::{
        conditions::{self, Truth, Verdict, reason},
        index_cluster::BalancingMode,
        status::{MemberRecord, NodePrimaries},
    },
    observe::Observed,
    plan::{
        Plan, Waiting, identity,
        restart::{self, Guard},
    },
};
use segmentry_settings::admin::{self, Overview};
use std::collections::BTreeSet;

pub(super) fn waits(
    input: &Input<'_>,
    names: &[String],
    identity_row: &identity::Row,
    row: restart::Row,
    out: &mut Plan,
) {
    let runtime = &input.observed.runtime;
    let restarting = row.holds_slot();
    for name in names {
        let instance = runtime.instances.iter().find(|instance| instance.name == *name);
        let step = if restarting { "Restart" } else { "Start" };
        let waiting_for = match instance {
            None => Some("the pod to be created".to_owned()),
            Some(instance) if instance.terminating => Some("the old pod to end".to_owned()),
            Some(instance) if !instance.running => Some(
                instance
                    .problem
                    .as_ref()
                    .map_or_else(|| "the container to start".to_owned(), ToString::to_string),
            ),
            Some(instance) => match input.observed.nodes.get(name) {
                None => Some("an address".to_owned()),
                Some(Err(error)) => Some(error.clone()),
                Some(Ok(status)) if !status.opened => Some(
                    status
                        .waiting_for
                        .clone()
                        .unwrap_or_else(|| "its copies to be opened".to_owned()),
                ),
                Some(Ok(_)) => {
                    let member =
                        input.observed.overview.as_ref().map(|overview| {
                            overview.nodes.iter().any(|node| node.name == *name && node.alive)
                        });
                    match (member, &instance.problem) {
                        (Some(false), _) => Some("the node to join the cluster".to_owned()),
                        _ => None,
                    }
                }
            },
        };
        if let Some(waiting_for) = waiting_for {
            out.waiting.push(Waiting {
                node: name.clone(),
                step,
                waiting_for: Some(waiting_for),
                blocked_by: None,
            });
        }
    }
    let whole = |step: &'static str, waiting_for: Option<String>, blocked_by: Option<&'static str>| Waiting {
        node: input.cluster.key.name.clone(),
        step,
        waiting_for,
        blocked_by,
    };
    match row {
        restart::Row::Hold(guard) => {
            let mut what = guard.waits_for().to_owned();
            match (guard, &input.observed.overview) {
                (Guard::Settled, Some(overview)) if !overview.unsettled.is_empty() => {
                    what = format!("{what}: {}", overview.unsettled.join("; "));
                }
                (Guard::Quorum, _) => {
                    what = format!(
                        "{what} ({})",
                        input.observed.overview_error.as_deref().unwrap_or("no answer")
                    );
                }
                _ => {}
            }
            out.waiting.push(whole("Restart", Some(what), Some(guard.name())));
        }
        restart::Row::WaitPrimaries => out.waiting.push(whole(
            "Restart",
            Some("the recorded primaries to be active".to_owned()),
            None,
        )),
        restart::Row::Prepare
        | restart::Row::Apply
        | restart::Row::StopOld
        | restart::Row::StopBroken
        | restart::Row::Finish => out.waiting.push(whole("Restart", None, None)),
        restart::Row::Create | restart::Row::Idle | restart::Row::Abandon | restart::Row::WaitNodes => {}
    }
    match identity_row {
        identity::Row::Wait => out
            .waiting
            .push(whole("Form", Some("every node to answer".to_owned()), None)),
        identity::Row::Record(_)
        | identity::Row::Initialise
        | identity::Row::Reset { .. }
        | identity::Row::MarkFormed(_) => out.waiting.push(whole(
            "Form",
            Some("the members to form the cluster".to_owned()),
            None,
        )),
        identity::Row::Replace(replacement) => out.waiting.push(Waiting {
            node: replacement.member.name.clone(),
            step: "ReplaceVoter",
            waiting_for: Some("the new disk's node to be taken in".to_owned()),
            blocked_by: None,
        }),
        _ => {}
    }
}

/// What is wrong with the identity: reason and what to do.
fn trouble(identity_row: &identity::Row, input: &Input<'_>) -> Option<(&'static str, String)> {
    match identity_row {
        identity::Row::Foreign(what) => Some((
            reason::FOREIGN_DATA,
            format!(
                "{what}; nothing is changed. To take over the cluster on the disks, annotate this object with segmentry.io/adopt-cluster-uuid=<uuid>; else give the nodes other volumes"
            ),
        )),
        identity::Row::DiskEmptied(nodes) => Some((
            reason::DISK_EMPTIED,
            format!(
                "{} came back empty on the same volume; nothing is changed. If the content is lost, delete the volume claim and the pod, so that a new volume takes its place",
                nodes.join(", ")
            ),
        )),
        identity::Row::QuorumLost(nodes) => Some((
            reason::QUORUM_LOST,
            format!(
                "the disks of {} are new or empty: a majority is gone and the cluster state cannot be read. Bring the old volumes back, or create a new IndexCluster and load it anew",
                nodes.join(", ")
            ),
        )),
        identity::Row::Gone => Some((
            reason::DATA_GONE,
            format!(
                "cluster {} was formed and no disk holds it any more; it is not formed anew. Bring the old volumes back, or delete this object and create it again",
                input
                    .identity
                    .map_or("", |identity| identity.cluster_uuid.as_str())
            ),
        )),
        _ => None,
    }
}

pub(super) fn verdicts(
    input: &Input<'_>,
    names: &[String],
    identity_row: &identity::Row,
    row: restart::Row,
    ready: &BTreeSet<String>,
    primaries: &[NodePrimaries],
    out: &mut Plan,
) {
    let overview = input.observed.overview.as_ref();
    let trouble = trouble(identity_row, input);
    let formed = input.identity.is_some_and(|identity| identity.formed);
    // What concerns single nodes says more than that the whole waits for them.
    let whole = |wait: &Waiting| wait.node == input.cluster.key.name;
    let of_nodes = out.waiting.iter().any(|wait| !whole(wait));
    let missing: Vec<String> = out
        .waiting
        .iter()
        .filter(|wait| !(of_nodes && whole(wait)))
        .filter_map(|wait| {
            wait.waiting_for
                .as_ref()
                .map(|what| format!("{}: {what}", wait.node))
        })
        .collect();
    let missing_text = missing.join("; ");

    let available = match overview {
        Some(overview) if overview.health != admin::Health::Red => Verdict::new(
            conditions::AVAILABLE,
            true,
            reason::AS_DECLARED,
            "every primary serves",
        ),
        Some(_) => Verdict::new(
            conditions::AVAILABLE,
            false,
            reason::SHARDS_NOT_STARTED,
            "a primary is missing; see the copies of the Index objects and _cat/shards",
        ),
        None if formed => Verdict::new(
            conditions::AVAILABLE,
            false,
            reason::NO_QUORUM,
            format!(
                "no linearizable read works: {}",
                input
                    .observed
                    .overview_error
                    .as_deref()
                    .unwrap_or("no node answers")
            ),
        ),
        None => Verdict::new(
            conditions::AVAILABLE,
            false,
            reason::STARTING,
            format!("the cluster is not formed yet; {missing_text}"),
        ),
    };
    let degraded = match (&trouble, overview) {
        (Some((why, what)), _) => Verdict::new(conditions::DEGRADED, true, why, what.clone()),
        (None, Some(overview)) if overview.health == admin::Health::Red => Verdict::new(
            conditions::DEGRADED,
            true,
            reason::SHARDS_NOT_STARTED,
            overview.unsettled.join("; "),
        ),
        (None, None) if formed && row != restart::Row::WaitNodes => Verdict::new(
            conditions::DEGRADED,
            true,
            reason::NO_QUORUM,
            missing_text.clone(),
        ),
        _ => Verdict::new(
            conditions::DEGRADED,
            false,
            reason::AS_DECLARED,
            "nothing needs a person",
        ),
    };
    let upgrading = match row {
        restart::Row::Idle if formed && overview.is_none() => Verdict::new(
            conditions::UPGRADING,
            Truth::Unknown,
            reason::NO_QUORUM,
            "every pod is made from the wanted template; whether a restart is under way is known when a majority answers",
        ),
        restart::Row::Create | restart::Row::Idle => {
            Verdict::new(conditions::UPGRADING, false, reason::IDLE, "no restart is due")
        }
        restart::Row::Hold(guard) => Verdict::new(
            conditions::UPGRADING,
            true,
            reason::WAITING,
            format!("a full restart is due and waits for {}", guard.waits_for()),
        ),
        _ => Verdict::new(
            conditions::UPGRADING,
            true,
            reason::RESTARTING,
            format!(
                "full restart to template {} (image {})",
                input.wanted_hash, input.image
            ),
        ),
    };
    let ready_verdict = if let Some((why, what)) = &trouble {
        Verdict::new(conditions::READY, false, why, what.clone())
    } else if ready.len() < names.len() {
        let why = if !formed {
            reason::STARTING
        } else if overview.is_none() {
            reason::NO_QUORUM
        } else {
            reason::NODES_MISSING
        };
        Verdict::new(
            conditions::READY,
            false,
            why,
            format!(
                "{} of {} nodes are ready; {missing_text}",
                ready.len(),
                names.len()
            ),
        )
    } else if !formed {
        Verdict::new(
            conditions::READY,
            false,
            reason::STARTING,
            "the cluster is being recorded",
        )
    } else if !matches!(row, restart::Row::Create | restart::Row::Idle) {
        Verdict::new(
            conditions::READY,
            false,
            &upgrading.reason.clone(),
            upgrading.message.clone(),
        )
    } else {
        match overview {
            Some(overview) if overview.health == admin::Health::Red || !overview.settled => Verdict::new(
                conditions::READY,
                false,
                reason::SHARDS_NOT_STARTED,
                overview.unsettled.join("; "),
            ),
            Some(_) => Verdict::new(
                conditions::READY,
                true,
                reason::AS_DECLARED,
                format!("{} of {} nodes are ready", ready.len(), names.len()),
            ),
            None => Verdict::new(
                conditions::READY,
                false,
                reason::NO_QUORUM,
                "no linearizable read works",
            ),
        }
    };
    let busy = !out.waiting.is_empty();
    out.verdicts.push(ready_verdict);
    out.verdicts.push(available);
    out.verdicts.push(Verdict::new(
        conditions::PROGRESSING,
        busy && !input.cluster.paused,
        if busy { reason::WAITING } else { reason::IDLE },
        if busy {
            missing_text
        } else {
            "nothing is being changed".to_owned()
        },
    ));
    out.verdicts.push(degraded);
    out.verdicts.push(upgrading);
    out.verdicts.push(if input.cluster.paused {
        Verdict::new(
            conditions::PAUSED,
            true,
            reason::PAUSED,
            "spec.paused is true: nothing is changed, status is still reported",
        )
    } else {
        Verdict::new(
            conditions::PAUSED,
            false,
            reason::NOT_PAUSED,
            "changes are carried out",
        )
    });
    out.verdicts
        .push(balance(overview.is_some(), primaries, input.cluster.balancing));
}

fn balance(known: bool, primaries: &[NodePrimaries], mode: BalancingMode) -> Verdict {
    if !known {
        return Verdict::new(
            conditions::PRIMARIES_BALANCED,
            Truth::Unknown,
            reason::UNKNOWN,
            "the cluster does not answer",
        );
    }
    let counts: Vec<String> = primaries
        .iter()
        .map(|node| format!("{}: {}", node.node, node.primaries))
        .collect();
    let most = primaries
        .iter()
        .map(|node| node.primaries)
        .max()
        .unwrap_or_default();
    let least = primaries
        .iter()
        .map(|node| node.primaries)
        .min()
        .unwrap_or_default();
    let even = most - least <= 1;
    let why = match (even, mode) {
        (true, _) => reason::EVEN,
        (false, BalancingMode::Off) => reason::BALANCING_OFF,
        (false, BalancingMode::OnAllocation) => reason::UNEVEN,
    };
    Verdict::new(
        conditions::PRIMARIES_BALANCED,
        even,
        why,
        format!("primaries by node: {}", counts.join(", ")),
    )
}

pub(super) fn primaries_by_node(overview: &Overview) -> Vec<NodePrimaries> {
    let mut list: Vec<NodePrimaries> = overview
        .nodes
        .iter()
        .map(|node| NodePrimaries {
            node: node.name.clone(),
            primaries: i32::try_from(node.primaries).unwrap_or(i32::MAX),
        })
        .collect();
    list.sort_by(|a, b| a.node.cmp(&b.node));
    list.dedup_by(|a, b| a.node == b.node);
    list
}

/// Versions are compared by their numbers.
pub(super) fn lowest_version(overview: &Overview) -> Option<String> {
    let numbers = |version: &str| -> Vec<u64> {
        version
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|part| part.parse().ok())
            .collect()
    };
    overview
        .nodes
        .iter()
        .filter(|node| node.alive)
        .map(|node| node.version.clone())
        .min_by_key(|version| numbers(version))
}

pub(super) fn members(overview: &Overview, observed: &Observed) -> Vec<MemberRecord> {
    let mut list: Vec<MemberRecord> = overview
        .nodes
        .iter()
        .map(|node| MemberRecord {
            name: node.name.clone(),
            node_id: node.node_id.clone(),
            disk_id: node.disk_id.clone().or_else(|| {
                // The runtime's word counts only for the node that runs on that disk now.
                let same = observed
                    .node(&node.name)
                    .is_some_and(|status| status.node_id == node.node_id);
                same.then(|| identity::disk_of(&node.name, observed)).flatten()
            }),
        })
        .collect();
    list.sort_by(|a, b| a.name.cmp(&b.name));
    list
}
