//! What lies on the disk: `<data>/indices/<index uuid>/<shard>/<allocation>/`.
//!
//! A folder goes only where nothing in it can be needed: its index has a tombstone; or its allocation is not listed any more, and the
//! copy that this node has instead is in sync, or every wanted copy is in sync elsewhere. Data of an index that nobody knows is kept
//! and reported.

use segmentry_state::{AllocationId, ClusterState, IndexUuid, NodeId, ShardId};
use segmentry_vfs::Vfs;
use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};
use tracing::{info, warn};

/// One folder of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Folder {
    pub shard: ShardId,
    pub allocation: AllocationId,
    pub path: PathBuf,
}

/// Where a copy lies.
pub(crate) fn folder(root: &Path, shard: ShardId, allocation: AllocationId) -> PathBuf {
    root.join("indices")
        .join(shard.index.to_string())
        .join(shard.shard.to_string())
        .join(allocation.to_string())
}

fn names(fs: &dyn Vfs, dir: &Path) -> io::Result<Vec<String>> {
    match fs.list(dir) {
        Ok(names) => Ok(names),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// Index folders, by uuid.
pub(crate) fn indices(fs: &dyn Vfs, root: &Path) -> io::Result<Vec<IndexUuid>> {
    Ok(names(fs, &root.join("indices"))?
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect())
}

/// All folders of copies. Names that are none are left alone.
pub(crate) fn all(fs: &dyn Vfs, root: &Path) -> io::Result<Vec<Folder>> {
    let mut out = Vec::new();
    for index in indices(fs, root)? {
        let dir = root.join("indices").join(index.to_string());
        for name in names(fs, &dir)? {
            let Ok(number) = name.parse() else { continue };
            for allocation in names(fs, &dir.join(&name))? {
                let Ok(allocation) = allocation.parse() else {
                    continue;
                };
                let shard = ShardId { index, shard: number };
                out.push(Folder {
                    shard,
                    allocation,
                    path: folder(root, shard, allocation),
                });
            }
        }
    }
    Ok(out)
}

/// Index files of the other copies beside `dir`: tantivy's name, path.
pub(crate) fn older_files(fs: &dyn Vfs, dir: &Path) -> Vec<(String, PathBuf)> {
    let mut out = Vec::new();
    let Some(shard) = dir.parent() else { return out };
    // What cannot be listed is fetched.
    for other in names(fs, shard).unwrap_or_default() {
        let index = shard.join(other).join("index");
        if index.parent() == Some(dir) {
            continue;
        }
        for name in names(fs, &index).unwrap_or_default() {
            // A file whose name was taken when it was received lies under `name~n`.
            let known = name
                .split_once('~')
                .map_or(name.as_str(), |(known, _)| known)
                .to_owned();
            out.push((known, index.join(name)));
        }
    }
    out
}

/// What may go, judged by a state that is not older than the folders.
pub(crate) fn dispensable(state: &ClusterState, node: NodeId, folder: &Folder) -> bool {
    if state.tombstones.contains_key(&folder.shard.index) {
        return true;
    }
    let Some(index) = state.index(folder.shard.index) else {
        return false;
    };
    let Some(shard) = index.shard(folder.shard.shard) else {
        return false;
    };
    if shard.copy(folder.allocation).is_some() {
        return false;
    }
    if let Some(here) = shard.copy_on(node) {
        return shard.is_in_sync(here.allocation);
    }
    let serving = state.serving(folder.shard).len();
    let wanted =
        usize::try_from(index.settings.number_of_replicas).map_or(usize::MAX, |replicas| replicas + 1);
    serving >= wanted
}

/// Removes those of `folders` that may go, apart from those of open copies. `state` is not older than the list.
pub(crate) fn sweep(
    fs: &dyn Vfs,
    folders: &[Folder],
    state: &ClusterState,
    node: NodeId,
    open: impl Fn(AllocationId) -> bool,
) {
    for folder in folders {
        if open(folder.allocation) || !dispensable(state, node, folder) {
            continue;
        }
        match fs.remove_dir_all(&folder.path) {
            Ok(()) => {
                info!(folder = %folder.path.display(), "a copy that is not needed any more was removed");
            }
            Err(error) => warn!(folder = %folder.path.display(), %error, "a copy could not be removed"),
        }
    }
}

/// Removes what is left of deleted indices; answers the indices on the disk that nobody knows.
pub(crate) fn sweep_indices(
    fs: &dyn Vfs,
    root: &Path,
    state: &ClusterState,
) -> io::Result<BTreeSet<IndexUuid>> {
    let mut unknown = BTreeSet::new();
    for index in indices(fs, root)? {
        if state.tombstones.contains_key(&index) {
            let dir = root.join("indices").join(index.to_string());
            let used = all(fs, root)?.iter().any(|folder| folder.shard.index == index);
            if !used && let Err(error) = fs.remove_dir_all(&dir) {
                warn!(folder = %dir.display(), %error, "the folder of a deleted index could not be removed");
            }
        } else if state.index(index).is_none() {
            unknown.insert(index);
        }
    }
    Ok(unknown)
}
