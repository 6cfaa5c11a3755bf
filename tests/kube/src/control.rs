//! The control plane: etcd, kube-apiserver and kube-controller-manager on loopback, as whoever runs the tests.
//!
//! Nothing here needs root. On loopback, scheduler and kubelet are the stand-in's part (`crate::kubelet`), so some controllers are left out:
//! - `endpointslice*`, `endpoint*`: pods of the stand-in live on 127.x.y.z, which the API refuses as an endpoint;
//! - `node-lifecycle`, `taint-eviction`: the stand-in's Node sends no heartbeats.
//!
//! The apiserver keeps an audit log of every write, so a test can ask what a user wrote (`crate::audit`).

use crate::daemon::{Daemon, Spec};
use crate::node::isolate::{NODE_ADDRESS, SERVICE_NETWORK};
use crate::tools::{self, kubernetes::Kubernetes};
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a daemon may take to start. It takes 2 to 7 seconds; a loaded CI machine has been seen to need 30.
const START: Duration = Duration::from_secs(120);

/// The running control plane. Everything is killed on drop.
#[derive(Debug)]
pub struct ControlPlane {
    /// Declared first, so dropped first: the controller-manager must not see its apiserver go.
    pub controller_manager: Daemon,
    /// The API server.
    pub api_server: Daemon,
    /// Its store.
    pub etcd: Daemon,
    /// Its folder: logs, keys, kubeconfigs.
    pub folder: PathBuf,
    /// `https://127.0.0.1:<port>`.
    pub url: String,
}

/// What the control plane is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// With the kubelet stand-in, on loopback.
    Loopback,
    /// With a real node, in namespaces where [`NODE_ADDRESS`] is ours.
    Node,
}

impl ControlPlane {
    /// Starts all three and waits until a namespace gets its default service account.
    pub async fn start(folder: &Path, size: Size) -> Result<Self> {
        let pki = folder.join("pki");
        fs::create_dir_all(&pki)?;
        let [etcd_port, peer_port, api_port, manager_port] = free_ports()?;
        // The apiserver's certificate names the address that it advertises.
        let address = if size == Size::Node {
            NODE_ADDRESS
        } else {
            "127.0.0.1"
        };
        let url = format!("https://{address}:{api_port}");
        let key = pki.join("service-accounts.key");
        private_key(&key)?;
        let mut users = vec![
            ("admin", "system:masters"),
            ("system:kube-controller-manager", ""),
        ];
        if size == Size::Node {
            users.extend([
                ("system:kube-scheduler", ""),
                ("system:node:bed", "system:nodes"),
                ("system:kube-proxy", ""),
            ]);
        }
        let mut tokens = String::new();
        for (user, group) in users {
            let secret = random_hex()?;
            let place = kubeconfig_of(folder, user);
            write_kubeconfig(
                &place,
                &url,
                &pki.join("apiserver.crt"),
                &format!("token: {secret}"),
            )?;
            // Writing to a String cannot fail.
            let _ = writeln!(tokens, "{secret},{user},{user},\"{group}\"");
        }
        fs::write(folder.join("tokens.csv"), tokens)?;
        fs::write(folder.join("audit-policy.yaml"), crate::audit::POLICY)?;
        let programs = [
            Kubernetes::ApiServer.path()?,
            Kubernetes::ControllerManager.path()?,
        ];
        let [api_program, manager_program] = programs;

        let (client, peer) = (
            format!("http://127.0.0.1:{etcd_port}"),
            format!("http://127.0.0.1:{peer_port}"),
        );
        let etcd = Daemon::start(Spec::new("etcd", tools::etcd()?, folder).args([
            format!("--data-dir={}", folder.join("etcd").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            // The cluster lives as long as the test process: nothing is to be read after a power cut.
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
        ]))?;
        let mut arguments = vec![
            format!("--etcd-servers={client}"),
            format!("--secure-port={api_port}"),
            format!("--advertise-address={address}"),
            format!("--cert-dir={}", pki.display()),
            format!("--token-auth-file={}", folder.join("tokens.csv").display()),
            "--allow-privileged=true".to_owned(),
            format!("--service-cluster-ip-range={SERVICE_NETWORK}"),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-signing-key-file={}", key.display()),
            format!("--service-account-key-file={}", key.display()),
            format!(
                "--audit-policy-file={}",
                folder.join("audit-policy.yaml").display()
            ),
            format!("--audit-log-path={}", folder.join(crate::audit::FILE).display()),
            // Written before the answer: a test that has its answer finds its line.
            "--audit-log-mode=blocking-strict".to_owned(),
            "--profiling=false".to_owned(),
        ];
        arguments.extend(
            match size {
                Size::Loopback => {
                    // A loopback address is no valid endpoint of the service `kubernetes`.
                    vec![
                        "--bind-address=127.0.0.1",
                        "--endpoint-reconciler-type=none",
                        "--authorization-mode=RBAC",
                    ]
                }
                Size::Node => vec![
                    "--bind-address=0.0.0.0",
                    "--authorization-mode=Node,RBAC",
                    "--enable-admission-plugins=NodeRestriction",
                    "--kubelet-preferred-address-types=InternalIP",
                ],
            }
            .into_iter()
            .map(ToOwned::to_owned),
        );
        let mut api_server = Daemon::start(Spec::new("kube-apiserver", api_program, folder).args(arguments))?;
        let certificate = pki.join("apiserver.crt");
        api_server
            .wait_until(START, "certificate", || async { certificate.is_file() })
            .await?;
        let kube = crate::bed::client_of(&kubeconfig_of(folder, "admin")).await?;
        api_server.wait_until(START, "/readyz", || ready(&kube)).await?;

        let kubeconfig = kubeconfig_of(folder, "system:kube-controller-manager");
        let kubeconfig = kubeconfig.display();
        let mut arguments = vec![
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            "--authentication-skip-lookup=true".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={manager_port}"),
            "--leader-elect=false".to_owned(),
            "--use-service-account-credentials=true".to_owned(),
            "--kube-api-qps=500".to_owned(),
            "--kube-api-burst=1000".to_owned(),
            format!("--service-account-private-key-file={}", key.display()),
            format!("--root-ca-file={}", certificate.display()),
            "--profiling=false".to_owned(),
        ];
        if size == Size::Loopback {
            let without = [
                "endpointslice",
                "endpointslice-mirroring",
                "endpoints",
                "node-lifecycle",
                "taint-eviction",
            ];
            let without = without.map(|name| format!(",-{name}-controller")).concat();
            arguments.push(format!("--controllers=*{without}"));
        }
        let mut controller_manager =
            Daemon::start(Spec::new("kube-controller-manager", manager_program, folder).args(arguments))?;
        controller_manager
            .wait_until(START, "service account `default`", || has_default_account(&kube))
            .await?;
        Ok(Self {
            controller_manager,
            api_server,
            etcd,
            folder: folder.to_owned(),
            url,
        })
    }

    /// Kubeconfig of the administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        kubeconfig_of(&self.folder, "admin")
    }

    /// The certificate that signs the apiserver's own.
    pub fn certificate(&self) -> PathBuf {
        self.folder.join("pki/apiserver.crt")
    }
}

/// True when the apiserver says so.
pub(crate) async fn ready(client: &kube::Client) -> bool {
    let Ok(request) = http_get("/readyz") else {
        return false;
    };
    client
        .request_text(request)
        .await
        .is_ok_and(|answer| answer == "ok")
}

fn http_get(path: &str) -> Result<http::Request<Vec<u8>>> {
    Ok(http::Request::get(path).body(Vec::new())?)
}

pub(crate) async fn has_default_account(client: &kube::Client) -> bool {
    let accounts: kube::Api<k8s_openapi::api::core::v1::ServiceAccount> =
        kube::Api::namespaced(client.clone(), "default");
    accounts
        .get_opt("default")
        .await
        .is_ok_and(|account| account.is_some())
}

/// `<folder>/<last part of the user's name>.kubeconfig`.
pub(crate) fn kubeconfig_of(folder: &Path, user: &str) -> PathBuf {
    folder.join(format!("{}.kubeconfig", user.rsplit(':').next().unwrap_or(user)))
}

/// Writes a kubeconfig; `credential` is one YAML field of its user.
pub fn write_kubeconfig(path: &Path, url: &str, certificate: &Path, credential: &str) -> Result<()> {
    let text = format!(
        "apiVersion: v1\nkind: Config\n\
         clusters: [{{name: bed, cluster: {{server: \"{url}\", certificate-authority: \"{}\"}}}}]\n\
         users: [{{name: bed, user: {{{credential}}}}}]\n\
         contexts: [{{name: bed, context: {{cluster: bed, user: bed}}}}]\n\
         current-context: bed\n",
        certificate.display()
    );
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

fn random_hex() -> Result<String> {
    let mut bytes = [0_u8; 16];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}")))
}

pub(crate) fn private_key(path: &Path) -> Result<()> {
    let output = Command::new(tools::on_path("openssl")?)
        .args(["genrsa", "-out"])
        .arg(path)
        .arg("2048")
        .output()?;
    ensure!(
        output.status.success(),
        "openssl genrsa failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Ports that are free now. All are bound before any is released, so that they differ.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let listeners: Vec<TcpListener> = (0..N)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<std::io::Result<_>>()?;
    let ports: Vec<u16> = listeners
        .iter()
        .map(|listener| Ok(listener.local_addr()?.port()))
        .collect::<std::io::Result<_>>()?;
    ports.try_into().ok().context("number of ports")
}
