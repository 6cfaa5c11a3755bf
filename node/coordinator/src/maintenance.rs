//! Refresh, flush and numbers, over all copies of some indices.

use crate::{
    ApiError, Coordinator, ShardFailure,
    copies::{Answer, Copies, FLUSH, REFRESH, STATS},
    route::{Encoding, Failure},
    stats::CopyStats,
};
use futures::future::join_all;
use segmentry_state::{CopyState, Index, Node, NodeId, ShardId};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// How long one copy may take to refresh or flush.
const DEADLINE: Duration = Duration::from_secs(120);

/// `_shards` of a request that concerns every copy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Broadcast {
    /// Wanted copies.
    pub total: usize,
    /// Copies that did it.
    pub successful: usize,
    /// Copies that were asked and failed.
    pub failures: Vec<ShardFailure>,
}

impl Coordinator {
    /// Refreshes every started copy: primaries first, so that replicas that copy segments have something to fetch.
    pub async fn refresh(&self, indices: &[Arc<Index>]) -> Broadcast {
        self.broadcast(indices, REFRESH, |copies, shard| copies.refresh(shard))
            .await
    }

    /// Makes a durable commit on every started copy.
    pub async fn flush(&self, indices: &[Arc<Index>]) -> Broadcast {
        self.broadcast(indices, FLUSH, |copies, shard| copies.flush(shard))
            .await
    }

    async fn broadcast(
        &self,
        indices: &[Arc<Index>],
        path: &'static str,
        local: fn(&dyn Copies, ShardId) -> Answer<()>,
    ) -> Broadcast {
        let state = self.state();
        let mut out = Broadcast::default();
        let mut shards: Vec<(Arc<Index>, ShardId, Vec<Node>)> = Vec::new();
        for index in indices {
            let replicas = usize::try_from(index.settings.number_of_replicas).unwrap_or(usize::MAX);
            for shard in &index.shards {
                out.total += 1 + replicas;
                let id = ShardId {
                    index: index.uuid,
                    shard: shard.number,
                };
                let nodes = state
                    .serving(id)
                    .into_iter()
                    .map(|(_, node)| node.clone())
                    .collect();
                shards.push((Arc::clone(index), id, nodes));
            }
        }
        let tasks = shards.into_iter().map(|(index, shard, nodes)| async move {
            let mut outcomes = Vec::with_capacity(nodes.len());
            let mut nodes = nodes.into_iter();
            // `serving` lists the primary first.
            if let Some(primary) = nodes.next() {
                let outcome = self
                    .on_node(&primary, path, Encoding::Json, shard, DEADLINE, local)
                    .await;
                outcomes.push((primary.name, outcome));
            }
            let replicas = nodes.map(|node| async move {
                let outcome = self
                    .on_node(&node, path, Encoding::Json, shard, DEADLINE, local)
                    .await;
                (node.name, outcome)
            });
            outcomes.extend(join_all(replicas).await);
            (index, shard, outcomes)
        });
        for (index, shard, outcomes) in join_all(tasks).await {
            for (node, outcome) in outcomes {
                match outcome {
                    Ok(()) => out.successful += 1,
                    Err(failure) => out.failures.push(ShardFailure {
                        index: index.name.clone(),
                        shard: shard.shard,
                        node: Some(node),
                        error: Box::new(failure.into_error()),
                    }),
                }
            }
        }
        out
    }

    /// Numbers of all copies of these indices, from every node that has one; and which nodes did not answer.
    pub async fn stats(&self, indices: &[Arc<Index>]) -> (Vec<CopyStats>, Vec<(String, ApiError)>) {
        let state = self.state();
        let mut by_node: BTreeMap<NodeId, Vec<ShardId>> = BTreeMap::new();
        for index in indices {
            for shard in &index.shards {
                for copy in &shard.copies {
                    if state.copy_state(shard, copy) != CopyState::Unassigned {
                        by_node.entry(copy.node).or_default().push(ShardId {
                            index: index.uuid,
                            shard: shard.number,
                        });
                    }
                }
            }
        }
        let calls = by_node.into_iter().filter_map(|(id, shards)| {
            let node = state.node(id)?.clone();
            Some(async move {
                let answer: Result<Vec<CopyStats>, Failure> = self
                    .on_node(
                        &node,
                        STATS,
                        Encoding::Json,
                        shards,
                        crate::STATS_DEADLINE,
                        |copies, shards| copies.stats(shards),
                    )
                    .await;
                (node.name, answer)
            })
        });
        let (mut all, mut failed) = (Vec::new(), Vec::new());
        for (name, answer) in join_all(calls).await {
            match answer {
                Ok(stats) => all.extend(stats),
                Err(failure) => failed.push((name, failure.into_error())),
            }
        }
        (all, failed)
    }
}
