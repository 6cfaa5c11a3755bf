//! Metadata traffic over the internal port: Raft's calls, the manager's pings, and hellos.

use bytes::Bytes;
use segmentry_manager::{Ping, Pinger};
use segmentry_meta::{MetaFuture, PeerAddr, RaftMeta, RaftTransport, TransportError};
use segmentry_state::Node;
use segmentry_wire::{CallError, Client, Peer, RemoteError, Routes};
use serde::{Deserialize, Serialize};
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

/// Where a starting node says who and where it is.
pub const HELLO: &str = "/_meta/hello";
/// Bound of one hello.
pub const HELLO_DEADLINE: Duration = Duration::from_secs(3);

/// A node that introduces itself: id, process, address, data formats.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its record.
    pub node: Node,
}

/// Raft's transport.
#[derive(Debug, Clone)]
pub struct RaftLinks(pub Client);

/// Raft's paths as they are on the wire.
const PATHS: [(&str, &str); 6] = [
    ("meta/append", "/_meta/append"),
    ("meta/vote", "/_meta/vote"),
    ("meta/snapshot", "/_meta/snapshot"),
    ("meta/propose", "/_meta/propose"),
    ("meta/read", "/_meta/read"),
    ("meta/replace", "/_meta/replace"),
];

impl RaftTransport for RaftLinks {
    fn call<'a>(
        &'a self,
        peer: &'a PeerAddr,
        path: &'static str,
        body: Bytes,
        deadline: Duration,
    ) -> MetaFuture<'a, Result<Bytes, TransportError>> {
        Box::pin(async move {
            let Some((_, wire)) = PATHS.iter().find(|(raft, _)| *raft == path) else {
                return Err(TransportError::NotSent(format!("path [{path}] has no route")));
            };
            let to = Peer {
                address: peer.address.clone(),
                node_id: Some(peer.node_id),
                boot_id: None,
            };
            self.0
                .call_bytes(&to, wire, body, deadline)
                .await
                .map_err(|error| {
                    if error.nothing_done() {
                        TransportError::NotSent(error.to_string())
                    } else {
                        TransportError::NoAnswer(error.to_string())
                    }
                })
        })
    }
}

/// The manager's pings.
#[derive(Debug, Clone)]
pub struct WirePinger(pub Client);

/// Bound of one ping; the manager cuts it off earlier.
const PING_DEADLINE: Duration = Duration::from_secs(5);

impl Pinger for WirePinger {
    async fn ping(&self, node: &Node) -> Ping {
        match self.0.ping(&Peer::node(node), PING_DEADLINE).await {
            Ok(pong) => Ping::Alive(pong.boot_id),
            // Somebody else has the address: the process that is meant is not there.
            Err(CallError::NewBoot(boot)) => Ping::Alive(boot),
            Err(error @ CallError::Refused(_)) => Ping::Refused(error.to_string()),
            Err(error) => Ping::Silent(error.to_string()),
        }
    }
}

/// Routes of Raft and of hellos. The server listens before Raft is open: until then its calls are answered 503.
pub fn routes(raft: &Arc<OnceLock<Arc<RaftMeta>>>, own: Node, client: Client) -> Routes {
    let mut routes = Routes::new();
    for (path, wire) in PATHS {
        let raft = Arc::clone(raft);
        routes = routes.bytes(wire, move |_, body| {
            let raft = Arc::clone(&raft);
            async move { Ok(opened(&raft)?.handle(path, body).await) }
        });
    }
    let raft = Arc::clone(raft);
    routes.json(HELLO, move |caller, hello: Hello| {
        let (raft, own) = (Arc::clone(&raft), own.clone());
        // Before anything else answers: its name may not resolve yet.
        if let Some(ip) = caller.ip {
            client.learn(&hello.node.address, ip);
        }
        async move {
            if let Some(raft) = raft.get() {
                raft.learn_address(caller.node_id, hello.node.address.clone());
            }
            tracing::debug!(node = %caller, address = hello.node.address, "hello");
            Ok(Hello { node: own })
        }
    })
}

fn opened(raft: &OnceLock<Arc<RaftMeta>>) -> Result<Arc<RaftMeta>, RemoteError> {
    raft.get()
        .cloned()
        .ok_or_else(|| RemoteError::new(503, "starting", "the cluster metadata is being opened"))
}
