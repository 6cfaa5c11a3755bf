//! Sequences that end durable.

use crate::Vfs;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Replaces a whole file so that after a crash either the old or the new content is there, never a mix, and after `Ok`
/// the new one: temporary file beside it, sync, rename, sync of the directory.
///
/// The temporary file is `<name>.tmp`; one left by a crash is overwritten by the next call. Two calls for one path must
/// not run at the same time.
///
/// # Errors
/// The first failing step. Before the rename the old content stays; if only the sync of the directory failed, either
/// may be there after a crash.
pub fn write_durably(fs: &dyn Vfs, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} names no file", path.display()),
        ));
    };
    let mut temporary = OsString::from(name);
    temporary.push(".tmp");
    let temporary = dir.join(temporary);
    let written = (|| {
        let file = fs.create(&temporary)?;
        file.append(bytes)?;
        file.sync()?;
        fs.rename(&temporary, path)
    })();
    if let Err(error) = written {
        // Only tidying: the first error is what the caller must see, and a left file is overwritten next time.
        let _ = fs.remove(&temporary);
        return Err(error);
    }
    fs.sync_dir(dir)
}

/// Makes a directory, and those above it where they are missing, and syncs each directory that holds a new entry.
///
/// The entry of `dir` itself is synced even if it existed: an earlier process may have made it and ended before its sync.
///
/// # Errors
/// The first failing step.
pub fn create_dir_durably(fs: &dyn Vfs, dir: &Path) -> io::Result<()> {
    let mut holders: Vec<PathBuf> = Vec::new();
    let mut here = dir;
    while let Some(above) = here.parent() {
        holders.push(above.to_owned());
        if above.as_os_str().is_empty() || fs.exists(above)? {
            break;
        }
        here = above;
    }
    fs.create_dir_all(dir)?;
    // From the top: an entry is worth nothing while the one above it can vanish.
    for holder in holders.iter().rev() {
        fs.sync_dir(holder)?;
    }
    Ok(())
}
