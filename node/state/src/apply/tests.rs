#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
use crate::*;
use proptest::prelude::*;
use segmentry_settings::admin::{Health, Owner, RestartRecord};
use std::collections::BTreeMap;
use uuid::Uuid;

pub(super) fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

pub(super) fn node(n: u64) -> Node {
    Node {
        id: NodeId(n),
        name: format!("n-{n}"),
        address: format!("n-{n}:9300"),
        rest_address: format!("n-{n}:9200"),
        boot_id: None,
        alive: false,
        version: "0".into(),
        format_written: 1,
        formats_readable: [1].into(),
        disk_id: None,
    }
}

pub(super) fn joined(n: u64, boot: u128) -> Change {
    Change::NodeJoined {
        node: Node {
            boot_id: Some(id(boot)),
            alive: true,
            ..node(n)
        },
    }
}

/// An index of one shard: copy 100+n of the shard on node n, the first node's is the primary.
pub(super) fn index(uuid: u128, name: &str, nodes: &[u64]) -> Index {
    let copy = |n: &u64| ShardCopy {
        allocation: id(uuid * 1_000 + u128::from(*n)),
        node: NodeId(*n),
        broken: None,
    };
    let copies: Vec<_> = nodes.iter().map(copy).collect();
    let primary = copies[0].allocation;
    Index {
        uuid: id(uuid),
        name: name.into(),
        settings: IndexSettings::create(
            &serde_json::json!({"number_of_replicas": nodes.len() - 1}),
            &segmentry_settings::cluster::ClusterSettings::default(),
        )
        .unwrap(),
        settings_version: 0,
        mapping: Arc::default(),
        owner: None,
        created_ms: 5,
        shards: vec![Shard {
            number: 0,
            term: 0,
            history: id(uuid * 7),
            created: false,
            primary: Some(primary),
            active: None,
            started: false,
            in_sync: [primary].into(),
            copies,
            unassigned_reason: None,
        }],
    }
}

const S: ShardId = ShardId {
    index: Uuid::from_u128(1),
    shard: 0,
};

fn copy(n: u64) -> AllocationId {
    id(1_000 + u128::from(n))
}

fn formed() -> ClusterState {
    let mut state = ClusterState::default();
    let form = Change::Form {
        cluster_uuid: id(9),
        cluster_name: "c".into(),
        members: vec![node(1), node(2), node(3)],
    };
    state.apply(form).unwrap();
    for n in 1..=3 {
        state.apply(joined(n, u128::from(n))).unwrap();
    }
    state
}

/// Index 1 on nodes 1, 2, 3; primary on 1 in term 1; all in sync.
fn running() -> ClusterState {
    let mut state = formed();
    state
        .apply(Change::CreateIndex {
            epoch: None,
            index: Box::new(index(1, "i", &[1, 2, 3])),
        })
        .unwrap();
    state
        .apply(Change::Activate {
            shard: S,
            term: 1,
            allocation: copy(1),
            boot_id: id(1),
        })
        .unwrap();
    state
        .apply(Change::PrimaryStarted {
            shard: S,
            term: 1,
            boot_id: id(1),
        })
        .unwrap();
    for n in [2, 3] {
        state
            .apply(Change::AddInSync {
                shard: S,
                term: 1,
                allocation: copy(n),
            })
            .unwrap();
    }
    state
}

fn shard(state: &ClusterState) -> &Shard {
    state.shard(S).unwrap()
}

/// The refusal, and the proof that only the version changed.
fn refused(state: &ClusterState, change: Change) -> Refusal {
    let mut after = state.clone();
    let refusal = after
        .apply(change.clone())
        .expect_err(&format!("{change:?} must be refused"));
    after.version -= 1;
    assert_eq!(&after, state, "a refused change changes only the version");
    refusal
}

fn owner(uid: &str, keys: &[&str]) -> Owner {
    Owner {
        uid: uid.into(),
        name: format!("ns/{uid}"),
        settings: keys.iter().map(|k| (*k).to_owned()).collect(),
        mappings: false,
    }
}

fn set(key: &str, value: Option<&str>) -> BTreeMap<String, Option<String>> {
    [(key.to_owned(), value.map(str::to_owned))].into()
}

#[test]
fn a_formation_is_idempotent_and_never_replaced() {
    let mut state = formed();
    let before = state.clone();
    let form = |uuid, members| Change::Form {
        cluster_uuid: id(uuid),
        cluster_name: "c".into(),
        members,
    };
    state.apply(form(9, vec![node(1), node(2), node(3)])).unwrap();
    assert_eq!(
        state,
        ClusterState {
            version: before.version + 1,
            ..before
        }
    );
    refused(&state, form(8, vec![node(1), node(2), node(3)]));
    refused(&state, form(9, vec![node(1)]));
    let empty = ClusterState::default();
    refused(&empty, form(9, vec![]));
    refused(&empty, form(9, vec![node(1), node(2)]));
    refused(&empty, form(9, vec![node(1), node(1), node(2)]));
}

#[test]
fn only_members_join_and_a_new_process_ends_its_activations() {
    let mut state = running();
    refused(&state, joined(4, 4));
    refused(&state, Change::NodeJoined { node: node(1) });
    state.apply(joined(1, 1)).unwrap();
    assert!(state.primary_serves(S), "the same process changes nothing");
    state.apply(joined(2, 22)).unwrap();
    assert!(state.primary_serves(S), "another node's process changes nothing");
    state.apply(joined(1, 11)).unwrap();
    assert_eq!(
        (shard(&state).active, shard(&state).started, shard(&state).term),
        (None, false, 1)
    );
    assert!(
        shard(&state).is_in_sync(copy(1)),
        "a boot id alone takes no copy out of the in-sync set"
    );
    assert_eq!(state.health(), Health::Red);
}

#[test]
fn a_node_that_does_not_know_its_volume_keeps_the_recorded_one() {
    let mut state = ClusterState::default();
    let with_volume = |n: u64| Node {
        disk_id: Some(format!("pvc-{n}")),
        ..node(n)
    };
    let form = Change::Form {
        cluster_uuid: id(9),
        cluster_name: "c".into(),
        members: vec![with_volume(1), with_volume(2), with_volume(3)],
    };
    state.apply(form).unwrap();
    state.apply(joined(1, 1)).unwrap();
    assert_eq!(state.nodes[&NodeId(1)].disk_id.as_deref(), Some("pvc-1"));
}

#[test]
fn a_loss_names_the_process_that_is_lost() {
    let mut state = running();
    refused(
        &state,
        Change::NodeLost {
            node: NodeId(1),
            boot_id: id(77),
        },
    );
    refused(
        &state,
        Change::NodeLost {
            node: NodeId(7),
            boot_id: id(7),
        },
    );
    state
        .apply(Change::NodeLost {
            node: NodeId(1),
            boot_id: id(1),
        })
        .unwrap();
    assert!(state.primary_node(S).is_none());
    assert_eq!(state.health(), Health::Red);
    state.apply(joined(1, 1)).unwrap();
    assert!(state.primary_serves(S), "the same process comes back in its term");
}

#[test]
fn every_activation_has_its_own_term_and_a_live_in_sync_copy() {
    let activate = |term, n: u64, boot| Change::Activate {
        shard: S,
        term,
        allocation: copy(n),
        boot_id: id(boot),
    };
    let mut state = running();
    refused(&state, activate(2, 2, 2));
    state
        .apply(Change::NodeLost {
            node: NodeId(1),
            boot_id: id(1),
        })
        .unwrap();
    for bad in [
        activate(1, 2, 2),
        activate(3, 2, 2),
        activate(2, 1, 1),
        activate(2, 2, 77),
        activate(2, 9, 2),
    ] {
        refused(&state, bad);
    }
    state.apply(activate(2, 2, 2)).unwrap();
    assert_eq!(
        (shard(&state).term, shard(&state).primary, shard(&state).started),
        (2, Some(copy(2)), false)
    );
    refused(&state, activate(3, 3, 3));
    refused(
        &state,
        Change::PrimaryStarted {
            shard: S,
            term: 1,
            boot_id: id(1),
        },
    );
    refused(
        &state,
        Change::PrimaryStarted {
            shard: S,
            term: 2,
            boot_id: id(1),
        },
    );
    state
        .apply(Change::PrimaryStarted {
            shard: S,
            term: 2,
            boot_id: id(2),
        })
        .unwrap();
    assert!(state.primary_serves(S));
}

#[test]
fn a_copy_out_of_sync_or_broken_is_never_activated() {
    let mut state = running();
    state
        .apply(Change::FailCopy {
            shard: S,
            term: 1,
            allocation: copy(2),
            reason: "x".into(),
        })
        .unwrap();
    state
        .apply(Change::AssignReplica {
            shard: S,
            term: 1,
            allocation: id(50),
            node: NodeId(2),
        })
        .unwrap();
    state
        .apply(Change::CopyBroken {
            shard: S,
            allocation: copy(3),
            reason: "bad".into(),
        })
        .unwrap();
    state
        .apply(Change::NodeLost {
            node: NodeId(1),
            boot_id: id(1),
        })
        .unwrap();
    refused(
        &state,
        Change::Activate {
            shard: S,
            term: 2,
            allocation: id(50),
            boot_id: id(2),
        },
    );
    refused(
        &state,
        Change::Activate {
            shard: S,
            term: 2,
            allocation: copy(3),
            boot_id: id(3),
        },
    );
    state.apply(joined(3, 33)).unwrap();
    state
        .apply(Change::Activate {
            shard: S,
            term: 2,
            allocation: copy(3),
            boot_id: id(33),
        })
        .unwrap();
}

#[test]
fn a_broken_copy_that_was_opened_after_all_may_be_activated() {
    let mut state = running();
    let broken = |n: u64| Change::CopyBroken {
        shard: S,
        allocation: copy(n),
        reason: "bad".into(),
    };
    for n in 1..=3 {
        assert_eq!(state.shard(S).unwrap().is_last_hope(copy(3)), n == 3);
        state.apply(broken(n)).unwrap();
    }
    let opened = |n: u64, boot: u128| Change::CopyOpened {
        shard: S,
        allocation: copy(n),
        boot_id: id(boot),
    };
    refused(&state, opened(1, 99));
    refused(&state, opened(9, 1));
    state.apply(opened(1, 1)).unwrap();
    assert!(state.shard(S).unwrap().is_last_hope(copy(1)));
    state
        .apply(Change::Activate {
            shard: S,
            term: 2,
            allocation: copy(1),
            boot_id: id(1),
        })
        .unwrap();
    state.apply(opened(1, 1)).unwrap();
    assert_eq!(
        state.shard(S).unwrap().active,
        Some(id(1)),
        "nothing changes twice"
    );
}

#[test]
fn the_primary_and_the_last_in_sync_copy_never_leave() {
    let mut state = running();
    let fail = |n: u64| Change::FailCopy {
        shard: S,
        term: 1,
        allocation: copy(n),
        reason: "x".into(),
    };
    refused(&state, fail(1));
    refused(
        &state,
        Change::RemoveReplica {
            shard: S,
            allocation: copy(1),
        },
    );
    refused(
        &state,
        Change::FailCopy {
            shard: S,
            term: 2,
            allocation: copy(2),
            reason: "x".into(),
        },
    );
    state.apply(fail(2)).unwrap();
    state.apply(fail(2)).unwrap();
    state
        .apply(Change::RemoveReplica {
            shard: S,
            allocation: copy(3),
        })
        .unwrap();
    assert_eq!(shard(&state).copies.len(), 1);
    assert_eq!(state.health(), Health::Yellow);
    refused(
        &state,
        Change::AddInSync {
            shard: S,
            term: 1,
            allocation: copy(2),
        },
    );
}

#[test]
fn a_failed_primary_leaves_only_where_another_copy_can_take_over() {
    let fail = |term| Change::PrimaryFailed {
        shard: S,
        term,
        reason: "sync failed".into(),
    };
    let mut state = running();
    refused(&state, fail(2));
    let mut alone = state.clone();
    for n in [2, 3] {
        alone
            .apply(Change::NodeLost {
                node: NodeId(n),
                boot_id: id(u128::from(n)),
            })
            .unwrap();
    }
    alone.apply(fail(1)).unwrap();
    assert_eq!(
        shard(&alone).primary,
        Some(copy(1)),
        "no other copy is there: it stays"
    );
    refused(&alone, fail(1));
    state.apply(fail(1)).unwrap();
    assert_eq!((shard(&state).primary, shard(&state).active), (None, None));
    assert!(shard(&state).copy(copy(1)).is_none());
    assert_eq!(shard(&state).unassigned_reason.as_deref(), Some("sync failed"));
    state
        .apply(Change::Activate {
            shard: S,
            term: 2,
            allocation: copy(3),
            boot_id: id(3),
        })
        .unwrap();
    assert_eq!(shard(&state).unassigned_reason, None);
}

#[test]
fn one_node_holds_one_copy_and_an_allocation_is_used_once() {
    let mut state = running();
    let assign = |allocation, n| Change::AssignReplica {
        shard: S,
        term: 1,
        allocation,
        node: NodeId(n),
    };
    refused(&state, assign(id(50), 2));
    state
        .apply(Change::RemoveReplica {
            shard: S,
            allocation: copy(2),
        })
        .unwrap();
    refused(&state, assign(copy(3), 2));
    refused(&state, assign(id(50), 9));
    refused(
        &state,
        Change::AssignReplica {
            shard: S,
            term: 0,
            allocation: id(50),
            node: NodeId(2),
        },
    );
    state.apply(assign(id(50), 2)).unwrap();
    assert!(!shard(&state).is_in_sync(id(50)));
    assert_eq!(state.health(), Health::Yellow);
    state
        .apply(Change::AddInSync {
            shard: S,
            term: 1,
            allocation: id(50),
        })
        .unwrap();
    assert_eq!(state.health(), Health::Green);
}

#[test]
fn a_shard_that_never_started_moves_and_one_that_did_never_does() {
    let mut state = formed();
    state
        .apply(Change::CreateIndex {
            epoch: None,
            index: Box::new(index(1, "i", &[1, 2])),
        })
        .unwrap();
    assert_eq!(state.health(), Health::Yellow, "a new index is not red");
    let go = |n| Change::MoveUncreated {
        shard: S,
        term: 0,
        allocation: id(50),
        node: NodeId(n),
    };
    refused(&state, go(3));
    state
        .apply(Change::NodeLost {
            node: NodeId(1),
            boot_id: id(1),
        })
        .unwrap();
    refused(&state, go(2));
    state.apply(go(3)).unwrap();
    assert_eq!(shard(&state).primary, Some(id(50)));
    assert_eq!(shard(&state).in_sync, [id(50)].into());
    let mut started = running();
    for n in 1..=3 {
        started
            .apply(Change::NodeLost {
                node: NodeId(n),
                boot_id: id(n.into()),
            })
            .unwrap();
    }
    let go = Change::MoveUncreated {
        shard: S,
        term: 1,
        allocation: id(50),
        node: NodeId(3),
    };
    assert!(matches!(refused(&started, go), Refusal::Invalid(_)));
}

#[test]
fn a_replaced_node_takes_its_copies_out_but_never_the_last_in_sync_one() {
    let replace = |lost, new: u64| Change::ReplaceNode {
        epoch: 1,
        lost: NodeId(lost),
        node: Node {
            name: format!("n-{lost}"),
            ..node(new)
        },
    };
    let mut state = running();
    refused(&state, replace(1, 4));
    state
        .apply(Change::NodeLost {
            node: NodeId(1),
            boot_id: id(1),
        })
        .unwrap();
    refused(&state, replace(1, 2));
    let mut last = state.clone();
    state.apply(replace(1, 4)).unwrap();
    state.apply(replace(1, 4)).unwrap();
    assert!(state.node(NodeId(1)).is_none() && state.node(NodeId(4)).is_some());
    assert_eq!((shard(&state).primary, shard(&state).copies.len()), (None, 2));
    // The last in-sync copy stays listed: only a person may give up what it holds.
    last.apply(Change::Activate {
        shard: S,
        term: 2,
        allocation: copy(2),
        boot_id: id(2),
    })
    .unwrap();
    for n in [1, 3] {
        last.apply(Change::FailCopy {
            shard: S,
            term: 2,
            allocation: copy(n),
            reason: "x".into(),
        })
        .unwrap();
    }
    last.apply(Change::NodeLost {
        node: NodeId(2),
        boot_id: id(2),
    })
    .unwrap();
    last.apply(replace(2, 5)).unwrap();
    assert_eq!(shard(&last).in_sync, [copy(2)].into());
    assert!(
        shard(&last)
            .unassigned_reason
            .as_ref()
            .unwrap()
            .contains("disk is gone")
    );
    assert_eq!(last.health(), Health::Red);
}

#[test]
fn index_names_are_taken_once_and_a_deleted_index_leaves_a_tombstone() {
    let mut state = running();
    let create = |uuid, name: &str| Change::CreateIndex {
        epoch: None,
        index: Box::new(index(uuid, name, &[1])),
    };
    assert_eq!(
        refused(&state, create(2, "i")),
        Refusal::IndexExists {
            name: "i".into(),
            uuid: id(1)
        }
    );
    let mut foreign = index(2, "j", &[1]);
    foreign.shards[0].copies[0].node = NodeId(8);
    refused(
        &state,
        Change::CreateIndex {
            epoch: None,
            index: Box::new(foreign),
        },
    );
    let mut started = index(2, "j", &[1]);
    started.shards[0].created = true;
    refused(
        &state,
        Change::CreateIndex {
            epoch: None,
            index: Box::new(started),
        },
    );
    state
        .apply(Change::DeleteIndex {
            epoch: None,
            index: id(1),
            owner: None,
        })
        .unwrap();
    assert_eq!(state.tombstones, [(id(1), "i".to_owned())].into());
    refused(&state, create(1, "again"));
    state.apply(create(2, "i")).unwrap();
    refused(
        &state,
        Change::DeleteIndex {
            epoch: None,
            index: id(1),
            owner: None,
        },
    );
}

#[test]
fn what_an_object_declares_is_changed_only_by_it() {
    let mut state = running();
    let key = "index.number_of_replicas";
    let by_rest = |k: &str, v| Change::UpdateSettings {
        epoch: None,
        index: id(1),
        owner: None,
        settings: set(k, v),
    };
    let by = |uid: &str, epoch, v| Change::UpdateSettings {
        epoch: Some(epoch),
        index: id(1),
        owner: Some(owner(uid, &[key])),
        settings: set(key, Some(v)),
    };
    refused(&state, by("a", 1, "1"));
    state
        .apply(Change::AdoptIndex {
            epoch: 3,
            index: id(1),
            owner: owner("a", &[key]),
        })
        .unwrap();
    assert!(matches!(
        refused(
            &state,
            Change::AdoptIndex {
                epoch: 3,
                index: id(1),
                owner: owner("b", &[])
            }
        ),
        Refusal::OwnedByOther(_)
    ));
    assert_eq!(
        refused(&state, by("a", 2, "1")),
        Refusal::StaleEpoch { given: 2, known: 3 }
    );
    assert!(matches!(refused(&state, by_rest(key, Some("0"))), Refusal::Owned { what, .. } if what == key));
    assert!(
        matches!(refused(&state, by_rest("index.*", None)), Refusal::Owned { .. }),
        "nor by a wildcard"
    );
    assert!(matches!(
        refused(
            &state,
            Change::DeleteIndex {
                epoch: None,
                index: id(1),
                owner: None
            }
        ),
        Refusal::Owned { .. }
    ));
    assert!(matches!(
        refused(&state, by("b", 3, "0")),
        Refusal::OwnedByOther(_)
    ));
    state
        .apply(by_rest("index.refresh_interval", Some("5s")))
        .unwrap();
    state.apply(by("a", 4, "0")).unwrap();
    let index = state.index(id(1)).unwrap();
    assert_eq!(
        (
            index.settings.number_of_replicas,
            index.settings_version,
            state.epoch
        ),
        (0, 2, 4)
    );
    refused(
        &state,
        Change::DeleteIndex {
            epoch: Some(4),
            index: id(1),
            owner: Some("b".into()),
        },
    );
    refused(
        &state,
        Change::ReleaseIndex {
            epoch: 4,
            index: id(1),
            uid: "b".into(),
        },
    );
    state
        .apply(Change::ReleaseIndex {
            epoch: 4,
            index: id(1),
            uid: "a".into(),
        })
        .unwrap();
    state.apply(by_rest(key, Some("1"))).unwrap();
    refused(
        &state,
        Change::DeleteIndex {
            epoch: Some(4),
            index: id(1),
            owner: Some("a".into()),
        },
    );
    state
        .apply(Change::DeleteIndex {
            epoch: None,
            index: id(1),
            owner: None,
        })
        .unwrap();
}

#[test]
fn a_mapping_grows_from_the_version_that_its_author_saw() {
    let mut state = running();
    let put = |expected, version| Change::PutMapping {
        index: id(1),
        expected,
        mapping: Arc::new(Mapping {
            version,
            ..Mapping::default()
        }),
    };
    refused(&state, put(0, 2));
    state.apply(put(0, 1)).unwrap();
    assert!(
        matches!(refused(&state, put(0, 1)), Refusal::Stale(_)),
        "who lost the race reads again"
    );
    state.apply(put(1, 2)).unwrap();
}

#[test]
fn settings_are_judged_with_opensearchs_texts() {
    let state = running();
    let update = Change::UpdateSettings {
        epoch: None,
        index: id(1),
        owner: None,
        settings: set("index.number_of_shards", Some("2")),
    };
    let text = format!(
        "Can't update non dynamic settings [[index.number_of_shards]] for open indices [[i/{}]]",
        id(1)
    );
    assert_eq!(refused(&state, update), Refusal::Invalid(text));
    let cluster = Change::ClusterSettings {
        epoch: None,
        settings: set("cluster.routing.allocation.enable", Some("all")),
    };
    assert!(
        refused(&state, cluster)
            .to_string()
            .contains("not supported by Segmentry yet")
    );
}

#[test]
fn a_restart_is_recorded_and_finished_by_its_target() {
    let mut state = running();
    let record = RestartRecord {
        target: "h1".into(),
        primaries: BTreeMap::new(),
    };
    state
        .apply(Change::RestartPrepared {
            epoch: 2,
            record: record.clone(),
        })
        .unwrap();
    refused(&state, Change::RestartPrepared { epoch: 1, record });
    refused(
        &state,
        Change::RestartFinished {
            epoch: 2,
            target: "h2".into(),
        },
    );
    state
        .apply(Change::RestartFinished {
            epoch: 2,
            target: "h1".into(),
        })
        .unwrap();
    state
        .apply(Change::RestartFinished {
            epoch: 2,
            target: "h1".into(),
        })
        .unwrap();
    assert_eq!(state.restart, None);
}

#[test]
fn searches_go_to_in_sync_copies_on_live_nodes_the_primary_first() {
    let mut state = running();
    let nodes = |s: &ClusterState| s.serving(S).iter().map(|(_, n)| n.id.0).collect::<Vec<_>>();
    assert_eq!(nodes(&state), [1, 2, 3]);
    state
        .apply(Change::FailCopy {
            shard: S,
            term: 1,
            allocation: copy(3),
            reason: "x".into(),
        })
        .unwrap();
    state
        .apply(Change::NodeLost {
            node: NodeId(1),
            boot_id: id(1),
        })
        .unwrap();
    assert_eq!(nodes(&state), [2]);
}

#[test]
fn a_state_of_an_older_program_is_read_and_a_newer_one_too() {
    let state = running();
    let mut json = serde_json::to_value(&state).unwrap();
    let read: ClusterState = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(read, state);
    json.as_object_mut()
        .unwrap()
        .insert("of_a_newer_program".into(), 1.into());
    json.as_object_mut().unwrap().remove("restart");
    json["nodes"]["1"].as_object_mut().unwrap().remove("disk_id");
    let read: ClusterState = serde_json::from_value(json).unwrap();
    assert_eq!(read, state);
    assert_eq!(
        serde_json::from_str::<ClusterState>("{}").unwrap(),
        ClusterState::default()
    );
}

#[test]
fn node_ids_are_written_as_sixteen_hex_digits() {
    assert_eq!(NodeId(0xab).to_string(), "00000000000000ab");
    assert_eq!("00000000000000ab".parse(), Ok(NodeId(0xab)));
}

proptest! {
    #[test]
    fn node_ids_are_read_back(n in any::<u64>()) {
        prop_assert_eq!(NodeId(n).to_string().parse(), Ok(NodeId(n)));
    }
}
