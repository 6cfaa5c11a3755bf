#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
use super::*;
use segmentry_allocation::assign_new;
use segmentry_settings::{admin::Health, admin::RestartRecord, index::IndexSettings};
use segmentry_state::BootId;
use std::sync::Arc;
use uuid::Uuid;

const MINUTE: Duration = Duration::from_secs(60);

struct World {
    state: ClusterState,
    memory: Memory,
    now: Instant,
}

fn node(n: u64) -> Node {
    Node {
        id: NodeId(n),
        name: format!("n-{n}"),
        address: format!("n-{n}:9300"),
        rest_address: String::new(),
        boot_id: Some(BootId::new_v4()),
        alive: true,
        version: String::new(),
        format_written: 1,
        formats_readable: [1].into(),
        disk_id: None,
    }
}

impl World {
    fn new(nodes: u64) -> Self {
        let nodes = (1..=nodes).map(|n| (NodeId(n), node(n))).collect();
        let state = ClusterState {
            cluster_uuid: Some(Uuid::from_u128(1)),
            nodes,
            ..ClusterState::default()
        };
        let now = Instant::now();
        let mut memory = Memory::new(now, MINUTE);
        plan(&state, &mut memory, now);
        Self { state, memory, now }
    }

    fn create(&mut self, shards: u32, replicas: u32) -> Uuid {
        let settings = IndexSettings {
            number_of_shards: shards,
            number_of_replicas: replicas,
            ..IndexSettings::default()
        };
        let shards = assign_new(&self.state, &settings, Uuid::new_v4).unwrap();
        let uuid = Uuid::new_v4();
        let index = Index {
            uuid,
            name: format!("i-{uuid}"),
            settings,
            settings_version: 0,
            mapping: Arc::default(),
            owner: None,
            created_ms: 0,
            shards,
        };
        self.apply(Change::CreateIndex {
            epoch: None,
            index: Box::new(index),
        });
        uuid
    }

    fn apply(&mut self, change: Change) {
        self.state.apply(change).unwrap();
    }

    /// Plans and applies until nothing is due; the node side answers activations and recoveries of live nodes at once.
    fn settle(&mut self) -> Vec<Change> {
        let mut all = Vec::new();
        for _ in 0..50 {
            let changes = plan(&self.state, &mut self.memory, self.now).changes;
            if changes.is_empty() {
                return all;
            }
            for change in &changes {
                self.apply(change.clone());
            }
            all.extend(changes);
            self.nodes_answer();
        }
        panic!("the plan never settles: {all:?}");
    }

    fn nodes_answer(&mut self) {
        let shards: Vec<_> = self.state.shards().map(|(id, _, s)| (id, s.clone())).collect();
        for (id, shard) in shards {
            let Some(boot_id) = self.state.primary_node(id).and_then(|n| n.boot_id) else {
                continue;
            };
            self.apply(Change::PrimaryStarted {
                shard: id,
                term: shard.term,
                boot_id,
            });
            for copy in shard
                .replicas()
                .filter(|c| self.state.is_alive(c.node) && c.broken.is_none())
                .cloned()
                .collect::<Vec<_>>()
            {
                self.apply(Change::AddInSync {
                    shard: id,
                    term: shard.term,
                    allocation: copy.allocation,
                });
            }
        }
    }

    fn lose(&mut self, id: NodeId) {
        let boot_id = self.state.node(id).unwrap().boot_id.unwrap();
        self.apply(Change::NodeLost { node: id, boot_id });
    }

    fn back(&mut self, id: NodeId) {
        let mut node = self.state.node(id).unwrap().clone();
        node.boot_id = Some(BootId::new_v4());
        node.alive = true;
        self.apply(Change::NodeJoined { node });
    }

    fn shard(&self, index: Uuid) -> Shard {
        self.state.shard(ShardId { index, shard: 0 }).unwrap().clone()
    }

    fn primary(&self, index: Uuid) -> NodeId {
        self.shard(index).primary_copy().unwrap().node
    }

    /// The primary fails the copies of a node out, as the next write does.
    fn fail_copies_on(&mut self, id: NodeId) {
        let copies: Vec<_> = self
            .state
            .copies_on(id)
            .map(|(s, _, shard, c)| (s, shard.term, c.allocation))
            .collect();
        for (shard, term, allocation) in copies {
            // The primary of a shard cannot be failed out.
            let _ = self.state.apply(Change::FailCopy {
                shard,
                term,
                allocation,
                reason: "no answer".into(),
            });
        }
    }
}

#[test]
fn a_new_index_becomes_green() {
    let mut world = World::new(3);
    world.create(4, 2);
    world.settle();
    assert_eq!(world.state.health(), Health::Green);
}

#[test]
fn a_lost_primary_is_followed_by_an_in_sync_copy_under_the_next_term() {
    let mut world = World::new(3);
    let index = world.create(1, 1);
    world.settle();
    let (old, term) = (world.primary(index), world.shard(index).term);
    world.lose(old);
    let changes = world.settle();
    assert!(
        matches!(&changes[..], [Change::Activate { term: t, .. }] if *t == term + 1),
        "one activation, nothing is rebuilt within the delay: {changes:?}"
    );
    assert_ne!(world.primary(index), old);
}

#[test]
fn a_shard_without_an_in_sync_copy_on_a_live_node_waits_and_is_never_started_empty() {
    let mut world = World::new(3);
    let index = world.create(1, 1);
    world.settle();
    let old = world.primary(index);
    let other = world.shard(index).replicas().next().unwrap().node;
    world.lose(other);
    world.settle();
    world.fail_copies_on(other);
    world.now += 2 * MINUTE;
    // The rebuilt copy never gets in sync before the primary is lost as well.
    let rebuild = plan(&world.state, &mut world.memory, world.now).changes;
    assert!(
        matches!(&rebuild[..], [Change::AssignReplica { .. }]),
        "{rebuild:?}"
    );
    world.apply(rebuild[0].clone());
    world.lose(old);
    world.back(other);
    world.now += 10 * MINUTE;
    let changes = plan(&world.state, &mut world.memory, world.now).changes;
    assert_eq!(changes, [], "nobody in sync is alive");
    assert_eq!(world.state.health(), Health::Red);
    let why = segmentry_allocation::explain_shard(&world.state, ShardId { index, shard: 0 });
    assert!(
        why.iter()
            .any(|s| s.contains(&world.state.node(old).unwrap().name)),
        "{why:?}"
    );
    world.back(old);
    world.settle();
    assert_eq!(world.state.health(), Health::Green);
    assert_eq!(world.primary(index), old);
}

#[test]
fn a_copy_of_a_lost_node_is_rebuilt_elsewhere_only_after_the_delay() {
    let mut world = World::new(3);
    let index = world.create(1, 1);
    world.settle();
    let lost = world.shard(index).replicas().next().unwrap().node;
    world.lose(lost);
    world.settle();
    world.fail_copies_on(lost);
    let early = plan(&world.state, &mut world.memory, world.now);
    assert_eq!(early.changes, []);
    let wake = early.wake.expect("the manager looks again when the delay ends");
    assert_eq!(wake.saturating_duration_since(world.now), MINUTE);
    world.now = wake;
    let changes = world.settle();
    assert!(
        matches!(&changes[..], [Change::AssignReplica { node, .. }] if *node != lost),
        "{changes:?}"
    );
    assert_eq!(world.state.health(), Health::Green);
}

#[test]
fn a_copy_is_rebuilt_at_once_on_the_node_that_came_back() {
    let mut world = World::new(4);
    let index = world.create(1, 1);
    world.settle();
    let lost = world.shard(index).replicas().next().unwrap().node;
    world.lose(lost);
    world.settle();
    world.fail_copies_on(lost);
    world.settle();
    world.back(lost);
    let changes = world.settle();
    assert!(
        matches!(&changes[..], [Change::AssignReplica { node, .. }] if *node == lost),
        "{changes:?}"
    );
}

#[test]
fn a_returned_node_with_a_copy_that_stayed_in_sync_changes_nothing() {
    let mut world = World::new(3);
    let index = world.create(1, 2);
    world.settle();
    let lost = world.shard(index).replicas().next().unwrap().node;
    world.lose(lost);
    world.settle();
    world.back(lost);
    assert_eq!(world.settle(), []);
    assert_eq!(world.state.health(), Health::Green);
}

#[test]
fn a_restarted_primary_gets_its_shard_back_under_the_next_term() {
    let mut world = World::new(1);
    let index = world.create(1, 0);
    world.settle();
    let (node, term) = (world.primary(index), world.shard(index).term);
    world.back(node);
    assert!(world.state.primary_node(ShardId { index, shard: 0 }).is_none());
    world.settle();
    assert_eq!(world.shard(index).term, term + 1);
    assert_eq!(world.state.health(), Health::Green);
}

#[test]
fn a_copy_that_stays_listed_on_a_dead_node_is_replaced_after_the_delay_and_then_removed() {
    let mut world = World::new(3);
    let index = world.create(1, 1);
    world.settle();
    let lost = world.shard(index).replicas().next().unwrap().node;
    world.lose(lost);
    assert_eq!(world.settle(), []);
    world.now += MINUTE;
    let changes = world.settle();
    assert!(
        matches!(
            &changes[..],
            [Change::AssignReplica { .. }, Change::RemoveReplica { .. }]
        ),
        "{changes:?}"
    );
    assert!(world.shard(index).copy_on(lost).is_none());
    assert_eq!(world.state.health(), Health::Green);
}

#[test]
fn the_number_of_replicas_is_followed_up_and_down() {
    let mut world = World::new(3);
    let index = world.create(2, 0);
    world.settle();
    for wanted in [2, 1, 0, 2] {
        let settings = [("index.number_of_replicas".to_owned(), Some(wanted.to_string()))].into();
        world.apply(Change::UpdateSettings {
            epoch: None,
            index,
            owner: None,
            settings,
        });
        world.settle();
        for shard in &world.state.index(index).unwrap().shards {
            assert_eq!(shard.copies.len(), wanted + 1);
        }
        assert_eq!(world.state.health(), Health::Green);
    }
}

#[test]
fn replicas_wanted_while_a_node_is_away_that_never_had_one_are_built_at_once() {
    let mut world = World::new(3);
    let index = world.create(1, 0);
    world.settle();
    let idle: Vec<_> = world
        .state
        .nodes
        .keys()
        .copied()
        .filter(|n| world.shard(index).copy_on(*n).is_none())
        .collect();
    world.lose(idle[0]);
    world.settle();
    let settings = [("index.number_of_replicas".to_owned(), Some("1".to_owned()))].into();
    world.apply(Change::UpdateSettings {
        epoch: None,
        index,
        owner: None,
        settings,
    });
    let changes = world.settle();
    assert!(
        matches!(&changes[..], [Change::AssignReplica { node, .. }] if *node == idle[1]),
        "{changes:?}"
    );
}

#[test]
fn a_new_leader_waits_for_nodes_whose_loss_it_did_not_see() {
    let mut world = World::new(3);
    let index = world.create(1, 1);
    world.settle();
    let lost = world.shard(index).replicas().next().unwrap().node;
    world.lose(lost);
    world.fail_copies_on(lost);
    world.memory = Memory::new(world.now, MINUTE);
    assert_eq!(world.settle(), []);
    world.now += MINUTE;
    assert!(matches!(&world.settle()[..], [Change::AssignReplica { .. }]));
}

#[test]
fn a_primary_that_fails_again_and_again_is_activated_more_and_more_slowly() {
    let mut world = World::new(1);
    let index = world.create(1, 0);
    let id = ShardId { index, shard: 0 };
    let mut delays = Vec::new();
    for _ in 0..8 {
        let planned = plan(&world.state, &mut world.memory, world.now);
        let planned = if planned.changes.is_empty() {
            let wake = planned.wake.unwrap();
            delays.push(wake - world.now);
            world.now = wake;
            plan(&world.state, &mut world.memory, world.now)
        } else {
            delays.push(Duration::ZERO);
            planned
        };
        assert!(
            matches!(&planned.changes[..], [Change::Activate { .. }]),
            "{planned:?}"
        );
        world.apply(planned.changes[0].clone());
        let term = world.state.shard(id).unwrap().term;
        world.apply(Change::PrimaryFailed {
            shard: id,
            term,
            reason: "no space".into(),
        });
    }
    assert_eq!(delays[..2], [Duration::ZERO; 2]);
    assert!(delays[2..].windows(2).all(|w| w[0] < w[1]), "{delays:?}");
    world.now += 2 * CALM;
    assert_eq!(
        plan(&world.state, &mut world.memory, world.now).changes.len(),
        1,
        "calm is forgiven"
    );
}

#[test]
fn a_broken_replica_is_failed_out_and_rebuilt() {
    let mut world = World::new(2);
    let index = world.create(1, 1);
    world.settle();
    let broken = world.shard(index).replicas().next().unwrap().clone();
    let id = ShardId { index, shard: 0 };
    world.apply(Change::CopyBroken {
        shard: id,
        allocation: broken.allocation,
        reason: "bad file".into(),
    });
    let changes = world.settle();
    assert!(
        matches!(
            &changes[..],
            [Change::FailCopy { .. }, Change::AssignReplica { .. }]
        ),
        "{changes:?}"
    );
    assert_ne!(
        world.shard(index).copy_on(broken.node).unwrap().allocation,
        broken.allocation
    );
}

#[test]
fn a_replica_that_a_node_cannot_build_is_built_on_another_one() {
    let mut world = World::new(3);
    let index = world.create(1, 1);
    world.settle();
    let id = ShardId { index, shard: 0 };
    let first = world.shard(index).replicas().next().unwrap().clone();
    let fail = |world: &mut World| {
        let term = world.shard(index).term;
        let allocation = world.shard(index).copy_on(first.node).unwrap().allocation;
        world.apply(Change::FailCopy {
            shard: id,
            term,
            allocation,
            reason: "its disk hangs".into(),
        });
    };
    fail(&mut world);
    world.settle();
    let moved = world.shard(index).replicas().next().unwrap().clone();
    assert_ne!(moved.node, first.node);
    // Where there is no other place, it is tried there again.
    world.lose(moved.node);
    world.settle();
    world.now += 2 * MINUTE;
    world.settle();
    assert!(world.shard(index).copy_on(first.node).is_some());
    // A new process of that node begins with a clean slate.
    world.back(moved.node);
    world.settle();
    fail(&mut world);
    world.back(first.node);
    world.settle();
    assert_eq!(
        world.shard(index).replicas().map(|c| c.node).collect::<Vec<_>>(),
        [first.node],
        "its files are there"
    );
}

#[test]
fn a_broken_primary_makes_way_for_an_in_sync_copy() {
    let mut world = World::new(2);
    let index = world.create(1, 1);
    world.settle();
    let old = world.shard(index).primary_copy().unwrap().clone();
    world.apply(Change::CopyBroken {
        shard: ShardId { index, shard: 0 },
        allocation: old.allocation,
        reason: "bad file".into(),
    });
    world.settle();
    assert_ne!(world.primary(index), old.node);
    assert_eq!(world.state.health(), Health::Green);
}

#[test]
fn a_shard_that_never_acknowledged_anything_moves_to_a_live_node() {
    for (nodes, replicas) in [(2, 0), (3, 2)] {
        let mut world = World::new(nodes);
        let index = world.create(1, replicas);
        let first = world.primary(index);
        world.lose(first);
        world.settle();
        assert_ne!(world.primary(index), first);
        assert!(world.state.primary_serves(ShardId { index, shard: 0 }));
    }
}

#[test]
fn after_a_prepared_restart_primaries_go_back_to_where_they_were() {
    let mut world = World::new(3);
    let index = world.create(1, 2);
    world.settle();
    let old = world.primary(index);
    let name = world.state.node(old).unwrap().name.clone();
    let id = ShardId { index, shard: 0 };
    let record = RestartRecord {
        target: "h".into(),
        primaries: [(id.to_string(), name)].into(),
    };
    world.apply(Change::RestartPrepared { epoch: 1, record });
    for n in world.state.nodes.keys().copied().collect::<Vec<_>>() {
        world.lose(n);
    }
    world.memory = Memory::new(world.now, MINUTE);
    for n in world
        .state
        .nodes
        .keys()
        .copied()
        .filter(|n| *n != old)
        .collect::<Vec<_>>()
    {
        world.back(n);
    }
    let waiting = plan(&world.state, &mut world.memory, world.now);
    assert_eq!(waiting.changes, [], "the node that had the primary is waited for");
    assert_eq!(waiting.wake, Some(world.now + MINUTE));
    let mut patient = world.state.clone();
    world.back(old);
    world.settle();
    assert_eq!(world.primary(index), old);
    std::mem::swap(&mut world.state, &mut patient);
    world.now += MINUTE;
    world.memory.activations.clear();
    assert!(
        matches!(
            &plan(&world.state, &mut world.memory, world.now).changes[..],
            [Change::Activate { .. }]
        ),
        "but not for ever"
    );
}
