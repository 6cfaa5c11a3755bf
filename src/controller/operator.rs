//! The operator against a Kubernetes API server.

use super::{
    Epoch, Reconciler, Settings,
    lease::{Leadership, LeaseConfig},
    queue,
};
use crate::{
    api::{Index, IndexCluster},
    build,
    nodeclient::NodeClient,
    objects::{
        Objects, Work,
        kubernetes::{KubernetesObjects, bounded},
    },
    runtime::{Runtime, kubernetes::KubernetesRuntime},
};
use anyhow::Context as _;
use futures::StreamExt;
use kube::{Api, Client, api::ListParams};
use std::{future::Future, sync::Arc, time::Duration};

/// Settings of the operator.
#[derive(Debug, Clone)]
pub struct OperatorConfig {
    /// Namespaces that are looked after; empty for all.
    pub namespaces: Vec<String>,
    /// Namespace of the operator itself: its Lease, and the NetworkPolicy's peer.
    pub own_namespace: String,
    /// Release: name of the Lease and of the claim.
    pub release: String,
    /// Name of the pod, part of the holder's identity.
    pub pod_name: String,
    /// Silence after which another instance may lead.
    pub lease_duration: Duration,
    /// Image of clusters that neither declare one nor run one.
    pub default_image: String,
    /// Passes at once.
    pub concurrency: usize,
}

/// Leads, watches and reconciles until `shutdown` resolves.
///
/// # Errors
/// The API server cannot be reached at the start, the CRDs are missing, or the Lease is lost.
pub async fn run(
    client: Client,
    config: OperatorConfig,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    check_kinds(&client, &config).await?;
    let epoch = Arc::new(Epoch::default());
    let lease = LeaseConfig {
        namespace: config.own_namespace.clone(),
        name: config.release.clone(),
        holder: format!("{}_{}", config.pod_name, uuid::Uuid::new_v4()),
        duration: config.lease_duration,
    };
    let mut leadership = Leadership::new(client.clone(), lease, epoch.clone());
    tokio::pin!(shutdown);
    tokio::select! {
        () = &mut shutdown => return Ok(()),
        () = leadership.acquire() => {}
    }
    let runtime = KubernetesRuntime::new(
        client.clone(),
        build::Context {
            operator_namespace: Some(config.own_namespace.clone()),
        },
        config.namespaces.clone(),
    );
    let claim = format!("{}/{}", config.own_namespace, config.release);
    let objects = KubernetesObjects::new(
        client,
        claim,
        config.namespaces.clone(),
        Some(config.pod_name.clone()),
    );
    let nodes = NodeClient::new().context("cannot make the HTTP client")?;
    let changes = futures::stream::select(objects.changes(), runtime.events().map(Work::Cluster));
    let reconciler = Arc::new(Reconciler::new(
        runtime,
        objects,
        nodes,
        Settings {
            default_image: config.default_image.clone(),
        },
        epoch,
    ));
    let lost = tokio::select! {
        () = queue::run(changes, config.concurrency, &mut shutdown, move |work| {
            let reconciler = reconciler.clone();
            async move { Box::pin(reconciler.reconcile(&work)).await }
        }) => None,
        lost = leadership.keep() => Some(lost),
    };
    // Passes under way are dropped with their queue: nothing is written after the Lease is lost.
    if let Some(lost) = lost {
        return Err(lost.into());
    }
    leadership.release().await;
    Ok(())
}

/// A watch of a kind that is not there repeats an error for ever; a clear word at the start is better.
async fn check_kinds(client: &Client, config: &OperatorConfig) -> anyhow::Result<()> {
    let one = ListParams::default().limit(1);
    let hint = "install the CRDs first (`segmentry crds --output DIR`, then `kubectl apply --server-side -f DIR`), and see that the operator's role allows to list them";
    let namespaces: Vec<Option<&str>> = if config.namespaces.is_empty() {
        vec![None]
    } else {
        config.namespaces.iter().map(|name| Some(name.as_str())).collect()
    };
    for namespace in namespaces {
        let clusters: Api<IndexCluster> = namespace.map_or_else(
            || Api::all(client.clone()),
            |name| Api::namespaced(client.clone(), name),
        );
        let indices: Api<Index> = namespace.map_or_else(
            || Api::all(client.clone()),
            |name| Api::namespaced(client.clone(), name),
        );
        bounded("listing IndexClusters", clusters.list(&one))
            .await
            .context(hint)?;
        bounded("listing Indices", indices.list(&one))
            .await
            .context(hint)?;
    }
    Ok(())
}
