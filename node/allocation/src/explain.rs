//! Why a copy is not started, one sentence each.

use crate::{Choice, choose_primary, name, next_replica};
use segmentry_settings::units::format_time_ms;
use segmentry_state::{ClusterState, CopyState, Shard, ShardCopy, ShardId};

/// Why a listed copy is not started; none where it is.
pub fn explain(state: &ClusterState, id: ShardId, copy: &ShardCopy) -> Option<String> {
    let (index, shard) = (state.index(id.index)?, state.shard(id)?);
    if state.copy_state(shard, copy) == CopyState::Started {
        return None;
    }
    let node = name(state, copy.node);
    if !state.is_alive(copy.node) {
        let delay = format_time_ms(index.settings.delayed_timeout_ms);
        let waited = if shard.is_in_sync(copy.allocation) && shard.in_sync.len() == 1 {
            "it is the only in-sync copy, so the shard waits for it".to_owned()
        } else if shard.primary == Some(copy.allocation) {
            "another in-sync copy takes over".to_owned()
        } else {
            format!(
                "another one is built elsewhere once [index.unassigned.node_left.delayed_timeout] of {delay} has passed"
            )
        };
        return Some(format!("node [{node}] is away; {waited}"));
    }
    if let Some(why) = &copy.broken {
        return Some(format!("the copy on [{node}] cannot be opened: {why}"));
    }
    if shard.primary == Some(copy.allocation) {
        return Some(explain_primary(state, id, shard, &node));
    }
    if state.primary_serves(id) {
        Some(format!(
            "the copy on [{node}] is being recovered from the primary"
        ))
    } else {
        Some(format!("the copy on [{node}] waits for the primary to start"))
    }
}

fn explain_primary(state: &ClusterState, id: ShardId, shard: &Shard, node: &str) -> String {
    if state.primary_node(id).is_some() {
        return format!(
            "the primary on [{node}] is being activated in term {}",
            shard.term
        );
    }
    let why = shard
        .unassigned_reason
        .as_ref()
        .map(|r| format!(" (last: {r})"))
        .unwrap_or_default();
    match choose_primary(state, id) {
        Choice::Copy(copy) => format!(
            "the copy on [{}] is about to be activated{why}",
            name(state, copy.node)
        ),
        Choice::Wait(reason) => format!("{reason}{why}"),
    }
}

/// Why a shard is not green, one sentence for each copy that is not started or not assigned.
pub fn explain_shard(state: &ClusterState, id: ShardId) -> Vec<String> {
    let (Some(index), Some(shard)) = (state.index(id.index), state.shard(id)) else {
        return Vec::new();
    };
    let mut out: Vec<String> = shard
        .copies
        .iter()
        .filter_map(|c| explain(state, id, c))
        .collect();
    if shard.primary.is_none() {
        let sentence = match choose_primary(state, id) {
            Choice::Copy(copy) => format!(
                "the copy on [{}] is about to be activated",
                name(state, copy.node)
            ),
            Choice::Wait(reason) => reason,
        };
        out.insert(0, sentence);
    }
    let wanted = usize::try_from(index.settings.number_of_replicas)
        .unwrap_or(usize::MAX)
        .saturating_add(1);
    let missing = wanted.saturating_sub(shard.copies.len());
    if missing > 0 {
        let why = match next_replica(state, id, &[]) {
            Some(_) if shard.active.is_none() => "is assigned once the primary is active".to_owned(),
            Some(node) => match &shard.unassigned_reason {
                Some(reason) => format!(
                    "is about to be built, on [{}] or where it was (last: {reason})",
                    name(state, node)
                ),
                None => format!("is about to be built on [{}]", name(state, node)),
            },
            None => format!(
                "has no place: each of the {} live nodes has a copy already",
                state.alive().count()
            ),
        };
        let count = if missing == 1 {
            "one replica".to_owned()
        } else {
            format!("{missing} replicas")
        };
        out.push(format!("{count} of [{}][{}] {why}", index.name, id.shard));
    }
    out
}

/// What keeps the cluster from being settled, one sentence each, at most `limit`: a copy that is listed and not started, or a
/// wanted one that has a place and is not there. Replicas for which there is no node do not count.
pub fn unsettled(state: &ClusterState, limit: usize) -> Vec<String> {
    let mut out = Vec::new();
    for (id, index, shard) in state.shards() {
        let wanted = usize::try_from(index.settings.number_of_replicas)
            .unwrap_or(usize::MAX)
            .saturating_add(1);
        let waits = shard.primary.is_none()
            || shard
                .copies
                .iter()
                .any(|c| state.copy_state(shard, c) != CopyState::Started);
        let missing = shard.copies.len() < wanted && next_replica(state, id, &[]).is_some();
        if waits || missing || shard.copies.len() > wanted {
            let why = explain_shard(state, id);
            let why = if why.is_empty() {
                "a replica too many is about to be removed".to_owned()
            } else {
                why.join("; ")
            };
            out.push(format!("[{}][{}]: {why}", index.name, id.shard));
        }
        if out.len() == limit {
            break;
        }
    }
    out
}
