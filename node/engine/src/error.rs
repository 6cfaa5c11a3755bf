//! What can go wrong in the engine.

use std::{io, path::PathBuf};
use tantivy::{TantivyError, directory::error::OpenReadError};

/// An engine operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The search library.
    #[error("search library: {0}")]
    Tantivy(#[from] TantivyError),
    /// The file system.
    #[error("{context}: {source}")]
    Io {
        /// What was tried, with the path.
        context: String,
        /// Why it failed.
        source: io::Error,
    },
    /// Nothing was ever committed here.
    #[error("no commit in [{0}]")]
    NoCommit(PathBuf),
    /// [`crate::Engine::create`] where a commit is already.
    #[error("[{0}] already holds a commit")]
    AlreadyExists(PathBuf),
    /// A file is not what the commit says. The copy has to be rebuilt from another one.
    #[error("file [{file}] is corrupt: {reason}")]
    Corrupt {
        /// Name.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// A write without [`crate::Engine::open_writer`].
    #[error("no writer is open")]
    NoWriter,
    /// A writer is open where none may be.
    #[error("a writer is open")]
    WriterOpen,
    /// The writer holds operations that no commit has.
    #[error("the writer holds {0} operations that are not committed")]
    Uncommitted(u64),
    /// An indexing thread panicked or failed. What was not committed is lost from memory; go on with a new term, from the
    /// commit and the log.
    #[error("the writer was killed: {0}")]
    WriterKilled(String),
    /// A sync or a publication failed: the state on disk is unknown, the copy must not go on.
    #[error("the engine failed: {0}")]
    Failed(String),
    /// A writer for a term that is older than what is here.
    #[error("term [{given}] is not above the term [{known}] of what is here")]
    StaleTerm {
        /// Asked for.
        given: u64,
        /// Known.
        known: u64,
    },
    /// A checkpoint that is older than the installed one.
    #[error("checkpoint [{given}] is older than the installed one [{known}]")]
    StaleCheckpoint {
        /// Version of the checkpoint.
        given: u64,
        /// Installed version.
        known: u64,
    },
    /// A checkpoint that contradicts itself.
    #[error("invalid checkpoint: {0}")]
    InvalidCheckpoint(String),
    /// A file of a checkpoint has not been received.
    #[error("file [{0}] of the checkpoint is missing")]
    MissingFile(String),
    /// Received bytes differ from what the checkpoint says.
    #[error(
        "received file [{file}] differs: length {len} and crc {crc:08x}, expected {expected_len} and {expected_crc:08x}"
    )]
    Received {
        /// Name.
        file: String,
        /// Bytes received.
        len: u64,
        /// Their crc32.
        crc: u32,
        /// Expected length.
        expected_len: u64,
        /// Expected crc32.
        expected_crc: u32,
    },
    /// The pin was taken away, because it held files for too long.
    #[error("the pin of this checkpoint has ended")]
    PinEnded,
}

impl EngineError {
    /// True where the file system failed in a way that may go by itself.
    pub fn is_transient(&self) -> bool {
        let kind = match self {
            Self::Io { source, .. } => source.kind(),
            Self::Tantivy(TantivyError::IoError(source)) => source.kind(),
            Self::Tantivy(TantivyError::OpenReadError(OpenReadError::IoError { io_error, .. })) => {
                io_error.kind()
            }
            _ => return false,
        };
        segmentry_vfs::is_transient(kind)
    }

    pub(crate) fn io(context: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let context = context.into();
        move |source| Self::Io { context, source }
    }
}
