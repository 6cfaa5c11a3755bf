//! The real file system, whose syncs can be made to fail, or to hang.

use segmentry_vfs::{RealFs, Vfs, VfsFile};
use std::{
    io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

#[derive(Clone, Default)]
pub struct FaultyFs {
    faults: Arc<Faults>,
}

#[derive(Default)]
struct Faults {
    fail: AtomicBool,
    hang: AtomicBool,
    failed: AtomicU64,
    /// Creations and syncs of paths that contain this fail.
    paths: Mutex<Option<&'static str>>,
}

struct FaultyFile {
    inner: Box<dyn VfsFile>,
    faults: Arc<Faults>,
}

impl Faults {
    fn check(&self, path: &Path) -> io::Result<()> {
        while self.hang.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        if self.fail.load(Ordering::SeqCst) {
            self.failed.fetch_add(1, Ordering::SeqCst);
            return Err(io::Error::other("injected: the disk fails"));
        }
        self.check_path(path)
    }

    fn check_path(&self, path: &Path) -> io::Result<()> {
        match *self.paths.lock().unwrap() {
            Some(part) if path.to_string_lossy().contains(part) => {
                Err(io::Error::other("injected: this part of the disk fails"))
            }
            _ => Ok(()),
        }
    }
}

impl FaultyFs {
    pub fn fail_syncs(&self, fail: bool) {
        self.faults.fail.store(fail, Ordering::SeqCst);
    }

    /// Syncs that were made to fail.
    pub fn failed_syncs(&self) -> u64 {
        self.faults.failed.load(Ordering::SeqCst)
    }

    /// Creations and syncs of paths that contain `part` fail.
    pub fn fail_paths(&self, part: Option<&'static str>) {
        *self.faults.paths.lock().unwrap() = part;
    }

    /// Syncs that begin from now on do not return before this is taken back.
    pub fn hang_syncs(&self, hang: bool) {
        self.faults.hang.store(hang, Ordering::SeqCst);
    }

    fn file(&self, inner: Box<dyn VfsFile>) -> Box<dyn VfsFile> {
        Box::new(FaultyFile {
            inner,
            faults: Arc::clone(&self.faults),
        })
    }
}

impl VfsFile for FaultyFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.inner.append(bytes)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_at(bytes, offset)
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buffer, offset)
    }
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
    fn sync(&self) -> io::Result<()> {
        self.faults.check(self.inner.path())?;
        self.inner.sync()
    }
    fn path(&self) -> &Path {
        self.inner.path()
    }
}

impl Vfs for FaultyFs {
    fn create(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        self.faults.check_path(path)?;
        RealFs.create(path).map(|file| self.file(file))
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        RealFs.open(path).map(|file| self.file(file))
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
        self.faults.check(dir)?;
        RealFs.sync_dir(dir)
    }
}
