//! The calling side: pooled connections, deadlines, and what is known when a call fails.

use crate::{
    ANSWERED_BY, CLUSTER, CallError, FROM_BOOT, FROM_NAME, FROM_NODE, Identity, MAX_BODY_BYTES, METADATA,
    PING, Peer, Pong, REFUSAL, RemoteError, TO_BOOT, TO_NODE, addresses::Addresses, error::Refusal,
    format_node_id,
};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, stream};
use serde::{Serialize, de::DeserializeOwned};
use std::{error::Error, io, net::IpAddr, pin::Pin, sync::Arc, time::Duration};
use tokio::runtime::Handle;

/// Bound of one connect; a host that does not answer to it counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Idle connections kept for one address; each is closed after [`IDLE`].
const IDLE_CONNECTIONS: usize = 32;
/// How long an idle connection is kept. Shorter than the server keeps it: a call on a connection that the other side is closing
/// would have an unknown outcome for no reason.
const IDLE: Duration = Duration::from_secs(15);

/// Chunks of an answer, in order. It ends with an error where the answer was cut short.
pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes, CallError>> + Send>>;

/// Makes calls. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    identity: Identity,
    metadata: reqwest::Client,
    data: reqwest::Client,
    metadata_runtime: Handle,
    addresses: Addresses,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Client")
            .field("identity", &self.inner.identity)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client that speaks as `identity`. Connections of metadata paths are driven on `metadata_runtime`, whoever calls.
    ///
    /// # Errors
    /// Where the HTTP client cannot be made (no entropy, no resolver).
    pub fn new(identity: Identity, metadata_runtime: Handle) -> Result<Self, CallError> {
        let addresses = Addresses::default();
        let build = || {
            reqwest::Client::builder()
                .no_proxy()
                .http1_only()
                .redirect(reqwest::redirect::Policy::none())
                .tcp_nodelay(true)
                .connect_timeout(CONNECT_TIMEOUT)
                .pool_max_idle_per_host(IDLE_CONNECTIONS)
                .pool_idle_timeout(IDLE)
                .dns_resolver(Arc::new(addresses.clone()))
                .build()
                .map_err(|error| CallError::Unreachable {
                    address: "this machine".into(),
                    reason: chain(&error),
                })
        };
        Ok(Self {
            inner: Arc::new(Inner {
                identity,
                metadata: build()?,
                data: build()?,
                metadata_runtime,
                addresses,
            }),
        })
    }

    /// Who this client speaks as.
    pub fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// From now on the member that calls itself `address` (`host:port`) is dialled at `ip`, where its hello came from, until
    /// nobody answers there to a connect.
    pub fn learn(&self, address: &str, ip: IpAddr) {
        self.inner.addresses.learn(address, ip);
    }

    /// Asks who listens; a wrong node id or boot id in `peer` answers [`CallError::NewBoot`].
    pub async fn ping(&self, peer: &Peer, deadline: Duration) -> Result<Pong, CallError> {
        self.call(peer, PING, &(), deadline).await
    }

    /// One call with JSON both ways. `deadline` bounds the whole of it.
    pub async fn call<Req, Resp>(
        &self,
        peer: &Peer,
        path: &'static str,
        request: &Req,
        deadline: Duration,
    ) -> Result<Resp, CallError>
    where
        Req: Serialize + ?Sized,
        Resp: DeserializeOwned,
    {
        let body = encode(request)?;
        let answer = self
            .bytes_of(peer, path, "application/json", body, deadline)
            .await?;
        serde_json::from_slice(&answer).map_err(|error| {
            RemoteError::new(
                502,
                "unreadable_answer",
                format!("answer of {path} cannot be read: {error}"),
            )
            .into()
        })
    }

    /// One call with bytes both ways. `deadline` bounds the whole of it.
    pub async fn call_bytes(
        &self,
        peer: &Peer,
        path: &'static str,
        body: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, CallError> {
        self.bytes_of(peer, path, "application/octet-stream", body, deadline)
            .await
    }

    /// One call with JSON that is answered by a stream. `silence` bounds the wait for the head of the answer and for each
    /// further chunk; the whole may take longer.
    pub async fn stream<Req: Serialize + ?Sized>(
        &self,
        peer: &Peer,
        path: &'static str,
        request: &Req,
        silence: Duration,
    ) -> Result<ByteStream, CallError> {
        let body = encode(request)?;
        let address = peer.address.clone();
        let sending = self.send(peer, path, "application/json", body);
        let response = match tokio::time::timeout(silence, sending).await {
            Ok(response) => response?,
            Err(_) => return Err(silent(&address, silence)),
        };
        let chunks = response.bytes_stream();
        Ok(Box::pin(stream::unfold(
            Some((chunks, address)),
            move |state| async move {
                let (mut chunks, address) = state?;
                match tokio::time::timeout(silence, chunks.next()).await {
                    Err(_) => Some((Err(silent(&address, silence)), None)),
                    Ok(None) => None,
                    Ok(Some(Ok(chunk))) => Some((Ok(chunk), Some((chunks, address)))),
                    Ok(Some(Err(error))) => Some((Err(broken(&address, &error)), None)),
                }
            },
        )))
    }

    async fn bytes_of(
        &self,
        peer: &Peer,
        path: &'static str,
        content_type: &'static str,
        body: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, CallError> {
        let client = self.clone();
        let peer = peer.clone();
        let address = peer.address.clone();
        let whole = async move {
            let response = client.send(&peer, path, content_type, body).await?;
            read_all(&peer.address, response).await
        };
        let bounded = tokio::time::timeout(deadline, whole);
        let outcome = if path.starts_with(METADATA) {
            // The connection's task lives on the runtime that made it: never the one that indexing loads.
            match self.inner.metadata_runtime.spawn(bounded).await {
                Ok(outcome) => outcome,
                Err(error) => {
                    return Err(CallError::Silent {
                        address,
                        reason: format!("the call was given up: {error}"),
                    });
                }
            }
        } else {
            bounded.await
        };
        outcome.unwrap_or_else(|_| Err(silent(&address, deadline)))
    }

    async fn send(
        &self,
        peer: &Peer,
        path: &'static str,
        content_type: &'static str,
        body: Bytes,
    ) -> Result<reqwest::Response, CallError> {
        let identity = &self.inner.identity;
        let client = if path.starts_with(METADATA) {
            &self.inner.metadata
        } else {
            &self.inner.data
        };
        let mut request = client
            .post(format!("http://{}{path}", peer.address))
            .header(http::header::AUTHORIZATION, identity.token.bearer())
            .header(http::header::CONTENT_TYPE, content_type)
            .header(FROM_NODE, format_node_id(identity.node_id))
            .header(FROM_BOOT, identity.boot_id.to_string())
            .header(FROM_NAME, &identity.name)
            .body(body);
        if let Some(uuid) = identity.cluster_uuid.get() {
            request = request.header(CLUSTER, uuid.to_string());
        }
        if let Some(id) = peer.node_id {
            request = request.header(TO_NODE, format_node_id(id));
        }
        if let Some(id) = peer.boot_id {
            request = request.header(TO_BOOT, id.to_string());
        }
        let response = request.send().await.map_err(|error| {
            if error.is_connect() {
                self.inner.addresses.distrust(&peer.address);
            }
            broken(&peer.address, &error)
        })?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(refused(&peer.address, response).await)
    }
}

fn encode<Req: Serialize + ?Sized>(request: &Req) -> Result<Bytes, CallError> {
    serde_json::to_vec(request)
        .map(Bytes::from)
        .map_err(|error| RemoteError::internal(format!("request cannot be encoded: {error}")).into())
}

/// Reads an answer that is held in memory, within [`MAX_BODY_BYTES`].
async fn read_all(address: &str, mut response: reqwest::Response) -> Result<Bytes, CallError> {
    let too_long = || {
        CallError::from(RemoteError::new(
            502,
            "answer_too_long",
            format!("answer is longer than {MAX_BODY_BYTES} bytes"),
        ))
    };
    let expected = response
        .content_length()
        .and_then(|len| usize::try_from(len).ok())
        .unwrap_or(0);
    if expected > MAX_BODY_BYTES {
        return Err(too_long());
    }
    let mut first = match response.chunk().await.map_err(|error| broken(address, &error))? {
        Some(chunk) if chunk.len() == expected => return Ok(chunk),
        Some(chunk) => {
            let mut all = BytesMut::with_capacity(expected.max(chunk.len()));
            all.extend_from_slice(&chunk);
            all
        }
        None => return Ok(Bytes::new()),
    };
    while let Some(chunk) = response.chunk().await.map_err(|error| broken(address, &error))? {
        if first.len() + chunk.len() > MAX_BODY_BYTES {
            return Err(too_long());
        }
        first.extend_from_slice(&chunk);
    }
    Ok(first.freeze())
}

/// An answer with an error status: refused by the other side's door, or by a handler.
async fn refused(address: &str, response: reqwest::Response) -> CallError {
    let status = response.status().as_u16();
    let header = |name: &str| {
        response
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned)
    };
    match header(REFUSAL).as_deref().and_then(Refusal::parse) {
        Some(Refusal::Token) => return CallError::Unauthorised(address.into()),
        Some(Refusal::Cluster) => return CallError::Foreign(address.into()),
        Some(Refusal::Boot) => {
            if let Some(boot) = header(ANSWERED_BY).and_then(|text| text.parse().ok()) {
                return CallError::NewBoot(boot);
            }
        }
        None => {}
    }
    #[derive(serde::Deserialize)]
    struct Body {
        error: Inner,
    }
    #[derive(serde::Deserialize)]
    struct Inner {
        r#type: String,
        reason: String,
    }
    let body = match read_all(address, response).await {
        Ok(body) => body,
        Err(error) => return error,
    };
    match serde_json::from_slice::<Body>(&body) {
        Ok(Body { error }) => RemoteError::new(status, error.r#type, error.reason).into(),
        // Not one of ours: a proxy, or another program on this port.
        Err(_) => RemoteError::new(
            status,
            "unreadable_answer",
            format!("{address} answered status {status} and no error"),
        )
        .into(),
    }
}

fn silent(address: &str, deadline: Duration) -> CallError {
    CallError::Silent {
        address: address.into(),
        reason: format!("deadline of {} ms passed", deadline.as_millis()),
    }
}

/// Sorts what the HTTP client reports into what is known of the outcome.
fn broken(address: &str, error: &reqwest::Error) -> CallError {
    if error.is_connect() || error.is_builder() {
        let mut source: Option<&(dyn Error + 'static)> = Some(error);
        while let Some(inner) = source {
            if let Some(io) = inner.downcast_ref::<io::Error>()
                && io.kind() == io::ErrorKind::ConnectionRefused
            {
                return CallError::Refused(address.into());
            }
            source = inner.source();
        }
        return CallError::Unreachable {
            address: address.into(),
            reason: chain(error),
        };
    }
    CallError::Silent {
        address: address.into(),
        reason: chain(error),
    }
}

/// The error and its sources, for people.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}
