//! The life of one pod: scheduled, started, probed, restarted, ended.

use super::container;
use super::probe::{Plan, Verdict};
use super::status::{Ended, Report, State, now};
use super::{Shared, locked, scheduler};
use crate::daemon::Daemon;
use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Preconditions};
use rustix::process::Signal;
use std::fs;
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// A kubelet waits 10 s, 20 s, ... up to 5 min between restarts; the bed keeps the shape and not the length.
const FIRST_BACK_OFF: Duration = Duration::from_millis(500);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(8);
/// A container that ran this long starts over with the shortest back-off.
const GOOD_RUN: Duration = Duration::from_secs(20);
/// How often things without a notification are looked at: claims, images, the end of a process.
const LOOK: Duration = Duration::from_millis(100);

type Changes = watch::Receiver<Option<Arc<Pod>>>;

/// Runs until the pod is deleted.
pub(super) async fn run(shared: Arc<Shared>, changes: Changes, pid: Arc<Mutex<Option<u32>>>) {
    let Some(pod) = changes.borrow().clone() else {
        return;
    };
    let (namespace, name, uid) = (
        pod.namespace().unwrap_or_default(),
        pod.name_any(),
        pod.uid().unwrap_or_default(),
    );
    let mut life = Life {
        shared: &shared,
        changes,
        pid,
        report: Report::new(),
        back_off: FIRST_BACK_OFF,
    };
    while let Err(error) = life.live(&pod).await {
        // The API server was restarted by a test, or the pod is one that the stand-in cannot run: said, then tried again.
        eprintln!("test bed: pod {namespace}/{name}: {error:#}");
        if life.is_deleted() {
            break;
        }
        sleep(Duration::from_secs(1)).await;
    }
    if let Err(error) = shared.names.remove(&namespace, &name, &uid) {
        eprintln!("test bed: pod {namespace}/{name}: {error:#}");
    }
}

struct Life<'a> {
    shared: &'a Shared,
    changes: Changes,
    pid: Arc<Mutex<Option<u32>>>,
    report: Report,
    back_off: Duration,
}

/// Why a running container is no longer waited for.
enum Turn {
    Ended(ExitStatus),
    /// Told to stop; `None` when the object is gone altogether (a forced deletion).
    Stop(Option<Duration>),
    Unhealthy(&'static str),
}

impl Life<'_> {
    async fn live(&mut self, pod: &Pod) -> Result<()> {
        let container = Self::only_container(pod)?;
        if !self.schedule(pod, container).await? {
            return Ok(());
        }
        let (namespace, name, uid) = (
            pod.namespace().unwrap_or_default(),
            pod.name_any(),
            pod.uid().unwrap_or_default(),
        );
        let address = match self.report.address {
            Some(address) => address,
            None => self.shared.names.add(
                &namespace,
                &name,
                &uid,
                pod.spec.as_ref().and_then(|spec| spec.subdomain.clone()),
            )?,
        };
        self.report.address = Some(address);
        self.report.started.get_or_insert_with(now);
        let folder = self.shared.folder.join(&namespace).join(format!("{name}-{uid}"));
        fs::create_dir_all(&folder)?;
        let policy = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.restart_policy.as_deref())
            .unwrap_or("Always")
            .to_owned();

        while !self.report.finished {
            let Some(process) = self.create(pod, container, address, &folder).await? else {
                break;
            };
            let Some(ended) = self.watch(pod, container, address, process).await? else {
                break;
            };
            self.report.finished = policy == "Never" || (policy == "OnFailure" && ended.exit_code == 0);
            self.report.state = State::Terminated(ended.clone());
            self.report.last = Some(ended);
            self.send(pod, container).await;
            if !self.report.finished {
                self.wait_for_restart(pod, container).await?;
                self.report.restarts += 1;
            }
        }
        // Finished by itself, or deleted before it started: only the deletion is left.
        while !self.is_deleted() {
            if self.grace().is_some() {
                return self.release(pod).await;
            }
            self.changed().await;
        }
        Ok(())
    }

    fn only_container(pod: &Pod) -> Result<&Container> {
        let spec = pod.spec.as_ref().context("a pod without a spec")?;
        ensure!(
            spec.init_containers.iter().flatten().next().is_none(),
            "the stand-in does not run init containers"
        );
        match &spec.containers[..] {
            [only] => Ok(only),
            _ => bail!("the stand-in runs pods of one container"),
        }
    }

    /// True once bound; false if the pod is deleted before.
    async fn schedule(&mut self, pod: &Pod, container: &Container) -> Result<bool> {
        loop {
            let Some(current) = self.changes.borrow().clone() else {
                return Ok(false);
            };
            if current.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) {
                self.report.unschedulable = None;
                return Ok(true);
            }
            if current.metadata.deletion_timestamp.is_some() {
                return Ok(false);
            }
            match scheduler::obstacle(self.shared, &current).await? {
                None => scheduler::bind(self.shared, &current).await?,
                Some(message) => {
                    self.report.unschedulable = Some(message);
                    self.send(pod, container).await;
                }
            }
            self.pause(LOOK).await;
        }
    }

    /// Starts the process; none if the pod is deleted while it cannot be started.
    async fn create(
        &mut self,
        pod: &Pod,
        container: &Container,
        address: IpAddr,
        folder: &std::path::Path,
    ) -> Result<Option<Daemon>> {
        let image = container.image.clone().unwrap_or_default();
        let mut pulls = 0_u32;
        loop {
            if self.is_stopping() {
                return Ok(None);
            }
            let program: Option<PathBuf> = super::locked(&self.shared.images).get(&image).cloned();
            let (reason, message) = match program {
                None => {
                    pulls += 1;
                    let failed = format!("failed to pull and unpack image \"{image}\": not found");
                    if pulls == 1 {
                        ("ErrImagePull", failed)
                    } else {
                        (
                            "ImagePullBackOff",
                            format!("Back-off pulling image \"{image}\": {failed}"),
                        )
                    }
                }
                Some(program) => {
                    match container::command(self.shared, pod, container, &program, address, folder).await {
                        Ok(spec) => match Daemon::start(spec) {
                            Ok(process) => {
                                *locked(&self.pid) = Some(process.pid());
                                return Ok(Some(process));
                            }
                            Err(error) => ("RunContainerError", format!("{error:#}")),
                        },
                        Err(error) => ("CreateContainerConfigError", format!("{error:#}")),
                    }
                }
            };
            self.report.state = State::Waiting { reason, message };
            self.send(pod, container).await;
            self.pause(Duration::from_millis(300)).await;
        }
    }

    /// Watches a running container to its end; none if that end is the end of the pod.
    async fn watch(
        &mut self,
        pod: &Pod,
        container: &Container,
        address: IpAddr,
        mut process: Daemon,
    ) -> Result<Option<Ended>> {
        let since = now();
        let started = Instant::now();
        self.report.state = State::Running { since: since.clone() };
        self.report.up = container.startup_probe.is_none();
        self.report.ready = self.report.up && container.readiness_probe.is_none();
        let outcome = self.attend(pod, container, address, &mut process).await;
        // From here on the process is to be gone, whatever happens: a report that fails must not leave it behind.
        let (turn, failure) = match outcome {
            Ok(turn) => (turn, None),
            Err(error) => (Turn::Stop(None), Some(error)),
        };
        let (status, pod_ends) = match turn {
            Turn::Ended(status) => (status, false),
            Turn::Stop(grace) => (stop(&mut process, grace.unwrap_or_default()).await?, true),
            Turn::Unhealthy(probe) => {
                eprintln!(
                    "test bed: pod {}: {probe} probe failed, killing it",
                    process.name()
                );
                let grace = pod
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.termination_grace_period_seconds)
                    .unwrap_or(30);
                (
                    stop(&mut process, Duration::from_secs(grace.unsigned_abs())).await?,
                    false,
                )
            }
        };
        *locked(&self.pid) = None;
        if let Some(error) = failure {
            return Err(error);
        }
        self.report.ready = false;
        self.report.up = false;
        let signal = status.signal();
        let exit_code = status
            .code()
            .or_else(|| signal.map(|signal| 128 + signal))
            .unwrap_or(255);
        let ended = Ended {
            exit_code,
            signal,
            started: since,
            finished: now(),
        };
        if started.elapsed() >= GOOD_RUN {
            self.back_off = FIRST_BACK_OFF;
        }
        if pod_ends {
            self.report.state = State::Terminated(ended);
            self.report.finished = true;
            if !self.is_deleted() {
                self.send(pod, container).await;
                self.release(pod).await?;
            }
            return Ok(None);
        }
        Ok(Some(ended))
    }

    async fn attend(
        &mut self,
        pod: &Pod,
        container: &Container,
        address: IpAddr,
        process: &mut Daemon,
    ) -> Result<Turn> {
        self.send(pod, container).await;
        let (verdicts, mut heard) = mpsc::unbounded_channel();
        let mut probes = JoinSet::new();
        let start = |probes: &mut JoinSet<()>,
                     name: &'static str,
                     probe: Option<&k8s_openapi::api::core::v1::Probe>|
         -> Result<()> {
            if let Some(probe) = probe {
                let plan = Plan::read(probe, container, address)?;
                let verdicts = verdicts.clone();
                probes.spawn(plan.run(move |verdict| {
                    // Nobody listens any more once the container has ended.
                    let _ = verdicts.send((name, verdict));
                }));
            }
            Ok(())
        };
        start(&mut probes, "startup", container.startup_probe.as_ref())?;
        let mut begun = false;
        loop {
            if self.report.up && !begun {
                begun = true;
                start(&mut probes, "readiness", container.readiness_probe.as_ref())?;
                start(&mut probes, "liveness", container.liveness_probe.as_ref())?;
            }
            if let Some(status) = process.ended()? {
                return Ok(Turn::Ended(status));
            }
            if self.is_deleted() {
                return Ok(Turn::Stop(None));
            }
            if let Some(grace) = self.grace() {
                return Ok(Turn::Stop(Some(grace)));
            }
            tokio::select! {
                Some(verdict) = heard.recv() => match verdict {
                    ("startup", Verdict::Passes) => {
                        self.report.up = true;
                        self.report.ready = container.readiness_probe.is_none();
                    }
                    ("readiness", verdict) => self.report.ready = verdict == Verdict::Passes,
                    (probe, Verdict::Fails) => return Ok(Turn::Unhealthy(probe)),
                    (_, Verdict::Passes) => {}
                },
                () = sleep(Duration::from_millis(20)) => {}
                changed = self.changes.changed() => if changed.is_err() { return Ok(Turn::Stop(None)) },
            }
            self.send(pod, container).await;
        }
    }

    async fn wait_for_restart(&mut self, pod: &Pod, container: &Container) -> Result<()> {
        let until = Instant::now() + self.back_off;
        let message = format!(
            "back-off {:?} restarting failed container={} pod={}",
            self.back_off,
            container.name,
            pod.name_any()
        );
        // The first restart comes at once, as a kubelet's does.
        if self.report.restarts > 0 {
            self.report.state = State::Waiting {
                reason: "CrashLoopBackOff",
                message,
            };
            self.send(pod, container).await;
            while Instant::now() < until && !self.is_stopping() {
                self.pause(LOOK).await;
            }
            self.back_off = (self.back_off * 2).min(LONGEST_BACK_OFF);
        }
        Ok(())
    }

    /// The kubelet's last word: all containers have ended, the object may go.
    async fn release(&self, pod: &Pod) -> Result<()> {
        let pods: Api<Pod> =
            Api::namespaced(self.shared.client.clone(), &pod.namespace().unwrap_or_default());
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: pod.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default().grace_period(0)
        };
        match pods.delete(&pod.name_any(), &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(refusal)) if refusal.is_not_found() || refusal.is_conflict() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn send(&mut self, pod: &Pod, container: &Container) {
        // A kubelet that cannot reach its API server keeps its containers; what was not sent is sent with the next report.
        if let Err(error) = self.report.send(&self.shared.client, pod, container).await {
            eprintln!(
                "test bed: pod {}/{}: report: {error:#}",
                pod.namespace().unwrap_or_default(),
                pod.name_any()
            );
            sleep(LOOK).await;
        }
    }

    fn is_deleted(&self) -> bool {
        self.changes.borrow().is_none()
    }

    fn is_stopping(&self) -> bool {
        self.is_deleted() || self.grace().is_some()
    }

    /// The grace period of a deletion under way.
    fn grace(&self) -> Option<Duration> {
        let object = self.changes.borrow();
        let metadata = &object.as_ref()?.metadata;
        metadata.deletion_timestamp.as_ref()?;
        Some(Duration::from_secs(
            metadata
                .deletion_grace_period_seconds
                .unwrap_or(30)
                .unsigned_abs(),
        ))
    }

    /// Until the object changes, but not longer than `limit`.
    async fn pause(&mut self, limit: Duration) {
        // Both ends of the wait are looked at by the caller.
        let _ = tokio::time::timeout(limit, self.changes.changed()).await;
    }

    async fn changed(&mut self) {
        self.pause(Duration::from_secs(1)).await;
    }
}

/// SIGTERM, the grace period, SIGKILL.
async fn stop(process: &mut Daemon, grace: Duration) -> Result<ExitStatus> {
    let until = Instant::now() + grace;
    if process.ended()?.is_none() {
        process.signal(Signal::TERM)?;
    }
    loop {
        if let Some(status) = process.ended()? {
            return Ok(status);
        }
        if Instant::now() >= until {
            process.kill()?;
        } else {
            sleep(Duration::from_millis(20)).await;
        }
    }
}
