//! Formation, joins, losses, replacement of a member.

use crate::{BootId, ClusterState, Node, NodeId, Refusal};
use std::{collections::BTreeSet, sync::Arc};

impl ClusterState {
    pub(super) fn form(&mut self, uuid: uuid::Uuid, name: String, members: Vec<Node>) -> Result<(), Refusal> {
        let ids: BTreeSet<NodeId> = members.iter().map(|n| n.id).collect();
        let names: BTreeSet<&str> = members.iter().map(|n| n.name.as_str()).collect();
        if let Some(known) = self.cluster_uuid {
            if known == uuid && self.nodes.keys().copied().eq(ids.iter().copied()) {
                return Ok(());
            }
            return Err(Refusal::Invalid(format!(
                "the cluster is formed already as [{known}] with {} members",
                self.nodes.len()
            )));
        }
        if ids.len() != members.len() || names.len() != members.len() {
            return Err(Refusal::Invalid("two members share an id or a name".into()));
        }
        if members.is_empty() || members.len() == 2 || members.len().is_multiple_of(2) {
            return Err(Refusal::Invalid(format!(
                "a cluster has one member or an odd number of at least three, not {}",
                members.len()
            )));
        }
        self.cluster_uuid = Some(uuid);
        self.cluster_name = name;
        self.nodes = members
            .into_iter()
            .map(|mut node| {
                node.alive &= node.boot_id.is_some();
                (node.id, node)
            })
            .collect();
        Ok(())
    }

    pub(super) fn node_joined(&mut self, mut node: Node) -> Result<(), Refusal> {
        let Some(recorded) = self.nodes.get(&node.id) else {
            return Err(Refusal::Invalid(format!(
                "node [{}/{}] is not a member",
                node.name, node.id
            )));
        };
        let Some(boot_id) = node.boot_id else {
            return Err(Refusal::Invalid(format!(
                "node [{}] joins without a boot id",
                node.name
            )));
        };
        if self
            .nodes
            .values()
            .any(|n| n.name == node.name && n.id != node.id)
        {
            return Err(Refusal::Invalid(format!(
                "another member is named [{}]",
                node.name
            )));
        }
        let id = node.id;
        let new_process = recorded.boot_id != Some(boot_id);
        // A node in Kubernetes does not know its volume claim: what the operator said of it at initialisation or replacement stays, for by it
        // an emptied disk is told from a new one.
        if node.disk_id.is_none() {
            node.disk_id.clone_from(&recorded.disk_id);
        }
        node.alive = true;
        self.nodes.insert(id, node);
        if new_process {
            self.end_process(id);
        }
        Ok(())
    }

    /// A process of `node` ended: its activations are over, and copies that it could not open may be tried again.
    fn end_process(&mut self, node: NodeId) {
        for index in self.indices.values_mut() {
            let touched = |s: &crate::Shard| {
                let primary_here = s.active.is_some() && s.primary_copy().is_some_and(|c| c.node == node);
                primary_here || s.copy_on(node).is_some_and(|c| c.broken.is_some())
            };
            if !index.shards.iter().any(touched) {
                continue;
            }
            for shard in &mut Arc::make_mut(index).shards {
                if shard.primary_copy().is_some_and(|c| c.node == node) {
                    shard.active = None;
                    shard.started = false;
                }
                for copy in shard.copies.iter_mut().filter(|c| c.node == node) {
                    copy.broken = None;
                }
            }
        }
    }

    pub(super) fn node_lost(&mut self, id: NodeId, boot_id: BootId) -> Result<(), Refusal> {
        let Some(node) = self.nodes.get_mut(&id) else {
            return Err(Refusal::Invalid(format!("node [{id}] is not a member")));
        };
        if node.boot_id != Some(boot_id) {
            return Err(Refusal::Stale(format!(
                "node [{}] runs another process already",
                node.name
            )));
        }
        node.alive = false;
        Ok(())
    }

    pub(super) fn replace_node(&mut self, epoch: u64, lost: NodeId, mut node: Node) -> Result<(), Refusal> {
        self.check_epoch(Some(epoch))?;
        let done = !self.nodes.contains_key(&lost) && self.nodes.contains_key(&node.id);
        if done {
            self.seen_epoch(Some(epoch));
            return Ok(());
        }
        let Some(record) = self.nodes.get(&lost) else {
            return Err(Refusal::Invalid(format!("node [{lost}] is not a member")));
        };
        if record.alive {
            return Err(Refusal::Invalid(format!(
                "node [{}/{lost}] is alive",
                record.name
            )));
        }
        if self.nodes.contains_key(&node.id) {
            return Err(Refusal::Invalid(format!(
                "node [{}] is a member already",
                node.id
            )));
        }
        if self.nodes.values().any(|n| n.name == node.name && n.id != lost) {
            return Err(Refusal::Invalid(format!(
                "another member is named [{}]",
                node.name
            )));
        }
        let lost_name = record.name.clone();
        let id = node.id;
        node.alive &= node.boot_id.is_some();
        self.nodes.remove(&lost);
        self.nodes.insert(id, node);
        for index in self.indices.values_mut() {
            if !index.shards.iter().any(|s| s.copy_on(lost).is_some()) {
                continue;
            }
            for shard in &mut Arc::make_mut(index).shards {
                let Some(copy) = shard.copy_on(lost) else { continue };
                let allocation = copy.allocation;
                let others = shard.in_sync.iter().any(|a| *a != allocation);
                if shard.primary == Some(allocation) {
                    shard.active = None;
                    shard.started = false;
                }
                if others || !shard.in_sync.contains(&allocation) {
                    shard.in_sync.remove(&allocation);
                    shard.copies.retain(|c| c.allocation != allocation);
                    if shard.primary == Some(allocation) {
                        shard.primary = None;
                    }
                } else if shard.created {
                    shard.unassigned_reason = Some(format!(
                        "the only in-sync copy was on node [{lost_name}/{lost}], whose disk is gone"
                    ));
                } else {
                    // Nothing was ever acknowledged: the same incarnation starts on the new disk.
                    for copy in shard.copies.iter_mut().filter(|c| c.allocation == allocation) {
                        copy.node = id;
                        copy.broken = None;
                    }
                }
            }
        }
        self.seen_epoch(Some(epoch));
        Ok(())
    }
}
