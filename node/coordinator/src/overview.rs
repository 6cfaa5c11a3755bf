//! The whole cluster, as the declared object's status needs it.

use crate::{ApiError, Coordinator, METADATA_TIMEOUT, stats::CopyStats};
use segmentry_settings::admin::{CopyOverview, IndexOverview, NodeOverview, Overview};
use segmentry_state::{AllocationId, ClusterState, CopyState, Index, ShardId};
use std::{collections::HashMap, sync::Arc};

/// Most sentences of [`Overview::unsettled`].
const MOST_SENTENCES: usize = 10;

impl Coordinator {
    /// The cluster after a linearizable read, with what the copies say of themselves.
    pub async fn overview(&self) -> Result<Overview, ApiError> {
        let state = self.read().await?;
        let indices: Vec<Arc<Index>> = state.indices.values().cloned().collect();
        let (stats, failed) = self.stats(&indices).await;
        for (node, error) in failed {
            tracing::warn!(node, %error, "a node did not answer with the numbers of its copies");
        }
        let stats = by_allocation(&stats);
        let mut indices: Vec<IndexOverview> = indices
            .iter()
            .map(|index| index_overview(&state, index, &stats))
            .collect();
        indices.sort_by(|left, right| left.name.cmp(&right.name));
        let unsettled = segmentry_allocation::unsettled(&state, MOST_SENTENCES);
        Ok(Overview {
            cluster_uuid: state
                .cluster_uuid
                .map(|uuid| uuid.to_string())
                .unwrap_or_default(),
            cluster_name: state.cluster_name.clone(),
            state_version: state.version,
            health: state.health(),
            leader: self
                .leader()
                .and_then(|id| state.node(id))
                .map(|node| node.name.clone()),
            nodes: nodes(&state),
            indices,
            settings: state.settings.clone(),
            settled: unsettled.is_empty(),
            unsettled,
            restart: state.restart.clone(),
            epoch: state.epoch,
        })
    }

    /// One index, as in [`Self::overview`], from the state as applied here.
    pub async fn index_overview(&self, uuid: segmentry_state::IndexUuid) -> Result<IndexOverview, ApiError> {
        let state = self.state();
        let index = state
            .index(uuid)
            .ok_or_else(|| ApiError::no_index(&uuid.to_string()))?;
        let (stats, _) = self.stats(std::slice::from_ref(index)).await;
        Ok(index_overview(&state, index, &by_allocation(&stats)))
    }

    /// A linearizable read of the cluster state.
    pub async fn read(&self) -> Result<Arc<ClusterState>, ApiError> {
        self.formed()?;
        match tokio::time::timeout(METADATA_TIMEOUT, self.inner.meta.read()).await {
            Ok(Ok(state)) => Ok(state),
            Ok(Err(_)) | Err(_) => Err(ApiError::new(
                503,
                "no_quorum",
                "the cluster metadata has no quorum",
            )),
        }
    }
}

fn by_allocation(stats: &[CopyStats]) -> HashMap<AllocationId, &CopyStats> {
    stats.iter().map(|copy| (copy.allocation, copy)).collect()
}

fn nodes(state: &ClusterState) -> Vec<NodeOverview> {
    let mut out: Vec<NodeOverview> = state
        .nodes
        .values()
        .map(|node| {
            let (mut primaries, mut copies) = (0, 0);
            for (id, _, shard, copy) in state.copies_on(node.id) {
                copies += 1;
                let primary = shard.primary == Some(copy.allocation) && state.primary_serves(id);
                primaries += u32::from(primary);
            }
            NodeOverview {
                node_id: node.id.to_string(),
                name: node.name.clone(),
                boot_id: node.boot_id.map(|boot| boot.to_string()),
                alive: node.alive,
                // Every member is a voter: learners are not in the cluster state.
                voter: true,
                version: node.version.clone(),
                rest_address: node.rest_address.clone(),
                disk_id: node.disk_id.clone(),
                primaries,
                copies,
            }
        })
        .collect();
    out.sort_by(|left, right| left.name.cmp(&right.name));
    out
}

fn index_overview(
    state: &ClusterState,
    index: &Index,
    stats: &HashMap<AllocationId, &CopyStats>,
) -> IndexOverview {
    let mut copies = Vec::new();
    let (mut documents, mut size_bytes) = (0, 0);
    for shard in &index.shards {
        let id = ShardId {
            index: index.uuid,
            shard: shard.number,
        };
        let wanted = 1 + index.settings.number_of_replicas;
        for copy in &shard.copies {
            let primary = shard.primary == Some(copy.allocation);
            let copy_state = state.copy_state(shard, copy);
            let report = stats.get(&copy.allocation).map(|stats| stats.report.clone());
            if let Some(report) = &report {
                size_bytes += report.size_bytes;
                if primary {
                    documents += report.documents;
                }
            }
            copies.push(CopyOverview {
                shard: shard.number,
                node: state.node(copy.node).map(|node| node.name.clone()),
                primary,
                state: copy_state.as_str().to_owned(),
                reason: segmentry_allocation::explain(state, id, copy),
                in_sync: shard.is_in_sync(copy.allocation),
                report,
            });
        }
        let listed = u32::try_from(shard.copies.len()).unwrap_or(u32::MAX);
        for _ in listed..wanted {
            copies.push(CopyOverview {
                shard: shard.number,
                node: None,
                primary: false,
                state: CopyState::Unassigned.as_str().to_owned(),
                // The sentence on missing copies is the last one.
                reason: segmentry_allocation::explain_shard(state, id).pop(),
                in_sync: false,
                report: None,
            });
        }
    }
    IndexOverview {
        name: index.name.clone(),
        uuid: index.uuid.to_string(),
        owner: index.owner.clone(),
        health: state.index_health(index),
        shards: index.settings.number_of_shards,
        replicas: index.settings.number_of_replicas,
        settings: index.settings_flat(),
        mappings: index.mapping.to_json(),
        documents,
        size_bytes,
        copies,
    }
}
