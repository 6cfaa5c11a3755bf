//! The storage node: wiring, configuration, `run()`.
//!
//! ```text
//!   metadata runtime: internal port (accept, Raft, pings, hellos, admin), Raft, manager, applier
//!   data runtime:     REST, internal port (documents, searches, replication), coordinator
//!   threads:          translog committers, engines (owned by their rooms)
//! ```
//!
//! A start: lock the data directory → listen → open Raft → say hello to the members that the disk knows → wait until this
//! node belongs to a cluster → join it → open the copies that the cluster state lists here → ready. A node on an empty disk
//! waits in the middle of this, and says so, until somebody initialises or adds it.
//!
//! A stop: leave the readiness as it is, take no new connections, let running requests end, flush and close the copies, tell
//! the cluster, stop Raft.
//!
//! [`config`], [`disk`] (whose data it is), [`links`] (Raft's transport, pings, hellos), [`admin`] (what it says of itself),
//! [`node`] (start and stop).

pub mod admin;
pub mod config;
pub mod disk;
mod follow;
pub mod links;
pub mod node;

pub use config::NodeConfig;
pub use node::{Node, StartError};

use std::future::Future;

/// Runs a node until `shutdown` resolves or the node has to end by itself, then stops it in order.
///
/// # Errors
/// See [`StartError`]; or the node ended by itself because it cannot go on (its metadata failed).
pub async fn run(config: NodeConfig, shutdown: impl Future<Output = ()> + Send) -> anyhow::Result<()> {
    let node = Node::start(config).await?;
    let ended = tokio::select! {
        () = shutdown => Ok(()),
        why = node.ended() => why,
    };
    node.stop().await;
    Ok(ended?)
}
