//! `segmentry node`: arguments of one storage node.

use anyhow::Context as _;
use clap::Args;
use segmentry_node::NodeConfig;
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// How often a node that ends with its parent looks for it.
const PARENT: Duration = Duration::from_millis(500);

/// Arguments of `segmentry node`.
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Stable name of the node
    #[arg(long, env = "SEGMENTRY_NODE_NAME")]
    name: String,
    /// Data directory; made if it does not exist
    #[arg(long, env = "SEGMENTRY_DATA", value_name = "DIR")]
    data: PathBuf,
    /// Where REST listens
    #[arg(
        long,
        env = "SEGMENTRY_REST",
        value_name = "IP:PORT",
        default_value = "127.0.0.1:9200"
    )]
    rest: SocketAddr,
    /// REST address that clients are told; where REST listens if not given
    #[arg(long, env = "SEGMENTRY_REST_ADVERTISE", value_name = "HOST:PORT")]
    rest_advertise: Option<String>,
    /// Where the internal port listens
    #[arg(
        long,
        env = "SEGMENTRY_TRANSPORT",
        value_name = "IP:PORT",
        default_value = "127.0.0.1:9300"
    )]
    transport: SocketAddr,
    /// Address of the internal port that other nodes are told; where it listens if not given
    #[arg(long, env = "SEGMENTRY_ADVERTISE", value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// File with the cluster's token
    #[arg(long, env = "SEGMENTRY_TOKEN_FILE", value_name = "FILE")]
    token_file: PathBuf,
    /// Identity of the volume that holds the data directory
    #[arg(long, env = "SEGMENTRY_DISK_ID", value_name = "ID")]
    disk_id: Option<String>,
    /// Name of the cluster that the node is meant for: answered by REST until the node belongs to one
    #[arg(
        long,
        env = "SEGMENTRY_CLUSTER_NAME",
        value_name = "NAME",
        default_value = "segmentry"
    )]
    cluster_name: String,
    /// Bound of the bodies of writes in flight, bytes; a tenth of the memory if not given
    #[arg(long, env = "SEGMENTRY_INDEXING_BUDGET_BYTES", value_name = "BYTES")]
    indexing_budget_bytes: Option<u64>,
    /// Stop in order when the process that started this one is gone
    #[arg(long)]
    end_with_parent: bool,
}

/// Runs a node until SIGTERM or Ctrl-C.
///
/// # Errors
/// The node does not start, or cannot go on.
pub fn run(args: NodeArgs) -> anyhow::Result<()> {
    crate::logging::start();
    // Before anything else: a parent that is gone already would not be missed later.
    let parent = rustix::process::getppid();
    let end_with_parent = args.end_with_parent;
    let config = NodeConfig {
        name: args.name,
        data_dir: args.data,
        rest_listen: args.rest,
        rest_advertise: args.rest_advertise,
        transport_listen: args.transport,
        advertise: args.advertise,
        token_file: args.token_file,
        disk_id: args.disk_id,
        cluster_name: args.cluster_name,
        indexing_budget_bytes: args.indexing_budget_bytes,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("data")
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let outcome = runtime.block_on(segmentry_node::run(config, async move {
        tokio::select! {
            () = crate::logging::ended() => {}
            () = orphaned(parent), if end_with_parent => tracing::warn!("the parent process is gone, the node ends"),
        }
    }));
    // What still runs then was given up by the node's own stop.
    runtime.shutdown_timeout(Duration::from_secs(5));
    outcome
}

/// Resolves once another process than `parent` is the parent.
async fn orphaned(parent: Option<rustix::process::Pid>) {
    while rustix::process::getppid() == parent {
        tokio::time::sleep(PARENT).await;
    }
}
