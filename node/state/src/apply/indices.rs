//! Creation, deletion, mappings, settings and ownership of indices.

use crate::{ClusterState, Index, IndexUuid, Refusal};
use segmentry_mapping::Mapping;
use segmentry_settings::admin::Owner;
use std::{collections::BTreeMap, collections::BTreeSet, sync::Arc};

impl ClusterState {
    pub(super) fn create_index(&mut self, epoch: Option<u64>, index: Index) -> Result<(), Refusal> {
        self.check_epoch(epoch)?;
        if let Some(existing) = self.index_by_name(&index.name) {
            return Err(Refusal::IndexExists {
                name: existing.name.clone(),
                uuid: existing.uuid,
            });
        }
        if self.indices.contains_key(&index.uuid) || self.tombstones.contains_key(&index.uuid) {
            return Err(Refusal::Invalid(format!(
                "index uuid [{}] was used already",
                index.uuid
            )));
        }
        self.check_first_assignment(&index)?;
        self.indices.insert(index.uuid, Arc::new(index));
        self.seen_epoch(epoch);
        Ok(())
    }

    fn check_first_assignment(&self, index: &Index) -> Result<(), Refusal> {
        let invalid = |why: String| Err(Refusal::Invalid(format!("index [{}]: {why}", index.name)));
        if !index
            .shards
            .iter()
            .map(|s| s.number)
            .eq(0..index.settings.number_of_shards)
        {
            return invalid("shards are not numbered from 0 to number_of_shards".into());
        }
        let mut allocations: BTreeSet<_> = self
            .shards()
            .flat_map(|(_, _, s)| s.copies.iter().map(|c| c.allocation))
            .collect();
        for shard in &index.shards {
            let fresh = shard.term == 0 && !shard.created && shard.active.is_none() && !shard.started;
            if !fresh
                || shard.primary_copy().is_none()
                || shard.in_sync != shard.primary.into_iter().collect()
            {
                return invalid(format!("shard {} is not a first assignment", shard.number));
            }
            let mut nodes = BTreeSet::new();
            for copy in &shard.copies {
                if !self.nodes.contains_key(&copy.node) {
                    return Err(Refusal::Stale(format!(
                        "index [{}]: node [{}] is not a member",
                        index.name, copy.node
                    )));
                }
                if !nodes.insert(copy.node) || !allocations.insert(copy.allocation) {
                    return invalid(format!(
                        "two copies of shard {} share a node or an allocation",
                        shard.number
                    ));
                }
            }
        }
        Ok(())
    }

    pub(super) fn delete_index(
        &mut self,
        epoch: Option<u64>,
        uuid: IndexUuid,
        owner: Option<&str>,
    ) -> Result<(), Refusal> {
        self.check_epoch(epoch)?;
        let index = self.index_or_refuse(uuid)?;
        match (&index.owner, owner) {
            (Some(recorded), None) => {
                return Err(Refusal::Owned {
                    owner: recorded.name.clone(),
                    what: "index".into(),
                });
            }
            (Some(recorded), Some(uid)) if recorded.uid != uid => {
                return Err(Refusal::OwnedByOther(recorded.name.clone()));
            }
            (None, Some(_)) => {
                return Err(Refusal::Stale(format!(
                    "index [{}] has no owner",
                    index.display()
                )));
            }
            _ => {}
        }
        let name = index.name.clone();
        self.indices.remove(&uuid);
        self.tombstones.insert(uuid, name);
        self.seen_epoch(epoch);
        Ok(())
    }

    pub(super) fn put_mapping(
        &mut self,
        uuid: IndexUuid,
        expected: u64,
        mapping: Arc<Mapping>,
    ) -> Result<(), Refusal> {
        let index = self.index_or_refuse(uuid)?;
        if index.mapping.version != expected {
            return Err(Refusal::Stale(format!(
                "mapping of [{}] is at version {}, not {expected}",
                index.display(),
                index.mapping.version
            )));
        }
        if mapping.version != expected + 1 {
            return Err(Refusal::Invalid(format!(
                "mapping version {} does not follow {expected}",
                mapping.version
            )));
        }
        self.index_mut(uuid)?.mapping = mapping;
        Ok(())
    }

    pub(super) fn update_settings(
        &mut self,
        epoch: Option<u64>,
        uuid: IndexUuid,
        owner: Option<Owner>,
        changes: &BTreeMap<String, Option<String>>,
    ) -> Result<(), Refusal> {
        self.check_epoch(epoch)?;
        let index = self.index_or_refuse(uuid)?;
        let invalid = |e: segmentry_settings::SettingError| Refusal::Invalid(e.0);
        match (&index.owner, &owner) {
            (Some(recorded), None) => {
                let expanded = index.settings.expand(changes).map_err(invalid)?;
                if let Some(what) = expanded.keys().find(|k| recorded.settings.contains(*k)) {
                    return Err(Refusal::Owned {
                        owner: recorded.name.clone(),
                        what: what.clone(),
                    });
                }
            }
            (Some(recorded), Some(given)) if recorded.uid != given.uid => {
                return Err(Refusal::OwnedByOther(recorded.name.clone()));
            }
            (None, Some(given)) => {
                return Err(Refusal::Stale(format!(
                    "index [{}] is not owned by [{}]",
                    index.display(),
                    given.name
                )));
            }
            _ => {}
        }
        let settings = index
            .settings
            .update(&index.display(), changes)
            .map_err(invalid)?;
        let changed = settings != index.settings;
        let index = self.index_mut(uuid)?;
        if changed {
            index.settings = settings;
            index.settings_version += 1;
        }
        if owner.is_some() {
            index.owner = owner;
        }
        self.seen_epoch(epoch);
        Ok(())
    }

    pub(super) fn adopt_index(&mut self, epoch: u64, uuid: IndexUuid, owner: Owner) -> Result<(), Refusal> {
        self.check_epoch(Some(epoch))?;
        match &self.index_or_refuse(uuid)?.owner {
            Some(recorded) if recorded.uid != owner.uid => {
                return Err(Refusal::OwnedByOther(recorded.name.clone()));
            }
            _ => {}
        }
        self.index_mut(uuid)?.owner = Some(owner);
        self.seen_epoch(Some(epoch));
        Ok(())
    }

    pub(super) fn release_index(&mut self, epoch: u64, uuid: IndexUuid, uid: &str) -> Result<(), Refusal> {
        self.check_epoch(Some(epoch))?;
        match &self.index_or_refuse(uuid)?.owner {
            Some(recorded) if recorded.uid != uid => {
                return Err(Refusal::OwnedByOther(recorded.name.clone()));
            }
            _ => {}
        }
        self.index_mut(uuid)?.owner = None;
        self.seen_epoch(Some(epoch));
        Ok(())
    }
}
