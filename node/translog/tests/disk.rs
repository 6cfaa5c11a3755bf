//! What the log asks of its disk: how many syncs and when, how it waits for a slow one, and that the tests of durability see
//! a disk (or a log) that leaves a sync out.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use bytes::Bytes;
use segmentry_settings::Durability;
use segmentry_translog::{Config, Error, Operation, OperationKind, Translog};
use segmentry_vfs::{CrashFs, Faults, Vfs, VfsFile};
use std::{
    future::Future as _,
    io,
    path::Path,
    pin::pin,
    sync::{Arc, Condvar, Mutex},
    task::{Context, Waker},
    time::{Duration, SystemTime},
};
use uuid::Uuid;

const DIR: &str = "/log";
const SHARD: Uuid = Uuid::from_u128(0x5eed);

/// Asked before each sync, of a file or of a directory: whether it is done. One that is not done answers `Ok` all the same.
type Ask = Arc<dyn Fn(&Path) -> bool + Send + Sync>;

#[derive(Clone)]
struct Asked {
    fs: CrashFs,
    ask: Ask,
}

struct AskedFile {
    file: Box<dyn VfsFile>,
    ask: Ask,
}

impl VfsFile for AskedFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
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
        if (self.ask)(self.file.path()) {
            self.file.sync()
        } else {
            Ok(())
        }
    }
    fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Asked {
    fn wrap(&self, file: Box<dyn VfsFile>) -> Box<dyn VfsFile> {
        let ask = self.ask.clone();
        Box::new(AskedFile { file, ask })
    }
}

impl Vfs for Asked {
    fn create(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        self.fs.create(path).map(|file| self.wrap(file))
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        self.fs.open(path).map(|file| self.wrap(file))
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.fs.read(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.fs.list(dir)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.fs.exists(path)
    }
    fn len(&self, path: &Path) -> io::Result<u64> {
        self.fs.len(path)
    }
    fn modified(&self, path: &Path) -> io::Result<SystemTime> {
        self.fs.modified(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.fs.remove(path)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.hard_link(from, to)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.fs.create_dir_all(dir)
    }
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.fs.remove_dir_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if (self.ask)(dir) {
            self.fs.sync_dir(dir)
        } else {
            Ok(())
        }
    }
}

/// Holds the syncs of log files while it is shut.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, u32)>,
    moved: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.moved.notify_all();
        drop(self.moved.wait_while(state, |(shut, _)| *shut).unwrap());
    }
    fn shut(&self) {
        *self.state.lock().unwrap() = (true, 0);
    }
    fn open(&self) {
        self.state.lock().unwrap().0 = false;
        self.moved.notify_all();
    }
    fn await_someone(&self) {
        let state = self.state.lock().unwrap();
        let wait = Duration::from_secs(20);
        let (_held, waited) = self
            .moved
            .wait_timeout_while(state, wait, |(_, came)| *came == 0)
            .unwrap();
        assert!(!waited.timed_out(), "nobody came to sync");
    }
}

fn op(seq_no: u64, size: usize) -> Operation {
    Operation {
        seq_no,
        term: 1,
        version: 1,
        mapping_version: 1,
        kind: OperationKind::Index,
        id: format!("{seq_no}").into(),
        routing: None,
        source: Bytes::from(vec![b'x'; size]),
    }
}

fn config() -> Config {
    Config {
        durability: Durability::Async,
        sync_interval: Duration::from_secs(3600),
        ..Config::default()
    }
}

fn gated(config: Config) -> (Translog, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let held = gate.clone();
    let ask: Ask = Arc::new(move |path| {
        if path.extension().is_some_and(|extension| extension == "tlog") {
            held.pass();
        }
        true
    });
    let fs = Asked {
        fs: CrashFs::new(),
        ask,
    };
    (
        Translog::create(Arc::new(fs), Path::new(DIR), SHARD, config).unwrap(),
        gate,
    )
}

async fn persisted(log: &Translog, seq_no: u64) {
    let mut progress = log.progress();
    let reached = progress.wait_for(|at| at.persisted >= Some(seq_no) || at.failed.is_some());
    let at = tokio::time::timeout(Duration::from_secs(20), reached)
        .await
        .expect("in time")
        .unwrap()
        .clone();
    assert_eq!(at.failed, None);
}

#[tokio::test]
async fn sixty_four_writers_that_wait_for_one_sync_share_the_next() {
    let (log, gate) = gated(config());
    log.start_term(1, None).await.unwrap();
    let before = log.stats(None);
    gate.shut();
    log.add(&[op(0, 10)], true).await.unwrap();
    gate.await_someone();
    for seq_no in 1..65 {
        log.add(&[op(seq_no, 10)], true).await.unwrap();
    }
    assert_eq!((log.written(), log.persisted()), (Some(0), None));
    gate.open();
    persisted(&log, 64).await;
    let after = log.stats(None);
    assert_eq!(after.syncs - before.syncs, 2);
    assert_eq!(after.groups - before.groups, 2, "one write a group");
    assert_eq!((after.largest_group, after.batches - before.batches), (64, 65));
}

#[tokio::test]
async fn async_batches_get_no_sync_until_one_asks_and_that_covers_them_all() {
    let (log, _gate) = gated(config());
    log.start_term(1, None).await.unwrap();
    let before = log.stats(None).syncs;
    for seq_no in 0..20 {
        log.add(&[op(seq_no, 10)], false).await.unwrap();
        log.progress()
            .wait_for(|at| at.written >= Some(seq_no))
            .await
            .unwrap();
    }
    assert_eq!((log.stats(None).syncs, log.persisted()), (before, None));
    log.add(&[op(20, 10)], true).await.unwrap();
    persisted(&log, 20).await;
    assert_eq!(log.stats(None).syncs, before + 1);
}

#[tokio::test]
async fn in_request_mode_a_batch_that_was_judged_under_async_is_synced_without_the_interval() {
    let (log, _gate) = gated(Config {
        durability: Durability::Request,
        ..config()
    });
    log.start_term(1, None).await.unwrap();
    log.add(&[op(0, 10)], false).await.unwrap();
    persisted(&log, 0).await;
}

#[tokio::test]
async fn a_writer_waits_while_too_many_bytes_wait_for_the_disk_and_goes_on_after() {
    let (log, gate) = gated(Config {
        queue_bytes: 8 << 10,
        ..config()
    });
    log.start_term(1, None).await.unwrap();
    gate.shut();
    log.add(&[op(0, 10)], true).await.unwrap();
    gate.await_someone();
    log.add(&[op(1, 6000)], true).await.unwrap();
    assert!(log.stats(None).queued_bytes >= 6000);
    let third = [op(2, 6000)];
    let mut waiting = pin!(log.add(&third, true));
    let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "over the bound");
    gate.open();
    waiting.await.unwrap();
    persisted(&log, 2).await;
    assert_eq!(log.stats(None).queued_bytes, 0);
    // one that is larger than the bound is not stuck for ever
    log.add(&[op(3, 50_000)], true).await.unwrap();
    persisted(&log, 3).await;
}

#[tokio::test]
async fn the_checkpoint_is_written_when_it_is_quiet_and_no_acknowledgement_waits_for_it() {
    let (log, _gate) = gated(config());
    log.start_term(1, None).await.unwrap();
    for seq_no in 0..10 {
        log.add(&[op(seq_no, 10)], true).await.unwrap();
        persisted(&log, seq_no).await;
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while log.stats(None).checkpoint_syncs == 0 {
        assert!(std::time::Instant::now() < deadline, "no checkpoint");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn what_a_failed_sync_left_in_memory_only_is_made_durable_before_it_counts_again() {
    let fs = CrashFs::new();
    let log = Translog::create(Arc::new(fs.clone()), Path::new(DIR), SHARD, config()).unwrap();
    log.start_term(1, None).await.unwrap();
    fs.set_faults(Faults {
        fail_sync: Some(fs.syncs() + 1),
        ..Faults::default()
    });
    log.add(&[op(0, 100)], true).await.unwrap();
    let mut progress = log.progress();
    let failed = progress.wait_for(|at| at.failed.is_some());
    let failed = tokio::time::timeout(Duration::from_secs(20), failed).await;
    let failed = failed
        .expect("a sync that failed is not tried again")
        .unwrap()
        .clone();
    assert_eq!(failed.persisted, None);
    drop(log);
    // the process comes back, the machine never went: it reads what the kernel still holds and calls clean
    let (log, opened) = Translog::open(Arc::new(fs.clone()), Path::new(DIR), SHARD, config()).unwrap();
    assert_eq!((opened.max_seq_no, log.persisted()), (Some(0), Some(0)));
    drop(log);
    for seed in 1..20 {
        fs.crash(seed);
        let (log, opened) = Translog::open(Arc::new(fs.clone()), Path::new(DIR), SHARD, config()).unwrap();
        assert_eq!(opened.max_seq_no, Some(0));
        assert_eq!(log.read(0).unwrap(), Some(op(0, 100)));
    }
}

#[tokio::test]
async fn after_close_nothing_is_taken_and_nothing_taken_is_lost() {
    let fs = CrashFs::new();
    let log = Translog::create(Arc::new(fs.clone()), Path::new(DIR), SHARD, config()).unwrap();
    log.start_term(1, None).await.unwrap();
    log.add(&[op(0, 10)], false).await.unwrap();
    log.close().await.unwrap();
    log.close().await.unwrap();
    assert!(matches!(log.add(&[op(1, 10)], false).await, Err(Error::Closed)));
    assert!(matches!(log.sync().await, Err(Error::Closed)));
    fs.crash(3);
    let (_, opened) = Translog::open(Arc::new(fs), Path::new(DIR), SHARD, config()).unwrap();
    assert_eq!(opened.max_seq_no, Some(0));
}

/// Runs a short history whose every operation is told to be persisted, over a disk that leaves out the syncs that `ask`
/// declines, then cuts the power. What is wrong afterwards.
async fn wrong_after_a_crash(ask: Ask, seed: u64) -> Option<String> {
    let fs = CrashFs::new();
    let small = Config {
        generation_threshold: 500,
        ..config()
    };
    let lying: Arc<dyn Vfs> = Arc::new(Asked { fs: fs.clone(), ask });
    let log = Translog::create(lying, Path::new(DIR), SHARD, small).unwrap();
    log.start_term(1, None).await.unwrap();
    for seq_no in 0..20 {
        log.add(&[op(seq_no, 60)], true).await.unwrap();
        persisted(&log, seq_no).await;
    }
    log.sync().await.unwrap();
    fs.crash(seed);
    drop(log);
    match Translog::open(Arc::new(fs), Path::new(DIR), SHARD, small) {
        Err(error) => Some(error.to_string()),
        Ok((_, opened)) if opened.max_seq_no != Some(19) => {
            Some(format!("the log ends at {:?}", opened.max_seq_no))
        }
        Ok((log, _)) => {
            let held = log.read_from(0, usize::MAX).unwrap();
            let expected: Vec<Operation> = (0..20).map(|seq_no| op(seq_no, 60)).collect();
            (held != expected).then(|| "other operations".to_owned())
        }
    }
}

#[tokio::test]
async fn each_sync_that_is_left_out_is_seen_by_these_tests() {
    let is = |path: &Path, extension: &str| path.extension().is_some_and(|found| found == extension);
    let bugs: [(&str, Ask); 4] = [
        (
            "acknowledged before the sync",
            Arc::new(move |path| !is(path, "tlog") && !is(path, "ckp")),
        ),
        (
            "checkpoint ahead of the data",
            Arc::new(move |path| !is(path, "tlog")),
        ),
        (
            "names of files not synced",
            Arc::new(|path| path != Path::new(DIR)),
        ),
        (
            "name of the folder not synced",
            Arc::new(|path| path != Path::new("/")),
        ),
    ];
    for (bug, ask) in bugs {
        let mut seen = 0;
        for seed in 1..30 {
            seen += u32::from(wrong_after_a_crash(ask.clone(), seed * 77).await.is_some());
        }
        assert!(seen > 0, "{bug} goes unseen");
    }
    for seed in 1..30 {
        assert_eq!(wrong_after_a_crash(Arc::new(|_| true), seed * 77).await, None);
    }
}
