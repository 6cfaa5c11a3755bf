//! The manager over an in-memory cluster state, with processes that answer, refuse or keep silent.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use segmentry_manager::{Ping, Pinger, Timing, keep_joined, run};
use segmentry_meta::{Leadership, MemoryMeta, MetaStore, ProposeError};
use segmentry_settings::index::IndexSettings;
use segmentry_state::{BootId, Change, ClusterState, Index, Node, NodeId, ShardId};
use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::{sync::oneshot, task::JoinHandle};
use uuid::Uuid;

const ME: NodeId = NodeId(1);

#[derive(Default)]
struct Processes(Mutex<BTreeMap<NodeId, Ping>>);

impl Processes {
    fn set(&self, node: NodeId, ping: Ping) {
        self.0.lock().unwrap().insert(node, ping);
    }
}

impl Pinger for Processes {
    fn ping(&self, node: &Node) -> impl Future<Output = Ping> + Send {
        let answer = self.0.lock().unwrap().get(&node.id).cloned();
        async move { answer.unwrap_or(Ping::Refused("nobody".into())) }
    }
}

struct World {
    meta: Arc<MemoryMeta>,
    processes: Arc<Processes>,
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<()>>,
}

fn node(n: u64) -> Node {
    Node {
        id: NodeId(n),
        name: format!("n-{n}"),
        address: format!("127.0.0.1:{n}"),
        rest_address: String::new(),
        boot_id: Some(BootId::new_v4()),
        alive: true,
        version: String::new(),
        format_written: 1,
        formats_readable: [1].into(),
        disk_id: None,
    }
}

fn timing() -> Timing {
    Timing {
        interval: Duration::from_millis(20),
        deadline: Duration::from_millis(200),
        silence: Duration::from_millis(600),
        ..Timing::default()
    }
}

impl World {
    fn new() -> Self {
        let nodes: BTreeMap<_, _> = (1..=3).map(|n| (NodeId(n), node(n))).collect();
        let processes = Arc::new(Processes::default());
        for (id, node) in &nodes {
            processes.set(*id, Ping::Alive(node.boot_id.unwrap()));
        }
        let state = ClusterState {
            cluster_uuid: Some(Uuid::new_v4()),
            nodes,
            ..ClusterState::default()
        };
        let meta = Arc::new(MemoryMeta::new(state, ME));
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move {
            let _ = stopped.await;
        };
        let task = tokio::spawn(run(
            Arc::<MemoryMeta>::clone(&meta),
            ME,
            Arc::clone(&processes),
            timing(),
            shutdown,
        ));
        Self {
            meta,
            processes,
            stop: Some(stop),
            task: Some(task),
        }
    }

    async fn until(&self, what: &str, holds: impl FnMut(&Arc<ClusterState>) -> bool) -> Arc<ClusterState> {
        let mut states = self.meta.watch();
        let waited = tokio::time::timeout(Duration::from_secs(10), states.wait_for(holds)).await;
        let Ok(state) = waited else {
            panic!("never happened: {what}; proposed: {:#?}", self.meta.proposed())
        };
        Arc::clone(&state.unwrap())
    }

    async fn end(mut self) {
        drop(self.stop.take());
        let joined = tokio::time::timeout(Duration::from_secs(5), self.task.take().unwrap()).await;
        joined.expect("the manager ends when it is told to").unwrap();
    }

    /// An index of one shard with its copies in sync, primary not on the manager's own node.
    async fn index(&self, replicas: u32) -> ShardId {
        let settings = IndexSettings {
            number_of_replicas: replicas,
            ..IndexSettings::default()
        };
        let mut state = ClusterState::clone(&self.meta.current());
        // Copies are assigned to the other nodes first.
        state.nodes.remove(&ME);
        let mut shards = segmentry_allocation::assign_new(&state, &settings, Uuid::new_v4).unwrap();
        for shard in &mut shards {
            shard.term = 0;
        }
        let uuid = Uuid::new_v4();
        let index = Index {
            uuid,
            name: "i".into(),
            settings,
            settings_version: 0,
            mapping: Arc::default(),
            owner: None,
            created_ms: 0,
            shards,
        };
        self.meta
            .apply(Change::CreateIndex {
                epoch: None,
                index: Box::new(index),
            })
            .unwrap();
        let id = ShardId {
            index: uuid,
            shard: 0,
        };
        let state = self
            .until("the first activation", |s| s.primary_node(id).is_some())
            .await;
        let (shard, boot_id) = (
            state.shard(id).unwrap().clone(),
            state.primary_node(id).unwrap().boot_id.unwrap(),
        );
        assert_eq!(shard.term, 1);
        self.meta
            .apply(Change::PrimaryStarted {
                shard: id,
                term: 1,
                boot_id,
            })
            .unwrap();
        for copy in shard.replicas() {
            self.meta
                .apply(Change::AddInSync {
                    shard: id,
                    term: 1,
                    allocation: copy.allocation,
                })
                .unwrap();
        }
        id
    }
}

#[tokio::test]
async fn a_refused_connection_ends_a_process_at_once_and_an_in_sync_copy_takes_over() {
    let world = World::new();
    let id = world.index(1).await;
    let old = world.meta.current().primary_node(id).unwrap().id;
    let began = Instant::now();
    world
        .processes
        .set(old, Ping::Refused("connection refused".into()));
    let state = world
        .until("promotion", |s| s.primary_node(id).is_some_and(|n| n.id != old))
        .await;
    assert!(began.elapsed() < timing().silence, "{:?}", began.elapsed());
    assert_eq!(state.shard(id).unwrap().term, 2);
    assert!(!state.is_alive(old));
    world.end().await;
}

#[tokio::test]
async fn another_boot_id_ends_a_process_at_once() {
    let world = World::new();
    let id = world.index(1).await;
    let old = world.meta.current().primary_node(id).unwrap().id;
    world.processes.set(old, Ping::Alive(BootId::new_v4()));
    world
        .until("promotion", |s| s.primary_node(id).is_some_and(|n| n.id != old))
        .await;
    world.end().await;
}

#[tokio::test]
async fn silence_is_borne_for_a_while_and_an_answer_ends_it() {
    let world = World::new();
    let id = world.index(1).await;
    let (old, boot_id) = {
        let state = world.meta.current();
        let node = state.primary_node(id).unwrap();
        (node.id, node.boot_id.unwrap())
    };
    let began = Instant::now();
    world.processes.set(old, Ping::Silent("no answer".into()));
    world.until("loss", |s| !s.is_alive(old)).await;
    let silent = began.elapsed();
    assert!(silent >= timing().silence * 5 / 6, "lost after {silent:?}");
    world
        .until("promotion", |s| s.primary_node(id).is_some_and(|n| n.id != old))
        .await;

    let other = world.meta.current().primary_node(id).unwrap().clone();
    world.processes.set(other.id, Ping::Silent("no answer".into()));
    tokio::time::sleep(timing().silence / 2).await;
    world.processes.set(other.id, Ping::Alive(other.boot_id.unwrap()));
    tokio::time::sleep(timing().silence).await;
    assert!(
        world.meta.current().is_alive(other.id),
        "an answer in time ends the silence"
    );
    assert_ne!(boot_id, other.boot_id.unwrap());
    world.end().await;
}

#[tokio::test]
async fn nothing_is_done_while_another_node_leads() {
    let world = World::new();
    world.meta.set_leadership(Leadership {
        leader: Some(NodeId(2)),
        term: 2,
        local: false,
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = world.meta.proposed().len();
    world.processes.set(NodeId(3), Ping::Refused("gone".into()));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(world.meta.proposed().len(), before);
    world.meta.set_leadership(Leadership {
        leader: Some(ME),
        term: 3,
        local: true,
    });
    world
        .until("loss, once this node leads again", |s| !s.is_alive(NodeId(3)))
        .await;
    world.end().await;
}

#[tokio::test]
async fn a_change_without_an_outcome_is_made_again() {
    let world = World::new();
    let id = world.index(1).await;
    let old = world.meta.current().primary_node(id).unwrap().id;
    for error in [
        ProposeError::NoQuorum,
        ProposeError::Unknown,
        ProposeError::NoQuorum,
    ] {
        world.meta.fail_next(error, false);
    }
    world.meta.fail_next(ProposeError::Unknown, true);
    world.processes.set(old, Ping::Refused("gone".into()));
    world
        .until("promotion", |s| s.primary_node(id).is_some_and(|n| n.id != old))
        .await;
    assert_eq!(world.meta.current().shard(id).unwrap().term, 2, "and only once");
    world.end().await;
}

#[tokio::test]
async fn a_lost_process_that_lives_joins_again() {
    let world = World::new();
    let record = world.meta.current().node(NodeId(2)).unwrap().clone();
    let (stop, stopped) = oneshot::channel::<()>();
    let joined = tokio::spawn(keep_joined(
        Arc::<MemoryMeta>::clone(&world.meta),
        record.clone(),
        async move {
            let _ = stopped.await;
        },
    ));
    world
        .meta
        .apply(Change::NodeLost {
            node: record.id,
            boot_id: record.boot_id.unwrap(),
        })
        .unwrap();
    let again = |s: &Arc<ClusterState>| {
        s.node(record.id)
            .is_some_and(|n| n.alive && n.boot_id == record.boot_id)
    };
    world.until("the same process joins again", again).await;
    // A late join of an earlier process is overruled as well.
    let mut stale = record.clone();
    stale.boot_id = Some(BootId::new_v4());
    world.meta.apply(Change::NodeJoined { node: stale }).unwrap();
    world.until("the living process overrules", again).await;
    drop(stop);
    joined.await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn a_node_that_does_not_know_its_volume_joins_once() {
    let world = World::new();
    let unaware = world.meta.current().node(NodeId(2)).unwrap().clone();
    // As the operator told it at initialisation.
    let aware = Node {
        disk_id: Some("pvc-2".into()),
        ..unaware.clone()
    };
    world.meta.apply(Change::NodeJoined { node: aware }).unwrap();
    let process = Node {
        boot_id: Some(BootId::new_v4()),
        ..unaware
    };
    let boot_id = process.boot_id;
    world.processes.set(process.id, Ping::Alive(boot_id.unwrap()));
    let (stop, stopped) = oneshot::channel::<()>();
    let joined = tokio::spawn(keep_joined(
        Arc::<MemoryMeta>::clone(&world.meta),
        process.clone(),
        async move {
            let _ = stopped.await;
        },
    ));
    let there = |s: &Arc<ClusterState>| s.node(process.id).is_some_and(|n| n.boot_id == boot_id);
    world.until("it joins", there).await;
    let joins = || {
        let proposed = world.meta.proposed();
        let of = |change: &&Change| matches!(change, Change::NodeJoined { node } if node.boot_id == boot_id);
        proposed.iter().filter(of).count()
    };
    // Where it goes on joining, it does so at once.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(joins(), 1);
    let known = world.meta.current().node(process.id).unwrap().clone();
    assert_eq!(known.disk_id.as_deref(), Some("pvc-2"));
    drop(stop);
    joined.await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn a_node_that_is_not_a_member_waits_until_it_is() {
    let meta = Arc::new(MemoryMeta::new(ClusterState::default(), ME));
    let me = node(1);
    let joining = tokio::spawn({
        let (meta, me) = (Arc::clone(&meta), me.clone());
        async move { segmentry_manager::join(meta.as_ref(), me).await }
    });
    let mut member = me.clone();
    member.boot_id = None;
    member.alive = false;
    let form = Change::Form {
        cluster_uuid: Uuid::new_v4(),
        cluster_name: "c".into(),
        members: vec![member],
    };
    meta.apply(form).unwrap();
    tokio::time::timeout(Duration::from_secs(5), joining)
        .await
        .expect("joins once it is a member")
        .unwrap();
    assert_eq!(meta.current().node(ME), Some(&me));
}
