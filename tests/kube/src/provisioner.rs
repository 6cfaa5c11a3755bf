//! Volumes: a folder of this machine for each claim of the bed's storage class.
//!
//! The class is the default one. Volumes are of type `local`, whose files the kubelet hands to a pod's `fsGroup` (those of
//! `hostPath` stay with root). Binding itself is the controller-manager's work.

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// Name of the storage class.
pub const CLASS: &str = "standard";
/// Its provisioner.
pub const PROVISIONER: &str = "testbed.segmentry.io/local";
/// The one node, in both beds.
pub const NODE: &str = "bed";

/// When a claim gets its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// At once: the stand-in does not choose nodes.
    Immediate,
    /// When the scheduler has chosen a node for the first pod that uses it.
    WaitForFirstConsumer,
}

/// The running provisioner; ends on drop.
#[derive(Debug)]
pub struct Provisioner(tokio::task::JoinHandle<()>);

impl Drop for Provisioner {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Provisioner {
    /// Creates the storage class and starts serving its claims below `root`.
    pub async fn start(client: kube::Client, root: &Path, binding: Binding) -> Result<Self> {
        fs::create_dir_all(root).with_context(|| format!("create {}", root.display()))?;
        let mode = match binding {
            Binding::Immediate => "Immediate",
            Binding::WaitForFirstConsumer => "WaitForFirstConsumer",
        };
        let class = json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": PROVISIONER,
            "volumeBindingMode": mode,
            "reclaimPolicy": "Delete",
        });
        let classes: Api<StorageClass> = Api::all(client.clone());
        classes
            .patch(
                CLASS,
                &PatchParams::apply("segmentry-testbed"),
                &Patch::Apply(&class),
            )
            .await?;
        Ok(Self(tokio::spawn(serve(client, root.to_owned(), binding))))
    }
}

async fn serve(client: kube::Client, root: PathBuf, binding: Binding) {
    let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let volumes: Api<PersistentVolume> = Api::all(client);
    let mut claim_changes = watcher(claims, watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .boxed();
    let mut volume_changes = watcher(volumes.clone(), watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .boxed();
    loop {
        let outcome = tokio::select! {
            Some(Ok(claim)) = claim_changes.next() => provision(&volumes, &root, binding, &claim).await,
            Some(Ok(volume)) = volume_changes.next() => reclaim(&volumes, &root, &volume).await,
            else => continue,
        };
        if let Err(error) = outcome {
            eprintln!("test bed: provisioner: {error:#}");
        }
    }
}

/// Makes the volume of one claim. Its name holds the claim's uid, so a second call finds it made.
async fn provision(
    volumes: &Api<PersistentVolume>,
    root: &Path,
    binding: Binding,
    claim: &PersistentVolumeClaim,
) -> Result<()> {
    let Some(spec) = &claim.spec else { return Ok(()) };
    let unbound = spec.volume_name.is_none() && claim.metadata.deletion_timestamp.is_none();
    let placed = binding == Binding::Immediate
        || claim
            .annotations()
            .contains_key("volume.kubernetes.io/selected-node");
    if !unbound || !placed || spec.storage_class_name.as_deref() != Some(CLASS) {
        return Ok(());
    }
    let uid = claim.uid().context("a claim without a uid")?;
    let name = format!("pvc-{uid}");
    let folder = root.join(&name);
    fs::create_dir_all(&folder)?;
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
        "spec": {
            "capacity": {"storage": spec.resources.as_ref().and_then(|wanted| wanted.requests.as_ref()?.get("storage").cloned())},
            "accessModes": spec.access_modes,
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": CLASS,
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace(), "name": claim.name_any(), "uid": uid},
            "local": {"path": folder},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}]}]}},
        },
    }))?;
    match volumes.create(&PostParams::default(), &volume).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(refusal)) if refusal.is_already_exists() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes a volume whose claim is gone, with its files.
async fn reclaim(volumes: &Api<PersistentVolume>, root: &Path, volume: &PersistentVolume) -> Result<()> {
    let ours = volume
        .annotations()
        .get("pv.kubernetes.io/provisioned-by")
        .is_some_and(|by| by == PROVISIONER);
    let released = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Released");
    if !ours || !released || volume.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let name = volume.name_any();
    fs::remove_dir_all(root.join(&name)).with_context(|| format!("remove the files of {name}"))?;
    match volumes.delete(&name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(refusal)) if refusal.is_not_found() => Ok(()),
        Err(error) => Err(error.into()),
    }
}
