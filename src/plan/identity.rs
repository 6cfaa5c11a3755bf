//! Which cluster the nodes are, and what follows.
//!
//! An empty node never forms a cluster by itself, and a recorded cluster that is gone is never formed anew: these two halves
//! are how clusters are lost. The uuid and the members are stored before anybody is told to form; forming is idempotent.

use crate::{
    api::status::{Identity, MemberRecord},
    observe::Observed,
};
use segmentry_settings::admin::{Member, NodeStatus, ReplaceMember};
use std::collections::{BTreeMap, BTreeSet};

/// What the identities of the nodes mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Row {
    /// Not all nodes answer yet; nothing is decided before they do.
    Wait,
    /// All nodes are empty and nothing is recorded (or what is recorded was never formed): record this.
    Record(Identity),
    /// The recorded members are there and empty: form the cluster.
    Initialise,
    /// A formation was begun with members that are not these; it holds no index.
    Reset {
        /// Node to reset.
        node: String,
    },
    /// An existing cluster is taken over.
    Adopt(Identity),
    /// The nodes formed the recorded cluster: record that.
    MarkFormed(Identity),
    /// The recorded cluster lives.
    Formed,
    /// The recorded cluster lives, and the new disk of one voter takes the place of the lost one.
    Replace(ReplaceMember),
    /// Nodes hold data of another cluster.
    Foreign(String),
    /// A disk lost its content and kept its identity.
    DiskEmptied(Vec<String>),
    /// The disks of a majority are gone.
    QuorumLost(Vec<String>),
    /// All disks are gone.
    Gone,
}

/// Decides. `fresh_uuid` is used if a cluster is to be formed; `addresses` are the nodes' stable addresses.
pub fn row(
    recorded: Option<&Identity>,
    names: &[String],
    observed: &Observed,
    adopt: Option<&str>,
    fresh_uuid: &str,
    addresses: &BTreeMap<String, String>,
) -> Row {
    let answers: Vec<(&String, &NodeStatus)> = names
        .iter()
        .filter_map(|name| Some((name, observed.node(name)?)))
        .collect();
    let all_answer = answers.len() == names.len();
    let stated: BTreeSet<&str> = answers
        .iter()
        .filter_map(|(_, status)| status.cluster_uuid.as_deref())
        .collect();

    let known = recorded.map(|identity| identity.cluster_uuid.as_str());
    let foreign: Vec<&str> = stated
        .iter()
        .copied()
        .filter(|uuid| Some(*uuid) != known)
        .collect();
    if let Some(wanted) = adopt
        && foreign == [wanted]
        && all_answer
    {
        return Row::Adopt(identity_of(wanted, observed, names));
    }
    let Some(identity) = recorded else {
        return unrecorded(&answers, all_answer, &stated, observed, names, fresh_uuid);
    };
    if !foreign.is_empty() {
        let who: Vec<String> = answers
            .iter()
            .filter_map(|(name, status)| {
                status
                    .cluster_uuid
                    .as_deref()
                    .filter(|uuid| *uuid != identity.cluster_uuid)
                    .map(|uuid| format!("{name}: {uuid}"))
            })
            .collect();
        return Row::Foreign(format!(
            "this object stands for cluster {}, but nodes hold others ({})",
            identity.cluster_uuid,
            who.join(", ")
        ));
    }
    if identity.formed {
        return formed(identity, names, &answers, observed, addresses);
    }
    if answers.iter().any(|(_, status)| status.formed) {
        return Row::MarkFormed(identity_of(&identity.cluster_uuid, observed, names));
    }
    if !all_answer {
        return Row::Wait;
    }
    let same = names.iter().all(|name| {
        let recorded = identity
            .members
            .iter()
            .find(|member| member.name == *name)
            .map(|member| member.node_id.as_str());
        recorded.is_some() && recorded == observed.node(name).map(|status| status.node_id.as_str())
    });
    if same && identity.members.len() == names.len() {
        return Row::Initialise;
    }
    if let Some((name, status)) = answers.iter().find(|(_, status)| status.cluster_uuid.is_some()) {
        return if status.indices_on_disk == 0 {
            Row::Reset {
                node: (*name).clone(),
            }
        } else {
            Row::Foreign(format!(
                "{name} holds {} indices of cluster {}, which never reported that it was formed",
                status.indices_on_disk, identity.cluster_uuid
            ))
        };
    }
    Row::Record(Identity {
        formed: false,
        ..identity_of(fresh_uuid, observed, names)
    })
}

fn unrecorded(
    answers: &[(&String, &NodeStatus)],
    all_answer: bool,
    stated: &BTreeSet<&str>,
    observed: &Observed,
    names: &[String],
    fresh_uuid: &str,
) -> Row {
    if !all_answer {
        return Row::Wait;
    }
    let Some(uuid) = stated.first() else {
        if let Some((name, _)) = answers.iter().find(|(_, status)| !status.empty) {
            return Row::Foreign(format!("{name} holds data of no stated cluster"));
        }
        return Row::Record(Identity {
            formed: false,
            ..identity_of(fresh_uuid, observed, names)
        });
    };
    if stated.len() == 1 && answers.iter().all(|(_, status)| status.cluster_uuid.is_some()) {
        return Row::Adopt(identity_of(uuid, observed, names));
    }
    let who: Vec<String> = answers
        .iter()
        .map(|(name, status)| format!("{name}: {}", status.cluster_uuid.as_deref().unwrap_or("empty")))
        .collect();
    Row::Foreign(format!(
        "no cluster is recorded and the nodes disagree ({})",
        who.join(", ")
    ))
}

fn formed(
    identity: &Identity,
    names: &[String],
    answers: &[(&String, &NodeStatus)],
    observed: &Observed,
    addresses: &BTreeMap<String, String>,
) -> Row {
    let member = |name: &str| -> Option<MemberRecord> {
        let living = observed
            .overview
            .as_ref()
            .and_then(|overview| overview.nodes.iter().find(|node| node.name == name));
        living
            .map(|node| MemberRecord {
                name: name.to_owned(),
                node_id: node.node_id.clone(),
                disk_id: node.disk_id.clone(),
            })
            .or_else(|| {
                identity
                    .members
                    .iter()
                    .find(|member| member.name == name)
                    .cloned()
            })
    };
    let mut emptied = Vec::new();
    let mut replaced = Vec::new();
    for (name, status) in answers {
        if !status.empty || status.formed {
            continue;
        }
        let record = member(name);
        if record
            .as_ref()
            .is_some_and(|record| record.node_id == status.node_id)
        {
            // Taken in already, its first state is on the way.
            continue;
        }
        let disk = disk_of(name, observed);
        let before = record.as_ref().and_then(|record| record.disk_id.clone());
        match (disk, before) {
            (Some(now), Some(before)) if now != before => replaced.push(((*name).clone(), *status, record)),
            _ => emptied.push((*name).clone()),
        }
    }
    let mut lost: Vec<String> = emptied.clone();
    lost.extend(replaced.iter().map(|(name, _, _)| name.clone()));
    lost.sort();
    if lost.is_empty() {
        return Row::Formed;
    }
    if lost.len() == names.len() {
        return Row::Gone;
    }
    if lost.len() * 2 > names.len() {
        return Row::QuorumLost(lost);
    }
    if !emptied.is_empty() {
        return Row::DiskEmptied(emptied);
    }
    let Some(overview) = &observed.overview else {
        // Without a majority nothing changes the membership; the missing quorum is reported by its own name.
        return Row::Formed;
    };
    for (name, status, record) in replaced {
        let Some(record) = record else { continue };
        let alive = overview
            .nodes
            .iter()
            .any(|node| node.node_id == record.node_id && node.alive);
        let others = overview
            .nodes
            .iter()
            .filter(|node| node.voter && node.alive && node.node_id != record.node_id)
            .count();
        if !alive && others * 2 > names.len() {
            return Row::Replace(ReplaceMember {
                lost_node_id: record.node_id,
                member: Member {
                    node_id: status.node_id.clone(),
                    address: addresses.get(&name).cloned().unwrap_or_default(),
                    disk_id: disk_of(&name, observed),
                    name,
                },
            });
        }
    }
    Row::Formed
}

/// The volume as the runtime knows it; where it does not, as the node was told.
pub fn disk_of(name: &str, observed: &Observed) -> Option<String> {
    observed
        .runtime
        .instances
        .iter()
        .find(|instance| instance.name == name)
        .and_then(|instance| instance.disk_id.clone())
        .or_else(|| observed.node(name).and_then(|status| status.disk_id.clone()))
}

/// Identity with the members as they are seen now.
pub fn identity_of(uuid: &str, observed: &Observed, names: &[String]) -> Identity {
    let members = names
        .iter()
        .filter_map(|name| {
            let status = observed.node(name)?;
            Some(MemberRecord {
                name: name.clone(),
                node_id: status.node_id.clone(),
                disk_id: disk_of(name, observed),
            })
        })
        .collect();
    Identity {
        cluster_uuid: uuid.to_owned(),
        formed: true,
        members,
    }
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
