//! Between copies: the applier, streams, checkpoints, recovery.
//!
//! ```text
//!   cluster state ──watch──▶ Applier ── opens, activates, follows, closes ──▶ ShardCopy
//!                               ├─ primary: one Stream a copy ──/replicate──▶ ShardCopy on another node
//!                               │            └─ FailCopy, AddInSync ──propose──▶ cluster state
//!                               └─ replica: Recovery (files, once), Segments (SEGMENT: checkpoints) ◀──/files── primary
//! ```
//!
//! - [`applier`] and its [`keeper`]s make this node's copies what the cluster state says; [`folders`] is what lies on the disk;
//! - [`stream`] continues the log of one copy, with [`patience`]; [`primary`] owns the streams of one primary;
//! - [`recovery`] builds a copy from the primary's files; [`segments`] follows its checkpoints (SEGMENT); [`source`] is the primary's
//!   side of both;
//! - [`serve`] the routes; [`protocol`] what travels; [`access`] what a coordinator uses.
//!
//! Rules that hold throughout: a primary stops waiting for a copy only after the removal of that copy is applied; every call has a
//! deadline; every task has an owner that joins it; no lock is held over an await.

mod access;
mod applier;
mod folders;
mod keeper;
mod patience;
mod primary;
mod protocol;
mod recovery;
mod segments;
mod serve;
mod source;
mod stream;

pub use access::{Done, NotHere, Refresh, Shards};
pub use applier::Replication;
pub use segmentry_shard as shard;
