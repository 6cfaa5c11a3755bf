//! A disk that fails: the log fails for good, and what it told before holds.

use crate::{Bed, SHARD, config, ops, reached};
use segmentry_translog::{Error, Translog};
use segmentry_vfs::{RealFs, Vfs, VfsFile};
use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::SystemTime,
};

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
    let progress = reached(&log, |at| at.failed.is_some()).await;
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
    let failed = reached(&log, |at| at.failed.is_some()).await.failed;
    assert!(failed.unwrap().contains("write"));
    drop(log);
    assert_eq!(bed.open().unwrap().1.max_seq_no, Some(3));
}
