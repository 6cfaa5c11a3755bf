//! Door 1: where nodes run. Plans speak of *instances*, never of pods or processes.
//!
//! `ensure` promises what a StatefulSet with `OnDelete` does: an instance that is gone or dead comes back by itself, made
//! from the newest applied template; a running instance is never touched. `stop` is the only way in which a running instance
//! ends, and names exactly one incarnation of it.
//!
//! - [`kubernetes`]: StatefulSet, Services and the rest, through the API server;
//! - [`local`]: child processes on loopback.

pub mod kubernetes;
pub mod local;

use crate::api::valid::{Key, ValidCluster};
use std::future::Future;

/// One incarnation of a node's process, as its runtime sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Instance {
    /// Stable name.
    pub name: String,
    /// Identity of this incarnation: pod uid, or pid and start time.
    pub instance_id: String,
    /// Version of the runtime's record; a precondition of `stop` where the runtime has one.
    pub resource_version: Option<String>,
    /// Hash of the template that it was made from.
    pub template_hash: Option<String>,
    /// Its process runs (ready or not).
    pub running: bool,
    /// It is asked to end.
    pub terminating: bool,
    /// Identity of its volume.
    pub disk_id: Option<String>,
    /// `ip:port` of the internal port; none until it has an address.
    pub address: Option<String>,
    /// Why it does not run, or why it stopped last time, in the words of scheduler, volume, registry or kernel.
    pub problem: Option<Problem>,
    /// Its process does not run and has failed for a reason that its template may hold: pending, pull or create error, crash
    /// loop, or ended again after a restart. Such an instance may be replaced without asking nodes.
    pub broken: bool,
}

/// Why an instance does not run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Problem {
    /// One word: `Unschedulable`, `NoStorageClass`, `ImagePullBackOff`, `OOMKilled`, …
    pub reason: String,
    /// A sentence.
    pub message: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.message.is_empty() {
            f.write_str(&self.reason)
        } else {
            write!(f, "{}: {}", self.reason, self.message)
        }
    }
}

/// What a runtime knows of one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuntimeFacts {
    /// The node set as it is applied; none before the first `ensure`.
    pub set: Option<SetFacts>,
    /// Instances, by name.
    pub instances: Vec<Instance>,
    /// Token of the internal port; none before the first `ensure`.
    pub token: Option<String>,
    /// URL at which clients reach REST.
    pub endpoint: Option<String>,
}

/// The applied node set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SetFacts {
    /// Hash of the applied template.
    pub template_hash: Option<String>,
    /// Image of the applied template.
    pub image: Option<String>,
    /// The runtime has taken note of what was applied last: a new instance would be made from it.
    pub current: bool,
}

/// What is to run.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeSet {
    /// The declared cluster.
    pub cluster: ValidCluster,
    /// Image.
    pub image: String,
    /// Hash of the wanted template.
    pub template_hash: String,
    /// False: the running template stays applied (a restart is due and not yet carried out).
    pub apply_template: bool,
    /// Whether one instance may be evicted by others now.
    pub disruption_allowed: bool,
}

/// Why a runtime did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// An object of that name belongs to somebody else.
    #[error(
        "{kind} '{name}' exists and belongs to {owner}; delete it or choose another name for the cluster"
    )]
    NameTaken {
        /// Kind of the object.
        kind: String,
        /// Its name.
        name: String,
        /// Whom it belongs to.
        owner: String,
    },
    /// The instance is not the one that was observed: nothing was stopped.
    #[error("instance '{0}' has changed since it was observed")]
    Changed(String),
    /// The runtime refused, for good.
    #[error("{0}")]
    Refused(String),
    /// It did not work now; trying again may help.
    #[error("{0}")]
    Unavailable(String),
}

/// Where nodes run.
pub trait Runtime: Send + Sync + 'static {
    /// Live facts of one cluster; never from a cache, because destructive steps follow from them.
    fn observe(
        &self,
        cluster: &ValidCluster,
    ) -> impl Future<Output = Result<RuntimeFacts, RuntimeError>> + Send;

    /// Makes what runs follow `set`; idempotent, and writes nothing where nothing differs. True if something was written.
    fn ensure(&self, set: &NodeSet) -> impl Future<Output = Result<bool, RuntimeError>> + Send;

    /// Ends exactly this incarnation, in its own time (its grace period). The runtime starts a new one by itself.
    fn stop(
        &self,
        cluster: &Key,
        instance: &Instance,
    ) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Stable `host:port` of a node's internal port, as members are told it.
    fn member_address(&self, cluster: &ValidCluster, node: &str) -> String;

    /// Clusters whose instances changed in a way that is worth a look; ends with the runtime.
    fn events(&self) -> futures::stream::BoxStream<'static, Key>;
}
