//! What holds in every cluster state, and between a state and its successor: one list, used by `debug_assert!` in
//! [`ClusterState::apply`] and by the property tests.

use crate::ClusterState;
use std::collections::BTreeSet;

/// A named predicate over one state.
pub type Predicate = (&'static str, fn(&ClusterState) -> Result<(), String>);
/// A named predicate over a state and its successor.
pub type Transition = (
    &'static str,
    fn(&ClusterState, &ClusterState) -> Result<(), String>,
);

/// Predicates over one state.
pub const ALWAYS: [Predicate; 8] = [
    ("in_sync ⊆ copies", in_sync_is_listed),
    ("primary ∈ in_sync", primary_is_in_sync),
    ("in_sync is never empty", someone_is_in_sync),
    (
        "one copy of a shard per node, one node per allocation",
        copies_are_apart,
    ),
    (
        "only a named primary is active, only an active one is started",
        activity_is_named,
    ),
    (
        "index names are unique and no index has a tombstone",
        names_are_unique,
    ),
    ("shards are numbered 0..number_of_shards", shards_are_numbered),
    (
        "node names are unique and an alive node has a boot id",
        nodes_are_apart,
    ),
];

/// Predicates over a state and its successor.
pub const BETWEEN: [Transition; 5] = [
    ("version grows by one", version_grows),
    ("a term only grows, and an activation has its own", terms_grow),
    ("a created shard stays created", created_stays),
    ("the cluster uuid and the epoch never go back", identity_stays),
    ("mapping and settings versions only grow", versions_grow),
];

/// The names of the broken predicates, with what breaks them.
pub fn broken(state: &ClusterState) -> Vec<String> {
    ALWAYS
        .iter()
        .filter_map(|(name, holds)| holds(state).err().map(|why| format!("{name}: {why}")))
        .collect()
}

/// The names of the broken transitions, with what breaks them.
pub fn broken_between(before: &ClusterState, after: &ClusterState) -> Vec<String> {
    BETWEEN
        .iter()
        .filter_map(|(name, holds)| holds(before, after).err().map(|why| format!("{name}: {why}")))
        .collect()
}

fn fail_if(bad: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if bad { Err(why()) } else { Ok(()) }
}

fn in_sync_is_listed(state: &ClusterState) -> Result<(), String> {
    for (id, _, shard) in state.shards() {
        for allocation in &shard.in_sync {
            fail_if(shard.copy(*allocation).is_none(), || {
                format!("{id}: {allocation} is not listed")
            })?;
        }
    }
    Ok(())
}

fn primary_is_in_sync(state: &ClusterState) -> Result<(), String> {
    for (id, _, shard) in state.shards() {
        if let Some(primary) = shard.primary {
            fail_if(!shard.in_sync.contains(&primary), || format!("{id}: {primary}"))?;
        }
    }
    Ok(())
}

fn someone_is_in_sync(state: &ClusterState) -> Result<(), String> {
    state
        .shards()
        .try_for_each(|(id, _, shard)| fail_if(shard.in_sync.is_empty(), || id.to_string()))
}

fn copies_are_apart(state: &ClusterState) -> Result<(), String> {
    let mut allocations = BTreeSet::new();
    for (id, _, shard) in state.shards() {
        let mut nodes = BTreeSet::new();
        for copy in &shard.copies {
            fail_if(!nodes.insert(copy.node), || {
                format!("{id}: two copies on {}", copy.node)
            })?;
            fail_if(!allocations.insert(copy.allocation), || {
                format!("{id}: {} is listed twice", copy.allocation)
            })?;
        }
    }
    Ok(())
}

fn activity_is_named(state: &ClusterState) -> Result<(), String> {
    for (id, _, shard) in state.shards() {
        fail_if(shard.active.is_some() && shard.primary.is_none(), || {
            format!("{id}: active without a primary")
        })?;
        fail_if(shard.started && shard.active.is_none(), || {
            format!("{id}: started without a process")
        })?;
        fail_if(shard.started && !shard.created, || {
            format!("{id}: started and not created")
        })?;
    }
    Ok(())
}

fn names_are_unique(state: &ClusterState) -> Result<(), String> {
    let mut names = BTreeSet::new();
    for (uuid, index) in &state.indices {
        fail_if(index.uuid != *uuid, || format!("{uuid}: holds {}", index.uuid))?;
        fail_if(!names.insert(&index.name), || index.name.clone())?;
        fail_if(state.tombstones.contains_key(uuid), || {
            format!("{uuid}: has a tombstone")
        })?;
    }
    Ok(())
}

fn shards_are_numbered(state: &ClusterState) -> Result<(), String> {
    for index in state.indices.values() {
        let wanted = 0..index.settings.number_of_shards;
        fail_if(!index.shards.iter().map(|s| s.number).eq(wanted), || {
            index.name.clone()
        })?;
    }
    Ok(())
}

fn nodes_are_apart(state: &ClusterState) -> Result<(), String> {
    let mut names = BTreeSet::new();
    for (id, node) in &state.nodes {
        fail_if(node.id != *id, || format!("{id}: holds {}", node.id))?;
        fail_if(!names.insert(&node.name), || node.name.clone())?;
        fail_if(node.alive && node.boot_id.is_none(), || {
            format!("{id}: alive without a boot id")
        })?;
    }
    Ok(())
}

fn version_grows(before: &ClusterState, after: &ClusterState) -> Result<(), String> {
    fail_if(after.version != before.version + 1, || {
        format!("{} -> {}", before.version, after.version)
    })
}

fn terms_grow(before: &ClusterState, after: &ClusterState) -> Result<(), String> {
    for (id, _, old) in before.shards() {
        let Some(new) = after.shard(id) else { continue };
        fail_if(new.term < old.term || new.term > old.term + 1, || {
            format!("{id}: {} -> {}", old.term, new.term)
        })?;
        let activation = |s: &crate::Shard| (s.primary, s.active);
        let other = new.active.is_some() && activation(new) != activation(old);
        fail_if(other && new.term == old.term, || {
            format!("{id}: two activations in term {}", new.term)
        })?;
    }
    Ok(())
}

fn created_stays(before: &ClusterState, after: &ClusterState) -> Result<(), String> {
    for (id, _, old) in before.shards() {
        let gone = old.created && after.shard(id).is_some_and(|new| !new.created);
        fail_if(gone, || id.to_string())?;
    }
    Ok(())
}

fn identity_stays(before: &ClusterState, after: &ClusterState) -> Result<(), String> {
    fail_if(
        before.cluster_uuid.is_some() && before.cluster_uuid != after.cluster_uuid,
        || "cluster uuid".into(),
    )?;
    fail_if(after.epoch < before.epoch, || {
        format!("epoch {} -> {}", before.epoch, after.epoch)
    })
}

fn versions_grow(before: &ClusterState, after: &ClusterState) -> Result<(), String> {
    for (uuid, old) in &before.indices {
        let Some(new) = after.indices.get(uuid) else {
            continue;
        };
        fail_if(new.mapping.version < old.mapping.version, || {
            format!("{uuid}: mapping")
        })?;
        fail_if(new.settings_version < old.settings_version, || {
            format!("{uuid}: settings")
        })?;
        let silent = new.settings != old.settings && new.settings_version == old.settings_version;
        fail_if(silent, || format!("{uuid}: settings changed under one version"))?;
    }
    Ok(())
}
