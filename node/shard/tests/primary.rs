//! A primary that is alone: writes, versions, reads, crashes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

mod support;

use proptest::prelude::*;
use segmentry_query::{Query, parse_search};
use segmentry_settings::Durability;
use segmentry_shard::{Activation, CopyError, CopyFailure, OpenMode, Outcome, Role, WriteError, WriteKind};
use segmentry_vfs::{CrashFs, Faults};
use std::{collections::BTreeMap, path::Path, sync::Arc};
use support::{Site, activate, eventually, id, op, soon, source, write};
use tempfile::TempDir;

fn all() -> Query {
    parse_search(
        &serde_json::json!({"query": {"match_all": {}}}),
        &std::collections::BTreeMap::default(),
        0,
    )
    .unwrap()
    .query
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_read_by_id_before_and_searched_after_a_refresh() {
    let dir = TempDir::new().unwrap();
    let site = Site::new(dir.path());
    let copy = site.primary(id(1), OpenMode::Create, 1).await;
    let done = write(
        &copy,
        op(WriteKind::Index, "a", r#"{"title":"the sea","pages":12}"#),
    )
    .await
    .unwrap();
    assert_eq!(
        (done.outcome, done.version, done.seq_no, done.term),
        (Outcome::Created, 1, 0, 1)
    );
    assert_eq!(
        source(&copy, "a").await.unwrap(),
        r#"{"title":"the sea","pages":12}"#
    );
    assert_eq!(copy.count(all(), 0).await.unwrap(), 0, "no refresh yet");
    assert_eq!(copy.refresh().await.unwrap(), Some(0));
    assert_eq!(copy.count(all(), 0).await.unwrap(), 1);
    assert_eq!(site.mapping.now().version, 1, "the fields were proposed");
    copy.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_are_checked_against_the_newest_write() {
    let dir = TempDir::new().unwrap();
    let site = Site::new(dir.path());
    let copy = site.primary(id(1), OpenMode::Create, 1).await;
    write(&copy, op(WriteKind::Create, "a", "{}")).await.unwrap();
    let error = write(&copy, op(WriteKind::Create, "a", "{}")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "[a]: version conflict, document already exists (current version [1])"
    );
    let mut cas = op(WriteKind::Index, "a", r#"{"n":1}"#);
    (cas.if_seq_no, cas.if_primary_term) = (Some(0), Some(1));
    assert_eq!(write(&copy, cas.clone()).await.unwrap().version, 2);
    copy.flush().await.unwrap();
    let error = write(&copy, cas).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "[a]: version conflict, required seqNo [0], primary term [1]. current document has seqNo [1] and primary term [1]"
    );
    let gone = write(&copy, op(WriteKind::Delete, "a", "")).await.unwrap();
    assert_eq!((gone.outcome, gone.version), (Outcome::Deleted, 3));
    assert_eq!(source(&copy, "a").await, None);
    copy.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_of_one_request_see_each_other_in_order() {
    let dir = TempDir::new().unwrap();
    let site = Site::new(dir.path());
    let copy = site.primary(id(1), OpenMode::Create, 1).await;
    let ops = vec![
        op(WriteKind::Index, "a", r#"{"n":1}"#),
        op(WriteKind::Update, "a", r#"{"doc":{"fresh":"field"}}"#),
        op(WriteKind::Update, "a", r#"{"doc":{"n":1}}"#),
        op(WriteKind::Index, "b", r#"{"n":"not a number"}"#),
        op(WriteKind::Update, "c", r#"{"doc":{"n":5}}"#),
        op(WriteKind::Update, "c", r#"{"doc":{"n":5},"doc_as_upsert":true}"#),
        op(WriteKind::Delete, "zzz", ""),
    ];
    let results = copy.write(ops, soon()).await;
    let outcomes: Vec<_> = results
        .iter()
        .map(|result| {
            result
                .as_ref()
                .map(|done| (done.outcome, done.version, done.seq_no))
        })
        .collect();
    assert_eq!(outcomes[0], Ok((Outcome::Created, 1, 0)));
    assert_eq!(outcomes[1], Ok((Outcome::Updated, 2, 1)));
    assert_eq!(outcomes[2], Ok((Outcome::Noop, 2, 1)));
    assert!(
        matches!(results[3], Err(WriteError::Mapping(_))),
        "{:?}",
        results[3]
    );
    assert!(
        matches!(results[4], Err(WriteError::Missing(_))),
        "{:?}",
        results[4]
    );
    assert_eq!(outcomes[5], Ok((Outcome::Created, 1, 2)));
    assert_eq!(
        outcomes[6],
        Ok((Outcome::NotFound, 1, 3)),
        "a delete of nothing is logged as well"
    );
    assert_eq!(source(&copy, "a").await.unwrap(), r#"{"n":1,"fresh":"field"}"#);
    copy.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_over_the_indexing_budget_is_rejected_and_nothing_of_it_is_done() {
    let dir = TempDir::new().unwrap();
    let site = Site::on(dir.path(), Arc::new(segmentry_vfs::RealFs), true, 10_000);
    let copy = site.primary(id(1), OpenMode::Create, 1).await;
    let held = site.node.budget.try_take(9_000).unwrap();
    let error = write(
        &copy,
        op(
            WriteKind::Index,
            "a",
            &format!(r#"{{"t":"{}"}}"#, "x".repeat(2_000)),
        ),
    )
    .await
    .unwrap_err();
    assert_eq!(error.status_and_kind(), (429, "rejected_execution_exception"));
    assert_eq!(source(&copy, "a").await, None);
    drop(held);
    write(&copy, op(WriteKind::Index, "a", "{}")).await.unwrap();
    copy.refresh().await.unwrap();
    copy.refresh().await.unwrap();
    eventually("the share is given back", async || site.node.budget.used() == 0).await;
    copy.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_waits_for_another_one_acknowledges_nothing_and_shows_nothing() {
    let dir = TempDir::new().unwrap();
    let site = Site::new(dir.path());
    let copy = site.open(id(1), OpenMode::Create).await;
    activate(&copy, 1, &[id(1), id(2)]).await;
    let results = copy
        .write(
            vec![op(WriteKind::Index, "a", "{}")],
            tokio::time::Instant::now() + std::time::Duration::from_millis(200),
        )
        .await;
    assert!(matches!(results[0], Err(WriteError::Unknown(_))), "{results:?}");
    assert_eq!(
        copy.refresh().await.unwrap(),
        None,
        "SegmentsBelowGlobalCheckpoint"
    );
    let short = tokio::time::Instant::now() + std::time::Duration::from_millis(100);
    assert!(
        matches!(
            copy.get("a".into(), true, short).await,
            Err(CopyError::NotPrimary(_))
        ),
        "a get waits for it too"
    );
    copy.set_copies(&[id(1)].into(), &[id(1)].into());
    assert_eq!(source(&copy, "a").await.unwrap(), "{}");
    assert_eq!(copy.refresh().await.unwrap(), Some(0));
    copy.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_are_admitted_only_after_the_start_is_recorded_and_never_by_a_deposed_primary() {
    let dir = TempDir::new().unwrap();
    let site = Site::new(dir.path());
    let copy = site.open(id(1), OpenMode::Create).await;
    copy.activate(segmentry_shard::Activation {
        term: 3,
        in_sync: [id(1)].into(),
    })
    .await
    .unwrap();
    let refused = write(&copy, op(WriteKind::Index, "a", "{}")).await.unwrap_err();
    assert!(matches!(refused, WriteError::NotPrimary(_)));
    copy.admit(3);
    write(&copy, op(WriteKind::Index, "a", "{}")).await.unwrap();
    copy.depose(3);
    assert!(matches!(
        write(&copy, op(WriteKind::Index, "a", "{}")).await.unwrap_err(),
        WriteError::NotPrimary(_)
    ));
    let again = copy
        .activate(segmentry_shard::Activation {
            term: 3,
            in_sync: [id(1)].into(),
        })
        .await;
    assert!(
        matches!(again, Err(CopyError::StaleTerm { .. })),
        "TermPerActivation: {again:?}"
    );
    activate(&copy, 4, &[id(1)]).await;
    assert_eq!(
        write(&copy, op(WriteKind::Index, "a", "{}")).await.unwrap().term,
        4
    );
    copy.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_trimmed_only_up_to_the_durable_commit() {
    let dir = TempDir::new().unwrap();
    let mut site = Site::new(dir.path());
    site.settings.flush_threshold_bytes = 40_000;
    site.settings.generation_threshold_bytes = 10_000;
    let copy = site.primary(id(1), OpenMode::Create, 1).await;
    for number in 0..200 {
        write(
            &copy,
            op(
                WriteKind::Index,
                &format!("d{number}"),
                &format!(r#"{{"t":"{}"}}"#, "y".repeat(1_000)),
            ),
        )
        .await
        .unwrap();
    }
    eventually("a flush over the threshold", async || {
        copy.stats().counters.flush_total > 0
    })
    .await;
    copy.flush().await.unwrap();
    let stats = copy.stats();
    assert_eq!(stats.report.uncommitted_operations, 0, "TrimAfterFlush");
    assert!(stats.log.operations < 200, "{:?}", stats.log);
    copy.abandon().await;
    let copy = site.primary(id(1), OpenMode::Existing, 2).await;
    copy.refresh().await.unwrap();
    assert_eq!(copy.count(all(), 0).await.unwrap(), 200);
    copy.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_to_request_is_in_force_once_async_writes_are_on_stable_storage() {
    let dir = TempDir::new().unwrap();
    let mut site = Site::new(dir.path());
    site.settings.durability = Durability::Async;
    site.settings.sync_interval_ms = 3_600_000;
    let copy = site.primary(id(1), OpenMode::Create, 1).await;
    write(&copy, op(WriteKind::Index, "a", "{}")).await.unwrap();
    let state = copy.log_state();
    assert_eq!(
        (state.positions.written, state.positions.persisted),
        (Some(0), None),
        "acknowledged by the kernel alone"
    );
    assert_eq!(copy.report().durability, Durability::Async);
    site.settings.durability = Durability::Request;
    copy.apply_index(&site.index());
    copy.durability_settled(soon()).await.unwrap();
    assert_eq!(copy.log_state().positions.persisted, Some(0));
    assert_eq!(copy.report().durability, Durability::Request);
    copy.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_writers_share_syncs() {
    let dir = TempDir::new().unwrap();
    let site = Site::new(dir.path());
    let copy = site.primary(id(1), OpenMode::Create, 1).await;
    let writers = (0..64).map(|writer| {
        let copy = Arc::clone(&copy);
        tokio::spawn(async move {
            for number in 0..10 {
                write(&copy, op(WriteKind::Index, &format!("{writer}-{number}"), "{}"))
                    .await
                    .unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let stats = copy.stats();
    assert_eq!(stats.report.max_seq_no, 639);
    assert!(stats.log.syncs < 640, "group commit: {:?}", stats.log);
    copy.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_fails_the_copy_and_acknowledges_nothing() {
    let fs = CrashFs::new();
    let site = Site::on(Path::new("/disk"), Arc::new(fs.clone()), false, 64 << 20);
    let copy = site.primary(id(1), OpenMode::Create, 1).await;
    write(&copy, op(WriteKind::Index, "a", "{}")).await.unwrap();
    fs.set_faults(Faults {
        fail_sync: Some(fs.syncs() + 1),
        ..Faults::default()
    });
    let outcome = write(&copy, op(WriteKind::Index, "b", "{}")).await;
    assert!(matches!(outcome, Err(WriteError::Unknown(_))), "{outcome:?}");
    assert!(
        matches!(copy.role(), Role::Failed(CopyFailure::Log(_))),
        "{:?}",
        copy.role()
    );
    let after = write(&copy, op(WriteKind::Index, "c", "{}")).await;
    assert!(
        matches!(after, Err(WriteError::NotPrimary(_))),
        "a sync is never tried again: {after:?}"
    );
    copy.abandon().await;
    drop(copy);
    fs.crash(1);
    let copy = site.primary(id(1), OpenMode::Existing, 2).await;
    assert_eq!(source(&copy, "a").await.as_deref(), Some("{}"));
    copy.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_cannot_write_fails_the_copy_and_the_log_keeps_every_write() {
    let fs = CrashFs::new();
    let site = Site::on(Path::new("/disk"), Arc::new(fs.clone()), false, 64 << 20);
    let copy = site.primary(id(1), OpenMode::Create, 1).await;
    for number in 0..20 {
        write(
            &copy,
            op(
                WriteKind::Index,
                &format!("d{number}"),
                &format!(r#"{{"n":{number}}}"#),
            ),
        )
        .await
        .unwrap();
    }
    fs.set_faults(Faults {
        capacity: Some(0),
        ..Faults::default()
    });
    assert!(copy.refresh().await.is_err());
    assert!(matches!(copy.role(), Role::Failed(_)), "{:?}", copy.role());
    assert!(copy.flush().await.is_err(), "it stays failed");
    copy.abandon().await;
    drop(copy);
    // It stays full for a while: no document is to blame for that.
    for term in 2..5 {
        fs.set_faults(Faults::default());
        let copy = site.open(id(1), OpenMode::Existing).await;
        fs.set_faults(Faults {
            capacity: Some(0),
            ..Faults::default()
        });
        let activated = copy
            .activate(Activation {
                term,
                in_sync: [id(1)].into(),
            })
            .await;
        assert!(activated.is_err() || copy.refresh().await.is_err());
        copy.abandon().await;
    }
    fs.set_faults(Faults::default());
    let copy = site.primary(id(1), OpenMode::Existing, 9).await;
    assert_eq!(copy.refresh().await.unwrap(), Some(19));
    assert_eq!(copy.count(all(), 0).await.unwrap(), 20);
    assert_eq!(copy.stats().counters.unindexable_total, 0);
    copy.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_copy_answers_everyone_who_waits() {
    let dir = TempDir::new().unwrap();
    let site = Site::new(dir.path());
    let copy = site.open(id(1), OpenMode::Create).await;
    activate(&copy, 1, &[id(1), id(2)]).await;
    let waiting = {
        let copy = Arc::clone(&copy);
        tokio::spawn(async move { write(&copy, op(WriteKind::Index, "a", "{}")).await })
    };
    eventually("the write is logged", async || copy.log_state().last == Some(0)).await;
    copy.close().await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(WriteError::Unknown(_))));
    assert!(copy.refresh().await.is_err() && copy.flush().await.is_err());
    assert!(matches!(
        write(&copy, op(WriteKind::Index, "b", "{}")).await,
        Err(WriteError::NotPrimary(_))
    ));
}

#[derive(Debug, Clone)]
enum Step {
    Index(u8, u8),
    Create(u8, u8),
    Update(u8, u8),
    Delete(u8),
    /// Compare-and-set with the right (true) or a wrong seq_no.
    Cas(u8, bool),
    Refresh,
    Flush,
    Reopen,
    Crash,
    /// The machine loses its power; what was not synced is lost but for what the number lets survive.
    Power(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u8..6, any::<u8>()).prop_map(|(id, n)| Step::Index(id, n)),
        2 => (0_u8..6, any::<u8>()).prop_map(|(id, n)| Step::Create(id, n)),
        3 => (0_u8..6, any::<u8>()).prop_map(|(id, n)| Step::Update(id, n)),
        3 => (0_u8..6).prop_map(Step::Delete),
        3 => (0_u8..6, any::<bool>()).prop_map(|(id, right)| Step::Cas(id, right)),
        2 => Just(Step::Refresh),
        1 => Just(Step::Flush),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
        1 => any::<u64>().prop_map(Step::Power),
    ]
}

/// What the model knows of a live document: value, extra, seq_no, term.
type Model = BTreeMap<u8, (u8, Option<u8>, u64, u64)>;

async fn run(steps: Vec<Step>) {
    let fs = CrashFs::new();
    let site = Site::on(Path::new("/disk"), Arc::new(fs.clone()), false, 64 << 20);
    let mut term = 1;
    let mut copy = site.primary(id(1), OpenMode::Create, term).await;
    let mut model = Model::new();
    for step in steps {
        match step {
            Step::Index(doc, n) => {
                let done = write(
                    &copy,
                    op(WriteKind::Index, &doc.to_string(), &format!(r#"{{"n":{n}}}"#)),
                )
                .await
                .unwrap();
                let expected = if model.contains_key(&doc) {
                    Outcome::Updated
                } else {
                    Outcome::Created
                };
                assert_eq!(done.outcome, expected);
                model.insert(doc, (n, None, done.seq_no, done.term));
            }
            Step::Create(doc, n) => {
                let done = write(
                    &copy,
                    op(WriteKind::Create, &doc.to_string(), &format!(r#"{{"n":{n}}}"#)),
                )
                .await;
                match (done, model.contains_key(&doc)) {
                    (Ok(done), false) => drop(model.insert(doc, (n, None, done.seq_no, done.term))),
                    (Err(WriteError::VersionConflict { .. }), true) => {}
                    other => panic!("{other:?}"),
                }
            }
            Step::Update(doc, n) => {
                let done = write(
                    &copy,
                    op(
                        WriteKind::Update,
                        &doc.to_string(),
                        &format!(r#"{{"doc":{{"extra":{n}}}}}"#),
                    ),
                )
                .await;
                match (done, model.get_mut(&doc)) {
                    (Ok(done), Some(known)) if known.1 == Some(n) => {
                        assert_eq!((done.outcome, done.seq_no), (Outcome::Noop, known.2));
                    }
                    (Ok(done), Some(known)) => {
                        assert_eq!(done.outcome, Outcome::Updated);
                        *known = (known.0, Some(n), done.seq_no, done.term);
                    }
                    (Err(WriteError::Missing(_)), None) => {}
                    other => panic!("{other:?}"),
                }
            }
            Step::Delete(doc) => {
                let done = write(&copy, op(WriteKind::Delete, &doc.to_string(), ""))
                    .await
                    .unwrap();
                let expected = if model.remove(&doc).is_some() {
                    Outcome::Deleted
                } else {
                    Outcome::NotFound
                };
                assert_eq!(done.outcome, expected);
            }
            Step::Cas(doc, right) => {
                let known = model.get(&doc).copied();
                let (seq_no, of) = known.map_or((0, 1), |known| (known.2, known.3));
                let mut cas = op(WriteKind::Index, &doc.to_string(), r#"{"n":1}"#);
                cas.if_seq_no = Some(if right { seq_no } else { seq_no + 1_000 });
                cas.if_primary_term = Some(of);
                match (write(&copy, cas).await, known, right) {
                    (Ok(done), Some(_), true) => drop(model.insert(doc, (1, None, done.seq_no, done.term))),
                    (Err(WriteError::VersionConflict { .. }), _, false)
                    | (Err(WriteError::VersionConflict { .. }), None, _) => {}
                    other => panic!("{other:?}"),
                }
            }
            Step::Refresh => drop(copy.refresh().await.unwrap()),
            Step::Flush => drop(copy.flush().await.unwrap()),
            Step::Reopen | Step::Crash | Step::Power(_) => {
                if matches!(step, Step::Reopen) {
                    copy.close().await.unwrap();
                } else {
                    copy.abandon().await;
                }
                drop(copy);
                if let Step::Power(seed) = step {
                    fs.crash(seed);
                }
                term += 1;
                copy = site.primary(id(1), OpenMode::Existing, term).await;
            }
        }
    }
    for doc in 0..6_u8 {
        let expected = model.get(&doc).map(|(n, extra, ..)| match extra {
            Some(extra) => format!(r#"{{"n":{n},"extra":{extra}}}"#),
            None => format!(r#"{{"n":{n}}}"#),
        });
        assert_eq!(source(&copy, &doc.to_string()).await, expected, "document {doc}");
    }
    copy.refresh().await.unwrap();
    assert_eq!(copy.count(all(), 0).await.unwrap(), model.len() as u64);
    for (doc, (_, _, seq_no, term)) in &model {
        let stored = copy
            .get(doc.to_string().into(), false, soon())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            (stored.seq_no, stored.term),
            (*seq_no, *term),
            "what is searched is what was answered"
        );
    }
    assert!(matches!(copy.role(), Role::Primary { .. }));
    copy.close().await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// `AckedIsDurable` against the end of the process and of the machine, and OpenSearch's answers, whatever happens between two
    /// writes.
    #[test]
    fn a_primary_answers_as_a_map_would(steps in proptest::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(run(steps));
    }
}
