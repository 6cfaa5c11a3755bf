//! The log over real files. `damage`: files that were changed behind its back; `faults`: a disk that fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod damage;
mod faults;

use bytes::Bytes;
use proptest::prelude::*;
use segmentry_settings::Durability;
use segmentry_translog::{Config, Error, Operation, OperationKind, Progress, Translog};
use segmentry_vfs::RealFs;
use std::{path::PathBuf, sync::Arc, time::Duration};
use uuid::Uuid;

const SHARD: Uuid = Uuid::from_u128(0x5eed);

fn op(seq_no: u64, term: u64) -> Operation {
    Operation {
        seq_no,
        term,
        version: 1,
        mapping_version: 1,
        kind: OperationKind::Index,
        id: format!("id-{seq_no}").into(),
        routing: None,
        source: Bytes::from(format!("{{\"n\":{seq_no},\"term\":{term}}}")),
    }
}

fn ops(range: std::ops::Range<u64>, term: u64) -> Vec<Operation> {
    range.map(|seq_no| op(seq_no, term)).collect()
}

fn config() -> Config {
    // no sync but those that are asked for
    Config {
        durability: Durability::Async,
        sync_interval: Duration::from_secs(3600),
        ..Config::default()
    }
}

struct Bed {
    dir: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }
    fn path(&self) -> PathBuf {
        self.dir.path().join("translog")
    }
    fn create(&self, config: Config) -> Translog {
        Translog::create(Arc::new(RealFs), &self.path(), SHARD, config).unwrap()
    }
    fn open(&self) -> Result<(Translog, segmentry_translog::Opened), Error> {
        Translog::open(Arc::new(RealFs), &self.path(), SHARD, config())
    }
    fn file(&self, generation: u64) -> PathBuf {
        self.path().join(format!("translog-{generation}.tlog"))
    }
}

async fn reached(log: &Translog, wanted: impl FnMut(&Progress) -> bool) -> Progress {
    let mut progress = log.progress();
    let reached = tokio::time::timeout(Duration::from_secs(20), progress.wait_for(wanted)).await;
    reached.expect("in time").unwrap().clone()
}

async fn written(log: &Translog, seq_no: u64) {
    reached(log, |at| at.written >= Some(seq_no) || at.failed.is_some()).await;
}

#[tokio::test]
async fn what_was_added_is_read_again_before_and_after_reopening() {
    let bed = Bed::new();
    let log = bed.create(config());
    log.start_term(1, None).await.unwrap();
    log.add(&ops(0..10, 1), true).await.unwrap();
    log.add(&ops(10..12, 1), false).await.unwrap();
    log.sync().await.unwrap();
    assert_eq!((log.written(), log.persisted()), (Some(11), Some(11)));
    assert_eq!(log.read(10).unwrap(), Some(op(10, 1)));
    log.close().await.unwrap();
    let (log, opened) = bed.open().unwrap();
    assert_eq!(
        (opened.max_seq_no, opened.max_term, opened.operations),
        (Some(11), 1, 12)
    );
    assert_eq!(opened.torn, None);
    assert_eq!(log.read_from(9, usize::MAX).unwrap(), ops(9..12, 1));
    assert_eq!(log.read_from(12, usize::MAX).unwrap(), []);
    assert_eq!(log.read_from(3, 1).unwrap(), ops(3..4, 1), "one at least");
}

#[tokio::test]
async fn a_killed_process_loses_nothing_that_was_written() {
    let bed = Bed::new();
    let log = bed.create(config());
    log.start_term(1, None).await.unwrap();
    log.add(&ops(0..5, 1), false).await.unwrap();
    written(&log, 4).await;
    assert_eq!(log.persisted(), None, "nobody asked for a sync");
    drop(log);
    assert_eq!(bed.open().unwrap().1.max_seq_no, Some(4));
}

#[tokio::test]
async fn a_gap_an_unstarted_term_and_an_older_term_are_refused() {
    let bed = Bed::new();
    let log = bed.create(config());
    assert!(matches!(
        log.add(&ops(0..1, 1), true).await,
        Err(Error::TermNotStarted { .. })
    ));
    log.start_term(2, None).await.unwrap();
    assert!(matches!(
        log.add(&ops(1..2, 2), true).await,
        Err(Error::Gap {
            given: 1,
            expected: 0
        })
    ));
    assert!(matches!(
        log.start_term(2, None).await,
        Err(Error::StaleTerm { .. })
    ));
    drop(log);
    assert!(bed.open().is_ok());
    assert!(matches!(
        Translog::create(Arc::new(RealFs), &bed.path(), SHARD, config()),
        Err(Error::Exists { .. })
    ));
    let other = Translog::open(Arc::new(RealFs), &bed.path(), Uuid::from_u128(1), config());
    assert!(matches!(other.err(), Some(Error::Foreign { .. })));
}

#[tokio::test]
async fn a_term_start_voids_what_stands_above_it_also_after_reopening() {
    let bed = Bed::new();
    let log = bed.create(config());
    log.start_term(1, None).await.unwrap();
    log.add(&ops(0..10, 1), true).await.unwrap();
    log.start_term(3, Some(5)).await.unwrap();
    assert_eq!(
        (log.written(), log.persisted(), log.term()),
        (Some(5), Some(5), 3)
    );
    log.add(&ops(6..8, 3), true).await.unwrap();
    log.sync().await.unwrap();
    let expected = [ops(0..6, 1), ops(6..8, 3)].concat();
    assert_eq!(log.read_from(0, usize::MAX).unwrap(), expected);
    log.close().await.unwrap();
    let (log, opened) = bed.open().unwrap();
    assert_eq!(
        (opened.max_seq_no, opened.max_term, opened.operations),
        (Some(7), 3, 8)
    );
    assert_eq!(log.read_from(0, usize::MAX).unwrap(), expected);
    assert_eq!(log.read(9).unwrap(), None);
}

#[tokio::test]
async fn a_log_without_operations_begins_where_its_first_term_start_says() {
    let bed = Bed::new();
    let log = bed.create(config());
    log.start_term(4, Some(99)).await.unwrap();
    assert_eq!(log.written(), Some(99));
    log.close().await.unwrap();
    let (log, opened) = bed.open().unwrap();
    assert_eq!((opened.max_seq_no, opened.min_seq_no), (Some(99), None));
    log.add(&ops(100..102, 4), true).await.unwrap();
    log.sync().await.unwrap();
    assert!(matches!(
        log.read_from(50, 1),
        Err(Error::Trimmed {
            asked: 50,
            oldest: 100
        })
    ));
    assert_eq!(log.read_from(100, usize::MAX).unwrap(), ops(100..102, 4));
    assert!(matches!(
        log.start_term(5, Some(500)).await,
        Err(Error::Invalid(_))
    ));
}

#[tokio::test]
async fn generations_are_rolled_and_trimmed_whole_and_pins_hold_them() {
    let bed = Bed::new();
    let log = bed.create(Config {
        generation_threshold: 4096,
        ..config()
    });
    log.start_term(1, None).await.unwrap();
    for first in (0..200).step_by(10) {
        log.add(&ops(first..first + 10, 1), true).await.unwrap();
        written(&log, first + 9).await;
    }
    let before = log.stats(None);
    assert!(before.generations >= 3, "{before:?}");
    let pin = log.pin(120);
    log.trim_below(200).await.unwrap();
    assert_eq!(log.read_from(120, usize::MAX).unwrap().len(), 80);
    assert!(log.stats(None).generations < before.generations + 1);
    drop(pin);
    log.trim_below(200).await.unwrap();
    let after = log.stats(Some(200));
    assert_eq!(
        (after.operations, after.uncommitted_operations, after.generations),
        (0, 0, 1)
    );
    log.add(&ops(200..201, 1), true).await.unwrap();
    log.close().await.unwrap();
    let (_, opened) = bed.open().unwrap();
    assert_eq!(
        (opened.max_seq_no, opened.min_seq_no, opened.max_term),
        (Some(200), Some(200), 1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixty_four_writers_at_once_lose_nothing_and_never_need_more_syncs_than_batches() {
    let bed = Bed::new();
    let log = Arc::new(bed.create(config()));
    log.start_term(1, None).await.unwrap();
    let order = Arc::new(tokio::sync::Mutex::new(0));
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let (log, order) = (log.clone(), order.clone());
        writers.spawn(async move {
            for _ in 0..20 {
                let seq_no = {
                    let mut next = order.lock().await;
                    let seq_no = *next;
                    log.add(&ops(seq_no..seq_no + 1, 1), true).await.unwrap();
                    *next += 1;
                    seq_no
                };
                log.progress()
                    .wait_for(|at| at.persisted >= Some(seq_no))
                    .await
                    .unwrap();
            }
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    let stats = log.stats(None);
    assert_eq!(stats.operations, 64 * 20);
    assert_eq!(stats.batches, 64 * 20 + 1, "and the term start");
    // how many batches share one is counted over a disk that can be held: tests/disk.rs
    assert!(
        stats.syncs <= stats.groups && stats.groups <= stats.batches,
        "{stats:?}"
    );
    assert_eq!(log.read_from(0, usize::MAX).unwrap(), ops(0..64 * 20, 1));
}

#[tokio::test]
async fn a_switch_to_request_syncs_what_async_left() {
    let bed = Bed::new();
    let log = bed.create(config());
    log.start_term(1, None).await.unwrap();
    log.add(&ops(0..3, 1), false).await.unwrap();
    written(&log, 2).await;
    assert_eq!(log.persisted(), None);
    log.configure(Config {
        durability: Durability::Request,
        ..config()
    });
    let reached = tokio::time::timeout(Duration::from_secs(10), async {
        log.progress()
            .wait_for(|at| at.persisted == Some(2))
            .await
            .map(drop)
    });
    reached.await.expect("synced without a further write").unwrap();
}

#[tokio::test]
async fn async_batches_are_synced_within_the_interval() {
    let bed = Bed::new();
    let log = bed.create(Config {
        sync_interval: Duration::from_millis(100),
        ..config()
    });
    log.start_term(1, None).await.unwrap();
    log.add(&ops(0..3, 1), false).await.unwrap();
    let reached = tokio::time::timeout(Duration::from_secs(10), async {
        log.progress()
            .wait_for(|at| at.persisted == Some(2))
            .await
            .map(drop)
    });
    reached.await.expect("synced by its interval").unwrap();
}

#[derive(Debug, Clone)]
enum Act {
    Add(u8, bool),
    Term(u8),
    Trim(u8),
    Reopen,
    Kill,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1..20_u8, any::<bool>()).prop_map(|(n, sync)| Act::Add(n, sync)),
        1 => (0..12_u8).prop_map(Act::Term),
        1 => any::<u8>().prop_map(Act::Trim),
        1 => Just(Act::Reopen),
        1 => Just(Act::Kill),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// The log against a vector of (seq_no, term).
    #[test]
    fn the_log_holds_what_a_plain_list_holds(acts in proptest::collection::vec(act(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let bed = Bed::new();
            let small = Config { generation_threshold: 2048, ..config() };
            let mut log = bed.create(small);
            log.start_term(1, None).await.unwrap();
            let (mut term, mut model, mut trimmed) = (1, Vec::<u64>::new(), 0_u64);
            for act in acts {
                match act {
                    Act::Add(count, sync) => {
                        let first = model.len() as u64;
                        let batch = ops(first..first + u64::from(count), term);
                        log.add(&batch, sync).await.unwrap();
                        model.extend(batch.iter().map(|op| op.term));
                        written(&log, model.len() as u64 - 1).await;
                    }
                    Act::Term(back) => {
                        // never below what was trimmed: a commit holds that
                        let keep = model.len().saturating_sub(usize::from(back)).max(usize::try_from(trimmed).unwrap());
                        term += 1;
                        log.start_term(term, keep.checked_sub(1).map(|k| k as u64)).await.unwrap();
                        model.truncate(keep);
                    }
                    Act::Trim(share) => {
                        trimmed = trimmed.max(model.len() as u64 * u64::from(share) / 255);
                        log.trim_below(trimmed).await.unwrap();
                    }
                    Act::Reopen | Act::Kill => {
                        if matches!(act, Act::Reopen) {
                            log.close().await.unwrap();
                        }
                        drop(log);
                        let (again, opened) = Translog::open(Arc::new(RealFs), &bed.path(), SHARD, small).unwrap();
                        assert_eq!(opened.max_seq_no, (model.len() as u64).checked_sub(1));
                        assert_eq!(opened.max_term, term);
                        assert_eq!(opened.torn, None);
                        log = again;
                    }
                }
                let held = log.read_from(trimmed, usize::MAX).unwrap();
                let expected: Vec<Operation> = model.iter().enumerate().skip(usize::try_from(trimmed).unwrap())
                    .map(|(seq_no, term)| op(seq_no as u64, *term)).collect();
                assert_eq!(held, expected);
            }
        });
    }
}
