//! The kubelet stand-in: runs the pods of a real API server as plain processes of this machine.
//!
//! It is scheduler, kubelet and cluster DNS in one, and small, because it leaves out what the operator cannot see: cgroups,
//! image pulls, networks. What the operator can see is real: bindings, conditions with the scheduler's and the kubelet's reasons,
//! container states with exit codes and restart counts, readiness by probing, graceful deletion, volumes that outlive pods.
//!
//! What differs from a node, so that a test's author knows:
//! - An image is a name for an executable of this machine ([`Kubelet::add_image`]); any other name fails as a pull does.
//! - Each pod gets an address in 127.0.0.0/8, a new one for each incarnation. In arguments and variables `0.0.0.0` becomes that address, for all
//!   pods share one network.
//! - `<pod>.<subdomain>.<namespace>.svc` and `<subdomain>.<namespace>.svc` resolve inside pods only, through `/etc/hosts` in a mount namespace
//!   of the process; they resolve while the pod exists, ready or not, as for a headless Service with publishNotReadyAddresses.
//! - Mount paths in arguments and variables become folders of this machine; the root file system is the machine's.
//! - A pod with a service account token gets it as `KUBECONFIG`, so that the account's RBAC is really in force.
//! - User, group, resources and security context are not applied. One container a pod, no init containers: others are refused loudly.

mod container;
mod names;
mod pod;
mod probe;
mod scheduler;
mod status;
mod volumes;

use crate::daemon;
use crate::provisioner::NODE;
use anyhow::{Context, Result, bail};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use rustix::process::{Signal, kill_process};
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The running stand-in. All its pods are killed on drop.
#[derive(Debug)]
pub struct Kubelet {
    shared: Arc<Shared>,
    watching: tokio::task::JoinHandle<()>,
}

/// What all pods share.
pub(crate) struct Shared {
    client: kube::Client,
    /// `<bed>/pods`.
    folder: PathBuf,
    /// Address of the API server, for service accounts.
    url: String,
    certificate: PathBuf,
    names: names::Names,
    images: Mutex<HashMap<String, PathBuf>>,
    held: Mutex<HashSet<String>>,
    pods: Mutex<HashMap<String, Running>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

/// One pod's task, by uid.
struct Running {
    namespace: String,
    name: String,
    /// The newest object; none once it is deleted.
    object: watch::Sender<Option<Arc<Pod>>>,
    /// Its container's process.
    pid: Arc<Mutex<Option<u32>>>,
    task: tokio::task::JoinHandle<()>,
}

/// A panicking test must not turn into a poisoned bed for all others; every value behind these locks is whole at any time.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kubelet {
    /// Registers the node and starts running pods.
    pub async fn start(client: kube::Client, bed: &Path, url: &str, certificate: &Path) -> Result<Self> {
        let folder = bed.join("pods");
        fs::create_dir_all(&folder)?;
        let shared = Arc::new(Shared {
            names: names::Names::claim(bed)?,
            client,
            folder,
            url: url.to_owned(),
            certificate: certificate.to_owned(),
            images: Mutex::default(),
            held: Mutex::default(),
            pods: Mutex::default(),
        });
        register_node(&shared.client).await?;
        let watching = tokio::spawn(watch_pods(shared.clone()));
        Ok(Self { shared, watching })
    }

    /// From now on pods may use this image; its entry point is `program`.
    pub fn add_image(&self, image: &str, program: &Path) {
        locked(&self.shared.images).insert(image.to_owned(), program.to_owned());
    }

    /// From now on new containers cannot use this image.
    pub fn remove_image(&self, image: &str) {
        locked(&self.shared.images).remove(image);
    }

    /// While held, new pods of a namespace stay Pending and Unschedulable.
    pub fn hold_scheduling(&self, namespace: &str, hold: bool) {
        let mut held = locked(&self.shared.held);
        if hold {
            held.insert(namespace.to_owned())
        } else {
            held.remove(namespace)
        };
    }

    /// Sends a signal to the process of a pod's container: `KILL` for a crash, `STOP` and `CONT` for one that is silent.
    pub fn signal(&self, namespace: &str, pod: &str, signal: Signal) -> Result<u32> {
        let pid = self.pid(namespace, pod)?;
        kill_process(daemon::pid(pid)?, signal)?;
        Ok(pid)
    }

    /// The process of a pod's container.
    pub fn pid(&self, namespace: &str, pod: &str) -> Result<u32> {
        let pods = locked(&self.shared.pods);
        let running = pods
            .values()
            .filter(|running| running.namespace == namespace && running.name == pod);
        let pids: Vec<u32> = running.filter_map(|running| *locked(&running.pid)).collect();
        match pids[..] {
            [pid] => Ok(pid),
            [] => bail!("no process runs for pod {namespace}/{pod}"),
            _ => bail!("two processes run for pod {namespace}/{pod}"),
        }
    }

    /// Log of a pod's container, over all its restarts and incarnations.
    pub fn log(&self, namespace: &str, pod: &str) -> PathBuf {
        self.shared.folder.join(namespace).join(format!("{pod}.log"))
    }

    /// The address under which a pod's process listens.
    pub fn address(&self, namespace: &str, pod: &str) -> Option<IpAddr> {
        self.shared.names.address(namespace, pod)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.watching.abort();
        for running in locked(&self.shared.pods).values() {
            running.task.abort();
        }
    }
}

/// The Node object: ready, roomy, and never heard of again (its lifecycle controller is off).
async fn register_node(client: &kube::Client) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}},
    });
    let params = PatchParams::apply("segmentry-testbed");
    nodes
        .patch(NODE, &params, &Patch::Apply(&node))
        .await
        .context("create the node")?;
    let room = json!({"cpu": "64", "memory": "256Gi", "pods": "500", "ephemeral-storage": "1Ti"});
    let status = json!({"status": {
        "capacity": room, "allocatable": room,
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet stand-in",
                        "lastHeartbeatTime": status::now(), "lastTransitionTime": status::now()}],
    }});
    nodes
        .patch_status(NODE, &PatchParams::default(), &Patch::Merge(&status))
        .await
        .context("report the node ready")?;
    Ok(())
}

async fn watch_pods(shared: Arc<Shared>) {
    let pods: Api<Pod> = Api::all(shared.client.clone());
    let mut events = watcher(pods, watcher::Config::default())
        .default_backoff()
        .boxed();
    let mut listed: Option<HashSet<String>> = None;
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(pod)) => changed(&shared, pod),
            Ok(watcher::Event::Delete(pod)) => deleted(&shared, &pod.uid().unwrap_or_default()),
            Ok(watcher::Event::Init) => listed = Some(HashSet::new()),
            Ok(watcher::Event::InitApply(pod)) => {
                if let Some(listed) = &mut listed {
                    listed.extend(pod.uid());
                }
                changed(&shared, pod);
            }
            Ok(watcher::Event::InitDone) => {
                // A deletion may have been missed while the watch was broken.
                let known: Vec<String> = locked(&shared.pods).keys().cloned().collect();
                if let Some(listed) = listed.take() {
                    known
                        .iter()
                        .filter(|uid| !listed.contains(*uid))
                        .for_each(|uid| deleted(&shared, uid));
                }
            }
            Err(error) => eprintln!("test bed: kubelet: watch of pods: {error}"),
        }
    }
}

fn changed(shared: &Arc<Shared>, pod: Pod) {
    let (Some(uid), Some(namespace)) = (pod.uid(), pod.namespace()) else {
        return;
    };
    let elsewhere = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .is_some_and(|node| node != NODE);
    if elsewhere {
        return;
    }
    let mut pods = locked(&shared.pods);
    let name = pod.name_any();
    let pod = Some(Arc::new(pod));
    if let Some(running) = pods.get(&uid) {
        running.object.send_replace(pod);
        return;
    }
    let (object, changes) = watch::channel(pod);
    let pid = Arc::new(Mutex::new(None));
    let task = tokio::spawn(pod::run(shared.clone(), changes, pid.clone()));
    pods.insert(
        uid,
        Running {
            namespace,
            name,
            object,
            pid,
            task,
        },
    );
}

fn deleted(shared: &Arc<Shared>, uid: &str) {
    // Taken out of the map, so that a later `pid` does not see it; its task sees the end of its channel's object and finishes.
    if let Some(running) = locked(&shared.pods).remove(uid) {
        running.object.send_replace(None);
    }
}
