//! Namespaces for a whole machine: mounts, processes and network of a bed, gone with its first process.
//!
//! `segmentry-bed isolate -- COMMAND` runs a command as if on a machine of its own:
//! 1. outside: the sysctls that a kubelet writes are saved (they have no namespace), cgroups are made;
//! 2. inside, as process 1: empty folders are mounted where daemons keep state, the network is set up, the command runs, orphans are
//!    reaped. There is no default route: no packet can leave, and the firewall of the host is not touched;
//! 3. at the end of the command process 1 ends, and the kernel ends everything else; outside, sysctls and cgroups are put back.
//!
//! Cargo takes it as the runner of a test binary, so the build itself runs outside, with network.

use crate::daemon;
use crate::tools;
use anyhow::{Context, Result, ensure};
use rustix::process::{WaitOptions, wait};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Address of the node, of the API server and of the DNS server.
pub const NODE_ADDRESS: &str = "10.240.0.1";
/// Addresses of Services.
pub const SERVICE_NETWORK: &str = "10.96.0.0/16";
/// Addresses of pods.
pub const POD_NETWORK: &str = "10.244.0.0/24";
/// Set inside: name of the bed's cgroup.
pub const CGROUP: &str = "SEGMENTRY_BED_CGROUP";
/// Set inside: path of this program, for the image of the pods' pause container.
pub const PROGRAM: &str = "SEGMENTRY_BED_PROGRAM";

/// Where containerd, CNI and the kubelet write whatever their configuration says.
const STATE_FOLDERS: [&str; 6] = [
    "/run/containerd",
    "/run/netns",
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/log/containers",
    "/usr/libexec/kubernetes",
];
/// Written by a kubelet for the whole machine.
const SYSCTLS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// Runs a command in namespaces of its own; answers its exit code.
pub fn run(command: &[OsString]) -> Result<u8> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "a full node needs namespaces, mounts and cgroups: run it as root"
    );
    let program = std::env::current_exe()?;
    // A machine has one set of sysctls and one name for the cgroup: one bed at a time.
    let _lock = crate::cache::lock("node")?;
    let saved: Vec<(PathBuf, String)> = SYSCTLS
        .iter()
        .map(|name| Path::new("/proc/sys").join(name))
        .filter_map(|path| fs::read_to_string(&path).ok().map(|value| (path, value)))
        .collect();
    let cgroup = "segmentry-bed";
    remove_cgroups(cgroup)?;
    make_cgroups(cgroup)?;
    for folder in STATE_FOLDERS {
        fs::create_dir_all(folder).with_context(|| format!("create {folder}"))?;
    }
    let status = Command::new(tools::on_path("setpriv")?)
        .args(["--pdeathsig", "KILL", "--"])
        .arg(tools::on_path("unshare")?)
        .args([
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--",
        ])
        .arg(&program)
        .args(["first-process", "--"])
        .args(command)
        .env(CGROUP, cgroup)
        .env(PROGRAM, &program)
        .status();
    for (path, value) in saved {
        if fs::read_to_string(&path).is_ok_and(|now| now != value) {
            fs::write(&path, &value).with_context(|| format!("restore {}", path.display()))?;
        }
    }
    remove_cgroups(cgroup)?;
    Ok(status
        .context("run unshare")?
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1))
}

/// The first process of the namespaces: sets them up, runs the command, reaps orphans, ends with the command's exit code.
pub fn first_process(command: &[OsString]) -> Result<u8> {
    ensure!(std::process::id() == 1, "this is started by `isolate`");
    let (program, args) = command.split_first().context("no command")?;
    for folder in STATE_FOLDERS {
        call("mount", &["-t", "tmpfs", "bed", folder])?;
    }
    network()?;
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("run {}", program.display()))?;
    let child = daemon::pid(child.id())?;
    loop {
        // Shims of containers and whatever they leave are reparented to this process.
        let Some((pid, status)) = wait(WaitOptions::empty())? else {
            continue;
        };
        if pid == child {
            let code = status
                .exit_status()
                .or_else(|| status.terminating_signal().map(|signal| 128 + signal))
                .unwrap_or(1);
            return Ok(u8::try_from(code).unwrap_or(1));
        }
    }
}

fn network() -> Result<()> {
    call("ip", &["link", "set", "lo", "up"])?;
    // A bridge without ports: an interface for the node's address that needs no module but the one that pods need anyway.
    call("ip", &["link", "add", "node0", "type", "bridge"])?;
    call(
        "ip",
        &["address", "add", &format!("{NODE_ADDRESS}/24"), "dev", "node0"],
    )?;
    call("ip", &["link", "set", "node0", "up"])?;
    // The node's own processes need some route to a Service before the packet's destination is rewritten.
    call(
        "ip",
        &[
            "route",
            "add",
            SERVICE_NETWORK,
            "dev",
            "node0",
            "src",
            NODE_ADDRESS,
        ],
    )?;
    fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    // Pods of one bridge reach each other through the firewall too, so that tests can cut them apart.
    let bridged = Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables");
    if bridged.exists() {
        fs::write(bridged, "1")?;
    }
    Ok(())
}

pub(super) fn call(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(tools::on_path(program)?)
        .args(args)
        .output()
        .with_context(|| format!("run {program}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{program} {} failed: {}",
        args.join(" "),
        error.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// True for a machine with the one hierarchy of cgroup v2.
pub(super) fn unified() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

fn hierarchies() -> Result<Vec<PathBuf>> {
    let root = Path::new("/sys/fs/cgroup");
    if unified() {
        return Ok(vec![root.to_owned()]);
    }
    let mut folders: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        // Names such as cpu,cpuacct and links such as cpu lead to the same hierarchy.
        if entry.file_type()?.is_dir() && entry.path().join("cgroup.procs").exists() {
            folders.push(entry.path());
        }
    }
    Ok(folders)
}

fn make_cgroups(name: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        let folder = hierarchy.join(name);
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        for file in ["cpuset.cpus", "cpuset.mems"] {
            // A cpuset of v1 starts empty, and an empty one takes no process.
            if !unified() && folder.join(file).exists() {
                fs::write(folder.join(file), fs::read_to_string(hierarchy.join(file))?)?;
            }
        }
        if unified() {
            for place in [&hierarchy, &folder] {
                fs::write(place.join("cgroup.subtree_control"), "+cpu +cpuset +memory +pids")?;
            }
        }
    }
    Ok(())
}

fn remove_cgroups(name: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        let folder = hierarchy.join(name);
        // Processes that were killed a moment ago are still counted.
        for attempt in 0..100 {
            if !folder.exists() || remove_tree(&folder).is_ok() {
                break;
            }
            ensure!(attempt < 99, "{} does not empty", folder.display());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
    Ok(())
}

fn remove_tree(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)?.filter_map(std::result::Result::ok) {
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(folder)
}
