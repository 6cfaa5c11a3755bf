//! The cluster state at one log position, as a file.
//!
//! ```text
//!   "SGMRSNP1" | format u32 | crc32c u32 of the payload | length u64 of the payload | payload (JSON of `Snapshot`)
//! ```
//! Written durably beside the old one and renamed over it, so there is always exactly one, whole.

use super::{LogId, Membership, OpenError, Outcome, RaftNode};
use openraft::SnapshotMeta;
use segmentry_state::ClusterState;
use segmentry_vfs::{Vfs, write_durably};
use serde::{Deserialize, Serialize};
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"SGMRSNP1";
const FORMAT: u32 = 1;
const HEADER: usize = 24;

/// The payload.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// Last applied entry.
    pub applied: Option<LogId>,
    /// Last applied membership.
    pub membership: Membership,
    /// The state.
    pub state: Arc<ClusterState>,
    /// Outcomes of the last proposals, oldest first.
    #[serde(default)]
    pub remembered: Vec<(Uuid, Outcome)>,
}

impl Snapshot {
    /// As the Raft library describes it; the id is the log position, for the content follows from that.
    pub fn meta(&self) -> SnapshotMeta<u64, RaftNode> {
        let id = self
            .applied
            .map_or_else(|| "empty".to_owned(), |l| format!("{}-{}", l.leader_id, l.index));
        SnapshotMeta {
            last_log_id: self.applied,
            last_membership: self.membership.clone(),
            snapshot_id: id,
        }
    }
}

fn path(dir: &Path) -> PathBuf {
    dir.join("snapshot")
}

/// Writes the payload. Blocks.
pub fn write(fs: &dyn Vfs, dir: &Path, payload: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend(MAGIC);
    bytes.extend(FORMAT.to_le_bytes());
    bytes.extend(crc32c::crc32c(payload).to_le_bytes());
    bytes.extend(u64::try_from(payload.len()).unwrap_or(u64::MAX).to_le_bytes());
    bytes.extend(payload);
    write_durably(fs, &path(dir), &bytes)
}

/// Reads the payload, if there is one. Blocks.
pub fn read(fs: &dyn Vfs, dir: &Path) -> Result<Option<(Snapshot, Vec<u8>)>, OpenError> {
    let path = path(dir);
    let io = |source| OpenError::Io {
        path: path.clone(),
        source,
    };
    if !fs.exists(&path).map_err(io)? {
        return Ok(None);
    }
    let bytes = fs.read(&path).map_err(io)?;
    let corrupt = |offset, why: String| OpenError::Corrupt {
        path: path.clone(),
        offset,
        why,
    };
    let number =
        |at: usize| -> Option<u32> { Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?)) };
    let (Some(format), Some(crc)) = (number(8), number(12)) else {
        return Err(corrupt(0, "it is shorter than its header".into()));
    };
    if &bytes[..8] != MAGIC {
        return Err(corrupt(
            0,
            "it does not start as a snapshot of the metadata".into(),
        ));
    }
    if format != FORMAT {
        return Err(OpenError::Format {
            path,
            found: format,
            readable: FORMAT,
        });
    }
    let payload = bytes.get(HEADER..).unwrap_or_default();
    let length = bytes
        .get(16..24)
        .and_then(|b| b.try_into().ok())
        .map(u64::from_le_bytes);
    if length != u64::try_from(payload.len()).ok() || crc32c::crc32c(payload) != crc {
        return Err(corrupt(16, "its length or checksum is wrong".into()));
    }
    let snapshot =
        serde_json::from_slice(payload).map_err(|e| corrupt(24, format!("it cannot be read: {e}")))?;
    Ok(Some((snapshot, payload.to_vec())))
}
