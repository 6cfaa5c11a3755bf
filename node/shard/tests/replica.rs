//! A replica without a network: what it takes, what it refuses, what it shows.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

mod support;

use segmentry_settings::ReplicationType;
use segmentry_shard::{
    AppendRefusal, Batch, OpenError, OpenMode, Positions, Role, ShardCopy, TermStart, WriteError, WriteKind,
};
use segmentry_translog::{Operation, OperationKind};
use segmentry_vfs::{CrashFs, Faults};
use std::{path::Path, sync::Arc};
use support::{Site, activate, eventually, id, op, source, write};
use tempfile::TempDir;

fn operation(seq_no: u64, term: u64, doc: &str) -> Operation {
    Operation {
        seq_no,
        term,
        version: 1,
        mapping_version: 0,
        kind: OperationKind::Index,
        id: doc.into(),
        routing: None,
        source: format!(r#"{{"of":{term}}}"#).into(),
    }
}

/// The first batch of a term.
fn keep(keep_to: Option<u64>) -> TermStart {
    TermStart { keep_to }
}

fn batch(term: u64, start: Option<TermStart>, operations: Vec<Operation>, checkpoint: Option<u64>) -> Batch {
    Batch {
        term,
        start,
        previous: match (&operations[..], start) {
            ([first, ..], _) => first.seq_no.checked_sub(1),
            ([], Some(start)) => start.keep_to,
            ([], None) => None,
        },
        primary_last: operations.last().map(|operation| operation.seq_no),
        operations,
        global_checkpoint: checkpoint,
        sync: true,
    }
}

async fn replica(site: &Site) -> Arc<ShardCopy> {
    let copy = site.open(id(1), OpenMode::Create).await;
    let operations = (0..10).map(|n| operation(n, 1, &format!("d{n}"))).collect();
    copy.append_from_primary(batch(1, Some(keep(None)), operations, Some(5)))
        .await
        .unwrap();
    copy
}

/// Any fields are mapped by hand: nobody proposes anything on a replica.
fn site(dir: &TempDir) -> Site {
    let site = Site::new(dir.path());
    let mapping = segmentry_mapping::Mapping::from_json(
        &serde_json::json!({"properties": {"of": {"type": "long"}}}),
        100,
    )
    .unwrap();
    site.mapping.set(mapping);
    site
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_shows_nothing_above_the_global_checkpoint() {
    let dir = TempDir::new().unwrap();
    let copy = replica(&site(&dir)).await;
    assert_eq!(copy.log_state().positions.persisted, Some(9));
    assert_eq!(
        copy.refresh().await.unwrap(),
        Some(5),
        "SegmentsBelowGlobalCheckpoint"
    );
    assert_eq!(copy.flush().await.unwrap(), Some(5));
    copy.append_from_primary(Batch {
        previous: Some(9),
        ..batch(1, None, Vec::new(), Some(9))
    })
    .await
    .unwrap();
    assert_eq!(
        copy.refresh().await.unwrap(),
        Some(9),
        "the trailing message moved it"
    );
    copy.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_does_not_continue_the_log_is_refused_whole() {
    let dir = TempDir::new().unwrap();
    let copy = replica(&site(&dir)).await;
    for wrong in [operation(9, 1, "again"), operation(11, 1, "gap")] {
        let refused = copy
            .append_from_primary(batch(1, None, vec![wrong], None))
            .await
            .unwrap_err();
        let AppendRefusal::Expect(state) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!((state.last, state.last_term), (Some(9), 1), "ContiguousLog");
    }
    let refused = copy
        .append_from_primary(batch(2, None, vec![operation(10, 2, "x")], None))
        .await
        .unwrap_err();
    assert!(
        matches!(refused, AppendRefusal::Expect(_)),
        "a term begins with its start: {refused:?}"
    );
    assert_eq!(copy.log_state().last, Some(9));
    copy.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_term_start_voids_what_is_above_and_never_below_the_checkpoint() {
    let dir = TempDir::new().unwrap();
    let site = site(&dir);
    let copy = replica(&site).await;
    let refused = copy
        .append_from_primary(batch(2, Some(keep(Some(3))), Vec::new(), Some(3)))
        .await
        .unwrap_err();
    assert!(matches!(refused, AppendRefusal::Diverged(_)), "{refused:?}");
    let state = copy
        .append_from_primary(batch(
            2,
            Some(keep(Some(6))),
            vec![operation(7, 2, "new")],
            Some(7),
        ))
        .await
        .unwrap();
    assert_eq!((state.last, state.last_term, state.log_term), (Some(7), 2, 2));
    let old = copy
        .append_from_primary(batch(1, None, vec![operation(8, 1, "old")], None))
        .await
        .unwrap_err();
    assert!(
        matches!(old, AppendRefusal::Stale { given: 1, known: 2 }),
        "OneWriter: {old:?}"
    );
    assert_eq!(copy.refresh().await.unwrap(), Some(7));
    activate(&copy, 3, &[id(1)]).await;
    assert_eq!(source(&copy, "new").await.as_deref(), Some(r#"{"of":2}"#));
    assert_eq!(source(&copy, "d7").await, None, "void");
    assert_eq!(source(&copy, "d6").await.as_deref(), Some(r#"{"of":1}"#));
    assert_eq!(
        write(&copy, op(WriteKind::Index, "z", "{}"))
            .await
            .unwrap()
            .seq_no,
        8
    );
    copy.abandon().await;
    drop(copy);
    let copy = site.primary(id(1), OpenMode::Existing, 4).await;
    assert_eq!(source(&copy, "d7").await, None, "void after a crash as well");
    copy.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_steps_down_for_a_batch_of_a_newer_term() {
    let dir = TempDir::new().unwrap();
    let site = site(&dir);
    let copy = site.primary(id(1), OpenMode::Create, 1).await;
    write(&copy, op(WriteKind::Index, "a", r#"{"of":1}"#))
        .await
        .unwrap();
    let stale = copy
        .append_from_primary(batch(1, None, vec![operation(1, 1, "b")], None))
        .await
        .unwrap_err();
    assert!(
        matches!(stale, AppendRefusal::Stale { .. }),
        "two primaries of one term: {stale:?}"
    );
    copy.append_from_primary(batch(2, Some(keep(Some(0))), vec![operation(1, 2, "b")], Some(1)))
        .await
        .unwrap();
    assert_eq!(copy.role(), Role::Replica { term: 2 });
    assert!(write(&copy, op(WriteKind::Index, "c", "{}")).await.is_err());
    assert_eq!(copy.refresh().await.unwrap(), Some(1));
    copy.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_of_segment_logs_and_indexes_only_once_it_is_promoted() {
    let dir = TempDir::new().unwrap();
    let mut site = site(&dir);
    site.settings.replication_type = ReplicationType::Segment;
    let copy = replica(&site).await;
    assert_eq!(copy.refresh().await.unwrap(), None);
    assert!(!copy.stats().engine.writer_open);
    activate(&copy, 2, &[id(1)]).await;
    assert_eq!(
        source(&copy, "d9").await.as_deref(),
        Some(r#"{"of":1}"#),
        "what its log holds above the checkpoint stays"
    );
    assert_eq!(copy.refresh().await.unwrap(), Some(9));
    copy.close().await.unwrap();
}

/// An earlier primary may have acknowledged all of it, so a refresh that leaves a part out would hide acknowledged writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_of_a_new_primary_waits_until_what_it_inherited_is_on_every_in_sync_copy() {
    let dir = TempDir::new().unwrap();
    let site = site(&dir);
    let copy = replica(&site).await;
    activate(&copy, 2, &[id(1), id(2)]).await;
    let refresh = tokio::spawn({
        let copy = Arc::clone(&copy);
        async move { copy.refresh().await }
    });
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(!refresh.is_finished(), "the other copy has not answered");
    let all = Positions {
        written: Some(9),
        persisted: Some(9),
    };
    copy.replica_position(id(2), all);
    assert_eq!(refresh.await.unwrap().unwrap(), Some(9));
    copy.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_replica_knows_what_is_committed_and_not_shown_yet() {
    let dir = TempDir::new().unwrap();
    let site = site(&dir);
    let copy = site.open(id(1), OpenMode::Create).await;
    copy.append_from_primary(batch(1, Some(keep(None)), vec![operation(0, 1, "a")], Some(0)))
        .await
        .unwrap();
    let indexed = async || copy.stats().counters.index_total == 1;
    eventually("it is indexed", indexed).await;
    // A document with a new field: the index grows, and commits what it has on the way.
    let update = segmentry_mapping::Mapping::update_from_json(
        &serde_json::json!({"properties": {"tag": {"type": "keyword"}}}),
    )
    .unwrap();
    site.mapping.set(site.mapping.now().merge(&update, 100).unwrap());
    copy.apply_index(&site.index());
    let grown = Operation {
        mapping_version: site.mapping.now().version,
        source: r#"{"of":1,"tag":"x"}"#.into(),
        ..operation(1, 1, "b")
    };
    copy.append_from_primary(batch(1, None, vec![grown], Some(1)))
        .await
        .unwrap();
    eventually("it is committed", async || {
        copy.engine().commit_info().max_seq_no == Some(0)
    })
    .await;
    assert_eq!(copy.log_state().visible, None, "no refresh yet");
    activate(&copy, 2, &[id(1)]).await;
    assert_eq!(source(&copy, "a").await.as_deref(), Some(r#"{"of":1}"#));
    let again = write(&copy, op(WriteKind::Create, "a", r#"{"of":2}"#)).await;
    assert!(
        matches!(again, Err(WriteError::VersionConflict { .. })),
        "{again:?}"
    );
    copy.close().await.unwrap();
}

/// As if the machine had started anew since the copy was used last.
fn another_kernel(dir: &Path) {
    let path = dir.join("copy.json");
    let record = std::fs::read_to_string(&path).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&record).unwrap();
    record["kernel_boot_id"] = "another".into();
    std::fs::write(path, record.to_string()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_whose_machine_started_anew_is_suspect_until_it_has_caught_up() {
    let dir = TempDir::new().unwrap();
    let site = site(&dir);
    let copy = replica(&site).await;
    copy.abandon().await;
    drop(copy);
    another_kernel(&dir.path().join(id(1).to_string()));
    // The index asks for `request` now: it may have been `async` when the last writes came.
    for clean in [false, true] {
        let copy = site.open(id(1), OpenMode::Existing).await;
        assert!(copy.log_state().suspect);
        if clean {
            copy.close().await.unwrap();
        } else {
            copy.abandon().await;
        }
    }
    let copy = site.open(id(1), OpenMode::Existing).await;
    assert!(copy.log_state().suspect, "no end of the process makes it whole");
    copy.append_from_primary(Batch {
        primary_last: Some(12),
        ..batch(2, Some(keep(Some(9))), vec![operation(10, 2, "d10")], Some(9))
    })
    .await
    .unwrap();
    assert!(copy.log_state().suspect, "the primary holds more");
    copy.append_from_primary(batch(
        2,
        None,
        vec![operation(11, 2, "d11"), operation(12, 2, "d12")],
        Some(9),
    ))
    .await
    .unwrap();
    assert!(!copy.log_state().suspect);
    copy.abandon().await;
    drop(copy);
    let copy = site.open(id(1), OpenMode::Existing).await;
    assert!(!copy.log_state().suspect);
    copy.close().await.unwrap();
}

/// Brings the files of a primary's checkpoint to a copy that is being built.
fn bring(from: &ShardCopy, to: &ShardCopy) -> segmentry_engine::Checkpoint {
    let pinned = from.engine().pin_checkpoint();
    for file in to.engine().missing_files(pinned.checkpoint()) {
        let mut bytes = vec![0; usize::try_from(file.len).unwrap()];
        let source = pinned.open(&file.name).unwrap();
        let mut at = 0;
        while at < bytes.len() {
            at += source.read_at(&mut bytes[at..], at as u64).unwrap();
        }
        let mut sink = to.engine().receive_file(file).unwrap();
        sink.write(&bytes).unwrap();
        sink.finish().unwrap();
    }
    pinned.checkpoint().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_that_fails_after_its_log_has_begun_is_to_be_begun_anew() {
    let fs = CrashFs::new();
    let root = Path::new("/data");
    let site = Site::on(root, Arc::new(fs.clone()), false, 64 << 20);
    let primary = site.primary(id(1), OpenMode::Create, 1).await;
    write(&primary, op(WriteKind::Index, "a", r#"{"of":1}"#))
        .await
        .unwrap();
    primary.flush().await.unwrap();
    let copy = site.open(id(2), OpenMode::Recover).await;
    let checkpoint = bring(&primary, &copy);
    // The first sync is that of the log's beginning.
    fs.set_faults(Faults {
        fail_sync: Some(fs.syncs() + 2),
        ..Faults::default()
    });
    copy.complete(checkpoint, 1).await.unwrap_err();
    assert!(copy.half_built(), "{:?}", copy.role());
    fs.set_faults(Faults::default());
    copy.abandon().await;
    drop(copy);
    let again = site.try_open(id(2), OpenMode::Existing).await;
    assert!(matches!(again, Err(OpenError::Incomplete(_))), "{again:?}");
    let copy = site.open(id(2), OpenMode::Recover).await;
    assert!(!copy.half_built());
    copy.complete(bring(&primary, &copy), 1).await.unwrap();
    assert_eq!(copy.role(), Role::Replica { term: 1 });
    for copy in [primary, copy] {
        copy.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_waits_for_the_mapping_that_an_operation_was_parsed_by() {
    let dir = TempDir::new().unwrap();
    let site = site(&dir);
    let copy = site.open(id(1), OpenMode::Create).await;
    let version = site.mapping.now().version + 1;
    let late = Operation {
        mapping_version: version,
        source: r#"{"of":1,"tag":"x"}"#.into(),
        ..operation(0, 1, "d0")
    };
    copy.append_from_primary(batch(1, Some(keep(None)), vec![late], Some(0)))
        .await
        .unwrap();
    assert_eq!(copy.refresh().await.unwrap(), None, "the field is not known here");
    let update = segmentry_mapping::Mapping::update_from_json(
        &serde_json::json!({"properties": {"tag": {"type": "keyword"}}}),
    )
    .unwrap();
    site.mapping.set(site.mapping.now().merge(&update, 100).unwrap());
    assert_eq!(site.mapping.now().version, version);
    copy.apply_index(&site.index());
    assert_eq!(copy.refresh().await.unwrap(), Some(0));
    copy.close().await.unwrap();
}
