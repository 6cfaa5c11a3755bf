//! Decisions, as pure functions: data in, data out. No client, no clock, no randomness.
//!
//! - [`identity`]: which cluster the nodes are, and what follows from it: forming, adopting, replacing a voter, refusing.
//! - [`restart`]: the table of the full restart.
//! - [`cluster`]: everything about one IndexCluster.
//! - [`index`]: everything about one Index.
//!
//! A plan is a list of [`Step`]s, the verdicts of all conditions, what is waited for, and events. Steps are carried out in
//! order; the first one that fails ends the pass, and the next pass starts from facts again.

pub mod cluster;
pub mod identity;
pub mod index;
pub mod restart;

use crate::{
    api::{conditions::Verdict, status::Identity},
    runtime::Instance,
};
use segmentry_settings::admin::{CreateIndex, Initialise, Owner, PrepareRestart, ReplaceMember, UpdateIndex};
use std::collections::BTreeMap;

/// One thing to do. Each is idempotent, or carries its precondition.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Writes the identity into the object's status, by a replace on the resourceVersion that was read. Ends the pass: what
    /// follows from the identity is planned after it is stored.
    WriteIdentity(Identity),
    /// Lets the runtime follow the declared node set.
    Ensure {
        /// Whether the wanted template is applied, or the running one stays.
        apply_template: bool,
        /// Whether one instance may be evicted.
        disruption_allowed: bool,
    },
    /// Forms the cluster.
    Initialise {
        /// Node that is told.
        node: String,
        /// How.
        request: Initialise,
    },
    /// Forgets a formation that was never used.
    Reset {
        /// Node that is told.
        node: String,
        /// Its cluster uuid.
        cluster_uuid: String,
    },
    /// Lets a new voter take the place of one whose disk is gone.
    ReplaceMember(ReplaceMember),
    /// Persistent cluster settings.
    ClusterSettings(BTreeMap<String, Option<String>>),
    /// The Index that owned this index is gone and its data stays.
    ReleaseIndex {
        /// Index uuid.
        index: String,
        /// uid of the owner that is gone.
        owner_uid: String,
    },
    /// Flushes and records the primaries. The first step of a restart that nodes notice: one cluster at a time.
    PrepareRestart(PrepareRestart),
    /// Ends these incarnations.
    Stop(Vec<Instance>),
    /// Ends the record of a restart, done or abandoned.
    FinishRestart {
        /// Target of the record.
        target: String,
    },
    /// Creates an index.
    CreateIndex(Box<CreateIndex>),
    /// Takes over an ownerless index.
    AdoptIndex {
        /// Index uuid.
        index: String,
        /// New owner.
        owner: Owner,
    },
    /// Changes dynamic settings.
    UpdateIndex {
        /// Index uuid.
        index: String,
        /// What.
        update: UpdateIndex,
    },
    /// Deletes an index.
    DeleteIndex {
        /// Index uuid.
        index: String,
    },
}

/// What is waited for on one node, without its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Node, or the cluster's name.
    pub node: String,
    /// Step under way.
    pub step: &'static str,
    /// What for.
    pub waiting_for: Option<String>,
    /// Name of the guard that blocks.
    pub blocked_by: Option<&'static str>,
}

/// An event to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Needs attention.
    pub warning: bool,
    /// CamelCase reason.
    pub reason: &'static str,
    /// CamelCase action.
    pub action: &'static str,
    /// A sentence.
    pub message: String,
}

impl Note {
    /// Something took place.
    pub fn normal(reason: &'static str, action: &'static str, message: impl Into<String>) -> Self {
        Self {
            warning: false,
            reason,
            action,
            message: message.into(),
        }
    }

    /// Something needs attention.
    pub fn warning(reason: &'static str, action: &'static str, message: impl Into<String>) -> Self {
        Self {
            warning: true,
            reason,
            action,
            message: message.into(),
        }
    }
}

/// What every plan has.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// In this order.
    pub steps: Vec<Step>,
    /// One for each condition that is known now.
    pub verdicts: Vec<Verdict>,
    /// What is waited for.
    pub waiting: Vec<Waiting>,
    /// Published with the pass.
    pub notes: Vec<Note>,
}
