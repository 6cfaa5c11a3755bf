//! Start and stop of a node.

use crate::{
    NodeConfig,
    admin::{Facts, Progress, VERSION},
    disk::{Disk, DiskError, FORMAT, READABLE},
    follow::{follow, membership},
    links::{self, RaftLinks, WirePinger},
};
use segmentry_coordinator::{Coordinator, LocalCopies};
use segmentry_meta::{MetaStore, RaftMeta};
use segmentry_replication::Replication;
use segmentry_rest::Shared;
use segmentry_state::{Change, Node as Member};
use segmentry_vfs::{RealFs, Vfs};
use segmentry_wire::{Client, ClusterCell, Identity, Server, Token};
use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::{
    runtime::{Handle, Runtime},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Threads of the metadata runtime.
const METADATA_THREADS: usize = 2;
/// How long a stop waits for running requests, and again for each further part.
const DRAIN: Duration = Duration::from_secs(10);
/// How long the cluster may take to hear that this node leaves.
const LEAVE: Duration = Duration::from_secs(2);

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A port.
    #[error("cannot listen on {address} for {what}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// `REST` or `the internal port`.
        what: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// The token.
    #[error("token file {path}: {reason}")]
    Token {
        /// File.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The cluster metadata.
    #[error("the cluster metadata cannot be opened: {0}")]
    Metadata(String),
    /// Threads, or the HTTP client.
    #[error("cannot start: {0}")]
    Runtime(String),
}

/// Why a running node ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// The Raft log cannot be written: this node cannot take part any more.
    #[error("the cluster metadata failed: {0}")]
    Metadata(String),
    /// The operator has it start again without its cluster.
    #[error("reset: starts again without a cluster")]
    Reset,
    /// A port is served no more.
    #[error("a port is served no more: {0}")]
    Port(String),
    /// The membership could not be recorded on disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// A running node.
pub struct Node {
    rest_address: SocketAddr,
    transport_address: SocketAddr,
    facts: Facts,
    coordinator: Coordinator,
    replication: Arc<Replication>,
    raft: Arc<RaftMeta>,
    own: Member,
    /// Ends REST; first.
    stop_rest: CancellationToken,
    /// Ends what follows the cluster state; second.
    stop_rooms: CancellationToken,
    /// Ends the internal port; last.
    stop_wire: CancellationToken,
    rest: JoinHandle<std::io::Result<()>>,
    wire: JoinHandle<std::io::Result<()>>,
    rooms: Vec<(&'static str, JoinHandle<()>)>,
    /// Resolves when the node cannot go on.
    failed: tokio::sync::watch::Receiver<Option<String>>,
    metadata: Option<Runtime>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Node")
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}

impl Node {
    /// Starts a node: locks the disk, listens, opens the metadata. It answers from then on; joining the cluster and opening
    /// the copies go on behind.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(config: NodeConfig) -> Result<Self, StartError> {
        let fs: Arc<dyn Vfs> = Arc::new(RealFs);
        let token = read_token(&config.token_file)?;
        let disk = {
            let (fs, root, disk_id) = (Arc::clone(&fs), config.data_dir.clone(), config.disk_id.clone());
            blocking(move || Disk::open(&fs, &root, disk_id.as_deref())).await??
        };
        let (rest_listener, rest_address) = listen(config.rest_listen, "REST")?;
        let (wire_listener, transport_address) = listen(config.transport_listen, "the internal port")?;
        let advertise = config
            .advertise
            .clone()
            .unwrap_or_else(|| transport_address.to_string());
        let rest_advertise = config.rest_advertise.clone().unwrap_or_else(|| {
            if rest_address.ip().is_unspecified() {
                // Reachable under the name that members use.
                let host = advertise
                    .rsplit_once(':')
                    .map_or(advertise.as_str(), |(host, _)| host);
                format!("{host}:{}", rest_address.port())
            } else {
                rest_address.to_string()
            }
        });
        let identity = Identity {
            node_id: disk.node_id(),
            name: config.name.clone(),
            boot_id: Uuid::new_v4(),
            token,
            cluster_uuid: ClusterCell::new(disk.cluster_uuid()),
        };
        let own = Member {
            id: identity.node_id,
            name: config.name.clone(),
            address: advertise,
            rest_address: rest_advertise,
            boot_id: Some(identity.boot_id),
            alive: true,
            version: VERSION.to_owned(),
            format_written: FORMAT,
            formats_readable: READABLE.iter().copied().collect(),
            disk_id: config.disk_id.clone(),
        };
        let metadata = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(METADATA_THREADS)
            .thread_name("metadata")
            .enable_all()
            .build()
            .map_err(|error| StartError::Runtime(error.to_string()))?;
        let handle = metadata.handle().clone();
        let client = Client::new(identity.clone(), handle.clone())
            .map_err(|error| StartError::Runtime(error.to_string()))?;

        let raft = {
            let (fs, dir, id, links) = (
                Arc::clone(&fs),
                disk.meta_dir(),
                identity.node_id,
                Arc::new(RaftLinks(client.clone())),
            );
            handle.spawn(async move { RaftMeta::open(fs, &dir, id, links).await })
        };
        let raft = match raft.await {
            Ok(Ok(raft)) => raft,
            Ok(Err(error)) => {
                metadata.shutdown_background();
                return Err(StartError::Metadata(error.to_string()));
            }
            Err(error) => {
                metadata.shutdown_background();
                return Err(StartError::Metadata(error.to_string()));
            }
        };
        let meta: Arc<dyn MetaStore> = Arc::clone(&raft) as Arc<dyn MetaStore>;
        let replication = Replication::new(
            Arc::clone(&fs),
            disk.root().to_owned(),
            Arc::clone(&meta),
            client.clone(),
            handle.clone(),
            Handle::current(),
        );
        let copies = Arc::new(LocalCopies::new(Arc::clone(&replication), identity.node_id));
        let coordinator = Coordinator::new(
            Arc::clone(&meta),
            client.clone(),
            copies,
            config.indexing_budget(),
        );
        let facts = Facts {
            identity: identity.clone(),
            raft: Arc::clone(&raft),
            fs: Arc::clone(&fs),
            root: disk.root().to_owned(),
            disk_id: config.disk_id.clone(),
            progress: Arc::new(Progress::default()),
            cluster_name: config.cluster_name.clone(),
            metadata: handle.clone(),
            restart: CancellationToken::new(),
        };
        let shared = Shared {
            coordinator: coordinator.clone(),
            facts: Arc::new(facts.clone()),
        };
        let cell = Arc::new(OnceLock::new());
        // The cell was made here and is empty.
        let _ = cell.set(Arc::clone(&raft));
        let routes = links::routes(&cell, own.clone(), client.clone())
            .merge(coordinator.routes())
            .merge(replication.routes());
        let admin = segmentry_rest::admin::router(shared.clone(), Arc::new(facts.clone()));
        let (stop_rest, stop_rooms, stop_wire) = (
            CancellationToken::new(),
            CancellationToken::new(),
            CancellationToken::new(),
        );
        let wire = tokio::spawn(Server::new(identity.clone(), routes, admin).serve(
            wire_listener,
            handle.clone(),
            Handle::current(),
            stop_wire.clone(),
        ));
        let rest = tokio::spawn(segmentry_rest::serve(shared, rest_listener, stop_rest.clone()));

        let (fail, failed) = tokio::sync::watch::channel(None);
        let (record, recorded) = tokio::sync::watch::channel(false);
        let mut rooms: Vec<(&'static str, JoinHandle<()>)> = Vec::new();
        rooms.push((
            "membership",
            handle.spawn(membership(
                disk,
                fs,
                Arc::clone(&raft),
                identity.clone(),
                stop_rooms.clone(),
                record,
                fail,
            )),
        ));
        rooms.push(("manager", {
            let (meta, id, pinger, stop) = (
                Arc::clone(&meta),
                identity.node_id,
                Arc::new(WirePinger(client.clone())),
                stop_rooms.clone(),
            );
            handle.spawn(async move {
                segmentry_manager::run(
                    meta,
                    id,
                    pinger,
                    segmentry_manager::Timing::default(),
                    stop.cancelled(),
                )
                .await;
            })
        }));
        rooms.push(("copies", {
            let (own, facts, replication, stop) = (
                own.clone(),
                facts.clone(),
                Arc::clone(&replication),
                stop_rooms.clone(),
            );
            handle.spawn(async move { follow(meta, own, client, facts, replication, recorded, stop).await })
        }));
        tracing::info!(
            name = own.name,
            node_id = %own.id,
            boot_id = %identity.boot_id,
            rest = %rest_address,
            transport = %transport_address,
            advertised = own.address,
            cluster = ?identity.cluster_uuid.get(),
            "node started"
        );
        Ok(Self {
            rest_address,
            transport_address,
            facts,
            coordinator,
            replication,
            raft,
            own,
            stop_rest,
            stop_rooms,
            stop_wire,
            rest,
            wire,
            rooms,
            failed,
            metadata: Some(metadata),
        })
    }

    /// Where REST listens.
    pub const fn rest_address(&self) -> SocketAddr {
        self.rest_address
    }

    /// Where the internal port listens.
    pub const fn transport_address(&self) -> SocketAddr {
        self.transport_address
    }

    /// What this node says of itself.
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Carries out requests in this process.
    pub const fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// Resolves when the node has to end by itself.
    ///
    /// # Errors
    /// Always: why.
    pub async fn ended(&self) -> Result<(), EndError> {
        let mut failed = self.failed.clone();
        let mut watch = self.raft.leadership();
        let metadata = async {
            loop {
                if let Some(why) = self.raft.failed() {
                    return EndError::Metadata(why);
                }
                // A failed Raft has no leader: a change of leadership is when to look, and once a second for the rest.
                let _ = tokio::time::timeout(Duration::from_secs(1), watch.changed()).await;
            }
        };
        tokio::select! {
            () = self.facts.restart.cancelled() => Err(EndError::Reset),
            why = metadata => Err(why),
            why = failed.wait_for(Option::is_some) => Err(match why {
                Ok(why) => EndError::Port(why.clone().unwrap_or_default()),
                Err(_) => EndError::Port("membership is followed no more".into()),
            }),
        }
    }

    /// Stops in order: no new requests, running ones end; copies are flushed and closed; the cluster hears of it; Raft ends.
    pub async fn stop(mut self) {
        tracing::info!(name = self.own.name, "node stops");
        self.stop_rest.cancel();
        finish("REST", self.rest, DRAIN * 2).await;
        self.stop_rooms.cancel();
        for (name, task) in self.rooms.drain(..) {
            finish(name, task, DRAIN).await;
        }
        self.replication.close().await;
        // The manager need not find out by itself. Without a quorum there is nobody to tell.
        let state = self.raft.current();
        if state.is_alive(self.own.id)
            && let Some(boot_id) = self.own.boot_id
        {
            let leaving = self.raft.propose(Change::NodeLost {
                node: self.own.id,
                boot_id,
            });
            match tokio::time::timeout(LEAVE, leaving).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    tracing::info!(%error, "the cluster could not be told that this node leaves");
                }
                Err(_) => tracing::info!("the cluster did not hear in time that this node leaves"),
            }
        }
        self.stop_wire.cancel();
        finish("the internal port", self.wire, DRAIN * 2).await;
        let raft = Arc::clone(&self.raft);
        if let Some(metadata) = self.metadata.take() {
            let ending = metadata.spawn(async move { raft.shutdown().await });
            finish("the cluster metadata", ending, DRAIN * 2).await;
            let ended = tokio::task::spawn_blocking(move || metadata.shutdown_timeout(DRAIN)).await;
            if let Err(error) = ended {
                tracing::warn!(%error, "the metadata runtime did not end in order");
            }
        }
        tracing::info!(name = self.own.name, "node stopped");
    }
}

async fn finish<T>(what: &str, task: JoinHandle<T>, bound: Duration) {
    let abort = task.abort_handle();
    match tokio::time::timeout(bound, task).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(what, %error, "ended abnormally"),
        Err(_) => {
            abort.abort();
            tracing::warn!(what, "did not end in time, given up");
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, StartError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| StartError::Runtime(error.to_string()))
}

fn read_token(path: &std::path::Path) -> Result<Token, StartError> {
    let failed = |reason: String| StartError::Token {
        path: path.to_owned(),
        reason,
    };
    let token = Token::new(&std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?);
    if token.is_empty() {
        return Err(failed("is empty".into()));
    }
    Ok(token)
}

fn listen(address: SocketAddr, what: &'static str) -> Result<(TcpListener, SocketAddr), StartError> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        let local = listener.local_addr()?;
        Ok((listener, local))
    });
    bound.map_err(|source| StartError::Listen {
        address,
        what,
        source,
    })
}
