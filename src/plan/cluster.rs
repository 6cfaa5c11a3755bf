//! Everything about one IndexCluster.

use super::{
    Note, Plan, Step, Waiting, identity,
    restart::{self, Applied, Facts, Guard, Record},
};
use crate::{
    api::{
        conditions::{self, Truth, Verdict, reason},
        index_cluster::BalancingMode,
        status::{Health, Identity, MemberRecord, NodeCounts, NodePrimaries},
        valid::ValidCluster,
    },
    observe::Observed,
};
use segmentry_settings::admin::{self, IndexOverview, Initialise, Member, Overview, PrepareRestart};
use std::collections::{BTreeMap, BTreeSet};

/// What a plan looks at, beside the declared object.
#[derive(Debug)]
pub struct Input<'a> {
    /// The declared object.
    pub cluster: &'a ValidCluster,
    /// What is recorded of its identity.
    pub identity: Option<&'a Identity>,
    /// Live facts.
    pub observed: &'a Observed,
    /// Hash of the wanted template.
    pub wanted_hash: &'a str,
    /// Image of the wanted template.
    pub image: &'a str,
    /// uids of all Index objects of the namespace (live); none where they could not be listed.
    pub index_uids: Option<&'a BTreeSet<String>>,
    /// No other cluster restarts.
    pub slot_free: bool,
    /// Used if a cluster is to be formed.
    pub fresh_uuid: &'a str,
    /// Stable address of each node's internal port, by node name.
    pub addresses: &'a BTreeMap<String, String>,
}

/// A plan and what status shows beside its conditions.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterPlan {
    /// Steps, verdicts, waits, events.
    pub plan: Plan,
    /// Row of the restart table.
    pub restart: restart::Row,
    /// Worst health.
    pub health: Health,
    /// Counts of nodes.
    pub nodes: NodeCounts,
    /// Lowest version of the members.
    pub version: Option<String>,
    /// Primaries by node.
    pub primaries: Vec<NodePrimaries>,
    /// Identity with the members as seen now, where they can be seen.
    pub members: Option<Vec<MemberRecord>>,
}

/// Decides.
pub fn plan(input: &Input<'_>) -> ClusterPlan {
    let names = input.cluster.node_names();
    let identity_row = identity::row(
        input.identity,
        &names,
        input.observed,
        input.cluster.adopt_cluster_uuid.as_deref(),
        input.fresh_uuid,
        input.addresses,
    );
    let ready = ready_nodes(input, &names);
    let facts = restart_facts(input, &names, ready.len());
    let row = restart::row(facts);
    let mut out = Plan::default();

    if !input.cluster.paused {
        steps(input, &names, &identity_row, row, &mut out);
    }
    waits(input, &names, &identity_row, row, &mut out);
    let overview = input.observed.overview.as_ref();
    let primaries = overview.map(primaries_by_node).unwrap_or_default();
    verdicts(input, &names, &identity_row, row, &ready, &primaries, &mut out);
    ClusterPlan {
        plan: out,
        restart: row,
        health: overview.map_or(Health::Unknown, |overview| overview.health.into()),
        nodes: NodeCounts {
            ready: count(ready.len()),
            desired: count(names.len()),
        },
        version: overview.and_then(lowest_version),
        primaries,
        members: overview.map(|overview| members(overview, input.observed)),
    }
}

fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// Nodes that are members, are alive, answer, and have opened their copies.
fn ready_nodes(input: &Input<'_>, names: &[String]) -> BTreeSet<String> {
    let Some(overview) = &input.observed.overview else {
        return BTreeSet::new();
    };
    names
        .iter()
        .filter(|name| {
            let opened = input.observed.node(name).is_some_and(|status| status.opened);
            let member = overview
                .nodes
                .iter()
                .any(|node| node.name == **name && node.alive);
            let stays = input
                .observed
                .runtime
                .instances
                .iter()
                .any(|instance| instance.name == **name && !instance.terminating);
            opened && member && stays
        })
        .cloned()
        .collect()
}

fn restart_facts(input: &Input<'_>, names: &[String], ready: usize) -> Facts {
    let runtime = &input.observed.runtime;
    let overview = input.observed.overview.as_ref();
    let old: Vec<_> = runtime
        .instances
        .iter()
        .filter(|instance| {
            !instance.terminating && instance.template_hash.as_deref() != Some(input.wanted_hash)
        })
        .collect();
    let at_wanted = |name: &String| {
        runtime.instances.iter().any(|instance| {
            instance.name == *name
                && instance.running
                && !instance.terminating
                && instance.template_hash.as_deref() == Some(input.wanted_hash)
        })
    };
    let record = overview.and_then(|overview| overview.restart.as_ref());
    // Nobody has anything to lose only if nothing was recorded as formed and no node that runs says otherwise or is silent.
    let unformed = input.identity.is_none_or(|identity| !identity.formed)
        && runtime
            .instances
            .iter()
            .filter(|instance| instance.running)
            .all(|instance| {
                input
                    .observed
                    .node(&instance.name)
                    .is_some_and(|status| status.empty && !status.formed && status.cluster_uuid.is_none())
            });
    Facts {
        applied: match &runtime.set {
            None => Applied::Missing,
            Some(set) if set.template_hash.as_deref() == Some(input.wanted_hash) => Applied::Wanted,
            Some(_) => Applied::Other,
        },
        template_observed: runtime.set.as_ref().is_some_and(|set| set.current),
        old_running: old.iter().any(|instance| !instance.broken),
        old_broken: old.iter().any(|instance| instance.broken),
        unformed,
        quorum: overview.is_some(),
        record: match record {
            None => Record::None,
            Some(record) if record.target == input.wanted_hash => Record::Wanted,
            Some(_) => Record::Other,
        },
        settled: overview.is_some_and(|overview| overview.settled),
        slot_free: input.slot_free,
        complete: ready == names.len() && names.iter().all(at_wanted),
        primaries_active: overview.is_some_and(|overview| {
            record.is_none_or(|record| primaries_active(overview, &record.primaries))
        }),
    }
}

/// Every recorded primary whose index still exists has an active primary again, wherever it is.
fn primaries_active(overview: &Overview, recorded: &BTreeMap<String, String>) -> bool {
    recorded.keys().all(|key| {
        let Some((uuid, shard)) = key.rsplit_once('/') else {
            return true;
        };
        let Some(index) = overview.indices.iter().find(|index| index.uuid == uuid) else {
            return true;
        };
        index
            .copies
            .iter()
            .any(|copy| copy.primary && copy.shard.to_string() == shard && copy.state == "STARTED")
    })
}

fn steps(
    input: &Input<'_>,
    names: &[String],
    identity_row: &identity::Row,
    row: restart::Row,
    out: &mut Plan,
) {
    let overview = input.observed.overview.as_ref();
    let wanted_applied = input
        .observed
        .runtime
        .set
        .as_ref()
        .is_none_or(|set| set.template_hash.as_deref() == Some(input.wanted_hash));
    out.steps.push(Step::Ensure {
        apply_template: wanted_applied || row == restart::Row::Apply,
        disruption_allowed: overview.is_some_and(|overview| disruption_allowed(overview, names)),
    });
    match identity_row {
        identity::Row::Record(identity) | identity::Row::MarkFormed(identity) => {
            out.steps.push(Step::WriteIdentity(identity.clone()));
            if identity.formed {
                out.notes.push(Note::normal(
                    reason::FORMED,
                    "Form",
                    format!("cluster {} was formed", identity.cluster_uuid),
                ));
            }
            return;
        }
        identity::Row::Adopt(identity) => {
            out.steps.push(Step::WriteIdentity(identity.clone()));
            out.notes.push(Note::normal(
                reason::ADOPTED,
                "Adopt",
                format!("the existing cluster {} was taken over", identity.cluster_uuid),
            ));
            return;
        }
        identity::Row::Initialise => {
            if let (Some(identity), Some(first)) = (input.identity, names.first()) {
                out.steps.push(Step::Initialise {
                    node: first.clone(),
                    request: initialise(input, identity),
                });
            }
        }
        identity::Row::Reset { node } => {
            if let Some(identity) = input.identity {
                out.steps.push(Step::Reset {
                    node: node.clone(),
                    cluster_uuid: identity.cluster_uuid.clone(),
                });
            }
        }
        identity::Row::Replace(replacement) => {
            out.notes.push(Note::warning(
                reason::VOTER_REPLACED,
                "ReplaceVoter",
                format!(
                    "the disk of {} is a new one; its node {} takes the place of {}",
                    replacement.member.name, replacement.member.node_id, replacement.lost_node_id
                ),
            ));
            out.steps.push(Step::ReplaceMember(replacement.clone()));
        }
        identity::Row::Foreign(_)
        | identity::Row::DiskEmptied(_)
        | identity::Row::QuorumLost(_)
        | identity::Row::Gone
        | identity::Row::Wait
        | identity::Row::Formed => {}
    }
    if let Some(overview) = overview {
        let off = overview
            .settings
            .get(PREFER_PRIMARY)
            .is_some_and(|value| value == "false");
        let want_off = input.cluster.balancing == BalancingMode::Off;
        if off != want_off {
            let value = if want_off { "false" } else { "true" };
            out.steps.push(Step::ClusterSettings(BTreeMap::from([(
                PREFER_PRIMARY.to_owned(),
                Some(value.to_owned()),
            )])));
        }
        if let Some(living) = input.index_uids {
            for index in &overview.indices {
                if let Some(owner) = index
                    .owner
                    .as_ref()
                    .filter(|owner| owner_is_here(owner, input.cluster) && !living.contains(&owner.uid))
                {
                    out.notes.push(Note::normal(
                        reason::INDEX_DATA_LEFT,
                        "ReleaseIndex",
                        format!(
                            "Index {} is gone; index {} stays, without an owner",
                            owner.name, index.name
                        ),
                    ));
                    out.steps.push(Step::ReleaseIndex {
                        index: index.uuid.clone(),
                        owner_uid: owner.uid.clone(),
                    });
                }
            }
        }
    }
    restart_steps(input, row, out);
}

/// Setting that balancing switches.
const PREFER_PRIMARY: &str = segmentry_settings::cluster::PREFER_PRIMARY;

fn owner_is_here(owner: &admin::Owner, cluster: &ValidCluster) -> bool {
    owner
        .name
        .split_once('/')
        .is_some_and(|(namespace, _)| namespace == cluster.key.namespace)
}

fn restart_steps(input: &Input<'_>, row: restart::Row, out: &mut Plan) {
    let instances = &input.observed.runtime.instances;
    let old = || {
        instances.iter().filter(|instance| {
            !instance.terminating && instance.template_hash.as_deref() != Some(input.wanted_hash)
        })
    };
    match row {
        restart::Row::Prepare => {
            out.notes.push(Note::normal(
                reason::RESTART_STARTED,
                "Restart",
                format!(
                    "full restart to template {} (image {}): shards are flushed and primaries recorded",
                    input.wanted_hash, input.image
                ),
            ));
            out.steps.push(Step::PrepareRestart(PrepareRestart {
                target: input.wanted_hash.to_owned(),
            }));
        }
        restart::Row::StopOld => out.steps.push(Step::Stop(old().cloned().collect())),
        restart::Row::StopBroken => {
            let broken: Vec<_> = old().filter(|instance| instance.broken).cloned().collect();
            let who: Vec<&str> = broken.iter().map(|instance| instance.name.as_str()).collect();
            out.notes.push(Note::normal(
                reason::BROKEN_PODS_REPLACED,
                "Replace",
                format!(
                    "{} do not run and are made anew from template {}",
                    who.join(", "),
                    input.wanted_hash
                ),
            ));
            out.steps.push(Step::Stop(broken));
        }
        restart::Row::Finish => {
            out.notes.push(Note::normal(
                reason::RESTART_FINISHED,
                "Restart",
                format!(
                    "full restart to template {} is done, all primaries are active",
                    input.wanted_hash
                ),
            ));
            out.steps.push(Step::FinishRestart {
                target: input.wanted_hash.to_owned(),
            });
        }
        restart::Row::Abandon => {
            if let Some(record) = input
                .observed
                .overview
                .as_ref()
                .and_then(|overview| overview.restart.as_ref())
            {
                out.notes.push(Note::normal(
                    reason::RESTART_ABANDONED,
                    "Restart",
                    format!("the restart to template {} is not wanted any more", record.target),
                ));
                out.steps.push(Step::FinishRestart {
                    target: record.target.clone(),
                });
            }
        }
        // Apply is part of Ensure.
        restart::Row::Create
        | restart::Row::Idle
        | restart::Row::Apply
        | restart::Row::WaitNodes
        | restart::Row::WaitPrimaries
        | restart::Row::Hold(_) => {}
    }
}

fn initialise(input: &Input<'_>, identity: &Identity) -> Initialise {
    Initialise {
        cluster_uuid: identity.cluster_uuid.clone(),
        cluster_name: input.cluster.key.name.clone(),
        members: identity
            .members
            .iter()
            .map(|member| Member {
                node_id: member.node_id.clone(),
                name: member.name.clone(),
                address: input.addresses.get(&member.name).cloned().unwrap_or_default(),
                disk_id: member.disk_id.clone(),
            })
            .collect(),
    }
}

/// One pod may go while every shard has in-sync started copies on two nodes and every node is there.
fn disruption_allowed(overview: &Overview, names: &[String]) -> bool {
    let all_here = names
        .iter()
        .all(|name| overview.nodes.iter().any(|node| node.name == *name && node.alive));
    all_here
        && overview
            .indices
            .iter()
            .all(|index| (0..index.shards).all(|shard| copies_elsewhere(index, shard)))
}

fn copies_elsewhere(index: &IndexOverview, shard: u32) -> bool {
    let nodes: BTreeSet<&str> = index
        .copies
        .iter()
        .filter(|copy| copy.shard == shard && copy.in_sync && copy.state == "STARTED")
        .filter_map(|copy| copy.node.as_deref())
        .collect();
    nodes.len() >= 2
}

fn waits(
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
                    what = format!("{what}: {}", overview.unsettled.join("; "))
                }
                (Guard::Quorum, _) => {
                    what = format!(
                        "{what} ({})",
                        input.observed.overview_error.as_deref().unwrap_or("no answer")
                    )
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

fn verdicts(
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
    let missing: Vec<String> = out
        .waiting
        .iter()
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

fn primaries_by_node(overview: &Overview) -> Vec<NodePrimaries> {
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
fn lowest_version(overview: &Overview) -> Option<String> {
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

fn members(overview: &Overview, observed: &Observed) -> Vec<MemberRecord> {
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

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
