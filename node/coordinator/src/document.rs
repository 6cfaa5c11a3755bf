//! Operations on documents and their results, as REST hands them in and as they travel between nodes.

use crate::ApiError;
use bytes::Bytes;
use segmentry_state::ShardId;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a write does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteKind {
    /// Puts the document, over an older one.
    Index,
    /// Puts the document, refused where one of this id exists.
    Create,
    /// Merges a partial document into the one that exists. The primary does it in the order of its operations, so no other
    /// write comes between reading and writing: there is no conflict that `retry_on_conflict` would have to win.
    Update,
    /// Removes the document.
    Delete,
}

impl WriteKind {
    /// Its name in a bulk request and in its answer.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// When the effect of a write can be seen by a search before it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Refresh {
    /// At the next periodic refresh, after the answer.
    #[default]
    No,
    /// A refresh is made at once, on every in-sync copy.
    Now,
    /// The answer waits until every in-sync copy shows it.
    WaitFor,
}

/// One write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteRequest {
    /// Index name, exact.
    pub index: Arc<str>,
    /// What to do.
    pub kind: WriteKind,
    /// Document id; none makes one.
    pub id: Option<Arc<str>>,
    /// Routing value; none routes by id.
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

impl Outcome {
    /// OpenSearch's `result`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Deleted => "deleted",
            Self::NotFound => "not_found",
            Self::Noop => "noop",
        }
    }

    /// HTTP status of a single operation or an item.
    pub const fn status(self) -> u16 {
        match self {
            Self::Created => 201,
            Self::NotFound => 404,
            Self::Updated | Self::Deleted | Self::Noop => 200,
        }
    }
}

/// Copies that a write concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CopyCount {
    /// Wanted copies: one primary and the index's replicas.
    pub total: u32,
    /// In-sync copies that hold it.
    pub successful: u32,
}

/// A write that was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// What it did.
    pub outcome: Outcome,
    /// `_version`.
    pub version: u64,
    /// `_seq_no`.
    pub seq_no: u64,
    /// `_primary_term`.
    pub term: u64,
    /// `_shards`.
    pub copies: CopyCount,
    /// A refresh was made for it.
    pub forced_refresh: bool,
}

/// One item of a bulk answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteItem {
    /// Index name.
    pub index: Arc<str>,
    /// What was asked.
    pub kind: WriteKind,
    /// Id; none only where one could not be made because the item was refused first.
    pub id: Option<Arc<str>>,
    /// How it went.
    pub result: Result<Written, ApiError>,
}

/// Options of a bulk, or of one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    /// See [`Refresh`].
    pub refresh: Refresh,
    /// How long primaries are waited for.
    pub timeout: std::time::Duration,
    /// How many copies of a shard must be started before a write begins.
    pub wait_for_active_shards: ActiveShards,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            refresh: Refresh::No,
            timeout: std::time::Duration::from_secs(60),
            wait_for_active_shards: ActiveShards::Count(1),
        }
    }
}

/// `wait_for_active_shards`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActiveShards {
    /// So many copies of each shard, the primary among them.
    Count(u32),
    /// Every wanted copy.
    All,
}

impl ActiveShards {
    /// As a number, for an index with so many replicas.
    pub const fn wanted(self, replicas: u32) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::All => replicas + 1,
        }
    }
}

/// One read by id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetRequest {
    /// Index name, exact.
    pub index: String,
    /// Document id.
    pub id: String,
    /// Routing value; none routes by id.
    pub routing: Option<String>,
    /// Sees writes that no search sees yet.
    pub realtime: bool,
    /// Refreshes the shard before.
    pub refresh: bool,
}

/// A document that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// `_version`.
    pub version: u64,
    /// `_seq_no`.
    pub seq_no: u64,
    /// `_primary_term`.
    pub term: u64,
    /// `_routing`.
    pub routing: Option<String>,
    /// `_source`, as it was sent.
    pub source: Bytes,
}

/// One operation as the primary's node gets it; ids and routing are fixed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardOp {
    /// What to do.
    pub kind: WriteKind,
    /// Document id.
    pub id: Arc<str>,
    /// The id was made by the coordinator and this is the first attempt: no document of this id can exist.
    pub fresh_id: bool,
    /// Routing value.
    pub routing: Option<Arc<str>>,
    /// Expected `_seq_no`.
    pub if_seq_no: Option<u64>,
    /// Expected `_primary_term`.
    pub if_primary_term: Option<u64>,
    /// The document, or the body of an update; empty for a delete.
    pub source: Bytes,
}

impl ShardOp {
    /// True where doing it twice leaves what doing it once leaves: no condition that the first attempt changes.
    pub(crate) fn repeatable(&self) -> bool {
        self.if_seq_no.is_none() && matches!(self.kind, WriteKind::Index | WriteKind::Delete)
    }
}

/// Operations for one shard, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardWrite {
    /// Which shard.
    pub shard: ShardId,
    /// When it can be seen.
    pub refresh: Refresh,
    /// How long an acknowledgement is waited for, milliseconds.
    pub timeout_ms: u64,
    /// Operations, in order.
    pub ops: Vec<ShardOp>,
}

/// Their results, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardWritten {
    /// One for each operation.
    pub results: Vec<Result<Written, ApiError>>,
}

/// Reads by id for one shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardGet {
    /// Which shard.
    pub shard: ShardId,
    /// Document ids.
    pub ids: Vec<String>,
    /// Sees writes that no search sees yet.
    pub realtime: bool,
    /// Refreshes the copy before.
    pub refresh: bool,
}
