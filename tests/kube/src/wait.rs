//! Waiting for a condition, with a deadline. Nothing in the bed sleeps a guessed time.

use anyhow::{Result, bail};
use std::time::{Duration, Instant};

/// Calls `look` every 100 ms until it answers `Ok`. After `limit` it fails with `what` and with `look`'s last answer, which is
/// the text that tells why.
pub async fn eventually<T, F: Future<Output = Result<T>>>(
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> F,
) -> Result<T> {
    let started = Instant::now();
    loop {
        // A look that hangs would turn the deadline into none.
        let left = limit
            .saturating_sub(started.elapsed())
            .max(Duration::from_millis(500));
        let last = match tokio::time::timeout(left, look()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => "the look itself did not come back".to_owned(),
        };
        if started.elapsed() >= limit {
            bail!("not within {limit:?}: {what}; last seen: {last}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[tokio::test]
    async fn the_last_look_is_in_the_message() {
        let error = eventually::<(), _>(Duration::from_millis(150), "green", || async { bail!("yellow") })
            .await
            .unwrap_err();
        assert!(error.to_string().contains("green; last seen: yellow"), "{error}");
    }

    #[tokio::test]
    async fn a_look_that_hangs_ends_at_the_deadline() {
        let error = eventually::<(), _>(Duration::from_millis(150), "green", std::future::pending)
            .await
            .unwrap_err();
        assert!(error.to_string().contains("did not come back"), "{error}");
    }
}
