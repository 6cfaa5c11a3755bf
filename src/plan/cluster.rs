//! Everything about one IndexCluster.

mod observed;

use super::{
    Note, Plan, Step, identity,
    restart::{self, Applied, Facts, Record},
};
use crate::{
    api::{
        conditions::reason,
        index_cluster::BalancingMode,
        status::{Health, Identity, MemberRecord, NodeCounts, NodePrimaries},
        valid::ValidCluster,
    },
    observe::Observed,
};
use observed::{lowest_version, members, primaries_by_node, verdicts, waits};
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

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
