//! The log over real files, with faults injected at its door to the disk.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use bytes::Bytes;
use proptest::prelude::*;
use segmentry_settings::Durability;
use segmentry_translog::{Config, Error, Operation, OperationKind, Translog};
use segmentry_vfs::{RealFs, Vfs, VfsFile};
use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};
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

/// The real file system with counters and switches.
#[derive(Default)]
struct Faulty {
    syncs: Arc<AtomicU64>,
    failing: Arc<AtomicBool>,
    full: Arc<AtomicBool>,
}

struct FaultyFile {
    file: Box<dyn VfsFile>,
    syncs: Arc<AtomicU64>,
    failing: Arc<AtomicBool>,
    full: Arc<AtomicBool>,
}

impl Faulty {
    fn wrap(&self, file: io::Result<Box<dyn VfsFile>>) -> io::Result<Box<dyn VfsFile>> {
        let (syncs, failing, full) = (self.syncs.clone(), self.failing.clone(), self.full.clone());
        Ok(Box::new(FaultyFile {
            file: file?,
            syncs,
            failing,
            full,
        }))
    }
}

impl VfsFile for FaultyFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.append(bytes)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset)
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn sync(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        if self.failing.load(Ordering::SeqCst) {
            return Err(io::Error::other("injected"));
        }
        self.file.sync()
    }
    fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Vfs for Faulty {
    fn create(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        self.wrap(RealFs.create(path))
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        self.wrap(RealFs.open(path))
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        RealFs.read(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealFs.list(dir)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        RealFs.exists(path)
    }
    fn len(&self, path: &Path) -> io::Result<u64> {
        RealFs.len(path)
    }
    fn modified(&self, path: &Path) -> io::Result<SystemTime> {
        RealFs.modified(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealFs.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        RealFs.remove(path)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealFs.hard_link(from, to)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        RealFs.create_dir_all(dir)
    }
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        RealFs.remove_dir_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealFs.sync_dir(dir)
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

async fn written(log: &Translog, seq_no: u64) {
    log.progress()
        .wait_for(|at| at.written >= Some(seq_no) || at.failed.is_some())
        .await
        .unwrap();
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

#[tokio::test]
async fn a_torn_end_is_cut_and_reported_at_every_length() {
    let bed = Bed::new();
    let log = bed.create(config());
    log.start_term(1, None).await.unwrap();
    log.add(&ops(0..3, 1), true).await.unwrap();
    log.sync().await.unwrap();
    let whole = std::fs::metadata(bed.file(1)).unwrap().len();
    log.add(&ops(3..6, 1), false).await.unwrap();
    written(&log, 5).await;
    drop(log);
    let bytes = std::fs::read(bed.file(1)).unwrap();
    for length in (whole..bytes.len() as u64).rev() {
        std::fs::write(bed.file(1), &bytes[..usize::try_from(length).unwrap()]).unwrap();
        let (log, opened) = bed.open().unwrap();
        assert_eq!(opened.max_seq_no, Some(2), "length {length}");
        assert_eq!(
            opened.torn.map(|torn| (torn.offset, torn.bytes)),
            (length > whole).then_some((whole, length - whole))
        );
        assert_eq!(log.read_from(0, usize::MAX).unwrap(), ops(0..3, 1));
    }
}

#[tokio::test]
async fn damage_of_what_was_durable_is_refused_with_its_place() {
    let bed = Bed::new();
    let log = bed.create(config());
    log.start_term(1, None).await.unwrap();
    log.add(&ops(0..3, 1), true).await.unwrap();
    log.sync().await.unwrap();
    let first_end = std::fs::metadata(bed.file(1)).unwrap().len();
    log.add(&ops(3..4, 1), true).await.unwrap();
    log.sync().await.unwrap();
    // a frame whose own sync never came, but which says what was durable before it
    log.add(&ops(4..5, 1), false).await.unwrap();
    written(&log, 4).await;
    drop(log);
    let good = std::fs::read(bed.file(1)).unwrap();
    let ckp = std::fs::read(bed.path().join("translog.ckp")).unwrap();
    let mut refused = 0_u64;
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        std::fs::write(bed.file(1), &bad).unwrap();
        match bed.open() {
            Err(Error::Corrupt { file, .. }) => {
                assert_eq!(file, bed.file(1));
                refused += 1;
            }
            Err(Error::Foreign { .. }) => panic!("the header's checksum covers the shard's uuid"),
            Err(other) => panic!("{other}"),
            Ok((log, opened)) => {
                // only the last frame, or bytes that mean nothing
                assert!(
                    at as u64 >= first_end || (68..72).contains(&at),
                    "a flip at {at} was accepted"
                );
                let held = log.read_from(0, usize::MAX).unwrap();
                assert_eq!(held, ops(0..opened.max_seq_no.unwrap() + 1, 1), "flip at {at}");
            }
        }
        std::fs::write(bed.file(1), &good).unwrap();
        std::fs::write(bed.path().join("translog.ckp"), &ckp).unwrap();
    }
    assert!(refused >= first_end - 4, "{refused} of {first_end}");
}

#[tokio::test]
async fn a_missing_file_that_was_durable_is_refused() {
    let bed = Bed::new();
    let log = bed.create(Config {
        generation_threshold: 200,
        ..config()
    });
    log.start_term(1, None).await.unwrap();
    for seq_no in 0..20 {
        log.add(&ops(seq_no..seq_no + 1, 1), true).await.unwrap();
        written(&log, seq_no).await;
    }
    log.close().await.unwrap();
    let newest = log.stats(None).generations;
    for generation in [2, newest] {
        let bytes = std::fs::read(bed.file(generation)).unwrap();
        std::fs::remove_file(bed.file(generation)).unwrap();
        assert!(
            matches!(bed.open().err(), Some(Error::Corrupt { .. })),
            "generation {generation}"
        );
        std::fs::write(bed.file(generation), bytes).unwrap();
    }
    assert!(bed.open().is_ok());
}

#[tokio::test]
async fn a_failed_sync_fails_the_log_for_good_and_is_not_retried() {
    let bed = Bed::new();
    let faulty = Faulty::default();
    let (syncs, failing) = (faulty.syncs.clone(), faulty.failing.clone());
    let log = Translog::create(Arc::new(faulty), &bed.path(), SHARD, config()).unwrap();
    log.start_term(1, None).await.unwrap();
    log.add(&ops(0..1, 1), true).await.unwrap();
    log.sync().await.unwrap();
    failing.store(true, Ordering::SeqCst);
    let before = syncs.load(Ordering::SeqCst);
    log.add(&ops(1..2, 1), true).await.unwrap();
    let progress = log
        .progress()
        .wait_for(|at| at.failed.is_some())
        .await
        .unwrap()
        .clone();
    assert_eq!(progress.persisted, Some(0), "never past what was synced");
    failing.store(false, Ordering::SeqCst);
    assert!(matches!(
        log.add(&ops(2..3, 1), true).await,
        Err(Error::Failed(_))
    ));
    assert!(matches!(log.sync().await, Err(Error::Failed(_))));
    assert!(matches!(log.close().await, Err(Error::Failed(_))));
    assert_eq!(syncs.load(Ordering::SeqCst), before + 1);
}

#[tokio::test]
async fn a_full_disk_fails_the_log_and_what_was_acknowledged_is_there() {
    let bed = Bed::new();
    let faulty = Faulty::default();
    let full = faulty.full.clone();
    let log = Translog::create(Arc::new(faulty), &bed.path(), SHARD, config()).unwrap();
    log.start_term(1, None).await.unwrap();
    log.add(&ops(0..4, 1), true).await.unwrap();
    log.sync().await.unwrap();
    full.store(true, Ordering::SeqCst);
    log.add(&ops(4..5, 1), true).await.unwrap();
    let failed = log
        .progress()
        .wait_for(|at| at.failed.is_some())
        .await
        .unwrap()
        .failed
        .clone();
    assert!(failed.unwrap().contains("write"));
    drop(log);
    assert_eq!(bed.open().unwrap().1.max_seq_no, Some(3));
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

#[tokio::test]
async fn a_file_that_lost_its_end_between_two_frames_is_refused_though_a_good_one_follows() {
    let bed = Bed::new();
    let log = bed.create(Config {
        generation_threshold: 300,
        ..config()
    });
    log.start_term(1, None).await.unwrap();
    let mut lengths = Vec::new();
    for seq_no in 0..8 {
        log.add(&ops(seq_no..seq_no + 1, 1), true).await.unwrap();
        written(&log, seq_no).await;
        lengths.push(std::fs::metadata(bed.file(1)).unwrap().len());
    }
    log.close().await.unwrap();
    let last = *lengths.last().unwrap();
    let before = *lengths.iter().rev().find(|length| **length < last).unwrap();
    assert!(log.stats(None).generations > 1);
    let file = std::fs::OpenOptions::new().write(true).open(bed.file(1)).unwrap();
    file.set_len(before).unwrap();
    match bed.open().err() {
        Some(Error::Corrupt { file, offset, .. }) => {
            assert_eq!((file, offset), (bed.file(1), before));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_first_file_is_missed_unless_it_was_trimmed() {
    let bed = Bed::new();
    let log = bed.create(Config {
        generation_threshold: 200,
        ..config()
    });
    log.start_term(1, None).await.unwrap();
    for seq_no in 0..12 {
        log.add(&ops(seq_no..seq_no + 1, 1), true).await.unwrap();
        written(&log, seq_no).await;
    }
    log.trim_below(4).await.unwrap();
    log.close().await.unwrap();
    let (log, opened) = bed.open().unwrap();
    let first = opened.min_seq_no.unwrap();
    assert!((1..=4).contains(&first), "{opened:?}");
    drop(log);
    let oldest = (1..20).find(|generation| bed.file(*generation).exists()).unwrap();
    std::fs::remove_file(bed.file(oldest)).unwrap();
    match bed.open().err() {
        Some(Error::Corrupt { file, .. }) => assert_eq!(file, bed.file(oldest)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_lost_checkpoint_is_refused() {
    let bed = Bed::new();
    let log = bed.create(config());
    log.close().await.unwrap();
    let checkpoint = bed.path().join("translog.ckp");
    std::fs::write(&checkpoint, vec![0; 8192]).unwrap();
    assert!(matches!(bed.open().err(), Some(Error::Corrupt { file, .. }) if file == checkpoint));
    std::fs::remove_file(&checkpoint).unwrap();
    assert!(matches!(bed.open().err(), Some(Error::Corrupt { file, .. }) if file == checkpoint));
}
