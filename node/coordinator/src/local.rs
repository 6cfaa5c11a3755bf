//! The copies of this node behind the [`Copies`] door.

use crate::{
    ApiError,
    copies::{Answer, Copies, NOT_HERE, ShardSearch},
    document::{
        CopyCount, Found, Outcome, Refresh, ShardGet, ShardOp, ShardWrite, ShardWritten, WriteKind, Written,
    },
    error::search_error,
    stats::{CopyStats, Counters, SegmentStats},
};
use futures::future::try_join_all;
use segmentry_engine::PartialResult;
use segmentry_replication::{Done, NotHere, Replication};
use segmentry_shard::{CopyError, GetResult, ShardCopy, ShardStats, WriteError, WriteOp};
use segmentry_state::{NodeId, ShardId};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// How long a read by id waits for the acknowledgement of what it found.
const GET: Duration = Duration::from_secs(30);
/// How long a refresh or a flush of one copy may take.
const MAINTENANCE: Duration = Duration::from_secs(110);

/// The copies that [`Replication`] holds open here.
#[derive(Clone)]
pub struct LocalCopies {
    replication: Arc<Replication>,
    node: NodeId,
}

impl std::fmt::Debug for LocalCopies {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("LocalCopies")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl LocalCopies {
    /// The copies of `node`, which is this one.
    pub const fn new(replication: Arc<Replication>, node: NodeId) -> Self {
        Self { replication, node }
    }

    fn copy(&self, shard: ShardId) -> Result<Arc<ShardCopy>, ApiError> {
        self.replication.copy(shard).map_err(not_here)
    }
}

fn not_here(error: NotHere) -> ApiError {
    ApiError::new(503, NOT_HERE, error.0)
}

/// What a client, or the coordinator that routes again, is told.
fn copy_error(error: CopyError) -> ApiError {
    match error {
        CopyError::NotPrimary(_) | CopyError::Unusable(_) | CopyError::StaleTerm { .. } => {
            ApiError::new(503, NOT_HERE, error.to_string())
        }
        CopyError::Timeout(..) => ApiError::new(504, "timeout_exception", error.to_string()),
        CopyError::Search(error) => search_error(error),
        CopyError::Trimmed(_) | CopyError::Engine(_) | CopyError::Log(_) => {
            ApiError::new(500, "shard_exception", error.to_string())
        }
    }
}

fn write_error(error: WriteError) -> ApiError {
    let (status, kind) = error.status_and_kind();
    match error {
        WriteError::Mapping(error) => error.into(),
        WriteError::Unknown(reason) => ApiError::unknown_outcome(reason),
        other => ApiError::new(status, kind, other.to_string()),
    }
}

fn write_op(op: ShardOp) -> WriteOp {
    let kind = match op.kind {
        WriteKind::Index => segmentry_shard::WriteKind::Index,
        WriteKind::Create => segmentry_shard::WriteKind::Create,
        WriteKind::Update => segmentry_shard::WriteKind::Update,
        WriteKind::Delete => segmentry_shard::WriteKind::Delete,
    };
    WriteOp {
        kind,
        id: op.id,
        fresh_id: op.fresh_id,
        routing: op.routing,
        if_seq_no: op.if_seq_no,
        if_primary_term: op.if_primary_term,
        source: op.source,
    }
}

fn written(done: Done, refresh: Refresh) -> Written {
    Written {
        outcome: match done.result.outcome {
            segmentry_shard::Outcome::Created => Outcome::Created,
            segmentry_shard::Outcome::Updated => Outcome::Updated,
            segmentry_shard::Outcome::Deleted => Outcome::Deleted,
            segmentry_shard::Outcome::NotFound => Outcome::NotFound,
            segmentry_shard::Outcome::Noop => Outcome::Noop,
        },
        version: done.result.version,
        seq_no: done.result.seq_no,
        term: done.result.term,
        copies: CopyCount {
            total: done.total,
            successful: done.successful,
        },
        forced_refresh: refresh == Refresh::Now && done.refreshed,
    }
}

fn found(result: GetResult) -> Found {
    Found {
        version: result.version,
        seq_no: result.seq_no,
        term: result.term,
        routing: result.routing,
        source: result.source,
    }
}

fn copy_stats(copy: &ShardCopy, node: NodeId) -> CopyStats {
    let ShardStats {
        report,
        primary,
        engine,
        log,
        counters,
        waiting_for: _,
    } = copy.stats();
    CopyStats {
        shard: copy.shard(),
        allocation: copy.allocation(),
        node,
        primary,
        report,
        deleted: engine.deleted,
        store_bytes: engine.size_bytes,
        segments: engine
            .segments
            .into_iter()
            .map(|segment| SegmentStats {
                name: segment.id,
                documents: segment.docs,
                deleted: segment.deleted,
                size_bytes: segment.size_bytes,
                committed: segment.committed,
                // The engine lists the segments of its searcher.
                searchable: true,
            })
            .collect(),
        translog_earliest_age_ms: log.earliest_last_modified_age_ms,
        counters: Counters {
            index_total: counters.index_total,
            delete_total: counters.delete_total,
            index_failed: counters.index_failed,
            refresh_total: counters.refresh_total,
            refresh_time_ms: counters.refresh_time_ms,
            flush_total: counters.flush_total,
            flush_time_ms: counters.flush_time_ms,
            query_total: counters.query_total,
            query_time_ms: counters.query_time_ms,
        },
    }
}

impl Copies for LocalCopies {
    fn write(&self, request: ShardWrite) -> Answer<ShardWritten> {
        let own = self.clone();
        Box::pin(async move {
            let deadline = Instant::now() + Duration::from_millis(request.timeout_ms);
            let refresh = request.refresh;
            let wanted = match refresh {
                Refresh::No => segmentry_replication::Refresh::No,
                Refresh::Now => segmentry_replication::Refresh::Now,
                Refresh::WaitFor => segmentry_replication::Refresh::WaitFor,
            };
            // The copy resolves an update in the order of its operations: there is no race that a retry would win.
            let ops = request.ops.into_iter().map(write_op).collect();
            let results = own
                .replication
                .write(request.shard, ops, wanted, deadline)
                .await
                .map_err(not_here)?;
            Ok(ShardWritten {
                results: results
                    .into_iter()
                    .map(|result| result.map(|done| written(done, refresh)).map_err(write_error))
                    .collect(),
            })
        })
    }

    fn get(&self, request: ShardGet) -> Answer<Vec<Option<Found>>> {
        let own = self.clone();
        Box::pin(async move {
            let copy = own.copy(request.shard)?;
            let deadline = Instant::now() + GET;
            if request.refresh {
                own.replication
                    .refresh(request.shard, deadline)
                    .await
                    .map_err(copy_error)?;
            }
            let reads = request.ids.into_iter().map(|id| {
                let copy = Arc::clone(&copy);
                async move { copy.get(Arc::from(id), request.realtime, deadline).await }
            });
            let results = try_join_all(reads).await.map_err(copy_error)?;
            Ok(results.into_iter().map(|result| result.map(found)).collect())
        })
    }

    fn search(&self, request: ShardSearch) -> Answer<PartialResult> {
        let own = self.clone();
        Box::pin(async move {
            let copy = own.copy(request.shard)?;
            copy.search(request.request, request.ordinal)
                .await
                .map_err(copy_error)
        })
    }

    fn count(&self, request: ShardSearch) -> Answer<u64> {
        let own = self.clone();
        Box::pin(async move {
            let copy = own.copy(request.shard)?;
            let now_ms = request.request.now_ms;
            copy.count(request.request.query.clone(), now_ms)
                .await
                .map_err(copy_error)
        })
    }

    fn refresh(&self, shard: ShardId) -> Answer<()> {
        let own = self.clone();
        Box::pin(async move {
            own.copy(shard)?;
            own.replication
                .refresh(shard, Instant::now() + MAINTENANCE)
                .await
                .map_err(copy_error)
        })
    }

    fn flush(&self, shard: ShardId) -> Answer<()> {
        let own = self.clone();
        Box::pin(async move {
            own.copy(shard)?;
            own.replication
                .flush(shard, Instant::now() + MAINTENANCE)
                .await
                .map_err(copy_error)
        })
    }

    fn stats(&self, shards: Vec<ShardId>) -> Answer<Vec<CopyStats>> {
        let own = self.clone();
        Box::pin(async move {
            let copies: Vec<Arc<ShardCopy>> = shards
                .into_iter()
                .filter_map(|shard| own.replication.shards().get(shard))
                .collect();
            let node = own.node;
            // Takes locks of engines and logs for moments.
            tokio::task::spawn_blocking(move || copies.iter().map(|copy| copy_stats(copy, node)).collect())
                .await
                .map_err(|error| ApiError::new(500, "internal_error", format!("numbers of copies: {error}")))
        })
    }
}
