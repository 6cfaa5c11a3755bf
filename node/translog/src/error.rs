//! What can go wrong.

use std::io;
use std::path::{Path, PathBuf};

/// Errors of a translog.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Bytes that were durable are bad or missing. The copy must be recovered from another one.
    #[error("translog is corrupt: {} at offset {offset}: {reason}", file.display())]
    Corrupt {
        /// File that is bad.
        file: PathBuf,
        /// Where in it, in bytes.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// The log of another shard lies here, or one of a format that this program does not read.
    #[error("{} is not this shard's translog: {reason}", file.display())]
    Foreign {
        /// File that says so.
        file: PathBuf,
        /// What is different.
        reason: String,
    },
    /// [`crate::Translog::create`] found a translog already.
    #[error("{} holds a translog already", dir.display())]
    Exists {
        /// The folder.
        dir: PathBuf,
    },
    /// A call to the file system failed while opening, creating or reading. (While writing it is [`Error::Failed`].)
    #[error("{what} {}: {message}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// The operating system's kind of error.
        kind: io::ErrorKind,
        /// The operating system's text.
        message: String,
    },
    /// A write or a sync failed earlier. The log stays failed: what the disk holds since then is not known.
    #[error("translog failed and accepts nothing more: {0}")]
    Failed(String),
    /// The log was closed.
    #[error("translog is closed")]
    Closed,
    /// A batch does not continue the log.
    #[error("batch starts at seq_no {given}, the log continues at {expected}")]
    Gap {
        /// First `seq_no` of the batch.
        given: u64,
        /// What would have been accepted.
        expected: u64,
    },
    /// A term start that is not above the term in force.
    #[error("term {given} is not above the term {current} that is in force")]
    StaleTerm {
        /// Term of the call.
        given: u64,
        /// Term in force.
        current: u64,
    },
    /// An operation of a term that was not started in this log.
    #[error("operation {seq_no} is of term {given}, and term {current} is in force: start its term first")]
    TermNotStarted {
        /// The operation.
        seq_no: u64,
        /// Its term.
        given: u64,
        /// Term in force.
        current: u64,
    },
    /// Operations that were asked for are gone from the log.
    #[error("operations from {asked} were asked for, the log holds them from {oldest}")]
    Trimmed {
        /// First `seq_no` that was asked for.
        asked: u64,
        /// First `seq_no` that is held, or the next one if none is held.
        oldest: u64,
    },
    /// A caller's mistake.
    #[error("{0}")]
    Invalid(String),
    /// Bytes that are no batch.
    #[error("record at byte {offset} of a batch {reason}")]
    Malformed {
        /// Start of the record in the batch.
        offset: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl Error {
    /// True where the file system failed in a way that may go by itself.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Io { kind, .. } if segmentry_vfs::is_transient(*kind))
    }

    pub(crate) fn io<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + 'a {
        move |error| Self::Io {
            what,
            path: path.to_owned(),
            kind: error.kind(),
            message: error.to_string(),
        }
    }

    pub(crate) fn corrupt(file: &Path, offset: u64, reason: impl Into<String>) -> Self {
        Self::Corrupt {
            file: file.to_owned(),
            offset,
            reason: reason.into(),
        }
    }
}
