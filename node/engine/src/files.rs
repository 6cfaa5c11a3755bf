//! The files of one engine and their lives.
//!
//! A file is *live* while tantivy may name it; *dirty* until a flush has synced it; *doomed* once tantivy has let go of it: its bytes go
//! when neither the current meta, nor the durable commit, nor a pin needs them ([`Shared::release`]).

use crate::{
    EngineError,
    map::{self, Mapped},
    meta::{Meta, Stored},
};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use segmentry_vfs::Vfs;
use std::{
    collections::{HashMap, HashSet},
    io,
    path::PathBuf,
    sync::{Arc, Weak},
};
use tantivy::directory::OwnedBytes;

/// One directory, shared by all handles of an engine.
pub(crate) struct Shared {
    pub fs: Arc<dyn Vfs>,
    pub dir: PathBuf,
    /// False: read through `fs` instead of mapping.
    pub mapped: bool,
    pub state: Mutex<State>,
    maps: Mutex<HashMap<String, Weak<Mapped>>>,
    zeros: Mutex<OwnedBytes>,
    pub locks: Arc<Locks>,
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
pub(crate) struct Locks {
    pub held: Mutex<HashSet<PathBuf>>,
    pub freed: Condvar,
}

pub(crate) struct LockGuard {
    pub locks: Arc<Locks>,
    pub path: PathBuf,
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

    pub(crate) fn zeros(&self, len: usize) -> OwnedBytes {
        let mut zeros = self.zeros.lock();
        if zeros.len() < len {
            *zeros = OwnedBytes::new(vec![0; len]);
        }
        zeros.clone()
    }
}
