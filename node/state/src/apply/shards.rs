//! Activations, replicas and in-sync sets.

use crate::{AllocationId, BootId, ClusterState, NodeId, Refusal, Shard, ShardCopy, ShardId};

impl ClusterState {
    pub(super) fn activate(
        &mut self,
        id: ShardId,
        term: u64,
        allocation: AllocationId,
        boot_id: BootId,
    ) -> Result<(), Refusal> {
        let shard = self.shard_or_refuse(id)?;
        if term != shard.term + 1 {
            return Err(Refusal::Stale(format!(
                "term {term} does not follow {} of [{id}]",
                shard.term
            )));
        }
        if self.primary_node(id).is_some() {
            return Err(Refusal::Stale(format!(
                "the primary of [{id}] is active in term {}",
                shard.term
            )));
        }
        let Some(copy) = shard.copy(allocation).filter(|_| shard.is_in_sync(allocation)) else {
            return Err(Refusal::Invalid(format!(
                "copy [{allocation}] of [{id}] is not in sync"
            )));
        };
        if let Some(why) = &copy.broken {
            return Err(Refusal::Invalid(format!(
                "copy [{allocation}] of [{id}] cannot be opened: {why}"
            )));
        }
        if !self
            .nodes
            .get(&copy.node)
            .is_some_and(|n| n.alive && n.boot_id == Some(boot_id))
        {
            return Err(Refusal::Stale(format!(
                "node [{}] does not run process [{boot_id}]",
                copy.node
            )));
        }
        let shard = self.shard_mut(id)?;
        shard.term = term;
        shard.primary = Some(allocation);
        shard.active = Some(boot_id);
        shard.started = false;
        shard.unassigned_reason = None;
        Ok(())
    }

    pub(super) fn primary_started(&mut self, id: ShardId, term: u64, boot_id: BootId) -> Result<(), Refusal> {
        let shard = self.shard_or_refuse(id)?;
        check_term(id, shard, term)?;
        if shard.active != Some(boot_id) {
            return Err(Refusal::Stale(format!(
                "the activation of [{id}] in term {term} is not given to [{boot_id}]"
            )));
        }
        let shard = self.shard_mut(id)?;
        shard.started = true;
        shard.created = true;
        Ok(())
    }

    pub(super) fn primary_failed(&mut self, id: ShardId, term: u64, reason: String) -> Result<(), Refusal> {
        let shard = self.shard_or_refuse(id)?;
        check_term(id, shard, term)?;
        if shard.active.is_none() {
            return Err(Refusal::Stale(format!(
                "[{id}] has no active primary in term {term}"
            )));
        }
        let failed = shard.primary;
        // Only a copy that can take over at once is worth more than the failed one, which may open again.
        let another = shard
            .in_sync_copies()
            .any(|c| Some(c.allocation) != failed && c.broken.is_none() && self.is_alive(c.node));
        let shard = self.shard_mut(id)?;
        end_activation(shard, reason);
        if another && let Some(failed) = failed {
            remove(shard, failed);
        }
        Ok(())
    }

    pub(super) fn move_uncreated(
        &mut self,
        id: ShardId,
        term: u64,
        allocation: AllocationId,
        node: NodeId,
    ) -> Result<(), Refusal> {
        let shard = self.shard_or_refuse(id)?;
        check_term(id, shard, term)?;
        if shard.created {
            return Err(Refusal::Invalid(format!("[{id}] may hold acknowledged writes")));
        }
        if shard
            .primary_copy()
            .is_some_and(|c| self.is_alive(c.node) && c.broken.is_none())
        {
            return Err(Refusal::Stale(format!("the primary of [{id}] is on a live node")));
        }
        self.check_new_copy(id, shard, allocation, node)?;
        let shard = self.shard_mut(id)?;
        if let Some(old) = shard.primary {
            remove(shard, old);
        }
        shard.copies.push(ShardCopy {
            allocation,
            node,
            broken: None,
        });
        shard.in_sync = [allocation].into();
        shard.primary = Some(allocation);
        shard.active = None;
        shard.started = false;
        Ok(())
    }

    pub(super) fn assign_replica(
        &mut self,
        id: ShardId,
        term: u64,
        allocation: AllocationId,
        node: NodeId,
    ) -> Result<(), Refusal> {
        let shard = self.shard_or_refuse(id)?;
        check_term(id, shard, term)?;
        self.check_new_copy(id, shard, allocation, node)?;
        self.shard_mut(id)?.copies.push(ShardCopy {
            allocation,
            node,
            broken: None,
        });
        Ok(())
    }

    fn check_new_copy(
        &self,
        id: ShardId,
        shard: &Shard,
        allocation: AllocationId,
        node: NodeId,
    ) -> Result<(), Refusal> {
        if !self.nodes.contains_key(&node) {
            return Err(Refusal::Invalid(format!("node [{node}] is not a member")));
        }
        if shard.copy_on(node).is_some() {
            return Err(Refusal::Stale(format!(
                "node [{node}] has a copy of [{id}] already"
            )));
        }
        if self.shards().any(|(_, _, s)| s.copy(allocation).is_some()) {
            return Err(Refusal::Invalid(format!("allocation [{allocation}] is in use")));
        }
        Ok(())
    }

    pub(super) fn remove_replica(&mut self, id: ShardId, allocation: AllocationId) -> Result<(), Refusal> {
        let shard = self.shard_or_refuse(id)?;
        if shard.copy(allocation).is_none() {
            return Ok(());
        }
        check_may_leave(id, shard, allocation)?;
        remove(self.shard_mut(id)?, allocation);
        Ok(())
    }

    pub(super) fn add_in_sync(
        &mut self,
        id: ShardId,
        term: u64,
        allocation: AllocationId,
    ) -> Result<(), Refusal> {
        let shard = self.shard_or_refuse(id)?;
        check_term(id, shard, term)?;
        if shard.active.is_none() {
            return Err(Refusal::Stale(format!(
                "[{id}] has no active primary in term {term}"
            )));
        }
        let Some(copy) = shard.copy(allocation) else {
            return Err(Refusal::Stale(format!(
                "copy [{allocation}] of [{id}] is not listed"
            )));
        };
        if let Some(why) = &copy.broken {
            return Err(Refusal::Invalid(format!(
                "copy [{allocation}] of [{id}] cannot be opened: {why}"
            )));
        }
        let shard = self.shard_mut(id)?;
        shard.in_sync.insert(allocation);
        shard.unassigned_reason = None;
        Ok(())
    }

    pub(super) fn fail_copy(
        &mut self,
        id: ShardId,
        term: u64,
        allocation: AllocationId,
        reason: String,
    ) -> Result<(), Refusal> {
        let shard = self.shard_or_refuse(id)?;
        check_term(id, shard, term)?;
        if shard.copy(allocation).is_none() {
            return Ok(());
        }
        check_may_leave(id, shard, allocation)?;
        let shard = self.shard_mut(id)?;
        remove(shard, allocation);
        shard.unassigned_reason = Some(reason);
        Ok(())
    }

    pub(super) fn copy_broken(
        &mut self,
        id: ShardId,
        allocation: AllocationId,
        reason: String,
    ) -> Result<(), Refusal> {
        if self.shard_or_refuse(id)?.copy(allocation).is_none() {
            return Err(Refusal::Stale(format!(
                "copy [{allocation}] of [{id}] is not listed"
            )));
        }
        let shard = self.shard_mut(id)?;
        if shard.primary == Some(allocation) {
            end_activation(shard, reason.clone());
        }
        for copy in shard.copies.iter_mut().filter(|c| c.allocation == allocation) {
            copy.broken = Some(reason.clone());
        }
        Ok(())
    }

    pub(super) fn copy_opened(
        &mut self,
        id: ShardId,
        allocation: AllocationId,
        boot_id: BootId,
    ) -> Result<(), Refusal> {
        let Some(copy) = self.shard_or_refuse(id)?.copy(allocation) else {
            return Err(Refusal::Stale(format!(
                "copy [{allocation}] of [{id}] is not listed"
            )));
        };
        let node = copy.node;
        if self.nodes.get(&node).is_none_or(|n| n.boot_id != Some(boot_id)) {
            return Err(Refusal::Stale(format!(
                "node [{node}] does not run process [{boot_id}]"
            )));
        }
        if copy.broken.is_none() {
            return Ok(());
        }
        let shard = self.shard_mut(id)?;
        for copy in shard.copies.iter_mut().filter(|c| c.allocation == allocation) {
            copy.broken = None;
        }
        Ok(())
    }
}

fn check_term(id: ShardId, shard: &Shard, term: u64) -> Result<(), Refusal> {
    if shard.term == term {
        Ok(())
    } else {
        Err(Refusal::Stale(format!(
            "[{id}] is in term {}, not {term}",
            shard.term
        )))
    }
}

fn check_may_leave(id: ShardId, shard: &Shard, allocation: AllocationId) -> Result<(), Refusal> {
    if shard.primary == Some(allocation) {
        return Err(Refusal::Invalid(format!(
            "copy [{allocation}] is the primary of [{id}]"
        )));
    }
    if shard.in_sync.iter().all(|a| *a == allocation) {
        return Err(Refusal::Invalid(format!(
            "copy [{allocation}] is the last in-sync copy of [{id}]"
        )));
    }
    Ok(())
}

/// The primary's process gave up: the shard waits for an activation in the next term.
fn end_activation(shard: &mut Shard, reason: String) {
    shard.active = None;
    shard.started = false;
    shard.unassigned_reason = Some(reason);
}

/// Drops a copy from the list and the in-sync set. The caller has checked that another in-sync copy stays.
fn remove(shard: &mut Shard, allocation: AllocationId) {
    shard.in_sync.remove(&allocation);
    shard.copies.retain(|c| c.allocation != allocation);
    if shard.primary == Some(allocation) {
        shard.primary = None;
    }
}
