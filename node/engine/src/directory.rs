//! The soft directory: what tantivy writes becomes durable only by a flush.
//!
//! - `meta.json` lives in memory; [`State::publish`] is the one place where it changes, for commits, merges, schema growth and
//!   installed checkpoints alike.
//! - Files are written once, hashed while they are written, and not synced; a flush syncs those that its meta names.
//! - A deletion of a file that the durable commit or a pin still needs waits ([`State::release`]).
//! - `.managed.json` is made up from what is there. Locks are in memory.
//! - Each writer has an epoch; writes and deletions of an older epoch are refused, so that a merge that outlived its writer can
//!   do no harm.

use crate::{
    EngineError,
    map::{self, Mapped},
    meta::{Meta, Stored, now_ms},
    norms,
};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use segmentry_vfs::{Vfs, VfsFile};
use std::{
    collections::{HashMap, HashSet},
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};
use tantivy::{
    Directory,
    directory::{
        AntiCallToken, DirectoryLock, FileHandle, Lock, OwnedBytes, TerminatingWrite, WatchCallback,
        WatchHandle, WritePtr,
        error::{DeleteError, LockError, OpenReadError, OpenWriteError},
    },
};

const META: &str = "meta.json";
const MANAGED: &str = ".managed.json";
/// Bytes that a new file collects before it writes them.
const WRITE_BUFFER: usize = 64 << 10;
/// tantivy holds its locks for moments; a longer wait is a fault.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// One directory, shared by all handles of an engine.
pub(crate) struct Shared {
    pub fs: Arc<dyn Vfs>,
    pub dir: PathBuf,
    /// False: read through `fs` instead of mapping.
    pub mapped: bool,
    pub state: Mutex<State>,
    maps: Mutex<HashMap<String, Weak<Mapped>>>,
    zeros: Mutex<OwnedBytes>,
    locks: Arc<Locks>,
}

/// What is known of the files.
pub(crate) struct State {
    /// The meta in force.
    pub current: Arc<Meta>,
    /// The meta that a restart would find.
    pub durable: Option<Arc<Meta>>,
    /// Writers of other epochs are refused.
    pub epoch: u64,
    /// Every file that tantivy may name, also those of no meta yet.
    pub live: HashMap<String, Stored>,
    /// Names in the directory that were never synced.
    pub dirty: HashSet<String>,
    /// Names in the directory that go once nobody needs them.
    pub doomed: HashSet<String>,
    /// Names in the directory that pins hold, counted.
    pub pinned: HashMap<String, u32>,
    /// max_doc of the segments that any meta since the opening named, for [`norms`].
    pub max_docs: HashMap<String, u32>,
    /// Why the engine must not go on.
    pub failed: Option<String>,
}

impl State {
    pub(crate) fn new(current: Arc<Meta>, durable: Option<Arc<Meta>>) -> Self {
        let mut state = Self {
            live: current
                .files
                .iter()
                .map(|stored| (stored.name.clone(), stored.clone()))
                .collect(),
            durable,
            epoch: 0,
            dirty: HashSet::new(),
            doomed: HashSet::new(),
            pinned: HashMap::new(),
            max_docs: HashMap::new(),
            failed: None,
            current: Arc::clone(&current),
        };
        state.learn(&current);
        state
    }

    fn learn(&mut self, meta: &Meta) {
        for segment in &meta.segments {
            self.max_docs.insert(segment.id.clone(), segment.max_doc);
        }
    }

    pub(crate) fn check(&self) -> Result<(), EngineError> {
        match &self.failed {
            Some(reason) => Err(EngineError::Failed(reason.clone())),
            None => Ok(()),
        }
    }

    /// Puts a meta in force: the only way to change it. `version` must be above the current one.
    pub(crate) fn publish(&mut self, version: u64, created_ms: u64, bytes: Bytes) -> Result<(), EngineError> {
        self.check()?;
        let known = self.current.version;
        if version <= known {
            return Err(EngineError::StaleCheckpoint {
                given: version,
                known,
            });
        }
        let meta = Meta::read(version, created_ms, bytes, &self.live)?;
        self.learn(&meta);
        self.current = Arc::new(meta);
        Ok(())
    }

    /// True if a name in the directory has to stay.
    fn needed(&self, disk_name: &str) -> bool {
        let names = |meta: &Meta| meta.files.iter().any(|stored| stored.disk_name == disk_name);
        self.pinned.contains_key(disk_name)
            || names(&self.current)
            || self.durable.as_deref().is_some_and(names)
    }
}

#[derive(Default)]
struct Locks {
    held: Mutex<HashSet<PathBuf>>,
    freed: Condvar,
}

struct LockGuard {
    locks: Arc<Locks>,
    path: PathBuf,
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.locks.held.lock().remove(&self.path);
        self.locks.freed.notify_all();
    }
}

impl Shared {
    pub(crate) fn new(fs: Arc<dyn Vfs>, dir: PathBuf, mapped: bool, state: State) -> Arc<Self> {
        Arc::new(Self {
            fs,
            dir,
            mapped,
            state: Mutex::new(state),
            maps: Mutex::default(),
            zeros: Mutex::new(OwnedBytes::empty()),
            locks: Arc::default(),
        })
    }

    /// Deletes doomed files that nobody needs any more. What cannot be deleted is tried again next time.
    pub(crate) fn release(&self, state: &mut State) {
        let ready: Vec<String> = state
            .doomed
            .iter()
            .filter(|name| !state.needed(name))
            .cloned()
            .collect();
        for name in ready {
            match self.fs.remove(&self.dir.join(&name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(file = %name, %error, "a file that is no longer needed stays");
                }
                _ => {
                    state.doomed.remove(&name);
                    state.dirty.remove(&name);
                    self.maps.lock().remove(&name);
                }
            }
        }
    }

    /// Takes a file out of tantivy's reach; its bytes go when nobody needs them.
    pub(crate) fn doom(&self, state: &mut State, name: &str) {
        if let Some(stored) = state.live.remove(name) {
            if let Some(segment) = name.strip_suffix(".fieldnorm") {
                state.max_docs.remove(segment);
            }
            state.doomed.insert(stored.disk_name);
            self.release(state);
        }
    }

    /// Begins a new epoch: older writers are refused, and what they left outside of the current meta goes.
    pub(crate) fn fence(&self, state: &mut State) -> u64 {
        state.epoch += 1;
        let named: HashSet<String> = state
            .current
            .files
            .iter()
            .map(|stored| stored.name.clone())
            .collect();
        let orphans: Vec<String> = state
            .live
            .keys()
            .filter(|name| !named.contains(*name))
            .cloned()
            .collect();
        for orphan in orphans {
            self.doom(state, &orphan);
        }
        state.epoch
    }

    /// A name in the directory that no file has.
    pub(crate) fn free_name(&self, state: &State, name: &str) -> io::Result<String> {
        let mut candidate = name.to_owned();
        let mut number = 0_u32;
        while state.doomed.contains(&candidate) || self.fs.exists(&self.dir.join(&candidate))? {
            number += 1;
            candidate = format!("{name}~{number}");
        }
        Ok(candidate)
    }

    /// All bytes of a complete file.
    pub(crate) fn read(&self, disk_name: &str) -> io::Result<OwnedBytes> {
        let path = self.dir.join(disk_name);
        if !self.mapped {
            return self.fs.read(&path).map(OwnedBytes::new);
        }
        let mut maps = self.maps.lock();
        if let Some(mapped) = maps.get(disk_name).and_then(Weak::upgrade) {
            return Ok(map::bytes(mapped));
        }
        let mapped = map::map(&path)?;
        maps.insert(disk_name.to_owned(), Arc::downgrade(&mapped));
        Ok(map::bytes(mapped))
    }

    fn zeros(&self, len: usize) -> OwnedBytes {
        let mut zeros = self.zeros.lock();
        if zeros.len() < len {
            *zeros = OwnedBytes::new(vec![0; len]);
        }
        zeros.clone()
    }
}

/// A handle for tantivy.
#[derive(Clone)]
pub(crate) struct SoftDirectory {
    shared: Arc<Shared>,
    /// None for readers.
    epoch: Option<u64>,
}

impl fmt::Debug for SoftDirectory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "SoftDirectory({}, epoch {:?})",
            self.shared.dir.display(),
            self.epoch
        )
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

impl SoftDirectory {
    pub(crate) fn new(shared: Arc<Shared>, epoch: Option<u64>) -> Self {
        Self { shared, epoch }
    }

    fn may_write(&self, state: &State) -> io::Result<()> {
        if self.epoch == Some(state.epoch) && state.failed.is_none() {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "the writer of epoch {:?} has ended, the epoch is {}",
                self.epoch, state.epoch
            ),
        ))
    }
}

impl Directory for SoftDirectory {
    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        let name = text(path);
        let missing = || OpenReadError::FileDoesNotExist(path.to_owned());
        let wrap = |error: io::Error| {
            if error.kind() == io::ErrorKind::NotFound {
                missing()
            } else {
                OpenReadError::wrap_io_error(error, path.to_owned())
            }
        };
        let (disk_name, norms) = {
            let state = self.shared.state.lock();
            let stored = state.live.get(name).ok_or_else(missing)?;
            // Segments of no meta yet were written with the schema in force.
            let max_doc = name
                .strip_suffix(".fieldnorm")
                .and_then(|segment| state.max_docs.get(segment).copied());
            (
                stored.disk_name.clone(),
                max_doc.map(|max_doc| (max_doc, Arc::clone(&state.current))),
            )
        };
        let bytes = self.shared.read(&disk_name).map_err(wrap)?;
        if let Some((max_doc, meta)) = norms
            && let Some(extended) =
                norms::extend(&bytes, max_doc, &meta.norm_fields, |len| self.shared.zeros(len))
                    .map_err(wrap)?
        {
            return Ok(Arc::new(extended));
        }
        Ok(Arc::new(Whole(bytes)))
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        let name = text(path);
        let refused = |error: io::Error| DeleteError::IoError {
            io_error: Arc::new(error),
            filepath: path.to_owned(),
        };
        let mut state = self.shared.state.lock();
        self.may_write(&state).map_err(refused)?;
        if state.current.files.iter().any(|stored| stored.name == name) {
            return Err(refused(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the current meta names it",
            )));
        }
        if !state.live.contains_key(name) {
            return Err(DeleteError::FileDoesNotExist(path.to_owned()));
        }
        self.shared.doom(&mut state, name);
        Ok(())
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        let name = text(path);
        Ok(name == META || name == MANAGED || self.shared.state.lock().live.contains_key(name))
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        let name = text(path);
        let wrap = |error| OpenWriteError::wrap_io_error(error, path.to_owned());
        // Under the lock, so that no file of this epoch appears after a fence has swept.
        let mut state = self.shared.state.lock();
        self.may_write(&state).map_err(wrap)?;
        if state.live.contains_key(name) {
            return Err(OpenWriteError::FileAlreadyExists(path.to_owned()));
        }
        let disk_name = self.shared.free_name(&state, name).map_err(wrap)?;
        let file = self
            .shared
            .fs
            .create(&self.shared.dir.join(&disk_name))
            .map_err(wrap)?;
        state.dirty.insert(disk_name.clone());
        state.live.insert(
            name.to_owned(),
            Stored {
                name: name.to_owned(),
                disk_name,
                len: 0,
                crc: 0,
            },
        );
        Ok(WritePtr::new(Box::new(NewFile {
            directory: self.clone(),
            name: name.to_owned(),
            file,
            buffer: Vec::with_capacity(WRITE_BUFFER),
            written: 0,
            crc: crc32fast::Hasher::new(),
        })))
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        let state = self.shared.state.lock();
        match text(path) {
            META => Ok(state.current.bytes.to_vec()),
            MANAGED => {
                let names: Vec<&str> = state.live.keys().map(String::as_str).chain([META]).collect();
                serde_json::to_vec(&names)
                    .map_err(|error| OpenReadError::wrap_io_error(error.into(), path.to_owned()))
            }
            _ => Err(OpenReadError::FileDoesNotExist(path.to_owned())),
        }
    }

    fn atomic_write(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        self.may_write(&state)?;
        match text(path) {
            META => {
                let version = state.current.version + 1;
                state
                    .publish(version, now_ms(), Bytes::copy_from_slice(data))
                    .map_err(io::Error::other)
            }
            MANAGED => Ok(()),
            other => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("atomic write of [{other}]"),
            )),
        }
    }

    fn sync_directory(&self) -> io::Result<()> {
        Ok(()) // a flush does it
    }

    fn acquire_lock(&self, lock: &Lock) -> Result<DirectoryLock, LockError> {
        let locks = &self.shared.locks;
        let deadline = Instant::now() + LOCK_WAIT;
        let mut held = locks.held.lock();
        while held.contains(&lock.filepath) {
            if !lock.is_blocking || locks.freed.wait_until(&mut held, deadline).timed_out() {
                return Err(LockError::LockBusy);
            }
        }
        held.insert(lock.filepath.clone());
        Ok(DirectoryLock::from(Box::new(LockGuard {
            locks: Arc::clone(locks),
            path: lock.filepath.clone(),
        })))
    }

    fn watch(&self, _callback: WatchCallback) -> tantivy::Result<WatchHandle> {
        Ok(WatchHandle::empty()) // readers are reloaded by the engine
    }
}

/// Bytes as a file handle.
#[derive(Debug)]
struct Whole(OwnedBytes);

impl tantivy::HasLen for Whole {
    fn len(&self) -> usize {
        self.0.len()
    }
}

impl FileHandle for Whole {
    fn read_bytes(&self, range: std::ops::Range<usize>) -> io::Result<OwnedBytes> {
        Ok(self.0.slice(range))
    }
}

/// A file that is being written.
struct NewFile {
    directory: SoftDirectory,
    name: String,
    file: Box<dyn VfsFile>,
    buffer: Vec<u8>,
    written: u64,
    crc: crc32fast::Hasher,
}

impl NewFile {
    fn push(&mut self) -> io::Result<()> {
        self.file.write_at(&self.buffer, self.written)?;
        self.crc.update(&self.buffer);
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

impl io::Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() + bytes.len() > WRITE_BUFFER && !self.buffer.is_empty() {
            self.push()?;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            Ok(())
        } else {
            self.push()
        }
    }
}

impl TerminatingWrite for NewFile {
    fn terminate_ref(&mut self, _: AntiCallToken) -> io::Result<()> {
        io::Write::flush(self)?;
        let mut state = self.directory.shared.state.lock();
        self.directory.may_write(&state)?;
        let stored = state.live.get_mut(&self.name).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("[{}] was deleted while it was written", self.name),
            )
        })?;
        stored.len = self.written;
        stored.crc = self.crc.clone().finalize();
        Ok(())
    }
}
