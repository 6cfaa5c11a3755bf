//! One copy of a shard: write path, versions, sequence numbers, checkpoints; when to refresh and flush. No network.
//!
//! ```text
//!   write ─▶ parse (CPU pool) ─▶ actor ── versions, seq_no ──▶ log ──────────▶ positions ─┐
//!                                  │                    └────▶ tail ─▶ streams to copies ─┴▶ tracker ─▶ global checkpoint
//!                                  └─▶ queue ─▶ indexer (up to the global checkpoint) ─▶ engine ─▶ searcher      │
//!                                                                                  acknowledgement ◀────────────┘
//!   batch of a primary ─▶ actor ─▶ log, queue (DOCUMENT)
//! ```
//!
//! Two threads a copy. The *actor* ([`actor`]) owns the order of operations: it resolves versions, gives sequence numbers, hands
//! batches to the log, or checks and appends those of a primary. The *indexer* ([`indexer`]) owns the engine's writer, so that a
//! commit never stops an acknowledgement.
//!
//! Invariants, as `architecture.md` names them:
//! - `ContiguousLog`: the last seq_no of the log is the local checkpoint. A replica takes only what continues its log.
//! - `SegmentsBelowGlobalCheckpoint`: the indexer takes an operation only once the global checkpoint that the copy knows is at or
//!   past it. So rolling back is a cut of the log.
//! - `AckedIsDurable`: a write is answered once the global checkpoint is at or past it, see [`tracker`].
//! - `OneWriter`: a batch of a term that is below the one that the copy knows is refused.
//! - `TrimAfterFlush`: the log is trimmed up to the copy's own durable commit, never further.
//!
//! **The queue is a cache, the log is the truth.** What the queue to the indexer does not hold (after opening, after a promotion,
//! on a replica that fell behind) the indexer reads from the log.
//!
//! Files: [`types`] what goes in and out; [`copy`] roles and ends of a copy, [`open`] what lies in its folder; [`write`] the caller's side of a write; [`actor`],
//! [`resolve`], [`update`], [`versions`] order and versions, [`role`] activation and stepping down; [`tail`], [`follow`] what streams and replicas need; [`tracker`] positions;
//! [`queue`], [`indexer`], [`feed`] indexing; [`read`] gets and searches; [`report`] numbers; [`budget`] memory; [`record`] `copy.json`.

mod actor;
mod budget;
mod copy;
mod feed;
mod follow;
mod indexer;
mod open;
mod queue;
mod read;
mod record;
mod report;
mod resolve;
mod resources;
mod role;
mod tail;
mod tracker;
mod types;
mod update;
mod versions;
mod write;

pub use budget::{Budget, Permit};
pub use copy::ShardCopy;
pub use record::{COPY_FILE, CopyRecord, kernel_boot_id};
pub use resources::{GrowMapping, NodeResources, ShardConfig};
pub use types::{
    Activation, AppendRefusal, Batch, CopyError, CopyFailure, CounterValues, GetResult, LogState, OpenError,
    OpenMode, Outcome, Positions, Role, ShardStats, TermStart, WriteError, WriteKind, WriteOp, WriteResult,
};
