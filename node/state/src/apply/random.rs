//! Random sequences of Changes: every invariant holds after each of them, and a refused one changes nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
use super::tests::{id, index, joined, node};
use crate::{invariants, *};
use proptest::prelude::*;

/// A Change in terms that often hit: small numbers that are looked up in the state when it is applied.
#[derive(Debug, Clone)]
enum Step {
    Join(u64, u128),
    Lose(u64),
    Replace(u64, u64),
    Create(u128, u8, Vec<u64>),
    Delete(u128),
    Activate(u128, u64, u64),
    Started(u128, u64),
    Failed(u128, u64),
    Move(u128, u64, u128),
    Assign(u128, u64, u128),
    Remove(u128, u64),
    Add(u128, u64, u64),
    Fail(u128, u64, u64),
    Broken(u128, u64),
    Opened(u128, u64, u128),
    Mapping(u128, u64),
    Replicas(u128, u32),
}

fn step() -> impl Strategy<Value = Step> {
    let node = 1..6_u64;
    let uuid = 1..4_u128;
    // Mostly the recorded term (0), sometimes an older or a newer one.
    let drift = prop_oneof![8 => Just(1_u64), 1 => Just(0_u64), 1 => Just(2_u64)];
    prop_oneof![
        4 => (node.clone(), 1..40_u128).prop_map(|(n, b)| Step::Join(n, b)),
        3 => node.clone().prop_map(Step::Lose),
        1 => (node.clone(), node.clone()).prop_map(|(a, b)| Step::Replace(a, b)),
        3 => (uuid.clone(), 0..3_u8, proptest::collection::vec(node.clone(), 1..4)).prop_map(|(u, n, c)| Step::Create(u, n, c)),
        1 => uuid.clone().prop_map(Step::Delete),
        8 => (uuid.clone(), node.clone(), drift.clone()).prop_map(|(u, n, d)| Step::Activate(u, n, d)),
        6 => (uuid.clone(), drift.clone()).prop_map(|(u, d)| Step::Started(u, d)),
        2 => (uuid.clone(), drift.clone()).prop_map(|(u, d)| Step::Failed(u, d)),
        2 => (uuid.clone(), node.clone(), 5_000..5_050_u128).prop_map(|(u, n, a)| Step::Move(u, n, a)),
        4 => (uuid.clone(), node.clone(), 5_000..5_050_u128).prop_map(|(u, n, a)| Step::Assign(u, n, a)),
        2 => (uuid.clone(), node.clone()).prop_map(|(u, n)| Step::Remove(u, n)),
        6 => (uuid.clone(), node.clone(), drift.clone()).prop_map(|(u, n, d)| Step::Add(u, n, d)),
        3 => (uuid.clone(), node.clone(), drift).prop_map(|(u, n, d)| Step::Fail(u, n, d)),
        1 => (uuid.clone(), node.clone()).prop_map(|(u, n)| Step::Broken(u, n)),
        1 => (uuid.clone(), node, 1..40_u128).prop_map(|(u, n, b)| Step::Opened(u, n, b)),
        1 => (uuid.clone(), 0..4_u64).prop_map(|(u, v)| Step::Mapping(u, v)),
        1 => (uuid, 0..3_u32).prop_map(|(u, r)| Step::Replicas(u, r)),
    ]
}

fn change(state: &ClusterState, step: Step) -> Change {
    let shard_id = |u: u128| ShardId {
        index: id(u),
        shard: 0,
    };
    let term = |u: u128, drift: u64| {
        state
            .shard(shard_id(u))
            .map_or(0, |s| (s.term + drift).saturating_sub(1))
    };
    let copy = |u: u128, n: u64| {
        let listed = state.shard(shard_id(u)).and_then(|s| s.copy_on(NodeId(n)));
        listed.map_or(id(u * 1_000 + u128::from(n)), |c| c.allocation)
    };
    let boot = |n: u64| state.node(NodeId(n)).and_then(|n| n.boot_id).unwrap_or(id(99));
    let reason = || "r".to_owned();
    match step {
        Step::Join(n, b) => joined(n, b),
        Step::Lose(n) => Change::NodeLost {
            node: NodeId(n),
            boot_id: boot(n),
        },
        Step::Replace(a, b) => Change::ReplaceNode {
            epoch: 1,
            lost: NodeId(a),
            node: node(b),
        },
        Step::Create(u, n, nodes) => Change::CreateIndex {
            epoch: None,
            index: Box::new(index(u, &format!("i{n}"), &nodes)),
        },
        Step::Delete(u) => Change::DeleteIndex {
            epoch: None,
            index: id(u),
            owner: None,
        },
        Step::Activate(u, n, d) => Change::Activate {
            shard: shard_id(u),
            term: term(u, d) + 1,
            allocation: copy(u, n),
            boot_id: boot(n),
        },
        Step::Started(u, d) => {
            let boot_id = state.shard(shard_id(u)).and_then(|s| s.active).unwrap_or(id(98));
            Change::PrimaryStarted {
                shard: shard_id(u),
                term: term(u, d),
                boot_id,
            }
        }
        Step::Failed(u, d) => Change::PrimaryFailed {
            shard: shard_id(u),
            term: term(u, d),
            reason: reason(),
        },
        Step::Move(u, n, a) => Change::MoveUncreated {
            shard: shard_id(u),
            term: term(u, 1),
            allocation: id(a),
            node: NodeId(n),
        },
        Step::Assign(u, n, a) => Change::AssignReplica {
            shard: shard_id(u),
            term: term(u, 1),
            allocation: id(a),
            node: NodeId(n),
        },
        Step::Remove(u, n) => Change::RemoveReplica {
            shard: shard_id(u),
            allocation: copy(u, n),
        },
        Step::Add(u, n, d) => Change::AddInSync {
            shard: shard_id(u),
            term: term(u, d),
            allocation: copy(u, n),
        },
        Step::Fail(u, n, d) => Change::FailCopy {
            shard: shard_id(u),
            term: term(u, d),
            allocation: copy(u, n),
            reason: reason(),
        },
        Step::Broken(u, n) => Change::CopyBroken {
            shard: shard_id(u),
            allocation: copy(u, n),
            reason: reason(),
        },
        Step::Opened(u, n, b) => Change::CopyOpened {
            shard: shard_id(u),
            allocation: copy(u, n),
            boot_id: id(b),
        },
        Step::Mapping(u, v) => Change::PutMapping {
            index: id(u),
            expected: v,
            mapping: Arc::new(Mapping {
                version: v + 1,
                ..Mapping::default()
            }),
        },
        Step::Replicas(u, r) => Change::UpdateSettings {
            epoch: None,
            index: id(u),
            owner: None,
            settings: [("index.number_of_replicas".to_owned(), Some(r.to_string()))].into(),
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn every_invariant_holds_after_every_change(steps in proptest::collection::vec(step(), 1..80)) {
        let mut state = ClusterState::default();
        let members = vec![node(1), node(2), node(3)];
        state.apply(Change::Form { cluster_uuid: id(1), cluster_name: "c".into(), members }).unwrap();
        for step in steps {
            let before = state.clone();
            let change = change(&state, step);
            let again = change.clone();
            let outcome = state.apply(change);
            prop_assert_eq!(invariants::broken(&state), Vec::<String>::new());
            prop_assert_eq!(invariants::broken_between(&before, &state), Vec::<String>::new());
            if outcome.is_err() {
                let unchanged = ClusterState { version: before.version + 1, ..before.clone() };
                prop_assert_eq!(&state, &unchanged, "refused, and something changed");
            }
            // Deterministic: another node comes to the same state, also by way of the log's JSON.
            let mut other = before;
            let read: Change = serde_json::from_slice(&serde_json::to_vec(&again).unwrap()).unwrap();
            let _ = other.apply(read);
            prop_assert_eq!(&state, &other);
        }
    }
}

#[test]
fn each_predicate_can_fail() {
    let mut sound = ClusterState::default();
    sound
        .apply(Change::Form {
            cluster_uuid: id(1),
            cluster_name: "c".into(),
            members: vec![node(1)],
        })
        .unwrap();
    sound.apply(joined(1, 1)).unwrap();
    sound
        .apply(Change::CreateIndex {
            epoch: None,
            index: Box::new(index(1, "i", &[1])),
        })
        .unwrap();
    assert_eq!(invariants::broken(&sound), Vec::<String>::new());
    type Damage = fn(&mut ClusterState);
    fn shard(state: &mut ClusterState) -> &mut Shard {
        &mut Arc::make_mut(state.indices.get_mut(&id(1)).unwrap()).shards[0]
    }
    let damages: [Damage; 8] = [
        |s| shard(s).in_sync.extend([id(42)]),
        |s| shard(s).primary = Some(id(42)),
        |s| shard(s).in_sync.clear(),
        |s| {
            let copy = shard(s).copies[0].clone();
            shard(s).copies.push(copy);
        },
        |s| shard(s).started = true,
        |s| drop(s.tombstones.insert(id(1), "i".into())),
        |s| shard(s).number = 3,
        |s| s.nodes.get_mut(&NodeId(1)).unwrap().boot_id = None,
    ];
    for (damage, (name, holds)) in damages.iter().zip(invariants::ALWAYS) {
        let mut state = sound.clone();
        damage(&mut state);
        assert!(holds(&state).is_err(), "{name} does not see its damage");
    }
    let mut back = sound.clone();
    back.version += 1;
    assert_eq!(invariants::broken_between(&sound, &back), Vec::<String>::new());
    let changes: [Damage; 5] = [
        |s| s.version += 1,
        |s| shard(s).term += 2,
        |s| shard(s).created = false,
        |s| s.cluster_uuid = None,
        |s| {
            let index = Arc::make_mut(s.indices.get_mut(&id(1)).unwrap());
            index.settings.number_of_replicas = 7;
        },
    ];
    let mut before = sound;
    shard(&mut before).created = true;
    for (damage, (name, holds)) in changes.iter().zip(invariants::BETWEEN) {
        let mut after = before.clone();
        after.version += 1;
        damage(&mut after);
        assert!(holds(&before, &after).is_err(), "{name} does not see its damage");
    }
}
