//! What a caller knows after a call that did not succeed.

use segmentry_state::BootId;
use serde::{Deserialize, Serialize};

/// A handler's refusal, in the shape of an OpenSearch error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{kind}: {reason}")]
pub struct RemoteError {
    /// Machine-readable type, `snake_case` (`shard_not_found`, `version_conflict_engine_exception`, …).
    pub kind: String,
    /// For people.
    pub reason: String,
    /// HTTP status, 400..=599.
    pub status: u16,
}

impl RemoteError {
    /// An error of a handler.
    pub fn new(status: u16, kind: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            reason: reason.into(),
            status,
        }
    }

    /// Something that should not happen: status 500.
    pub fn internal(reason: impl Into<String>) -> Self {
        Self::new(500, "internal_error", reason)
    }
}

/// Why a call has no answer. The variants differ in what is known about the outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nobody listens at the address: the process is gone, nothing was done.
    #[error("connection refused by {0}")]
    Refused(String),
    /// No connection came about (name not resolved, no route, no answer to the connect): nothing was done, and whether the
    /// process lives is unknown.
    #[error("cannot reach {address}: {reason}")]
    Unreachable {
        /// Where.
        address: String,
        /// Why.
        reason: String,
    },
    /// Another process than the one that was meant answers at this address (it restarted, or another node has the
    /// address): nothing was done by this call, and the process that was meant is gone.
    #[error("another process answers, boot id {0}")]
    NewBoot(BootId),
    /// The connection was there and then no complete answer: the outcome is unknown.
    #[error("no answer from {address}: {reason}")]
    Silent {
        /// Who.
        address: String,
        /// Why: a timeout, or how the connection broke.
        reason: String,
    },
    /// The other side belongs to another cluster, or has none: nothing was done.
    #[error("the node at {0} belongs to another cluster")]
    Foreign(String),
    /// The other side does not know our token: nothing was done.
    #[error("the node at {0} refuses our token")]
    Unauthorised(String),
    /// The handler answered with an error. What was done is the handler's to say.
    #[error(transparent)]
    Remote(#[from] RemoteError),
}

impl CallError {
    /// True where the other side certainly did nothing for this call, so that sending it again is safe for any operation.
    /// An error that a handler answered is not among them.
    pub fn nothing_done(&self) -> bool {
        match self {
            Self::Refused(_)
            | Self::Unreachable { .. }
            | Self::NewBoot(_)
            | Self::Foreign(_)
            | Self::Unauthorised(_) => true,
            Self::Silent { .. } | Self::Remote(_) => false,
        }
    }

    /// True where the process that was meant is certainly gone.
    pub fn process_gone(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::NewBoot(_))
    }
}

/// Why a call was refused before a handler saw it; the text is the value of the refusal header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Token,
    Cluster,
    Boot,
}

impl Refusal {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Cluster => "cluster",
            Self::Boot => "boot",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Token, Self::Cluster, Self::Boot]
            .into_iter()
            .find(|refusal| refusal.as_str() == text)
    }
}
