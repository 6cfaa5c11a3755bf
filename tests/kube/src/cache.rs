//! The folder where whatever is built or fetched for the bed is kept between runs.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// `$SEGMENTRY_CACHE`, else `$XDG_CACHE_HOME/segmentry`, else `~/.cache/segmentry`. Created when missing.
pub fn folder() -> Result<PathBuf> {
    let from = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let folder = from("SEGMENTRY_CACHE")
        .or_else(|| from("XDG_CACHE_HOME").map(|base| base.join("segmentry")))
        .or_else(|| from("HOME").map(|home| home.join(".cache/segmentry")))
        .context("neither SEGMENTRY_CACHE nor HOME is set: no folder for the test bed's binaries")?;
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder)
}

/// Held while something is built or fetched, so that test processes that start at once do the work only once.
/// Released on drop, also when the process dies.
#[derive(Debug)]
pub struct Lock(File);

/// Waits for the lock `<cache>/<name>.lock`.
pub fn lock(name: &str) -> Result<Lock> {
    let path = folder()?.join(format!("{name}.lock"));
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    file.lock().with_context(|| format!("lock {}", path.display()))?;
    Ok(Lock(file))
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file would do as well; nothing depends on the answer.
        let _ = self.0.unlock();
    }
}

/// Moves a finished file to its place: a reader sees the whole file or none.
pub fn publish(finished: &Path, place: &Path) -> Result<()> {
    fs::rename(finished, place).with_context(|| format!("move {} to {}", finished.display(), place.display()))
}
