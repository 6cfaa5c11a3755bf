//! Declared objects in the API server.

use super::{Claim, Objects, ObjectsError, Work};
use crate::{
    api::{Index, IndexCluster, labels, valid::Key},
    plan::Note,
};
use futures::{StreamExt, stream::BoxStream};
use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Namespace, ObjectReference},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt,
        events::{Event, EventType, Recorder, Reporter},
        watcher,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use std::{
    collections::HashMap,
    fmt::Debug,
    future::Future,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

/// Field manager of claims and finalizers.
const MANAGER: &str = "segmentry-operator";
/// Deadline of one call; the client itself repeats on 429 and 503.
pub const DEADLINE: Duration = Duration::from_secs(15);

/// The API server's door.
#[derive(Clone)]
pub struct KubernetesObjects {
    client: Client,
    recorder: Recorder,
    /// `namespace/release` of this operator.
    claim: String,
    /// Namespaces that are looked after; empty for all.
    namespaces: Vec<String>,
}

/// Runs a call under its deadline and sorts its errors.
///
/// # Errors
/// See [`ObjectsError`].
pub async fn bounded<T>(
    what: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ObjectsError> {
    match tokio::time::timeout(DEADLINE, call).await {
        Err(_) => Err(ObjectsError::Unavailable(format!(
            "{what}: the API server did not answer within {} s",
            DEADLINE.as_secs()
        ))),
        Ok(Ok(value)) => Ok(value),
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
            Err(ObjectsError::Conflict(what.to_owned()))
        }
        Ok(Err(kube::Error::Api(status))) if (400..500).contains(&status.code) && status.code != 429 => {
            Err(ObjectsError::Refused(format!("{what}: {}", status.message)))
        }
        Ok(Err(error)) => Err(ObjectsError::Unavailable(format!("{what}: {error}"))),
    }
}

impl KubernetesObjects {
    /// A door for objects that this operator (`namespace/release`) looks after.
    pub fn new(client: Client, claim: String, namespaces: Vec<String>, instance: Option<String>) -> Self {
        let recorder = Recorder::new(
            client.clone(),
            Reporter {
                controller: "segmentry.io/operator".to_owned(),
                instance,
            },
        );
        Self {
            client,
            recorder,
            claim,
            namespaces,
        }
    }

    /// Index objects of all namespaces.
    ///
    /// # Errors
    /// See [`ObjectsError`].
    pub async fn list_all_indices(&self) -> Result<Vec<Index>, ObjectsError> {
        let api: Api<Index> = Api::all(self.client.clone());
        Ok(
            bounded("listing the Index objects", api.list(&ListParams::default()))
                .await?
                .items,
        )
    }

    fn api<K: Resource<Scope = kube::core::NamespaceResourceScope>>(&self, namespace: &str) -> Api<K>
    where
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn get<K>(&self, key: &Key) -> Result<Option<K>, ObjectsError>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        bounded(
            &format!("reading {key}"),
            self.api::<K>(&key.namespace).get_opt(&key.name),
        )
        .await
    }

    async fn list<K>(&self, namespace: &str) -> Result<Vec<K>, ObjectsError>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        Ok(bounded(
            &format!("listing {namespace}"),
            self.api::<K>(namespace).list(&ListParams::default()),
        )
        .await?
        .items)
    }

    async fn write_status<K>(&self, object: &K) -> Result<K, ObjectsError>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Serialize,
        K::DynamicType: Default,
    {
        let api = self.api::<K>(&object.namespace().unwrap_or_default());
        let name = object.name_any();
        let params = PostParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PostParams::default()
        };
        bounded(
            &format!("writing the status of {name}"),
            api.replace_status(&name, &params, object),
        )
        .await
    }

    async fn claim<K>(&self, object: &K) -> Result<Claim, ObjectsError>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        match object.annotations().get(labels::OPERATOR) {
            Some(claim) if *claim == self.claim => return Ok(Claim::Mine),
            Some(claim) if self.may_live(claim).await => return Ok(Claim::Other(claim.clone())),
            _ => {}
        }
        let name = object.name_any();
        let api = self.api::<K>(&object.namespace().unwrap_or_default());
        // The resourceVersion makes two operators that see an unclaimed object decide it by who is first.
        let patch = json!({"metadata": {"resourceVersion": object.resource_version(), "annotations": {labels::OPERATOR: self.claim}}});
        bounded(
            &format!("claiming {name}"),
            api.patch_metadata(
                &name,
                &PatchParams {
                    field_manager: Some(MANAGER.to_owned()),
                    ..PatchParams::default()
                },
                &Patch::Merge(&patch),
            ),
        )
        .await?;
        Ok(Claim::Mine)
    }

    /// An operator lives while its Lease does; where that cannot be read, it is taken to live.
    async fn may_live(&self, claim: &str) -> bool {
        let Some((namespace, release)) = claim.split_once('/') else {
            return false;
        };
        match bounded(
            "reading the Lease of another operator",
            self.api::<Lease>(namespace).get_opt(release),
        )
        .await
        {
            Ok(None) => false,
            Ok(Some(lease)) => {
                let spec = lease.spec.unwrap_or_default();
                let seconds = i64::from(spec.lease_duration_seconds.unwrap_or(15)) * 4;
                spec.renew_time
                    .is_some_and(|time| Timestamp::now().as_second() - time.0.as_second() < seconds)
            }
            Err(_) => true,
        }
    }

    /// One watcher a namespace and kind, of metadata only: every pass reads the object itself live.
    fn watch<K>(&self, work: fn(Key) -> Work) -> Vec<BoxStream<'static, Work>>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
        K::DynamicType: Default + Clone + Debug + Send + Sync + Eq + Hash,
    {
        let apis: Vec<Api<PartialObjectMeta<K>>> = if self.namespaces.is_empty() {
            vec![Api::all(self.client.clone())]
        } else {
            self.namespaces
                .iter()
                .map(|namespace| Api::namespaced(self.client.clone(), namespace))
                .collect()
        };
        apis.into_iter()
            .map(|api| changed(api, watcher::Config::default(), work, true))
            .collect()
    }
}

/// Keys of objects that changed. `people_only` leaves out changes of nothing but status.
fn changed<K>(
    api: Api<K>,
    config: watcher::Config,
    work: fn(Key) -> Work,
    people_only: bool,
) -> BoxStream<'static, Work>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut seen: HashMap<Key, u64> = HashMap::new();
    watcher(api, config)
        .default_backoff()
        .filter_map(move |event| {
            let found = match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                    let meta = object.meta();
                    let key = Key {
                        namespace: object.namespace().unwrap_or_default(),
                        name: object.name_any(),
                    };
                    let mut hasher = DefaultHasher::new();
                    (
                        &meta.uid,
                        &meta.generation,
                        &meta.annotations,
                        &meta.finalizers,
                        meta.deletion_timestamp.is_some(),
                    )
                        .hash(&mut hasher);
                    let print = hasher.finish();
                    let same = seen.insert(key.clone(), print) == Some(print);
                    (!(people_only && same)).then_some(key)
                }
                Ok(watcher::Event::Delete(object)) => {
                    let key = Key {
                        namespace: object.namespace().unwrap_or_default(),
                        name: object.name_any(),
                    };
                    seen.remove(&key);
                    Some(key)
                }
                Ok(watcher::Event::Init | watcher::Event::InitDone) => None,
                Err(error) => {
                    tracing::warn!(%error, "watch is interrupted and starts again");
                    None
                }
            };
            futures::future::ready(found.map(work))
        })
        .boxed()
}

impl Objects for KubernetesObjects {
    async fn get_cluster(&self, key: &Key) -> Result<Option<IndexCluster>, ObjectsError> {
        self.get(key).await
    }

    async fn get_index(&self, key: &Key) -> Result<Option<Index>, ObjectsError> {
        self.get(key).await
    }

    async fn list_clusters(&self, namespace: &str) -> Result<Vec<IndexCluster>, ObjectsError> {
        self.list(namespace).await
    }

    async fn list_indices(&self, namespace: &str) -> Result<Vec<Index>, ObjectsError> {
        self.list(namespace).await
    }

    async fn write_cluster_status(&self, object: &IndexCluster) -> Result<IndexCluster, ObjectsError> {
        self.write_status(object).await
    }

    async fn write_index_status(&self, object: &Index) -> Result<Index, ObjectsError> {
        self.write_status(object).await
    }

    async fn set_finalizer(&self, object: &Index, present: bool) -> Result<(), ObjectsError> {
        let name = object.name_any();
        let mut finalizers = object.metadata.finalizers.clone().unwrap_or_default();
        finalizers.retain(|finalizer| finalizer != labels::INDEX_FINALIZER);
        if present {
            finalizers.push(labels::INDEX_FINALIZER.to_owned());
        }
        // The resourceVersion keeps the finalizers that others added in between.
        let patch =
            json!({"metadata": {"resourceVersion": object.resource_version(), "finalizers": finalizers}});
        let api = self.api::<Index>(&object.namespace().unwrap_or_default());
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        bounded(
            &format!("changing the finalizer of {name}"),
            api.patch(&name, &params, &Patch::Merge(&patch)),
        )
        .await?;
        Ok(())
    }

    async fn claim_cluster(&self, object: &IndexCluster) -> Result<Claim, ObjectsError> {
        self.claim(object).await
    }

    async fn claim_index(&self, object: &Index) -> Result<Claim, ObjectsError> {
        self.claim(object).await
    }

    async fn event(&self, about: &Work, uid: &str, note: &Note) {
        let (kind, key) = match about {
            Work::Cluster(key) => ("IndexCluster", key),
            Work::Index(key) => ("Index", key),
        };
        let reference = ObjectReference {
            api_version: Some("segmentry.io/v1alpha1".to_owned()),
            kind: Some(kind.to_owned()),
            namespace: Some(key.namespace.clone()),
            name: Some(key.name.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: if note.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: note.reason.to_owned(),
            note: Some(note.message.chars().take(1000).collect()),
            action: note.action.to_owned(),
            secondary: None,
        };
        match tokio::time::timeout(DEADLINE, self.recorder.publish(&event, &reference)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(object = %about, reason = note.reason, %error, "event was not published");
            }
            Err(_) => {
                tracing::warn!(object = %about, reason = note.reason, "event was not published in time");
            }
        }
    }

    async fn namespace_terminating(&self, namespace: &str) -> Result<bool, ObjectsError> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        match bounded("reading the namespace", api.get_opt(namespace)).await {
            Ok(found) => Ok(found.is_none_or(|found| found.metadata.deletion_timestamp.is_some())),
            // A role for single namespaces may not read the Namespace object: the deletion of the cluster tells as much.
            Err(ObjectsError::Refused(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn changes(&self) -> BoxStream<'static, Work> {
        let mut streams = self.watch::<IndexCluster>(Work::Cluster);
        streams.extend(self.watch::<Index>(Work::Index));
        futures::stream::select_all(streams).boxed()
    }
}
