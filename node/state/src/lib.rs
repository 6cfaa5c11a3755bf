//! The cluster state: what all nodes agree on, and the pure function that changes it.
//!
//! One [`ClusterState`], replicated by Raft, changed only by [`Change`]s. A `Change` carries its own precondition (term,
//! allocation id, mapping version, boot id, epoch), judged inside [`ClusterState::apply`]; there is no compare-and-set of the
//! whole state. `apply` is deterministic: no clock, no randomness, no I/O; ids and times come in with the Change.
//!
//! ```text
//!   any room ──propose(Change)──▶ MetaStore (Raft) ──apply──▶ ClusterState ──watch──▶ applier, manager, coordinator
//! ```
//!
//! Roles of a shard copy:
//! - `copies` lists where copies are (or are being built). A node opens exactly the copies that are listed on it.
//! - `in_sync` ⊆ `copies`: the copies that hold every acknowledged operation.
//! - `primary` names the copy that is primary in `term`; `active` is the boot id of the process that this activation was given
//!   to. `TermPerActivation`: every activation is a new term. A join with a changed boot id clears `active` of that node's
//!   primaries; the manager then activates one in-sync copy (the same or another) under `term + 1`.
//! - A shard whose `created` is false has never acknowledged anything: only then may its primary start from nothing.
//!
//! Files: types here; [`ClusterState::apply`] in `apply`; questions in [`lookup`]; document routing in [`routing`]; what
//! always holds in [`invariants`].

mod apply;
mod id;
pub mod invariants;
pub mod lookup;
pub mod routing;

pub use lookup::CopyState;

use segmentry_mapping::Mapping;
use segmentry_settings::{admin, index::IndexSettings};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Random id of a data directory; also its Raft id. Written as 16 hex digits outside Rust.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u64);

/// Random id of one process start of a node.
pub type BootId = uuid::Uuid;
/// Random id of one incarnation of a shard copy.
pub type AllocationId = uuid::Uuid;
/// Identity of an index; a re-created index of the same name has another.
pub type IndexUuid = uuid::Uuid;

/// One shard of one index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardId {
    /// Index.
    pub index: IndexUuid,
    /// Number, from 0.
    pub shard: u32,
}

/// Everything the nodes agree on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct ClusterState {
    /// Grows by one with each applied Change (also with a refused one).
    pub version: u64,
    /// Identity, set by the first formation.
    pub cluster_uuid: Option<uuid::Uuid>,
    /// Human name.
    pub cluster_name: String,
    /// Highest lease epoch of an operator seen.
    pub epoch: u64,
    /// Members, by id.
    pub nodes: BTreeMap<NodeId, Node>,
    /// Indices. `Arc`, so that a copy of the state is cheap.
    pub indices: BTreeMap<IndexUuid, Arc<Index>>,
    /// Deleted indices whose data a returning node may still hold: uuid → name.
    pub tombstones: BTreeMap<IndexUuid, String>,
    /// Persistent cluster settings, flat.
    pub settings: BTreeMap<String, String>,
    /// A full restart that was prepared and not finished.
    pub restart: Option<admin::RestartRecord>,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Id.
    pub id: NodeId,
    /// Stable name.
    pub name: String,
    /// `host:port` of the internal port, as members are told it (a DNS name where there is one).
    pub address: String,
    /// `host:port` of REST.
    pub rest_address: String,
    /// This process start; none until the node said hello.
    #[serde(default)]
    pub boot_id: Option<BootId>,
    /// False from the manager's `NodeLost` until the next `NodeJoined`.
    #[serde(default)]
    pub alive: bool,
    /// Program version.
    #[serde(default)]
    pub version: String,
    /// Data format written and formats readable.
    #[serde(default)]
    pub format_written: u32,
    /// See `format_written`.
    #[serde(default)]
    pub formats_readable: BTreeSet<u32>,
    /// Volume identity (PVC uid).
    #[serde(default)]
    pub disk_id: Option<String>,
}

/// One index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Index {
    /// Identity.
    pub uuid: IndexUuid,
    /// Name.
    pub name: String,
    /// Settings in force.
    pub settings: IndexSettings,
    /// Grows with each change of settings.
    #[serde(default)]
    pub settings_version: u64,
    /// Fields. Its own `version` grows with each addition.
    pub mapping: Arc<Mapping>,
    /// The declared object, if any.
    #[serde(default)]
    pub owner: Option<admin::Owner>,
    /// Milliseconds since 1970, from the proposer.
    #[serde(default)]
    pub created_ms: u64,
    /// By shard number.
    pub shards: Vec<Shard>,
}

/// One shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Number.
    pub number: u32,
    /// Primary term: one per activation.
    pub term: u64,
    /// Identity of the operation history; changes only when a loss was recorded.
    pub history: uuid::Uuid,
    /// True once an activation was reported started; from then on no copy may start from nothing.
    #[serde(default)]
    pub created: bool,
    /// The primary's copy in `term`.
    #[serde(default)]
    pub primary: Option<AllocationId>,
    /// The process that the activation of `term` was given to; none while the shard waits for one.
    #[serde(default)]
    pub active: Option<BootId>,
    /// True once the active primary said that it admits writes (`PrimaryStarted`).
    #[serde(default)]
    pub started: bool,
    /// Copies that hold every acknowledged operation.
    pub in_sync: BTreeSet<AllocationId>,
    /// All copies, listed where they are or are being built.
    pub copies: Vec<ShardCopy>,
    /// Why no copy can be activated or assigned, for people.
    #[serde(default)]
    pub unassigned_reason: Option<String>,
}

/// One copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardCopy {
    /// Incarnation.
    pub allocation: AllocationId,
    /// Where.
    pub node: NodeId,
    /// Set when its node reported that it cannot open it; kept until it is replaced, opened after all (`CopyOpened`), or until a
    /// new process start of its node tries again. Never the reason to delete files.
    #[serde(default)]
    pub broken: Option<String>,
}

/// One change. Each documents its precondition; a Change whose precondition fails changes nothing but `version`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Change {
    /// First formation. Precondition: no cluster uuid yet, or the same uuid and members (then a no-op).
    Form {
        /// Identity.
        cluster_uuid: uuid::Uuid,
        /// Human name.
        cluster_name: String,
        /// Members.
        members: Vec<Node>,
    },
    /// A process start of a member. A changed boot id ends the activations of its primaries.
    NodeJoined {
        /// The whole record, `alive` true. Precondition: the id is a member.
        node: Node,
    },
    /// The manager lost a process. Precondition: the boot id is the recorded one.
    NodeLost {
        /// Which.
        node: NodeId,
        /// Which process start.
        boot_id: BootId,
    },
    /// A new member takes the place of one whose disk is gone; its copies leave `copies` and `in_sync` where another in-sync
    /// copy remains. The last in-sync copy stays listed on the lost id: the shard is red until a person decides. A shard
    /// that was never `created` starts on the new node instead. Precondition: `lost` is a member and not alive; epoch. A
    /// no-op where it happened already.
    ReplaceNode {
        /// Operator's epoch.
        epoch: u64,
        /// Who is gone.
        lost: NodeId,
        /// Who comes.
        node: Node,
    },
    /// A new index with its first assignment. Precondition: the name is free, and the index is complete: every shard has a
    /// primary that is its only in-sync copy, on members, in term 0.
    CreateIndex {
        /// Operator's epoch; none over REST.
        epoch: Option<u64>,
        /// Complete.
        index: Box<Index>,
    },
    /// Removal; leaves a tombstone. Precondition: the uuid exists; over REST (`owner` none) an owned index is refused.
    DeleteIndex {
        /// Operator's epoch; none over REST.
        epoch: Option<u64>,
        /// Which.
        index: IndexUuid,
        /// uid of the owner that asks.
        owner: Option<String>,
    },
    /// New fields. Precondition: `mapping.version == expected + 1` and the recorded version is `expected`.
    PutMapping {
        /// Which.
        index: IndexUuid,
        /// Version that `mapping` grew from.
        expected: u64,
        /// Complete new mapping.
        mapping: Arc<Mapping>,
    },
    /// Dynamic settings. Precondition: over REST (`owner` none) keys owned by a declared object are refused.
    UpdateSettings {
        /// Operator's epoch; none over REST.
        epoch: Option<u64>,
        /// Which.
        index: IndexUuid,
        /// Owner as it is now; replaces the recorded one (same uid).
        owner: Option<admin::Owner>,
        /// Flat full keys; none resets to the default.
        settings: BTreeMap<String, Option<String>>,
    },
    /// Adoption of an ownerless index. Precondition: no owner, or the same uid.
    AdoptIndex {
        /// Operator's epoch.
        epoch: u64,
        /// Which.
        index: IndexUuid,
        /// By whom.
        owner: admin::Owner,
    },
    /// The declared object is gone and its index stays. Precondition: the owner's uid.
    ReleaseIndex {
        /// Operator's epoch.
        epoch: u64,
        /// Which.
        index: IndexUuid,
        /// uid of the owner that leaves.
        uid: String,
    },
    /// Persistent cluster settings; none removes.
    ClusterSettings {
        /// Operator's epoch; none over REST.
        epoch: Option<u64>,
        /// Flat.
        settings: BTreeMap<String, Option<String>>,
    },
    /// A new activation. Precondition: `term == recorded + 1`, no active process or the recorded primary's process is not
    /// `boot_id` of a live node, `allocation` in the in-sync set (or the shard is not `created` and it is the primary), its
    /// node alive with `boot_id`.
    Activate {
        /// Which.
        shard: ShardId,
        /// New term.
        term: u64,
        /// Which copy.
        allocation: AllocationId,
        /// Which process.
        boot_id: BootId,
    },
    /// The activation is about to admit writes: the first is admitted only after this is applied, for until then a new shard
    /// may be started elsewhere from nothing. Precondition: term and boot id are the recorded ones.
    PrimaryStarted {
        /// Which.
        shard: ShardId,
        /// Its term.
        term: u64,
        /// Its process.
        boot_id: BootId,
    },
    /// The active primary stops by itself (engine failure, failed sync). Precondition: term. The shard then waits for an
    /// activation; the copy leaves the in-sync set and the list where another in-sync copy is on a live node, else it stays.
    PrimaryFailed {
        /// Which.
        shard: ShardId,
        /// Its term.
        term: u64,
        /// Why, for people.
        reason: String,
    },
    /// The primary of a shard that was never `created` moves to another node, as a new incarnation that is the only in-sync
    /// copy: nothing was acknowledged yet. Replicas that are listed stay. Precondition: term, not created, `node` has no
    /// copy, and the recorded primary has no live process.
    MoveUncreated {
        /// Which.
        shard: ShardId,
        /// Recorded term.
        term: u64,
        /// New incarnation.
        allocation: AllocationId,
        /// Where.
        node: NodeId,
    },
    /// A replica to build. Precondition: term; the node has no copy of the shard.
    AssignReplica {
        /// Which.
        shard: ShardId,
        /// Current term.
        term: u64,
        /// New incarnation.
        allocation: AllocationId,
        /// Where.
        node: NodeId,
    },
    /// Fewer replicas wanted. Precondition: not the primary, not the last in-sync copy.
    RemoveReplica {
        /// Which.
        shard: ShardId,
        /// Which copy.
        allocation: AllocationId,
    },
    /// A recovered copy holds everything. Precondition: term is the recorded one and has an active process, the copy is
    /// listed and not broken.
    AddInSync {
        /// Which.
        shard: ShardId,
        /// The primary's term.
        term: u64,
        /// Which copy.
        allocation: AllocationId,
    },
    /// A copy leaves the in-sync set and the list. Precondition: term is the recorded one; it is not the primary and not the
    /// last in-sync copy. A no-op where it is not listed any more.
    FailCopy {
        /// Which.
        shard: ShardId,
        /// The primary's term.
        term: u64,
        /// Which copy.
        allocation: AllocationId,
        /// Why, for people.
        reason: String,
    },
    /// A node cannot open a copy that is listed on it. Ends the activation where it is the primary's. Precondition: listed.
    CopyBroken {
        /// Which.
        shard: ShardId,
        /// Which copy.
        allocation: AllocationId,
        /// Why, for people.
        reason: String,
    },
    /// A node has opened a copy: it is not broken (any more). Precondition: listed, on a node whose process is `boot_id`. A no-op where
    /// nothing else was known.
    CopyOpened {
        /// Which.
        shard: ShardId,
        /// Which copy.
        allocation: AllocationId,
        /// The process that holds it open.
        boot_id: BootId,
    },
    /// Record of a prepared restart. Precondition: epoch; none recorded for another target, or replaced.
    RestartPrepared {
        /// Operator's epoch.
        epoch: u64,
        /// The record.
        record: admin::RestartRecord,
    },
    /// Restart finished or given up. Precondition: epoch, target.
    RestartFinished {
        /// Operator's epoch.
        epoch: u64,
        /// Target hash of the record.
        target: String,
    },
}

/// Why a Change was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// An operator of an older epoch.
    #[error("operator epoch [{given}] is older than [{known}]")]
    StaleEpoch {
        /// Given.
        given: u64,
        /// Highest seen.
        known: u64,
    },
    /// The index is not there.
    #[error("no such index [{0}]")]
    NoSuchIndex(String),
    /// The name is taken; holds the uuid of who has it.
    #[error("index [{name}/{uuid}] already exists")]
    IndexExists {
        /// Name.
        name: String,
        /// Uuid.
        uuid: IndexUuid,
    },
    /// The declared object owns what was to be changed.
    #[error("[{what}] is declared by Index [{owner}], change it there")]
    Owned {
        /// `namespace/name`.
        owner: String,
        /// Setting key or `index`.
        what: String,
    },
    /// Another owner.
    #[error("owned by [{0}]")]
    OwnedByOther(String),
    /// The proposer worked from an older state; reading again may help.
    #[error("{0}")]
    Stale(String),
    /// Never possible.
    #[error("{0}")]
    Invalid(String),
}
