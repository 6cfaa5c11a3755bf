//! Even spreading.

use segmentry_settings::index::IndexSettings;
use segmentry_state::{ClusterState, IndexUuid, NodeId, Shard, ShardCopy, ShardId};
use std::collections::BTreeMap;
use uuid::Uuid;

/// The cluster has no member that could hold a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoNode;

impl std::fmt::Display for NoNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the cluster has no member that could hold a copy")
    }
}

impl std::error::Error for NoNode {}

/// How many primaries of the shard's index, and of all indices, a node has.
pub(crate) fn primaries(state: &ClusterState, id: ShardId, node: NodeId) -> (usize, usize) {
    let mut of_index = 0;
    let mut of_all = 0;
    for (other, _, shard) in state.shards() {
        if other != id && shard.primary_copy().is_some_and(|c| c.node == node) {
            of_all += 1;
            of_index += usize::from(other.index == id.index);
        }
    }
    (of_index, of_all)
}

/// How many copies of an index, and of all indices, a node has.
fn copies(state: &ClusterState, index: IndexUuid, node: NodeId) -> (usize, usize) {
    state
        .copies_on(node)
        .fold((0, 0), |(of_index, of_all), (id, ..)| {
            (of_index + usize::from(id.index == index), of_all + 1)
        })
}

/// What a node holds while a new index is being assigned.
#[derive(Debug, Clone, Default)]
struct Load {
    name: String,
    primaries: usize,
    copies: usize,
    new_primaries: usize,
    new_copies: usize,
}

/// The first assignment of a new index: every shard with its primary (in sync, term 0, not created) and its replicas.
///
/// Copies go to live nodes; where none is alive, primaries are given to members that are away and wait for them. Fewer nodes
/// than copies leave replicas unassigned. `ids` gives random ids: allocations and histories.
///
/// # Errors
/// The cluster has no member.
pub fn assign_new(
    state: &ClusterState,
    settings: &IndexSettings,
    mut ids: impl FnMut() -> Uuid,
) -> Result<Vec<Shard>, NoNode> {
    let prefer = state.cluster_settings().prefer_primary;
    let any_alive = state.alive().next().is_some();
    let mut loads: BTreeMap<NodeId, Load> = state
        .nodes
        .values()
        .filter(|n| !any_alive || state.is_alive(n.id))
        .map(|n| {
            (
                n.id,
                Load {
                    name: n.name.clone(),
                    ..Load::default()
                },
            )
        })
        .collect();
    for (_, _, shard) in state.shards() {
        for copy in &shard.copies {
            if let Some(load) = loads.get_mut(&copy.node) {
                load.copies += 1;
                load.primaries += usize::from(shard.primary == Some(copy.allocation));
            }
        }
    }
    if loads.is_empty() {
        return Err(NoNode);
    }
    let mut shards: Vec<Shard> = Vec::new();
    for number in 0..settings.number_of_shards {
        let node = least(
            &loads,
            |_| true,
            |l| {
                if prefer {
                    (l.new_primaries, l.primaries, l.copies)
                } else {
                    (l.new_copies, l.copies, 0)
                }
            },
        )
        .ok_or(NoNode)?;
        let allocation = ids();
        take(&mut loads, node, true);
        shards.push(Shard {
            number,
            term: 0,
            history: ids(),
            created: false,
            primary: Some(allocation),
            active: None,
            started: false,
            in_sync: [allocation].into(),
            copies: vec![ShardCopy {
                allocation,
                node,
                broken: None,
            }],
            unassigned_reason: None,
        });
    }
    // All primaries first: replicas then even out what they left.
    for _ in 0..settings.number_of_replicas {
        for shard in &mut shards {
            let free = |id: NodeId| shard.copy_on(id).is_none();
            let Some(node) = least(&loads, free, |l| (l.new_copies, l.copies, 0)) else {
                continue;
            };
            take(&mut loads, node, false);
            shard.copies.push(ShardCopy {
                allocation: ids(),
                node,
                broken: None,
            });
        }
    }
    even_out(&mut shards, &mut loads);
    Ok(shards)
}

/// One choice at a time may crowd a node: replicas move from the fullest node to the emptiest one while that helps.
fn even_out(shards: &mut [Shard], loads: &mut BTreeMap<NodeId, Load>) {
    // Each move brings two counts closer together, so this ends; the bound only says so to the reader.
    for _ in 0..shards.len() * loads.len() {
        let by_count = |(id, l): (&NodeId, &Load)| (l.new_copies, l.name.clone(), *id);
        let (Some(full), Some(empty)) = (loads.iter().map(by_count).max(), loads.iter().map(by_count).min())
        else {
            return;
        };
        if full.0 <= empty.0 + 1 {
            return;
        }
        let movable = shards.iter_mut().find_map(|shard| {
            let primary = shard.primary;
            let free = shard.copy_on(empty.2).is_none();
            shard
                .copies
                .iter_mut()
                .find(|c| free && c.node == full.2 && Some(c.allocation) != primary)
        });
        let Some(copy) = movable else { return };
        copy.node = empty.2;
        for (node, up) in [(full.2, false), (empty.2, true)] {
            if let Some(load) = loads.get_mut(&node) {
                load.new_copies = if up {
                    load.new_copies + 1
                } else {
                    load.new_copies - 1
                };
                load.copies = if up { load.copies + 1 } else { load.copies - 1 };
            }
        }
    }
}

fn take(loads: &mut BTreeMap<NodeId, Load>, node: NodeId, primary: bool) {
    if let Some(load) = loads.get_mut(&node) {
        load.copies += 1;
        load.new_copies += 1;
        load.primaries += usize::from(primary);
        load.new_primaries += usize::from(primary);
    }
}

fn least(
    loads: &BTreeMap<NodeId, Load>,
    may: impl Fn(NodeId) -> bool,
    key: impl Fn(&Load) -> (usize, usize, usize),
) -> Option<NodeId> {
    loads
        .iter()
        .filter(|(id, _)| may(**id))
        .min_by(|(_, a), (_, b)| key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name)))
        .map(|(id, _)| *id)
}

/// The live node that a further copy of the shard is built on: one without a copy, `preferred` (where files of an earlier
/// copy lie) if it is one of them, else the one with the fewest copies.
pub fn next_replica(state: &ClusterState, id: ShardId, preferred: &[NodeId]) -> Option<NodeId> {
    next_replica_avoiding(state, id, preferred, |_| 0)
}

/// The same, and above all a node where few copies of the shard have failed.
pub fn next_replica_avoiding(
    state: &ClusterState,
    id: ShardId,
    preferred: &[NodeId],
    failures: impl Fn(NodeId) -> u32,
) -> Option<NodeId> {
    let shard = state.shard(id)?;
    state
        .alive()
        .filter(|n| shard.copy_on(n.id).is_none())
        .min_by_key(|n| {
            (
                failures(n.id),
                !preferred.contains(&n.id),
                copies(state, id.index, n.id),
                n.name.clone(),
            )
        })
        .map(|n| n.id)
}

/// The replica that goes where more copies are listed than wanted: one that cannot serve first (its node away, broken, not
/// in sync), else the one on the node with the most copies. Never the primary, never the last in-sync copy.
pub fn surplus_replica(state: &ClusterState, id: ShardId) -> Option<ShardCopy> {
    let (index, shard) = (state.index(id.index)?, state.shard(id)?);
    let wanted = usize::try_from(index.settings.number_of_replicas)
        .ok()?
        .checked_add(1)?;
    if shard.copies.len() <= wanted {
        return None;
    }
    let serves =
        |c: &ShardCopy| shard.is_in_sync(c.allocation) && c.broken.is_none() && state.is_alive(c.node);
    let may_go = |copy: &ShardCopy| {
        let others = || shard.copies.iter().filter(|c| c.allocation != copy.allocation);
        let last = shard.in_sync.iter().all(|a| *a == copy.allocation);
        let enough_serve = others().filter(|c| serves(c)).count() >= wanted;
        // A copy that is not in sync is no loss where enough others serve or are being built.
        let enough_listed = others()
            .filter(|c| c.broken.is_none() && state.is_alive(c.node))
            .count()
            >= wanted;
        !last && (enough_serve || (enough_listed && !shard.is_in_sync(copy.allocation)))
    };
    shard
        .replicas()
        .filter(|c| may_go(c))
        .max_by_key(|c| {
            let (dead, late) = (!state.is_alive(c.node), !shard.is_in_sync(c.allocation));
            (
                dead,
                c.broken.is_some(),
                late,
                copies(state, id.index, c.node),
                crate::name(state, c.node),
            )
        })
        .cloned()
}
