//! Calls between nodes: HTTP/1.1 on the internal port.
//!
//! ```text
//!   Client ──POST path, headers──▶ Server ── refusal? ──▶ Routes (handler) ──▶ answer
//!            authorization            token, cluster uuid,
//!            x-segmentry-cluster      receiver's node id and
//!            x-segmentry-node/boot    boot id, in this order
//!            x-segmentry-to-node/boot
//! ```
//!
//! What holds:
//! - Every call has a deadline. A caller learns *what is known* about the outcome, see [`CallError`]: whether nothing was
//!   done, whether the process that was meant is gone, or whether the outcome is unknown.
//! - A call that names a process (`Peer::boot_id`) is never handled by another process: `TermPerActivation` leans on it.
//! - A handler that has begun is not cut short when its caller goes away.
//! - Paths under [`METADATA`] (Raft, pings, hellos) travel on connections of their own and are served on a runtime of their
//!   own, so that indexing load never delays a heartbeat. All others are served on the data runtime.
//!
//! Modules: [`client`] calls, [`server`] answers, [`error`] says what went wrong, [`identity`] says who speaks.

mod addresses;
mod client;
pub mod error;
pub mod identity;
pub mod server;

pub use client::{ByteStream, Client};
pub use error::{CallError, RemoteError};
pub use identity::{ClusterCell, Identity, Peer, Token};
pub use server::{Caller, Routes, Server};

use segmentry_state::{BootId, NodeId};
use serde::{Deserialize, Serialize};

/// Prefix of the paths that are served on the metadata runtime.
pub const METADATA: &str = "/_meta/";
/// Path that every server answers by itself, with [`Pong`].
pub const PING: &str = "/_meta/ping";

/// Sender's cluster uuid; the name is shared with the admin API.
pub(crate) const CLUSTER: &str = segmentry_settings::admin::CLUSTER_HEADER;
/// Sender's node id, 16 hex digits.
pub(crate) const FROM_NODE: &str = "x-segmentry-node";
/// Sender's boot id.
pub(crate) const FROM_BOOT: &str = "x-segmentry-boot";
/// Sender's name.
pub(crate) const FROM_NAME: &str = "x-segmentry-name";
/// Node id that the sender means.
pub(crate) const TO_NODE: &str = "x-segmentry-to-node";
/// Boot id that the sender means.
pub(crate) const TO_BOOT: &str = "x-segmentry-to-boot";
/// On an answer: the call was refused before any handler saw it, and why.
pub(crate) const REFUSAL: &str = "x-segmentry-refusal";
/// On an answer with `REFUSAL: boot`: the boot id of who answered.
pub(crate) const ANSWERED_BY: &str = "x-segmentry-answered-by";

/// Largest body of a request or an answer that is held in memory, in bytes. A bulk of 100 MB and its framing fit.
pub const MAX_BODY_BYTES: usize = 160 << 20;

/// Answer to a ping.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pong {
    /// Who answered.
    pub node_id: NodeId,
    /// Which process start.
    pub boot_id: BootId,
    /// Its stable name.
    pub name: String,
}

/// A node id as headers and JSON outside Rust carry it.
pub fn format_node_id(id: NodeId) -> String {
    format!("{:016x}", id.0)
}

/// The reverse of [`format_node_id`]; `None` where it is not 1 to 16 hex digits.
pub fn parse_node_id(text: &str) -> Option<NodeId> {
    if text.is_empty() || text.len() > 16 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(text, 16).ok().map(NodeId)
}
