//! Serving the REST port.

use crate::{Shared, router};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{io, time::Duration};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long a connection may take for the head of a request, idle time between requests included.
const HEAD: Duration = Duration::from_secs(120);
/// How long running requests may go on after shutdown began.
const DRAIN: Duration = Duration::from_secs(10);

/// Serves until `shutdown`; running requests are then let end, for at most ten seconds.
///
/// # Errors
/// Where the listener cannot be registered with the runtime.
pub async fn serve(
    shared: Shared,
    listener: std::net::TcpListener,
    shutdown: CancellationToken,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let router = router(shared);
    let connections = TaskTracker::new();
    loop {
        let stream = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, or a client that was gone again: the next accept may work.
                    tracing::warn!(%error, "accept failed on the REST port");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "connection was gone at once");
            continue;
        }
        let (router, shutdown) = (router.clone(), shutdown.clone());
        connections.spawn(async move {
            let serving = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
            let mut serving = std::pin::pin!(serving);
            let outcome = tokio::select! {
                outcome = serving.as_mut() => outcome,
                () = shutdown.cancelled() => {
                    serving.as_mut().graceful_shutdown();
                    serving.await
                }
            };
            if let Err(error) = outcome {
                tracing::debug!(%error, "connection ended");
            }
        });
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(DRAIN, connections.wait()).await.is_err() {
        tracing::warn!("requests were still running at the end");
    }
    Ok(())
}
