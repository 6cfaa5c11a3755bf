//! `copy.json`: which copy lies in a folder, and how its last process ended.

use crate::OpenError;
use segmentry_state::AllocationId;
use segmentry_vfs::{Vfs, write_durably};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Name of the file.
pub const COPY_FILE: &str = "copy.json";
const FORMAT: u32 = 1;

/// Content of `copy.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyRecord {
    /// 1.
    pub format: u32,
    /// Incarnation of the copy.
    pub allocation: AllocationId,
    /// The last process ended after a flush: nothing was unsynced.
    pub clean: bool,
    /// `/proc/sys/kernel/random/boot_id` of the machine that wrote last.
    pub kernel_boot_id: String,
    /// False until the copy has a complete commit, and a log that continues it.
    pub complete: bool,
}

impl CopyRecord {
    /// The record of a folder; none where there is none.
    pub fn read(fs: &dyn Vfs, dir: &Path) -> Result<Option<Self>, OpenError> {
        let path = dir.join(COPY_FILE);
        let bytes = match fs.read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(io(format!("read [{}]", path.display()))(source)),
        };
        let broken = |error: String| OpenError::Io {
            context: format!("read [{}]", path.display()),
            source: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
        };
        let record: Self = serde_json::from_slice(&bytes).map_err(|error| broken(error.to_string()))?;
        if record.format != FORMAT {
            return Err(broken(format!(
                "its format is {}, this program reads {FORMAT}",
                record.format
            )));
        }
        Ok(Some(record))
    }

    pub(crate) fn new(allocation: AllocationId, clean: bool, kernel_boot_id: &str, complete: bool) -> Self {
        Self {
            format: FORMAT,
            allocation,
            clean,
            kernel_boot_id: kernel_boot_id.to_owned(),
            complete,
        }
    }

    pub(crate) fn write(&self, fs: &dyn Vfs, dir: &Path) -> Result<(), OpenError> {
        let path = dir.join(COPY_FILE);
        let bytes = serde_json::to_vec(self).map_err(|error| io("encode copy.json")(error.into()))?;
        write_durably(fs, &path, &bytes).map_err(io(format!("write [{}]", path.display())))
    }
}

pub(crate) fn io(context: impl Into<String>) -> impl FnOnce(std::io::Error) -> OpenError {
    let context = context.into();
    move |source| OpenError::Io { context, source }
}

/// Identity of the running kernel; empty where the machine does not tell (then every unclean end counts as a loss of power).
pub fn kernel_boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}
