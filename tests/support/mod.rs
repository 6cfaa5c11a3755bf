//! Parts shared by the behaviour tests: a cluster of real node processes on loopback, and writers that remember what was
//! acknowledged.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "test support"
)]

pub mod cluster;
pub mod writers;

use std::{future::Future, time::Duration};

/// Asks until the answer is `Some`, or fails with what was last seen.
pub async fn wait_for<T, F, Fut>(what: &str, within: Duration, mut ask: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let deadline = tokio::time::Instant::now() + within;
    loop {
        let last = match ask().await {
            Ok(found) => return found,
            Err(last) => last,
        };
        assert!(
            tokio::time::Instant::now() < deadline,
            "waited {within:?} for {what}; last: {last}"
        );
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}
