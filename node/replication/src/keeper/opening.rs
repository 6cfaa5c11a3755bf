//! Opening a copy; what it means when it cannot be opened, or fails.
//!
//! A copy is reported as broken where another attempt would not help, or where another copy can take its place. It is tried again for
//! as long as it stays listed, and reported as opened once it opens: a full disk, or one that was away, is none for ever. The last hope
//! of a shard is never given up for an error that may go by itself.

use super::{Keeper, Look};
use crate::folders;
use segmentry_meta::ProposeError;
use segmentry_shard::{CopyFailure, OpenError, OpenMode, Role, ShardConfig, ShardCopy};
use segmentry_state::{AllocationId, Change, Index, Shard};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use tracing::{error, info, warn};

/// Attempts to open a copy, after which it is reported as broken.
const OPEN_ATTEMPTS: u32 = 3;
/// Failures of a copy that opens again, after which it is reported as broken.
const FAILURES: u32 = 3;
/// Failures that are further apart have nothing to do with each other.
const CALM: Duration = Duration::from_secs(600);
/// A copy that was reported as broken is tried again after this long.
const BROKEN_AGAIN: Duration = Duration::from_secs(10);

/// Failures of an open copy that follow each other.
#[derive(Debug, Default)]
pub(super) struct Failures {
    count: u32,
    last: Option<Instant>,
    /// How far its commit had come at the last one.
    commit: Option<u64>,
}

impl Failures {
    /// Counts one. A commit that has come further begins anew: each document that kills the index writer costs two failures, and then
    /// the copy goes on behind it.
    fn count(&mut self, commit: Option<u64>, now: Instant) -> u32 {
        let follows = self.last.is_some_and(|last| now.duration_since(last) < CALM);
        let count = if follows && commit <= self.commit {
            self.count.saturating_add(1)
        } else {
            1
        };
        *self = Self {
            count,
            last: Some(now),
            commit: commit.max(self.commit),
        };
        count
    }
}

impl Keeper {
    pub(super) fn failed(&self) -> Option<CopyFailure> {
        match self.copy.as_ref()?.role() {
            Role::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// Opens or creates the copy.
    pub(super) async fn open(
        &mut self,
        index: &Arc<Index>,
        shard: &Shard,
        allocation: AllocationId,
    ) -> Result<(), Look> {
        let in_sync = shard.is_in_sync(allocation);
        let reported = shard.copy(allocation).is_some_and(|copy| copy.broken.is_some());
        let first = !shard.created && shard.primary == Some(allocation);
        let fallback = match (in_sync, first) {
            (_, true) => Some(OpenMode::Create),
            (false, _) => Some(OpenMode::Recover),
            (true, false) => None,
        };
        let config = || ShardConfig {
            node: Arc::clone(&self.inner.resources),
            dir: folders::folder(&self.inner.root, self.shard, allocation),
            index: Arc::clone(index),
            shard: self.shard.shard,
            allocation,
        };
        let (existing, other) = (config(), config());
        let opening =
            self.inner
                .data
                .spawn_blocking(move || match ShardCopy::open(existing, OpenMode::Existing) {
                    Err(OpenError::NoCopy(_) | OpenError::Incomplete(_)) if fallback.is_some() => {
                        ShardCopy::open(other, fallback.unwrap_or(OpenMode::Existing))
                    }
                    outcome => outcome,
                });
        let outcome = match opening.await {
            Ok(outcome) => outcome,
            Err(error) => {
                error!(shard = %self.shard, %error, "opening a copy ended abnormally");
                return Err(Look::Again);
            }
        };
        match outcome {
            Ok(copy) => {
                info!(shard = %self.shard, %allocation, index = index.name, state = ?copy.log_state(), "copy opened");
                self.attempts = 0;
                self.told = false;
                self.inner.shards.put(Arc::clone(&copy));
                self.copy = Some(copy);
                Ok(())
            }
            Err(error) => {
                self.attempts += 1;
                warn!(shard = %self.shard, %allocation, attempt = self.attempts, %error, "a copy cannot be opened");
                let kept = error.is_transient() && shard.is_last_hope(allocation);
                if reported {
                    self.broken = Some((allocation, Instant::now()));
                    return Err(Look::After(BROKEN_AGAIN));
                }
                if kept || self.attempts < OPEN_ATTEMPTS {
                    return Err(Look::Again);
                }
                Err(self.report_broken(allocation, error.to_string()).await)
            }
        }
    }

    /// How long until a copy that was reported as broken is tried again; none where it is tried now.
    pub(super) fn rests(&self, allocation: AllocationId) -> Option<Duration> {
        let (_, tried) = self.broken.filter(|(broken, _)| *broken == allocation)?;
        BROKEN_AGAIN
            .checked_sub(tried.elapsed())
            .filter(|rest| !rest.is_zero())
    }

    /// A copy that was reported as broken is open.
    pub(super) async fn report_opened(&mut self, allocation: AllocationId) -> Result<(), Look> {
        let change = Change::CopyOpened {
            shard: self.shard,
            allocation,
            boot_id: self.inner.boot,
        };
        match self.inner.meta.propose(change).await {
            Ok(_) => {
                info!(shard = %self.shard, %allocation, "a copy that was reported as broken is open");
                self.broken = None;
                Ok(())
            }
            Err(ProposeError::Refused(_)) => Ok(()),
            Err(error) => {
                warn!(shard = %self.shard, %allocation, %error, "an opened copy could not be reported");
                Err(Look::Again)
            }
        }
    }

    pub(super) async fn report_broken(&mut self, allocation: AllocationId, reason: String) -> Look {
        let change = Change::CopyBroken {
            shard: self.shard,
            allocation,
            reason,
        };
        match self.inner.meta.propose(change).await {
            Ok(_) | Err(ProposeError::Refused(_)) => {
                self.attempts = 0;
                self.broken = Some((allocation, Instant::now()));
                Look::After(BROKEN_AGAIN)
            }
            Err(error) => {
                warn!(shard = %self.shard, %error, "a broken copy could not be reported");
                Look::Again
            }
        }
    }

    /// A copy has failed: it is closed. A primary says so; another copy is opened again, or reported where its log failed.
    pub(super) async fn after_failure(
        &mut self,
        shard: &Shard,
        allocation: AllocationId,
        failure: &CopyFailure,
    ) -> Look {
        let primary = shard.primary == Some(allocation) && shard.active == Some(self.inner.boot);
        if primary {
            let change = Change::PrimaryFailed {
                shard: self.shard,
                term: shard.term,
                reason: failure.to_string(),
            };
            match self.inner.meta.propose(change).await {
                Ok(_) | Err(ProposeError::Refused(_)) => {}
                Err(error) => {
                    warn!(shard = %self.shard, %error, "the failure of a primary could not be reported");
                    return Look::Again;
                }
            }
            self.close(false).await;
            return Look::Again;
        }
        let commit = self
            .copy
            .as_ref()
            .and_then(|copy| copy.engine().commit_info().max_seq_no);
        let often = self.failures.count(commit, Instant::now()) > FAILURES;
        // What a failed log holds on the disk is not known: a copy that another one can stand in for is not trusted with it.
        let over = often || matches!(failure, CopyFailure::Log(_));
        if !over {
            self.close(false).await;
            return Look::Again;
        }
        if shard.is_last_hope(allocation) {
            self.close(false).await;
            return Look::After(BROKEN_AGAIN);
        }
        let mut reason = failure.to_string();
        if often {
            reason = format!("it fails after each opening: {reason}; {}", self.verified().await);
        }
        self.close(false).await;
        self.failures = Failures::default();
        self.report_broken(allocation, reason).await
    }

    /// What the files of the failed copy's index say, for people.
    async fn verified(&self) -> String {
        let Some(copy) = self.copy.clone() else {
            return "its files were not looked at".to_owned();
        };
        match tokio::task::spawn_blocking(move || copy.engine().verify()).await {
            Ok(Ok(damaged)) if damaged.is_empty() => "no file of its index is damaged".to_owned(),
            Ok(Ok(damaged)) => format!("damaged files of its index: {}", damaged.join(", ")),
            Ok(Err(error)) => format!("the files of its index cannot be read: {error}"),
            Err(error) => format!("the files of its index were not looked at: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_count_while_the_commit_stands_still_and_they_are_close() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut failures = Failures::default();
        assert_eq!(failures.count(Some(5), at(0)), 1);
        assert_eq!(failures.count(Some(5), at(1)), 2);
        assert_eq!(failures.count(Some(3), at(2)), 3, "a soft commit was lost");
        assert_eq!(failures.count(Some(6), at(3)), 1, "it went on");
        assert_eq!(failures.count(Some(6), at(4)), 2);
        assert_eq!(failures.count(Some(6), at(1000)), 1);
    }
}
