//! What follows from the cluster state, the manager's memory and the time: a pure function.

use segmentry_allocation::{Choice, choose_primary, next_replica, next_replica_avoiding, surplus_replica};
use segmentry_state::{
    AllocationId, BootId, Change, ClusterState, Index, Node, NodeId, Shard, ShardCopy, ShardId,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use tracing::{info, warn};

/// Attempts at the same thing that follow each other within this time slow each other down.
const CALM: Duration = Duration::from_secs(30);
/// Attempts that are not slowed down: a fail-over, and one more.
const FREE_ATTEMPTS: u32 = 2;
const FIRST_DELAY: Duration = Duration::from_millis(250);
const MAX_DELAY: Duration = Duration::from_secs(15);

/// What is due now, and when to look again even if nothing happens.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    pub changes: Vec<Change>,
    pub wake: Option<Instant>,
}

impl Plan {
    fn wake_at(&mut self, at: Instant) {
        self.wake = Some(self.wake.map_or(at, |w| w.min(at)));
    }
}

/// What the manager remembers while it leads.
pub struct Memory {
    began: Instant,
    restart_patience: Duration,
    /// False until the first look: what it finds may have begun at any time before.
    looked: bool,
    /// Members that are away, since when, and whether that was seen to begin.
    away: BTreeMap<NodeId, Away>,
    /// Where copies of a shard were that are no longer listed.
    earlier: BTreeMap<ShardId, BTreeSet<NodeId>>,
    /// Copies at the last look, with their node's process.
    listed: BTreeMap<ShardId, BTreeMap<AllocationId, (NodeId, Option<BootId>)>>,
    activations: BTreeMap<ShardId, Attempts>,
    assignments: BTreeMap<(ShardId, NodeId), Attempts>,
    /// How many copies of a shard have failed on a node that was alive, in this process of it.
    failures: BTreeMap<(ShardId, NodeId), (BootId, u32)>,
    /// The last reason for which a shard waits, so that it is told once.
    waiting: BTreeMap<ShardId, String>,
}

#[derive(Debug, Clone, Copy)]
struct Away {
    since: Instant,
    seen: bool,
}

#[derive(Debug, Clone, Copy)]
struct Attempts {
    count: u32,
    last: Instant,
}

impl Attempts {
    /// When the next attempt may be made.
    fn next(self) -> Instant {
        if self.count < FREE_ATTEMPTS {
            return self.last;
        }
        let doublings = (self.count - FREE_ATTEMPTS).min(16);
        self.last + FIRST_DELAY.saturating_mul(1 << doublings).min(MAX_DELAY)
    }

    fn record(earlier: Option<Self>, now: Instant) -> Self {
        let count = earlier
            .filter(|a| now.saturating_duration_since(a.last) < CALM)
            .map_or(0, |a| a.count);
        Self {
            count: count.saturating_add(1),
            last: now,
        }
    }
}

impl Memory {
    pub fn new(began: Instant, restart_patience: Duration) -> Self {
        Self {
            began,
            restart_patience,
            looked: false,
            away: BTreeMap::new(),
            earlier: BTreeMap::new(),
            listed: BTreeMap::new(),
            activations: BTreeMap::new(),
            assignments: BTreeMap::new(),
            failures: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// Compares the state with the last one.
    fn take_in(&mut self, state: &ClusterState, now: Instant) {
        let seen = std::mem::replace(&mut self.looked, true);
        self.away
            .retain(|id, _| state.nodes.contains_key(id) && !state.is_alive(*id));
        for id in state.nodes.keys().filter(|id| !state.is_alive(**id)) {
            self.away.entry(*id).or_insert(Away { since: now, seen });
        }
        let mut listed = BTreeMap::new();
        for (id, index, shard) in state.shards() {
            let process = |n: NodeId| state.node(n).and_then(|n| n.boot_id);
            let now_listed: BTreeMap<_, _> = shard
                .copies
                .iter()
                .map(|c| (c.allocation, (c.node, process(c.node))))
                .collect();
            if let Some(before) = self.listed.get(&id) {
                let gone = before.iter().filter(|(a, _)| !now_listed.contains_key(*a));
                for (node, was) in gone.map(|(_, at)| *at) {
                    self.earlier.entry(id).or_default().insert(node);
                    // One that was wanted, and is missing now: the node cannot build it, or did not keep up.
                    let failed = state.is_alive(node) && shard.copies.len() < wanted(index);
                    if let Some(boot_id) = was.filter(|_| failed && process(node) == was) {
                        let (_, count) = self.failures.entry((id, node)).or_insert((boot_id, 0));
                        *count = count.saturating_add(1);
                    }
                }
            }
            if let Some(earlier) = self.earlier.get_mut(&id) {
                earlier.retain(|n| shard.copy_on(*n).is_none() && state.nodes.contains_key(n));
            }
            listed.insert(id, now_listed);
        }
        self.listed = listed;
        let listed = &self.listed;
        self.earlier
            .retain(|id, nodes| listed.contains_key(id) && !nodes.is_empty());
        self.activations.retain(|id, _| listed.contains_key(id));
        self.assignments.retain(|(id, _), _| listed.contains_key(id));
        self.waiting.retain(|id, _| listed.contains_key(id));
        // Another process may do better, and a copy that came to be in sync has.
        self.failures.retain(|(id, node), (boot_id, _)| {
            let same =
                state.is_alive(*node) && state.node(*node).is_some_and(|n| n.boot_id == Some(*boot_id));
            let in_sync = |shard: &Shard| {
                shard
                    .copy_on(*node)
                    .is_some_and(|c| shard.is_in_sync(c.allocation) && c.broken.is_none())
            };
            same && state.shard(*id).is_some_and(|shard| !in_sync(shard))
        });
    }

    fn failures(&self, id: ShardId, node: NodeId) -> u32 {
        self.failures.get(&(id, node)).map_or(0, |(_, count)| *count)
    }

    /// Until when a copy of the shard on a node that is away is waited for; none where it is not (any more).
    fn waited_for(&self, node: NodeId, delay: Duration, now: Instant) -> Option<Instant> {
        self.away
            .get(&node)
            .map(|a| a.since + delay)
            .filter(|end| *end > now)
    }
}

/// The Changes that are due.
pub fn plan(state: &ClusterState, memory: &mut Memory, now: Instant) -> Plan {
    memory.take_in(state, now);
    let mut plan = Plan::default();
    for (id, index, shard) in state.shards() {
        if state.primary_node(id).is_some() {
            if memory.waiting.remove(&id).is_some() {
                info!(
                    index = index.name,
                    shard = id.shard,
                    "the shard has an active primary again"
                );
            }
            keep_replicas(state, memory, now, (id, index, shard), &mut plan);
        } else {
            activate(state, memory, now, (id, index, shard), &mut plan);
        }
    }
    plan
}

type Which<'a> = (ShardId, &'a Index, &'a Shard);

fn activate(
    state: &ClusterState,
    memory: &mut Memory,
    now: Instant,
    (id, index, shard): Which<'_>,
    plan: &mut Plan,
) {
    let choice = match after_restart(state, memory, now, id, shard) {
        Recorded::Copy(copy) => Choice::Copy(copy),
        Recorded::WaitUntil(at, reason) => {
            plan.wake_at(at);
            Choice::Wait(reason)
        }
        Recorded::None => choose_primary(state, id),
    };
    match choice {
        Choice::Copy(copy) => {
            let Some(boot_id) = state.node(copy.node).and_then(|n| n.boot_id) else {
                return;
            };
            if let Some(next) = memory
                .activations
                .get(&id)
                .map(|a| a.next())
                .filter(|next| *next > now)
            {
                plan.wake_at(next);
                return;
            }
            let attempt = Attempts::record(memory.activations.get(&id).copied(), now);
            memory.activations.insert(id, attempt);
            plan.changes.push(Change::Activate {
                shard: id,
                term: shard.term + 1,
                allocation: copy.allocation,
                boot_id,
            });
        }
        Choice::Wait(reason) => {
            if memory.waiting.get(&id) != Some(&reason) {
                warn!(
                    index = index.name,
                    shard = id.shard,
                    reason,
                    "the shard has no primary"
                );
                memory.waiting.insert(id, reason);
            }
            move_uncreated(state, id, shard, plan);
        }
    }
}

/// A shard that never acknowledged anything need not wait for the node that it was given to.
fn move_uncreated(state: &ClusterState, id: ShardId, shard: &Shard, plan: &mut Plan) {
    if shard.created {
        return;
    }
    // Where every live node has a (still empty) replica, one of them makes way.
    let way = || {
        let mut replicas = shard
            .replicas()
            .filter(|c| state.is_alive(c.node) && !shard.is_in_sync(c.allocation));
        replicas.next().map(|c| (Some(c.allocation), c.node))
    };
    let Some((replica, node)) = next_replica(state, id, &[]).map(|n| (None, n)).or_else(way) else {
        return;
    };
    if let Some(allocation) = replica {
        plan.changes.push(Change::RemoveReplica {
            shard: id,
            allocation,
        });
    }
    plan.changes.push(Change::MoveUncreated {
        shard: id,
        term: shard.term,
        allocation: uuid::Uuid::new_v4(),
        node,
    });
}

enum Recorded {
    /// Not in a restart, or the record says nothing useful about this shard.
    None,
    Copy(ShardCopy),
    WaitUntil(Instant, String),
}

/// After a prepared restart of all nodes the primaries go back to where they were.
fn after_restart(
    state: &ClusterState,
    memory: &Memory,
    now: Instant,
    id: ShardId,
    shard: &Shard,
) -> Recorded {
    let Some(name) = state
        .restart
        .as_ref()
        .and_then(|r| r.primaries.get(&id.to_string()))
    else {
        return Recorded::None;
    };
    let Some(node) = state.node_by_name(name) else {
        return Recorded::None;
    };
    let Some(copy) = shard
        .copy_on(node.id)
        .filter(|c| shard.is_in_sync(c.allocation) && c.broken.is_none())
    else {
        return Recorded::None;
    };
    if state.is_alive(node.id) {
        return Recorded::Copy(copy.clone());
    }
    let until = memory.began + memory.restart_patience;
    if until > now {
        return Recorded::WaitUntil(
            until,
            format!("a restart is under way: waits for node [{name}], which had the primary"),
        );
    }
    Recorded::None
}

fn keep_replicas(state: &ClusterState, memory: &mut Memory, now: Instant, which: Which<'_>, plan: &mut Plan) {
    let (id, index, shard) = which;
    for copy in shard.replicas() {
        let last = shard.in_sync.iter().all(|a| *a == copy.allocation);
        if let Some(why) = copy.broken.as_ref().filter(|_| !last) {
            plan.changes.push(Change::FailCopy {
                shard: id,
                term: shard.term,
                allocation: copy.allocation,
                reason: format!(
                    "the copy on [{}] cannot be opened: {why}",
                    node_name(state, copy.node)
                ),
            });
            return;
        }
    }
    if let Some(copy) = surplus_replica(state, id) {
        plan.changes.push(Change::RemoveReplica {
            shard: id,
            allocation: copy.allocation,
        });
        return;
    }
    let delay = Duration::from_millis(index.settings.delayed_timeout_ms);
    let wanted = wanted(index);
    let mut counted = 0;
    for copy in &shard.copies {
        if state.is_alive(copy.node) {
            counted += 1;
        } else if let Some(end) = memory.waited_for(copy.node, delay, now) {
            counted += 1;
            plan.wake_at(end);
        }
    }
    // Copies that were failed out when their node went away are waited for too.
    for node in state.nodes.keys().filter(|n| shard.copy_on(**n).is_none()) {
        let had_one = memory.earlier.get(&id).is_some_and(|nodes| nodes.contains(node));
        let unknown = memory.away.get(node).is_some_and(|a| !a.seen);
        if let Some(end) = memory
            .waited_for(*node, delay, now)
            .filter(|_| had_one || unknown)
        {
            counted += 1;
            plan.wake_at(end);
        }
    }
    if counted < wanted {
        assign(state, memory, now, which, plan);
    }
}

fn assign(
    state: &ClusterState,
    memory: &mut Memory,
    now: Instant,
    (id, _, shard): Which<'_>,
    plan: &mut Plan,
) {
    let preferred: Vec<NodeId> = memory
        .earlier
        .get(&id)
        .map(|n| n.iter().copied().collect())
        .unwrap_or_default();
    let failures = |node| memory.failures(id, node);
    let Some(node) = next_replica_avoiding(state, id, &preferred, failures) else {
        return;
    };
    if let Some(next) = memory
        .assignments
        .get(&(id, node))
        .map(|a| a.next())
        .filter(|next| *next > now)
    {
        plan.wake_at(next);
        return;
    }
    let attempt = Attempts::record(memory.assignments.get(&(id, node)).copied(), now);
    memory.assignments.insert((id, node), attempt);
    plan.changes.push(Change::AssignReplica {
        shard: id,
        term: shard.term,
        allocation: uuid::Uuid::new_v4(),
        node,
    });
}

/// Copies that an index wants of each shard.
fn wanted(index: &Index) -> usize {
    usize::try_from(index.settings.number_of_replicas)
        .unwrap_or(usize::MAX)
        .saturating_add(1)
}

fn node_name(state: &ClusterState, id: NodeId) -> String {
    state
        .node(id)
        .map_or_else(|| id.to_string(), |n: &Node| n.name.clone())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
