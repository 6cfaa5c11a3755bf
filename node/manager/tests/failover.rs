//! Three nodes with real metadata over an in-memory network, a manager each, and a stand-in for the applier: how long a shard
//! has no primary after one node is killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use bytes::Bytes;
use segmentry_manager::{Ping, Pinger, Timing, keep_joined, run};
use segmentry_meta::{MetaFuture, MetaStore, PeerAddr, RaftMeta, RaftTransport, TransportError};
use segmentry_settings::{admin::Health, index::IndexSettings};
use segmentry_state::{BootId, Change, ClusterState, Index, Node, NodeId, ShardId};
use segmentry_vfs::RealFs;
use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;
use uuid::Uuid;

/// Who listens, and which process it is.
#[derive(Default)]
struct Network(Mutex<HashMap<NodeId, (Arc<RaftMeta>, BootId)>>);

impl Network {
    fn at(&self, node: NodeId) -> Option<(Arc<RaftMeta>, BootId)> {
        self.0.lock().unwrap().get(&node).cloned()
    }
}

struct Wire(Arc<Network>);

impl RaftTransport for Wire {
    fn call<'a>(
        &'a self,
        peer: &'a PeerAddr,
        path: &'static str,
        body: Bytes,
        _deadline: Duration,
    ) -> MetaFuture<'a, Result<Bytes, TransportError>> {
        Box::pin(async move {
            let Some((meta, _)) = self.0.at(peer.node_id) else {
                return Err(TransportError::NotSent("refused".into()));
            };
            let handled = tokio::spawn(async move { meta.handle(path, body).await });
            handled.await.map_err(|e| TransportError::NoAnswer(e.to_string()))
        })
    }
}

impl Pinger for Wire {
    fn ping(&self, node: &Node) -> impl Future<Output = Ping> + Send {
        let answer = self.0.at(node.id);
        async move {
            answer.map_or(Ping::Refused("refused".into()), |(_, boot_id)| {
                Ping::Alive(boot_id)
            })
        }
    }
}

struct Process {
    meta: Arc<RaftMeta>,
    tasks: Vec<JoinHandle<()>>,
}

struct World {
    network: Arc<Network>,
    dirs: tempfile::TempDir,
    processes: BTreeMap<u64, Process>,
}

fn node(n: u64, boot_id: Option<BootId>) -> Node {
    Node {
        id: NodeId(n),
        name: format!("n-{n}"),
        address: format!("n-{n}:9300"),
        rest_address: String::new(),
        boot_id,
        alive: boot_id.is_some(),
        version: String::new(),
        format_written: 1,
        formats_readable: [1].into(),
        disk_id: None,
    }
}

/// Starts the primaries that are given to this process, and puts the listed copies of live nodes in sync.
async fn apply_forever(meta: Arc<RaftMeta>, boot_id: BootId) {
    let mut states = meta.watch();
    loop {
        let state = Arc::clone(&states.borrow_and_update());
        let mut changes = Vec::new();
        for (id, _, shard) in state.shards().filter(|(_, _, s)| s.active == Some(boot_id)) {
            if !shard.started {
                changes.push(Change::PrimaryStarted {
                    shard: id,
                    term: shard.term,
                    boot_id,
                });
            }
            for copy in shard
                .replicas()
                .filter(|c| !shard.is_in_sync(c.allocation) && state.is_alive(c.node))
            {
                changes.push(Change::AddInSync {
                    shard: id,
                    term: shard.term,
                    allocation: copy.allocation,
                });
            }
        }
        if changes.is_empty() {
            if states.changed().await.is_err() {
                return;
            }
        } else {
            // A refusal means that the state has moved on; it is looked at again.
            let _ = meta.propose_all(changes).await;
        }
    }
}

impl World {
    async fn new() -> Self {
        let network = Arc::new(Network::default());
        let mut world = Self {
            network,
            dirs: tempfile::tempdir().unwrap(),
            processes: BTreeMap::new(),
        };
        for n in 1..=3 {
            world.start(n).await;
        }
        let members = (1..=3).map(|n| node(n, None)).collect();
        world
            .meta(1)
            .initialise(Uuid::new_v4(), "c".into(), members)
            .await
            .unwrap();
        world.until(1, "all join", |s| s.alive().count() == 3).await;
        world
    }

    async fn start(&mut self, n: u64) {
        let boot_id = BootId::new_v4();
        let wire = Arc::new(Wire(Arc::clone(&self.network)));
        let dir = self.dirs.path().join(n.to_string());
        let transport: Arc<dyn RaftTransport> = Arc::<Wire>::clone(&wire);
        let meta = RaftMeta::open(Arc::new(RealFs), &dir, NodeId(n), transport)
            .await
            .unwrap();
        self.network
            .0
            .lock()
            .unwrap()
            .insert(NodeId(n), (Arc::clone(&meta), boot_id));
        let never = std::future::pending::<()>;
        let tasks = vec![
            tokio::spawn(run(
                Arc::<RaftMeta>::clone(&meta),
                NodeId(n),
                wire,
                Timing::default(),
                never(),
            )),
            tokio::spawn(keep_joined(
                Arc::<RaftMeta>::clone(&meta),
                node(n, Some(boot_id)),
                never(),
            )),
            tokio::spawn(apply_forever(Arc::clone(&meta), boot_id)),
        ];
        self.processes.insert(n, Process { meta, tasks });
    }

    /// From one moment to the next nobody listens and nothing runs.
    async fn kill(&mut self, n: u64) {
        self.network.0.lock().unwrap().remove(&NodeId(n));
        let process = self.processes.remove(&n).unwrap();
        for task in &process.tasks {
            task.abort();
        }
        process.meta.shutdown().await;
    }

    fn meta(&self, n: u64) -> &Arc<RaftMeta> {
        &self.processes[&n].meta
    }

    async fn until(
        &self,
        n: u64,
        what: &str,
        holds: impl FnMut(&Arc<ClusterState>) -> bool,
    ) -> Arc<ClusterState> {
        let mut states = self.meta(n).watch();
        let waited = tokio::time::timeout(Duration::from_secs(30), states.wait_for(holds)).await;
        let Ok(state) = waited else {
            panic!("never happened on {n}: {what}; {:#?}", self.meta(n).current())
        };
        Arc::clone(&state.unwrap())
    }

    async fn index(&self, shards: u32, replicas: u32) -> Uuid {
        let settings = IndexSettings {
            number_of_shards: shards,
            number_of_replicas: replicas,
            ..IndexSettings::default()
        };
        let state = self.meta(1).current();
        let shards = segmentry_allocation::assign_new(&state, &settings, Uuid::new_v4).unwrap();
        let index = Index {
            uuid: Uuid::new_v4(),
            name: "i".into(),
            settings,
            settings_version: 0,
            mapping: Arc::default(),
            owner: None,
            created_ms: 0,
            shards,
        };
        let uuid = index.uuid;
        self.meta(1)
            .propose(Change::CreateIndex {
                epoch: None,
                index: Box::new(index),
            })
            .await
            .unwrap();
        self.until(1, "green", |s| s.health() == Health::Green).await;
        uuid
    }

    async fn end(mut self) {
        for n in self.processes.keys().copied().collect::<Vec<_>>() {
            self.kill(n).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_shard_has_a_primary_within_three_seconds_after_any_node_is_killed_and_is_green_when_it_returns()
 {
    let mut world = World::new().await;
    let index = world.index(3, 2).await;
    let leader = world.meta(1).leader().unwrap().0;
    // The leader itself, then one that only follows.
    for victim in [leader, leader % 3 + 1] {
        let witness = *world.processes.keys().find(|n| **n != victim).unwrap();
        let before = world.meta(witness).read().await.unwrap();
        let began = Instant::now();
        world.kill(victim).await;
        let state = world
            .until(witness, "all primaries serve", |s| {
                !s.is_alive(NodeId(victim)) && (0..3).all(|n| s.primary_serves(ShardId { index, shard: n }))
            })
            .await;
        let took = began.elapsed();
        assert!(took < Duration::from_secs(3), "fail-over took {took:?}");
        for (old, new) in before
            .index(index)
            .unwrap()
            .shards
            .iter()
            .zip(&state.index(index).unwrap().shards)
        {
            let was_there = old.primary_copy().unwrap().node == NodeId(victim);
            assert_eq!(
                new.term,
                old.term + u64::from(was_there),
                "only the killed node's primaries have a new term"
            );
        }
        world.start(victim).await;
        world
            .until(witness, "green again", |s| s.health() == Health::Green)
            .await;
    }
    world.end().await;
}
