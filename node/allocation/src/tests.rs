#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
use super::*;
use proptest::prelude::*;
use segmentry_settings::{cluster::PREFER_PRIMARY, index::IndexSettings};
use segmentry_state::{BootId, Change, Index, Node};
use std::{collections::BTreeMap, sync::Arc};
use uuid::Uuid;

fn node(n: u64, alive: bool) -> Node {
    Node {
        id: NodeId(n),
        name: format!("n-{n}"),
        address: format!("n-{n}:9300"),
        rest_address: String::new(),
        boot_id: Some(BootId::from_u128(u128::from(n))),
        alive,
        version: String::new(),
        format_written: 1,
        formats_readable: [1].into(),
        disk_id: None,
    }
}

fn cluster(nodes: u64) -> ClusterState {
    let nodes = (1..=nodes).map(|n| (NodeId(n), node(n, true))).collect();
    ClusterState {
        cluster_uuid: Some(Uuid::from_u128(1)),
        nodes,
        ..ClusterState::default()
    }
}

fn settings(shards: u32, replicas: u32) -> IndexSettings {
    IndexSettings {
        number_of_shards: shards,
        number_of_replicas: replicas,
        ..IndexSettings::default()
    }
}

fn ids(start: u128) -> impl FnMut() -> Uuid {
    let mut next = start << 64;
    move || {
        next += 1;
        Uuid::from_u128(next)
    }
}

fn create(state: &mut ClusterState, number: u128, settings: IndexSettings) -> Uuid {
    let shards = assign_new(state, &settings, ids(number)).unwrap();
    let uuid = Uuid::from_u128(number);
    let index = Index {
        uuid,
        name: format!("i{number}"),
        settings,
        settings_version: 0,
        mapping: Arc::default(),
        owner: None,
        created_ms: 0,
        shards,
    };
    state
        .apply(Change::CreateIndex {
            epoch: None,
            index: Box::new(index),
        })
        .unwrap();
    uuid
}

/// Activates and starts every primary, and puts every replica in sync.
fn start_all(state: &mut ClusterState) {
    let shards: Vec<_> = state.shards().map(|(id, _, s)| (id, s.clone())).collect();
    for (id, shard) in shards {
        let primary = shard.primary_copy().unwrap().clone();
        let boot_id = state.node(primary.node).unwrap().boot_id.unwrap();
        let term = shard.term + 1;
        state
            .apply(Change::Activate {
                shard: id,
                term,
                allocation: primary.allocation,
                boot_id,
            })
            .unwrap();
        state
            .apply(Change::PrimaryStarted {
                shard: id,
                term,
                boot_id,
            })
            .unwrap();
        for copy in shard.replicas() {
            state
                .apply(Change::AddInSync {
                    shard: id,
                    term,
                    allocation: copy.allocation,
                })
                .unwrap();
        }
    }
}

fn lose(state: &mut ClusterState, n: u64) {
    let boot_id = state.node(NodeId(n)).unwrap().boot_id.unwrap();
    state
        .apply(Change::NodeLost {
            node: NodeId(n),
            boot_id,
        })
        .unwrap();
}

fn per_node(state: &ClusterState, primaries: bool) -> BTreeMap<NodeId, usize> {
    let mut out: BTreeMap<_, _> = state.nodes.keys().map(|n| (*n, 0)).collect();
    for (_, _, shard) in state.shards() {
        for copy in &shard.copies {
            if !primaries || shard.primary == Some(copy.allocation) {
                *out.get_mut(&copy.node).unwrap() += 1;
            }
        }
    }
    out
}

fn spread(counts: &BTreeMap<NodeId, usize>) -> usize {
    counts.values().max().unwrap() - counts.values().min().unwrap()
}

proptest! {
    #[test]
    fn primaries_and_copies_of_new_indices_are_spread_evenly(
        nodes in 1..6_u64,
        indices in proptest::collection::vec((1..7_u32, 0..4_u32), 1..5),
    ) {
        let mut state = cluster(nodes);
        for (n, (shards, replicas)) in indices.iter().enumerate() {
            let uuid = create(&mut state, n as u128 + 1, settings(*shards, *replicas));
            let mut own = state.clone();
            own.indices.retain(|u, _| *u == uuid);
            prop_assert!(spread(&per_node(&own, true)) <= 1, "primaries of one index: {:?}", per_node(&own, true));
            prop_assert!(spread(&per_node(&own, false)) <= 1, "copies of one index: {:?}", per_node(&own, false));
            for shard in &state.index(uuid).unwrap().shards {
                let expected = usize::try_from((replicas + 1).min(u32::try_from(nodes).unwrap())).unwrap();
                prop_assert_eq!(shard.copies.len(), expected);
            }
        }
        prop_assert!(spread(&per_node(&state, true)) <= 1, "primaries of the cluster: {:?}", per_node(&state, true));
    }
}

#[test]
fn a_new_index_is_put_on_live_nodes_and_waits_only_where_none_lives() {
    let mut state = cluster(3);
    lose(&mut state, 2);
    create(&mut state, 1, settings(4, 1));
    assert_eq!(per_node(&state, false)[&NodeId(2)], 0);
    lose(&mut state, 1);
    lose(&mut state, 3);
    let uuid = create(&mut state, 2, settings(3, 0));
    assert_eq!(state.index(uuid).unwrap().shards.len(), 3);
    assert_eq!(
        assign_new(&ClusterState::default(), &settings(1, 0), ids(9)),
        Err(NoNode)
    );
}

#[test]
fn the_recorded_primary_is_kept_while_its_node_lives() {
    let mut state = cluster(3);
    let uuid = create(&mut state, 1, settings(1, 2));
    start_all(&mut state);
    let id = ShardId {
        index: uuid,
        shard: 0,
    };
    let primary = state.shard(id).unwrap().primary_copy().unwrap().clone();
    assert_eq!(choose_primary(&state, id), Choice::Copy(primary));
}

#[test]
fn the_least_loaded_in_sync_copy_takes_over() {
    let mut state = cluster(3);
    create(&mut state, 1, settings(3, 2));
    start_all(&mut state);
    // n-2 gets a second primary: n-1's; then n-1's loss would overload it, so n-3 must be chosen where n-2 already leads more.
    let moved = state
        .shards()
        .find(|(_, _, s)| s.primary_copy().unwrap().node == NodeId(1))
        .map(|(id, ..)| id)
        .unwrap();
    lose(&mut state, 1);
    let Choice::Copy(first) = choose_primary(&state, moved) else {
        panic!()
    };
    let boot_id = state.node(first.node).unwrap().boot_id.unwrap();
    let term = state.shard(moved).unwrap().term + 1;
    state
        .apply(Change::Activate {
            shard: moved,
            term,
            allocation: first.allocation,
            boot_id,
        })
        .unwrap();
    let Choice::Copy(again) = choose_primary(&state, moved) else {
        panic!()
    };
    assert_eq!(again, first, "the choice is stable");
    let crowded = first.node;
    let other = if crowded == NodeId(2) {
        NodeId(3)
    } else {
        NodeId(2)
    };
    create(&mut state, 2, settings(1, 1));
    let id = ShardId {
        index: Uuid::from_u128(2),
        shard: 0,
    };
    assert_eq!(
        state.shard(id).unwrap().primary_copy().unwrap().node,
        other,
        "a new primary goes to the less loaded node"
    );
}

#[test]
fn without_prefer_primary_only_names_decide() {
    let mut state = cluster(3);
    state.settings.insert(PREFER_PRIMARY.into(), "false".into());
    let uuid = create(&mut state, 1, settings(1, 2));
    start_all(&mut state);
    let id = ShardId {
        index: uuid,
        shard: 0,
    };
    let primary = state.shard(id).unwrap().primary_copy().unwrap().node;
    lose(&mut state, primary.0);
    let Choice::Copy(copy) = choose_primary(&state, id) else {
        panic!()
    };
    let lowest = (1..=3).map(NodeId).find(|n| *n != primary).unwrap();
    assert_eq!(copy.node, lowest);
}

#[test]
fn a_copy_that_is_not_in_sync_or_broken_is_never_chosen() {
    let mut state = cluster(3);
    let uuid = create(&mut state, 1, settings(1, 2));
    let id = ShardId {
        index: uuid,
        shard: 0,
    };
    let shard = state.shard(id).unwrap().clone();
    let primary = shard.primary_copy().unwrap().clone();
    let boot_id = state.node(primary.node).unwrap().boot_id.unwrap();
    state
        .apply(Change::Activate {
            shard: id,
            term: 1,
            allocation: primary.allocation,
            boot_id,
        })
        .unwrap();
    state
        .apply(Change::PrimaryStarted {
            shard: id,
            term: 1,
            boot_id,
        })
        .unwrap();
    let replica = shard.replicas().next().unwrap().clone();
    lose(&mut state, primary.node.0);
    match choose_primary(&state, id) {
        Choice::Wait(why) => assert!(why.contains(&format!("n-{}", primary.node.0)), "{why}"),
        Choice::Copy(copy) => panic!("{copy:?} is not in sync"),
    }
    state.nodes.get_mut(&primary.node).unwrap().alive = true;
    state
        .apply(Change::AddInSync {
            shard: id,
            term: 1,
            allocation: replica.allocation,
        })
        .unwrap();
    state
        .apply(Change::CopyBroken {
            shard: id,
            allocation: replica.allocation,
            reason: "bad file".into(),
        })
        .unwrap();
    lose(&mut state, primary.node.0);
    let Choice::Wait(why) = choose_primary(&state, id) else {
        panic!("a broken copy was chosen")
    };
    assert!(why.contains("bad file"), "{why}");
}

#[test]
fn a_missing_replica_goes_where_its_files_are_else_to_the_emptiest_node() {
    let mut state = cluster(4);
    let uuid = create(&mut state, 1, settings(1, 1));
    let id = ShardId {
        index: uuid,
        shard: 0,
    };
    create(&mut state, 2, settings(1, 0));
    let used: Vec<_> = state.shard(id).unwrap().copies.iter().map(|c| c.node).collect();
    let free: Vec<_> = state
        .nodes
        .keys()
        .filter(|n| !used.contains(n))
        .copied()
        .collect();
    let emptiest = free.iter().find(|n| state.copies_on(**n).count() == 0).unwrap();
    assert_eq!(next_replica(&state, id, &[]), Some(*emptiest));
    for preferred in &free {
        assert_eq!(next_replica(&state, id, &[*preferred]), Some(*preferred));
    }
    assert!(
        !used.contains(&next_replica(&state, id, &used).unwrap()),
        "a node holds one copy of a shard"
    );
    for n in free {
        lose(&mut state, n.0);
    }
    assert_eq!(next_replica(&state, id, &[]), None);
}

#[test]
fn a_surplus_replica_goes_once_enough_others_serve() {
    let mut state = cluster(3);
    let uuid = create(&mut state, 1, settings(1, 1));
    start_all(&mut state);
    let id = ShardId {
        index: uuid,
        shard: 0,
    };
    assert_eq!(surplus_replica(&state, id), None);
    let replica = state.shard(id).unwrap().replicas().next().unwrap().clone();
    lose(&mut state, replica.node.0);
    let target = next_replica(&state, id, &[]).unwrap();
    let built = Uuid::from_u128(77);
    state
        .apply(Change::AssignReplica {
            shard: id,
            term: 1,
            allocation: built,
            node: target,
        })
        .unwrap();
    assert_eq!(
        surplus_replica(&state, id),
        None,
        "the in-sync copy on the lost node is kept until the new one serves"
    );
    state
        .apply(Change::AddInSync {
            shard: id,
            term: 1,
            allocation: built,
        })
        .unwrap();
    assert_eq!(surplus_replica(&state, id), Some(replica));
}

#[test]
fn the_primary_and_the_last_in_sync_copy_are_no_surplus() {
    let mut state = cluster(3);
    let uuid = create(&mut state, 1, settings(1, 2));
    start_all(&mut state);
    let id = ShardId {
        index: uuid,
        shard: 0,
    };
    let zero = BTreeMap::from([("index.number_of_replicas".to_owned(), Some("0".to_owned()))]);
    state
        .apply(Change::UpdateSettings {
            epoch: None,
            index: uuid,
            owner: None,
            settings: zero,
        })
        .unwrap();
    for _ in 0..2 {
        let copy = surplus_replica(&state, id).unwrap();
        assert_ne!(Some(copy.allocation), state.shard(id).unwrap().primary);
        state
            .apply(Change::RemoveReplica {
                shard: id,
                allocation: copy.allocation,
            })
            .unwrap();
    }
    assert_eq!(surplus_replica(&state, id), None);
}

#[test]
fn every_copy_that_is_not_started_has_a_sentence() {
    let mut state = cluster(2);
    let uuid = create(&mut state, 1, settings(1, 2));
    let id = ShardId {
        index: uuid,
        shard: 0,
    };
    let before = explain_shard(&state, id);
    assert_eq!(before.len(), 3, "{before:?}");
    assert!(before[0].contains("about to be activated"), "{before:?}");
    assert!(
        before[2].contains("is assigned once") || before[2].contains("has no place"),
        "{before:?}"
    );
    start_all(&mut state);
    let started = explain_shard(&state, id);
    assert_eq!(started.len(), 1, "{started:?}");
    assert!(started[0].contains("has no place"), "{started:?}");
    let primary = state.shard(id).unwrap().primary_copy().unwrap().node;
    lose(&mut state, primary.0);
    assert!(
        explain_shard(&state, id).iter().any(|s| s.contains("is away")),
        "{:?}",
        explain_shard(&state, id)
    );
}

#[test]
fn the_cluster_is_settled_once_every_copy_that_has_a_place_serves() {
    let mut state = cluster(2);
    create(&mut state, 1, settings(2, 2));
    assert_eq!(unsettled(&state, 10).len(), 2, "one sentence a shard");
    assert_eq!(unsettled(&state, 1).len(), 1);
    start_all(&mut state);
    assert_eq!(
        unsettled(&state, 10),
        Vec::<String>::new(),
        "a third copy has no node, so nothing waits"
    );
    lose(&mut state, 2);
    assert_eq!(unsettled(&state, 10).len(), 2);
}
