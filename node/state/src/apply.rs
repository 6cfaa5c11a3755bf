//! [`ClusterState::apply`]: the pure function that changes the state.
//!
//! Every arm judges its whole precondition before it changes anything, so that a refused Change leaves only `version` behind.

mod indices;
mod members;
mod shards;

#[cfg(debug_assertions)]
use crate::invariants;
use crate::{Change, ClusterState, Index, IndexUuid, Refusal, Shard, ShardId};
use segmentry_settings::cluster;
use std::{collections::BTreeMap, sync::Arc};

impl ClusterState {
    /// Applies one Change. `version` grows by one, also where the Change is refused; a refusal changes nothing else.
    ///
    /// # Errors
    /// The Change's precondition does not hold.
    pub fn apply(&mut self, change: Change) -> Result<(), Refusal> {
        #[cfg(debug_assertions)]
        let before = self.clone();
        self.version += 1;
        let outcome = self.judge_and_change(change);
        #[cfg(debug_assertions)]
        {
            let mut broken = invariants::broken(self);
            broken.extend(invariants::broken_between(&before, self));
            debug_assert!(broken.is_empty(), "broken invariants: {broken:?}");
        }
        outcome
    }

    fn judge_and_change(&mut self, change: Change) -> Result<(), Refusal> {
        match change {
            Change::Form {
                cluster_uuid,
                cluster_name,
                members,
            } => self.form(cluster_uuid, cluster_name, members),
            Change::NodeJoined { node } => self.node_joined(node),
            Change::NodeLost { node, boot_id } => self.node_lost(node, boot_id),
            Change::ReplaceNode { epoch, lost, node } => self.replace_node(epoch, lost, node),
            Change::CreateIndex { epoch, index } => self.create_index(epoch, *index),
            Change::DeleteIndex { epoch, index, owner } => self.delete_index(epoch, index, owner.as_deref()),
            Change::PutMapping {
                index,
                expected,
                mapping,
            } => self.put_mapping(index, expected, mapping),
            Change::UpdateSettings {
                epoch,
                index,
                owner,
                settings,
            } => self.update_settings(epoch, index, owner, &settings),
            Change::AdoptIndex { epoch, index, owner } => self.adopt_index(epoch, index, owner),
            Change::ReleaseIndex { epoch, index, uid } => self.release_index(epoch, index, &uid),
            Change::ClusterSettings { epoch, settings } => self.update_cluster_settings(epoch, &settings),
            Change::Activate {
                shard,
                term,
                allocation,
                boot_id,
            } => self.activate(shard, term, allocation, boot_id),
            Change::PrimaryStarted { shard, term, boot_id } => self.primary_started(shard, term, boot_id),
            Change::PrimaryFailed { shard, term, reason } => self.primary_failed(shard, term, reason),
            Change::MoveUncreated {
                shard,
                term,
                allocation,
                node,
            } => self.move_uncreated(shard, term, allocation, node),
            Change::AssignReplica {
                shard,
                term,
                allocation,
                node,
            } => self.assign_replica(shard, term, allocation, node),
            Change::RemoveReplica { shard, allocation } => self.remove_replica(shard, allocation),
            Change::AddInSync {
                shard,
                term,
                allocation,
            } => self.add_in_sync(shard, term, allocation),
            Change::FailCopy {
                shard,
                term,
                allocation,
                reason,
            } => self.fail_copy(shard, term, allocation, reason),
            Change::CopyBroken {
                shard,
                allocation,
                reason,
            } => self.copy_broken(shard, allocation, reason),
            Change::CopyOpened {
                shard,
                allocation,
                boot_id,
            } => self.copy_opened(shard, allocation, boot_id),
            Change::RestartPrepared { epoch, record } => {
                self.check_epoch(Some(epoch))?;
                self.restart = Some(record);
                self.seen_epoch(Some(epoch));
                Ok(())
            }
            Change::RestartFinished { epoch, target } => {
                self.check_epoch(Some(epoch))?;
                match &self.restart {
                    Some(record) if record.target != target => {
                        return Err(Refusal::Stale(format!(
                            "the recorded restart leads to [{}], not to [{target}]",
                            record.target
                        )));
                    }
                    _ => self.restart = None,
                }
                self.seen_epoch(Some(epoch));
                Ok(())
            }
        }
    }

    fn update_cluster_settings(
        &mut self,
        epoch: Option<u64>,
        changes: &BTreeMap<String, Option<String>>,
    ) -> Result<(), Refusal> {
        self.check_epoch(epoch)?;
        self.settings = cluster::update(&self.settings, changes).map_err(|e| Refusal::Invalid(e.0))?;
        self.seen_epoch(epoch);
        Ok(())
    }

    fn check_epoch(&self, epoch: Option<u64>) -> Result<(), Refusal> {
        match epoch {
            Some(given) if given < self.epoch => Err(Refusal::StaleEpoch {
                given,
                known: self.epoch,
            }),
            _ => Ok(()),
        }
    }

    fn seen_epoch(&mut self, epoch: Option<u64>) {
        self.epoch = self.epoch.max(epoch.unwrap_or(0));
    }

    fn index_or_refuse(&self, uuid: IndexUuid) -> Result<&Arc<Index>, Refusal> {
        self.indices
            .get(&uuid)
            .ok_or_else(|| Refusal::NoSuchIndex(uuid.to_string()))
    }

    /// The index, for a change: copied only where a reader still holds it.
    fn index_mut(&mut self, uuid: IndexUuid) -> Result<&mut Index, Refusal> {
        self.indices
            .get_mut(&uuid)
            .map(Arc::make_mut)
            .ok_or_else(|| Refusal::NoSuchIndex(uuid.to_string()))
    }

    fn shard_or_refuse(&self, id: ShardId) -> Result<&Shard, Refusal> {
        self.index_or_refuse(id.index)?
            .shard(id.shard)
            .ok_or_else(|| Refusal::Invalid(format!("no such shard [{id}]")))
    }

    fn shard_mut(&mut self, id: ShardId) -> Result<&mut Shard, Refusal> {
        let position = usize::try_from(id.shard).unwrap_or(usize::MAX);
        self.index_mut(id.index)?
            .shards
            .get_mut(position)
            .ok_or_else(|| Refusal::Invalid(format!("no such shard [{id}]")))
    }
}

#[cfg(test)]
mod random;
#[cfg(test)]
mod tests;
