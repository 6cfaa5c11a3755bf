//! The Kubernetes commands, built from the Go module that `../../go` pins, into `<cache>/kube/<version>/`.
//!
//! Kubernetes publishes no library of its commands, and its download site has no checksum in a lock file. A Go module has both:
//! `go.sum` fixes every byte, and `go build` of an unchanged command takes seconds. The first build takes about 10 minutes on two
//! cores, two thirds of it for the apiserver, whose packages all others share.

use super::{from_assets, progress};
use crate::cache;
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// A command of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kubernetes {
    /// kube-apiserver
    ApiServer,
    /// kube-controller-manager
    ControllerManager,
    /// kube-scheduler
    Scheduler,
    /// kubelet
    Kubelet,
    /// kube-proxy
    Proxy,
}

/// In the order of building: what `make test` needs comes first.
pub const ALL: [Kubernetes; 5] = [
    Kubernetes::ApiServer,
    Kubernetes::ControllerManager,
    Kubernetes::Scheduler,
    Kubernetes::Kubelet,
    Kubernetes::Proxy,
];

impl Kubernetes {
    /// The name of the command.
    pub fn name(self) -> &'static str {
        match self {
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubelet => "kubelet",
            Self::Proxy => "kube-proxy",
        }
    }

    /// The executable; built when it is neither in `$KUBEBUILDER_ASSETS` nor in the cache.
    pub fn path(self) -> Result<PathBuf> {
        if let Some(path) = from_assets(self.name()) {
            return Ok(path);
        }
        let version = version()?;
        let folder = cache::folder()?.join("kube").join(&version);
        let path = folder.join(self.name());
        if path.is_file() {
            return Ok(path);
        }
        let _lock = cache::lock("kube")?;
        if !path.is_file() {
            fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
            build(self.name(), &version, &path)?;
        }
        Ok(path)
    }
}

/// The folder of the pinned module.
fn module() -> PathBuf {
    crate::repository().join("tests/kube/go")
}

/// The version that go.mod requires, as `v1.35.4`.
pub fn version() -> Result<String> {
    let path = module().join("go.mod");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    version_in(&text).with_context(|| format!("{} does not require k8s.io/kubernetes", path.display()))
}

fn version_in(go_mod: &str) -> Option<String> {
    go_mod.lines().find_map(|line| {
        let mut words = line.split_whitespace().filter(|word| *word != "require");
        (words.next() == Some("k8s.io/kubernetes")).then(|| words.next().map(str::to_owned))?
    })
}

fn build(command: &str, version: &str, place: &Path) -> Result<()> {
    let go = Command::new("go").arg("version").output();
    ensure!(
        go.is_ok_and(|answer| answer.status.success()),
        "{command} {version} must be built and there is no Go toolchain: install Go 1.25 or newer (https://go.dev/dl), \
         or set KUBEBUILDER_ASSETS to a folder of setup-envtest"
    );
    let Some(minor) = version.split('.').nth(1) else {
        bail!("odd version of Kubernetes: {version}")
    };
    // Without a version the commands report v0.0.0, and clients and feature gates judge by it.
    let package = "k8s.io/component-base/version";
    let stamp = [
        ("gitVersion", version),
        ("gitMajor", "1"),
        ("gitMinor", minor),
        ("gitCommit", "unknown"),
        ("gitTreeState", "clean"),
        ("buildDate", "2026-01-01T00:00:00Z"),
    ];
    // Writing to a String cannot fail.
    let mut flags = String::from("-s -w");
    for (name, value) in stamp {
        let _ = write!(flags, " -X {package}.{name}={value}");
    }
    let _ = write!(flags, " -X k8s.io/client-go/pkg/version.gitVersion={version}");

    progress(&format!(
        "building {command} {version} (first run only; all commands together take about 10 minutes) ..."
    ));
    let started = Instant::now();
    let unfinished = place.with_extension("unfinished");
    let status = Command::new("go")
        .current_dir(module())
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-mod=readonly")
        .args([
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-tags",
            "notest,grpcnotrace",
            "-ldflags",
            &flags,
        ])
        .arg("-o")
        .arg(&unfinished)
        .arg(format!("k8s.io/kubernetes/cmd/{command}"))
        .status()
        .context("run go build")?;
    ensure!(
        status.success(),
        "go build of {command} {version} failed ({status})"
    );
    cache::publish(&unfinished, place)?;
    progress(&format!("built {command} in {} s", started.elapsed().as_secs()));
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn the_version_is_read_from_both_forms_of_require() {
        assert_eq!(
            version_in("require k8s.io/kubernetes v1.2.3\n").unwrap(),
            "v1.2.3"
        );
        assert_eq!(
            version_in("require (\n\tk8s.io/kubernetes v1.2.4\n)\n").unwrap(),
            "v1.2.4"
        );
        assert_eq!(version_in("require k8s.io/kubernetes-other v1.2.3\n"), None);
    }

    #[test]
    fn the_pinned_module_names_a_version() {
        assert!(version().unwrap().starts_with("v1."));
    }
}
