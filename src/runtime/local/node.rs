//! One supervised child process.

use crate::{
    api::valid::Key,
    runtime::{Instance, Problem},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::OpenOptions,
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    process::{Child, Command},
    sync::{broadcast, mpsc},
    task::JoinHandle,
};

/// Between SIGTERM and SIGKILL: a node flushes and closes in it.
const GRACE: Duration = Duration::from_secs(30);
/// A process that ran this long had a good start; its next start does not wait.
const GOOD_START: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What a process is started from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub hash: String,
    pub program: PathBuf,
    pub cluster_name: String,
    pub rest: String,
    pub internal: String,
    pub token_file: PathBuf,
    pub log: PathBuf,
    pub volume: PathBuf,
    pub disk_id: String,
}

#[derive(Debug, Clone)]
struct Now {
    template: Template,
    /// Identity and template hash of the live process.
    process: Option<(String, String)>,
    terminating: bool,
    problem: Option<Problem>,
    /// Ends soon after a start, in a row.
    bad_starts: u32,
}

enum Order {
    /// End this incarnation; a new one follows.
    Stop(String),
    /// End whatever runs, for good.
    End,
}

/// Handle on the task that supervises one node.
pub struct Supervised {
    name: String,
    now: Arc<Mutex<Now>>,
    orders: mpsc::UnboundedSender<Order>,
    task: JoinHandle<()>,
}

fn lock(now: &Mutex<Now>) -> MutexGuard<'_, Now> {
    // each change is one assignment; a panic elsewhere leaves the value whole
    now.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Supervised {
    pub fn start(name: String, template: Template, key: Key, changed: broadcast::Sender<Key>) -> Self {
        let now = Now {
            template,
            process: None,
            terminating: false,
            problem: None,
            bad_starts: 0,
        };
        let now = Arc::new(Mutex::new(now));
        let (orders, queue) = mpsc::unbounded_channel();
        let supervisor = Supervisor {
            name: name.clone(),
            now: now.clone(),
            key,
            changed,
        };
        let task = tokio::spawn(supervisor.run(queue));
        Self {
            name,
            now,
            orders,
            task,
        }
    }

    /// The next process is started from this.
    pub fn apply(&self, template: Template) {
        lock(&self.now).template = template;
    }

    pub fn instance(&self) -> Instance {
        let now = lock(&self.now).clone();
        let running = now.process.is_some();
        let (instance_id, template_hash) = now.process.unzip();
        Instance {
            name: self.name.clone(),
            instance_id: instance_id.unwrap_or_else(|| "none".to_owned()),
            resource_version: None,
            template_hash: Some(template_hash.unwrap_or(now.template.hash)),
            running,
            terminating: now.terminating,
            disk_id: Some(now.template.disk_id),
            address: Some(now.template.internal),
            problem: now.problem,
            broken: !running && now.bad_starts >= 2,
        }
    }

    /// False if that incarnation does not run any more.
    pub fn stop(&self, instance_id: &str) -> bool {
        let mut now = lock(&self.now);
        let same = now.process.as_ref().is_some_and(|(id, _)| id == instance_id);
        if same {
            now.terminating = true;
            // a closed queue means that the task has ended, and with it the process
            return self.orders.send(Order::Stop(instance_id.to_owned())).is_ok();
        }
        false
    }

    pub async fn end(self) {
        if self.orders.send(Order::End).is_ok()
            && let Err(error) = self.task.await
        {
            tracing::warn!(node = self.name, %error, "supervisor ended unexpectedly");
        }
    }
}

struct Supervisor {
    name: String,
    now: Arc<Mutex<Now>>,
    key: Key,
    changed: broadcast::Sender<Key>,
}

impl Supervisor {
    async fn run(self, mut orders: mpsc::UnboundedReceiver<Order>) {
        loop {
            let template = lock(&self.now).template.clone();
            match self.spawn(&template) {
                Ok(child) => {
                    if self.watch(child, &template, &mut orders).await {
                        return;
                    }
                }
                Err(error) => {
                    let message = format!("{}: {error}", template.program.display());
                    self.note(
                        Some(Problem {
                            reason: "StartError".to_owned(),
                            message,
                        }),
                        true,
                    );
                }
            }
            let pause = match lock(&self.now).bad_starts {
                0 => Duration::ZERO,
                n => Duration::from_millis(100)
                    .saturating_mul(1 << n.min(6))
                    .min(LONGEST_PAUSE),
            };
            let wait = tokio::time::sleep(pause);
            tokio::pin!(wait);
            loop {
                tokio::select! {
                    () = &mut wait => break,
                    order = orders.recv() => match order {
                        // nothing runs: the next start is what it asked for
                        Some(Order::Stop(_)) => {}
                        Some(Order::End) | None => return,
                    }
                }
            }
        }
    }

    fn spawn(&self, template: &Template) -> std::io::Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(&template.log)?;
        Command::new(&template.program)
            .args([
                "node",
                "--name",
                &self.name,
                "--cluster-name",
                &template.cluster_name,
            ])
            .args([
                "--rest",
                &template.rest,
                "--transport",
                &template.internal,
                "--advertise",
                &template.internal,
            ])
            .args(["--disk-id", &template.disk_id, "--end-with-parent"])
            .arg("--data")
            .arg(&template.volume)
            .arg("--token-file")
            .arg(&template.token_file)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C reaches the whole foreground group: only `up` shall act on it, and end the nodes in order
            .process_group(0)
            .spawn()
    }

    /// Until the process has ended. True if the node is not to be started again.
    async fn watch(
        &self,
        mut child: Child,
        template: &Template,
        orders: &mut mpsc::UnboundedReceiver<Order>,
    ) -> bool {
        let began = Instant::now();
        let pid = child.id().unwrap_or_default();
        let id = format!("{pid}-{}", start_time(pid).unwrap_or_default());
        {
            let mut now = lock(&self.now);
            now.process = Some((id.clone(), template.hash.clone()));
            now.terminating = false;
        }
        self.tell();
        let mut ending = false;
        let mut kill_at: Option<tokio::time::Instant> = None;
        let status = loop {
            let grace = async {
                match kill_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                status = child.wait() => break status,
                () = grace => {
                    tracing::warn!(node = self.name, "still running at the end of its grace period, killed");
                    // ends it, or it has ended: the wait above tells
                    let _ = child.start_kill();
                    kill_at = None;
                }
                order = orders.recv() => {
                    match order {
                        Some(Order::Stop(wanted)) if wanted != id => continue,
                        Some(Order::Stop(_)) => {}
                        Some(Order::End) | None => ending = true,
                    }
                    if kill_at.is_none() {
                        // the child is not reaped before `wait` returns, so the pid is still its own
                        if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw) {
                            let _ = kill_process(pid, Signal::TERM);
                        }
                        kill_at = Some(tokio::time::Instant::now() + GRACE);
                        lock(&self.now).terminating = true;
                        self.tell();
                    }
                }
            }
        };
        let asked = lock(&self.now).terminating;
        let problem = match status {
            Ok(status) if asked && status.success() => None,
            Ok(status) => Some(describe(status, template)),
            Err(error) => Some(Problem {
                reason: "WaitError".to_owned(),
                message: error.to_string(),
            }),
        };
        if let Some(problem) = &problem {
            tracing::warn!(node = self.name, %problem, "node ended");
        }
        self.note(problem, !asked && began.elapsed() < GOOD_START);
        ending
    }

    fn note(&self, problem: Option<Problem>, bad_start: bool) {
        {
            let mut now = lock(&self.now);
            now.process = None;
            now.terminating = false;
            now.problem = problem;
            now.bad_starts = if bad_start {
                now.bad_starts.saturating_add(1)
            } else {
                0
            };
        }
        self.tell();
    }

    fn tell(&self) {
        // nobody listens while `up` starts or ends
        let _ = self.changed.send(self.key.clone());
    }
}

/// Why a process ended, with the last line that it printed.
fn describe(status: ExitStatus, template: &Template) -> Problem {
    let last = std::fs::read_to_string(&template.log)
        .ok()
        .and_then(|text| {
            text.lines()
                .rev()
                .find(|line| !line.trim().is_empty())
                .map(str::to_owned)
        })
        .unwrap_or_default();
    match (status.code(), status.signal()) {
        (Some(code), _) => Problem {
            reason: "Exited".to_owned(),
            message: format!("exit code {code}: {last}"),
        },
        (None, signal) => Problem {
            reason: "Killed".to_owned(),
            message: format!(
                "by signal {}",
                signal.map_or_else(|| "?".to_owned(), |signal| signal.to_string())
            ),
        },
    }
}

/// Field 22 of `/proc/<pid>/stat`: ticks since the machine's boot, so that a reused pid is told apart.
fn start_time(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // the name in parentheses may hold spaces
    let after_name = stat.rsplit_once(')')?.1;
    after_name.split_whitespace().nth(19).map(str::to_owned)
}
