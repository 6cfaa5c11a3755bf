//! Write-ahead log of one copy of a shard: what was acknowledged is in it, until a durable commit of the index holds it.
//!
//! ```text
//!   add(batch) ─▶ queue (bounded in bytes) ─▶ committer thread ─▶ translog-<n>.tlog ─▶ fdatasync ─▶ Progress
//!                                                 │ one write a group, one sync if a batch asks
//!                                                 └─▶ translog.ckp, off the acknowledgement path
//! ```
//!
//! What holds:
//! - `AckedIsDurable`: `Progress.persisted` is at or past an operation only once its frame, its file's header and its file's
//!   name are on stable storage. `Progress.written`: the kernel has it, so the end of the process does not lose it.
//! - A torn end is told from damage: what any valid frame or checkpoint says was durable must be whole, else the log refuses to
//!   open and names the place; what lies after it was never acknowledged as persisted, and is cut.
//! - Operations are contiguous in `seq_no`. A term start voids what earlier terms wrote above its `keep_to`.
//! - A failed write or sync fails the log for good; nothing is retried.
//! - Generations go as a whole, oldest first, when every operation in them is below what the caller still needs.
//!
//! Modules: [`format`](mod@format) bytes of files; [`operation`] bytes of records; `scan` opening; `index` where operations
//! are; `queue` and `committer` the writing thread and what it is handed; `read` reading back; `log` the door.

mod committer;
mod config;
mod error;
mod format;
mod index;
mod log;
mod operation;
mod queue;
mod read;
mod scan;

pub use config::{Config, Opened, Position, Progress, Stats, TornTail};
pub use error::Error;
pub use log::{Pin, Translog};
pub use operation::{Operation, OperationKind, decode, encode};

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
