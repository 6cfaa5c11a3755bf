//! What a crash keeps, and what a refresh costs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::case_sensitive_file_extension_comparisons,
    reason = "tests"
)]

mod common;

use common::{Copy, Watched, config, dir, ids, names, wait_for};
use segmentry_engine::{CommitPayload, Engine, EngineError};
use segmentry_mapping::Mapping;
use segmentry_vfs::{CrashFs, RealFs};
use serde_json::json;
use std::{
    collections::HashSet,
    path::Path,
    sync::{Arc, atomic::Ordering},
};

/// Adds documents, deletes and merges over what is there.
fn churn(copy: &mut Copy, rounds: u32) {
    for round in 0..rounds {
        for number in 0..20 {
            copy.index(
                &format!("churn-{round}-{number}"),
                &json!({"text": format!("word{number} round {round}"), "n": number}),
            );
        }
        copy.delete(&format!("kept-{round}"));
        copy.index(
            &format!("kept-{}", round + 30),
            &json!({"text": "again", "n": -1}),
        );
        copy.refresh();
    }
    copy.engine.force_merge().unwrap();
    copy.refresh();
}

fn filled(copy: &mut Copy) -> Vec<String> {
    for number in 0..60 {
        copy.index(
            &format!("kept-{number}"),
            &json!({"text": format!("first {number}"), "n": number}),
        );
        if number % 20 == 0 {
            copy.refresh();
        }
    }
    copy.delete("kept-59");
    copy.refresh();
    copy.ids()
}

#[test]
fn reopening_after_a_crash_shows_exactly_the_flushed_commit() {
    let (_temp, path) = dir();
    let (flushed, payload, durable_files) = {
        let mut copy = Copy::in_dir(&path);
        let flushed = filled(&mut copy);
        let payload = copy.engine.flush().unwrap();
        assert_eq!(payload, copy.payload());
        let durable: HashSet<String> = copy
            .engine
            .checkpoint()
            .files
            .into_iter()
            .map(|file| file.name)
            .collect();
        churn(&mut copy, 20);
        assert_ne!(copy.ids(), flushed);
        assert_eq!(copy.engine.durable_info(), payload);
        (flushed, payload, durable)
    };
    // The worst that a loss of power may do to what was never synced.
    for (number, name) in names(&path)
        .into_iter()
        .filter(|name| !durable_files.contains(name) && name != "commit.json")
        .enumerate()
    {
        let file = path.join(&name);
        if number % 2 == 0 {
            std::fs::write(&file, b"torn").unwrap();
        } else {
            std::fs::remove_file(&file).unwrap();
        }
    }
    let engine = Engine::open(config(Arc::new(RealFs), &path)).unwrap();
    assert_eq!(ids(&engine), flushed);
    assert_eq!(engine.commit_info(), payload);
    assert_eq!(engine.verify().unwrap(), Vec::<String>::new());
    let expected: HashSet<String> = durable_files
        .into_iter()
        .chain(["commit.json".to_owned()])
        .collect();
    assert_eq!(
        names(&path).into_iter().collect::<HashSet<_>>(),
        expected,
        "opening deletes what the commit does not name"
    );

    // And it goes on from there.
    engine.open_writer(2).unwrap();
    let mut copy = Copy {
        engine,
        mapping: Arc::new(Mapping::default()),
        next_seq: payload.max_seq_no.unwrap() + 1,
        term: 2,
    };
    copy.index("after", &json!({"text": "after", "n": 1}));
    copy.refresh();
    assert_eq!(copy.ids().len(), flushed.len() + 1);
}

#[test]
fn a_new_engine_is_durable_at_once_and_none_is_made_twice() {
    let (_temp, path) = dir();
    assert!(matches!(
        Engine::open(config(Arc::new(RealFs), &path)),
        Err(EngineError::NoCommit(_))
    ));
    let payload = CommitPayload {
        term: 3,
        ..CommitPayload::default()
    };
    drop(Engine::create(config(Arc::new(RealFs), &path), &payload).unwrap());
    let engine = Engine::open(config(Arc::new(RealFs), &path)).unwrap();
    assert_eq!(engine.commit_info(), payload);
    assert!(matches!(
        Engine::create(config(Arc::new(RealFs), &path), &payload),
        Err(EngineError::AlreadyExists(_))
    ));
}

#[test]
fn a_refresh_syncs_nothing_and_a_flush_only_what_is_new() {
    let (_temp, path) = dir();
    let fs = Arc::new(Watched::default());
    let mut copy = Copy::create(config(Arc::clone(&fs) as Arc<_>, &path));
    let before = fs.all_syncs();
    filled(&mut copy);
    churn(&mut copy, 10);
    assert_eq!(fs.all_syncs(), before, "a refresh or a merge synced");

    copy.engine.flush().unwrap();
    let first = fs.all_syncs() - before;
    assert!(
        (9..=10).contains(&first),
        "one merged segment: its files, the directory, the commit file, the directory: {first}"
    );
    copy.engine.flush().unwrap();
    assert_eq!(fs.all_syncs() - before, first, "nothing was new");

    copy.index("one more", &json!({"text": "x"}));
    copy.refresh();
    let before = fs.all_syncs();
    copy.engine.flush().unwrap();
    let second = fs.all_syncs() - before;
    assert!((9..=10).contains(&second), "only the new segment: {second}");
}

#[test]
fn an_idle_refresh_changes_nothing() {
    let (_temp, path) = dir();
    let mut copy = Copy::in_dir(&path);
    copy.index("1", &json!({"a": 1}));
    assert!(copy.refresh());
    assert!(!copy.refresh());
    let version = copy.engine.meta_versions().0;
    assert!(!copy.refresh());
    assert_eq!(copy.engine.meta_versions().0, version);
    // An operation that indexes nothing moves the payload all the same.
    copy.next_seq += 1;
    assert!(copy.refresh());
    assert_eq!(copy.engine.commit_info().max_seq_no, Some(1));
}

#[test]
fn what_is_not_refreshed_is_not_visible_and_what_a_pin_or_the_commit_needs_stays() {
    let (_temp, path) = dir();
    let mut copy = Copy::in_dir(&path);
    copy.index("1", &json!({"a": "x"}));
    assert_eq!(copy.ids(), Vec::<String>::new());
    copy.refresh();
    copy.engine.flush().unwrap();
    let durable: Vec<String> = copy
        .engine
        .checkpoint()
        .files
        .into_iter()
        .map(|file| file.name)
        .collect();
    copy.index("2", &json!({"a": "y"}));
    copy.refresh();
    copy.engine.force_merge().unwrap();
    copy.refresh();
    let now: HashSet<String> = names(&path).into_iter().collect();
    assert!(
        durable.iter().all(|name| now.contains(name)),
        "the merge must not take files of the durable commit"
    );
    copy.engine.flush().unwrap();
    wait_for("deletion of what the old commit alone named", || {
        let now: HashSet<String> = names(&path).into_iter().collect();
        durable.iter().all(|name| !now.contains(name))
    });
    assert_eq!(copy.ids(), ["1", "2"]);
}

#[test]
fn a_failed_sync_fails_the_engine_and_the_old_commit_stays() {
    let (_temp, path) = dir();
    let fs = Arc::new(Watched::default());
    {
        let mut copy = Copy::create(config(Arc::clone(&fs) as Arc<_>, &path));
        copy.index("1", &json!({"a": 1}));
        copy.refresh();
        copy.engine.flush().unwrap();
        copy.index("2", &json!({"a": 1}));
        copy.refresh();
        fs.fail_syncs.store(true, Ordering::SeqCst);
        assert!(matches!(copy.engine.flush(), Err(EngineError::Io { .. })));
        fs.fail_syncs.store(false, Ordering::SeqCst);
        assert!(
            matches!(copy.engine.flush(), Err(EngineError::Failed(_))),
            "a failed sync is never tried again"
        );
        assert!(
            copy.try_index("3", &json!({"a": 1}))
                .and_then(|()| copy.engine.refresh(&copy.payload()))
                .is_err()
        );
    }
    assert_eq!(
        ids(&Engine::open(config(Arc::new(RealFs), &path)).unwrap()),
        ["1"]
    );
}

#[test]
fn a_flush_that_breaks_off_anywhere_leaves_the_old_commit_or_the_new_one() {
    let mut finished = false;
    let mut broken = 0;
    for steps in 0..40 {
        let (_temp, path) = dir();
        let fs = Arc::new(Watched::default());
        let mut copy = Copy::create(config(Arc::clone(&fs) as Arc<_>, &path));
        let old = filled(&mut copy);
        copy.engine.flush().unwrap();
        churn(&mut copy, 2);
        let new = copy.ids();
        fs.steps_left.store(steps, Ordering::SeqCst);
        let flushed = copy.engine.flush();
        drop(copy);
        let engine = Engine::open(config(Arc::new(RealFs), &path)).unwrap();
        let found = ids(&engine);
        assert_eq!(
            engine.verify().unwrap(),
            Vec::<String>::new(),
            "after {steps} steps"
        );
        if flushed.is_ok() {
            assert_eq!(found, new);
            finished = true;
            break;
        }
        assert!(found == old || found == new, "after {steps} steps");
        broken += 1;
    }
    assert!(finished && broken > 9, "each step was cut once: {broken}");
}

#[test]
fn a_flush_asks_for_the_log_first_and_stops_where_it_fails() {
    let (_temp, path) = dir();
    let mut copy = Copy::in_dir(&path);
    copy.index("1", &json!({"a": 1}));
    copy.refresh();
    let before = copy.engine.durable_info();
    let error = copy
        .engine
        .flush_after(|_| Err(std::io::Error::other("log")))
        .unwrap_err();
    assert!(matches!(error, EngineError::Io { .. }));
    assert_eq!(copy.engine.durable_info(), before);
    // Nothing of the engine is broken by that.
    let mut asked = None;
    let flushed = copy.engine.flush_after(|payload| {
        asked = Some(payload.clone());
        Ok(())
    });
    assert_eq!(flushed.unwrap(), copy.payload());
    assert_eq!(asked, Some(copy.payload()));
}

#[test]
fn a_file_that_was_cut_or_lost_after_the_flush_is_reported_as_corrupt() {
    let (_temp, path) = dir();
    let mut copy = Copy::in_dir(&path);
    copy.index("1", &json!({"a": 1}));
    copy.refresh();
    copy.engine.flush().unwrap();
    let name = copy
        .engine
        .checkpoint()
        .files
        .into_iter()
        .find(|file| file.name.ends_with(".store"))
        .unwrap()
        .name;
    drop(copy);
    let file = path.join(&name);
    let bytes = std::fs::read(&file).unwrap();
    let opened = || Engine::open(config(Arc::new(RealFs), &path));

    let mut changed = bytes.clone();
    changed[0] ^= 1;
    std::fs::write(&file, &changed).unwrap();
    assert_eq!(opened().unwrap().verify().unwrap(), std::slice::from_ref(&name));
    std::fs::write(&file, &bytes[1..]).unwrap();
    assert!(matches!(opened(), Err(EngineError::Corrupt { file, .. }) if file == name));
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(opened(), Err(EngineError::Corrupt { file, .. }) if file == name));
    std::fs::write(&file, &bytes).unwrap();
    assert_eq!(ids(&opened().unwrap()), ["1"]);
}

#[test]
fn on_a_disk_that_forgets_what_was_not_synced_the_flushed_commit_is_whole() {
    for seed in 1..20 {
        let fs = CrashFs::new();
        let dir = Path::new("/data/index");
        let open = || {
            let mut config = config(Arc::new(fs.clone()), dir);
            config.map_files = false;
            config
        };
        let flushed = {
            let mut copy = Copy::create(open());
            let _ = filled(&mut copy);
            copy.engine.flush().unwrap();
            churn(&mut copy, 3);
            let flushed = copy.ids();
            copy.engine.flush().unwrap();
            churn(&mut copy, 5);
            flushed
        };
        fs.crash(seed);
        let engine = Engine::open(open()).unwrap();
        assert_eq!(ids(&engine), flushed);
        assert_eq!(engine.verify().unwrap(), Vec::<String>::new());
    }
}
