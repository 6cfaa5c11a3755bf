//! Several nodes in one process: real ports on loopback, real files, one cluster state in memory. The tests play the manager.
#![allow(dead_code, reason = "each test file uses a part")]

mod faulty;

pub use faulty::FaultyFs;
use segmentry_meta::{MemoryMeta, MetaStore};
use segmentry_query::{Query, parse_search};
use segmentry_replication::{
    Done, Refresh, Replication,
    shard::{ShardCopy, WriteError, WriteKind, WriteOp},
};
use segmentry_settings::{ReplicationType, index::IndexSettings};
use segmentry_state::{
    AllocationId, Change, ClusterState, Index, IndexUuid, Node as Member, NodeId, Shard, ShardCopy as Listed,
    ShardId,
};
use segmentry_translog::{Operation, OperationKind};
use segmentry_wire::{Client, ClusterCell, Identity, Server, Token};
use std::{net::TcpListener, sync::Arc, time::Duration};
use tempfile::TempDir;
use tokio::{runtime::Handle, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub const INDEX: IndexUuid = Uuid::from_u128(0xA);
pub const SHARD: ShardId = ShardId {
    index: INDEX,
    shard: 0,
};
const CLUSTER: Uuid = Uuid::from_u128(0xC);

/// A running process of a node.
pub struct Process {
    pub replication: Arc<Replication>,
    pub member: Member,
    pub disk: FaultyFs,
    stop_follow: CancellationToken,
    stop_serve: CancellationToken,
    follow: JoinHandle<()>,
    serve: JoinHandle<std::io::Result<()>>,
}

pub struct Cluster {
    pub meta: Arc<MemoryMeta>,
    pub processes: Vec<Option<Process>>,
    dirs: Vec<TempDir>,
}

pub fn id(number: u128) -> AllocationId {
    Uuid::from_u128(number)
}

pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

fn member(number: usize, address: &str, boot: Uuid) -> Member {
    Member {
        id: NodeId(number as u64),
        name: format!("n-{number}"),
        address: address.to_owned(),
        rest_address: String::new(),
        boot_id: Some(boot),
        alive: true,
        version: "0".to_owned(),
        format_written: 1,
        formats_readable: [1].into(),
        disk_id: None,
    }
}

impl Process {
    fn start(number: usize, dir: &TempDir, meta: &Arc<MemoryMeta>, disk: FaultyFs) -> Self {
        let identity = Identity {
            node_id: NodeId(number as u64),
            name: format!("n-{number}"),
            boot_id: Uuid::new_v4(),
            token: Token::new("secret"),
            cluster_uuid: ClusterCell::new(Some(CLUSTER)),
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let client = Client::new(identity.clone(), Handle::current()).unwrap();
        let replication = Replication::new(
            Arc::new(disk.clone()),
            dir.path().to_owned(),
            Arc::clone(meta) as Arc<dyn MetaStore>,
            client,
            Handle::current(),
            Handle::current(),
        );
        let (stop_follow, stop_serve) = (CancellationToken::new(), CancellationToken::new());
        let server = Server::new(identity.clone(), replication.routes(), axum_router());
        let serve =
            tokio::spawn(server.serve(listener, Handle::current(), Handle::current(), stop_serve.clone()));
        let (following, stop) = (Arc::clone(&replication), stop_follow.clone());
        let follow = tokio::spawn(async move { following.follow(stop.cancelled()).await });
        let member = member(number, &address, identity.boot_id);
        Self {
            replication,
            member,
            disk,
            stop_follow,
            stop_serve,
            follow,
            serve,
        }
    }

    async fn end(self, clean: bool) {
        self.stop_follow.cancel();
        self.follow.await.unwrap();
        if clean {
            self.replication.close().await;
        } else {
            self.stop_serve.cancel();
            self.replication.abandon().await;
        }
        self.stop_serve.cancel();
        self.serve.await.unwrap().unwrap();
    }
}

fn axum_router() -> axum::Router {
    axum::Router::new()
}

impl Cluster {
    /// Nodes 0.. of a formed cluster.
    pub fn start(nodes: usize) -> Self {
        let meta = Arc::new(MemoryMeta::new(ClusterState::default(), NodeId(0)));
        let dirs: Vec<TempDir> = (0..nodes).map(|_| TempDir::new().unwrap()).collect();
        let processes: Vec<Option<Process>> = dirs
            .iter()
            .enumerate()
            .map(|(number, dir)| Some(Process::start(number, dir, &meta, FaultyFs::default())))
            .collect();
        let mut members: Vec<Member> = processes
            .iter()
            .flatten()
            .map(|process| process.member.clone())
            .collect();
        if members.len() == 2 {
            // A cluster has an odd number of members.
            members.push(Member {
                alive: false,
                boot_id: None,
                ..member(2, "127.0.0.1:1", Uuid::nil())
            });
        }
        meta.apply(Change::Form {
            cluster_uuid: CLUSTER,
            cluster_name: "c".to_owned(),
            members,
        })
        .unwrap();
        Self {
            meta,
            processes,
            dirs,
        }
    }

    /// An index of one shard: copy 1 is primary on node 0, copy n + 1 a replica on node n.
    pub async fn create(&self, kind: ReplicationType, replicas: usize) {
        self.create_with(IndexSettings {
            replication_type: kind,
            number_of_replicas: u32::try_from(replicas).unwrap(),
            refresh_interval_ms: Some(200),
            ..IndexSettings::default()
        })
        .await;
    }

    pub async fn create_with(&self, settings: IndexSettings) {
        let replicas = settings.number_of_replicas;
        let shard = Shard {
            number: 0,
            term: 0,
            history: Uuid::from_u128(7),
            created: false,
            primary: Some(id(1)),
            active: None,
            started: false,
            in_sync: [id(1)].into(),
            copies: vec![Listed {
                allocation: id(1),
                node: NodeId(0),
                broken: None,
            }],
            unassigned_reason: None,
        };
        let index = Index {
            uuid: INDEX,
            name: "books".to_owned(),
            settings,
            settings_version: 1,
            mapping: Arc::default(),
            owner: None,
            created_ms: 0,
            shards: vec![shard],
        };
        self.meta
            .apply(Change::CreateIndex {
                epoch: None,
                index: Box::new(index),
            })
            .unwrap();
        self.activate(0, id(1)).await;
        for node in 1..=replicas {
            self.assign(node as usize, id(u128::from(node) + 1));
        }
        self.in_sync(1 + replicas as usize).await;
    }

    pub fn shard(&self) -> Shard {
        self.meta.current().shard(SHARD).unwrap().clone()
    }

    pub fn process(&self, node: usize) -> &Process {
        self.processes[node].as_ref().unwrap()
    }

    pub fn copy(&self, node: usize) -> Arc<ShardCopy> {
        self.process(node).replication.copy(SHARD).unwrap()
    }

    /// As the manager would, and waits until writes are admitted.
    pub async fn activate(&self, node: usize, allocation: AllocationId) {
        let term = self.shard().term + 1;
        let boot_id = self.process(node).member.boot_id.unwrap();
        self.meta
            .apply(Change::Activate {
                shard: SHARD,
                term,
                allocation,
                boot_id,
            })
            .unwrap();
        eventually("the primary starts", async || self.shard().started).await;
    }

    pub fn assign(&self, node: usize, allocation: AllocationId) {
        let term = self.shard().term;
        let change = Change::AssignReplica {
            shard: SHARD,
            term,
            allocation,
            node: NodeId(node as u64),
        };
        self.meta.apply(change).unwrap();
    }

    pub async fn in_sync(&self, copies: usize) {
        eventually("copies are in sync", async || {
            self.shard().in_sync.len() == copies
        })
        .await;
    }

    /// The process ends at once; the manager notices.
    pub async fn kill(&mut self, node: usize) {
        let process = self.processes[node].take().unwrap();
        let lost = Change::NodeLost {
            node: process.member.id,
            boot_id: process.member.boot_id.unwrap(),
        };
        process.end(false).await;
        self.meta.apply(lost).unwrap();
    }

    /// The process ends in order.
    pub async fn stop(&mut self, node: usize) {
        let process = self.processes[node].take().unwrap();
        let lost = Change::NodeLost {
            node: process.member.id,
            boot_id: process.member.boot_id.unwrap(),
        };
        process.end(true).await;
        self.meta.apply(lost).unwrap();
    }

    pub fn restart(&mut self, node: usize) {
        self.restart_on(node, FaultyFs::default());
    }

    pub fn restart_on(&mut self, node: usize, disk: FaultyFs) {
        let process = Process::start(node, &self.dirs[node], &self.meta, disk);
        self.meta
            .apply(Change::NodeJoined {
                node: process.member.clone(),
            })
            .unwrap();
        self.processes[node] = Some(process);
    }

    /// From now on nothing that is sent to the node arrives, and nothing is refused either.
    pub fn isolate(&self, node: usize) -> TcpListener {
        let hole = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = hole.local_addr().unwrap().to_string();
        let moved = Member {
            address,
            ..self.process(node).member.clone()
        };
        self.meta.apply(Change::NodeJoined { node: moved }).unwrap();
        hole
    }

    pub fn reconnect(&self, node: usize) {
        self.meta
            .apply(Change::NodeJoined {
                node: self.process(node).member.clone(),
            })
            .unwrap();
    }

    pub async fn write(
        &self,
        node: usize,
        doc: &str,
        source: &str,
        refresh: Refresh,
    ) -> Result<Done, WriteError> {
        self.write_until(node, doc, source, refresh, soon()).await
    }

    pub async fn write_until(
        &self,
        node: usize,
        doc: &str,
        source: &str,
        refresh: Refresh,
        deadline: Instant,
    ) -> Result<Done, WriteError> {
        let op = WriteOp {
            kind: WriteKind::Index,
            id: doc.into(),
            fresh_id: false,
            routing: None,
            if_seq_no: None,
            if_primary_term: None,
            source: source.to_owned().into(),
        };
        self.process(node)
            .replication
            .write(SHARD, vec![op], refresh, deadline)
            .await
            .unwrap()
            .pop()
            .unwrap()
    }

    /// Documents that the searcher of a node's copy shows.
    pub async fn count(&self, node: usize) -> u64 {
        self.copy(node).count(all(), 0).await.unwrap()
    }

    /// The log of a node's copy from an operation on.
    pub async fn log(&self, node: usize, from: u64) -> Vec<Operation> {
        let copy = self.copy(node);
        let mut out: Vec<Operation> = Vec::new();
        loop {
            let next = out.last().map_or(from, |last| last.seq_no + 1);
            let more = copy.operations_from(next, 1 << 20).await.unwrap();
            if more.is_empty() {
                return out;
            }
            out.extend(more);
        }
    }

    /// Equal in what makes an operation what it is.
    pub async fn assert_same_logs(&self, left: usize, right: usize, from: u64) {
        let key = |operation: &Operation| {
            let kind = matches!(operation.kind, OperationKind::Index);
            (
                operation.seq_no,
                operation.term,
                operation.version,
                operation.id.clone(),
                operation.source.clone(),
                kind,
            )
        };
        let left: Vec<_> = self.log(left, from).await.iter().map(key).collect();
        let right: Vec<_> = self.log(right, from).await.iter().map(key).collect();
        assert_eq!(left, right, "SamePrefix");
    }

    pub async fn end(mut self) {
        for process in self.processes.drain(..).flatten() {
            process.end(true).await;
        }
    }
}

pub fn all() -> Query {
    parse_search(
        &serde_json::json!({"query": {"match_all": {}}}),
        &std::collections::BTreeMap::default(),
        0,
    )
    .unwrap()
    .query
}

/// Waits for a condition, with a deadline.
pub async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let end = soon();
    while !check().await {
        assert!(Instant::now() < end, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
