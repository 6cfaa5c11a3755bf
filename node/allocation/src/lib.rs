//! Where copies and primaries should be, and the sentence that explains it. Pure, over the cluster state: no clock, no I/O.
//!
//! - [`assign_new`]: the first assignment of a new index;
//! - [`choose_primary`]: which copy takes over a shard that waits for an activation;
//! - [`next_replica`], [`next_replica_avoiding`]: where a missing replica is built;
//! - [`surplus_replica`]: which replica goes where fewer are wanted;
//! - [`explain`], [`explain_shard`], [`unsettled`]: why a copy, a shard or the cluster is not where it should be, for people.
//!
//! **Balance.** Primaries are spread evenly over the nodes, per index first, then over the whole cluster
//! (`cluster.routing.allocation.balance.prefer_primary`; without it only the number of all copies counts). Replicas go to
//! other nodes, evenly by the number of copies, per index first. Ties go to the node with the lowest name, so that equal
//! states give equal answers.

mod balance;
mod explain;

pub use balance::{NoNode, assign_new, next_replica, next_replica_avoiding, surplus_replica};
pub use explain::{explain, explain_shard, unsettled};

use segmentry_state::{ClusterState, NodeId, Shard, ShardCopy, ShardId};
use std::collections::BTreeSet;

/// Which copy may be activated next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// This one: in sync, openable, on a live node.
    Copy(ShardCopy),
    /// None yet; the sentence says what is waited for.
    Wait(String),
}

/// The copy that takes over a shard without an active primary: in sync, not broken, on a live node. Never another one: an
/// empty or stale primary would lose acknowledged writes.
///
/// The recorded primary is kept where its node is alive (its searcher is warm and no files move); else, with
/// `prefer_primary`, the one whose node has the fewest primaries of the index, then of the cluster.
pub fn choose_primary(state: &ClusterState, id: ShardId) -> Choice {
    let Some(shard) = state.shard(id) else {
        return Choice::Wait(format!("no such shard [{id}]"));
    };
    let usable = |c: &&ShardCopy| c.broken.is_none() && state.is_alive(c.node);
    if let Some(recorded) = shard.primary_copy().filter(usable) {
        return Choice::Copy(recorded.clone());
    }
    let prefer = state.cluster_settings().prefer_primary;
    let best = shard.in_sync_copies().filter(usable).min_by_key(|copy| {
        let load = if prefer {
            balance::primaries(state, id, copy.node)
        } else {
            (0, 0)
        };
        (load, state.node(copy.node).map(|n| n.name.clone()))
    });
    match best {
        Some(copy) => Choice::Copy(copy.clone()),
        None => Choice::Wait(why_no_primary(state, shard)),
    }
}

fn why_no_primary(state: &ClusterState, shard: &Shard) -> String {
    let mut broken = Vec::new();
    let mut away = BTreeSet::new();
    for copy in shard.in_sync_copies() {
        match &copy.broken {
            Some(why) if state.is_alive(copy.node) => {
                broken.push(format!("[{}]: {why}", name(state, copy.node)));
            }
            _ => {
                away.insert(format!("[{}]", name(state, copy.node)));
            }
        }
    }
    let away: Vec<_> = away.into_iter().collect();
    match (away.is_empty(), broken.is_empty()) {
        (false, true) => format!(
            "waits for a node with an in-sync copy to come back: {}",
            away.join(", ")
        ),
        (true, false) => format!("no in-sync copy can be opened: {}", broken.join("; ")),
        (false, false) => format!(
            "waits for a node with an in-sync copy to come back: {}; copies that cannot be opened: {}",
            away.join(", "),
            broken.join("; ")
        ),
        (true, true) => "the shard has no in-sync copy".to_owned(),
    }
}

/// A member's name, or the id of one that is gone.
pub(crate) fn name(state: &ClusterState, node: NodeId) -> String {
    state
        .node(node)
        .map_or_else(|| node.to_string(), |n| n.name.clone())
}

#[cfg(test)]
mod tests;
