//! What callers give to a copy and what it answers.

use bytes::Bytes;
use segmentry_engine::{EngineError, SearchError};
use segmentry_mapping::MappingError;
use segmentry_settings::admin::CopyReport;
use segmentry_state::AllocationId;
use segmentry_translog::Operation;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, sync::Arc};

/// What a write does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WriteKind {
    /// Puts the document, over an older one.
    Index,
    /// Puts the document, refused where one of this id exists.
    Create,
    /// Merges a partial document into the one that exists; the source is OpenSearch's update body.
    Update,
    /// Removes the document.
    Delete,
}

/// One write; its id and routing are fixed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteOp {
    /// What to do.
    pub kind: WriteKind,
    /// Document id.
    pub id: Arc<str>,
    /// The id was made for this very attempt: no document of this id can exist, so none is looked for.
    pub fresh_id: bool,
    /// Routing value, where the client gave one.
    pub routing: Option<Arc<str>>,
    /// Compare-and-set: the expected `_seq_no`.
    pub if_seq_no: Option<u64>,
    /// Compare-and-set: the expected `_primary_term`.
    pub if_primary_term: Option<u64>,
    /// The document, or the body of an update; empty for a delete.
    pub source: Bytes,
}

/// What a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// There was no document of this id.
    Created,
    /// There was one.
    Updated,
    /// It was removed.
    Deleted,
    /// There was nothing to remove.
    NotFound,
    /// The update changes nothing.
    Noop,
}

/// A write that was done and is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteResult {
    /// What it did.
    pub outcome: Outcome,
    /// `_version`.
    pub version: u64,
    /// `_seq_no`.
    pub seq_no: u64,
    /// `_primary_term`.
    pub term: u64,
}

/// Why a write was not done, or why its outcome is unknown.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WriteError {
    /// Compare-and-set failed, or `create` found a document.
    #[error("[{id}]: version conflict, {reason}")]
    VersionConflict {
        /// Document.
        id: Arc<str>,
        /// What is different.
        reason: String,
    },
    /// An update without upsert found no document.
    #[error("[{0}]: document missing")]
    Missing(Arc<str>),
    /// The document does not fit the mapping, or cannot be parsed.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// The request itself is wrong.
    #[error("{0}")]
    Illegal(String),
    /// The indexing budget of the node is used up. Nothing was done.
    #[error(
        "rejected execution of primary operation [operation_bytes={bytes}, primary_bytes={used}, max_primary_bytes={limit}]"
    )]
    Rejected {
        /// Bytes of the refused request.
        bytes: u64,
        /// Bytes in use.
        used: u64,
        /// Bound.
        limit: u64,
    },
    /// This copy does not admit writes. Nothing was done.
    #[error("copy is not an active primary: {0}")]
    NotPrimary(String),
    /// The mapping could not be changed. Nothing was done.
    #[error("mapping could not be updated: {0}")]
    MappingUpdate(String),
    /// It may have been done.
    #[error("outcome unknown: {0}")]
    Unknown(String),
}

impl WriteError {
    /// HTTP status and OpenSearch's `type`.
    pub fn status_and_kind(&self) -> (u16, &'static str) {
        match self {
            Self::VersionConflict { .. } => (409, "version_conflict_engine_exception"),
            Self::Missing(_) => (404, "document_missing_exception"),
            Self::Mapping(error) => (MappingError::STATUS, error.kind.name()),
            Self::Illegal(_) => (400, "illegal_argument_exception"),
            Self::Rejected { .. } => (429, "rejected_execution_exception"),
            Self::NotPrimary(_) => (503, "shard_not_here_exception"),
            Self::MappingUpdate(_) => (503, "process_cluster_event_timeout_exception"),
            Self::Unknown(_) => (503, "unknown_outcome_exception"),
        }
    }
}

/// A document that was found by its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetResult {
    /// `_version`.
    pub version: u64,
    /// `_seq_no`.
    pub seq_no: u64,
    /// `_primary_term`.
    pub term: u64,
    /// `_routing`.
    pub routing: Option<String>,
    /// `_source`.
    pub source: Bytes,
}

/// Last operation in a log: handed to the kernel, and on stable storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Positions {
    /// Handed to the kernel.
    pub written: Option<u64>,
    /// On stable storage.
    pub persisted: Option<u64>,
}

/// Where a copy's log stands: what a primary needs to continue it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogState {
    /// Last operation.
    pub last: Option<u64>,
    /// Primary term of the last operation; 0 without one.
    pub last_term: u64,
    /// Term of the last term start in its log.
    pub log_term: u64,
    /// Highest term that it knows of.
    pub term: u64,
    /// Global checkpoint that it knows.
    pub global_checkpoint: Option<u64>,
    /// Positions.
    pub positions: Positions,
    /// Last operation that its searcher shows.
    pub visible: Option<u64>,
    /// Its last end was unclean, and the machine has started anew since: acknowledged async writes may be missing. Until it has
    /// caught up with a primary, or is one.
    pub suspect: bool,
}

/// What a primary sends to one copy: a contiguous piece of its log.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Term of the sender's activation.
    pub term: u64,
    /// Set on the first batch of a term: what of the copy's log stays.
    pub start: Option<TermStart>,
    /// Last operation before this batch (`ContiguousLog`).
    pub previous: Option<u64>,
    /// Operations, ascending, without gaps. None in a trailing message.
    pub operations: Vec<Operation>,
    /// Global checkpoint of the primary.
    pub global_checkpoint: Option<u64>,
    /// Last operation of the primary, for the copy's report of its lag.
    pub primary_last: Option<u64>,
    /// The sender waits until the batch is on stable storage.
    pub sync: bool,
}

/// Beginning of a term on a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermStart {
    /// Operations of earlier terms above it are void.
    pub keep_to: Option<u64>,
}

/// Why a batch was not appended. Nothing of it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum AppendRefusal {
    /// The copy expects another batch.
    #[error("the copy expects another batch, its last operation is {:?} of term {}", .0.last, .0.last_term)]
    Expect(LogState),
    /// The sender's term is over (`OneWriter`).
    #[error("term {given} is over, the copy knows term {known}")]
    Stale {
        /// Term of the batch.
        given: u64,
        /// Term of the copy.
        known: u64,
    },
    /// The copy holds, below its global checkpoint, what the primary does not: it cannot follow by its log.
    #[error("the copy's log cannot follow: {0}")]
    Diverged(String),
    /// The copy has failed or was closed.
    #[error("{0}")]
    Failed(String),
}

/// What a copy is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// It is being built: it holds no complete commit yet and takes no operations.
    Recovering,
    /// It follows the primary of this term, or of a later one.
    Replica {
        /// Highest term that it knows of.
        term: u64,
    },
    /// It admits writes.
    Primary {
        /// Term of its activation.
        term: u64,
    },
    /// It was primary in this term and knows that the term is over; it waits for the cluster state.
    Deposed {
        /// The term that is over.
        term: u64,
    },
    /// It cannot go on.
    Failed(CopyFailure),
    /// It was closed.
    Closed,
}

/// Why a copy cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CopyFailure {
    /// The log failed: what its files hold since then is not known to this process.
    #[error("translog failed: {0}")]
    Log(String),
    /// The index writer was killed. The copy can be opened again, from its durable commit and its log.
    #[error("index writer failed: {0}")]
    Writer(String),
    /// The engine's files failed.
    #[error("engine failed: {0}")]
    Engine(String),
}

/// Why a copy cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file system.
    #[error("{context}: {source}")]
    Io {
        /// What was tried.
        context: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// There is no copy in the folder.
    #[error("[{0}] holds no copy")]
    NoCopy(std::path::PathBuf),
    /// The copy was never completed: it may be built anew.
    #[error("[{0}] holds a copy that was never completed")]
    Incomplete(std::path::PathBuf),
    /// Another copy lies in the folder.
    #[error("[{dir}] holds allocation [{found}]")]
    Foreign {
        /// Folder.
        dir: std::path::PathBuf,
        /// What its `copy.json` says.
        found: AllocationId,
    },
    /// The copy's history is not the shard's: it must be built anew from another copy.
    #[error("history of the copy is [{found}], the shard's is [{wanted}]")]
    History {
        /// Of the commit.
        found: uuid::Uuid,
        /// Of the cluster state.
        wanted: uuid::Uuid,
    },
    /// The log ends before the commit.
    #[error("translog ends at {log:?}, the durable commit at {commit:?}")]
    LogBehindCommit {
        /// Last operation of the log.
        log: Option<u64>,
        /// Last operation of the commit.
        commit: Option<u64>,
    },
    /// The log.
    #[error(transparent)]
    Log(#[from] segmentry_translog::Error),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl OpenError {
    /// True where the file system failed in a way that may go by itself: it says nothing about what lies in the folder.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Io { source, .. } => segmentry_vfs::is_transient(source.kind()),
            Self::Log(error) => error.is_transient(),
            Self::Engine(error) => error.is_transient(),
            Self::NoCopy(_)
            | Self::Incomplete(_)
            | Self::Foreign { .. }
            | Self::History { .. }
            | Self::LogBehindCommit { .. } => false,
        }
    }
}

/// Why a copy did not do what it was asked for (reads, refresh, flush, roles).
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// It is not the primary.
    #[error("copy is not an active primary: {0}")]
    NotPrimary(String),
    /// It has failed or was closed.
    #[error("{0}")]
    Unusable(String),
    /// A wait ended.
    #[error("timed out after {0} ms, waiting for {1}")]
    Timeout(u128, String),
    /// A term that is not above what the copy knows.
    #[error("term {given} is over, the copy knows term {known}")]
    StaleTerm {
        /// Asked for.
        given: u64,
        /// Known.
        known: u64,
    },
    /// Operations that were asked for are gone from the log.
    #[error("operations from {0} are gone from the log")]
    Trimmed(u64),
    /// A search.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The log.
    #[error(transparent)]
    Log(#[from] segmentry_translog::Error),
}

/// How a folder is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// A new, empty copy of a shard that never acknowledged anything. What an earlier, unfinished creation left is removed.
    Create,
    /// A new copy that is to be built from the primary's files. What an earlier, unfinished attempt left is removed.
    Recover,
    /// A complete copy.
    Existing,
}

/// Beginning of an activation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activation {
    /// New term.
    pub term: u64,
    /// The in-sync set, with this copy.
    pub in_sync: BTreeSet<AllocationId>,
}

/// Numbers of one copy.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardStats {
    /// As the admin API answers it.
    pub report: CopyReport,
    /// It is the primary, as it knows itself.
    pub primary: bool,
    /// Of the engine.
    pub engine: segmentry_engine::EngineStats,
    /// Of the log.
    pub log: segmentry_translog::Stats,
    /// Work since it was opened.
    pub counters: CounterValues,
    /// What the indexer waits for, where it waits.
    pub waiting_for: Option<String>,
}

/// What is counted on a copy since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CounterValues {
    /// Documents put.
    pub index_total: u64,
    /// Documents removed.
    pub delete_total: u64,
    /// Writes refused.
    pub index_failed: u64,
    /// Refreshes that changed the searcher.
    pub refresh_total: u64,
    /// Time in them.
    pub refresh_time_ms: u64,
    /// Durable commits.
    pub flush_total: u64,
    /// Time in them.
    pub flush_time_ms: u64,
    /// Searches.
    pub query_total: u64,
    /// Time in them.
    pub query_time_ms: u64,
    /// Documents that could not be indexed and are kept by id and source only.
    pub unindexable_total: u64,
}
