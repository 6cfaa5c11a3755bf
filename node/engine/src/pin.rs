//! Pins: the files of a meta stay while somebody copies them.
//!
//! [`Engine::pin_checkpoint`] keeps the files of the current meta until the pin is dropped, or taken away by [`Engine::end_pins`]: who
//! gives files bounds how long and how much (`EngineStats::pinned_bytes`) a slow receiver may hold.

use crate::{
    Checkpoint, Engine, EngineError,
    checkpoint::checkpoint_of,
    files::{Shared, State},
};
use segmentry_vfs::VfsFile;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

#[derive(Default)]
pub(crate) struct Pins {
    next: u64,
    held: HashMap<u64, Pin>,
}

struct Pin {
    since: Instant,
    names: Vec<String>,
}

/// Gives up one hold on a name in the directory.
pub(crate) fn unpin(state: &mut State, disk_name: &str) {
    if let Some(count) = state.pinned.get_mut(disk_name) {
        *count -= 1;
        if *count == 0 {
            state.pinned.remove(disk_name);
        }
    }
}

/// A checkpoint whose files stay until this is dropped, or until [`Engine::end_pins`] takes it away.
pub struct PinnedCheckpoint {
    checkpoint: Checkpoint,
    /// Name → name in the directory.
    names: HashMap<String, String>,
    id: u64,
    pins: Arc<parking_lot::Mutex<Pins>>,
    shared: Arc<Shared>,
}

impl PinnedCheckpoint {
    /// What is pinned.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Opens one of its files. The handle stays good after the pin has ended.
    ///
    /// Errors: [`EngineError::PinEnded`], [`EngineError::MissingFile`] for a name that is not in the checkpoint.
    pub fn open(&self, name: &str) -> Result<Box<dyn VfsFile>, EngineError> {
        let disk_name = self
            .names
            .get(name)
            .ok_or_else(|| EngineError::MissingFile(name.to_owned()))?;
        // Under the lock, so that the pin does not end between the look and the opening.
        let pins = self.pins.lock();
        if !pins.held.contains_key(&self.id) {
            return Err(EngineError::PinEnded);
        }
        self.shared
            .fs
            .open(&self.shared.dir.join(disk_name))
            .map_err(EngineError::io(format!("open [{disk_name}]")))
    }

    /// Length and crc32 of a file as it is on the disk now.
    pub(crate) fn checksum(&self, name: &str) -> Result<(u64, u32), EngineError> {
        let file = self.open(name)?;
        let mut hasher = crc32fast::Hasher::new();
        let mut buffer = vec![0; 256 << 10];
        let mut at = 0;
        loop {
            let count = file
                .read_at(&mut buffer, at)
                .map_err(EngineError::io(format!("read [{name}]")))?;
            if count == 0 {
                return Ok((at, hasher.finalize()));
            }
            hasher.update(&buffer[..count]);
            at += count as u64;
        }
    }
}

impl Drop for PinnedCheckpoint {
    fn drop(&mut self) {
        let pin = self.pins.lock().held.remove(&self.id);
        release(&self.shared, pin);
    }
}

fn release(shared: &Shared, pin: impl IntoIterator<Item = Pin>) {
    let mut state = shared.state.lock();
    for name in pin.into_iter().flat_map(|pin| pin.names) {
        unpin(&mut state, &name);
    }
    shared.release(&mut state);
}

impl Engine {
    /// The same, and its files stay.
    pub fn pin_checkpoint(&self) -> PinnedCheckpoint {
        let pins = Arc::clone(&self.receiving.lock().pins);
        let meta = {
            let mut state = self.shared.state.lock();
            let meta = Arc::clone(&state.current);
            for stored in &meta.files {
                *state.pinned.entry(stored.disk_name.clone()).or_insert(0) += 1;
            }
            meta
        };
        let names = meta.files.iter().map(|stored| stored.disk_name.clone()).collect();
        let id = {
            let mut pins = pins.lock();
            pins.next += 1;
            let id = pins.next;
            pins.held.insert(
                id,
                Pin {
                    since: Instant::now(),
                    names,
                },
            );
            id
        };
        PinnedCheckpoint {
            checkpoint: checkpoint_of(&meta),
            names: meta
                .files
                .iter()
                .map(|stored| (stored.name.clone(), stored.disk_name.clone()))
                .collect(),
            id,
            pins,
            shared: Arc::clone(&self.shared),
        }
    }

    /// Takes away the pins that are older than `age`; answers how many. Their holders get [`EngineError::PinEnded`].
    pub fn end_pins(&self, age: Duration) -> usize {
        let pins = Arc::clone(&self.receiving.lock().pins);
        let ended: Vec<Pin> = {
            let mut pins = pins.lock();
            let old: Vec<u64> = pins
                .held
                .iter()
                .filter(|(_, pin)| pin.since.elapsed() >= age)
                .map(|(id, _)| *id)
                .collect();
            old.iter().filter_map(|id| pins.held.remove(id)).collect()
        };
        let count = ended.len();
        release(&self.shared, ended);
        count
    }

    /// Bytes of files that only pins keep.
    pub(crate) fn pinned_bytes(&self, state: &State, current: &HashSet<&str>) -> u64 {
        let durable: HashSet<&str> = state
            .durable
            .iter()
            .flat_map(|meta| meta.files.iter().map(|stored| stored.disk_name.as_str()))
            .collect();
        state
            .pinned
            .keys()
            .filter(|name| !current.contains(name.as_str()) && !durable.contains(name.as_str()))
            // A file that cannot be looked at counts as nothing; reading it will tell.
            .map(|name| self.shared.fs.len(&self.shared.dir.join(name)).unwrap_or(0))
            .sum()
    }
}
