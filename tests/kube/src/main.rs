//! `segmentry-bed`: what the Makefile needs of the test bed.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use segmentry_testbed::image::Image;
use segmentry_testbed::node::isolate;
use segmentry_testbed::tools::{self, clients, kubernetes};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Test bed of Segmentry: builds tools and images")]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Builds or fetches whatever the tests need, and says where it is.
    Tools {
        /// Also what only `make e2e` needs.
        #[arg(long)]
        node: bool,
    },
    /// Builds the container image as an OCI archive.
    Image {
        /// The static executable.
        #[arg(long)]
        program: PathBuf,
        /// Full reference of the image.
        #[arg(long)]
        reference: String,
        /// The archive to write.
        #[arg(long)]
        output: PathBuf,
    },
    /// Runs a command in namespaces of its own, with a network of its own; needs root.
    Isolate {
        /// Program and arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// What `isolate` starts inside.
    #[command(hide = true)]
    FirstProcess {
        /// Program and arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// Waits to be killed: the container that holds a pod's namespaces.
    #[command(hide = true)]
    Pause,
    /// Runs the small server of the bed's own tests.
    #[command(hide = true)]
    Sample {
        /// Address to listen on.
        #[arg(long)]
        listen: String,
        /// Folder to count starts in.
        #[arg(long)]
        data: PathBuf,
    },
}

fn main() -> Result<ExitCode> {
    match Cli::parse().command {
        Action::Isolate { command } => return Ok(ExitCode::from(isolate::run(&command)?)),
        Action::FirstProcess { command } => return Ok(ExitCode::from(isolate::first_process(&command)?)),
        Action::Pause => loop {
            std::thread::park();
        },
        Action::Sample { listen, data } => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(segmentry_testbed::sample::run(&listen, &data))?,
        Action::Tools { node } => list_tools(node)?,
        Action::Image {
            program,
            reference,
            output,
        } => {
            let version = reference
                .rsplit_once(':')
                .map_or("latest", |(_, tag)| tag)
                .to_owned();
            let labels = [
                ("org.opencontainers.image.title", "segmentry"),
                ("org.opencontainers.image.licenses", "Apache-2.0"),
                ("org.opencontainers.image.version", &version),
            ];
            let image = Image {
                reference,
                program,
                entry_point: "/segmentry".to_owned(),
                arguments: Vec::new(),
                links: vec!["/kubectl-segmentry".to_owned()],
                labels: labels
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .to_vec(),
            };
            image.write(&output)?;
            let size = std::fs::metadata(&output).context("look at the archive")?.len();
            println!(
                "{}: {} ({:.1} MB)",
                image.reference,
                output.display(),
                size as f64 / 1e6
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list_tools(node: bool) -> Result<()> {
    println!("etcd: {}", tools::etcd()?.display());
    println!("kubectl: {}", clients::kubectl()?.display());
    println!("helm: {}", clients::helm()?.display());
    for command in ["setpriv", "unshare", "mount", "openssl"] {
        println!("{command}: {}", tools::on_path(command)?.display());
    }
    for command in kubernetes::ALL
        .into_iter()
        .take(if node { usize::MAX } else { 2 })
    {
        println!("{}: {}", command.name(), command.path()?.display());
    }
    if node {
        for command in [
            "containerd",
            "ctr",
            "runc",
            "ip",
            "sysctl",
            "iptables",
            "nft",
            "conntrack",
        ] {
            println!("{command}: {}", tools::on_path(command)?.display());
        }
    }
    Ok(())
}
