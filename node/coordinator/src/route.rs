//! Reaching the copy that an operation is for.

use crate::{
    ApiError, Coordinator,
    copies::{Answer, NOT_HERE},
};
use bytes::Bytes;
use segmentry_state::{ClusterState, Node, ShardId};
use segmentry_wire::{CallError, Peer};
use serde::{Serialize, de::DeserializeOwned};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Shortest pause before a call is sent again while the cluster state does not change.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest one.
const PAUSE_MOST: Duration = Duration::from_secs(1);

/// How a request's bytes are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Postcard,
}

/// What is known of a call that has no answer.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// Nothing was done.
    NotDone(ApiError),
    /// It may have been done.
    Unknown(ApiError),
    /// The copy refused.
    Refused(ApiError),
}

impl Failure {
    pub(crate) fn into_error(self) -> ApiError {
        match self {
            Self::NotDone(error) | Self::Unknown(error) | Self::Refused(error) => error,
        }
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        if error.kind == NOT_HERE {
            Self::NotDone(error)
        } else {
            Self::Refused(error)
        }
    }
}

impl Coordinator {
    /// Runs a call on a node: through `local` on this one, else over the wire.
    pub(crate) async fn on_node<Req, Resp>(
        &self,
        node: &Node,
        path: &'static str,
        encoding: Encoding,
        request: Req,
        deadline: Duration,
        local: fn(&dyn crate::Copies, Req) -> Answer<Resp>,
    ) -> Result<Resp, Failure>
    where
        Req: Serialize + Send + 'static,
        Resp: DeserializeOwned + Send + 'static,
    {
        let own = &self.inner.identity;
        if node.id == own.node_id {
            if node.boot_id != Some(own.boot_id) {
                return Err(Failure::NotDone(ApiError::new(
                    503,
                    NOT_HERE,
                    "the cluster state still names an earlier process of this node",
                )));
            }
            // A task of its own: what has begun is finished, also when the client goes away.
            let running = tokio::spawn(local(self.inner.copies.as_ref(), request));
            return match tokio::time::timeout(deadline, running).await {
                Ok(Ok(answer)) => answer.map_err(Failure::from),
                Ok(Err(error)) => Err(Failure::Unknown(ApiError::new(
                    500,
                    "internal_error",
                    format!("a call ended abnormally: {error}"),
                ))),
                Err(_) => Err(Failure::Unknown(ApiError::new(
                    504,
                    "timeout_exception",
                    format!("no answer of the copy within {} ms", deadline.as_millis()),
                ))),
            };
        }
        let body = match encoding {
            Encoding::Json => serde_json::to_vec(&request).map_err(|error| error.to_string()),
            Encoding::Postcard => postcard::to_stdvec(&request).map_err(|error| error.to_string()),
        };
        let body = body.map_err(|error| {
            Failure::NotDone(ApiError::new(
                500,
                "internal_error",
                format!("request cannot be encoded: {error}"),
            ))
        })?;
        drop(request);
        match self
            .inner
            .client
            .call_bytes(&Peer::process(node), path, Bytes::from(body), deadline)
            .await
        {
            Ok(answer) => match postcard::from_bytes::<Result<Resp, ApiError>>(&answer) {
                Ok(answer) => answer.map_err(Failure::from),
                Err(error) => Err(Failure::Unknown(ApiError::new(
                    502,
                    "unreadable_answer",
                    format!("answer of node [{}] cannot be read: {error}", node.name),
                ))),
            },
            Err(error) if error.nothing_done() => Err(Failure::NotDone(error.into())),
            Err(CallError::Remote(error)) => Err(Failure::Unknown(error.into())),
            Err(error) => Err(Failure::Unknown(error.into())),
        }
    }

    /// Waits until `check` finds something in the cluster state, at most until `deadline`.
    pub(crate) async fn wait_state<T>(
        &self,
        deadline: Instant,
        mut check: impl FnMut(&Arc<ClusterState>) -> Option<T>,
    ) -> Option<T> {
        let mut watch = self.inner.meta.watch();
        loop {
            let state = Arc::clone(&watch.borrow_and_update());
            if let Some(found) = check(&state) {
                return Some(found);
            }
            match tokio::time::timeout_at(deadline, watch.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return None,
            }
        }
    }

    /// The node of a shard's primary once it admits writes; `None` within it where the index is gone.
    pub(crate) async fn primary(&self, shard: ShardId, deadline: Instant) -> Option<Option<Node>> {
        self.wait_state(deadline, |state| {
            if state.shard(shard).is_none() {
                return Some(None);
            }
            state
                .primary_serves(shard)
                .then(|| state.primary_node(shard).cloned())
                .flatten()
                .map(Some)
        })
        .await
    }

    /// A call to the primary that may be repeated at will (reads, refreshes, flushes).
    pub(crate) async fn on_primary<Req, Resp>(
        &self,
        shard: ShardId,
        path: &'static str,
        encoding: Encoding,
        request: Req,
        timeout: Duration,
        local: fn(&dyn crate::Copies, Req) -> Answer<Resp>,
    ) -> Result<Resp, ApiError>
    where
        Req: Serialize + Clone + Send + 'static,
        Resp: DeserializeOwned + Send + 'static,
    {
        let deadline = Instant::now() + timeout;
        let mut pause = Pause::default();
        let mut last = None;
        loop {
            let node = match self.primary(shard, deadline).await {
                Some(Some(node)) => node,
                Some(None) => return Err(self.gone(shard)),
                None => return Err(last.unwrap_or_else(|| self.not_active(shard, timeout))),
            };
            let left = deadline.saturating_duration_since(Instant::now());
            match self
                .on_node(&node, path, encoding, request.clone(), left, local)
                .await
            {
                Ok(answer) => return Ok(answer),
                Err(Failure::Refused(error)) => return Err(error),
                Err(Failure::NotDone(error) | Failure::Unknown(error)) => {
                    if !pause.wait(deadline).await {
                        return Err(error);
                    }
                    last = Some(error);
                }
            }
        }
    }

    /// The error for a shard whose index was deleted.
    pub(crate) fn gone(&self, shard: ShardId) -> ApiError {
        let state = self.state();
        let name = state.tombstones.get(&shard.index).cloned();
        ApiError::no_index(&name.unwrap_or_else(|| shard.index.to_string()))
    }

    /// The error for a shard that waited in vain for its primary.
    pub(crate) fn not_active(&self, shard: ShardId, timeout: Duration) -> ApiError {
        match self.state().index(shard.index) {
            Some(index) => {
                let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                ApiError::primary_not_active(
                    index,
                    shard.shard,
                    &segmentry_settings::units::format_time_ms(millis),
                )
            }
            None => self.gone(shard),
        }
    }
}

/// Growing pauses between attempts.
#[derive(Debug, Default)]
pub(crate) struct Pause(u32);

impl Pause {
    /// Waits; false where the deadline comes first.
    pub(crate) async fn wait(&mut self, deadline: Instant) -> bool {
        let pause = PAUSE.saturating_mul(1 << self.0.min(5)).min(PAUSE_MOST);
        self.0 += 1;
        let until = Instant::now() + pause;
        if until >= deadline {
            return false;
        }
        tokio::time::sleep_until(until).await;
        true
    }
}
