//! Binds pods to the one node, or says why not, in the scheduler's words.

use super::{Shared, locked};
use crate::provisioner::NODE;
use anyhow::Result;
use k8s_openapi::api::core::v1::{Binding, Node, ObjectReference, PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{Api, ObjectMeta, PostParams};

/// None when the pod can run here, else the message of its `PodScheduled` condition.
pub(super) async fn obstacle(shared: &Shared, pod: &Pod) -> Result<Option<String>> {
    let namespace = pod.namespace().unwrap_or_default();
    if locked(&shared.held).contains(&namespace) {
        return Ok(Some(
            "0/1 nodes are available: 1 node(s) were unschedulable.".to_owned(),
        ));
    }
    let Some(spec) = &pod.spec else { return Ok(None) };
    if let Some(wanted) = spec.node_selector.as_ref().filter(|wanted| !wanted.is_empty()) {
        let node = Api::<Node>::all(shared.client.clone()).get(NODE).await?;
        if !wanted
            .iter()
            .all(|(key, value)| node.labels().get(key) == Some(value))
        {
            return Ok(Some(
                "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.".to_owned(),
            ));
        }
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(shared.client.clone(), &namespace);
    for name in spec
        .volumes
        .iter()
        .flatten()
        .filter_map(|volume| Some(&volume.persistent_volume_claim.as_ref()?.claim_name))
    {
        let Some(claim) = claims.get_opt(name).await? else {
            return Ok(Some(format!(
                "0/1 nodes are available: persistentvolumeclaim \"{name}\" not found."
            )));
        };
        if claim.metadata.deletion_timestamp.is_some() {
            return Ok(Some(format!(
                "0/1 nodes are available: persistentvolumeclaim \"{name}\" is being deleted."
            )));
        }
        if claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound") {
            return Ok(Some(
                "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.".to_owned(),
            ));
        }
    }
    Ok(None)
}

/// Binds it. A pod that is bound already or gone is left to the watch.
pub(super) async fn bind(shared: &Shared, pod: &Pod) -> Result<()> {
    let name = pod.name_any();
    let pods: Api<Pod> = Api::namespaced(shared.client.clone(), &pod.namespace().unwrap_or_default());
    let binding = Binding {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            uid: pod.uid(),
            ..ObjectMeta::default()
        },
        target: ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(NODE.to_owned()),
            ..ObjectReference::default()
        },
    };
    let answer: kube::Result<serde_json::Value> = pods
        .create_subresource("binding", &name, &PostParams::default(), &binding)
        .await;
    match answer {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(refusal)) if refusal.is_conflict() || refusal.is_not_found() => Ok(()),
        Err(error) => Err(error.into()),
    }
}
