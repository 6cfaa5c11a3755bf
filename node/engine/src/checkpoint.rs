//! Checkpoints: a meta and its files, given to other copies and taken from them.
//!
//! Giving: see [`crate::pin`].
//!
//! Taking, on a copy without a writer: [`Engine::missing_files`] says what to fetch; each file goes through a [`FileSink`], which
//! refuses bytes that differ from the checkpoint; [`Engine::install`] puts the meta in force and makes it visible. Files are
//! known by (name, length, checksum): a name that is taken by other bytes gets the new ones under another name in the directory,
//! and nothing that the durable commit needs is touched. The next flush makes the checkpoint durable.

use crate::{
    CommitPayload, Engine, EngineError,
    files::{Shared, State},
    meta::{Meta, Stored},
    writer::Slot,
};
use bytes::Bytes;
use parking_lot::Mutex;
use segmentry_vfs::VfsFile;
use serde::{Deserialize, Serialize};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileMeta {
    /// Name for tantivy.
    pub name: String,
    /// Bytes.
    pub len: u64,
    /// crc32 of all bytes as they lie on the disk.
    pub crc: u32,
}

/// A meta with its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Grows with each meta of the shard; the primary term is in its high bits.
    pub meta_version: u64,
    /// Facts of the commit.
    pub payload: CommitPayload,
    /// All files that the meta names.
    pub files: Vec<FileMeta>,
    /// tantivy's meta.
    pub meta: Bytes,
    /// When it was published, milliseconds since 1970, by its primary's clock.
    pub created_ms: u64,
}

/// Files that are being received, and pins.
#[derive(Default)]
pub(crate) struct Receiving {
    /// Complete files of no checkpoint yet: what they are → name in the directory.
    staged: HashMap<FileMeta, String>,
    /// Makes temporary names.
    next: u64,
    pub(crate) pins: Arc<Mutex<crate::pin::Pins>>,
}

pub(crate) fn checkpoint_of(meta: &Meta) -> Checkpoint {
    Checkpoint {
        meta_version: meta.version,
        payload: meta.payload.clone(),
        files: meta.files.iter().map(Stored::meta).collect(),
        meta: meta.bytes.clone(),
        created_ms: meta.created_ms,
    }
}

/// Names come from another node: none may leave the directory, or look like a file of this engine.
fn check_name(name: &str) -> Result<(), EngineError> {
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\\', '~', '\0']) {
        return Err(EngineError::InvalidCheckpoint(format!(
            "file name [{}]",
            name.escape_debug()
        )));
    }
    Ok(())
}

/// A file on its way in. Dropped unfinished, it leaves nothing.
pub struct FileSink {
    shared: Arc<Shared>,
    receiving: Arc<Mutex<Receiving>>,
    expected: FileMeta,
    disk_name: String,
    file: Box<dyn VfsFile>,
    written: u64,
    crc: crc32fast::Hasher,
    finished: bool,
}

impl FileSink {
    /// Takes the next bytes.
    ///
    /// Errors: more bytes than expected, or the file system's.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), EngineError> {
        if self.written + bytes.len() as u64 > self.expected.len {
            return Err(self.differs(self.written + bytes.len() as u64));
        }
        self.file
            .write_at(bytes, self.written)
            .map_err(EngineError::io(format!("write [{}]", self.disk_name)))?;
        self.crc.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Checks length and checksum, and keeps the file for [`Engine::install`].
    pub fn finish(mut self) -> Result<(), EngineError> {
        if self.written != self.expected.len || self.crc.clone().finalize() != self.expected.crc {
            return Err(self.differs(self.written));
        }
        self.receiving
            .lock()
            .staged
            .insert(self.expected.clone(), self.disk_name.clone());
        self.finished = true;
        Ok(())
    }

    fn differs(&self, len: u64) -> EngineError {
        EngineError::Received {
            file: self.expected.name.clone(),
            len,
            crc: self.crc.clone().finalize(),
            expected_len: self.expected.len,
            expected_crc: self.expected.crc,
        }
    }
}

impl Drop for FileSink {
    fn drop(&mut self) {
        if !self.finished {
            let path = self.shared.dir.join(&self.disk_name);
            if let Err(error) = self.shared.fs.remove(&path) {
                // The next opening removes it.
                tracing::warn!(file = %path.display(), %error, "an incomplete file stays");
            }
        }
    }
}

impl Engine {
    /// The current meta with its files.
    pub fn checkpoint(&self) -> Checkpoint {
        checkpoint_of(&self.shared.state.lock().current)
    }

    /// Files of a checkpoint that are neither here nor received.
    pub fn missing_files(&self, checkpoint: &Checkpoint) -> Vec<FileMeta> {
        let receiving = self.receiving.lock();
        let state = self.shared.state.lock();
        checkpoint
            .files
            .iter()
            .filter(|file| {
                !receiving.staged.contains_key(*file)
                    && state
                        .live
                        .get(&file.name)
                        .is_none_or(|stored| stored.meta() != **file)
            })
            .cloned()
            .collect()
    }

    /// Begins to receive a file of a checkpoint.
    pub fn receive_file(&self, expected: FileMeta) -> Result<FileSink, EngineError> {
        check_name(&expected.name)?;
        let mut receiving = self.receiving.lock();
        receiving.next += 1;
        let disk_name = format!("{}.{}.part", expected.name, receiving.next);
        let path = self.shared.dir.join(&disk_name);
        let file = self
            .shared
            .fs
            .create(&path)
            .map_err(EngineError::io(format!("make [{}]", path.display())))?;
        Ok(FileSink {
            shared: Arc::clone(&self.shared),
            receiving: Arc::clone(&self.receiving),
            expected,
            disk_name,
            file,
            written: 0,
            crc: crc32fast::Hasher::new(),
            finished: false,
        })
    }

    /// Takes a file of a checkpoint from another folder of the same file system, by a hard link, if its bytes are the expected ones.
    /// False where they are not, or the file is not there.
    pub fn adopt_file(&self, expected: &FileMeta, from: &std::path::Path) -> Result<bool, EngineError> {
        let Shared { fs, dir, .. } = &*self.shared;
        let looking = || EngineError::io(format!("look at [{}]", from.display()));
        match fs.len(from) {
            Ok(len) if len == expected.len => {}
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(looking()(error)),
        }
        let file = fs.open(from).map_err(looking())?;
        let mut hasher = crc32fast::Hasher::new();
        let mut buffer = vec![0; 256 << 10];
        let mut at = 0;
        loop {
            let count = file.read_at(&mut buffer, at).map_err(looking())?;
            if count == 0 {
                break;
            }
            hasher.update(&buffer[..count]);
            at += count as u64;
        }
        if (at, hasher.finalize()) != (expected.len, expected.crc) {
            return Ok(false);
        }
        check_name(&expected.name)?;
        let mut receiving = self.receiving.lock();
        receiving.next += 1;
        let disk_name = format!("{}.{}.part", expected.name, receiving.next);
        fs.hard_link(from, &dir.join(&disk_name))
            .map_err(EngineError::io(format!(
                "link [{}] to [{disk_name}]",
                from.display()
            )))?;
        receiving.staged.insert(expected.clone(), disk_name);
        Ok(true)
    }

    /// Puts a received checkpoint in force and makes it visible. True if it was new.
    ///
    /// Before: every file is here or received, no writer is open, the mapping is at least `payload.mapping_version`. After: a
    /// search sees exactly the checkpoint; files that it does not name go, apart from those of the durable commit and of pins. On an
    /// error the old meta stays in force.
    ///
    /// Errors: [`EngineError::StaleCheckpoint`], [`EngineError::StaleTerm`] (`SegmentsMatchTerm`),
    /// [`EngineError::MissingFile`], [`EngineError::WriterOpen`], [`EngineError::InvalidCheckpoint`].
    pub fn install(&self, checkpoint: &Checkpoint) -> Result<bool, EngineError> {
        let slot = self.writer.lock();
        if let Slot::Open(_) = &*slot {
            return Err(EngineError::WriterOpen);
        }
        let mut receiving = self.receiving.lock();
        let old = {
            let mut state = self.shared.state.lock();
            state.check()?;
            let current = Arc::clone(&state.current);
            if checkpoint.payload.term < current.payload.term {
                return Err(EngineError::StaleTerm {
                    given: checkpoint.payload.term,
                    known: current.payload.term,
                });
            }
            if checkpoint.meta_version == current.version && checkpoint.meta == current.bytes {
                return Ok(false);
            }
            if checkpoint.meta_version <= current.version {
                return Err(EngineError::StaleCheckpoint {
                    given: checkpoint.meta_version,
                    known: current.version,
                });
            }
            let live = self.place(&mut state, &mut receiving, checkpoint)?;
            let meta = Meta::read(
                checkpoint.meta_version,
                checkpoint.created_ms,
                checkpoint.meta.clone(),
                &live,
            )?;
            if meta.files.len() != checkpoint.files.len() || meta.payload != checkpoint.payload {
                return Err(EngineError::InvalidCheckpoint(
                    "its list of files or its payload differs from its meta".to_owned(),
                ));
            }
            self.shared.fence(&mut state);
            let old_live = std::mem::replace(&mut state.live, live);
            if let Err(error) = state.publish(
                checkpoint.meta_version,
                checkpoint.created_ms,
                checkpoint.meta.clone(),
            ) {
                self.put_back(&mut state, current, old_live);
                return Err(error);
            }
            (current, old_live)
        };
        let reloaded = self.reload();
        let mut state = self.shared.state.lock();
        let (old_meta, old_live) = old;
        if let Err(error) = reloaded {
            self.put_back(&mut state, old_meta, old_live);
            return Err(error);
        }
        let kept: HashSet<String> = state
            .live
            .values()
            .map(|stored| stored.disk_name.clone())
            .collect();
        state.doomed.extend(
            old_live
                .into_values()
                .map(|stored| stored.disk_name)
                .filter(|name| !kept.contains(name)),
        );
        let segments: HashSet<String> = state
            .current
            .segments
            .iter()
            .map(|segment| segment.id.clone())
            .collect();
        state.max_docs.retain(|segment, _| segments.contains(segment));
        // What was received for checkpoints that were overtaken.
        state
            .doomed
            .extend(receiving.staged.drain().map(|(_, name)| name));
        self.shared.release(&mut state);
        Ok(true)
    }

    /// Undoes a publication that could not be shown. The old meta's files are all still here.
    fn put_back(&self, state: &mut State, meta: Arc<Meta>, live: HashMap<String, Stored>) {
        let new = std::mem::replace(&mut state.live, live);
        state.current = meta;
        let kept: HashSet<String> = state
            .live
            .values()
            .map(|stored| stored.disk_name.clone())
            .collect();
        state.doomed.extend(
            new.into_values()
                .map(|stored| stored.disk_name)
                .filter(|name| !kept.contains(name)),
        );
        self.shared.release(state);
    }

    /// Gives each file of a checkpoint its place in the directory.
    fn place(
        &self,
        state: &mut State,
        receiving: &mut Receiving,
        checkpoint: &Checkpoint,
    ) -> Result<HashMap<String, Stored>, EngineError> {
        let known = |state: &State, file: &FileMeta| {
            state
                .live
                .get(&file.name)
                .filter(|stored| stored.meta() == *file)
                .cloned()
        };
        if let Some(missing) = checkpoint
            .files
            .iter()
            .find(|file| !receiving.staged.contains_key(*file) && known(state, file).is_none())
        {
            return Err(EngineError::MissingFile(missing.name.clone()));
        }
        let mut live = HashMap::new();
        for file in &checkpoint.files {
            let stored = match (known(state, file), receiving.staged.get(file)) {
                (Some(stored), _) => stored,
                (None, Some(part)) => {
                    let disk_name = self
                        .shared
                        .free_name(state, &file.name)
                        .map_err(EngineError::io(format!("find a name for [{}]", file.name)))?;
                    let dir = &self.shared.dir;
                    self.shared
                        .fs
                        .rename(&dir.join(part), &dir.join(&disk_name))
                        .map_err(EngineError::io(format!("rename [{part}] to [{disk_name}]")))?;
                    state.dirty.insert(disk_name.clone());
                    // Should a later step fail, the file is still known as received.
                    receiving.staged.insert(file.clone(), disk_name.clone());
                    Stored {
                        name: file.name.clone(),
                        disk_name,
                        len: file.len,
                        crc: file.crc,
                    }
                }
                (None, None) => return Err(EngineError::MissingFile(file.name.clone())),
            };
            live.insert(file.name.clone(), stored);
        }
        for file in &checkpoint.files {
            receiving.staged.remove(file);
        }
        Ok(live)
    }
}
