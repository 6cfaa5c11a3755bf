//! Nodes as pods of a StatefulSet.
//!
//! - [`pods`]: what a pod says, as an instance.
//! - [`drift`]: whether a live object is what was declared.

pub mod drift;
pub mod pods;

use super::{Instance, NodeSet, Runtime, RuntimeError, RuntimeFacts, SetFacts};
use crate::{
    api::{
        INTERNAL_PORT, REST_PORT, labels,
        valid::{Key, ValidCluster},
    },
    build::{self, objects},
    objects::{ObjectsError, kubernetes::bounded},
};
use futures::{StreamExt, future::join_all, stream::BoxStream};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Event, PersistentVolumeClaim, Pod, Secret, Service},
    networking::v1::NetworkPolicy,
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
    },
    core::PartialObjectMeta,
    runtime::watcher,
};
use serde_json::Value;

/// Field manager of owned objects.
const MANAGER: &str = "segmentry-index-cluster";

/// The API server as a runtime.
#[derive(Clone)]
pub struct KubernetesRuntime {
    client: Client,
    context: build::Context,
    namespaces: Vec<String>,
}

impl From<ObjectsError> for RuntimeError {
    fn from(error: ObjectsError) -> Self {
        match error {
            ObjectsError::Conflict(what) => Self::Changed(what),
            ObjectsError::Unavailable(what) => Self::Unavailable(what),
            ObjectsError::Refused(what) => Self::Refused(what),
        }
    }
}

impl KubernetesRuntime {
    /// A runtime over `namespaces` (empty for all).
    pub const fn new(client: Client, context: build::Context, namespaces: Vec<String>) -> Self {
        Self {
            client,
            context,
            namespaces,
        }
    }

    fn api<K: kube::Resource<Scope = kube::core::NamespaceResourceScope>>(&self, namespace: &str) -> Api<K>
    where
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn token(&self, cluster: &ValidCluster) -> Result<Option<String>, RuntimeError> {
        let name = labels::token_name(&cluster.key.name);
        let secret = bounded(
            "reading the token",
            self.api::<Secret>(&cluster.key.namespace).get_opt(&name),
        )
        .await?;
        let Some(secret) = secret else { return Ok(None) };
        check_owner(
            "Secret",
            &name,
            &serde_json::to_value(&secret.metadata).unwrap_or_default(),
            cluster,
        )?;
        let bytes = secret
            .data
            .as_ref()
            .and_then(|data| data.get(objects::TOKEN_KEY))
            .map(|bytes| bytes.0.clone());
        match bytes.map(String::from_utf8) {
            Some(Ok(token)) if !token.trim().is_empty() => Ok(Some(token.trim().to_owned())),
            _ => Err(RuntimeError::Refused(format!(
                "Secret '{name}' has no text under key '{}'; delete it, and restart all pods at once",
                objects::TOKEN_KEY
            ))),
        }
    }

    /// Why a claim is not bound, in the words of the volume controllers.
    async fn claim_problem(&self, namespace: &str, claim: &PersistentVolumeClaim) -> Option<super::Problem> {
        let pending = claim
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
            .is_none_or(|phase| phase == "Pending");
        if !pending {
            return None;
        }
        let name = claim.name_any();
        let class = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.storage_class_name.clone());
        let Some(class) = class else {
            return Some(super::Problem {
                reason: "NoStorageClass".to_owned(),
                message: format!(
                    "volume claim {name} names no storage class and the Kubernetes cluster has no default one; mark a StorageClass as default, or create the IndexCluster anew with `storage.storageClassName`"
                ),
            });
        };
        let params = ListParams::default().fields(&format!(
            "involvedObject.name={name},involvedObject.kind=PersistentVolumeClaim"
        ));
        let events = bounded(
            "reading events of a volume claim",
            self.api::<Event>(namespace).list(&params),
        )
        .await
        .ok()?;
        let last = events
            .items
            .into_iter()
            .rfind(|event| event.type_.as_deref() == Some("Warning"))?;
        Some(super::Problem {
            reason: "VolumePending".to_owned(),
            message: format!(
                "volume claim {name} of class {class}: {}",
                last.message.unwrap_or_default()
            ),
        })
    }

    async fn instance(&self, namespace: &str, pod: &Pod) -> Result<Instance, RuntimeError> {
        let mut instance = pods::instance(pod);
        let claim_name = pods::claim_name(pod);
        if let Some(claim_name) = claim_name {
            let claim = bounded(
                "reading a volume claim",
                self.api::<PersistentVolumeClaim>(namespace).get_opt(&claim_name),
            )
            .await?;
            if let Some(claim) = claim {
                instance.disk_id = claim.uid();
                // A claim is the obstacle only before the pod is placed; later the kubelet knows better.
                let unplaced = instance
                    .problem
                    .as_ref()
                    .is_none_or(|problem| problem.reason == "Unschedulable");
                if !instance.running
                    && unplaced
                    && let Some(problem) = self.claim_problem(namespace, &claim).await
                {
                    instance.problem = Some(problem);
                }
            }
        }
        Ok(instance)
    }

    /// Applies one object if it differs from the live one. True if something was written.
    async fn follow(
        &self,
        cluster: &ValidCluster,
        kind: &ApiResource,
        mut wanted: Value,
    ) -> Result<bool, RuntimeError> {
        let name = wanted
            .pointer("/metadata/name")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let what = format!("{} '{name}'", kind.kind);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &cluster.key.namespace, kind);
        let live = bounded(&format!("reading {what}"), api.get_opt(&name)).await?;
        let print = build::digest(&wanted);
        if let Some(metadata) = wanted.get_mut("metadata").and_then(Value::as_object_mut) {
            let annotations = metadata
                .entry("annotations")
                .or_insert_with(|| Value::Object(serde_json::Map::new()));
            if let Some(annotations) = annotations.as_object_mut() {
                annotations.insert(labels::APPLIED_HASH.to_owned(), Value::String(print));
            }
        }
        if let Some(live) = live {
            let live =
                serde_json::to_value(&live).map_err(|error| RuntimeError::Refused(error.to_string()))?;
            check_owner(&kind.kind, &name, &live["metadata"], cluster)?;
            if live.pointer("/metadata/deletionTimestamp").is_some() {
                return Err(RuntimeError::Unavailable(format!(
                    "{what} is being deleted; it is made anew when it is gone"
                )));
            }
            if drift::contains(&live, &wanted) {
                return Ok(false);
            }
            tracing::info!(cluster = %cluster.key, object = %what, "is made as declared again");
        }
        bounded(
            &format!("applying {what}"),
            api.patch(
                &name,
                &PatchParams::apply(MANAGER).force(),
                &Patch::Apply(&wanted),
            ),
        )
        .await?;
        Ok(true)
    }
}

/// Nobody else's object is ever touched.
fn check_owner(kind: &str, name: &str, metadata: &Value, cluster: &ValidCluster) -> Result<(), RuntimeError> {
    let owners = metadata
        .get("ownerReferences")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let controller = owners.iter().find(|owner| owner["controller"] == true);
    let taken = |owner: String| {
        Err(RuntimeError::NameTaken {
            kind: kind.to_owned(),
            name: name.to_owned(),
            owner,
        })
    };
    match controller {
        Some(owner) if owner["uid"] == cluster.uid.as_str() => Ok(()),
        Some(owner) => taken(format!(
            "{} '{}'",
            owner["kind"].as_str().unwrap_or_default(),
            owner["name"].as_str().unwrap_or_default()
        )),
        // Left behind by a deletion that orphans: ours by its labels.
        None if metadata["labels"][labels::MANAGED_BY] == labels::MANAGER
            && metadata["labels"][labels::INSTANCE] == cluster.key.name.as_str() =>
        {
            Ok(())
        }
        None => taken("nobody".to_owned()),
    }
}

impl Runtime for KubernetesRuntime {
    async fn observe(&self, cluster: &ValidCluster) -> Result<RuntimeFacts, RuntimeError> {
        let namespace = &cluster.key.namespace;
        let set_name = labels::set_name(&cluster.key.name, &cluster.set.name);
        let selector: Vec<String> = labels::selector(&cluster.key.name)
            .into_iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let params = ListParams::default().labels(&selector.join(","));
        let set_api = self.api::<StatefulSet>(namespace);
        let pod_api = self.api::<Pod>(namespace);
        let (set, pods, token) = futures::join!(
            bounded("reading the StatefulSet", set_api.get_opt(&set_name)),
            bounded("listing pods", pod_api.list(&params)),
            self.token(cluster),
        );
        let names = cluster.node_names();
        let pods: Vec<Pod> = pods?
            .items
            .into_iter()
            .filter(|pod| names.contains(&pod.name_any()))
            .collect();
        let instances = join_all(pods.iter().map(|pod| self.instance(namespace, pod)))
            .await
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?;
        Ok(RuntimeFacts {
            set: set?
                .filter(|set| set.metadata.deletion_timestamp.is_none())
                .map(|set| set_facts(&set)),
            instances,
            token: token?,
            endpoint: Some(format!("http://{}.{namespace}.svc:{REST_PORT}", cluster.key.name)),
        })
    }

    async fn ensure(&self, set: &NodeSet) -> Result<bool, RuntimeError> {
        let cluster = &set.cluster;
        let namespace = &cluster.key.namespace;
        let mut wrote = false;
        if self.token(cluster).await?.is_none() {
            let bytes: [u8; 32] = rand::random();
            let token = bytes.iter().fold(String::new(), |mut text, byte| {
                use std::fmt::Write as _;
                // Writing to a String cannot fail.
                let _ = write!(text, "{byte:02x}");
                text
            });
            let secret: Secret = serde_json::from_value(objects::token_secret(cluster, &token))
                .map_err(|error| RuntimeError::Refused(error.to_string()))?;
            let params = PostParams {
                field_manager: Some(MANAGER.to_owned()),
                ..PostParams::default()
            };
            bounded(
                "creating the token",
                self.api::<Secret>(namespace).create(&params, &secret),
            )
            .await?;
            wrote = true;
        }
        wrote |= self
            .follow(
                cluster,
                &ApiResource::erase::<Service>(&()),
                objects::headless_service(cluster),
            )
            .await?;
        wrote |= self
            .follow(
                cluster,
                &ApiResource::erase::<Service>(&()),
                objects::client_service(cluster),
            )
            .await?;
        wrote |= self
            .follow(
                cluster,
                &ApiResource::erase::<NetworkPolicy>(&()),
                objects::network_policy(cluster, &self.context),
            )
            .await?;
        if let Some(budget) = objects::disruption_budget(cluster, set.disruption_allowed) {
            wrote |= self
                .follow(cluster, &ApiResource::erase::<PodDisruptionBudget>(&()), budget)
                .await?;
        }
        let mut running = None;
        if !set.apply_template {
            let name = labels::set_name(&cluster.key.name, &cluster.set.name);
            let live = bounded(
                "reading the StatefulSet",
                self.api::<StatefulSet>(namespace).get_opt(&name),
            )
            .await?;
            let template = live
                .and_then(|live| live.spec)
                .map(|spec| serde_json::to_value(spec.template));
            running = template
                .transpose()
                .map_err(|error| RuntimeError::Refused(error.to_string()))?;
            if running.is_none() {
                return Err(RuntimeError::Unavailable(format!(
                    "StatefulSet '{name}' went away while its template was to be kept"
                )));
            }
        }
        wrote |= self
            .follow(
                cluster,
                &ApiResource::erase::<StatefulSet>(&()),
                objects::stateful_set(cluster, &set.image, running),
            )
            .await?;
        Ok(wrote)
    }

    async fn stop(&self, cluster: &Key, instance: &Instance) -> Result<(), RuntimeError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(instance.instance_id.clone()),
                resource_version: instance.resource_version.clone(),
            }),
            ..DeleteParams::default()
        };
        match bounded(
            &format!("deleting pod '{}'", instance.name),
            self.api::<Pod>(&cluster.namespace)
                .delete(&instance.name, &params),
        )
        .await
        {
            Ok(_) => Ok(()),
            Err(ObjectsError::Conflict(_)) => Err(RuntimeError::Changed(instance.name.clone())),
            Err(error) => Err(error.into()),
        }
    }

    fn member_address(&self, cluster: &ValidCluster, node: &str) -> String {
        format!(
            "{node}.{}.{}.svc:{INTERNAL_PORT}",
            labels::headless_name(&cluster.key.name),
            cluster.key.namespace
        )
    }

    fn events(&self) -> BoxStream<'static, Key> {
        // Owned objects and pods carry the cluster's name as a label; metadata is enough to know whom to look at.
        let config =
            || watcher::Config::default().labels(&format!("{}={}", labels::MANAGED_BY, labels::MANAGER));
        let mut streams = Vec::new();
        let namespaces: Vec<Option<&str>> = if self.namespaces.is_empty() {
            vec![None]
        } else {
            self.namespaces.iter().map(|name| Some(name.as_str())).collect()
        };
        for namespace in namespaces {
            streams.push(owner_of::<Pod>(&self.client, namespace, config()));
            streams.push(owner_of::<StatefulSet>(&self.client, namespace, config()));
            streams.push(owner_of::<Service>(&self.client, namespace, config()));
            streams.push(owner_of::<NetworkPolicy>(&self.client, namespace, config()));
            streams.push(owner_of::<PodDisruptionBudget>(&self.client, namespace, config()));
        }
        futures::stream::select_all(streams).boxed()
    }
}

/// Clusters whose objects of kind `K` changed.
fn owner_of<K>(client: &Client, namespace: Option<&str>, config: watcher::Config) -> BoxStream<'static, Key>
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + Send
        + 'static,
{
    use kube::runtime::WatchStreamExt;
    let api: Api<PartialObjectMeta<K>> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    watcher(api, config)
        .default_backoff()
        .filter_map(|event| {
            let object = match event {
                Ok(
                    watcher::Event::Apply(object)
                    | watcher::Event::InitApply(object)
                    | watcher::Event::Delete(object),
                ) => Some(object),
                Ok(watcher::Event::Init | watcher::Event::InitDone) => None,
                Err(error) => {
                    tracing::warn!(%error, "watch is interrupted and starts again");
                    None
                }
            };
            let key = object.and_then(|object| {
                Some(Key {
                    namespace: object.namespace()?,
                    name: object.labels().get(labels::INSTANCE)?.clone(),
                })
            });
            futures::future::ready(key)
        })
        .boxed()
}

fn set_facts(set: &StatefulSet) -> SetFacts {
    let template = set.spec.as_ref().map(|spec| &spec.template);
    let observed = set.status.as_ref().and_then(|status| status.observed_generation);
    SetFacts {
        template_hash: template
            .and_then(|template| template.metadata.as_ref())
            .and_then(|metadata| metadata.annotations.as_ref())
            .and_then(|annotations| annotations.get(labels::TEMPLATE_HASH))
            .cloned(),
        image: template
            .and_then(|template| template.spec.as_ref())
            .and_then(|spec| spec.containers.first())
            .and_then(|container| container.image.clone()),
        current: observed.is_some() && observed >= set.metadata.generation,
    }
}
