//! Writing: visibility by id, deletes, failing indexing threads, terms, idle shards.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::case_sensitive_file_extension_comparisons,
    reason = "tests"
)]

mod common;

use common::{Copy, Watched, config, dir, ids, names};
use segmentry_engine::{DocVersion, EngineError, OperationRef};
use segmentry_mapping::ParsedDocument;
use serde_json::json;
use std::sync::{Arc, atomic::Ordering};

#[test]
fn a_document_is_read_back_by_its_id_with_its_version_and_source() {
    let (_temp, path) = dir();
    let mut copy = Copy::in_dir(&path);
    let document = copy.parse(&json!({"a": 1}));
    let source = br#"{ "a" : 1 }"#;
    let operation = OperationRef {
        id: "x/1",
        seq_no: 0,
        term: 1,
        version: 7,
        routing: Some("there"),
        source,
    };
    copy.engine
        .index(&operation, &document, &copy.mapping, true)
        .unwrap();
    copy.next_seq = 1;
    assert_eq!(copy.engine.get("x/1").unwrap(), None);
    copy.refresh();
    let got = copy.engine.get("x/1").unwrap().unwrap();
    assert_eq!(
        (got.seq_no, got.term, got.version, got.routing.as_deref()),
        (0, 1, 7, Some("there"))
    );
    assert_eq!(got.source.as_ref(), source);
    assert_eq!(
        copy.engine.lookup_version("x/1").unwrap(),
        Some(DocVersion {
            seq_no: 0,
            term: 1,
            version: 7
        })
    );
    assert_eq!(copy.engine.lookup_version("x").unwrap(), None);

    copy.index("x/1", &json!({"a": 2}));
    copy.index("y", &json!({"a": 2}));
    copy.delete("y");
    copy.refresh();
    assert_eq!(copy.engine.lookup_version("x/1").unwrap().unwrap().seq_no, 1);
    assert_eq!(copy.ids(), ["x/1"]);
    copy.delete("x/1");
    copy.delete("never there");
    copy.refresh();
    assert_eq!(copy.ids(), Vec::<String>::new());
    assert_eq!(copy.engine.get("x/1").unwrap(), None);
}

#[test]
fn an_unindexable_document_keeps_its_id_and_source_and_matches_nothing_else() {
    let (_temp, path) = dir();
    let mut copy = Copy::in_dir(&path);
    copy.index("1", &json!({"a": "word"}));
    let operation = OperationRef {
        id: "1",
        seq_no: 1,
        term: 1,
        version: 2,
        routing: None,
        source: b"{\"a\":\"word\"}",
    };
    copy.engine.add_unindexable(&operation).unwrap();
    copy.next_seq = 2;
    copy.refresh();
    assert_eq!(copy.ids(), ["1"]);
    assert_eq!(copy.engine.get("1").unwrap().unwrap().version, 2);
    assert_eq!(common::count_text(&copy.engine, "a", "word"), Some(0));
}

#[test]
fn without_a_writer_nothing_is_written() {
    let (_temp, path) = dir();
    let mut copy = Copy::in_dir(&path);
    assert!(matches!(copy.engine.open_writer(1), Err(EngineError::WriterOpen)));
    copy.index("1", &json!({"a": 1}));
    assert!(matches!(
        copy.engine.close_writer(),
        Err(EngineError::Uncommitted(1))
    ));
    copy.refresh();
    copy.engine.close_writer().unwrap();
    assert!(!copy.engine.stats().writer_open);
    assert!(matches!(
        copy.try_index("2", &json!({"a": 1})),
        Err(EngineError::NoWriter)
    ));
    // The same term again: an idle shard that woke up.
    copy.engine.open_writer(1).unwrap();
    copy.index("2", &json!({"a": 1}));
    copy.refresh();
    assert_eq!(copy.ids(), ["1", "2"]);
    copy.engine.close_writer().unwrap();
    assert!(matches!(
        copy.engine.open_writer(0),
        Err(EngineError::StaleTerm { given: 0, known: 1 })
    ));
}

#[test]
fn a_killed_writer_is_an_error_and_a_new_term_goes_on_from_the_commit() {
    for panic in [false, true] {
        let (_temp, path) = dir();
        let fs = Arc::new(Watched::default());
        let mut copy = Copy::create(config(Arc::clone(&fs) as Arc<_>, &path));
        copy.index("1", &json!({"a": "x"}));
        copy.refresh();
        copy.engine.flush().unwrap();

        let fault = if panic {
            &fs.panic_in_create
        } else {
            &fs.fail_creates
        };
        fault.store(true, Ordering::SeqCst);
        copy.index("2", &json!({"a": "x"}));
        let error = copy.engine.refresh(&copy.payload()).unwrap_err();
        assert!(matches!(error, EngineError::WriterKilled(_)), "{error}");
        assert!(matches!(
            copy.try_index("3", &json!({"a": "x"})),
            Err(EngineError::WriterKilled(_))
        ));
        assert_eq!(copy.ids(), ["1"], "what was visible stays visible");
        assert!(
            matches!(copy.engine.open_writer(1), Err(EngineError::StaleTerm { .. })),
            "the same term may not write twice"
        );

        fault.store(false, Ordering::SeqCst);
        copy.engine.open_writer(2).unwrap();
        assert_eq!(copy.engine.commit_info().max_seq_no, Some(0));
        copy.term = 2;
        copy.next_seq = 1;
        copy.index("2", &json!({"a": "x"}));
        copy.refresh();
        assert_eq!(copy.ids(), ["1", "2"]);
        copy.engine.flush().unwrap();
        let mut known: Vec<String> = copy
            .engine
            .checkpoint()
            .files
            .into_iter()
            .map(|file| file.name)
            .collect();
        known.push("commit.json".to_owned());
        known.sort();
        assert_eq!(names(&path), known, "the killed writer left nothing");
    }
}

#[test]
fn many_small_commits_are_merged_in_the_background() {
    let (_temp, path) = dir();
    let mut copy = Copy::in_dir(&path);
    for number in 0..24 {
        copy.index(&number.to_string(), &json!({"a": "word"}));
        copy.refresh();
    }
    common::wait_for("a merge", || {
        copy.engine.refresh(&copy.payload()).unwrap();
        copy.engine.stats().segments.len() < 16
    });
    assert_eq!(copy.ids().len(), 24);
    assert_eq!(
        copy.engine.commit_info(),
        copy.payload(),
        "a merge keeps the payload"
    );
    assert_eq!(copy.engine.verify().unwrap(), Vec::<String>::new());
}

#[test]
fn two_copies_that_delete_differently_after_a_promotion_never_share_a_name() {
    let (_first, first_path) = dir();
    let (_second, second_path) = dir();
    let mut old = Copy::in_dir(&first_path);
    for number in 0..10 {
        old.index(&number.to_string(), &json!({"a": number}));
    }
    old.refresh();
    let replica = segmentry_engine::Engine::create(
        config(Arc::new(segmentry_vfs::RealFs), &second_path),
        &segmentry_engine::CommitPayload::default(),
    )
    .unwrap();
    common::send(&old.engine, &replica).unwrap();
    // The replica is promoted while the old primary goes on.
    replica.open_writer(2).unwrap();
    let mut new = Copy {
        engine: replica,
        mapping: Arc::clone(&old.mapping),
        next_seq: old.next_seq,
        term: 2,
    };
    old.delete("3");
    new.delete("4");
    old.refresh();
    new.refresh();
    assert_eq!((old.ids().len(), new.ids().len()), (9, 9));
    let deletes = |copy: &Copy| {
        copy.engine
            .checkpoint()
            .files
            .into_iter()
            .filter(|file| file.name.ends_with(".del"))
            .map(|file| file.name)
            .collect::<Vec<_>>()
    };
    assert_eq!((deletes(&old).len(), deletes(&new).len()), (1, 1));
    assert_ne!(deletes(&old), deletes(&new));
    assert!(
        new.engine.meta_versions().0 > old.engine.meta_versions().0,
        "a higher term has the higher versions"
    );

    // The old primary comes back as a replica of the new one, over files of its own.
    old.engine.flush().unwrap();
    old.engine.close_writer().unwrap();
    common::send(&new.engine, &old.engine).unwrap();
    assert_eq!(ids(&old.engine), ids(&new.engine));
}

#[test]
fn an_older_writer_is_fenced() {
    // Growth reopens the writer; a merge of the old one that is still running may neither publish nor leave files.
    let (_temp, path) = dir();
    let mut copy = Copy::in_dir(&path);
    for number in 0..40 {
        copy.index(
            &number.to_string(),
            &json!({"a": "word", format!("new{number}"): 1}),
        );
        copy.refresh();
    }
    assert_eq!(copy.ids().len(), 40);
    copy.engine.close_writer().unwrap();
    copy.engine.flush().unwrap();
    common::wait_for("only files of the commit", || {
        let mut known: Vec<String> = copy
            .engine
            .checkpoint()
            .files
            .into_iter()
            .map(|file| file.name)
            .collect();
        known.push("commit.json".to_owned());
        known.sort();
        names(&path) == known
    });
    assert_eq!(copy.engine.verify().unwrap(), Vec::<String>::new());
}

#[test]
fn an_empty_document_is_a_document() {
    let (_temp, path) = dir();
    let mut copy = Copy::in_dir(&path);
    let operation = OperationRef {
        id: "1",
        seq_no: 0,
        term: 1,
        version: 1,
        routing: None,
        source: b"{}",
    };
    copy.engine
        .index(&operation, &ParsedDocument::default(), &copy.mapping, true)
        .unwrap();
    copy.next_seq = 1;
    copy.refresh();
    assert_eq!(copy.ids(), ["1"]);
    assert_eq!(copy.engine.get("1").unwrap().unwrap().source.as_ref(), b"{}");
}
