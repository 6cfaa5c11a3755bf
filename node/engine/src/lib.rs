//! The search engine of one shard copy: the only room that sees tantivy.
//!
//! ```text
//!   index / delete ──▶ writer (memory) ──refresh──▶ soft meta + files, not synced ──flush──▶ commit.json, synced
//!                                                     │        ▲
//!                                          checkpoint │        │ install (replica of SEGMENT)
//!                                                     ▼        │
//!                                              files and meta of another copy
//! ```
//!
//! - **Refresh is not flush.** A refresh makes what was indexed visible and never syncs. A flush makes the current meta durable:
//!   it syncs the files that the meta names, the directory, and then `meta`'s commit file. The caller has synced the log up
//!   to the commit's `max_seq_no` before. Opening an engine deletes every file that the durable commit does not name.
//! - **A commit is an exact prefix** of the operations that were handed to the engine, and carries a [`CommitPayload`].
//! - **One choke point.** Commits, merges, schema growth and installed checkpoints all go through `files::State::publish`,
//!   which gives each meta a version. Versions and opstamps carry the primary term in their high bits (`meta::next_stamp`).
//! - **The schema grows** at commit boundaries only ([`schema`], `norms`).
//! - A failed sync or publication fails the engine for good; a killed writer fails the writer ([`EngineError::WriterKilled`]).
//!
//! The engine is synchronous; call it on threads that may block. One thread indexes at a time (the writer is behind a lock).
//!
//! Files: `meta` the two forms of a commit; `files` the files and their lives; `directory` what tantivy sees of them; `norms` virtual field norms; `map` memory
//! maps; `writer` indexing and growth; `checkpoint` receiving and installing, `pin` giving; [`schema`], [`analysis`], `view` what
//! searching needs; [`search`] queries and aggregations.

pub mod analysis;
mod checkpoint;
mod directory;
mod engine;
mod error;
mod files;
mod lookup;
mod map;
mod meta;
mod norms;
mod pin;
pub mod schema;
pub mod search;
mod stats;
mod view;
mod writer;

pub use checkpoint::{Checkpoint, FileMeta, FileSink};
pub use engine::{CommitPayload, Engine, EngineConfig};
pub use error::EngineError;
pub use lookup::{DocVersion, StoredDoc};
pub use pin::PinnedCheckpoint;
pub use search::{Hit, PartialResult, SearchError, SearchResult, TotalHits, merge};
pub use stats::{EngineStats, SegmentInfo};
pub use view::View;
pub use writer::OperationRef;
