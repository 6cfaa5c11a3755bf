//! Points at which fault tests end the process, as a kill -9 or a lost node would.
//!
//! Asleep unless `SEGMENTRY_FAULTS` names a file. Each line of it is `once POINT` (ends the process there once; the line is
//! taken out first) or `always POINT` (ends it there until the test takes the line out). What a plan does next is derived
//! from facts alone, so a process may end at any of these points.

use std::{
    fs::OpenOptions,
    io::Write,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// Names the file of points.
pub const VARIABLE: &str = "SEGMENTRY_FAULTS";

/// Ends the process if the file of points says so.
pub fn point(name: impl FnOnce() -> String) {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    if let Some(file) = FILE.get_or_init(|| std::env::var_os(VARIABLE).map(Into::into)) {
        let name = name();
        if due(file, &name) {
            tracing::warn!(point = name, "ends here, as the fault test wants");
            std::process::abort();
        }
    }
}

/// A file that cannot be read holds no points: it is written by the test when its time has come.
fn due(file: &Path, name: &str) -> bool {
    let Ok(text) = std::fs::read_to_string(file) else {
        return false;
    };
    let is = |line: &str, kind: &str| line.strip_prefix(kind).is_some_and(|rest| rest.trim() == name);
    if text.lines().any(|line| is(line, "always ")) {
        return note(file, name);
    }
    let Some(at) = text.lines().position(|line| is(line, "once ")) else {
        return false;
    };
    let left: Vec<&str> = text
        .lines()
        .enumerate()
        .filter(|(number, _)| *number != at)
        .map(|(_, line)| line)
        .collect();
    std::fs::write(file, left.join("\n")).is_ok() && note(file, name)
}

/// A fault that cannot be noted would be one that the test does not see: it does not happen.
fn note(file: &Path, name: &str) -> bool {
    let met = OpenOptions::new()
        .create(true)
        .append(true)
        .open(file.with_extension("met"));
    met.and_then(|mut met| writeln!(met, "{name}")).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::due;

    #[test]
    fn a_point_is_due_once_or_always_and_only_by_its_whole_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("points");
        assert!(!due(&file, "Apply:before"), "no file yet");
        std::fs::write(&file, "once Apply:before\nalways Finish:after\nonce Apply:before").unwrap();
        assert!(!due(&file, "Apply"));
        assert!(due(&file, "Finish:after") && due(&file, "Finish:after"));
        assert!(due(&file, "Apply:before") && due(&file, "Apply:before") && !due(&file, "Apply:before"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "always Finish:after");
        let met = std::fs::read_to_string(folder.path().join("points.met")).unwrap();
        assert_eq!(met.lines().count(), 4, "{met}");
    }
}
