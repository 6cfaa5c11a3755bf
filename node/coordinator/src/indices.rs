//! Creating, deleting and changing indices.

use crate::{ApiError, Coordinator, METADATA_TIMEOUT, document::ActiveShards, error::STALE, names, now_ms};
use segmentry_mapping::Mapping;
use segmentry_settings::{
    admin::Owner,
    index::{IndexSettings, normalise},
};
use segmentry_state::{Change, ClusterState, Index, IndexUuid};
use serde_json::Value;
use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};
use tokio::time::Instant;
use uuid::Uuid;

/// How often a change of a mapping is tried again after another one was faster.
const MAPPING_RACES: usize = 20;

/// A new index.
#[derive(Debug, Clone, PartialEq)]
pub struct NewIndex {
    /// Name.
    pub name: String,
    /// `settings` of the create call.
    pub settings: Value,
    /// `mappings` of the create call.
    pub mappings: Value,
    /// The declared object, and its operator's epoch.
    pub declared: Option<(u64, Owner)>,
}

/// An index that was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Created {
    /// The index.
    pub index: Arc<Index>,
    /// So many copies of each shard as were waited for have started.
    pub shards_acknowledged: bool,
}

impl Coordinator {
    /// Makes an index and waits at most `timeout` for so many copies of each of its shards to start.
    pub async fn create_index(
        &self,
        new: NewIndex,
        wait: ActiveShards,
        timeout: Duration,
    ) -> Result<Created, ApiError> {
        names::validate_new(&new.name)?;
        let deadline = Instant::now() + timeout;
        let state = self.formed()?;
        let cluster = state.cluster_settings();
        let settings = IndexSettings::create(&new.settings, &cluster)?;
        if let ActiveShards::Count(count) = wait
            && count > settings.number_of_replicas + 1
        {
            return Err(ApiError::validation(format!(
                "invalid value for wait_for_active_shards: [{count}], should not exceed the number of copies [{}]",
                settings.number_of_replicas + 1
            )));
        }
        let mapping = Mapping::from_json(&new.mappings, settings.total_fields_limit)?;
        let shards = segmentry_allocation::assign_new(&state, &settings, Uuid::new_v4)
            .map_err(|error| ApiError::new(503, "no_node_exception", error.to_string()))?;
        let (epoch, owner) = new
            .declared
            .map_or((None, None), |(epoch, owner)| (Some(epoch), Some(owner)));
        let index = Index {
            uuid: Uuid::new_v4(),
            name: new.name,
            settings,
            settings_version: 1,
            mapping: Arc::new(mapping),
            owner,
            created_ms: now_ms(),
            shards,
        };
        let uuid = index.uuid;
        let replicas = index.settings.number_of_replicas;
        let name = index.name.clone();
        let change = Change::CreateIndex {
            epoch,
            index: Box::new(index),
        };
        self.propose(change).await?;
        let wanted = usize::try_from(wait.wanted(replicas)).unwrap_or(usize::MAX);
        let started = self
            .wait_state(deadline, |state| {
                let Some(index) = state.index(uuid) else {
                    return Some(false);
                };
                index
                    .shards
                    .iter()
                    .all(|shard| {
                        let id = segmentry_state::ShardId {
                            index: uuid,
                            shard: shard.number,
                        };
                        wanted == 0 || (state.primary_serves(id) && state.serving(id).len() >= wanted)
                    })
                    .then_some(true)
            })
            .await
            .unwrap_or(false);
        let index = self
            .state()
            .index(uuid)
            .cloned()
            .ok_or_else(|| ApiError::no_index(&name))?;
        Ok(Created {
            index,
            shards_acknowledged: started,
        })
    }

    /// The index of a first write: made with the cluster's defaults, or found where another write was faster.
    pub(crate) async fn create_for_write(
        &self,
        name: &str,
        timeout: Duration,
    ) -> Result<Arc<Index>, ApiError> {
        let new = NewIndex {
            name: name.to_owned(),
            settings: Value::Null,
            mappings: Value::Null,
            declared: None,
        };
        // The write itself waits for its primary.
        match self.create_index(new, ActiveShards::Count(0), timeout).await {
            Ok(created) => Ok(created.index),
            Err(error) if error.kind == "resource_already_exists_exception" => {
                names::exact(&self.state(), name)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes indices; a declared one is refused unless `declared` names its operator's epoch and its owner's uid.
    pub async fn delete_index(
        &self,
        index: IndexUuid,
        declared: Option<(u64, Option<String>)>,
    ) -> Result<(), ApiError> {
        let (epoch, owner) = declared.map_or((None, None), |(epoch, owner)| (Some(epoch), owner));
        self.propose(Change::DeleteIndex { epoch, index, owner }).await?;
        Ok(())
    }

    /// Adds fields.
    pub async fn put_mapping(&self, index: IndexUuid, body: &Value) -> Result<(), ApiError> {
        let update = Mapping::update_from_json(body)?;
        for _ in 0..MAPPING_RACES {
            let state = self.state();
            let current = state
                .index(index)
                .ok_or_else(|| ApiError::no_index(&index.to_string()))?;
            let merged = current
                .mapping
                .merge(&update, current.settings.total_fields_limit)
                .map_err(|error| ApiError::from(error).about(current))?;
            if merged.version == current.mapping.version {
                return Ok(());
            }
            let change = Change::PutMapping {
                index,
                expected: current.mapping.version,
                mapping: Arc::new(merged),
            };
            match self.propose(change).await {
                Ok(_) => return Ok(()),
                // Another addition was faster; the state here may not hold it yet, so read again.
                Err(error) if error.kind == STALE => {
                    self.read().await?;
                }
                Err(error) => return Err(error),
            }
        }
        Err(ApiError::new(
            503,
            "process_cluster_event_timeout_exception",
            "the mapping changed again and again while this change was tried",
        ))
    }

    /// Changes dynamic settings; `body` as OpenSearch takes it, nulls reset.
    pub async fn put_settings(
        &self,
        index: IndexUuid,
        body: &Value,
        preserve_existing: bool,
    ) -> Result<(), ApiError> {
        let mut settings = normalise(body)?;
        let state = self.state();
        let current = state
            .index(index)
            .ok_or_else(|| ApiError::no_index(&index.to_string()))?;
        if preserve_existing {
            settings.retain(|key, _| !current.settings.explicit.contains_key(key));
        }
        current
            .settings
            .update(&current.display(), &settings)
            .map_err(|error| ApiError::from(error).about(current))?;
        if settings.is_empty() {
            return Ok(());
        }
        self.update_settings(index, None, settings).await
    }

    /// Changes dynamic settings by full keys; `declared` is the operator's epoch and the owner as it is now.
    pub async fn update_settings(
        &self,
        index: IndexUuid,
        declared: Option<(u64, Owner)>,
        settings: BTreeMap<String, Option<String>>,
    ) -> Result<(), ApiError> {
        let (epoch, owner) = declared.map_or((None, None), |(epoch, owner)| (Some(epoch), Some(owner)));
        let change = Change::UpdateSettings {
            epoch,
            index,
            owner,
            settings,
        };
        self.propose(change).await?;
        Ok(())
    }

    /// Changes persistent cluster settings; `None` removes.
    pub async fn put_cluster_settings(
        &self,
        epoch: Option<u64>,
        settings: BTreeMap<String, Option<String>>,
    ) -> Result<Arc<ClusterState>, ApiError> {
        let checked = segmentry_settings::cluster::update(&self.state().settings, &settings)?;
        drop(checked);
        self.propose(Change::ClusterSettings { epoch, settings }).await
    }

    /// The state, once this node belongs to a cluster.
    pub fn formed(&self) -> Result<Arc<ClusterState>, ApiError> {
        let state = self.state();
        if state.cluster_uuid.is_none() {
            return Err(ApiError::new(
                503,
                "cluster_manager_not_discovered_exception",
                "this node does not belong to a cluster yet, it waits to be initialised",
            ));
        }
        Ok(state)
    }

    /// Commits one change of the cluster metadata, within the limit of [`within`], else within [`METADATA_TIMEOUT`].
    pub async fn propose(&self, change: Change) -> Result<Arc<ClusterState>, ApiError> {
        let limit = LIMIT.try_with(|limit| *limit).unwrap_or(METADATA_TIMEOUT);
        match tokio::time::timeout(limit, self.inner.meta.propose(change)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(ApiError::new(
                503,
                "process_cluster_event_timeout_exception",
                format!(
                    "failed to process cluster event within {} ms, it may be done later",
                    limit.as_millis()
                ),
            )),
        }
    }
}

tokio::task_local! {
    static LIMIT: Duration;
}

/// Runs `work` with a bound for each change of the cluster metadata that it makes (`cluster_manager_timeout`).
pub async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> T {
    LIMIT.scope(limit, work).await
}
