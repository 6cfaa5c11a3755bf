//! The control plane: etcd, kube-apiserver and kube-controller-manager on loopback, as whoever runs the tests.
//!
//! Nothing here needs root. Scheduler and kubelet are the stand-in's part (`crate::kubelet`), so some controllers are left out:
//! - `endpointslice*`, `endpoint*`: pods of the stand-in live on 127.x.y.z, which the API refuses as an endpoint;
//! - `node-lifecycle`, `taint-eviction`: the stand-in's Node sends no heartbeats.
//!
//! The apiserver keeps an audit log of every write, so a test can ask what a user wrote (`crate::audit`).

use crate::daemon::{Daemon, Spec};
use crate::tools::{self, kubernetes::Kubernetes};
use anyhow::{Context, Result, ensure};
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

impl ControlPlane {
    /// Starts all three and waits until a namespace gets its default service account.
    pub async fn start(folder: &Path) -> Result<Self> {
        let pki = folder.join("pki");
        fs::create_dir_all(&pki)?;
        let [etcd_port, peer_port, api_port, manager_port] = free_ports()?;
        let url = format!("https://127.0.0.1:{api_port}");
        let key = pki.join("service-accounts.key");
        private_key(&key)?;
        let admin = Token::new("admin", "system:masters", folder, &url)?;
        let manager = Token::new("system:kube-controller-manager", "", folder, &url)?;
        let tokens = folder.join("tokens.csv");
        fs::write(&tokens, format!("{}\n{}\n", admin.line, manager.line))?;
        let audit = folder.join("audit-policy.yaml");
        fs::write(&audit, crate::audit::POLICY)?;
        let kubernetes = [
            Kubernetes::ApiServer.path()?,
            Kubernetes::ControllerManager.path()?,
        ];
        let [api_server, controller_manager] = kubernetes;

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
        let mut api_server = Daemon::start(Spec::new("kube-apiserver", api_server, folder).args([
            format!("--etcd-servers={client}"),
            format!("--secure-port={api_port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            // A loopback address is no valid endpoint of the service `kubernetes`.
            "--endpoint-reconciler-type=none".to_owned(),
            format!("--cert-dir={}", pki.display()),
            format!("--token-auth-file={}", tokens.display()),
            "--authorization-mode=RBAC".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-signing-key-file={}", key.display()),
            format!("--service-account-key-file={}", key.display()),
            format!("--audit-policy-file={}", audit.display()),
            format!("--audit-log-path={}", folder.join(crate::audit::FILE).display()),
            // Written before the answer: a test that has its answer finds its line.
            "--audit-log-mode=blocking-strict".to_owned(),
            "--profiling=false".to_owned(),
        ]))?;
        let certificate = pki.join("apiserver.crt");
        api_server
            .wait_until(START, "certificate", || async { certificate.is_file() })
            .await?;
        let kube = crate::bed::client_of(&admin.kubeconfig).await?;
        api_server.wait_until(START, "/readyz", || ready(&kube)).await?;

        let kubeconfig = manager.kubeconfig.display();
        let mut controller_manager = Daemon::start(Spec::new("kube-controller-manager", controller_manager, folder).args([
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
            "--controllers=*,-endpointslice-controller,-endpointslice-mirroring-controller,-endpoints-controller,\
             -node-lifecycle-controller,-taint-eviction-controller"
                .to_owned(),
            "--profiling=false".to_owned(),
        ]))?;
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
        self.folder.join("admin.kubeconfig")
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

/// A user of the token file, with a kubeconfig.
#[derive(Debug)]
pub(crate) struct Token {
    /// Line of the token file.
    pub line: String,
    /// `<folder>/<last part of the user's name>.kubeconfig`.
    pub kubeconfig: PathBuf,
}

impl Token {
    pub(crate) fn new(user: &str, group: &str, folder: &Path, url: &str) -> Result<Self> {
        let secret = random_hex()?;
        let name = user.rsplit(':').next().unwrap_or(user);
        let kubeconfig = folder.join(format!("{name}.kubeconfig"));
        let certificate = folder.join("pki/apiserver.crt");
        write_kubeconfig(&kubeconfig, url, &certificate, &format!("token: {secret}"))?;
        Ok(Self {
            line: format!("{secret},{user},{user},\"{group}\""),
            kubeconfig,
        })
    }
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
