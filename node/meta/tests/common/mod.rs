//! Several metadata stores in one process, over a network in memory that can be cut and can lose answers.
#![allow(dead_code, reason = "each test file uses its part")]

use bytes::Bytes;
use segmentry_meta::{MetaFuture, MetaStore, PeerAddr, RaftMeta, RaftTransport, Timing, TransportError};
use segmentry_state::{BootId, Change, ClusterState, Node, NodeId};
use segmentry_vfs::{RealFs, Vfs};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};
use uuid::Uuid;

pub const PATIENCE: Duration = Duration::from_secs(20);

/// Addresses and who answers there.
#[derive(Default)]
pub struct Network {
    listeners: Mutex<HashMap<String, Arc<RaftMeta>>>,
    cut_off: Mutex<HashSet<NodeId>>,
    lost_answers: Mutex<HashMap<&'static str, u32>>,
    calls: Mutex<HashMap<String, u32>>,
}

impl Network {
    pub fn listen(&self, address: &str, node: &Arc<RaftMeta>) {
        self.listeners
            .lock()
            .unwrap()
            .insert(address.into(), Arc::clone(node));
    }

    pub fn close(&self, address: &str) {
        self.listeners.lock().unwrap().remove(address);
    }

    /// No call reaches or leaves the node.
    pub fn cut(&self, node: NodeId) {
        self.cut_off.lock().unwrap().insert(node);
    }

    pub fn heal(&self) {
        self.cut_off.lock().unwrap().clear();
    }

    /// The next `count` calls of a path are handled and their answers lost.
    pub fn lose_answers(&self, path: &'static str, count: u32) {
        self.lost_answers.lock().unwrap().insert(path, count);
    }

    pub fn calls(&self, path: &str) -> u32 {
        self.calls.lock().unwrap().get(path).copied().unwrap_or(0)
    }
}

struct Wire {
    from: NodeId,
    network: Arc<Network>,
}

impl RaftTransport for Wire {
    fn call<'a>(
        &'a self,
        peer: &'a PeerAddr,
        path: &'static str,
        body: Bytes,
        _deadline: Duration,
    ) -> MetaFuture<'a, Result<Bytes, TransportError>> {
        Box::pin(async move {
            *self.network.calls.lock().unwrap().entry(path.into()).or_default() += 1;
            let cut = |n: &NodeId| self.network.cut_off.lock().unwrap().contains(n);
            if cut(&self.from) || cut(&peer.node_id) {
                // A black hole: the caller's deadline ends it.
                std::future::pending::<()>().await;
            }
            let listener = self.network.listeners.lock().unwrap().get(&peer.address).cloned();
            let Some(listener) = listener else {
                return Err(TransportError::NotSent("connection refused".into()));
            };
            // As over a real network, the handler goes on when the caller has given up.
            let handled = tokio::spawn(async move { listener.handle(path, body).await });
            let answer = handled
                .await
                .map_err(|e| TransportError::NoAnswer(e.to_string()))?;
            if let Some(count) = self
                .network
                .lost_answers
                .lock()
                .unwrap()
                .get_mut(path)
                .filter(|c| **c > 0)
            {
                *count -= 1;
                return Err(TransportError::NoAnswer("connection reset".into()));
            }
            Ok(answer)
        })
    }
}

pub fn timing() -> Timing {
    Timing {
        snapshot_every: 20,
        ..Timing::default()
    }
}

pub fn address(n: u64) -> String {
    format!("n-{n}:9300")
}

pub fn node(n: u64) -> Node {
    Node {
        id: NodeId(n),
        name: format!("n-{n}"),
        address: address(n),
        rest_address: String::new(),
        boot_id: None,
        alive: false,
        version: String::new(),
        format_written: 1,
        formats_readable: [1].into(),
        disk_id: None,
    }
}

pub fn joined(n: u64) -> Change {
    Change::NodeJoined {
        node: Node {
            boot_id: Some(BootId::new_v4()),
            alive: true,
            ..node(n)
        },
    }
}

/// A Change that can be told apart: a cluster setting is switched.
pub fn switch(on: bool) -> Change {
    let key = segmentry_settings::cluster::PREFER_PRIMARY.to_owned();
    Change::ClusterSettings {
        epoch: None,
        settings: [(key, Some(on.to_string()))].into(),
    }
}

pub struct Cluster {
    pub network: Arc<Network>,
    pub nodes: BTreeMap<u64, Arc<RaftMeta>>,
    pub uuid: Uuid,
    dirs: tempfile::TempDir,
}

impl Cluster {
    /// Empty nodes 1..=count, running.
    pub async fn empty(count: u64) -> Self {
        let dirs = tempfile::tempdir().unwrap();
        let network = Arc::new(Network::default());
        let mut cluster = Self {
            network,
            nodes: BTreeMap::new(),
            uuid: Uuid::new_v4(),
            dirs,
        };
        for n in 1..=count {
            cluster.start(n).await;
        }
        cluster
    }

    /// A formed cluster.
    pub async fn formed(count: u64) -> Self {
        let cluster = Self::empty(count).await;
        cluster.initialise(1, count).await;
        for n in 1..=count {
            cluster.until(n, "formation", |s| s.cluster_uuid.is_some()).await;
        }
        cluster
    }

    pub async fn initialise(&self, at: u64, count: u64) {
        let members = (1..=count).map(node).collect();
        self.nodes[&at]
            .initialise(self.uuid, "c".into(), members)
            .await
            .unwrap();
    }

    pub async fn start(&mut self, n: u64) {
        self.start_at(n, &address(n)).await;
    }

    pub async fn start_at(&mut self, n: u64, address: &str) {
        let dir = self.dirs.path().join(n.to_string());
        let meta = open(Arc::new(RealFs), &dir, n, &self.network).await;
        self.network.listen(address, &meta);
        self.nodes.insert(n, meta);
    }

    pub async fn stop(&mut self, n: u64) {
        self.network.close(&address(n));
        if let Some(meta) = self.nodes.remove(&n) {
            meta.shutdown().await;
        }
    }

    pub fn meta(&self, n: u64) -> &Arc<RaftMeta> {
        &self.nodes[&n]
    }

    pub async fn until(
        &self,
        n: u64,
        what: &str,
        holds: impl FnMut(&Arc<ClusterState>) -> bool,
    ) -> Arc<ClusterState> {
        let mut states = self.nodes[&n].watch();
        let waited = tokio::time::timeout(PATIENCE, states.wait_for(holds)).await;
        let Ok(state) = waited else {
            panic!(
                "never happened on node {n}: {what}; {:#?}",
                self.nodes[&n].current()
            )
        };
        Arc::clone(&state.unwrap())
    }

    /// The leader that a node (the lowest one that runs) knows, once it is one that runs.
    pub async fn leader(&self) -> u64 {
        let (_, any) = self.nodes.iter().next().unwrap();
        let mut leadership = any.leadership();
        let known = leadership.wait_for(|l| l.leader.is_some_and(|l| self.nodes.contains_key(&l.0)));
        let known = tokio::time::timeout(PATIENCE, known)
            .await
            .expect("a leader is elected")
            .unwrap();
        known.leader.unwrap().0
    }

    pub async fn follower(&self) -> u64 {
        let leader = self.leader().await;
        *self.nodes.keys().find(|n| **n != leader).unwrap()
    }

    pub async fn end(mut self) {
        for n in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.stop(n).await;
        }
    }
}

pub async fn open(fs: Arc<dyn Vfs>, dir: &Path, n: u64, network: &Arc<Network>) -> Arc<RaftMeta> {
    let wire = Arc::new(Wire {
        from: NodeId(n),
        network: Arc::clone(network),
    });
    RaftMeta::open_with(fs, dir, NodeId(n), wire, timing())
        .await
        .unwrap()
}
