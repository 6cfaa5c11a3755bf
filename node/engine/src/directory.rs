//! The soft directory: what tantivy writes becomes durable only by a flush.
//!
//! - `meta.json` lives in memory; [`State::publish`] is the one place where it changes, for commits, merges, schema growth and
//!   installed checkpoints alike.
//! - Files are written once, hashed while they are written, and not synced; a flush syncs those that its meta names.
//! - A deletion of a file that the durable commit or a pin still needs waits ([`Shared::release`]).
//! - `.managed.json` is made up from what is there. Locks are in memory.
//! - Each writer has an epoch; writes and deletions of an older epoch are refused, so that a merge that outlived its writer can
//!   do no harm.

use crate::{
    files::{LockGuard, Shared, State},
    meta::{Stored, now_ms},
    norms,
};
use bytes::Bytes;
use segmentry_vfs::VfsFile;
use std::{
    fmt, io,
    path::Path,
    sync::Arc,
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
