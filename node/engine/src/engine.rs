//! Opening, refreshing, flushing.

use crate::{
    EngineError, View, analysis,
    directory::SoftDirectory,
    files::{Shared, State},
    meta::{self, Meta, now_ms},
    schema::{self, Fields},
    writer::{Counters, Slot, Writer},
};
use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use segmentry_mapping::Mapping;
use segmentry_vfs::{Vfs, write_durably};
use serde::{Deserialize, Serialize};
use std::{collections::HashSet, path::PathBuf, sync::Arc};
use tantivy::{
    Index, IndexReader, IndexSettings, ReloadPolicy, index::IndexMeta, tokenizer::TokenizerManager,
};

/// Smallest and largest arena of a writer, in bytes; tantivy takes no smaller one.
const ARENA_BYTES: std::ops::RangeInclusive<usize> = 15_000_000..=50_000_000;
/// Decompressed blocks (16 KiB) that a searcher keeps for each segment.
const STORE_CACHE_BLOCKS: usize = 16;

/// Facts of the shard that a commit carries. Never of one copy: replicas install it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CommitPayload {
    /// Primary term of the last operation.
    pub term: u64,
    /// Last operation that the commit holds; all before it are in as well.
    pub max_seq_no: Option<u64>,
    /// History of the shard.
    pub history: uuid::Uuid,
    /// Mapping that every document of the commit was parsed with or before.
    pub mapping_version: u64,
}

/// How to open an engine.
pub struct EngineConfig {
    /// Where files are written, synced, renamed and removed.
    pub fs: Arc<dyn Vfs>,
    /// Directory of this engine alone; made if it is missing.
    pub dir: PathBuf,
    /// Mapping as known now.
    pub mapping: Arc<Mapping>,
    /// Memory in which a writer collects documents, in bytes; taken into 15–50 MB.
    pub arena_bytes: usize,
    /// True: files are mapped into memory, which needs `fs` to be the kernel's. False: files are read through `fs`, whole
    /// (models of a file system).
    pub map_files: bool,
}

impl EngineConfig {
    /// Defaults for a real file system.
    pub fn new(fs: Arc<dyn Vfs>, dir: PathBuf, mapping: Arc<Mapping>) -> Self {
        Self {
            fs,
            dir,
            mapping,
            arena_bytes: *ARENA_BYTES.start(),
            map_files: true,
        }
    }
}

/// The engine of one shard copy.
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) arena_bytes: usize,
    pub(crate) tokenizers: TokenizerManager,
    pub(crate) mapping: ArcSwap<Mapping>,
    pub(crate) writer: Mutex<Slot>,
    pub(crate) counters: Arc<Counters>,
    opened: ArcSwap<Opened>,
    /// Held while `opened` is replaced.
    reloading: Mutex<()>,
    flushing: Mutex<()>,
    pub(crate) receiving: Arc<Mutex<crate::checkpoint::Receiving>>,
}

/// The reader in use.
struct Opened {
    reader: IndexReader,
    fields: Arc<Fields>,
    /// Its schema: while the meta has the same one, a reload is enough.
    schema: tantivy::schema::Schema,
    version: u64,
}

/// The meta of an index without documents.
pub(crate) fn empty_meta(payload: &CommitPayload) -> Result<Meta, EngineError> {
    // A thread for each segment that is written would be one too many with many shards on a node.
    let settings = IndexSettings {
        docstore_compress_dedicated_thread: false,
        ..IndexSettings::default()
    };
    let encode = |error: serde_json::Error| EngineError::Failed(error.to_string());
    let meta = IndexMeta {
        index_settings: settings,
        persisted_custom_extensions: Vec::new(),
        segments: Vec::new(),
        schema: schema::base_schema(),
        opstamp: 0,
        payload: Some(serde_json::to_string(payload).map_err(encode)?),
    };
    let bytes = serde_json::to_vec(&meta).map_err(encode)?;
    Meta::read(0, now_ms(), Bytes::from(bytes), &std::collections::HashMap::new())
}

impl Engine {
    /// Makes an empty engine, durable when this returns.
    pub fn create(config: EngineConfig, payload: &CommitPayload) -> Result<Self, EngineError> {
        let commit = config.dir.join(meta::COMMIT_FILE);
        if config
            .fs
            .exists(&commit)
            .map_err(EngineError::io(format!("look for [{}]", commit.display())))?
        {
            return Err(EngineError::AlreadyExists(config.dir));
        }
        segmentry_vfs::create_dir_durably(config.fs.as_ref(), &config.dir)
            .map_err(EngineError::io(format!("make [{}]", config.dir.display())))?;
        let meta = empty_meta(payload)?;
        write_durably(config.fs.as_ref(), &commit, &meta::encode_commit(&meta)?)
            .map_err(EngineError::io(format!("write [{}]", commit.display())))?;
        Self::open(config)
    }

    /// Opens the durable commit, without a writer, and deletes every file that it does not name.
    ///
    /// Errors: [`EngineError::NoCommit`] where there is none, [`EngineError::Corrupt`] where a file is missing or has another
    /// length. Checksums are looked at by [`Engine::verify`].
    pub fn open(config: EngineConfig) -> Result<Self, EngineError> {
        let EngineConfig {
            fs,
            dir,
            mapping,
            arena_bytes,
            map_files,
        } = config;
        let commit = dir.join(meta::COMMIT_FILE);
        let bytes = match fs.read(&commit) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(EngineError::NoCommit(dir));
            }
            Err(error) => return Err(EngineError::io(format!("read [{}]", commit.display()))(error)),
        };
        let durable = Arc::new(meta::decode_commit(&bytes)?);
        for stored in &durable.files {
            let path = dir.join(&stored.disk_name);
            let corrupt = |reason| EngineError::Corrupt {
                file: stored.disk_name.clone(),
                reason,
            };
            match fs.len(&path) {
                Ok(len) if len == stored.len => {}
                Ok(len) => {
                    return Err(corrupt(format!(
                        "it has {len} bytes, the commit says {}",
                        stored.len
                    )));
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    return Err(corrupt("it is missing".to_owned()));
                }
                Err(error) => return Err(EngineError::io(format!("look at [{}]", path.display()))(error)),
            }
        }
        let named: HashSet<&str> = durable
            .files
            .iter()
            .map(|stored| stored.disk_name.as_str())
            .chain([meta::COMMIT_FILE])
            .collect();
        for name in fs
            .list(&dir)
            .map_err(EngineError::io(format!("list [{}]", dir.display())))?
        {
            if !named.contains(name.as_str()) {
                fs.remove(&dir.join(&name))
                    .map_err(EngineError::io(format!("remove [{name}]")))?;
            }
        }
        let shared = Shared::new(
            fs,
            dir,
            map_files,
            State::new(Arc::clone(&durable), Some(durable)),
        );
        let tokenizers = analysis::tokenizers();
        let opened = Opened::new(&shared, &tokenizers)?;
        Ok(Self {
            shared,
            arena_bytes: arena_bytes.clamp(*ARENA_BYTES.start(), *ARENA_BYTES.end()),
            tokenizers,
            mapping: ArcSwap::new(mapping),
            writer: Mutex::new(Slot::Closed),
            counters: Arc::default(),
            opened: ArcSwap::from_pointee(opened),
            reloading: Mutex::new(()),
            flushing: Mutex::new(()),
            receiving: Arc::default(),
        })
    }

    /// Payload of the current (soft) meta.
    pub fn commit_info(&self) -> CommitPayload {
        self.shared.state.lock().current.payload.clone()
    }

    /// Payload of the durable commit.
    pub fn durable_info(&self) -> CommitPayload {
        self.shared
            .state
            .lock()
            .durable
            .as_ref()
            .map(|meta| meta.payload.clone())
            .unwrap_or_default()
    }

    /// Version of the current meta, and of the durable commit.
    pub fn meta_versions(&self) -> (u64, Option<u64>) {
        let state = self.shared.state.lock();
        (
            state.current.version,
            state.durable.as_ref().map(|meta| meta.version),
        )
    }

    /// The mapping with which later views are read; also given by `index` with each document.
    pub fn set_mapping(&self, mapping: Arc<Mapping>) {
        if self.mapping.load().version < mapping.version {
            self.mapping.store(mapping);
        }
    }

    /// What was made visible by the last refresh or install.
    pub fn view(&self) -> View {
        let opened = self.opened.load();
        View::new(
            opened.reader.searcher(),
            Arc::clone(&opened.fields),
            self.mapping.load_full(),
        )
    }

    /// Version of the meta that [`Engine::view`] shows.
    pub fn visible_version(&self) -> u64 {
        self.opened.load().version
    }

    /// Commits what was indexed under `payload`, without a sync, and makes it visible. True if something new is visible; a
    /// finished merge counts.
    ///
    /// Without a writer (a replica of SEGMENT) nothing is committed.
    pub fn refresh(&self, payload: &CommitPayload) -> Result<bool, EngineError> {
        let mut slot = self.writer.lock();
        if let Slot::Open(writer) = &mut *slot {
            let stale = self.shared.state.lock().current.payload != *payload;
            if (writer.uncommitted() > 0 || stale)
                && let Err(error) = writer.commit(payload)
            {
                return Err(slot.kill(error));
            }
        }
        self.reload()
    }

    /// Opens the current meta for searching, if it is not yet.
    pub(crate) fn reload(&self) -> Result<bool, EngineError> {
        let _reloading = self.reloading.lock();
        let current = {
            let state = self.shared.state.lock();
            state.check()?;
            Arc::clone(&state.current)
        };
        let opened = self.opened.load();
        if opened.version == current.version {
            return Ok(false);
        }
        let next = if opened.schema == current.schema {
            // A meta that is published meanwhile only makes this reader younger than the version that it is known by.
            opened.reader.reload()?;
            Opened {
                reader: opened.reader.clone(),
                fields: Arc::clone(&opened.fields),
                schema: opened.schema.clone(),
                version: current.version,
            }
        } else {
            Opened::new(&self.shared, &self.tokenizers)?
        };
        self.opened.store(Arc::new(next));
        Ok(true)
    }

    /// [`Engine::flush_after`] for a caller that has synced the log up to everything that it ever handed in.
    pub fn flush(&self) -> Result<CommitPayload, EngineError> {
        self.flush_after(|_| Ok(()))
    }

    /// Makes the current meta durable and answers its payload.
    ///
    /// Order: `sync_log`, which makes the log durable up to the payload's `max_seq_no` (an error of it ends the flush and changes
    /// nothing); files that the meta names and that were never synced; the directory; the commit file (temporary, sync, rename,
    /// directory); deletions that waited. A failure after `sync_log` fails the engine: nobody knows what is on the disk then.
    pub fn flush_after(
        &self,
        sync_log: impl FnOnce(&CommitPayload) -> std::io::Result<()>,
    ) -> Result<CommitPayload, EngineError> {
        let _flushing = self.flushing.lock();
        let (meta, dirty, guard) = {
            let mut state = self.shared.state.lock();
            state.check()?;
            let meta = Arc::clone(&state.current);
            if state
                .durable
                .as_ref()
                .is_some_and(|durable| durable.version == meta.version)
            {
                return Ok(meta.payload.clone());
            }
            let dirty: Vec<String> = meta
                .files
                .iter()
                .map(|stored| stored.disk_name.clone())
                .filter(|name| state.dirty.contains(name))
                .collect();
            // A merge that publishes meanwhile must not delete these.
            let names: Vec<String> = meta.files.iter().map(|stored| stored.disk_name.clone()).collect();
            for name in &names {
                *state.pinned.entry(name.clone()).or_insert(0) += 1;
            }
            (meta, dirty, names)
        };
        let logged = sync_log(&meta.payload).map_err(EngineError::io("sync the log before a flush"));
        let written = logged.map(|()| self.write_out(&meta, &dirty));
        let mut state = self.shared.state.lock();
        for name in guard {
            crate::pin::unpin(&mut state, &name);
        }
        match written {
            Err(error) => {
                self.shared.release(&mut state);
                Err(error)
            }
            Ok(Ok(())) => {
                for name in &dirty {
                    state.dirty.remove(name);
                }
                state.durable = Some(Arc::clone(&meta));
                self.shared.release(&mut state);
                Ok(meta.payload.clone())
            }
            Ok(Err(error)) => {
                state.failed = Some(error.to_string());
                Err(error)
            }
        }
    }

    fn write_out(&self, meta: &Meta, dirty: &[String]) -> Result<(), EngineError> {
        let Shared { fs, dir, .. } = &*self.shared;
        for name in dirty {
            let path = dir.join(name);
            fs.open(&path)
                .and_then(|file| file.sync())
                .map_err(EngineError::io(format!("sync [{}]", path.display())))?;
        }
        if !dirty.is_empty() {
            fs.sync_dir(dir)
                .map_err(EngineError::io(format!("sync [{}]", dir.display())))?;
        }
        let path = dir.join(meta::COMMIT_FILE);
        write_durably(fs.as_ref(), &path, &meta::encode_commit(meta)?)
            .map_err(EngineError::io(format!("write [{}]", path.display())))
    }

    /// Reads every file of the current meta and names those whose bytes differ from what the commit says.
    pub fn verify(&self) -> Result<Vec<String>, EngineError> {
        let pinned = self.pin_checkpoint();
        let mut damaged = Vec::new();
        for file in &pinned.checkpoint().files {
            if pinned.checksum(&file.name)? != (file.len, file.crc) {
                damaged.push(file.name.clone());
            }
        }
        Ok(damaged)
    }
}

impl Opened {
    fn new(shared: &Arc<Shared>, tokenizers: &TokenizerManager) -> Result<Self, EngineError> {
        let version = shared.state.lock().current.version;
        let index = open_index(SoftDirectory::new(Arc::clone(shared), None), tokenizers)?;
        let reader: IndexReader = index
            .reader_builder()
            .reload_policy(ReloadPolicy::Manual)
            .doc_store_cache_num_blocks(STORE_CACHE_BLOCKS)
            .try_into()?;
        let schema = index.schema();
        Ok(Self {
            reader,
            fields: Arc::new(Fields::of(&schema)?),
            schema,
            version,
        })
    }
}

/// Opens the current meta as an index that knows the analyzers.
pub(crate) fn open_index(
    directory: SoftDirectory,
    tokenizers: &TokenizerManager,
) -> Result<Index, EngineError> {
    let mut index = Index::open(directory)?;
    index.set_tokenizers(tokenizers.clone());
    index.set_fast_field_tokenizers(tokenizers.clone());
    Ok(index)
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Ends the writer's threads before the files are handed to the next opening.
        let slot = std::mem::replace(self.writer.get_mut(), Slot::Closed);
        drop(slot);
        let mut state = self.shared.state.lock();
        // A merge that goes on behind the writer's back may write nothing more.
        state.epoch += 1;
    }
}

impl Slot {
    /// Takes a failed writer out of use.
    pub(crate) fn kill(&mut self, error: EngineError) -> EngineError {
        if let EngineError::Tantivy(_) = &error {
            let reason = error.to_string();
            *self = Self::Killed(reason.clone());
            return EngineError::WriterKilled(reason);
        }
        *self = Self::Killed(error.to_string());
        error
    }

    /// The writer.
    pub(crate) fn writer(&mut self) -> Result<&mut Writer, EngineError> {
        match self {
            Self::Open(writer) => Ok(writer),
            Self::Closed => Err(EngineError::NoWriter),
            Self::Killed(reason) => Err(EngineError::WriterKilled(reason.clone())),
        }
    }
}
