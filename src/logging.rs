//! Logs and the end of the process, for every command that runs on.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Logs to standard error: text on a terminal, JSON elsewhere; level by `RUST_LOG`, else info.
pub fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // A second call (tests in one process) keeps the first one's settings.
    let _ = if std::io::stderr().is_terminal() {
        builder.try_init()
    } else {
        builder.json().try_init()
    };
}

/// Resolves when the process is asked to end (SIGTERM or Ctrl-C).
pub async fn ended() {
    let mut terminate = match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(signal) => signal,
        Err(error) => {
            tracing::error!(%error, "SIGTERM cannot be listened to; only Ctrl-C ends the process cleanly");
            let _ = tokio::signal::ctrl_c().await;
            return;
        }
    };
    tokio::select! {
        _ = terminate.recv() => {}
        outcome = tokio::signal::ctrl_c() => {
            if let Err(error) = outcome {
                tracing::error!(%error, "Ctrl-C cannot be listened to");
                terminate.recv().await;
            }
        }
    }
}
