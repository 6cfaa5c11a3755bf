//! Calls between metadata stores: Raft's own, forwarded proposals, reads and membership changes.
//!
//! A request is `receiver u64 | length u32 of the JSON | JSON | raw bytes` (little-endian; raw bytes only for pieces of a
//! snapshot), an answer is one byte (0: JSON follows, 1: the text of a refusal follows). The receiver's id is checked: after
//! the replacement of a disk another node may answer at a known address.

use super::{RaftMeta, proposals::Reply};
use crate::{
    PeerAddr, RaftTransport, TransportError,
    store::{Item, RaftNode, TypeConfig},
};
use bytes::{Bytes, BytesMut};
use openraft::{
    AnyError, RaftNetwork, RaftNetworkFactory,
    error::{InstallSnapshotError, NetworkError, RPCError, RaftError, Unreachable},
    network::{Backoff, RPCOption},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
        VoteRequest, VoteResponse,
    },
};
use parking_lot::Mutex;
use segmentry_state::NodeId;
use serde::{Serialize, de::DeserializeOwned};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::time::Instant;

pub(super) const APPEND: &str = "meta/append";
pub(super) const VOTE: &str = "meta/vote";
pub(super) const SNAPSHOT: &str = "meta/snapshot";
pub(super) const PROPOSE: &str = "meta/propose";
pub(super) const READ: &str = "meta/read";
pub(super) const REPLACE: &str = "meta/replace";

/// Every path that [`RaftMeta::handle`] serves.
pub const PATHS: [&str; 6] = [APPEND, VOTE, SNAPSHOT, PROPOSE, READ, REPLACE];

/// Between attempts to reach a peer that was not reachable.
const BACKOFF: Duration = Duration::from_millis(200);

/// How peers are reached.
pub(super) struct Links {
    me: NodeId,
    transport: Arc<dyn RaftTransport>,
    learned: Mutex<HashMap<NodeId, String>>,
}

impl Links {
    pub(super) fn new(me: NodeId, transport: Arc<dyn RaftTransport>) -> Self {
        Self {
            me,
            transport,
            learned: Mutex::default(),
        }
    }

    pub(super) fn learn(&self, peer: NodeId, address: String) {
        if peer != self.me {
            self.learned.lock().insert(peer, address);
        }
    }

    /// Calls a peer: at the address that it told itself, and where nobody listens there, at its stable one.
    pub(super) async fn call<Req: Serialize, Resp: DeserializeOwned>(
        &self,
        peer: NodeId,
        stable: &str,
        path: &'static str,
        request: &Req,
        raw: &[u8],
        deadline: Duration,
    ) -> Result<Resp, TransportError> {
        let until = Instant::now() + deadline;
        let body = encode(peer, request, raw)?;
        let learned = self.learned.lock().get(&peer).cloned().filter(|a| a != stable);
        if let Some(address) = learned {
            match self
                .send(
                    &PeerAddr {
                        node_id: peer,
                        address,
                    },
                    path,
                    body.clone(),
                    deadline,
                )
                .await
            {
                Err(TransportError::NotSent(_)) => {}
                other => return decode(&other?),
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        let address = stable.to_owned();
        decode(
            &self
                .send(
                    &PeerAddr {
                        node_id: peer,
                        address,
                    },
                    path,
                    body,
                    left,
                )
                .await?,
        )
    }

    async fn send(
        &self,
        peer: &PeerAddr,
        path: &'static str,
        body: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, TransportError> {
        match tokio::time::timeout(deadline, self.transport.call(peer, path, body, deadline)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(TransportError::NoAnswer(format!(
                "{} did not answer within {deadline:?}",
                peer.address
            ))),
        }
    }
}

fn encode<T: Serialize>(to: NodeId, request: &T, raw: &[u8]) -> Result<Bytes, TransportError> {
    let json = serde_json::to_vec(request).map_err(|e| TransportError::NotSent(e.to_string()))?;
    let length =
        u32::try_from(json.len()).map_err(|_| TransportError::NotSent("the request is too long".into()))?;
    let mut body = BytesMut::with_capacity(12 + json.len() + raw.len());
    body.extend_from_slice(&to.0.to_le_bytes());
    body.extend_from_slice(&length.to_le_bytes());
    body.extend_from_slice(&json);
    body.extend_from_slice(raw);
    Ok(body.freeze())
}

fn decode<T: DeserializeOwned>(answer: &[u8]) -> Result<T, TransportError> {
    match answer.split_first() {
        Some((0, json)) => serde_json::from_slice(json)
            .map_err(|e| TransportError::NoAnswer(format!("the answer cannot be read: {e}"))),
        Some((1, text)) => Err(TransportError::NotSent(
            String::from_utf8_lossy(text).into_owned(),
        )),
        _ => Err(TransportError::NoAnswer("the answer is empty".into())),
    }
}

fn answer<T: Serialize>(value: &T) -> Bytes {
    match serde_json::to_vec(value) {
        Ok(json) => [&[0_u8][..], &json].concat().into(),
        Err(e) => refuse(&format!("the answer cannot be written: {e}")),
    }
}

fn refuse(why: &str) -> Bytes {
    [&[1_u8][..], why.as_bytes()].concat().into()
}

/// The JSON and the raw part of a request, if it is meant for `me`.
fn open(me: NodeId, body: &Bytes) -> Result<(Bytes, Bytes), String> {
    let short = || "the request is cut off".to_owned();
    let to = body
        .get(..8)
        .and_then(|b| b.try_into().ok())
        .map(u64::from_le_bytes)
        .ok_or_else(short)?;
    if to != me.0 {
        return Err(format!("node [{me}] answers here, not [{}]", NodeId(to)));
    }
    let length = body
        .get(8..12)
        .and_then(|b| b.try_into().ok())
        .map(u32::from_le_bytes)
        .ok_or_else(short)?;
    let end = usize::try_from(length)
        .ok()
        .and_then(|l| l.checked_add(12))
        .filter(|e| *e <= body.len())
        .ok_or_else(short)?;
    Ok((body.slice(12..end), body.slice(end..)))
}

impl RaftMeta {
    /// Answers a call that a peer's [`RaftTransport`] brought; `path` is one of [`PATHS`].
    pub async fn handle(&self, path: &str, body: Bytes) -> Bytes {
        match self.dispatch(path, &body).await {
            Ok(bytes) => bytes,
            Err(why) => refuse(&why),
        }
    }

    async fn dispatch(&self, path: &str, body: &Bytes) -> Result<Bytes, String> {
        fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, String> {
            serde_json::from_slice(json).map_err(|e| format!("the request cannot be read: {e}"))
        }
        let (json, raw) = open(self.me, body)?;
        Ok(match path {
            APPEND => answer(&self.raft.append_entries(parse(&json)?).await),
            VOTE => answer(&self.raft.vote(parse(&json)?).await),
            SNAPSHOT => {
                let mut piece: InstallSnapshotRequest<TypeConfig> = parse(&json)?;
                piece.data = raw.to_vec();
                answer(&self.raft.install_snapshot(piece).await)
            }
            PROPOSE => answer(&self.proposer.submit(parse::<Item>(&json)?).await),
            READ => answer(&self.read_as_leader().await),
            REPLACE => answer(&self.replace_as_leader(parse(&json)?).await),
            other => return Err(format!("unknown path [{other}]")),
        })
    }

    /// Hands an item to another node that is said to lead.
    pub(super) async fn forward(
        &self,
        leader: NodeId,
        item: &Item,
        deadline: Duration,
    ) -> Result<Reply, TransportError> {
        self.call_peer(leader, PROPOSE, item, deadline).await
    }

    pub(super) async fn call_peer<Req: Serialize, Resp: DeserializeOwned>(
        &self,
        peer: NodeId,
        path: &'static str,
        request: &Req,
        deadline: Duration,
    ) -> Result<Resp, TransportError> {
        let stable = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow();
            metrics
                .membership_config
                .membership()
                .get_node(&peer.0)
                .map(|n| n.address.clone())
        };
        let stable =
            stable.ok_or_else(|| TransportError::NotSent(format!("node [{peer}] is not a member")))?;
        self.links.call(peer, &stable, path, request, &[], deadline).await
    }
}

/// The library's connection to one peer.
pub(super) struct Peer {
    links: Arc<Links>,
    target: NodeId,
    node: RaftNode,
}

impl RaftNetworkFactory<TypeConfig> for Arc<Links> {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &RaftNode) -> Peer {
        Peer {
            links: Arc::clone(self),
            target: NodeId(target),
            node: node.clone(),
        }
    }
}

type Rpc<E> = RPCError<u64, RaftNode, E>;

impl Peer {
    async fn send<Req, Resp, E>(
        &self,
        path: &'static str,
        request: &Req,
        raw: &[u8],
        option: &RPCOption,
    ) -> Result<Resp, Rpc<E>>
    where
        Req: Serialize,
        Resp: DeserializeOwned,
        E: std::error::Error + DeserializeOwned,
    {
        let outcome: Result<Result<Resp, E>, TransportError> = self
            .links
            .call(
                self.target,
                &self.node.address,
                path,
                request,
                raw,
                option.hard_ttl(),
            )
            .await;
        match outcome {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(remote)) => Err(openraft::error::RemoteError::new(self.target.0, remote).into()),
            Err(TransportError::NotSent(why)) => Err(Unreachable::new(&AnyError::error(why)).into()),
            Err(TransportError::NoAnswer(why)) => Err(NetworkError::new(&AnyError::error(why)).into()),
        }
    }
}

impl RaftNetwork<TypeConfig> for Peer {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Rpc<RaftError<u64>>> {
        self.send(APPEND, &rpc, &[], &option).await
    }

    async fn install_snapshot(
        &mut self,
        mut rpc: InstallSnapshotRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, Rpc<RaftError<u64, InstallSnapshotError>>> {
        let piece = std::mem::take(&mut rpc.data);
        self.send(SNAPSHOT, &rpc, &piece, &option).await
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, Rpc<RaftError<u64>>> {
        self.send(VOTE, &rpc, &[], &option).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(BACKOFF))
    }
}
