//! What a coordinator uses: the copies of this node, and writes with their refresh.

use crate::{Replication, protocol, segments::follows_segments};
use parking_lot::RwLock;
use segmentry_shard::{CopyError, Role, ShardCopy, WriteError, WriteOp, WriteResult};
use segmentry_state::ShardId;
use std::{collections::BTreeMap, sync::Arc};
use tokio::time::Instant;

/// The copies that are open on this node.
#[derive(Debug, Default)]
pub struct Shards {
    open: RwLock<BTreeMap<ShardId, Arc<ShardCopy>>>,
}

impl Shards {
    /// The copy of a shard, if one is open here.
    pub fn get(&self, shard: ShardId) -> Option<Arc<ShardCopy>> {
        self.open.read().get(&shard).cloned()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<ShardCopy>> {
        self.open.read().values().cloned().collect()
    }

    pub(crate) fn put(&self, copy: Arc<ShardCopy>) {
        self.open.write().insert(copy.shard(), copy);
    }

    pub(crate) fn take(&self, shard: ShardId) -> Option<Arc<ShardCopy>> {
        self.open.write().remove(&shard)
    }
}

/// When the effect of a write can be seen by a search before it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Refresh {
    /// At the next periodic refresh, after the answer.
    #[default]
    No,
    /// A refresh is made at once, on every in-sync copy.
    Now,
    /// The answer waits until every in-sync copy shows it.
    WaitFor,
}

/// A write that is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// What it did.
    pub result: WriteResult,
    /// Copies that are wanted: the primary and the index's replicas.
    pub total: u32,
    /// In-sync copies: all of them hold it.
    pub successful: u32,
    /// A refresh was made for it, or waited for, and every in-sync copy shows it.
    pub refreshed: bool,
}

/// The copy is not on this node, or not what was asked for. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotHere(pub String);

impl Replication {
    /// The copies of this node.
    pub fn shards(&self) -> &Shards {
        &self.inner.shards
    }

    /// The copy of a shard on this node.
    pub fn copy(&self, shard: ShardId) -> Result<Arc<ShardCopy>, NotHere> {
        self.shards()
            .get(shard)
            .ok_or_else(|| NotHere(format!("no copy of [{shard}] is open on this node")))
    }

    /// Writes on the primary, and makes them visible as asked. A refresh that does not come about in time leaves the writes
    /// acknowledged, and says so in [`Done::refreshed`].
    pub async fn write(
        &self,
        shard: ShardId,
        ops: Vec<WriteOp>,
        refresh: Refresh,
        deadline: Instant,
    ) -> Result<Vec<Result<Done, WriteError>>, NotHere> {
        let copy = self.copy(shard)?;
        let results = copy.write(ops, deadline).await;
        let last = results
            .iter()
            .filter_map(|result| result.as_ref().ok())
            .map(|result| result.seq_no)
            .max();
        let refreshed = match (refresh, last) {
            (Refresh::No, _) | (_, None) => false,
            (Refresh::Now, Some(last)) => self.show(&copy, last, true, deadline).await,
            (Refresh::WaitFor, Some(last)) => {
                let periodic = copy.index().settings.refresh_interval_ms.is_some();
                self.show(&copy, last, !periodic, deadline).await
            }
        };
        let state = self.inner.meta.current();
        let index = copy.index();
        let total = 1 + index.settings.number_of_replicas;
        let successful = state
            .shard(shard)
            .map_or(1, |shard| u32::try_from(shard.in_sync.len()).unwrap_or(u32::MAX));
        Ok(results
            .into_iter()
            .map(|result| {
                result.map(|result| Done {
                    result,
                    total,
                    successful,
                    refreshed,
                })
            })
            .collect())
    }

    /// Makes every in-sync copy show operations up to `seq_no`, at most until `deadline`. `force`: at once, else with the periodic
    /// refresh. True if all of them do.
    async fn show(&self, copy: &Arc<ShardCopy>, seq_no: u64, force: bool, deadline: Instant) -> bool {
        let deadline = deadline.min(Instant::now() + protocol::REFRESH_DEADLINE);
        let shown = async {
            if force {
                copy.refresh().await.map_err(|error| error.to_string())?;
            }
            let mut visible = copy.watch_visible();
            visible
                .wait_for(|visible| *visible >= Some(seq_no))
                .await
                .map_err(|error| error.to_string())?;
            self.show_on_replicas(copy, seq_no, force, deadline).await
        };
        match tokio::time::timeout_at(deadline, shown).await {
            Ok(Ok(())) => true,
            Ok(Err(reason)) => {
                tracing::warn!(shard = %copy.shard(), seq_no, reason, "not every in-sync copy shows a write whose refresh was asked for");
                false
            }
            Err(_) => {
                tracing::warn!(shard = %copy.shard(), seq_no, "the refresh that was asked for did not come about in time");
                false
            }
        }
    }

    /// Makes the copy of this node show what it may: a replica of SEGMENT fetches the newest checkpoint of its primary.
    pub async fn refresh(&self, shard: ShardId, deadline: Instant) -> Result<(), CopyError> {
        let copy = self.copy(shard).map_err(|error| CopyError::Unusable(error.0))?;
        let done = async {
            if follows_segments(&copy) {
                return self.inner.fetch_newest(&copy).await;
            }
            if matches!(copy.role(), Role::Primary { .. }) {
                // What is acknowledged by now is shown.
                copy.refresh().await?;
                return Ok(());
            }
            self.catch_up_checkpoint(&copy, deadline).await;
            copy.refresh().await.map(drop)
        };
        tokio::time::timeout_at(deadline, done)
            .await
            .unwrap_or_else(|_| Err(CopyError::Timeout(0, "a refresh".to_owned())))
    }

    /// Makes a durable commit of the copy of this node.
    pub async fn flush(&self, shard: ShardId, deadline: Instant) -> Result<(), CopyError> {
        let copy = self.copy(shard).map_err(|error| CopyError::Unusable(error.0))?;
        if !matches!(copy.role(), Role::Primary { .. }) && !follows_segments(&copy) {
            self.catch_up_checkpoint(&copy, deadline).await;
        }
        let flushed = tokio::time::timeout_at(deadline, copy.flush()).await;
        flushed
            .unwrap_or_else(|_| Err(CopyError::Timeout(0, "a flush".to_owned())))
            .map(drop)
    }
}
