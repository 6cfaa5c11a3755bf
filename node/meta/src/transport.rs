//! What Raft needs of the network: opaque bytes to a peer and back.

use crate::MetaFuture;
use bytes::Bytes;
use segmentry_state::NodeId;
use std::time::Duration;

/// Whom to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerAddr {
    /// Who must answer; a call that reaches another node is refused by [`crate::RaftMeta::handle`].
    pub node_id: NodeId,
    /// `host:port` of its internal port.
    pub address: String,
}

/// A call without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// Nobody listens, or the call was refused before it was handled.
    #[error("not sent: {0}")]
    NotSent(String),
    /// It may have been handled.
    #[error("no answer: {0}")]
    NoAnswer(String),
}

/// Carries calls between the metadata stores of two nodes.
pub trait RaftTransport: Send + Sync + 'static {
    /// Sends `body` to `path` at `peer` and answers what the peer's [`crate::RaftMeta::handle`] returned, within `deadline`.
    fn call<'a>(
        &'a self,
        peer: &'a PeerAddr,
        path: &'static str,
        body: Bytes,
        deadline: Duration,
    ) -> MetaFuture<'a, Result<Bytes, TransportError>>;
}
