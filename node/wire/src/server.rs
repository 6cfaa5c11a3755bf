//! The answering side: one port, two runtimes, refusals before any handler.

use crate::{
    ANSWERED_BY, CLUSTER, FROM_BOOT, FROM_NAME, FROM_NODE, Identity, MAX_BODY_BYTES, METADATA, PING, Pong,
    REFUSAL, RemoteError, TO_BOOT, TO_NODE, error::Refusal, format_node_id, parse_node_id,
};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::post,
};
use futures::{Stream, StreamExt, future::BoxFuture};
use http::{HeaderMap, StatusCode};
use hyper::service::Service as _;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use segmentry_state::{BootId, NodeId};
use serde::{Serialize, de::DeserializeOwned};
use std::{collections::BTreeMap, future::Future, io, net::IpAddr, pin::Pin, sync::Arc, time::Duration};
use tokio::{net::TcpStream, runtime::Handle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

/// How long a new connection may stay without a first byte. Clients keep spare connections, for less than this.
const FIRST_BYTE: Duration = Duration::from_secs(60);
/// How long a connection may take for the head of a request, the idle time before it included.
const HEAD: Duration = Duration::from_secs(60);
/// How long running calls may go on after shutdown began.
const DRAIN: Duration = Duration::from_secs(10);

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Its data directory.
    pub node_id: NodeId,
    /// Its process start.
    pub boot_id: BootId,
    /// Its stable name.
    pub name: String,
    /// Its cluster; none only on metadata paths, for a node that has none yet.
    pub cluster_uuid: Option<Uuid>,
    /// The address that the call came from.
    pub ip: Option<IpAddr>,
}

type Handler = Arc<dyn Fn(Caller, Bytes) -> BoxFuture<'static, Result<Body, RemoteError>> + Send + Sync>;

/// Handlers by path. Each room registers its own; [`Routes::merge`] brings them together.
#[derive(Clone, Default)]
pub struct Routes {
    handlers: BTreeMap<&'static str, (&'static str, Handler)>,
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.handlers.keys()).finish()
    }
}

impl Routes {
    /// No handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// JSON in, JSON out. The handler runs to its end even if the caller goes away.
    #[must_use]
    pub fn json<Req, Resp, F, Fut>(self, path: &'static str, handler: F) -> Self
    where
        Req: DeserializeOwned + Send + 'static,
        Resp: Serialize + Send + 'static,
        F: Fn(Caller, Req) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Resp, RemoteError>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        self.add(path, "application/json", move |caller, body| {
            let handler = Arc::clone(&handler);
            Box::pin(async move {
                let answer = handler(caller, decode(path, &body)?).await?;
                let bytes = serde_json::to_vec(&answer)
                    .map_err(|error| RemoteError::internal(format!("answer cannot be encoded: {error}")))?;
                Ok(Body::from(bytes))
            })
        })
    }

    /// Bytes in, bytes out. The handler runs to its end even if the caller goes away.
    #[must_use]
    pub fn bytes<F, Fut>(self, path: &'static str, handler: F) -> Self
    where
        F: Fn(Caller, Bytes) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Bytes, RemoteError>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        self.add(path, "application/octet-stream", move |caller, body| {
            let handler = Arc::clone(&handler);
            Box::pin(async move { Ok(Body::from(handler(caller, body).await?)) })
        })
    }

    /// JSON in, a stream of chunks out. An error in the stream breaks the answer off, so that the caller sees that it is not
    /// complete.
    #[must_use]
    pub fn stream<Req, S, F, Fut>(self, path: &'static str, handler: F) -> Self
    where
        Req: DeserializeOwned + Send + 'static,
        S: Stream<Item = Result<Bytes, RemoteError>> + Send + 'static,
        F: Fn(Caller, Req) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<S, RemoteError>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        self.add(path, "application/octet-stream", move |caller, body| {
            let handler = Arc::clone(&handler);
            Box::pin(async move {
                let chunks = handler(caller, decode(path, &body)?).await?;
                Ok(Body::from_stream(chunks.inspect(move |chunk| {
                    if let Err(error) = chunk {
                        tracing::warn!(path, %error, "stream broken off");
                    }
                })))
            })
        })
    }

    /// All handlers of both; a path that both have answers with `other`'s.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.handlers.extend(other.handlers);
        self
    }

    fn add(
        mut self,
        path: &'static str,
        content_type: &'static str,
        handler: impl Fn(Caller, Bytes) -> BoxFuture<'static, Result<Body, RemoteError>> + Send + Sync + 'static,
    ) -> Self {
        self.handlers.insert(path, (content_type, Arc::new(handler)));
        self
    }
}

fn decode<Req: DeserializeOwned>(path: &str, body: &[u8]) -> Result<Req, RemoteError> {
    serde_json::from_slice(body).map_err(|error| {
        RemoteError::new(
            400,
            "unreadable_request",
            format!("request of {path} cannot be read: {error}"),
        )
    })
}

/// The internal port.
#[derive(Debug)]
pub struct Server {
    router: Router,
}

struct Door {
    identity: Identity,
    content_type: &'static str,
    metadata: bool,
    handler: Handler,
}

impl Server {
    /// A server that answers as `identity`: the routes, pings, and `other` (the admin API, which checks its callers itself)
    /// for every path that is not a route.
    pub fn new(identity: Identity, routes: Routes, other: Router) -> Self {
        let pong = Pong {
            node_id: identity.node_id,
            boot_id: identity.boot_id,
            name: identity.name.clone(),
        };
        let routes = routes.json(PING, move |_, (): ()| {
            let pong = pong.clone();
            async move { Ok(pong) }
        });
        let mut router = other;
        for (path, (content_type, handler)) in routes.handlers {
            let door = Arc::new(Door {
                identity: identity.clone(),
                content_type,
                metadata: path.starts_with(METADATA),
                handler,
            });
            router = router.route(path, post(enter).with_state(door));
        }
        Self { router }
    }

    /// Serves until `shutdown`, then lets running calls finish for at most ten seconds. Accepts on `metadata`; a connection
    /// whose first request is for a metadata or admin path is served there, any other on `data`.
    ///
    /// # Errors
    /// Where the listener cannot be registered with the runtime.
    pub async fn serve(
        self,
        listener: std::net::TcpListener,
        metadata: Handle,
        data: Handle,
        shutdown: CancellationToken,
    ) -> io::Result<()> {
        let serving = metadata.spawn(accept(self.router, listener, data, shutdown));
        serving.await.map_err(io::Error::other)?
    }
}

async fn accept(
    router: Router,
    listener: std::net::TcpListener,
    data: Handle,
    shutdown: CancellationToken,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let connections = TaskTracker::new();
    loop {
        let stream = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, or a peer that was gone again: the next accept may work.
                    tracing::warn!(%error, "accept failed on the internal port");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let (router, data, shutdown) = (router.clone(), data.clone(), shutdown.clone());
        let tracker = connections.clone();
        connections.spawn(async move {
            if let Err(error) = connection(router, stream, data, shutdown, tracker).await {
                tracing::debug!(%error, "internal connection ended");
            }
        });
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(DRAIN, connections.wait()).await.is_err() {
        tracing::warn!("calls on the internal port were still running at the end");
    }
    Ok(())
}

async fn connection(
    router: Router,
    stream: TcpStream,
    data: Handle,
    shutdown: CancellationToken,
    tracker: TaskTracker,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // `POST /_meta/…` or `GET /_admin/…`: the first request names the kind of the connection, callers keep kinds apart.
    let mut start = [0_u8; 16];
    let seen = tokio::select! {
        () = shutdown.cancelled() => return Ok(()),
        seen = tokio::time::timeout(FIRST_BYTE, stream.peek(&mut start)) => seen.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??,
    };
    let start = &start[..seen];
    let path = start
        .iter()
        .position(|byte| *byte == b' ')
        .map_or(&[][..], |space| &start[space + 1..]);
    if path.starts_with(METADATA.as_bytes()) || path.starts_with(b"/_admin/") {
        return talk(router, TokioIo::new(stream), shutdown).await;
    }
    let stream = stream.into_std()?;
    tracker.spawn_on(
        async move {
            let outcome = match TcpStream::from_std(stream) {
                Ok(stream) => talk(router, TokioIo::new(stream), shutdown).await,
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                tracing::debug!(%error, "internal connection ended");
            }
        },
        &data,
    );
    Ok(())
}

/// Where a connection comes from, as its requests carry it.
#[derive(Debug, Clone, Copy)]
struct From(IpAddr);

async fn talk(router: Router, stream: TokioIo<TcpStream>, shutdown: CancellationToken) -> io::Result<()> {
    let from = From(stream.inner().peer_addr()?.ip());
    let router = TowerToHyperService::new(router);
    let router = hyper::service::service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(from);
        router.call(request)
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(stream, router);
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        outcome = serving.as_mut() => return outcome.map_err(io::Error::other),
        () = shutdown.cancelled() => serving.as_mut().graceful_shutdown(),
    }
    serving.await.map_err(io::Error::other)
}

async fn enter(State(door): State<Arc<Door>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let ip = parts.extensions.get::<From>().map(|from| from.0);
    let caller = match door.admit(&parts.headers, ip) {
        Ok(caller) => caller,
        Err(refusal) => return door.refuse(refusal),
    };
    let body = match axum::body::to_bytes(body, MAX_BODY_BYTES).await {
        Ok(body) => body,
        Err(error) => {
            return failed(&RemoteError::new(
                413,
                "request_not_read",
                format!("body of the call was not read: {error}"),
            ));
        }
    };
    // A task of its own: what has begun is finished, also when the caller's connection breaks.
    let running = tokio::spawn((door.handler)(caller, body));
    match running.await {
        Ok(Ok(body)) => ([(http::header::CONTENT_TYPE, door.content_type)], body).into_response(),
        Ok(Err(error)) => failed(&error),
        Err(error) => {
            tracing::error!(path = parts.uri.path(), %error, "handler of an internal call ended abnormally");
            failed(&RemoteError::internal("the handler ended abnormally"))
        }
    }
}

impl Door {
    fn admit(&self, headers: &HeaderMap, ip: Option<IpAddr>) -> Result<Caller, Refusal> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        if !self
            .identity
            .token
            .accepts(text(http::header::AUTHORIZATION.as_str()))
        {
            return Err(Refusal::Token);
        }
        let sent: Option<Uuid> = text(CLUSTER).and_then(|value| value.parse().ok());
        match (sent, self.identity.cluster_uuid.get()) {
            (Some(sent), Some(own)) if sent == own => {}
            // A node without a cluster is spoken to, and speaks, only to become a member of one.
            (None, _) | (_, None) if self.metadata => {}
            _ => return Err(Refusal::Cluster),
        }
        if text(TO_NODE).is_some_and(|id| parse_node_id(id) != Some(self.identity.node_id))
            || text(TO_BOOT).is_some_and(|id| id.parse() != Ok(self.identity.boot_id))
        {
            return Err(Refusal::Boot);
        }
        let caller = (|| {
            Some(Caller {
                node_id: parse_node_id(text(FROM_NODE)?)?,
                boot_id: text(FROM_BOOT)?.parse().ok()?,
                name: text(FROM_NAME)?.to_owned(),
                cluster_uuid: sent,
                ip,
            })
        })();
        // Has the token, and is no node: not a caller that these paths are for.
        caller.ok_or(Refusal::Token)
    }

    fn refuse(&self, refusal: Refusal) -> Response {
        let (status, reason) = match refusal {
            Refusal::Token => (StatusCode::UNAUTHORIZED, "the cluster token is missing or wrong"),
            Refusal::Cluster => (StatusCode::CONFLICT, "this node belongs to another cluster"),
            Refusal::Boot => (
                StatusCode::CONFLICT,
                "another process than the one that was meant",
            ),
        };
        let error = RemoteError::new(status.as_u16(), format!("refused_{}", refusal.as_str()), reason);
        let mut response = failed(&error);
        let headers = response.headers_mut();
        headers.insert(REFUSAL, http::HeaderValue::from_static(refusal.as_str()));
        if refusal == Refusal::Boot
            && let Ok(value) = http::HeaderValue::from_str(&self.identity.boot_id.to_string())
        {
            headers.insert(ANSWERED_BY, value);
        }
        response
    }
}

fn failed(error: &RemoteError) -> Response {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body =
        serde_json::json!({"error": {"type": error.kind, "reason": error.reason}, "status": status.as_u16()});
    (
        status,
        [(http::header::CONTENT_TYPE, "application/json")],
        body.to_string(),
    )
        .into_response()
}

/// Name of a node in texts: `name (id)`.
impl std::fmt::Display for Caller {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} ({})", self.name, format_node_id(self.node_id))
    }
}

/// A boxed stream of a handler, for handlers that choose between streams.
pub type Chunks = Pin<Box<dyn Stream<Item = Result<Bytes, RemoteError>> + Send>>;
