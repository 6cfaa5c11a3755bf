//! Command line of Segmentry: parses arguments and calls the room that does the work.

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use segmentry::{
    api,
    controller::{detach, operator},
    load, node_command, up,
};
use std::{path::PathBuf, process::ExitCode, time::Duration};

// musl's own allocator serialises threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(
    name = "segmentry",
    version,
    about = "Operator for replicated index clusters with bundled storage nodes",
    propagate_version = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Looks after IndexCluster and Index objects in Kubernetes
    Operator(OperatorArgs),
    /// Takes the finalizers off the Index objects of an operator that is uninstalled for good
    Detach(DetachArgs),
    /// Runs one storage node
    Node(node_command::NodeArgs),
    /// Runs what a manifest file declares on this machine, without Kubernetes
    Up(up::UpArgs),
    /// Loads newline-delimited JSON into an index
    Load(load::LoadArgs),
    /// Writes the custom resource definitions
    Crds(CrdsArgs),
}

#[derive(Args)]
struct OperatorArgs {
    /// Namespaces to look after, separated by commas; all if not given
    #[arg(long, env = "SEGMENTRY_NAMESPACES", value_delimiter = ',')]
    namespaces: Vec<String>,
    /// Namespace of the operator: holds its Lease
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    own_namespace: String,
    /// Release: name of the Lease and of the claim on objects
    #[arg(long, env = "SEGMENTRY_RELEASE", default_value = "segmentry")]
    release: String,
    /// Name of this pod
    #[arg(long, env = "POD_NAME", default_value = "segmentry-operator")]
    pod_name: String,
    /// Seconds of silence after which another instance may lead
    #[arg(long, env = "SEGMENTRY_LEASE_SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(2..=300))]
    lease_seconds: u64,
    /// Image of clusters that neither declare one nor run one
    #[arg(long, env = "SEGMENTRY_NODE_IMAGE", default_value = concat!("ghcr.io/segmentry/segmentry:", env!("CARGO_PKG_VERSION")))]
    node_image: String,
    /// Objects that are worked on at once
    #[arg(long, env = "SEGMENTRY_CONCURRENCY", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    concurrency: u16,
}

#[derive(Args)]
struct DetachArgs {
    /// Namespaces that the operator looked after, separated by commas; all if not given
    #[arg(long, env = "SEGMENTRY_NAMESPACES", value_delimiter = ',')]
    namespaces: Vec<String>,
    /// Namespace of the operator: holds its Lease
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    own_namespace: String,
    /// Release: name of the Lease and of the claim on objects
    #[arg(long, env = "SEGMENTRY_RELEASE", default_value = "segmentry")]
    release: String,
    /// Name of this pod
    #[arg(long, env = "POD_NAME", default_value = "segmentry-detach")]
    pod_name: String,
}

#[derive(Args)]
struct CrdsArgs {
    /// Folder for one file a kind; standard output if not given
    #[arg(long)]
    output: Option<PathBuf>,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Operator(args) => run_operator(args),
        Command::Detach(args) => run_detach(args),
        Command::Node(args) => node_command::run(args),
        Command::Up(args) => run_async(up::run(args, segmentry::logging::ended())),
        Command::Load(args) => run_async(load::run(args)),
        Command::Crds(args) => write_crds(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("segmentry: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_operator(args: OperatorArgs) -> anyhow::Result<()> {
    segmentry::logging::start();
    let config = operator::OperatorConfig {
        namespaces: named(args.namespaces),
        own_namespace: args.own_namespace,
        release: args.release,
        pod_name: args.pod_name,
        lease_duration: Duration::from_secs(args.lease_seconds),
        default_image: args.node_image,
        concurrency: usize::from(args.concurrency),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async { operator::run(client().await?, config, segmentry::logging::ended()).await })
}

fn run_detach(args: DetachArgs) -> anyhow::Result<()> {
    segmentry::logging::start();
    let config = detach::DetachConfig {
        namespaces: named(args.namespaces),
        own_namespace: args.own_namespace,
        release: args.release,
        pod_name: args.pod_name,
    };
    run_async(async {
        let client = client().await?;
        let removed = tokio::select! {
            removed = detach::run(client, &config) => removed?,
            () = segmentry::logging::ended() => anyhow::bail!("was told to end before it was done"),
        };
        println!("{removed} finalizers taken off; the indices and their data are left as they are");
        Ok(())
    })
}

fn named(namespaces: Vec<String>) -> Vec<String> {
    namespaces.into_iter().filter(|name| !name.is_empty()).collect()
}

async fn client() -> anyhow::Result<kube::Client> {
    kube::Client::try_default()
        .await
        .context("cannot find the Kubernetes API server: neither a kubeconfig nor a service account works")
}

fn run_async(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(work)
}

fn write_crds(args: &CrdsArgs) -> anyhow::Result<()> {
    for (name, text) in api::schema::published()? {
        match &args.output {
            Some(folder) => {
                std::fs::create_dir_all(folder)
                    .with_context(|| format!("cannot create {}", folder.display()))?;
                let path = folder.join(name);
                std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            }
            None => print!("---\n{text}"),
        }
    }
    Ok(())
}
