//! Reads by id: from the primary, which sees every acknowledged write.

use crate::{
    ApiError, Coordinator,
    copies::GET,
    document::{Found, GetRequest, ShardGet},
    names,
    route::Encoding,
};
use futures::future::join_all;
use segmentry_state::{Index, ShardId};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// How long a read waits for a primary.
const TIMEOUT: Duration = Duration::from_secs(60);

/// One result of a multi-get: the index that was asked, and the document, if there is one.
pub type GetResult = Result<(Arc<Index>, Option<Found>), ApiError>;

/// Reads of one shard: its index, and for each its position and id.
type Group = (Arc<Index>, Vec<(usize, String)>);

impl Coordinator {
    /// One document.
    pub async fn get(&self, request: GetRequest) -> GetResult {
        self.mget(vec![request]).await.pop().unwrap_or_else(|| {
            Err(ApiError::new(
                500,
                "internal_error",
                "a read of one has no result",
            ))
        })
    }

    /// Several documents, in order.
    pub async fn mget(&self, requests: Vec<GetRequest>) -> Vec<GetResult> {
        let state = self.state();
        let mut results: Vec<GetResult> = Vec::with_capacity(requests.len());
        let mut groups: BTreeMap<(ShardId, bool, bool), Group> = BTreeMap::new();
        for (position, request) in requests.into_iter().enumerate() {
            match names::exact(&state, &request.index) {
                Ok(index) => {
                    let shard = ShardId {
                        index: index.uuid,
                        shard: index.shard_of(&request.id, request.routing.as_deref()),
                    };
                    results.push(Ok((Arc::clone(&index), None)));
                    groups
                        .entry((shard, request.realtime, request.refresh))
                        .or_insert_with(|| (index, Vec::new()))
                        .1
                        .push((position, request.id));
                }
                Err(error) => results.push(Err(error)),
            }
        }
        let reads = groups
            .into_iter()
            .map(|((shard, realtime, refresh), (index, wanted))| async move {
                let (positions, ids): (Vec<usize>, Vec<String>) = wanted.into_iter().unzip();
                let request = ShardGet {
                    shard,
                    ids,
                    realtime,
                    refresh,
                };
                let answer = self
                    .on_primary(
                        shard,
                        GET,
                        Encoding::Postcard,
                        request,
                        TIMEOUT,
                        |copies, request| copies.get(request),
                    )
                    .await;
                (index, positions, answer)
            });
        for (index, positions, answer) in join_all(reads).await {
            match answer {
                Ok(found) => {
                    for (position, found) in positions.into_iter().zip(found) {
                        results[position] = Ok((Arc::clone(&index), found));
                    }
                }
                Err(error) => {
                    for position in positions {
                        results[position] = Err(error.clone());
                    }
                }
            }
        }
        results
    }
}
