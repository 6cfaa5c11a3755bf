//! Child processes that never outlive the test process.
//!
//! A test may be killed at any moment, and a static value is never dropped, so the kernel does it: `setpriv --pdeathsig KILL`
//! asks for a signal when the parent dies. For the kernel the parent is the *thread* that forked. A test's thread ends with its
//! test, while the bed is shared by all tests of the process: therefore one thread that never ends forks all children.

use crate::tools;
use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

/// What to run.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Name in messages.
    pub name: String,
    /// Executable.
    pub program: PathBuf,
    /// Arguments.
    pub args: Vec<String>,
    /// Environment; nothing of the test's own environment but `PATH` is passed on.
    pub env: Vec<(String, String)>,
    /// Working folder.
    pub folder: PathBuf,
    /// Standard output and error are appended here.
    pub log: PathBuf,
}

impl Spec {
    /// A command without arguments that logs to `<folder>/<name>.log`.
    pub fn new(name: &str, program: PathBuf, folder: &Path) -> Self {
        Self {
            name: name.to_owned(),
            program,
            args: Vec::new(),
            env: Vec::new(),
            folder: folder.to_owned(),
            log: folder.join(format!("{name}.log")),
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<T: Into<String>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }
}

type Order = (Command, mpsc::Sender<std::io::Result<Child>>);

/// Forks on the thread that never ends.
fn fork(command: Command) -> Result<Child> {
    static FORKER: OnceLock<std::sync::Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    let forker = FORKER.get_or_init(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in orders {
                // The one who asked may be gone; then nobody owns the child, and dropping it here would leave it running.
                if let Err(mpsc::SendError(Ok(mut orphan))) = answer.send(command.spawn()) {
                    let _ = orphan.kill();
                    let _ = orphan.wait();
                }
            }
        });
        std::sync::Mutex::new(sender)
    });
    let (answer, child) = mpsc::channel();
    forker
        .lock()
        .map_err(|_| anyhow!("the forking thread's lock is poisoned"))?
        .send((command, answer))
        .map_err(|_| anyhow!("the forking thread is gone"))?;
    Ok(child.recv()??)
}

/// A running child. Killed (-9) and reaped on drop.
#[derive(Debug)]
pub struct Daemon {
    spec: Spec,
    child: Child,
}

impl Daemon {
    /// Starts it.
    pub fn start(spec: Spec) -> Result<Self> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&spec.log)
            .with_context(|| format!("open {}", spec.log.display()))?;
        // setpriv replaces itself by the program, so the child's pid is the program's.
        let mut command = Command::new(tools::on_path("setpriv")?);
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(&spec.program)
            .args(&spec.args)
            .env_clear()
            .env(
                "PATH",
                std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into()),
            )
            .envs(spec.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&spec.folder)
            .stdin(Stdio::null())
            .stderr(log.try_clone()?)
            .stdout(log);
        let child =
            fork(command).with_context(|| format!("start {} ({})", spec.name, spec.program.display()))?;
        Ok(Self { spec, child })
    }

    /// Name in messages.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it logs.
    pub fn log(&self) -> &Path {
        &self.spec.log
    }

    /// Its end, if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(pid(self.child.id())?, signal)?)
    }

    /// Kills it (-9) and waits for its end.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again with the same command, after [`Self::kill`] or its own end.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        *self = Self::start(self.spec.clone())?;
        Ok(())
    }

    /// Waits until `ready` answers true; fails when the deadline passes or the process ends, with the end of its log.
    pub async fn wait_until<F: Future<Output = bool>>(
        &mut self,
        limit: Duration,
        what: &str,
        mut ready: impl FnMut() -> F,
    ) -> Result<()> {
        let started = Instant::now();
        while !ready().await {
            if let Some(status) = self.ended()? {
                bail!(
                    "{} ended ({status}) before {what}; its log ends with\n{}",
                    self.name(),
                    tail(self.log(), 20)
                );
            }
            if started.elapsed() > limit {
                bail!(
                    "{}: no {what} within {limit:?}; its log ends with\n{}",
                    self.name(),
                    tail(self.log(), 20)
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // A process that has ended already answers with an error, which is what is wanted.
        let _ = self.kill();
    }
}

/// A pid of a child, typed.
pub fn pid(raw: u32) -> Result<Pid> {
    i32::try_from(raw)
        .ok()
        .and_then(Pid::from_raw)
        .with_context(|| format!("odd process id {raw}"))
}

/// True while a process with this pid exists (also as a zombie).
pub fn exists(raw: u32) -> bool {
    pid(raw).is_ok_and(|pid| test_kill_process(pid).is_ok())
}

/// The last lines of a log.
pub fn tail(log: &Path, lines: usize) -> String {
    let text = fs::read(log).map_or_else(
        |error| format!("({error})"),
        |bytes| String::from_utf8_lossy(&bytes).into_owned(),
    );
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Folders of test processes that were killed before they could remove them are removed by the next one.
///
/// Each folder holds a file `owner` that its process keeps locked; a lock ends with its process.
pub fn temporary_folder(prefix: &str) -> Result<(PathBuf, File)> {
    let base = std::env::temp_dir();
    for entry in fs::read_dir(&base)?.filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with(prefix)
            && let Ok(owner) = File::open(entry.path().join("owner"))
            && owner.try_lock().is_ok()
        {
            // Another process may be sweeping at the same time: who comes second finds nothing.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(&base)?.keep();
    // Taken under a name that the sweep does not look at, so that nobody sees the file before it is locked.
    let unfinished = folder.join("owner.unfinished");
    let owner = File::create(&unfinished)?;
    owner.lock()?;
    fs::rename(unfinished, folder.join("owner"))?;
    Ok((folder, owner))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn sleeper(folder: &Path) -> Daemon {
        Daemon::start(Spec::new("sleeper", "/bin/sleep".into(), folder).args(["600"])).unwrap()
    }

    #[test]
    fn a_child_survives_the_thread_that_asked_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let mut child = std::thread::spawn(move || sleeper(&path)).join().unwrap();
        // If the asking thread had been its parent, the signal would have been sent before join returned.
        std::thread::sleep(Duration::from_millis(50));
        assert!(child.ended().unwrap().is_none());
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let child = sleeper(folder.path());
        let pid = child.pid();
        assert!(exists(pid));
        drop(child);
        assert!(!exists(pid));
    }

    #[tokio::test]
    async fn a_child_that_ends_early_is_reported_with_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let spec =
            Spec::new("failing", "/bin/sh".into(), folder.path()).args(["-c", "echo no such flag; exit 3"]);
        let mut child = Daemon::start(spec).unwrap();
        let error = child
            .wait_until(Duration::from_secs(20), "readiness", || async { false })
            .await
            .unwrap_err();
        assert!(error.to_string().contains("no such flag"), "{error}");
    }

    #[test]
    fn an_abandoned_folder_is_swept_and_a_used_one_is_not() {
        let (abandoned, owner) = temporary_folder("segmentry-sweep-test-").unwrap();
        drop(owner);
        let (used, _owner) = temporary_folder("segmentry-sweep-test-").unwrap();
        assert!(!abandoned.exists());
        let (third, _third_owner) = temporary_folder("segmentry-sweep-test-").unwrap();
        assert!(used.exists());
        fs::remove_dir_all(used).unwrap();
        fs::remove_dir_all(third).unwrap();
    }
}
