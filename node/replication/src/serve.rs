//! The routes of this room.

use crate::{
    Replication,
    applier::Inner,
    patience::FAILED,
    protocol::{
        APPEND, Appended, CALL_DEADLINE, CHECKPOINT, FILES, FilesRequest, NOT_HERE, Notice, PIN, PinRequest,
        READY, REFRESH_DEADLINE, Ready, SHOW, STATE, Show, UNPIN, Which, call, decode_batch,
    },
    source,
};
use bytes::Bytes;
use futures::future::join_all;
use segmentry_settings::ReplicationType;
use segmentry_shard::{AppendRefusal, LogState, Role, ShardCopy};
use segmentry_state::AllocationId;
use segmentry_wire::{Caller, Peer, RemoteError, Routes};
use serde::{Serialize, de::DeserializeOwned};
use std::{collections::BTreeSet, future::Future, sync::Arc, time::Duration};
use tokio::time::Instant;

impl Replication {
    /// Routes through which other nodes reach the copies of this one.
    pub fn routes(&self) -> Routes {
        let routes = Routes::new();
        let inner = Arc::clone(&self.inner);
        let routes = routes.bytes(APPEND, move |_, body: Bytes| {
            let inner = Arc::clone(&inner);
            async move { write(APPEND, &append(&inner, &body).await?) }
        });
        let routes = self.add(routes, STATE, |inner, _, which: Which| async move {
            state(&inner, which)
        });
        let routes = self.add(routes, PIN, |inner, _, request: PinRequest| async move {
            source::pin(&inner, request).await
        });
        let routes = self.add(routes, UNPIN, |inner, _, pin| async move {
            inner.source.unpin(pin);
            Ok(())
        });
        let routes = self.add(routes, READY, |inner, caller, ready: Ready| async move {
            source::ready(&inner, caller.node_id, ready)
        });
        let routes = self.add(routes, CHECKPOINT, |inner, _, notice: Notice| async move {
            checkpoint(&inner, notice);
            Ok(())
        });
        let routes = self.add(routes, SHOW, |inner, _, request: Show| async move {
            show(&inner, request).await
        });
        let inner = Arc::clone(&self.inner);
        routes.stream(FILES, move |_, request: FilesRequest| {
            let inner = Arc::clone(&inner);
            async move { source::files(&inner, request) }
        })
    }

    fn add<Req, Resp, Fut>(
        &self,
        routes: Routes,
        path: &'static str,
        run: fn(Arc<Inner>, Caller, Req) -> Fut,
    ) -> Routes
    where
        Req: DeserializeOwned + Send + 'static,
        Resp: Serialize + Send + 'static,
        Fut: Future<Output = Result<Resp, RemoteError>> + Send + 'static,
    {
        let inner = Arc::clone(&self.inner);
        routes.bytes(path, move |caller, body: Bytes| {
            let inner = Arc::clone(&inner);
            async move {
                let request = postcard::from_bytes(&body).map_err(|error| {
                    RemoteError::new(400, "unreadable_request", format!("{path}: {error}"))
                })?;
                write(path, &run(inner, caller, request).await?)
            }
        })
    }

    /// Has every in-sync copy beside this primary show operations up to `seq_no`.
    pub(crate) async fn show_on_replicas(
        &self,
        copy: &Arc<ShardCopy>,
        seq_no: u64,
        force: bool,
        deadline: Instant,
    ) -> Result<(), String> {
        let Role::Primary { term } = copy.role() else {
            return Err("the copy is no longer primary".to_owned());
        };
        let mut shown: BTreeSet<AllocationId> = BTreeSet::new();
        let mut pause = Duration::from_millis(10);
        loop {
            let state = self.inner.meta.current();
            let Some(shard) = state.shard(copy.shard()) else {
                return Ok(());
            };
            // A copy that left the in-sync set meanwhile is not waited for.
            let wanted: Vec<(AllocationId, Peer)> = shard
                .in_sync_copies()
                .filter(|other| other.allocation != copy.allocation() && !shown.contains(&other.allocation))
                .filter_map(|other| Some((other.allocation, Peer::process(state.node(other.node)?))))
                .collect();
            if wanted.is_empty() {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let calls = wanted.into_iter().map(|(allocation, peer)| async move {
                let request = Show {
                    which: Which {
                        shard: copy.shard(),
                        allocation,
                    },
                    term,
                    seq_no,
                    force,
                    global_checkpoint: copy.log_state().global_checkpoint,
                    milliseconds: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
                };
                let answer: Result<Option<u64>, _> =
                    call(&self.inner.client, &peer, SHOW, &request, left + CALL_DEADLINE).await;
                (allocation, answer)
            });
            let mut failed = None;
            for (allocation, answer) in join_all(calls).await {
                match answer {
                    Ok(visible) if visible >= Some(seq_no) => {
                        shown.insert(allocation);
                    }
                    Ok(visible) => failed = Some(format!("copy [{allocation}] shows {visible:?}")),
                    Err(error) => failed = Some(format!("copy [{allocation}]: {error}")),
                }
            }
            let Some(reason) = failed else { continue };
            if Instant::now() + pause >= deadline {
                return Err(reason);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    /// Brings the global checkpoint of the primary to a replica that indexes: what is acknowledged by now is shown by its next refresh.
    /// A primary that does not answer leaves it to the stream.
    pub(crate) async fn catch_up_checkpoint(&self, copy: &Arc<ShardCopy>, deadline: Instant) {
        let state = self.inner.meta.current();
        let shard = copy.shard();
        let (Some(node), Some(term)) = (
            state.primary_node(shard),
            state.shard(shard).map(|shard| shard.term),
        ) else {
            return;
        };
        let Some(allocation) = state.shard(shard).and_then(|shard| shard.primary) else {
            return;
        };
        let asked: Result<Option<LogState>, _> = call(
            &self.inner.client,
            &Peer::process(node),
            STATE,
            &Which { shard, allocation },
            CALL_DEADLINE,
        )
        .await;
        match asked {
            Ok(Some(primary)) => {
                copy.learn_checkpoint(term, primary.global_checkpoint);
                let mut checkpoint = copy.watch_checkpoint();
                let reached = checkpoint.wait_for(|reached| *reached >= primary.global_checkpoint);
                if tokio::time::timeout_at(deadline.min(Instant::now() + CALL_DEADLINE), reached)
                    .await
                    .is_err()
                {
                    tracing::info!(%shard, "a refreshed replica is behind its primary");
                }
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%shard, %error, "the primary was not asked for its checkpoint"),
        }
    }
}

fn write<T: Serialize>(path: &str, answer: &T) -> Result<Bytes, RemoteError> {
    postcard::to_stdvec(answer)
        .map(Bytes::from)
        .map_err(|error| RemoteError::internal(format!("answer of {path} cannot be encoded: {error}")))
}

/// Why a copy that is meant cannot be had.
enum Missing {
    /// It is not open here (yet).
    NotHere(String),
    /// It is here and cannot go on.
    Failed(String),
}

impl From<Missing> for RemoteError {
    fn from(missing: Missing) -> Self {
        match missing {
            Missing::NotHere(reason) => Self::new(503, NOT_HERE, reason),
            Missing::Failed(reason) => Self::new(503, FAILED, reason),
        }
    }
}

/// The copy that is meant, if it is open.
fn find(inner: &Inner, which: Which) -> Result<Arc<ShardCopy>, Missing> {
    let Which { shard, allocation } = which;
    let not_here = |reason: String| Err(Missing::NotHere(reason));
    let Some(copy) = inner.shards.get(shard) else {
        return not_here(format!("no copy of [{shard}] is open here"));
    };
    if copy.allocation() != allocation {
        return not_here(format!(
            "copy [{allocation}] of [{shard}] is not open here, [{}] is",
            copy.allocation()
        ));
    }
    match copy.role() {
        Role::Recovering => not_here(format!("copy [{allocation}] of [{shard}] is being built")),
        Role::Closed => not_here(format!("copy [{allocation}] of [{shard}] was closed")),
        // What its log state says is not true of its disk any more.
        Role::Failed(failure) => Err(Missing::Failed(format!(
            "copy [{allocation}] of [{shard}] has failed: {failure}"
        ))),
        Role::Replica { .. } | Role::Primary { .. } | Role::Deposed { .. } => Ok(copy),
    }
}

async fn append(inner: &Arc<Inner>, body: &Bytes) -> Result<Appended, RemoteError> {
    let (which, batch) =
        decode_batch(body).map_err(|reason| RemoteError::new(400, "unreadable_request", reason))?;
    let copy = match find(inner, which) {
        Ok(copy) => copy,
        Err(Missing::NotHere(reason)) => return Ok(Appended::NotHere(reason)),
        Err(Missing::Failed(reason)) => return Ok(Appended::Refused(AppendRefusal::Failed(reason))),
    };
    Ok(match copy.append_from_primary(batch).await {
        Ok(state) => Appended::Done(state),
        Err(AppendRefusal::Failed(reason)) if copy.role() == Role::Closed => Appended::NotHere(reason),
        Err(refusal) => Appended::Refused(refusal),
    })
}

fn state(inner: &Inner, which: Which) -> Result<Option<LogState>, RemoteError> {
    match find(inner, which) {
        Ok(copy) => Ok(Some(copy.log_state())),
        Err(Missing::NotHere(_)) => Ok(None),
        Err(failed @ Missing::Failed(_)) => Err(failed.into()),
    }
}

fn checkpoint(inner: &Inner, notice: Notice) {
    // A copy that is not here, or whose task is busy, asks by itself.
    if let Some(door) = inner.segments_door(notice.which.shard) {
        drop(door.try_send(None));
    }
}

async fn show(inner: &Arc<Inner>, request: Show) -> Result<Option<u64>, RemoteError> {
    let Show {
        which,
        term,
        seq_no,
        force,
        global_checkpoint,
        milliseconds,
    } = request;
    let copy = find(inner, which)?;
    let deadline = Instant::now() + Duration::from_millis(milliseconds).min(REFRESH_DEADLINE);
    copy.learn_checkpoint(term, global_checkpoint);
    let segments = copy.index().settings.replication_type == ReplicationType::Segment;
    let showing = async {
        let mut visible = copy.watch_visible();
        loop {
            if *visible.borrow_and_update() >= Some(seq_no) {
                return Ok(());
            }
            if segments {
                inner
                    .fetch_newest(&copy)
                    .await
                    .map_err(|error| error.to_string())?;
            } else if force {
                let mut checkpoint = copy.watch_checkpoint();
                checkpoint
                    .wait_for(|reached| *reached >= Some(seq_no))
                    .await
                    .map_err(|error| error.to_string())?;
                copy.refresh().await.map_err(|error| error.to_string())?;
            }
            if *visible.borrow_and_update() >= Some(seq_no) {
                return Ok(());
            }
            // At the latest with the next refresh or checkpoint.
            let changed = tokio::time::timeout(
                Duration::from_millis(if force { 50 } else { 1000 }),
                visible.changed(),
            )
            .await;
            if let Ok(Err(error)) = changed {
                return Err(error.to_string());
            }
        }
    };
    match tokio::time::timeout_at(deadline, showing).await {
        Ok(Err(reason)) => Err(RemoteError::new(503, "refresh_failed", reason)),
        Ok(Ok(())) | Err(_) => Ok(copy.log_state().visible),
    }
}
