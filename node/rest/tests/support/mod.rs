//! REST over one node without replication: the real coordinator and the real engine, the cluster state in memory, and a
//! stand-in for the shard's write path that can be told to fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(dead_code, reason = "each test binary uses its part")]

use bytes::Bytes;
use futures::future::BoxFuture;
use segmentry_coordinator::{
    ApiError, Coordinator, Copies,
    copies::{Answer, NOT_HERE, ShardSearch},
    document::{
        CopyCount, Found, Outcome, Refresh, ShardGet, ShardOp, ShardWrite, ShardWritten, WriteKind, Written,
    },
    error::search_error,
    stats::{CopyStats, Counters, SegmentStats},
};
use segmentry_engine::{CommitPayload, Engine, EngineConfig, OperationRef, search::PartialResult};
use segmentry_mapping::{Limits, Parser};
use segmentry_meta::{MemoryMeta, MetaStore};
use segmentry_rest::{NodeFacts, Shared, admin::NodeAdmin};
use segmentry_settings::admin::{CopyReport, Initialise, NodeStatus, ReplaceMember, Reset};
use segmentry_state::{Change, ClusterState, Node, NodeId, ShardId};
use segmentry_vfs::RealFs;
use segmentry_wire::{Client, ClusterCell, Identity, Routes, Server, Token};
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex},
};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// What the next write does instead of succeeding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is done, the copy is not here.
    NotHere,
    /// It is done, and nobody hears of it.
    LostAnswer,
}

struct Shard {
    engine: Arc<Engine>,
    documents: BTreeMap<String, Found>,
    versions: BTreeMap<String, u64>,
    next: u64,
    counters: Counters,
}

/// The stand-in.
pub struct OneNode {
    meta: Arc<MemoryMeta>,
    node: NodeId,
    dir: tempfile::TempDir,
    shards: Mutex<HashMap<ShardId, Shard>>,
    faults: Mutex<VecDeque<Fault>>,
    /// Every operation that came in.
    pub seen: Mutex<Vec<(WriteKind, String, bool)>>,
}

impl OneNode {
    fn with<T>(&self, id: ShardId, work: impl FnOnce(&mut Shard) -> T) -> T {
        let mut shards = self.shards.lock().unwrap();
        let shard = shards.entry(id).or_insert_with(|| {
            let state = self.meta.current();
            let mapping = Arc::clone(&state.index(id.index).unwrap().mapping);
            let dir = self
                .dir
                .path()
                .join(id.index.to_string())
                .join(id.shard.to_string());
            let engine = Engine::create(
                EngineConfig::new(Arc::new(RealFs), dir, mapping),
                &CommitPayload::default(),
            )
            .unwrap();
            engine.open_writer(1).unwrap();
            Shard {
                engine: Arc::new(engine),
                documents: BTreeMap::new(),
                versions: BTreeMap::new(),
                next: 0,
                counters: Counters::default(),
            }
        });
        work(shard)
    }

    fn write_one(&self, id: ShardId, op: &ShardOp) -> Result<Written, ApiError> {
        let index = Arc::clone(self.meta.current().index(id.index).unwrap());
        let doc_id = op.id.to_string();
        let current = self.with(id, |shard| shard.documents.get(&doc_id).cloned());
        let conflict = |reason: String| {
            Err(ApiError::new(
                409,
                "version_conflict_engine_exception",
                format!("[{doc_id}]: version conflict, {reason}"),
            ))
        };
        if op.kind == WriteKind::Create && current.is_some() {
            return conflict("document already exists".into());
        }
        if let Some(wanted) = op.if_seq_no
            && current.as_ref().map(|found| found.seq_no) != Some(wanted)
        {
            return conflict(format!("required seqNo [{wanted}]"));
        }
        let source = match op.kind {
            WriteKind::Update => {
                let body: Value = serde_json::from_slice(&op.source).unwrap();
                let Some(found) = &current else {
                    return Err(ApiError::new(
                        404,
                        "document_missing_exception",
                        format!("[{doc_id}]: document missing"),
                    ));
                };
                let mut merged: Value = serde_json::from_slice(&found.source).unwrap();
                for (key, value) in body["doc"].as_object().unwrap() {
                    merged[key] = value.clone();
                }
                Bytes::from(merged.to_string())
            }
            _ => op.source.clone(),
        };
        let mut mapping = Arc::clone(&index.mapping);
        let mut document = None;
        if op.kind != WriteKind::Delete {
            let parser = Parser::new(Arc::clone(&mapping), Limits::default());
            let parsed = parser.parse(&doc_id, &source)?;
            if let Some(grown) = parsed.grown {
                let change = Change::PutMapping {
                    index: id.index,
                    expected: mapping.version,
                    mapping: Arc::clone(&grown),
                };
                self.meta.apply(change).unwrap();
                mapping = grown;
            }
            document = Some(parsed.document);
        }
        self.with(id, |shard| {
            let seq_no = shard.next;
            shard.next += 1;
            let version = shard.versions.get(&doc_id).copied().unwrap_or(0) + 1;
            shard.versions.insert(doc_id.clone(), version);
            let operation = OperationRef {
                id: &doc_id,
                seq_no,
                term: 1,
                version,
                routing: op.routing.as_deref(),
                source: &source,
            };
            let outcome = if let Some(document) = document {
                shard
                    .engine
                    .index(&operation, &document, &mapping, false)
                    .unwrap();
                shard.counters.index_total += 1;
                let found = Found {
                    version,
                    seq_no,
                    term: 1,
                    routing: op.routing.as_deref().map(str::to_owned),
                    source: source.clone(),
                };
                if shard.documents.insert(doc_id.clone(), found).is_some() {
                    Outcome::Updated
                } else {
                    Outcome::Created
                }
            } else {
                shard.engine.delete(&operation).unwrap();
                shard.counters.delete_total += 1;
                if shard.documents.remove(&doc_id).is_some() {
                    Outcome::Deleted
                } else {
                    Outcome::NotFound
                }
            };
            Ok(Written {
                outcome,
                version,
                seq_no,
                term: 1,
                copies: CopyCount {
                    total: 1 + index.settings.number_of_replicas,
                    successful: 1,
                },
                forced_refresh: false,
            })
        })
    }

    fn refresh_now(&self, id: ShardId) {
        self.with(id, |shard| {
            let payload = CommitPayload {
                term: 1,
                max_seq_no: shard.next.checked_sub(1),
                ..CommitPayload::default()
            };
            shard.engine.refresh(&payload).unwrap();
            shard.counters.refresh_total += 1;
        });
    }
}

fn ready<T: Send + 'static>(value: Result<T, ApiError>) -> Answer<T> {
    Box::pin(async move { value })
}

impl Copies for OneNode {
    fn write(&self, request: ShardWrite) -> Answer<ShardWritten> {
        let fault = self.faults.lock().unwrap().pop_front();
        self.seen.lock().unwrap().extend(
            request
                .ops
                .iter()
                .map(|op| (op.kind, op.id.to_string(), op.fresh_id)),
        );
        if fault == Some(Fault::NotHere) {
            return ready(Err(ApiError::new(503, NOT_HERE, "the copy is not here")));
        }
        let mut results: Vec<_> = request
            .ops
            .iter()
            .map(|op| self.write_one(request.shard, op))
            .collect();
        if request.refresh != Refresh::No {
            self.refresh_now(request.shard);
            for written in results.iter_mut().flatten() {
                written.forced_refresh = request.refresh == Refresh::Now;
            }
        }
        if fault == Some(Fault::LostAnswer) {
            results = results
                .iter()
                .map(|_| Err(ApiError::unknown_outcome("the answer was lost")))
                .collect();
        }
        ready(Ok(ShardWritten { results }))
    }

    fn get(&self, request: ShardGet) -> Answer<Vec<Option<Found>>> {
        ready(Ok(self.with(request.shard, |shard| {
            request
                .ids
                .iter()
                .map(|id| shard.documents.get(id).cloned())
                .collect()
        })))
    }

    fn search(&self, request: ShardSearch) -> Answer<PartialResult> {
        let engine = self.with(request.shard, |shard| Arc::clone(&shard.engine));
        ready(
            engine
                .search(&request.request, request.ordinal)
                .map_err(search_error),
        )
    }

    fn count(&self, request: ShardSearch) -> Answer<u64> {
        let engine = self.with(request.shard, |shard| Arc::clone(&shard.engine));
        ready(
            engine
                .count(&request.request.query, request.request.now_ms)
                .map_err(search_error),
        )
    }

    fn refresh(&self, shard: ShardId) -> Answer<()> {
        self.refresh_now(shard);
        ready(Ok(()))
    }

    fn flush(&self, id: ShardId) -> Answer<()> {
        self.refresh_now(id);
        self.with(id, |shard| {
            shard.engine.flush().unwrap();
            shard.counters.flush_total += 1;
        });
        ready(Ok(()))
    }

    fn stats(&self, shards: Vec<ShardId>) -> Answer<Vec<CopyStats>> {
        let state = self.meta.current();
        let all = shards
            .into_iter()
            .map(|id| {
                let allocation = state.shard(id).unwrap().copies[0].allocation;
                self.with(id, |shard| {
                    let stats = shard.engine.stats();
                    CopyStats {
                        shard: id,
                        allocation,
                        node: self.node,
                        primary: true,
                        report: CopyReport {
                            documents: stats.docs,
                            size_bytes: stats.size_bytes,
                            max_seq_no: i64::try_from(shard.next).unwrap() - 1,
                            global_checkpoint: i64::try_from(shard.next).unwrap() - 1,
                            lag_operations: 0,
                            lag_millis: 0,
                            durability: segmentry_settings::Durability::Request,
                            replication_type: segmentry_settings::ReplicationType::Document,
                            translog_operations: shard.next,
                            translog_size_bytes: 55,
                            uncommitted_operations: 0,
                            uncommitted_size_bytes: 0,
                        },
                        deleted: stats.deleted,
                        store_bytes: stats.size_bytes,
                        segments: stats
                            .segments
                            .iter()
                            .map(|segment| SegmentStats {
                                name: segment.id.clone(),
                                documents: segment.docs,
                                deleted: segment.deleted,
                                size_bytes: segment.size_bytes,
                                committed: segment.committed,
                                searchable: true,
                            })
                            .collect(),
                        translog_earliest_age_ms: 0,
                        counters: shard.counters,
                    }
                })
            })
            .collect();
        ready(Ok(all))
    }
}

struct Facts(Mutex<bool>);

impl NodeFacts for Facts {
    fn ready(&self) -> bool {
        *self.0.lock().unwrap()
    }

    fn waiting_for(&self) -> Option<String> {
        Some("waiting_for_initialise".into())
    }

    fn version(&self) -> &'static str {
        "0.0.0-test"
    }

    fn cluster_name(&self) -> String {
        "not formed".into()
    }
}

/// Stands in for what only the node itself can do.
struct Admin(Arc<Mutex<Vec<String>>>);

impl NodeAdmin for Admin {
    fn status(&self) -> NodeStatus {
        NodeStatus {
            name: "n-0".into(),
            node_id: NodeId(7).to_string(),
            boot_id: String::new(),
            version: String::new(),
            format_written: 1,
            formats_readable: vec![1],
            cluster_uuid: None,
            formed: true,
            empty: false,
            indices_on_disk: 0,
            disk_id: None,
            leader: None,
            opened: true,
            waiting_for: None,
        }
    }

    fn initialise(&self, request: Initialise) -> BoxFuture<'static, Result<NodeStatus, ApiError>> {
        self.0
            .lock()
            .unwrap()
            .push(format!("initialise {}", request.cluster_name));
        let status = self.status();
        Box::pin(async move { Ok(status) })
    }

    fn reset(&self, request: Reset) -> BoxFuture<'static, Result<NodeStatus, ApiError>> {
        self.0
            .lock()
            .unwrap()
            .push(format!("reset {}", request.cluster_uuid));
        let status = self.status();
        Box::pin(async move { Ok(status) })
    }

    fn replace(&self, epoch: u64, request: ReplaceMember) -> BoxFuture<'static, Result<(), ApiError>> {
        self.0
            .lock()
            .unwrap()
            .push(format!("replace {} at epoch {epoch}", request.lost_node_id));
        Box::pin(async { Ok(()) })
    }
}

/// A running REST port, and the internal port beside it.
pub struct Rest {
    pub url: String,
    pub admin_url: String,
    pub admin_calls: Arc<Mutex<Vec<String>>>,
    pub copies: Arc<OneNode>,
    pub meta: Arc<MemoryMeta>,
    facts: Arc<Facts>,
    client: reqwest::Client,
    stop: CancellationToken,
}

/// One answer.
#[derive(Debug)]
pub struct Said {
    pub status: u16,
    pub headers: http::HeaderMap,
    pub bytes: Bytes,
}

impl Said {
    /// As JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// As text.
    pub fn text(&self) -> String {
        String::from_utf8(self.bytes.to_vec()).unwrap()
    }

    /// Panics with the body unless the status is `expected`.
    pub fn expect(self, expected: u16) -> Value {
        assert_eq!(self.status, expected, "{}", self.text());
        self.json()
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Rest {
    /// A node; of a cluster, or not yet.
    pub fn start(formed: bool) -> Self {
        let (node, boot_id) = (NodeId(7), Uuid::new_v4());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let meta = Arc::new(MemoryMeta::new(ClusterState::default(), node));
        if formed {
            let member = Node {
                id: node,
                name: "n-0".into(),
                address: "127.0.0.1:1".into(),
                rest_address: address.clone(),
                boot_id: Some(boot_id),
                alive: true,
                version: "0.0.0-test".into(),
                format_written: 1,
                formats_readable: [1].into(),
                disk_id: None,
            };
            let form = Change::Form {
                cluster_uuid: Uuid::new_v4(),
                cluster_name: "test".into(),
                members: vec![member],
            };
            meta.apply(form).unwrap();
        }
        let identity = Identity {
            node_id: node,
            name: "n-0".into(),
            boot_id,
            token: Token::new("secret"),
            cluster_uuid: ClusterCell::new(meta.current().cluster_uuid),
        };
        let copies = Arc::new(OneNode {
            meta: Arc::clone(&meta),
            node,
            dir: tempfile::tempdir().unwrap(),
            shards: Mutex::default(),
            faults: Mutex::default(),
            seen: Mutex::default(),
        });
        let client = Client::new(identity.clone(), Handle::current()).unwrap();
        let door: Arc<dyn Copies> = Arc::clone(&copies) as Arc<dyn Copies>;
        let coordinator = Coordinator::new(Arc::clone(&meta) as Arc<dyn MetaStore>, client, door, 64 << 20);
        let stop = CancellationToken::new();
        let facts = Arc::new(Facts(Mutex::new(false)));
        let shared = Shared {
            coordinator,
            facts: Arc::clone(&facts) as Arc<dyn NodeFacts>,
        };
        let admin_calls = Arc::new(Mutex::default());
        let internal = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let admin_url = format!("http://{}", internal.local_addr().unwrap());
        let admin = segmentry_rest::admin::router(shared.clone(), Arc::new(Admin(Arc::clone(&admin_calls))));
        let server = Server::new(identity, Routes::new(), admin);
        tokio::spawn(server.serve(internal, Handle::current(), Handle::current(), stop.clone()));
        tokio::spawn(segmentry_rest::serve(shared, listener, stop.clone()));
        tokio::spawn(activate(Arc::clone(&meta), boot_id));
        Self {
            url: format!("http://{address}"),
            admin_url,
            admin_calls,
            copies,
            meta,
            facts,
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
            stop,
        }
    }

    /// Lets readiness latch.
    pub fn set_ready(&self) {
        *self.facts.0.lock().unwrap() = true;
    }

    /// The next writes fail like this.
    pub fn fail(&self, faults: &[Fault]) {
        self.copies.faults.lock().unwrap().extend(faults);
    }

    /// One request, with headers.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> Said {
        self.send_to(&self.url, method, path, headers, body).await
    }

    /// One request to a port.
    pub async fn send_to(
        &self,
        url: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> Said {
        let method = http::Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self.client.request(method, format!("{url}{path}")).body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.unwrap();
        Said {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            bytes: response.bytes().await.unwrap(),
        }
    }

    /// One request.
    pub async fn call(&self, method: &str, path: &str, body: &str) -> Said {
        self.send(method, path, &[], body.to_owned()).await
    }
}

/// Stands in for the manager and the applier: each new shard's primary is activated and started.
async fn activate(meta: Arc<MemoryMeta>, boot_id: Uuid) {
    let mut watch = meta.watch();
    loop {
        let state = Arc::clone(&watch.borrow_and_update());
        for (id, _, shard) in state.shards() {
            let (Some(allocation), None) = (shard.primary, shard.active) else {
                continue;
            };
            let term = shard.term + 1;
            let _ = meta.apply(Change::Activate {
                shard: id,
                term,
                allocation,
                boot_id,
            });
            let _ = meta.apply(Change::PrimaryStarted {
                shard: id,
                term,
                boot_id,
            });
        }
        if watch.changed().await.is_err() {
            return;
        }
    }
}
