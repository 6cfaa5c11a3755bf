//! What is left to do when an operator is uninstalled for good: the finalizers of its Index objects go, for nobody would take
//! them off later, and neither the objects nor their namespace could ever be deleted. Data is left alone; an operator that is
//! installed later puts the finalizers back.
//!
//! It holds the operator's Lease meanwhile: an operator that is still on its way out does nothing any more.

use super::{
    Epoch,
    lease::{Leadership, LeaseConfig},
};
use crate::{
    api::{Index, labels},
    objects::{Objects, ObjectsError, kubernetes::KubernetesObjects},
};
use anyhow::Context as _;
use kube::{Client, ResourceExt};
use std::{sync::Arc, time::Duration};

/// Whose finalizers go.
#[derive(Debug, Clone)]
pub struct DetachConfig {
    /// Namespaces that were looked after; empty for all.
    pub namespaces: Vec<String>,
    /// Namespace of the operator: holds its Lease.
    pub own_namespace: String,
    /// Release: name of the Lease and of the claim.
    pub release: String,
    /// Name of this pod, part of the holder's identity.
    pub pod_name: String,
}

/// Takes the finalizers off. Answers how many.
///
/// # Errors
/// The API server refuses, or does not answer in time.
pub async fn run(client: Client, config: &DetachConfig) -> anyhow::Result<usize> {
    let lease = LeaseConfig {
        namespace: config.own_namespace.clone(),
        name: config.release.clone(),
        holder: format!("{}_{}", config.pod_name, uuid::Uuid::new_v4()),
        duration: Duration::from_secs(60),
    };
    let mut leadership = Leadership::new(client.clone(), lease, Arc::new(Epoch::default()));
    leadership.acquire().await;
    let claim = format!("{}/{}", config.own_namespace, config.release);
    let objects = KubernetesObjects::new(client, claim.clone(), config.namespaces.clone(), None);
    let outcome = remove(&objects, &claim, &config.namespaces).await;
    leadership.release().await;
    outcome
}

async fn remove(objects: &KubernetesObjects, claim: &str, namespaces: &[String]) -> anyhow::Result<usize> {
    let mut removed = 0;
    let mut found = Vec::new();
    if namespaces.is_empty() {
        found = objects.list_all_indices().await.context("the Index objects")?;
    }
    for namespace in namespaces {
        match objects.list_indices(namespace).await {
            Ok(list) => found.extend(list),
            // The Role of a namespace that is being deleted goes with it; its objects are finished by what is left of the operator's rights.
            Err(ObjectsError::Refused(why)) => tracing::warn!(namespace, why, "left as it is"),
            Err(error) => return Err(error).context(format!("the Index objects of {namespace}")),
        }
    }
    for index in found {
        let ours = index
            .annotations()
            .get(labels::OPERATOR)
            .is_some_and(|who| who == claim);
        let held = index
            .finalizers()
            .iter()
            .any(|finalizer| finalizer == labels::INDEX_FINALIZER);
        if !ours || !held {
            continue;
        }
        removed += usize::from(take_off(objects, index).await?);
    }
    Ok(removed)
}

/// True if it was there to be taken off. A conflict means that somebody else changed the object: it is read again.
async fn take_off(objects: &KubernetesObjects, index: Index) -> anyhow::Result<bool> {
    let key = crate::api::valid::Key {
        namespace: index.namespace().unwrap_or_default(),
        name: index.name_any(),
    };
    let mut current = Some(index);
    while let Some(index) = current {
        match objects.set_finalizer(&index, false).await {
            Ok(()) => {
                tracing::info!(index = %key, "its finalizer is taken off; its data is left");
                return Ok(true);
            }
            Err(ObjectsError::Conflict(_)) => current = objects.get_index(&key).await?,
            Err(error) => {
                return match objects.get_index(&key).await {
                    Ok(None) => Ok(false),
                    _ => Err(error).context(format!("the finalizer of {key}")),
                };
            }
        }
    }
    Ok(false)
}
