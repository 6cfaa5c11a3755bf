//! What the metadata keeps on disk, below `<data>/meta/`:
//!
//! - `log`: vote, log entries and what was purged or committed, in one append-only file ([`log_file`]);
//! - `snapshot`: the cluster state at one log position ([`snapshot`]).
//!
//! [`log`] is the door to the first for the Raft library (one writer thread, reads from memory); [`machine`] applies entries.

pub mod log;
pub mod log_file;
pub mod machine;
pub mod snapshot;

use openraft::{AnyError, StorageIOError};
use segmentry_state::{Change, NodeId, Refusal};
use serde::{Deserialize, Serialize};
use std::{io, io::Cursor, path::PathBuf};
use uuid::Uuid;

/// A voter or learner: stable name and address; fresher addresses are learned from hellos.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RaftNode {
    /// Stable name.
    pub name: String,
    /// `host:port` of the internal port.
    pub address: String,
}

/// Changes of one proposer, applied in order; `id` makes a repetition harmless.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Random.
    pub id: Uuid,
    /// Each judged on its own.
    pub changes: Vec<Change>,
}

/// One log entry: everything that waited while the last one was written.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Batch {
    /// In order.
    pub items: Vec<Item>,
}

/// What became of one [`Item`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Version of the cluster state after it.
    pub version: u64,
    /// One verdict a Change.
    pub results: Vec<Result<(), Refusal>>,
}

openraft::declare_raft_types!(
    /// The types that the Raft library is used with.
    pub TypeConfig:
        D = Batch,
        R = Vec<Outcome>,
        NodeId = u64,
        Node = RaftNode,
        Entry = openraft::Entry<TypeConfig>,
        SnapshotData = Cursor<Vec<u8>>,
        AsyncRuntime = openraft::TokioRuntime,
);

pub type LogId = openraft::LogId<u64>;
pub type Entry = openraft::Entry<TypeConfig>;
pub type Vote = openraft::Vote<u64>;
pub type Membership = openraft::StoredMembership<u64, RaftNode>;
pub type StorageError = openraft::StorageError<u64>;

/// Why the metadata of a node cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk.
    #[error("cannot read or write [{path}]: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Durable bytes are damaged: the node must get its metadata from the other voters as a new member.
    #[error("[{path}] is damaged at byte {offset}: {why}")]
    Corrupt {
        /// Which file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// How it shows.
        why: String,
    },
    /// Written by another version.
    #[error("[{path}] has format {found}, this program reads {readable}")]
    Format {
        /// Which file.
        path: PathBuf,
        /// Found.
        found: u32,
        /// Readable.
        readable: u32,
    },
    /// The Raft library could not start.
    #[error("raft cannot start: {0}")]
    Raft(String),
}

pub fn write_error(what: impl std::fmt::Display) -> StorageError {
    StorageError::from(StorageIOError::write(AnyError::error(what)))
}

pub fn read_error(what: impl std::fmt::Display) -> StorageError {
    StorageError::from(StorageIOError::read(AnyError::error(what)))
}

pub fn node_id(raft_id: u64) -> NodeId {
    NodeId(raft_id)
}
