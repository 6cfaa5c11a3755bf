//! The bed as tests see it: one control plane and one kubelet stand-in a test process, one namespace a test.

use crate::audit;
use crate::control::{ControlPlane, Size};
use crate::daemon::temporary_folder;
use crate::kubelet::Kubelet;
use crate::provisioner::{self, Provisioner};
use crate::tools::{self, clients};
use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{OnceLock, mpsc};
use std::time::Instant;

/// A running control plane with a node that is a stand-in.
#[derive(Debug)]
pub struct Bed {
    /// Runs the pods.
    pub kubelet: Kubelet,
    control: ControlPlane,
    folder: PathBuf,
    _provisioner: Provisioner,
    /// Keeps other processes from sweeping the folder.
    _owner: File,
}

impl Bed {
    /// The bed of this test process: the first caller starts it, all others wait for it and share it.
    ///
    /// It ends with the process. Its folder stays until the next test process sweeps it, so the logs of a failed run can be read.
    pub async fn shared() -> Result<&'static Self> {
        static BED: OnceLock<Result<Bed, String>> = OnceLock::new();
        tokio::task::spawn_blocking(|| {
            BED.get_or_init(|| start_on_own_runtime().map_err(|error| format!("{error:#}")))
        })
        .await?
        .as_ref()
        .map_err(|error| anyhow!("the test bed did not start: {error}"))
    }

    async fn start() -> Result<Self> {
        let started = Instant::now();
        let (folder, owner) = temporary_folder("segmentry-bed-")?;
        tools::progress(&format!("starting a control plane in {} ...", folder.display()));
        let control = ControlPlane::start(&folder, Size::Loopback).await?;
        let client = client_of(&control.kubeconfig()).await?;
        let provisioner = Provisioner::start(
            client.clone(),
            &folder.join("volumes"),
            provisioner::Binding::Immediate,
        )
        .await?;
        let kubelet = Kubelet::start(client, &folder, &control.url, &control.certificate()).await?;
        tools::progress(&format!("ready after {:.1} s", started.elapsed().as_secs_f32()));
        Ok(Self {
            kubelet,
            control,
            folder,
            _provisioner: provisioner,
            _owner: owner,
        })
    }

    /// A client of the administrator, bound to the caller's runtime: each test makes its own.
    pub async fn client(&self) -> Result<kube::Client> {
        client_of(&self.kubeconfig()).await
    }

    /// Kubeconfig of the administrator, for kubectl and helm.
    pub fn kubeconfig(&self) -> PathBuf {
        self.control.kubeconfig()
    }

    /// Runs kubectl as the administrator; the inner error is what kubectl says to a user.
    pub fn kubectl(&self, args: &[&str], input: Option<&str>) -> Result<std::result::Result<String, String>> {
        clients::call(&clients::kubectl()?, Some(&self.kubeconfig()), args, input)
    }

    /// Runs helm as the administrator.
    pub fn helm(&self, args: &[&str]) -> Result<std::result::Result<String, String>> {
        clients::call(&clients::helm()?, Some(&self.kubeconfig()), args, None)
    }

    /// Folder of logs, keys and volumes.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Creates a namespace `<prefix>-<random>`.
    pub async fn namespace(&self, prefix: &str) -> Result<Scope> {
        let client = self.client().await?;
        let wanted = Namespace {
            metadata: ObjectMeta {
                generate_name: Some(format!("{prefix}-")),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let made = Api::<Namespace>::all(client.clone())
            .create(&PostParams::default(), &wanted)
            .await?;
        let name = made.metadata.name.context("the namespace has no name")?;
        Ok(Scope { client, name })
    }

    /// The end of the audit log.
    pub fn audit_mark(&self) -> Result<audit::Mark> {
        audit::mark(&self.folder)
    }

    /// Every write that the API server answered since.
    pub fn writes_since(&self, mark: audit::Mark) -> Result<Vec<audit::Write>> {
        audit::since(&self.folder, mark)
    }
}

/// A test's own namespace.
#[derive(Clone)]
pub struct Scope {
    /// Administrator's client.
    pub client: kube::Client,
    /// Name of the namespace.
    pub name: String,
}

impl Scope {
    /// Objects of a kind in this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Deletes the namespace; the controller-manager deletes what is in it.
    pub async fn delete(&self) -> Result<()> {
        Api::<Namespace>::all(self.client.clone())
            .delete(&self.name, &DeleteParams::default())
            .await?;
        Ok(())
    }
}

/// The stand-in's tasks must outlive the runtime of the test that started them.
fn start_on_own_runtime() -> Result<Bed> {
    let (answer, bed) = mpsc::channel();
    std::thread::Builder::new()
        .name("test-bed".to_owned())
        .spawn(move || {
            let runtime = match tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
            {
                Ok(runtime) => runtime,
                Err(error) => return drop(answer.send(Err(error.into()))),
            };
            let started = runtime.block_on(Bed::start());
            if answer.send(started).is_ok() {
                runtime.block_on(std::future::pending::<()>());
            }
        })?;
    bed.recv()?
}

/// A client for a kubeconfig.
pub async fn client_of(kubeconfig: &Path) -> Result<kube::Client> {
    let file = Kubeconfig::read_from(kubeconfig).with_context(|| format!("read {}", kubeconfig.display()))?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    // A refusal is an answer: an eviction that a budget forbids (429) would be asked again until it is allowed.
    config.default_retry = false;
    Ok(kube::Client::try_from(config)?)
}
