//! The log over a disk that forgets: the power goes at every single change of a history, and comes back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use bytes::Bytes;
use proptest::prelude::*;
use segmentry_settings::Durability;
use segmentry_translog::{Config, Operation, OperationKind, Translog};
use segmentry_vfs::{CrashFs, Faults, Vfs as _, create_dir_durably};
use std::{path::Path, sync::Arc, time::Duration};
use uuid::Uuid;

const DIR: &str = "/data/log";

fn op(seq_no: u64, term: u64) -> Operation {
    Operation {
        seq_no,
        term,
        version: 1,
        mapping_version: 1,
        kind: OperationKind::Index,
        id: format!("{seq_no}").into(),
        routing: None,
        source: Bytes::from(vec![u8::try_from(term).unwrap(); 40]),
    }
}

fn config() -> Config {
    Config {
        durability: Durability::Async,
        sync_interval: Duration::from_secs(3600),
        generation_threshold: 700,
        ..Config::default()
    }
}

#[derive(Debug, Clone)]
enum Act {
    Add { count: u8, sync: bool },
    Term { back: u8 },
    Trim,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => (1..4_u8, any::<bool>()).prop_map(|(count, sync)| Act::Add { count, sync }),
        1 => (0..4_u8).prop_map(|back| Act::Term { back }),
        1 => Just(Act::Trim),
    ]
}

/// What must be there whatever the power did, and what may be.
#[derive(Debug, Clone, Default)]
struct Known {
    /// Terms of the operations that were told to be persisted, by seq_no.
    persisted: Vec<u64>,
    /// All that were handed over.
    handed: Vec<u64>,
    /// Last term whose start was answered, and the one that was asked for.
    term: u64,
    asked_term: u64,
    trimmed: u64,
}

/// Runs the history until the power goes or it ends.
async fn run(fs: &CrashFs, acts: &[Act], known: &mut Known) -> Option<()> {
    let shared: Arc<dyn segmentry_vfs::Vfs> = Arc::new(fs.clone());
    let log = Translog::create(shared, Path::new(DIR), Uuid::from_u128(1), config()).ok()?;
    known.asked_term = 1;
    log.start_term(1, None).await.ok()?;
    known.term = 1;
    for act in acts {
        match act {
            Act::Add { count, sync } => {
                let first = known.handed.len() as u64;
                let batch: Vec<Operation> = (first..first + u64::from(*count))
                    .map(|seq_no| op(seq_no, known.term))
                    .collect();
                known.handed.extend(batch.iter().map(|op| op.term));
                log.add(&batch, *sync).await.ok()?;
                let last = known.handed.len() as u64 - 1;
                let mut progress = log.progress();
                let reached = progress.wait_for(|at| {
                    at.failed.is_some()
                        || if *sync {
                            at.persisted >= Some(last)
                        } else {
                            at.written >= Some(last)
                        }
                });
                let at = reached.await.unwrap().clone();
                let persisted = usize::try_from(at.persisted.map_or(0, |seq_no| seq_no + 1)).unwrap();
                if persisted > known.persisted.len() {
                    known.persisted = known.handed[..persisted].to_vec();
                }
                if at.failed.is_some() {
                    return None;
                }
            }
            Act::Term { back } => {
                let keep = known.handed.len().saturating_sub(usize::from(*back));
                let keep = keep.max(usize::try_from(known.trimmed).unwrap());
                // from here on either history may be found: what is voided is no longer promised
                known.persisted.truncate(keep);
                known.asked_term = known.term + 1;
                log.start_term(known.asked_term, keep.checked_sub(1).map(|seq_no| seq_no as u64))
                    .await
                    .ok()?;
                known.term = known.asked_term;
                known.handed.truncate(keep);
                known.persisted.clone_from(&known.handed);
            }
            Act::Trim => {
                known.trimmed = known.persisted.len() as u64;
                log.trim_below(known.trimmed).await.ok()?;
            }
        }
    }
    Some(())
}

/// One history with the power cut at change `at` (`None`: after its end); the number of changes that it made.
fn cut(acts: &[Act], at: Option<u64>, seed: u64) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let fs = CrashFs::new();
        create_dir_durably(&fs, Path::new("/data")).unwrap();
        let before = fs.changes();
        fs.set_faults(Faults {
            power_off: at.map(|at| before + at),
            ..Faults::default()
        });
        let mut known = Known::default();
        let _ = run(&fs, acts, &mut known).await;
        let changes = fs.changes() - before;
        fs.crash(seed);
        let shared: Arc<dyn segmentry_vfs::Vfs> = Arc::new(fs.clone());
        if known.asked_term == 0 || !fs.exists(Path::new(DIR)).unwrap() {
            return changes;
        }
        match Translog::open(shared, Path::new(DIR), Uuid::from_u128(1), config()) {
            Ok((log, opened)) => {
                assert!(
                    opened.max_term >= known.term && opened.max_term <= known.asked_term,
                    "{opened:?} {known:?}"
                );
                let count = opened.max_seq_no.map_or(0, |seq_no| seq_no + 1);
                assert!(
                    count >= known.persisted.len() as u64,
                    "AckedIsDurable: {opened:?} {known:?}"
                );
                let from = opened.min_seq_no.unwrap_or(count).max(known.trimmed);
                assert!(
                    from <= known.trimmed || opened.min_seq_no.is_none(),
                    "TrimAfterFlush: {opened:?} {known:?}"
                );
                for held in log.read_from(from, usize::MAX).unwrap() {
                    let seq_no = usize::try_from(held.seq_no).unwrap();
                    assert_eq!(held, op(held.seq_no, held.term));
                    assert_eq!(
                        Some(&held.term),
                        known.handed.get(seq_no),
                        "nothing is invented: {known:?}"
                    );
                }
            }
            Err(error) => panic!("at {at:?} with {seed}: {error} {known:?}"),
        }
        changes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_power_does_what_was_persisted_is_there(
        acts in proptest::collection::vec(act(), 1..16),
        seed in 1..u64::MAX,
    ) {
        let changes = cut(&acts, None, seed);
        for at in 1..=changes {
            cut(&acts, Some(at), seed.wrapping_add(at));
        }
    }
}
