//! The data directory: whose it is, and that no two processes use it.
//!
//! `node.json` is `{"node_id": "<16 hex digits>", "cluster_uuid": "<uuid>"|null, "format": 1, "disk_id": "…"|null}`. It is
//! written once with a random node id, and again when the node becomes a member of a cluster; both times durably.
//! `node.lock` is locked for as long as the process lives; the kernel takes the lock off when it ends, however it ends.

use segmentry_state::NodeId;
use segmentry_vfs::{Vfs, write_durably};
use serde::{Deserialize, Serialize};
use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use uuid::Uuid;

/// Data format that this program writes.
pub const FORMAT: u32 = 1;
/// Data formats that it reads.
pub const READABLE: &[u32] = &[FORMAT];

/// Marker: the next start forgets the cluster metadata. Written only while the cluster holds no index.
const RESET: &str = "node.reset";

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The directory, or a file in it, cannot be made, read or written.
    #[error("data directory {path}: cannot {what}: {source}")]
    Io {
        /// Directory.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// Another process uses it.
    #[error("data directory {0} is in use by another process")]
    InUse(PathBuf),
    /// `node.json` cannot be understood.
    #[error("{path} cannot be read: {reason}")]
    Unreadable {
        /// File.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Written by a program of another format.
    #[error("data directory {path} has format {found}, this program reads {READABLE:?}; it was not touched")]
    Format {
        /// Directory.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    node_id: String,
    cluster_uuid: Option<Uuid>,
    format: u32,
    disk_id: Option<String>,
}

/// An open, locked data directory.
#[derive(Debug)]
pub struct Disk {
    root: PathBuf,
    record: Record,
    node_id: NodeId,
    /// Holds the lock.
    _lock: File,
}

impl Disk {
    /// Opens `root`, makes it where it is missing, and locks it.
    ///
    /// # Errors
    /// See [`DiskError`]; a directory of another format is left as it is.
    pub fn open(fs: &Arc<dyn Vfs>, root: &Path, disk_id: Option<&str>) -> Result<Self, DiskError> {
        let failed = |what: &'static str| {
            move |source: io::Error| DiskError::Io {
                path: root.to_owned(),
                what,
                source,
            }
        };
        segmentry_vfs::create_dir_durably(fs.as_ref(), root).map_err(failed("make it"))?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(root.join("node.lock"))
            .map_err(failed("write to it"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DiskError::InUse(root.to_owned())),
            Err(TryLockError::Error(error)) => return Err(failed("lock it")(error)),
        }
        let path = root.join("node.json");
        let unreadable = |reason: String| DiskError::Unreadable {
            path: path.clone(),
            reason,
        };
        let mut record = if fs.exists(&path).map_err(failed("look into it"))? {
            let bytes = fs.read(&path).map_err(failed("read node.json"))?;
            // The format first: the rest of another format may look different.
            #[derive(Deserialize)]
            struct Format {
                format: u32,
            }
            let Format { format } =
                serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))?;
            if !READABLE.contains(&format) {
                return Err(DiskError::Format {
                    path: root.to_owned(),
                    found: format,
                });
            }
            serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))?
        } else {
            // A random 64-bit id: half of a random uuid.
            let (high, low) = Uuid::new_v4().as_u64_pair();
            let record = Record {
                node_id: NodeId(high ^ low.rotate_left(32)).to_string(),
                cluster_uuid: None,
                format: FORMAT,
                disk_id: disk_id.map(str::to_owned),
            };
            save(fs, root, &record).map_err(failed("write node.json"))?;
            record
        };
        let marker = root.join(RESET);
        if fs.exists(&marker).map_err(failed("look into it"))? {
            // In this order: a crash between two steps leaves the marker, and the next start goes on.
            record = Record {
                cluster_uuid: None,
                ..record
            };
            save(fs, root, &record).map_err(failed("write node.json"))?;
            let meta = root.join("meta");
            if fs.exists(&meta).map_err(failed("look into it"))? {
                fs.remove_dir_all(&meta)
                    .map_err(failed("remove the cluster metadata of"))?;
            }
            fs.remove(&marker).map_err(failed("remove the reset marker of"))?;
            fs.sync_dir(root).map_err(failed("sync it"))?;
            tracing::warn!(path = %root.display(), "forgot a formation that was never used");
        }
        let node_id = record
            .node_id
            .parse()
            .map_err(|_| unreadable(format!("[{}] is not a node id", record.node_id)))?;
        Ok(Self {
            root: root.to_owned(),
            record,
            node_id,
            _lock: lock,
        })
    }

    /// Random id of this directory.
    pub fn node_id(&self) -> NodeId {
        self.node_id
    }

    /// The cluster that it belongs to.
    pub fn cluster_uuid(&self) -> Option<Uuid> {
        self.record.cluster_uuid
    }

    /// Volume identity at the time when the directory was made.
    pub fn disk_id(&self) -> Option<&str> {
        self.record.disk_id.as_deref()
    }

    /// Raft's files.
    pub fn meta_dir(&self) -> PathBuf {
        self.root.join("meta")
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Index folders, whether the cluster state knows them or not.
    pub fn indices_on_disk(fs: &Arc<dyn Vfs>, root: &Path) -> u32 {
        let folder = root.join("indices");
        let names = fs.list(&folder).unwrap_or_default();
        u32::try_from(names.len()).unwrap_or(u32::MAX)
    }

    /// Has the next start forget the cluster metadata.
    ///
    /// # Errors
    /// The marker cannot be written.
    pub fn mark_reset(fs: &Arc<dyn Vfs>, root: &Path) -> Result<(), DiskError> {
        write_durably(fs.as_ref(), &root.join(RESET), b"reset\n").map_err(|source| DiskError::Io {
            path: root.to_owned(),
            what: "write the reset marker to",
            source,
        })
    }

    /// Records membership of a cluster, or that there is none any more.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_cluster(&mut self, fs: &Arc<dyn Vfs>, uuid: Option<Uuid>) -> Result<(), DiskError> {
        if self.record.cluster_uuid == uuid {
            return Ok(());
        }
        let next = Record {
            cluster_uuid: uuid,
            ..self.record.clone()
        };
        save(fs, &self.root, &next).map_err(|source| DiskError::Io {
            path: self.root.clone(),
            what: "write node.json",
            source,
        })?;
        self.record = next;
        Ok(())
    }
}

fn save(fs: &Arc<dyn Vfs>, root: &Path, record: &Record) -> io::Result<()> {
    let mut bytes = serde_json::to_vec_pretty(record).map_err(io::Error::other)?;
    bytes.push(b'\n');
    write_durably(fs.as_ref(), &root.join("node.json"), &bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;
    use segmentry_vfs::RealFs;

    fn fs() -> Arc<dyn Vfs> {
        Arc::new(RealFs)
    }

    #[test]
    fn a_directory_keeps_its_id_and_its_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("data");
        let cluster = Uuid::new_v4();
        let first = {
            let mut disk = Disk::open(&fs(), &root, Some("pvc-1")).unwrap();
            assert_eq!(disk.cluster_uuid(), None);
            disk.set_cluster(&fs(), Some(cluster)).unwrap();
            disk.node_id()
        };
        let again = Disk::open(&fs(), &root, Some("pvc-2")).unwrap();
        assert_eq!(
            (again.node_id(), again.cluster_uuid(), again.disk_id()),
            (first, Some(cluster), Some("pvc-1"))
        );
    }

    #[test]
    fn a_reset_forgets_the_cluster_at_the_next_start_only() {
        let dir = tempfile::tempdir().unwrap();
        let first = {
            let mut disk = Disk::open(&fs(), dir.path(), None).unwrap();
            disk.set_cluster(&fs(), Some(Uuid::new_v4())).unwrap();
            std::fs::create_dir(disk.meta_dir()).unwrap();
            Disk::mark_reset(&fs(), dir.path()).unwrap();
            assert!(disk.meta_dir().exists());
            disk.node_id()
        };
        for _ in 0..2 {
            let disk = Disk::open(&fs(), dir.path(), None).unwrap();
            assert_eq!((disk.node_id(), disk.cluster_uuid()), (first, None));
            assert!(!disk.meta_dir().exists());
        }
    }

    #[test]
    fn two_processes_never_share_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let _first = Disk::open(&fs(), dir.path(), None).unwrap();
        let error = Disk::open(&fs(), dir.path(), None).unwrap_err();
        assert!(matches!(error, DiskError::InUse(_)), "{error}");
    }

    #[test]
    fn a_foreign_format_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.json");
        std::fs::write(&path, r#"{"format": 99, "something": "else"}"#).unwrap();
        let error = Disk::open(&fs(), dir.path(), None).unwrap_err();
        assert!(matches!(error, DiskError::Format { found: 99, .. }), "{error}");
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            r#"{"format": 99, "something": "else"}"#
        );
        std::fs::write(&path, "not json").unwrap();
        assert!(matches!(
            Disk::open(&fs(), dir.path(), None),
            Err(DiskError::Unreadable { .. })
        ));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = Disk::open(&fs(), &file.join("data"), None).unwrap_err();
        assert!(error.to_string().contains("file/data"), "{error}");
    }
}
