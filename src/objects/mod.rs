//! Door 2: where the declared objects live.
//!
//! Reads are live, never from a cache. Statuses are written by a replace on the resourceVersion that was read: a stale view can
//! never overwrite a newer identity.
//!
//! - [`kubernetes`]: the API server;
//! - [`file`]: a manifest file.

pub mod file;
pub mod kubernetes;

use crate::{
    api::{Index, IndexCluster, valid::Key},
    plan::Note,
};
use std::future::Future;

/// A declared object, by kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// An IndexCluster.
    Cluster(Key),
    /// An Index.
    Index(Key),
}

impl std::fmt::Display for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cluster(key) => write!(f, "IndexCluster {key}"),
            Self::Index(key) => write!(f, "Index {key}"),
        }
    }
}

/// Whose an object is, if several operators run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// Ours.
    Mine,
    /// Another operator's that is alive, or may be.
    Other(String),
}

/// Why a door did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// The object changed since it was read; the next pass reads again.
    #[error("{0} changed since it was read")]
    Conflict(String),
    /// It does not work now.
    #[error("{0}")]
    Unavailable(String),
    /// It will not work.
    #[error("{0}")]
    Refused(String),
}

/// Where declared objects live.
pub trait Objects: Send + Sync + 'static {
    /// A live read.
    fn get_cluster(
        &self,
        key: &Key,
    ) -> impl Future<Output = Result<Option<IndexCluster>, ObjectsError>> + Send;
    /// A live read.
    fn get_index(&self, key: &Key) -> impl Future<Output = Result<Option<Index>, ObjectsError>> + Send;
    /// A live list of one namespace.
    fn list_clusters(
        &self,
        namespace: &str,
    ) -> impl Future<Output = Result<Vec<IndexCluster>, ObjectsError>> + Send;
    /// A live list of one namespace.
    fn list_indices(&self, namespace: &str) -> impl Future<Output = Result<Vec<Index>, ObjectsError>> + Send;
    /// Replaces the status; `Conflict` if the object changed since it was read. Answers the object as stored.
    fn write_cluster_status(
        &self,
        object: &IndexCluster,
    ) -> impl Future<Output = Result<IndexCluster, ObjectsError>> + Send;
    /// As [`Objects::write_cluster_status`].
    fn write_index_status(&self, object: &Index) -> impl Future<Output = Result<Index, ObjectsError>> + Send;
    /// Adds or removes the index finalizer; `Conflict` if the object changed since it was read.
    fn set_finalizer(
        &self,
        object: &Index,
        present: bool,
    ) -> impl Future<Output = Result<(), ObjectsError>> + Send;
    /// Claims an object that nobody looks after.
    fn claim_cluster(
        &self,
        object: &IndexCluster,
    ) -> impl Future<Output = Result<Claim, ObjectsError>> + Send;
    /// Claims an object that nobody looks after.
    fn claim_index(&self, object: &Index) -> impl Future<Output = Result<Claim, ObjectsError>> + Send;
    /// Publishes an event; repeats are counted by the door, not repeated. A failure is logged, never an obstacle.
    fn event(&self, about: &Work, uid: &str, note: &Note) -> impl Future<Output = ()> + Send;
    /// The namespace is being deleted.
    fn namespace_terminating(
        &self,
        namespace: &str,
    ) -> impl Future<Output = Result<bool, ObjectsError>> + Send;
    /// Objects that were created, changed by people, or deleted; first every one that exists. Own status writes may be left out.
    fn changes(&self) -> futures::stream::BoxStream<'static, Work>;
}
