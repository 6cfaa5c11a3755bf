//! What becomes of an Index that is being deleted. Deletion always ends in bounded time.

use super::ClusterView;
use crate::{
    api::{Index, conditions::reason, index::DeletionPolicy},
    plan::Note,
};
use kube::ResourceExt;
use std::time::Duration;

/// How long a deletion waits for a cluster that does not answer.
pub const FINALIZE_BOUND: Duration = Duration::from_secs(600);

/// What becomes of an Index that is being deleted, or whose finalizer has to follow its policy.
#[derive(Debug, Clone, PartialEq)]
pub enum Finalize {
    /// The finalizer goes now.
    Drop(Option<Note>),
    /// The index is deleted first; the finalizer goes in the next pass.
    Delete {
        /// Index uuid.
        index: String,
    },
    /// The cluster does not answer; tried again until [`FINALIZE_BOUND`].
    Wait(String),
}

/// Decides about an Index that is being deleted since `age`. It needs no valid spec: deletion always ends.
pub fn finalize(object: &Index, view: &ClusterView, age: Duration) -> Finalize {
    if object.spec.deletion_policy == DeletionPolicy::Retain {
        return Finalize::Drop(None);
    }
    let name = object
        .spec
        .index_name
        .clone()
        .unwrap_or_else(|| object.name_any());
    let uid = object.uid().unwrap_or_default();
    let status = object.status.clone().unwrap_or_default();
    match view {
        ClusterView::Missing | ClusterView::Deleting => Finalize::Drop(Some(Note::normal(
            reason::INDEX_DATA_LEFT,
            "Delete",
            format!("the IndexCluster is gone or going; data of index '{name}' goes with its volumes"),
        ))),
        ClusterView::Forming(_) => Finalize::Drop(None),
        // A cluster that holds nothing recorded for this object, and never answered, has nothing to delete, unless the creation
        // was under way: so it is asked for the same bounded time.
        ClusterView::NotReady(why) if age >= FINALIZE_BOUND => Finalize::Drop(Some(Note::warning(
            reason::INDEX_DATA_LEFT,
            "Delete",
            format!(
                "the cluster did not answer for 10 minutes ({why}); index '{name}' may still be there: delete it over REST when the cluster is back"
            ),
        ))),
        ClusterView::NotReady(why) => Finalize::Wait(why.clone()),
        ClusterView::Up(up) => {
            let mine = up
                .overview
                .indices
                .iter()
                .find(|index| index.owner.as_ref().is_some_and(|owner| owner.uid == uid));
            match mine {
                Some(index) => Finalize::Delete {
                    index: index.uuid.clone(),
                },
                None => Finalize::Drop(status.index_uuid.map(|_| {
                    Note::normal(
                        reason::INDEX_DELETED,
                        "Delete",
                        format!("index '{name}' is deleted"),
                    )
                })),
            }
        }
    }
}
