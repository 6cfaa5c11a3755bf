//! Metadata over Raft: formation, proposals from anywhere, loss of the leader, restarts, replacement of a voter.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;

use common::{Cluster, address, joined, node, switch};
use segmentry_meta::{MemberError, MetaStore, ProposeError};
use segmentry_state::{Change, NodeId, Refusal};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};
use uuid::Uuid;

fn voters(cluster: &Cluster, n: u64) -> BTreeSet<u64> {
    cluster.meta(n).voters().into_iter().map(|v| v.0).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_voter_keeps_its_state_over_a_restart() {
    let mut cluster = Cluster::empty(1).await;
    assert!(cluster.meta(1).is_empty());
    cluster.initialise(1, 1).await;
    let state = cluster.meta(1).propose(joined(1)).await.unwrap();
    assert!(state.is_alive(NodeId(1)), "a proposer reads its own write");
    assert!(!cluster.meta(1).is_empty());
    cluster.stop(1).await;
    cluster.start(1).await;
    let read = cluster.meta(1).read().await.unwrap();
    assert_eq!(read, state);
    cluster.meta(1).propose(joined(1)).await.unwrap();
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_node_forms_nothing_by_itself() {
    let cluster = Cluster::empty(1).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(cluster.meta(1).leader(), None);
    assert!(cluster.meta(1).is_empty());
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_from_any_node_is_applied_on_all_and_its_refusal_comes_back() {
    let cluster = Cluster::formed(3).await;
    for n in 1..=3 {
        let state = cluster.meta(n).propose(joined(n)).await.unwrap();
        assert!(state.is_alive(NodeId(n)));
        let refused = cluster.meta(n).propose(joined(9)).await.unwrap_err();
        assert!(
            matches!(refused, ProposeError::Refused(Refusal::Invalid(_))),
            "{refused:?}"
        );
    }
    let version = cluster.meta(1).read().await.unwrap().version;
    let states: Vec<_> = [
        cluster.until(1, "all applied", |s| s.version >= version).await,
        cluster.until(2, "all applied", |s| s.version >= version).await,
        cluster.until(3, "all applied", |s| s.version >= version).await,
    ]
    .into();
    assert!(states.windows(2).all(|w| w[0] == w[1]));
    let results = cluster
        .meta(cluster.follower().await)
        .propose_all(vec![joined(1), joined(9), joined(2)])
        .await
        .unwrap();
    assert_eq!(
        results.iter().map(Result::is_ok).collect::<Vec<_>>(),
        [true, false, true],
        "each is judged on its own"
    );
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn initialisation_is_idempotent_and_refuses_other_members() {
    let cluster = Cluster::formed(3).await;
    cluster.initialise(1, 3).await;
    cluster.initialise(2, 3).await;
    let other = cluster
        .meta(1)
        .initialise(cluster.uuid, "c".into(), vec![node(1)])
        .await;
    assert!(matches!(other, Err(MemberError::OtherMembers(_))), "{other:?}");
    let uuid = cluster
        .meta(3)
        .initialise(Uuid::new_v4(), "c".into(), (1..=3).map(node).collect())
        .await;
    assert!(matches!(uuid, Err(MemberError::Refused(_))), "{uuid:?}");
    cluster.end().await;
    let even = Cluster::empty(2).await;
    let refused = even
        .meta(1)
        .initialise(Uuid::new_v4(), "c".into(), vec![node(1), node(2)])
        .await;
    assert!(matches!(refused, Err(MemberError::Refused(_))), "{refused:?}");
    assert!(
        even.meta(1).is_empty(),
        "a refused formation leaves nothing behind"
    );
    even.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_leader_is_replaced_within_two_seconds_and_catches_up_when_it_returns() {
    let mut cluster = Cluster::formed(3).await;
    let old = cluster.leader().await;
    cluster.stop(old).await;
    let began = Instant::now();
    let rest: Vec<u64> = cluster.nodes.keys().copied().collect();
    cluster.meta(rest[0]).propose(joined(rest[0])).await.unwrap();
    let took = began.elapsed();
    assert!(took < Duration::from_millis(2_500), "fail-over took {took:?}");
    let state = cluster.meta(rest[1]).propose(joined(rest[1])).await.unwrap();
    cluster.start(old).await;
    cluster
        .until(old, "catch-up", |s| s.version >= state.version)
        .await;
    cluster.meta(old).propose(joined(old)).await.unwrap();
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_is_outvoted_and_learns_of_it() {
    let cluster = Cluster::formed(3).await;
    let old = cluster.leader().await;
    cluster.network.cut(NodeId(old));
    let other = *cluster.nodes.keys().find(|n| **n != old).unwrap();
    let mut leadership = cluster.meta(other).leadership();
    let elected = leadership.wait_for(|l| l.leader.is_some_and(|l| l.0 != old));
    tokio::time::timeout(common::PATIENCE, elected)
        .await
        .expect("the others elect")
        .unwrap();
    let state = cluster.meta(other).propose(joined(other)).await.unwrap();
    assert!(
        !cluster.meta(old).current().is_alive(NodeId(other)),
        "nothing reaches it"
    );
    let stale = tokio::time::timeout(Duration::from_millis(1_500), cluster.meta(old).read()).await;
    assert!(
        !matches!(stale, Ok(Ok(_))),
        "a leader without a majority answers no linearizable read"
    );
    cluster.network.heal();
    cluster
        .until(old, "catch-up", |s| s.version >= state.version)
        .await;
    assert_eq!(
        cluster.meta(old).read().await.unwrap().version,
        cluster.meta(other).read().await.unwrap().version
    );
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_three_come_back_from_their_disks() {
    let mut cluster = Cluster::formed(3).await;
    for n in 1..=3 {
        cluster.meta(n).propose(joined(n)).await.unwrap();
    }
    let before = cluster.meta(1).read().await.unwrap();
    for n in 1..=3 {
        cluster.stop(n).await;
    }
    for n in 1..=3 {
        cluster.start(n).await;
    }
    for n in 1..=3 {
        assert_eq!(cluster.meta(n).read().await.unwrap(), before);
        assert_eq!(voters(&cluster, n), [1, 2, 3].into());
    }
    cluster.meta(2).propose(joined(2)).await.unwrap();
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nothing_is_done_and_nothing_is_read() {
    let mut cluster = Cluster::formed(3).await;
    let version = cluster.meta(3).read().await.unwrap().version;
    for n in 1..=3 {
        cluster.stop(n).await;
    }
    cluster.start(3).await;
    let (proposed, read) = tokio::join!(cluster.meta(3).propose(joined(3)), cluster.meta(3).read());
    assert_eq!(proposed.unwrap_err(), ProposeError::NoQuorum);
    assert!(read.is_err());
    for n in 1..=2 {
        cluster.start(n).await;
    }
    assert_eq!(
        cluster.meta(3).read().await.unwrap().version,
        version,
        "what had no quorum never happened"
    );
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_whose_answer_is_lost_is_applied_once() {
    let cluster = Cluster::formed(3).await;
    let follower = cluster.follower().await;
    let before = cluster.meta(follower).read().await.unwrap().version;
    cluster.network.lose_answers("meta/propose", 2);
    let calls = cluster.network.calls("meta/propose");
    cluster.meta(follower).propose(switch(false)).await.unwrap();
    assert!(
        cluster.network.calls("meta/propose") >= calls + 3,
        "it was sent again"
    );
    assert_eq!(cluster.meta(follower).read().await.unwrap().version, before + 1);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_proposals_at_once_from_all_nodes_are_all_applied() {
    let cluster = Cluster::formed(3).await;
    let before = cluster.meta(1).read().await.unwrap().version;
    let mut tasks = Vec::new();
    for n in 0..300_u64 {
        let meta = std::sync::Arc::clone(cluster.meta(n % 3 + 1));
        tasks.push(tokio::spawn(
            async move { meta.propose(switch(n % 2 == 0)).await },
        ));
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(cluster.meta(2).read().await.unwrap().version, before + 300);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_away_for_long_gets_a_snapshot() {
    let mut cluster = Cluster::formed(3).await;
    let away = cluster.follower().await;
    cluster.stop(away).await;
    let other = *cluster.nodes.keys().next().unwrap();
    // Far more entries than a log keeps behind a snapshot.
    for n in 0..70 {
        cluster.meta(other).propose(switch(n % 2 == 0)).await.unwrap();
    }
    let state = cluster.meta(other).current();
    let snapshots = cluster.network.calls("meta/snapshot");
    cluster.start(away).await;
    let there = cluster
        .until(away, "catch-up", |s| s.version >= state.version)
        .await;
    assert_eq!(there, state);
    assert!(
        cluster.network.calls("meta/snapshot") > snapshots,
        "by a snapshot"
    );
    // And it survives a restart from what it was sent.
    cluster.stop(away).await;
    cluster.start(away).await;
    assert_eq!(cluster.meta(away).read().await.unwrap().version, state.version);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_disk_is_a_new_voter_in_the_place_of_the_lost_one() {
    let mut cluster = Cluster::formed(3).await;
    for n in 1..=3 {
        cluster.meta(n).propose(joined(n)).await.unwrap();
    }
    let new = segmentry_state::Node {
        id: NodeId(4),
        ..node(3)
    };
    let early = cluster.meta(1).replace(1, NodeId(3), new.clone()).await;
    assert!(
        matches!(early, Err(MemberError::Refused(_))),
        "a live node is not replaced: {early:?}"
    );
    let boot_id = cluster
        .meta(3)
        .current()
        .node(NodeId(3))
        .unwrap()
        .boot_id
        .unwrap();
    cluster.stop(3).await;
    cluster
        .meta(1)
        .propose(Change::NodeLost {
            node: NodeId(3),
            boot_id,
        })
        .await
        .unwrap();
    // The same name and address, another disk: calls that are meant for node 3 are refused there.
    cluster.start_at(4, &address(3)).await;
    let follower = *cluster
        .nodes
        .keys()
        .find(|n| **n != 4 && !cluster.meta(**n).is_leader())
        .unwrap();
    cluster
        .meta(follower)
        .replace(1, NodeId(3), new.clone())
        .await
        .unwrap();
    cluster.meta(follower).replace(1, NodeId(3), new).await.unwrap();
    cluster
        .until(4, "catch-up", |s| s.node(NodeId(4)).is_some())
        .await;
    for n in [1, 2, 4] {
        cluster
            .until(n, "replacement", |s| s.node(NodeId(3)).is_none())
            .await;
    }
    // The new voter counts: one of the old ones may go.
    cluster.stop(2).await;
    cluster
        .meta(4)
        .propose(Change::NodeJoined {
            node: segmentry_state::Node {
                id: NodeId(4),
                boot_id: Some(Uuid::new_v4()),
                alive: true,
                ..node(3)
            },
        })
        .await
        .unwrap();
    assert_eq!(voters(&cluster, 4), [1, 2, 4].into());
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learned_address_is_used_and_the_stable_one_stays_a_way_back() {
    let mut cluster = Cluster::formed(3).await;
    let follower = cluster.follower().await;
    cluster.stop(follower).await;
    cluster.start_at(follower, "10.0.0.7:9300").await;
    for (n, meta) in &cluster.nodes {
        if *n != follower {
            meta.learn_address(NodeId(follower), "10.0.0.7:9300".into());
        }
    }
    let other = *cluster.nodes.keys().find(|n| **n != follower).unwrap();
    let state = cluster.meta(other).propose(switch(false)).await.unwrap();
    cluster
        .until(follower, "reached at the learned address", |s| {
            s.version >= state.version
        })
        .await;
    cluster.network.close("10.0.0.7:9300");
    cluster.network.listen(&address(follower), cluster.meta(follower));
    let state = cluster.meta(other).propose(switch(true)).await.unwrap();
    cluster
        .until(follower, "reached at the stable address", |s| {
            s.version >= state.version
        })
        .await;
    cluster.end().await;
}
