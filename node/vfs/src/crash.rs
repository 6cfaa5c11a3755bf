//! A model of a disk that forgets what was not synced.
//!
//! Kept apart: what a process sees now, and what is durable. [`CrashFs::crash`] throws the first away, but for a part of the
//! unsynced changes that a seed chooses: single writes (whole, their beginning, or only their end), cuts, and single changes of
//! directories, in any combination. Handles from before a crash answer errors.

use crate::{Vfs, VfsFile};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

type Ino = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    File(Ino),
    Dir,
}

#[derive(Debug, Clone)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Length(usize),
}

#[derive(Debug, Clone)]
enum DirChange {
    Add(PathBuf, Entry),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
}

impl DirChange {
    fn concerns(&self, dir: &Path) -> bool {
        match self {
            Self::Add(path, _) | Self::Remove(path) => path.parent() == Some(dir),
            Self::Rename(from, to) => to.parent() == Some(dir) || from.parent() == Some(dir),
        }
    }

    fn apply(&self, tree: &mut BTreeMap<PathBuf, Entry>) {
        match self {
            Self::Add(path, entry) => {
                tree.insert(path.clone(), *entry);
            }
            Self::Remove(path) => tree.retain(|held, _| !held.starts_with(path)),
            Self::Rename(from, to) => {
                let moved: Vec<(PathBuf, Entry)> = tree
                    .iter()
                    .filter(|(path, _)| path.starts_with(from))
                    .filter_map(|(path, entry)| {
                        let rest = path.strip_prefix(from).ok()?;
                        let target = if rest.as_os_str().is_empty() {
                            to.clone()
                        } else {
                            to.join(rest)
                        };
                        Some((target, *entry))
                    })
                    .collect();
                if moved.is_empty() {
                    return;
                }
                tree.retain(|path, _| !path.starts_with(from) && !path.starts_with(to));
                tree.extend(moved);
            }
        }
    }
}

#[derive(Debug, Clone, Default)]
struct File {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// What a sync makes durable. A failed one drops them: the kernel has marked the pages clean, so that a later sync says
    /// yes and writes nothing of them, while reads still see them.
    pending: Vec<Change>,
    changed: u64,
}

/// Applies a change: of a write only the bytes in `part`, though the file grows to where they end.
fn apply(change: &Change, to: &mut Vec<u8>, part: Range<usize>) {
    match change {
        Change::Write { offset, bytes } => {
            let part = part.start.min(bytes.len())..part.end.min(bytes.len());
            if part.is_empty() {
                return;
            }
            let (start, end) = (offset + part.start, offset + part.end);
            if to.len() < end {
                to.resize(end, 0);
            }
            to[start..end].copy_from_slice(&bytes[part]);
        }
        Change::Length(length) => to.resize(*length, 0),
    }
}

/// What goes wrong, and when. Counts are of calls on the whole file system since it was made.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// The nth sync (of a file or a directory, from 1) fails, and what it was to make durable is lost.
    pub fail_sync: Option<u64>,
    /// Bytes that all files together may have; a write that goes beyond writes what fits, and fails.
    pub capacity: Option<usize>,
    /// From the nth change on (from 1: create, write, cut, rename, remove, link, sync) nothing is done any more, and every
    /// call fails: the power is gone. [`CrashFs::crash`] brings it back.
    pub power_off: Option<u64>,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<Ino, File>,
    tree: BTreeMap<PathBuf, Entry>,
    durable_tree: BTreeMap<PathBuf, Entry>,
    pending: Vec<DirChange>,
    next: Ino,
    epoch: u64,
    changes: u64,
    syncs: u64,
    faults: Faults,
}

/// The model. Clones share one disk.
#[derive(Debug, Clone, Default)]
pub struct CrashFs(Arc<Mutex<State>>);

/// A small generator, so that the model needs none from outside: xorshift64*.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(drawn).unwrap_or(0) % sides.max(1)
    }
}

impl State {
    fn change(&mut self) -> io::Result<()> {
        self.changes += 1;
        self.powered()
    }

    fn powered(&self) -> io::Result<()> {
        match self.faults.power_off {
            Some(at) if self.changes >= at => Err(io::Error::other("the power is off")),
            _ => Ok(()),
        }
    }

    fn ino(&self, path: &Path) -> io::Result<Ino> {
        match self.tree.get(path) {
            Some(Entry::File(ino)) => Ok(*ino),
            Some(Entry::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn is_dir(&self, path: &Path) -> bool {
        path.parent().is_none() || path.as_os_str().is_empty() || self.tree.get(path) == Some(&Entry::Dir)
    }

    fn has_parent(&self, path: &Path) -> io::Result<()> {
        match path.parent() {
            Some(parent) if !self.is_dir(parent) => Err(io::ErrorKind::NotFound.into()),
            _ => Ok(()),
        }
    }

    fn tree_change(&mut self, change: DirChange) {
        change.apply(&mut self.tree);
        self.pending.push(change);
    }

    fn file(&mut self, ino: Ino) -> io::Result<&mut File> {
        self.files
            .get_mut(&ino)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    fn write(&mut self, ino: Ino, bytes: &[u8], offset: usize) -> io::Result<()> {
        self.change()?;
        let used: usize = self.files.values().map(|file| file.now.len()).sum();
        let length = self.file(ino)?.now.len();
        let grows = (offset + bytes.len()).saturating_sub(length);
        let free = self
            .faults
            .capacity
            .map_or(usize::MAX, |capacity| capacity.saturating_sub(used));
        let fits = if grows > free {
            bytes.len() - (grows - free).min(bytes.len())
        } else {
            bytes.len()
        };
        let stamp = self.changes;
        let file = self.file(ino)?;
        let change = Change::Write {
            offset,
            bytes: bytes[..fits].to_vec(),
        };
        apply(&change, &mut file.now, 0..fits);
        file.pending.push(change);
        file.changed = stamp;
        if fits < bytes.len() {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            Ok(())
        }
    }

    fn sync_fails(&mut self) -> bool {
        self.syncs += 1;
        self.faults.fail_sync == Some(self.syncs)
    }
}

impl CrashFs {
    /// An empty disk without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.0.lock().faults = faults;
    }

    /// Changes so far: the number to cut the power at.
    pub fn changes(&self) -> u64 {
        self.0.lock().changes
    }

    /// Syncs so far.
    pub fn syncs(&self) -> u64 {
        self.0.lock().syncs
    }

    /// The power goes and comes back: what was not synced is forgotten, but for what `seed` lets survive. Faults end.
    pub fn crash(&self, seed: u64) {
        let mut dice = Dice(seed | 1);
        let mut state = self.0.lock();
        let state = &mut *state;
        for file in state.files.values_mut() {
            let mut survived = file.durable.clone();
            for change in std::mem::take(&mut file.pending) {
                let whole = match &change {
                    Change::Write { bytes, .. } => bytes.len(),
                    Change::Length(_) => 0,
                };
                match dice.roll(6) {
                    0 | 1 => {}
                    2 | 3 => apply(&change, &mut survived, 0..whole),
                    4 => apply(&change, &mut survived, 0..dice.roll(whole + 1)),
                    // pages go to the disk in any order: its end without its beginning
                    _ => apply(&change, &mut survived, dice.roll(whole + 1)..whole),
                }
            }
            file.durable.clone_from(&survived);
            file.now = survived;
        }
        for change in std::mem::take(&mut state.pending) {
            if dice.roll(2) == 0 {
                change.apply(&mut state.durable_tree);
            }
        }
        // an entry whose directory is gone is not reachable
        let tree = state.durable_tree.clone();
        let reachable = |path: &Path| {
            path.ancestors()
                .skip(1)
                .filter(|above| above.parent().is_some() && !above.as_os_str().is_empty())
                .all(|above| tree.get(above) == Some(&Entry::Dir))
        };
        state.durable_tree.retain(|path, _| reachable(path));
        state.tree.clone_from(&state.durable_tree);
        state.epoch += 1;
        state.faults = Faults::default();
    }
}

struct CrashFile {
    fs: CrashFs,
    ino: Ino,
    epoch: u64,
    path: PathBuf,
}

impl CrashFile {
    fn with<T>(&self, run: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.fs.0.lock();
        if state.epoch != self.epoch {
            return Err(io::Error::other("handle from before the crash"));
        }
        state.powered()?;
        run(&mut state)
    }
}

fn offset(at: u64) -> io::Result<usize> {
    usize::try_from(at).map_err(|_| io::ErrorKind::InvalidInput.into())
}

impl VfsFile for CrashFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.with(|state| {
            let end = state.file(self.ino)?.now.len();
            state.write(self.ino, bytes, end)
        })
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.with(|state| state.write(self.ino, bytes, offset(at)?))
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.with(|state| {
            let file = state.file(self.ino)?;
            let rest = file.now.get(offset(at)?..).unwrap_or_default();
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|state| Ok(state.file(self.ino)?.now.len() as u64))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|state| {
            state.change()?;
            let length = offset(len)?;
            let stamp = state.changes;
            let file = state.file(self.ino)?;
            file.now.resize(length, 0);
            file.pending.push(Change::Length(length));
            file.changed = stamp;
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|state| {
            state.change()?;
            let fails = state.sync_fails();
            let file = state.file(self.ino)?;
            let pending = std::mem::take(&mut file.pending);
            if fails {
                return Err(io::Error::other("injected: sync failed"));
            }
            for change in &pending {
                apply(change, &mut file.durable, 0..usize::MAX);
            }
            Ok(())
        })
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl CrashFs {
    fn with<T>(&self, run: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.0.lock();
        state.powered()?;
        run(&mut state)
    }

    fn handle(&self, state: &State, ino: Ino, path: &Path) -> Box<dyn VfsFile> {
        Box::new(CrashFile {
            fs: self.clone(),
            ino,
            epoch: state.epoch,
            path: path.to_owned(),
        })
    }
}

impl Vfs for CrashFs {
    fn create(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        self.with(|state| {
            state.has_parent(path)?;
            state.change()?;
            let ino = match state.tree.get(path) {
                Some(Entry::Dir) => return Err(io::ErrorKind::IsADirectory.into()),
                Some(Entry::File(ino)) => {
                    let ino = *ino;
                    let file = state.file(ino)?;
                    file.now.clear();
                    file.pending.push(Change::Length(0));
                    ino
                }
                None => {
                    state.next += 1;
                    let ino = state.next;
                    state.files.insert(
                        ino,
                        File {
                            changed: state.changes,
                            ..File::default()
                        },
                    );
                    state.tree_change(DirChange::Add(path.to_owned(), Entry::File(ino)));
                    ino
                }
            };
            Ok(self.handle(state, ino, path))
        })
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        self.with(|state| Ok(self.handle(state, state.ino(path)?, path)))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.with(|state| {
            let ino = state.ino(path)?;
            Ok(state.file(ino)?.now.clone())
        })
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.with(|state| {
            if !state.is_dir(dir) {
                return Err(io::ErrorKind::NotFound.into());
            }
            let names = state.tree.keys().filter(|path| path.parent() == Some(dir));
            names
                .filter_map(|path| path.file_name())
                .map(|name| {
                    name.to_str()
                        .map(str::to_owned)
                        .ok_or_else(|| io::ErrorKind::InvalidData.into())
                })
                .collect()
        })
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.with(|state| Ok(state.tree.contains_key(path) || path.parent().is_none()))
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        self.with(|state| {
            let ino = state.ino(path)?;
            Ok(state.file(ino)?.now.len() as u64)
        })
    }

    fn modified(&self, path: &Path) -> io::Result<SystemTime> {
        self.with(|state| {
            let ino = state.ino(path)?;
            let stamp = state.file(ino)?.changed;
            // a clock that only changes of this disk move
            Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + stamp))
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.with(|state| {
            if !state.tree.contains_key(from) {
                return Err(io::ErrorKind::NotFound.into());
            }
            state.has_parent(to)?;
            state.change()?;
            state.tree_change(DirChange::Rename(from.to_owned(), to.to_owned()));
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.with(|state| {
            state.ino(path)?;
            state.change()?;
            state.tree_change(DirChange::Remove(path.to_owned()));
            Ok(())
        })
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.with(|state| {
            let ino = state.ino(from)?;
            state.has_parent(to)?;
            if state.tree.contains_key(to) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            state.change()?;
            state.tree_change(DirChange::Add(to.to_owned(), Entry::File(ino)));
            Ok(())
        })
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.with(|state| {
            let above: Vec<PathBuf> = dir
                .ancestors()
                .filter(|path| path.parent().is_some() && !path.as_os_str().is_empty())
                .map(Path::to_owned)
                .collect();
            for path in above.into_iter().rev() {
                match state.tree.get(&path) {
                    Some(Entry::Dir) => {}
                    Some(Entry::File(_)) => return Err(io::ErrorKind::AlreadyExists.into()),
                    None => {
                        state.change()?;
                        state.tree_change(DirChange::Add(path, Entry::Dir));
                    }
                }
            }
            Ok(())
        })
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.with(|state| {
            if state.tree.get(dir) != Some(&Entry::Dir) {
                return Err(io::ErrorKind::NotFound.into());
            }
            state.change()?;
            state.tree_change(DirChange::Remove(dir.to_owned()));
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.with(|state| {
            if !state.is_dir(dir) {
                return Err(io::ErrorKind::NotFound.into());
            }
            state.change()?;
            if state.sync_fails() {
                return Err(io::Error::other("injected: sync of a directory failed"));
            }
            let (synced, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut state.pending)
                .into_iter()
                .partition(|change| change.concerns(dir));
            for change in synced {
                change.apply(&mut state.durable_tree);
            }
            state.pending = rest;
            Ok(())
        })
    }
}
