//! What callers give to a translog and what it tells them.

use segmentry_settings::Durability;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a translog; all of them may change while it runs, see [`crate::Translog::configure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// `index.translog.durability`. What one batch needs is said with the batch. In [`Durability::Request`] every group is
    /// synced all the same, so that a change to it syncs at once what async batches left, and none that was judged under
    /// async and comes just after the change waits for the interval.
    pub durability: Durability,
    /// `index.translog.sync_interval`: longest time that a written batch stays unsynced.
    pub sync_interval: Duration,
    /// `index.translog.generation_threshold_size`: from this many bytes on a generation is closed and the next one begun.
    pub generation_threshold: u64,
    /// Bytes that may wait for the committer thread before [`crate::Translog::add`] waits. Fixed at opening.
    pub queue_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            durability: Durability::Request,
            sync_interval: Duration::from_secs(5),
            generation_threshold: 64 << 20,
            queue_bytes: 16 << 20,
        }
    }
}

/// Where a batch stands after [`crate::Translog::add`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// `seq_no` of the batch's last operation: written (or persisted) once [`Progress`] is at or past it.
    pub seq_no: u64,
    /// Bytes that the batch takes in the log.
    pub bytes: u64,
}

/// How far the log is. Positions go back only at a term start, which voids operations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// Last `seq_no` handed to the kernel: the end of this process does not lose it.
    pub written: Option<u64>,
    /// Last `seq_no` on stable storage. Never past `written`.
    pub persisted: Option<u64>,
    /// Why the log accepts nothing more: a write or sync failed. For good; the copy must be failed.
    pub failed: Option<String>,
}

/// What was found when a log was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Last operation; also known where its generation was trimmed. `None` if the log never had one, or a term start kept none.
    pub max_seq_no: Option<u64>,
    /// First operation that is still held. `None` if none is.
    pub min_seq_no: Option<u64>,
    /// Term of the last term start; 0 if there was none.
    pub max_term: u64,
    /// Number of operations held (voided ones do not count).
    pub operations: u64,
    /// What was cut from the end.
    pub torn: Option<TornTail>,
}

/// The end of the last generation that a crash left half-written: nothing in it was ever durable, so nothing in it was acknowledged as such.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    /// File that was cut.
    pub file: PathBuf,
    /// Where: the length that it has now.
    pub offset: u64,
    /// How many bytes were cut.
    pub bytes: u64,
    /// What was wrong there.
    pub reason: String,
}

/// Numbers for `_stats` and metrics. Those of work done count from the opening of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Operations held; voided ones do not count.
    pub operations: u64,
    /// Bytes of all generations.
    pub size_bytes: u64,
    /// Operations held from `uncommitted_from` on.
    pub uncommitted_operations: u64,
    /// Their bytes, rounded up to whole runs of the index (at most 16 KiB or one batch too many).
    pub uncommitted_size_bytes: u64,
    /// Time since the last write to the oldest generation, in milliseconds.
    pub earliest_last_modified_age_ms: u64,
    /// Generations held.
    pub generations: u64,
    /// Syncs of log files (`fdatasync`), each of which may have made many batches durable.
    pub syncs: u64,
    /// Syncs of the checkpoint file, none of which an acknowledgement waited for.
    pub checkpoint_syncs: u64,
    /// Groups written: one write call each.
    pub groups: u64,
    /// Batches written.
    pub batches: u64,
    /// Batches in the largest group.
    pub largest_group: u64,
    /// Bytes that wait for the committer thread now.
    pub queued_bytes: u64,
}
