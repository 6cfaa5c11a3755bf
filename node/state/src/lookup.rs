//! Questions to the cluster state.

use crate::{AllocationId, ClusterState, Index, IndexUuid, Node, NodeId, Shard, ShardCopy, ShardId, routing};
use segmentry_settings::{
    admin::Health,
    cluster::ClusterSettings,
    index::{NUMBER_OF_REPLICAS, NUMBER_OF_SHARDS},
};
use std::{collections::BTreeMap, sync::Arc};

/// What a copy is doing, as far as the cluster state knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyState {
    /// Its node is away, or it cannot be opened, or it is the primary of a shard that waits for an activation.
    Unassigned,
    /// It is being opened, activated or recovered.
    Initializing,
    /// It serves.
    Started,
}

impl CopyState {
    /// As OpenSearch prints it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unassigned => "UNASSIGNED",
            Self::Initializing => "INITIALIZING",
            Self::Started => "STARTED",
        }
    }
}

impl ClusterState {
    /// The index of a name.
    pub fn index_by_name(&self, name: &str) -> Option<&Arc<Index>> {
        self.indices.values().find(|i| i.name == name)
    }

    /// The index of a uuid.
    pub fn index(&self, uuid: IndexUuid) -> Option<&Arc<Index>> {
        self.indices.get(&uuid)
    }

    /// One shard.
    pub fn shard(&self, id: ShardId) -> Option<&Shard> {
        self.indices.get(&id.index)?.shard(id.shard)
    }

    /// All shards of all indices.
    pub fn shards(&self) -> impl Iterator<Item = (ShardId, &Arc<Index>, &Shard)> {
        self.indices.values().flat_map(|index| {
            index.shards.iter().map(move |shard| {
                (
                    ShardId {
                        index: index.uuid,
                        shard: shard.number,
                    },
                    index,
                    shard,
                )
            })
        })
    }

    /// All copies that are listed on a node: exactly those that it must hold open.
    pub fn copies_on(
        &self,
        node: NodeId,
    ) -> impl Iterator<Item = (ShardId, &Arc<Index>, &Shard, &ShardCopy)> {
        self.shards()
            .filter_map(move |(id, index, shard)| shard.copy_on(node).map(|copy| (id, index, shard, copy)))
    }

    /// A member.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// A member by its stable name.
    pub fn node_by_name(&self, name: &str) -> Option<&Node> {
        self.nodes.values().find(|n| n.name == name)
    }

    /// True while the manager believes that a member answers.
    pub fn is_alive(&self, id: NodeId) -> bool {
        self.nodes
            .get(&id)
            .is_some_and(|n| n.alive && n.boot_id.is_some())
    }

    /// Members that are alive.
    pub fn alive(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values().filter(|n| n.alive && n.boot_id.is_some())
    }

    /// The node with the process that a shard's activation belongs to; none while the shard waits for an activation, or its
    /// node is away.
    pub fn primary_node(&self, id: ShardId) -> Option<&Node> {
        let shard = self.shard(id)?;
        let node = self.nodes.get(&shard.primary_copy()?.node)?;
        (node.alive && node.boot_id.is_some() && node.boot_id == shard.active).then_some(node)
    }

    /// True once the active primary of a shard admits writes.
    pub fn primary_serves(&self, id: ShardId) -> bool {
        self.shard(id).is_some_and(|s| s.started) && self.primary_node(id).is_some()
    }

    /// In-sync copies on members that are alive, the primary first where it is active: who may answer a search.
    pub fn serving(&self, id: ShardId) -> Vec<(&ShardCopy, &Node)> {
        let Some(shard) = self.shard(id) else {
            return Vec::new();
        };
        let mut out: Vec<_> = shard
            .copies
            .iter()
            .filter(|c| self.copy_state(shard, c) == CopyState::Started)
            .filter_map(|c| self.nodes.get(&c.node).map(|n| (c, n)))
            .collect();
        out.sort_by_key(|(copy, _)| shard.primary != Some(copy.allocation));
        out
    }

    /// What a copy is doing.
    pub fn copy_state(&self, shard: &Shard, copy: &ShardCopy) -> CopyState {
        let Some(node) = self
            .nodes
            .get(&copy.node)
            .filter(|n| n.alive && n.boot_id.is_some())
        else {
            return CopyState::Unassigned;
        };
        if copy.broken.is_some() {
            return CopyState::Unassigned;
        }
        if shard.primary == Some(copy.allocation) {
            return match (shard.active == node.boot_id, shard.started) {
                (true, true) => CopyState::Started,
                (true, false) => CopyState::Initializing,
                (false, _) => CopyState::Unassigned,
            };
        }
        if shard.in_sync.contains(&copy.allocation) {
            CopyState::Started
        } else {
            CopyState::Initializing
        }
    }

    /// Health of one shard, as OpenSearch defines it: red without a started primary (yellow while a new shard waits for its
    /// first), yellow while a wanted replica is not started, else green.
    pub fn shard_health(&self, index: &Index, shard: &Shard) -> Health {
        let id = ShardId {
            index: index.uuid,
            shard: shard.number,
        };
        if !self.primary_serves(id) {
            let first = !shard.created
                && shard
                    .primary_copy()
                    .is_some_and(|c| c.broken.is_none() && self.is_alive(c.node));
            return if first { Health::Yellow } else { Health::Red };
        }
        let started = shard
            .copies
            .iter()
            .filter(|c| self.copy_state(shard, c) == CopyState::Started)
            .count();
        let wanted = 1 + usize::try_from(index.settings.number_of_replicas).unwrap_or(usize::MAX - 1);
        if started >= wanted {
            Health::Green
        } else {
            Health::Yellow
        }
    }

    /// Worst health of an index's shards.
    pub fn index_health(&self, index: &Index) -> Health {
        index
            .shards
            .iter()
            .map(|s| self.shard_health(index, s))
            .max()
            .unwrap_or(Health::Green)
    }

    /// Worst health of all indices; green without any.
    pub fn health(&self) -> Health {
        self.indices
            .values()
            .map(|i| self.index_health(i))
            .max()
            .unwrap_or(Health::Green)
    }

    /// The cluster settings in force. What the state holds was checked by [`Self::apply`]; a key that only a newer version
    /// knows leaves the defaults in force.
    pub fn cluster_settings(&self) -> ClusterSettings {
        ClusterSettings::from_flat(&self.settings).unwrap_or_default()
    }
}

impl Index {
    /// One shard.
    pub fn shard(&self, number: u32) -> Option<&Shard> {
        self.shards.get(usize::try_from(number).ok()?)
    }

    /// The shard of a document: by its routing value, else by its id.
    pub fn shard_of(&self, id: &str, routing: Option<&str>) -> u32 {
        routing::shard_of(routing.unwrap_or(id), self.settings.number_of_shards)
    }

    /// `name/uuid`, as OpenSearch's texts name an index.
    pub fn display(&self) -> String {
        format!("{}/{}", self.name, self.uuid)
    }

    /// Explicit settings and those that OpenSearch writes itself (`index.uuid`, `index.creation_date`,
    /// `index.provided_name`), flat: what `_settings` answers.
    pub fn settings_flat(&self) -> BTreeMap<String, String> {
        let mut flat = self.settings.explicit.clone();
        flat.insert("index.uuid".into(), self.uuid.to_string());
        flat.insert("index.creation_date".into(), self.created_ms.to_string());
        flat.insert("index.provided_name".into(), self.name.clone());
        flat.entry(NUMBER_OF_SHARDS.into())
            .or_insert_with(|| self.settings.number_of_shards.to_string());
        flat.entry(NUMBER_OF_REPLICAS.into())
            .or_insert_with(|| self.settings.number_of_replicas.to_string());
        flat
    }
}

impl Shard {
    /// A copy by its allocation id.
    pub fn copy(&self, allocation: AllocationId) -> Option<&ShardCopy> {
        self.copies.iter().find(|c| c.allocation == allocation)
    }

    /// The copy that is listed on a node.
    pub fn copy_on(&self, node: NodeId) -> Option<&ShardCopy> {
        self.copies.iter().find(|c| c.node == node)
    }

    /// The primary's copy.
    pub fn primary_copy(&self) -> Option<&ShardCopy> {
        self.copy(self.primary?)
    }

    /// True where the copy holds every acknowledged operation.
    pub fn is_in_sync(&self, allocation: AllocationId) -> bool {
        self.in_sync.contains(&allocation)
    }

    /// In-sync copies.
    pub fn in_sync_copies(&self) -> impl Iterator<Item = &ShardCopy> {
        self.copies
            .iter()
            .filter(|c| self.in_sync.contains(&c.allocation))
    }

    /// True for an in-sync copy beside which no other one can be opened: without it the shard is lost.
    pub fn is_last_hope(&self, allocation: AllocationId) -> bool {
        self.is_in_sync(allocation)
            && !self
                .in_sync_copies()
                .any(|c| c.allocation != allocation && c.broken.is_none())
    }

    /// All copies but the primary's.
    pub fn replicas(&self) -> impl Iterator<Item = &ShardCopy> {
        self.copies.iter().filter(|c| self.primary != Some(c.allocation))
    }
}
