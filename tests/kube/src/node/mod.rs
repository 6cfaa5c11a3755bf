//! A whole Kubernetes node: scheduler, kubelet, containerd and kube-proxy, all real, inside the namespaces of [`isolate`].
//!
//! DNS ([`dns`]) and volumes (`crate::provisioner`) are small servers of this crate. All daemons are children of the test process;
//! when it ends, so does the process namespace, and with it every container.

pub mod dns;
pub mod isolate;

use crate::bed::client_of;
use crate::control::{ControlPlane, Size, kubeconfig_of};
use crate::daemon::{Daemon, Spec};
use crate::image::Image;
use crate::provisioner::{Binding, NODE, Provisioner};
use crate::tools::clients;
use crate::tools::kubernetes::Kubernetes;
use crate::{eventually, tools};
use anyhow::{Context, Result, ensure};
use isolate::{CGROUP, NODE_ADDRESS, POD_NETWORK, PROGRAM};
use k8s_openapi::api::core::v1::Node;
use kube::api::Api;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const START: Duration = Duration::from_secs(120);
const PAUSE_IMAGE: &str = "localhost/segmentry-bed/pause:1";

/// The running bed. Fields are dropped in this order: those who watch before those who are watched.
#[derive(Debug)]
pub struct FullNode {
    _dns: dns::Dns,
    _provisioner: Provisioner,
    /// Restarts and kills of daemons are faults that a test may want.
    pub proxy: Daemon,
    /// Kubelet.
    pub kubelet: Daemon,
    /// Scheduler.
    pub scheduler: Daemon,
    /// Container runtime.
    pub containerd: Daemon,
    /// etcd, apiserver, controller-manager.
    pub control: ControlPlane,
    folder: PathBuf,
}

impl FullNode {
    /// Starts everything below `folder` and waits until the node is ready.
    pub async fn start(folder: &Path) -> Result<Self> {
        ensure!(
            std::env::var_os(CGROUP).is_some(),
            "this needs the namespaces of `segmentry-bed isolate`: run it by `make e2e`"
        );
        let started = Instant::now();
        tools::progress("starting a control plane and a node ...");
        let (containerd, control) =
            tokio::try_join!(start_containerd(folder), ControlPlane::start(folder, Size::Node))?;
        let admin = kubeconfig_of(folder, "admin");
        let client = client_of(&admin).await?;
        let provisioner = Provisioner::start(
            client.clone(),
            &folder.join("volumes"),
            Binding::WaitForFirstConsumer,
        )
        .await?;

        let kubeconfig = kubeconfig_of(folder, "system:kube-scheduler")
            .display()
            .to_string();
        let scheduler = Daemon::start(
            Spec::new("kube-scheduler", Kubernetes::Scheduler.path()?, folder).args([
                format!("--kubeconfig={kubeconfig}"),
                format!("--authentication-kubeconfig={kubeconfig}"),
                format!("--authorization-kubeconfig={kubeconfig}"),
                "--authentication-skip-lookup=true".to_owned(),
                "--bind-address=127.0.0.1".to_owned(),
                "--leader-elect=false".to_owned(),
                "--profiling=false".to_owned(),
            ]),
        )?;
        let proxy = start_proxy(folder)?;
        let bed = Self {
            _dns: dns::Dns::start(client.clone(), SocketAddr::new(NODE_ADDRESS.parse()?, 53)).await?,
            _provisioner: provisioner,
            proxy,
            kubelet: start_kubelet(folder)?,
            scheduler,
            containerd,
            control,
            folder: folder.to_owned(),
        };
        let program =
            PathBuf::from(std::env::var_os(PROGRAM).context("isolate did not say where its program is")?);
        bed.add_image(&Image {
            reference: PAUSE_IMAGE.to_owned(),
            program,
            entry_point: "/pause".to_owned(),
            arguments: vec!["pause".to_owned()],
            links: Vec::new(),
            labels: Vec::new(),
        })?;
        let nodes: Api<Node> = Api::all(client);
        let log = bed.kubelet.log().to_owned();
        eventually(START, "the node is ready", || async {
            let node = nodes
                .get(NODE)
                .await
                .with_context(|| crate::daemon::tail(&log, 5))?;
            let conditions = node
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
            ensure!(
                ready.is_some_and(|condition| condition.status == "True"),
                "{ready:?}"
            );
            Ok(())
        })
        .await?;
        tools::progress(&format!(
            "node is ready after {:.1} s",
            started.elapsed().as_secs_f32()
        ));
        Ok(bed)
    }

    /// Builds an image and hands it to containerd.
    pub fn add_image(&self, image: &Image) -> Result<()> {
        let archive = self.folder.join("image.tar");
        image.write(&archive)?;
        self.import(&archive)?;
        Ok(fs::remove_file(archive)?)
    }

    /// Hands an archive to containerd.
    pub fn import(&self, archive: &Path) -> Result<()> {
        let socket = socket(&self.folder);
        let (socket, archive) = (socket.display().to_string(), archive.display().to_string());
        isolate::call(
            "ctr",
            &["-a", &socket, "-n", "k8s.io", "images", "import", &archive],
        )?;
        Ok(())
    }

    /// A client of the administrator.
    pub async fn client(&self) -> Result<kube::Client> {
        client_of(&self.control.kubeconfig()).await
    }

    /// Runs kubectl as the administrator; the inner error is what kubectl says to a user.
    pub fn kubectl(&self, args: &[&str], input: Option<&str>) -> Result<std::result::Result<String, String>> {
        clients::call(
            &clients::kubectl()?,
            Some(&self.control.kubeconfig()),
            args,
            input,
        )
    }

    /// Runs helm as the administrator.
    pub fn helm(&self, args: &[&str]) -> Result<std::result::Result<String, String>> {
        clients::call(&clients::helm()?, Some(&self.control.kubeconfig()), args, None)
    }

    /// Folder of logs and volumes.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("containerd.sock")
}

async fn start_containerd(folder: &Path) -> Result<Daemon> {
    let networks = folder.join("cni");
    fs::create_dir_all(&networks)?;
    let network = serde_json::json!({
        "cniVersion": "0.4.0", "name": "bed",
        "plugins": [{
            "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
            "ipam": {
                "type": "host-local", "dataDir": folder.join("cni-state"),
                "ranges": [[{"subnet": POD_NETWORK}]], "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    });
    fs::write(networks.join("10-bed.conflist"), network.to_string())?;
    let state = folder.join("containerd");
    let config = format!(
        r#"version = 2
root = "{state}/root"
state = "{state}/state"
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  disable_apparmor = true
  # A lower score than one's own needs CAP_SYS_RESOURCE, which a CI container often lacks; runc then fails without a word.
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{networks}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"#,
        state = state.display(),
        socket = socket(folder).display(),
        networks = networks.display(),
    );
    let file = folder.join("containerd.toml");
    fs::write(&file, config)?;
    let arguments = ["--config".to_owned(), file.display().to_string()];
    let mut daemon =
        Daemon::start(Spec::new("containerd", tools::on_path("containerd")?, folder).args(arguments))?;
    let address = socket(folder);
    // A kubelet that does not find the socket ends.
    daemon
        .wait_until(START, "socket", || async {
            isolate::call("ctr", &["-a", &address.display().to_string(), "version"]).is_ok()
        })
        .await?;
    Ok(daemon)
}

fn start_kubelet(folder: &Path) -> Result<Daemon> {
    let cgroup = std::env::var(CGROUP)?;
    let resolv = folder.join("resolv.conf");
    fs::write(&resolv, "")?;
    let config = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 0.0.0.0
# The apiserver has no client certificate for logs, exec and port-forward; nobody else reaches this network.
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
# Machines with cgroup v1 still build software.
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /{cgroup}
cgroupsPerQOS: true
enforceNodeAllocatable: [pods]
failSwapOn: false
containerRuntimeEndpoint: unix://{socket}
clusterDNS: [{NODE_ADDRESS}]
clusterDomain: cluster.local
resolvConf: {resolv}
podLogsDir: {folder}/pods
volumePluginDir: {folder}/plugins
imageGCHighThresholdPercent: 100
evictionHard: {{memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}}
nodeStatusUpdateFrequency: 5s
syncFrequency: 10s
maxPods: 60
makeIPTablesUtilChains: false
",
        socket = socket(folder).display(),
        resolv = resolv.display(),
        folder = folder.display(),
    );
    let file = folder.join("kubelet.yaml");
    fs::write(&file, config)?;
    Daemon::start(Spec::new("kubelet", Kubernetes::Kubelet.path()?, folder).args([
        format!("--config={}", file.display()),
        format!(
            "--kubeconfig={}",
            kubeconfig_of(folder, "system:node:bed").display()
        ),
        format!("--root-dir={}", folder.join("kubelet").display()),
        format!("--cert-dir={}", folder.join("kubelet/pki").display()),
        format!("--hostname-override={NODE}"),
        format!("--node-ip={NODE_ADDRESS}"),
    ]))
}

fn start_proxy(folder: &Path) -> Result<Daemon> {
    let config = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {{kubeconfig: {kubeconfig}}}
hostnameOverride: {NODE}
clusterCIDR: {POD_NETWORK}
# Zero: the machine's limits of connection tracking are left alone.
conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
",
        kubeconfig = kubeconfig_of(folder, "system:kube-proxy").display(),
    );
    let file = folder.join("kube-proxy.yaml");
    fs::write(&file, config)?;
    let arguments = [format!("--config={}", file.display())];
    Daemon::start(Spec::new("kube-proxy", Kubernetes::Proxy.path()?, folder).args(arguments))
}
