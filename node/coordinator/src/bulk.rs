//! Writes: split by shard, sent to the primaries' nodes side by side, answered in the order in which they came.

use crate::{
    ApiError, Coordinator,
    copies::{NOT_HERE, UNKNOWN_OUTCOME, WRITE},
    document::{
        ActiveShards, ShardOp, ShardWrite, WriteItem, WriteKind, WriteOptions, WriteRequest, Written,
    },
    names,
    route::{Encoding, Failure, Pause},
};
use futures::future::join_all;
use segmentry_mapping::validate_id;
use segmentry_state::{Index, ShardId};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use uuid::Uuid;

/// How much longer a call may take than its client waits for a primary: a write that was handed over is waited for, because
/// its outcome would be unknown otherwise.
const GRACE: Duration = Duration::from_secs(30);
/// How much later than the copy's own deadline a call is given up.
const ANSWER: Duration = Duration::from_secs(2);
/// Characters of ids that are made here: URL-safe base 64.
const ID_ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// One operation on its way, and where its result belongs.
struct Routed {
    position: usize,
    op: ShardOp,
}

impl Coordinator {
    /// Takes a share of the node's indexing budget for a body of `bytes`; released when dropped.
    ///
    /// # Errors
    /// 429 where the budget is used up.
    pub fn admit_write(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).max(1);
        // One body that is larger than the whole budget may still go alone.
        let kib = kib.min(self.inner.budget_kib);
        Arc::clone(&self.inner.budget).try_acquire_many_owned(kib).map_err(|_| {
            ApiError::new(
                429,
                "rejected_execution_exception",
                format!(
                    "rejected execution of coordinating operation [operation_bytes={bytes}, max_coordinating_bytes={}, \
                     available_bytes={}]",
                    u64::from(self.inner.budget_kib) << 10,
                    self.inner.budget.available_permits() << 10
                ),
            )
        })
    }

    /// Carries out writes. Each has its own result; operations on one document keep their order.
    pub async fn bulk(&self, requests: Vec<WriteRequest>, options: WriteOptions) -> Vec<WriteItem> {
        let deadline = Instant::now() + options.timeout;
        let mut items: Vec<WriteItem> = Vec::with_capacity(requests.len());
        let mut groups: BTreeMap<ShardId, Vec<Routed>> = BTreeMap::new();
        let mut indices: HashMap<Arc<str>, Result<Arc<Index>, ApiError>> = HashMap::new();
        for (position, request) in requests.into_iter().enumerate() {
            let known = match indices.get(&request.index) {
                // A delete makes no index; a later item of the same bulk may.
                Some(Err(error))
                    if error.kind == "index_not_found_exception" && request.kind != WriteKind::Delete =>
                {
                    None
                }
                known => known.cloned(),
            };
            let index = if let Some(known) = known {
                known
            } else {
                let found = self.index_for_write(&request, options.timeout).await;
                indices.insert(Arc::clone(&request.index), found.clone());
                found
            };
            let (id, fresh_id) = match request.id {
                Some(id) => (id, false),
                None => (make_id(), true),
            };
            let pending = ApiError::new(500, "internal_error", "no result came back for this operation");
            let mut item = WriteItem {
                index: Arc::clone(&request.index),
                kind: request.kind,
                id: Some(Arc::clone(&id)),
                result: Err(pending),
            };
            match index.and_then(|index| {
                check(
                    &index,
                    &id,
                    request.kind,
                    request.if_seq_no,
                    request.if_primary_term,
                )
                .map(|()| index)
            }) {
                Err(error) => item.result = Err(error),
                Ok(index) => {
                    let shard = ShardId {
                        index: index.uuid,
                        shard: index.shard_of(&id, request.routing.as_deref()),
                    };
                    groups.entry(shard).or_default().push(Routed {
                        position,
                        op: ShardOp {
                            kind: request.kind,
                            id,
                            fresh_id,
                            routing: request.routing,
                            if_seq_no: request.if_seq_no,
                            if_primary_term: request.if_primary_term,
                            source: request.source,
                        },
                    });
                }
            }
            items.push(item);
        }
        let writes = groups
            .into_iter()
            .map(|(shard, ops)| self.write_shard(shard, ops, options, deadline));
        for (position, result) in join_all(writes).await.into_iter().flatten() {
            if let Some(item) = items.get_mut(position) {
                item.result = result;
            }
        }
        items
    }

    /// One write; as a bulk of one.
    pub async fn write(&self, request: WriteRequest, options: WriteOptions) -> Result<WriteItem, ApiError> {
        self.bulk(vec![request], options)
            .await
            .pop()
            .ok_or_else(|| ApiError::new(500, "internal_error", "a bulk of one has no result"))
    }

    async fn index_for_write(
        &self,
        request: &WriteRequest,
        timeout: Duration,
    ) -> Result<Arc<Index>, ApiError> {
        match names::exact(&self.state(), &request.index) {
            Ok(index) => Ok(index),
            Err(error) if request.kind == WriteKind::Delete => Err(error),
            Err(_) => self.create_for_write(&request.index, timeout).await,
        }
    }

    /// Writes one shard's operations, across changes of its primary.
    async fn write_shard(
        &self,
        shard: ShardId,
        mut ops: Vec<Routed>,
        options: WriteOptions,
        deadline: Instant,
    ) -> Vec<(usize, Result<Written, ApiError>)> {
        let mut done = Vec::with_capacity(ops.len());
        let mut pause = Pause::default();
        while !ops.is_empty() {
            let node = match self.primary(shard, deadline).await {
                Some(Some(node)) => node,
                Some(None) => return fail(done, ops, &self.gone(shard)),
                None => return fail(done, ops, &self.not_active(shard, options.timeout)),
            };
            if let Err(error) = self.enough_copies(shard, options, deadline).await {
                return fail(done, ops, &error);
            }
            let patience = deadline.saturating_duration_since(Instant::now()) + GRACE;
            let request = ShardWrite {
                shard,
                refresh: options.refresh,
                timeout_ms: u64::try_from(patience.as_millis()).unwrap_or(u64::MAX),
                ops: ops.iter().map(|routed| routed.op.clone()).collect(),
            };
            // The copy answers what it knows at its own deadline; only then is nothing known here.
            let time = patience + ANSWER;
            let outcome = self
                .on_node(
                    &node,
                    WRITE,
                    Encoding::Postcard,
                    request,
                    time,
                    |copies, request| copies.write(request),
                )
                .await;
            let mut again = Vec::new();
            let mut last = None;
            match outcome {
                Ok(written) => {
                    let mut results = written.results.into_iter();
                    for mut routed in ops {
                        match results.next() {
                            Some(Err(error)) if error.kind == NOT_HERE => {
                                last = Some(error);
                                again.push(routed);
                            }
                            Some(Err(error)) if error.kind == UNKNOWN_OUTCOME && repeat(&mut routed) => {
                                last = Some(error);
                                again.push(routed);
                            }
                            Some(result) => done.push((routed.position, result)),
                            None => done.push((
                                routed.position,
                                Err(ApiError::unknown_outcome(
                                    "the primary answered fewer results than operations",
                                )),
                            )),
                        }
                    }
                }
                Err(Failure::NotDone(error)) => {
                    last = Some(error);
                    again = ops;
                }
                Err(Failure::Refused(error)) => return fail(done, ops, &error),
                Err(Failure::Unknown(error)) => {
                    for mut routed in ops {
                        if repeat(&mut routed) {
                            again.push(routed);
                        } else {
                            done.push((routed.position, Err(ApiError::unknown_outcome(&error.reason))));
                        }
                    }
                    last = Some(error);
                }
            }
            ops = again;
            if !ops.is_empty() && !pause.wait(deadline).await {
                let error = last.map_or_else(
                    || self.not_active(shard, options.timeout),
                    |error| ApiError::new(503, "unavailable_shards_exception", error.reason),
                );
                return fail(done, ops, &error);
            }
        }
        done
    }

    /// `wait_for_active_shards`: waits until so many copies of the shard are started.
    async fn enough_copies(
        &self,
        shard: ShardId,
        options: WriteOptions,
        deadline: Instant,
    ) -> Result<(), ApiError> {
        if options.wait_for_active_shards == ActiveShards::Count(1)
            || options.wait_for_active_shards == ActiveShards::Count(0)
        {
            return Ok(());
        }
        let count = |state: &Arc<segmentry_state::ClusterState>| {
            let index = state.index(shard.index)?;
            let wanted = options
                .wait_for_active_shards
                .wanted(index.settings.number_of_replicas);
            Some((
                state.serving(shard).len(),
                usize::try_from(wanted).unwrap_or(usize::MAX),
            ))
        };
        let reached = self
            .wait_state(deadline, |state| {
                count(state)
                    .is_none_or(|(have, wanted)| have >= wanted)
                    .then_some(())
            })
            .await;
        if reached.is_some() {
            return Ok(());
        }
        let (have, wanted) = count(&self.state()).unwrap_or((0, 0));
        let error = self.not_active(shard, options.timeout);
        Err(ApiError {
            reason: format!(
                "Not enough active copies to meet shard count of [{wanted}] (have {have}, needed {wanted})"
            ),
            ..error
        })
    }
}

/// What can be refused before an operation travels.
fn check(
    index: &Index,
    id: &str,
    kind: WriteKind,
    if_seq_no: Option<u64>,
    if_primary_term: Option<u64>,
) -> Result<(), ApiError> {
    validate_id(id)?;
    if if_seq_no.is_some() != if_primary_term.is_some() {
        return Err(ApiError::validation("ifSeqNo and ifPrimaryTerm must be given together").about(index));
    }
    if kind == WriteKind::Create && if_seq_no.is_some() {
        return Err(ApiError::validation(
            "create operations do not support compare and set. use index instead",
        )
        .about(index));
    }
    Ok(())
}

/// True where an operation may be sent again after an unknown outcome; it is made ready for that.
fn repeat(routed: &mut Routed) -> bool {
    routed.op.fresh_id = false;
    routed.op.repeatable()
}

fn fail(
    mut done: Vec<(usize, Result<Written, ApiError>)>,
    ops: Vec<Routed>,
    error: &ApiError,
) -> Vec<(usize, Result<Written, ApiError>)> {
    done.extend(
        ops.into_iter()
            .map(|routed| (routed.position, Err(error.clone()))),
    );
    done
}

/// A new document id: 128 random bits, 20 characters and more are not needed to tell documents apart.
fn make_id() -> Arc<str> {
    let mut bits = Uuid::new_v4().as_u128();
    let mut text = String::with_capacity(22);
    for _ in 0..22 {
        // The remainder is below 64.
        let digit = usize::try_from(bits & 63).unwrap_or(0);
        text.push(char::from(ID_ALPHABET[digit]));
        bits >>= 6;
    }
    Arc::from(text)
}
