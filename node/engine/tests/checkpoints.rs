//! Checkpoints between copies: what is sent, what is refused, what a pin holds.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::case_sensitive_file_extension_comparisons,
    reason = "tests"
)]

mod common;

use common::{Copy, config, count_text, dir, ids, names, scores, send};
use segmentry_engine::{Checkpoint, CommitPayload, Engine, EngineError, FileMeta};
use segmentry_vfs::RealFs;
use serde_json::json;
use std::{collections::HashSet, path::Path, sync::Arc, time::Duration};

fn replica(path: &Path) -> Engine {
    Engine::create(config(Arc::new(RealFs), path), &CommitPayload::default()).unwrap()
}

fn segments(engine: &Engine) -> Vec<String> {
    let mut ids: Vec<String> = engine
        .stats()
        .segments
        .into_iter()
        .map(|segment| segment.id)
        .collect();
    ids.sort();
    ids
}

#[test]
fn a_replica_shows_the_same_documents_and_segments_as_its_primary() {
    let (_a, primary_path) = dir();
    let (_b, replica_path) = dir();
    let mut primary = Copy::in_dir(&primary_path);
    let replica = replica(&replica_path);
    for round in 0..6 {
        for number in 0..30 {
            primary.index(
                &format!("{round}-{number}"),
                &json!({"text": format!("word{number} word"), format!("f{round}"): "word"}),
            );
        }
        primary.delete(&format!("{}-{}", round / 2, round));
        if round == 4 {
            primary.engine.force_merge().unwrap();
        }
        primary.refresh();
        replica.set_mapping(Arc::clone(&primary.mapping));
        assert!(send(&primary.engine, &replica).unwrap());
        assert!(
            !send(&primary.engine, &replica).unwrap(),
            "the same once more is nothing new"
        );
        assert_eq!(ids(&replica), primary.ids());
        assert_eq!(segments(&replica), segments(&primary.engine));
        assert_eq!(replica.commit_info(), primary.payload());
        assert_eq!(replica.checkpoint(), primary.engine.checkpoint());
        for field in ["text", "f0", "f3"] {
            assert_eq!(
                count_text(&replica, field, "word"),
                count_text(&primary.engine, field, "word")
            );
            assert_eq!(
                scores(&replica, field, "word"),
                scores(&primary.engine, field, "word")
            );
        }
    }
    assert_eq!(replica.verify().unwrap(), Vec::<String>::new());

    // Not durable before a flush, durable after.
    let reopen = || Engine::open(config(Arc::new(RealFs), &replica_path)).unwrap();
    replica.flush().unwrap();
    primary.index("last", &json!({"text": "word"}));
    primary.refresh();
    send(&primary.engine, &replica).unwrap();
    assert!(ids(&replica).contains(&"last".to_owned()));
    drop(replica);
    let replica = reopen();
    assert!(!ids(&replica).contains(&"last".to_owned()));
    send(&primary.engine, &replica).unwrap();
    replica.flush().unwrap();
    drop(replica);
    assert_eq!(ids(&reopen()), primary.ids());
}

#[test]
fn only_what_is_missing_is_asked_for() {
    let (_a, primary_path) = dir();
    let (_b, replica_path) = dir();
    let mut primary = Copy::in_dir(&primary_path);
    let replica = replica(&replica_path);
    primary.index("1", &json!({"a": "x"}));
    primary.refresh();
    assert_eq!(
        replica.missing_files(&primary.engine.checkpoint()).len(),
        primary.engine.checkpoint().files.len()
    );
    send(&primary.engine, &replica).unwrap();
    primary.index("2", &json!({"a": "x"}));
    primary.delete("1");
    primary.refresh();
    let known: HashSet<FileMeta> = replica.checkpoint().files.into_iter().collect();
    let missing = replica.missing_files(&primary.engine.checkpoint());
    assert!(!missing.is_empty() && missing.iter().all(|file| !known.contains(file)));
}

#[test]
fn wrong_bytes_are_refused_and_leave_nothing() {
    let (_a, primary_path) = dir();
    let (_b, replica_path) = dir();
    let mut primary = Copy::in_dir(&primary_path);
    let replica = replica(&replica_path);
    primary.index("1", &json!({"a": "x"}));
    primary.refresh();
    let checkpoint = primary.engine.checkpoint();
    let file = checkpoint.files[0].clone();
    let bytes = std::fs::read(primary_path.join(&file.name)).unwrap();

    let before = names(&replica_path);
    let mut changed = bytes.clone();
    changed[0] ^= 1;
    let mut sink = replica.receive_file(file.clone()).unwrap();
    sink.write(&changed).unwrap();
    assert!(matches!(sink.finish(), Err(EngineError::Received { .. })));
    let mut sink = replica.receive_file(file.clone()).unwrap();
    sink.write(&bytes[1..]).unwrap();
    assert!(matches!(sink.finish(), Err(EngineError::Received { .. })));
    let mut sink = replica.receive_file(file.clone()).unwrap();
    sink.write(&bytes).unwrap();
    assert!(matches!(sink.write(b"x"), Err(EngineError::Received { .. })));
    drop(sink);
    assert_eq!(names(&replica_path), before);
    assert!(matches!(
        replica.install(&checkpoint),
        Err(EngineError::MissingFile(_))
    ));
    assert_eq!(ids(&replica), Vec::<String>::new());
    for name in ["../x", "", ".managed.json", "a/b", "a~1"] {
        let file = FileMeta {
            name: name.to_owned(),
            ..file.clone()
        };
        assert!(
            matches!(replica.receive_file(file), Err(EngineError::InvalidCheckpoint(_))),
            "{name}"
        );
    }
}

#[test]
fn older_or_contradicting_checkpoints_are_refused_and_change_nothing() {
    let (_a, primary_path) = dir();
    let (_b, replica_path) = dir();
    let mut primary = Copy::in_dir(&primary_path);
    let replica = replica(&replica_path);
    primary.index("1", &json!({"a": "x"}));
    primary.refresh();
    let old = primary.engine.pin_checkpoint();
    send(&primary.engine, &replica).unwrap();
    primary.index("2", &json!({"a": "x"}));
    primary.refresh();
    send(&primary.engine, &replica).unwrap();
    assert!(matches!(
        replica.install(old.checkpoint()),
        Err(EngineError::StaleCheckpoint { .. })
    ));

    let newer = |change: &dyn Fn(&mut Checkpoint)| {
        let mut checkpoint = primary.engine.checkpoint();
        checkpoint.meta_version += 1;
        change(&mut checkpoint);
        replica.install(&checkpoint)
    };
    assert!(matches!(
        newer(&|checkpoint| checkpoint.payload.term = 0),
        Err(EngineError::StaleTerm { given: 0, known: 1 })
    ));
    assert!(matches!(
        newer(&|checkpoint| {
            checkpoint.files.pop();
        }),
        Err(EngineError::Corrupt { .. })
    ));
    assert!(matches!(
        newer(&|checkpoint| checkpoint.payload.max_seq_no = Some(99)),
        Err(EngineError::InvalidCheckpoint(_))
    ));
    assert!(matches!(
        newer(&|checkpoint| checkpoint.meta = b"{}".as_slice().into()),
        Err(EngineError::Corrupt { .. })
    ));
    assert_eq!(ids(&replica), ["1", "2"]);
    assert_eq!(replica.checkpoint(), primary.engine.checkpoint());

    replica.open_writer(2).unwrap();
    assert!(matches!(
        replica.install(&primary.engine.checkpoint()),
        Err(EngineError::WriterOpen)
    ));
}

#[test]
fn a_name_that_is_taken_by_other_bytes_is_replaced_without_hurting_the_durable_commit() {
    let (_a, primary_path) = dir();
    let (_b, replica_path) = dir();
    let mut primary = Copy::in_dir(&primary_path);
    let replica = replica(&replica_path);
    primary.index("1", &json!({"a": "x"}));
    primary.refresh();
    // A file of the same name and another content, durable on the replica: its segment, made up from the primary's.
    let checkpoint = primary.engine.checkpoint();
    send(&primary.engine, &replica).unwrap();
    replica.flush().unwrap();
    let store = checkpoint
        .files
        .iter()
        .find(|file| file.name.ends_with(".store"))
        .unwrap();
    let durable = std::fs::read(replica_path.join(&store.name)).unwrap();
    let mut other = durable.clone();
    let last = other.len() - 1;
    // tantivy's trailing words stay, the block length field at the front of the body changes nothing that is read here.
    other.insert(last - 7 - usize::from(other[last - 7]), b' ');
    let footer_len = u32::from_le_bytes(other[last - 6..last - 2].try_into().unwrap()) + 1;
    let len = other.len();
    other[len - 8..len - 4].copy_from_slice(&footer_len.to_le_bytes());
    let mut changed = checkpoint.clone();
    changed.meta_version += 1;
    for file in &mut changed.files {
        if file.name == store.name {
            (file.len, file.crc) = (other.len() as u64, crc32fast::hash(&other));
        }
    }
    let missing = replica.missing_files(&changed);
    assert_eq!(missing.len(), 1, "same name, other bytes");
    let mut sink = replica.receive_file(missing[0].clone()).unwrap();
    sink.write(&other).unwrap();
    sink.finish().unwrap();
    assert!(replica.install(&changed).unwrap());
    assert_eq!(ids(&replica), ["1"]);
    assert_eq!(
        std::fs::read(replica_path.join(&store.name)).unwrap(),
        durable,
        "the durable commit still has its bytes"
    );
    assert_eq!(replica.checkpoint().files, changed.files);

    // A crash now: the durable commit is whole.
    drop(replica);
    let replica = Engine::open(config(Arc::new(RealFs), &replica_path)).unwrap();
    assert_eq!(replica.verify().unwrap(), Vec::<String>::new());
    assert_eq!(replica.checkpoint().files, checkpoint.files);

    // Again, and this time it becomes durable.
    let mut sink = replica.receive_file(missing[0].clone()).unwrap();
    sink.write(&other).unwrap();
    sink.finish().unwrap();
    replica.install(&changed).unwrap();
    replica.flush().unwrap();
    drop(replica);
    let replica = Engine::open(config(Arc::new(RealFs), &replica_path)).unwrap();
    assert_eq!(replica.verify().unwrap(), Vec::<String>::new());
    assert_eq!(replica.checkpoint().files, changed.files);
    assert_eq!(ids(&replica), ["1"]);
}

#[test]
fn a_pin_holds_its_files_until_it_is_dropped_or_taken_away() {
    let (_temp, path) = dir();
    let mut copy = Copy::in_dir(&path);
    copy.index("1", &json!({"a": "x"}));
    copy.refresh();
    let pin = copy.engine.pin_checkpoint();
    let twin = copy.engine.pin_checkpoint();
    let files: Vec<String> = pin
        .checkpoint()
        .files
        .iter()
        .map(|file| file.name.clone())
        .collect();
    copy.index("2", &json!({"a": "x"}));
    copy.refresh();
    copy.engine.force_merge().unwrap();
    copy.refresh();
    copy.engine.flush().unwrap();
    let there = || {
        let names: HashSet<String> = names(&path).into_iter().collect();
        files.iter().filter(|name| names.contains(*name)).count()
    };
    assert_eq!(there(), files.len());
    assert!(copy.engine.stats().pinned_bytes > 0);
    drop(pin);
    assert_eq!(there(), files.len(), "another pin holds them");
    assert!(twin.open(&files[0]).is_ok());
    assert!(matches!(twin.open("other"), Err(EngineError::MissingFile(_))));
    assert_eq!(copy.engine.end_pins(Duration::from_secs(3_600)), 0);
    assert_eq!(copy.engine.end_pins(Duration::ZERO), 1);
    assert_eq!(there(), 0);
    assert_eq!(copy.engine.stats().pinned_bytes, 0);
    assert!(matches!(twin.open(&files[0]), Err(EngineError::PinEnded)));
    drop(twin);
    assert_eq!(copy.ids(), ["1", "2"]);
}

#[test]
fn a_promoted_replica_writes_on_and_the_term_is_in_the_version() {
    let (_a, primary_path) = dir();
    let (_b, replica_path) = dir();
    let mut primary = Copy::in_dir(&primary_path);
    let replica = replica(&replica_path);
    primary.index("1", &json!({"a": "x"}));
    primary.refresh();
    send(&primary.engine, &replica).unwrap();
    let before = replica.meta_versions().0;
    replica.open_writer(5).unwrap();
    let mut promoted = Copy {
        engine: replica,
        mapping: Arc::clone(&primary.mapping),
        next_seq: 1,
        term: 5,
    };
    promoted.index("2", &json!({"a": "x", "fresh": "y"}));
    promoted.index("1", &json!({"a": "z"}));
    promoted.refresh();
    assert_eq!(promoted.ids(), ["1", "2"]);
    let after = promoted.engine.meta_versions().0;
    assert!(after > before && after >> 40 == 5);
    assert_eq!(promoted.engine.commit_info().term, 5);
}
