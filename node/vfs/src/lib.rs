//! The file system, as a trait: the door through which translog, engine and metadata reach the disk.
//!
//! Two implementors, one contract (`tests/contract.rs` runs the same suite over both):
//!
//! - [`RealFs`]: the operating system's.
//! - [`CrashFs`]: a model in memory which forgets, at [`CrashFs::crash`], whatever was not synced: data *and* directory
//!   entries. It injects faults: a failing sync, a full disk, a short write, the power going at the nth change.
//!
//! # What is durable when
//!
//! Two things are made durable separately, and forgetting the second is the usual mistake:
//!
//! | what | becomes durable by |
//! | --- | --- |
//! | bytes and length of a file | [`VfsFile::sync`] on any handle of it |
//! | an entry: the name of a new, renamed, linked or removed file or directory | [`Vfs::sync_dir`] on the directory that holds the name |
//!
//! Before that, a loss of power keeps any part of the unsynced changes, in any order. The end of the *process* loses
//! nothing: what a write call accepted is the kernel's.
//!
//! A failed sync leaves the unsynced bytes in an unknown state for good: a second sync may answer `Ok` without having
//! written them (Linux marks the pages clean after the first error). A caller that sees one fail must not go on with the file.
//!
//! All calls block. They are made from threads that may block, never from an async worker.

mod crash;
mod durable;
mod real;

pub use crash::{CrashFs, Faults};
pub use durable::{create_dir_durably, write_durably};
pub use real::RealFs;

use std::io;
use std::path::Path;
use std::time::SystemTime;

/// True for an error that may go by itself, and says nothing about what lies on the disk: a full disk, a device that does not answer, no
/// free file handle. False for what is missing, cut or unreadable.
pub fn is_transient(error: io::ErrorKind) -> bool {
    !matches!(
        error,
        io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::UnexpectedEof
    )
}

/// A file system. Errors are those of [`std::io`]: `NotFound`, `AlreadyExists`, `StorageFull` and so on.
pub trait Vfs: Send + Sync + 'static {
    /// A new file for reading and writing; an existing one is truncated. Its directory must exist. The entry is durable
    /// only after [`Vfs::sync_dir`].
    fn create(&self, path: &Path) -> io::Result<Box<dyn VfsFile>>;

    /// An existing file for reading and writing. A handle keeps working after its file was renamed or removed.
    fn open(&self, path: &Path) -> io::Result<Box<dyn VfsFile>>;

    /// The whole file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Names in a directory (files and directories), sorted. Names that are not UTF-8 are an `InvalidData` error.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Whether a file or directory has this name.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Length of a file in bytes.
    fn len(&self, path: &Path) -> io::Result<u64>;

    /// When the content of a file changed last, by the wall clock.
    fn modified(&self, path: &Path) -> io::Result<SystemTime>;

    /// Gives a file or directory another name, atomically; a file of the new name is replaced. Durable after
    /// [`Vfs::sync_dir`] of both directories.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file's name; `NotFound` if there is none. Durable after [`Vfs::sync_dir`].
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// A second name for a file; `AlreadyExists` if it is taken. Durable after [`Vfs::sync_dir`].
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes a directory and those above it, where they are missing. Each new entry is durable only after
    /// [`Vfs::sync_dir`] of the directory above; [`create_dir_durably`] does both.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// Removes a directory with all that is in it; `NotFound` if there is none. Durable after [`Vfs::sync_dir`] of the directory above.
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// Makes the entries of a directory durable (not the content of the files that they name).
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file. Calls may come from several threads; appends do not mix.
#[expect(
    clippy::len_without_is_empty,
    reason = "a call to the disk that can fail, not a container"
)]
pub trait VfsFile: Send + Sync {
    /// Writes all bytes at the end of the file. After an error any prefix of them may be there; [`VfsFile::len`] tells how much.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;

    /// Writes all bytes at an offset; a gap before it reads as zeros. After an error any prefix of them may be there.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Fills the buffer from an offset and answers how many bytes there were: fewer than asked only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Cuts the file, or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes bytes and length durable (`fdatasync`). Never call it again after an error: see the crate's documentation.
    fn sync(&self) -> io::Result<()>;

    /// The path that the file was opened by.
    fn path(&self) -> &Path;
}
