//! Replication of both types, lost and returned copies, promotion.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

mod support;

use segmentry_replication::{Refresh, shard::WriteError};
use segmentry_settings::{Durability, ReplicationType, index::IndexSettings};
use segmentry_state::{Change, NodeId};
use std::{collections::BTreeMap, time::Duration};
use support::{Cluster, FaultyFs, SHARD, eventually, id, soon};
use tokio::time::Instant;

const BOTH: [ReplicationType; 2] = [ReplicationType::Document, ReplicationType::Segment];

fn doc(number: usize) -> (String, String) {
    (
        format!("d{number}"),
        format!(r#"{{"title":"book {number}","pages":{number}}}"#),
    )
}

async fn fill(cluster: &Cluster, node: usize, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let (id, source) = doc(number);
        cluster.write(node, &id, &source, Refresh::No).await.unwrap();
    }
}

async fn assert_documents(cluster: &Cluster, node: usize, count: usize) {
    let copy = cluster.copy(node);
    for number in 0..count {
        let (id, source) = doc(number);
        let found = copy.get(id.as_str().into(), true, soon()).await.unwrap();
        let found = found.map(|found| String::from_utf8(found.source.to_vec()).unwrap());
        assert_eq!(found, Some(source), "document {id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_returns_when_every_in_sync_copy_shows_the_write() {
    for kind in BOTH {
        let cluster = Cluster::start(3);
        cluster.create(kind, 2).await;
        for number in 0..20 {
            let (id, source) = doc(number);
            let refresh = if number % 2 == 0 {
                Refresh::Now
            } else {
                Refresh::WaitFor
            };
            let done = cluster.write(0, &id, &source, refresh).await.unwrap();
            assert!(done.refreshed, "{kind:?}");
            assert_eq!((done.total, done.successful), (3, 3));
            for node in 0..3 {
                assert_eq!(
                    cluster.count(node).await,
                    number as u64 + 1,
                    "{kind:?} node {node}"
                );
            }
        }
        for node in 1..3 {
            cluster.assert_same_logs(0, node, 0).await;
        }
        cluster.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_of_segment_has_the_segments_of_its_primary() {
    let cluster = Cluster::start(2);
    cluster.create(ReplicationType::Segment, 1).await;
    fill(&cluster, 0, 0..30).await;
    let (name, source) = doc(30);
    assert!(
        cluster
            .write(0, &name, &source, Refresh::Now)
            .await
            .unwrap()
            .refreshed
    );
    let segments = |node: usize| {
        let stats = cluster.copy(node).stats();
        let by_id: BTreeMap<_, _> = stats
            .engine
            .segments
            .into_iter()
            .map(|segment| (segment.id, segment.docs))
            .collect();
        by_id
    };
    eventually("the same segments", async || segments(0) == segments(1)).await;
    assert!(!segments(1).is_empty());
    assert!(
        !cluster.copy(1).stats().engine.writer_open,
        "a replica of SEGMENT indexes nothing"
    );
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_replica_leaves_the_in_sync_set_before_a_write_is_acknowledged_without_it() {
    for kind in BOTH {
        let mut cluster = Cluster::start(2);
        cluster.create(kind, 1).await;
        fill(&cluster, 0, 0..5).await;
        cluster.kill(1).await;
        assert_eq!(cluster.shard().in_sync.len(), 2, "nobody needed it gone");
        let (name, source) = doc(5);
        let done = cluster.write(0, &name, &source, Refresh::No).await.unwrap();
        assert_eq!(done.successful, 1);
        assert_eq!(cluster.shard().in_sync, [id(1)].into());
        cluster.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_replica_is_failed_after_its_silence_and_not_before() {
    let cluster = Cluster::start(2);
    cluster.create(ReplicationType::Document, 1).await;
    fill(&cluster, 0, 0..3).await;
    let _hole = cluster.isolate(1);
    let begun = Instant::now();
    let (name, source) = doc(3);
    cluster.write(0, &name, &source, Refresh::No).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(cluster.shard().in_sync, [id(1)].into());
    cluster.reconnect(1);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_a_write_that_needs_a_lost_replica_is_never_acknowledged() {
    let mut cluster = Cluster::start(2);
    cluster.create(ReplicationType::Document, 1).await;
    fill(&cluster, 0, 0..3).await;
    cluster.kill(1).await;
    for _ in 0..1000 {
        cluster
            .meta
            .fail_next(segmentry_meta::ProposeError::NoQuorum, false);
    }
    let (name, source) = doc(3);
    let deadline = Instant::now() + Duration::from_millis(700);
    let outcome = cluster
        .write_until(0, &name, &source, Refresh::No, deadline)
        .await;
    assert!(matches!(outcome, Err(WriteError::Unknown(_))), "{outcome:?}");
    assert_eq!(cluster.shard().in_sync.len(), 2);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_comes_back_continues_by_its_log() {
    for kind in BOTH {
        let mut cluster = Cluster::start(2);
        cluster.create(kind, 1).await;
        fill(&cluster, 0, 0..10).await;
        cluster.stop(1).await;
        cluster.restart(1);
        let (recoveries, shard) = (cluster.process(1).replication.recoveries(), cluster.shard());
        assert_eq!(shard.in_sync.len(), 2);
        eventually("its copy is open", async || {
            cluster.process(1).replication.copy(SHARD).is_ok()
        })
        .await;
        fill(&cluster, 0, 10..20).await;
        let (name, source) = doc(20);
        assert!(
            cluster
                .write(0, &name, &source, Refresh::Now)
                .await
                .unwrap()
                .refreshed,
            "{kind:?}"
        );
        assert_eq!(cluster.count(1).await, 21, "{kind:?}");
        assert_eq!(cluster.shard().in_sync.len(), 2);
        assert!(
            recoveries.is_empty() && cluster.process(1).replication.recoveries().is_empty(),
            "no file was copied"
        );
        cluster.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_replica_that_comes_back_shows_what_its_log_holds_without_a_further_write() {
    for kind in BOTH {
        let mut cluster = Cluster::start(2);
        cluster.create(kind, 1).await;
        fill(&cluster, 0, 0..10).await;
        eventually("the primary has nothing to tell it", async || {
            cluster.copy(1).log_state().global_checkpoint == Some(9)
        })
        .await;
        cluster.kill(1).await;
        cluster.restart(1);
        is_open(&cluster, 1).await;
        eventually("it shows all", async || cluster.count(1).await == 10).await;
        cluster.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_stopped_and_started_again_copy_nothing() {
    for kind in BOTH {
        let mut cluster = Cluster::start(3);
        cluster.create(kind, 2).await;
        fill(&cluster, 0, 0..25).await;
        for node in 0..3 {
            cluster.stop(node).await;
        }
        for node in 0..3 {
            cluster.restart(node);
        }
        cluster.activate(0, id(1)).await;
        for node in 1..3 {
            eventually("a copy is open", async || {
                cluster.process(node).replication.copy(SHARD).is_ok()
            })
            .await;
        }
        let (name, source) = doc(25);
        assert!(
            cluster
                .write(0, &name, &source, Refresh::Now)
                .await
                .unwrap()
                .refreshed
        );
        assert_eq!(cluster.shard().in_sync.len(), 3);
        for node in 0..3 {
            assert_eq!(cluster.count(node).await, 26, "{kind:?} node {node}");
            assert!(
                cluster.process(node).replication.recoveries().is_empty(),
                "{kind:?}"
            );
        }
        cluster.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_replica_has_every_acknowledged_write_and_voids_what_only_the_old_primary_had() {
    for kind in BOTH {
        let mut cluster = Cluster::start(3);
        cluster.create(kind, 2).await;
        fill(&cluster, 0, 0..30).await;
        // Written on the old primary only: never acknowledged.
        let holes = (cluster.isolate(1), cluster.isolate(2));
        let deadline = Instant::now() + Duration::from_millis(300);
        let outcome = cluster
            .write_until(
                0,
                "lost",
                r#"{"title":"never acknowledged"}"#,
                Refresh::No,
                deadline,
            )
            .await;
        assert!(matches!(outcome, Err(WriteError::Unknown(_))), "{outcome:?}");
        cluster.kill(0).await;
        cluster.reconnect(1);
        cluster.reconnect(2);
        drop(holes);
        cluster.activate(1, id(2)).await;
        // The old primary comes back while nobody needed it gone.
        cluster.restart(0);
        eventually("its copy is open", async || {
            cluster.process(0).replication.copy(SHARD).is_ok()
        })
        .await;
        assert_eq!(cluster.shard().in_sync.len(), 3);
        for number in 30..40 {
            let (name, source) = doc(number);
            let done = cluster.write(1, &name, &source, Refresh::No).await.unwrap();
            assert_eq!(done.result.term, 2);
        }
        assert_eq!(
            cluster.shard().in_sync.len(),
            3,
            "{kind:?}: it followed by its log"
        );
        assert_documents(&cluster, 1, 40).await;
        assert_eq!(
            cluster.copy(1).get("lost".into(), true, soon()).await.unwrap(),
            None
        );
        cluster.assert_same_logs(1, 0, 0).await;
        cluster.assert_same_logs(1, 2, 0).await;
        let (name, source) = doc(40);
        assert!(
            cluster
                .write(1, &name, &source, Refresh::Now)
                .await
                .unwrap()
                .refreshed
        );
        for node in 0..3 {
            assert_eq!(cluster.count(node).await, 41, "{kind:?} node {node}");
        }
        cluster.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_isolated_primary_acknowledges_nothing_once_another_one_is_active() {
    let cluster = Cluster::start(2);
    cluster.create(ReplicationType::Document, 1).await;
    fill(&cluster, 0, 0..5).await;
    let old = cluster.copy(0);
    // The manager lost the old primary, which lives on. Its state is the same one here, so its stream is what stops it.
    let member = cluster.process(0).member.clone();
    cluster
        .meta
        .apply(Change::NodeLost {
            node: NodeId(0),
            boot_id: member.boot_id.unwrap(),
        })
        .unwrap();
    cluster.activate(1, id(2)).await;
    let (name, source) = doc(5);
    let outcome = cluster
        .write_until(
            0,
            &name,
            &source,
            Refresh::No,
            Instant::now() + Duration::from_secs(2),
        )
        .await;
    assert!(
        matches!(outcome, Err(WriteError::NotPrimary(_) | WriteError::Unknown(_))),
        "OneWriter: {outcome:?}"
    );
    assert_eq!(
        cluster
            .write(1, &name, &source, Refresh::No)
            .await
            .unwrap()
            .result
            .term,
        2
    );
    drop(old);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_copy_is_rebuilt_from_files_and_links_what_an_older_folder_has() {
    for kind in BOTH {
        let mut cluster = Cluster::start(2);
        cluster.create(kind, 1).await;
        fill(&cluster, 0, 0..50).await;
        cluster.copy(0).flush().await.unwrap();
        let (name, source) = doc(50);
        assert!(
            cluster
                .write(0, &name, &source, Refresh::Now)
                .await
                .unwrap()
                .refreshed
        );
        cluster.copy(1).flush().await.unwrap();
        cluster.kill(1).await;
        fill(&cluster, 0, 51..60).await;
        assert_eq!(cluster.shard().in_sync, [id(1)].into());
        cluster.restart(1);
        cluster.assign(1, id(9));
        cluster.in_sync(2).await;
        let recoveries = cluster.process(1).replication.recoveries();
        let (allocation, moved) = recoveries[0];
        assert_eq!(allocation, id(9));
        assert!(moved.files > 0, "{moved:?}");
        if kind == ReplicationType::Segment {
            assert!(
                moved.linked > 0,
                "its old folder has files of the primary: {moved:?}"
            );
        }
        let (name, source) = doc(60);
        assert!(
            cluster
                .write(0, &name, &source, Refresh::Now)
                .await
                .unwrap()
                .refreshed
        );
        assert_eq!(cluster.count(1).await, 61, "{kind:?}");
        let old = cluster.copy(1).dir().parent().unwrap().join(id(2).to_string());
        eventually("the old folder goes", async || !old.exists()).await;
        assert!(cluster.copy(1).dir().exists());
        // It can take over.
        cluster.kill(0).await;
        cluster.activate(1, id(9)).await;
        assert_documents(&cluster, 1, 61).await;
        cluster.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_that_a_new_primary_interrupts_after_the_log_began_begins_anew() {
    let mut cluster = Cluster::start(3);
    cluster.create(ReplicationType::Document, 1).await;
    fill(&cluster, 0, 0..10).await;
    cluster.copy(0).flush().await.unwrap();
    // Node 2 cannot ask for files yet; then its disk hangs where the log of the new copy begins.
    let hole = cluster.isolate(0);
    cluster.assign(2, id(3));
    eventually("the new copy waits for files", async || {
        cluster.process(2).replication.copy(SHARD).is_ok()
    })
    .await;
    cluster.process(2).disk.hang_syncs(true);
    cluster.reconnect(0);
    drop(hole);
    eventually("the files are there", async || {
        !cluster.process(2).replication.recoveries().is_empty()
    })
    .await;
    let hole = cluster.isolate(1);
    cluster.kill(0).await;
    cluster.activate(1, id(2)).await;
    fill(&cluster, 1, 10..20).await;
    cluster.copy(1).flush().await.unwrap();
    cluster.reconnect(1);
    drop(hole);
    cluster.process(2).disk.hang_syncs(false);
    eventually("the new copy is in sync", async || {
        cluster.shard().in_sync == [id(2), id(3)].into()
    })
    .await;
    cluster.assert_same_logs(1, 2, 20).await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_joins_while_writes_go_on_and_misses_none() {
    for kind in BOTH {
        let cluster = Cluster::start(2);
        cluster.create(kind, 0).await;
        fill(&cluster, 0, 0..40).await;
        let writing = fill(&cluster, 0, 40..240);
        let joining = async {
            cluster.assign(1, id(2));
            cluster.in_sync(2).await;
        };
        tokio::join!(writing, joining);
        cluster.assert_same_logs(0, 1, 230).await;
        let (name, source) = doc(240);
        cluster.write(0, &name, &source, Refresh::Now).await.unwrap();
        eventually("the new copy shows all", async || cluster.count(1).await == 241).await;
        cluster.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_whose_disk_fails_gives_way_and_its_acknowledged_writes_stay() {
    for kind in BOTH {
        let cluster = Cluster::start(2);
        cluster.create(kind, 1).await;
        fill(&cluster, 0, 0..20).await;
        cluster.process(0).disk.fail_syncs(true);
        let outcome = cluster.write(0, "x", "{}", Refresh::No).await;
        assert!(matches!(outcome, Err(WriteError::Unknown(_))), "{outcome:?}");
        eventually("the failure is reported", async || {
            cluster.shard().active.is_none()
        })
        .await;
        assert_eq!(
            cluster.shard().in_sync,
            [id(2)].into(),
            "a copy that can take over is worth more"
        );
        cluster.activate(1, id(2)).await;
        assert_documents(&cluster, 1, 20).await;
        fill(&cluster, 1, 20..25).await;
        assert_documents(&cluster, 1, 25).await;
        cluster.process(0).disk.fail_syncs(false);
        cluster.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_disk_fails_is_reported_and_a_write_goes_on_without_it() {
    let cluster = Cluster::start(2);
    cluster.create(ReplicationType::Document, 1).await;
    fill(&cluster, 0, 0..5).await;
    cluster.process(1).disk.fail_syncs(true);
    let (name, source) = doc(5);
    let writing = cluster.write(0, &name, &source, Refresh::No);
    let reporting = async {
        let broken = async || {
            cluster
                .shard()
                .copy(id(2))
                .is_none_or(|copy| copy.broken.is_some())
        };
        eventually("the broken copy is reported", broken).await;
        // As the manager does with broken copies.
        let term = cluster.shard().term;
        let change = Change::FailCopy {
            shard: SHARD,
            term,
            allocation: id(2),
            reason: "broken".to_owned(),
        };
        cluster.meta.apply(change).unwrap();
    };
    let (written, ()) = tokio::join!(writing, reporting);
    written.unwrap();
    assert_documents(&cluster, 0, 6).await;
    cluster.process(1).disk.fail_syncs(false);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_cannot_be_opened_any_more_holds_up_no_write() {
    let cluster = Cluster::start(2);
    cluster.create(ReplicationType::Document, 1).await;
    fill(&cluster, 0, 0..5).await;
    cluster.process(1).disk.fail_syncs(true);
    // No manager fails it out: the primary does, for its write.
    let (name, source) = doc(5);
    let begun = Instant::now();
    cluster.write(0, &name, &source, Refresh::No).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(cluster.shard().in_sync, [id(1)].into());
    cluster.process(1).disk.fail_syncs(false);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_disk_hangs_while_its_process_answers_leaves_the_in_sync_set() {
    let cluster = Cluster::start(2);
    cluster.create(ReplicationType::Document, 1).await;
    fill(&cluster, 0, 0..5).await;
    cluster.process(1).disk.hang_syncs(true);
    let (name, source) = doc(5);
    let deadline = Instant::now() + Duration::from_secs(60);
    cluster
        .write_until(0, &name, &source, Refresh::No, deadline)
        .await
        .unwrap();
    assert_eq!(cluster.shard().in_sync, [id(1)].into());
    fill(&cluster, 0, 6..10).await;
    cluster.process(1).disk.hang_syncs(false);
    cluster.end().await;
}

fn failing_disk() -> FaultyFs {
    let disk = FaultyFs::default();
    disk.fail_syncs(true);
    disk
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_in_sync_copy_is_not_given_up_for_a_disk_that_fails_for_a_while() {
    let mut cluster = Cluster::start(1);
    cluster.create(ReplicationType::Document, 0).await;
    fill(&cluster, 0, 0..10).await;
    cluster.kill(0).await;
    cluster.restart_on(0, failing_disk());
    let disk = cluster.process(0).disk.clone();
    let change = Change::Activate {
        shard: SHARD,
        term: 2,
        allocation: id(1),
        boot_id: cluster.process(0).member.boot_id.unwrap(),
    };
    cluster.meta.apply(change).unwrap();
    eventually("it was tried often", async || disk.failed_syncs() >= 6).await;
    let shard = cluster.shard();
    assert_eq!(shard.copy(id(1)).unwrap().broken, None);
    assert!(shard.active.is_some(), "the activation goes on");
    disk.fail_syncs(false);
    eventually("the primary starts", async || cluster.shard().started).await;
    assert_documents(&cluster, 0, 10).await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_was_reported_as_broken_is_taken_back_once_it_opens() {
    let mut cluster = Cluster::start(2);
    cluster.create(ReplicationType::Document, 1).await;
    fill(&cluster, 0, 0..10).await;
    cluster.kill(1).await;
    cluster.restart_on(1, failing_disk());
    let broken = async || cluster.shard().copy(id(2)).unwrap().broken.is_some();
    eventually("it is reported", broken).await;
    cluster.process(1).disk.fail_syncs(false);
    eventually("it is taken back", async || !broken().await).await;
    fill(&cluster, 0, 10..20).await;
    assert_eq!(cluster.shard().in_sync.len(), 2);
    cluster.assert_same_logs(0, 1, 0).await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_cannot_be_built_is_reported() {
    let cluster = Cluster::start(2);
    cluster.create(ReplicationType::Document, 0).await;
    fill(&cluster, 0, 0..10).await;
    cluster.copy(0).flush().await.unwrap();
    cluster.process(1).disk.fail_paths(Some(".part"));
    cluster.assign(1, id(2));
    let broken = async || cluster.shard().copy(id(2)).and_then(|copy| copy.broken.clone());
    eventually("it is reported", async || broken().await.is_some()).await;
    let reason = broken().await.unwrap();
    assert!(reason.contains("cannot be built"), "{reason}");
    cluster.process(1).disk.fail_paths(None);
    cluster.in_sync(2).await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_fails_after_each_opening_is_reported() {
    let cluster = Cluster::start(2);
    cluster.create(ReplicationType::Document, 1).await;
    fill(&cluster, 0, 0..10).await;
    cluster.process(1).disk.fail_paths(Some("/index"));
    let broken = async || cluster.shard().copy(id(2)).unwrap().broken.clone();
    let flushed = async || {
        // It opens again and again, and its index fails with each flush.
        if let Ok(copy) = cluster.process(1).replication.copy(SHARD) {
            drop(copy.flush().await);
        }
        broken().await.is_some()
    };
    eventually("it is reported", flushed).await;
    let reason = broken().await.unwrap();
    assert!(
        reason.contains("after each opening") && reason.contains("no file of its index is damaged"),
        "{reason}"
    );
    cluster.process(1).disk.fail_paths(None);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_killed_at_once_lose_nothing_that_was_acknowledged() {
    let mut cluster = Cluster::start(3);
    cluster.create(ReplicationType::Document, 2).await;
    fill(&cluster, 0, 0..60).await;
    for node in 0..3 {
        cluster.kill(node).await;
    }
    for node in 0..3 {
        cluster.restart(node);
    }
    cluster.activate(2, id(3)).await;
    assert_documents(&cluster, 2, 60).await;
    fill(&cluster, 2, 60..70).await;
    assert_documents(&cluster, 2, 70).await;
    cluster.end().await;
}

/// The machine of a node whose process has ended started anew: what the kernel had of its log is gone.
fn lose_power(dir: &std::path::Path) {
    let record = std::fs::read_to_string(dir.join("copy.json")).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&record).unwrap();
    record["kernel_boot_id"] = "another".into();
    std::fs::write(dir.join("copy.json"), record.to_string()).unwrap();
    let mut logs: Vec<_> = std::fs::read_dir(dir.join("translog"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    logs.retain(|path| path.extension().is_some_and(|extension| extension == "tlog"));
    logs.sort();
    let log = std::fs::OpenOptions::new()
        .write(true)
        .open(logs.last().unwrap())
        .unwrap();
    let length = log.metadata().unwrap().len();
    log.set_len(length * 2 / 3).unwrap();
}

/// Two copies with 50 asynchronous writes, both killed; the machine of node 0 lost some of them.
async fn killed_and_node_0_lost_writes() -> Cluster {
    let mut cluster = Cluster::start(2);
    cluster
        .create_with(IndexSettings {
            durability: Durability::Async,
            sync_interval_ms: 3_600_000,
            number_of_replicas: 1,
            ..IndexSettings::default()
        })
        .await;
    fill(&cluster, 0, 0..50).await;
    let dir = cluster.copy(0).dir().to_owned();
    for node in 0..2 {
        cluster.kill(node).await;
    }
    lose_power(&dir);
    cluster
}

async fn is_open(cluster: &Cluster, node: usize) {
    eventually("its copy is open", async || {
        cluster.process(node).replication.copy(SHARD).is_ok()
    })
    .await;
}

/// As the manager would; it may not come to admit writes.
fn give_to_node_0(cluster: &Cluster) {
    let change = Change::Activate {
        shard: SHARD,
        term: cluster.shard().term + 1,
        allocation: id(1),
        boot_id: cluster.process(0).member.boot_id.unwrap(),
    };
    cluster.meta.apply(change).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_whose_machine_lost_async_writes_gives_way_to_one_that_has_them() {
    let mut cluster = killed_and_node_0_lost_writes().await;
    for node in 0..2 {
        cluster.restart(node);
        is_open(&cluster, node).await;
    }
    assert!(
        cluster.copy(0).log_state().last < Some(49),
        "the test lost something"
    );
    give_to_node_0(&cluster);
    eventually("it gives way", async || cluster.shard().active.is_none()).await;
    assert_eq!(cluster.shard().in_sync, [id(2)].into(), "AsyncLossBounded");
    cluster.activate(1, id(2)).await;
    assert_documents(&cluster, 1, 50).await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_may_have_lost_writes_waits_for_the_report_of_one_that_is_away() {
    let mut cluster = killed_and_node_0_lost_writes().await;
    cluster.restart(0);
    is_open(&cluster, 0).await;
    give_to_node_0(&cluster);
    eventually("it waits, and says for whom", async || {
        let waits = cluster.copy(0).stats().waiting_for;
        waits.is_some_and(|reason| reason.contains(&id(2).to_string()))
    })
    .await;
    assert!(!cluster.shard().started);
    cluster.restart(1);
    eventually("it gives way", async || cluster.shard().active.is_none()).await;
    assert_eq!(cluster.shard().in_sync, [id(2)].into(), "AsyncLossBounded");
    cluster.activate(1, id(2)).await;
    assert_documents(&cluster, 1, 50).await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_to_request_is_in_force_only_once_every_copy_has_synced() {
    let cluster = Cluster::start(2);
    cluster
        .create_with(IndexSettings {
            durability: Durability::Async,
            sync_interval_ms: 3_600_000,
            number_of_replicas: 1,
            ..IndexSettings::default()
        })
        .await;
    fill(&cluster, 0, 0..10).await;
    assert_eq!(cluster.copy(0).report().durability, Durability::Async);
    let change = Change::UpdateSettings {
        epoch: None,
        index: support::INDEX,
        owner: None,
        settings: [("index.translog.durability".to_owned(), Some("request".to_owned()))].into(),
    };
    cluster.meta.apply(change).unwrap();
    eventually("the settings are known", async || {
        cluster.copy(0).wants_sync() && cluster.copy(1).wants_sync()
    })
    .await;
    cluster.copy(0).durability_settled(soon()).await.unwrap();
    for node in 0..2 {
        let state = cluster.copy(node).log_state();
        assert_eq!(state.positions.persisted, Some(9), "node {node}");
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_index_leaves_nothing_and_an_unknown_one_is_kept() {
    let cluster = Cluster::start(1);
    cluster.create(ReplicationType::Document, 0).await;
    fill(&cluster, 0, 0..3).await;
    let dir = cluster.copy(0).dir().ancestors().nth(2).unwrap().to_owned();
    let unknown = dir
        .parent()
        .unwrap()
        .join(uuid::Uuid::from_u128(0xDEAD).to_string());
    std::fs::create_dir_all(unknown.join("0")).unwrap();
    cluster
        .meta
        .apply(Change::DeleteIndex {
            epoch: None,
            index: support::INDEX,
            owner: None,
        })
        .unwrap();
    eventually("its folder goes", async || !dir.exists()).await;
    assert!(unknown.exists());
    let known = [uuid::Uuid::from_u128(0xDEAD)].into();
    let reported = async || cluster.process(0).replication.unknown_indices() == known;
    eventually("the unknown index is reported", reported).await;
    assert!(unknown.exists());
    cluster.end().await;
}
