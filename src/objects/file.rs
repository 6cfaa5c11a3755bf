//! Declared objects of a manifest file, for `segmentry up`.
//!
//! What an API server adds to a manifest (uid, generation, finalizers, status with the cluster's identity) is kept in one
//! file of the data folder, replaced whole and synced before a write is acknowledged: the reconciler forms a cluster only
//! after its identity is stored. The manifest file itself is never written.
//!
//! - [`transition`]: changes that an API server would refuse.

mod transition;

use super::{Claim, Objects, ObjectsError, Work};
use crate::{
    api::{Index, IndexCluster, conditions, labels, status::Health, valid::Key},
    plan::Note,
};
use futures::{StreamExt as _, stream::BoxStream};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use kube::{Resource, ResourceExt as _};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::broadcast;

/// What is kept.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct State {
    /// Counts every write; an object's resourceVersion is the number of its last one.
    version: u64,
    /// Epoch that node calls carry: one higher at each start.
    epoch: u64,
    clusters: Vec<IndexCluster>,
    indices: Vec<Index>,
}

/// What a manifest file declares.
#[derive(Debug, Clone, Default)]
pub struct Declared {
    /// Clusters.
    pub clusters: Vec<IndexCluster>,
    /// Indices.
    pub indices: Vec<Index>,
}

/// What became of a declaration.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Declaration {
    /// Changes that were not taken over, in words.
    pub refused: Vec<String>,
    /// Objects that are still being deleted under the same name: declare again later.
    pub waiting: Vec<Work>,
}

/// The door of one data folder.
#[derive(Clone)]
pub struct FileObjects(Arc<Inner>);

/// Who is told of events.
type Say = Box<dyn Fn(&Work, &Note) + Send + Sync>;

struct Inner {
    path: PathBuf,
    state: Mutex<State>,
    changed: broadcast::Sender<Work>,
    said: Mutex<BTreeMap<(Work, &'static str), String>>,
    say: Say,
}

/// Both kinds, as far as this door treats them alike.
trait Kept: Resource<DynamicType = ()> + Clone {
    const KIND: &'static str;
    fn all(state: &mut State) -> &mut Vec<Self>;
    fn work(key: Key) -> Work;
    fn refusals(old: &Self, new: &Self) -> Vec<String>;
    /// Takes the spec of `other`; false if it is the same.
    fn take_spec(&mut self, other: &Self) -> bool;
    fn take_status(&mut self, other: &Self);
}

impl Kept for IndexCluster {
    const KIND: &'static str = "IndexCluster";
    fn all(state: &mut State) -> &mut Vec<Self> {
        &mut state.clusters
    }
    fn work(key: Key) -> Work {
        Work::Cluster(key)
    }
    fn refusals(old: &Self, new: &Self) -> Vec<String> {
        transition::cluster(old, new)
    }
    fn take_spec(&mut self, other: &Self) -> bool {
        let differs = self.spec != other.spec;
        self.spec = other.spec.clone();
        differs
    }
    fn take_status(&mut self, other: &Self) {
        self.status.clone_from(&other.status);
    }
}

impl Kept for Index {
    const KIND: &'static str = "Index";
    fn all(state: &mut State) -> &mut Vec<Self> {
        &mut state.indices
    }
    fn work(key: Key) -> Work {
        Work::Index(key)
    }
    fn refusals(old: &Self, new: &Self) -> Vec<String> {
        transition::index(old, new)
    }
    fn take_spec(&mut self, other: &Self) -> bool {
        let differs = self.spec != other.spec;
        self.spec = other.spec.clone();
        differs
    }
    fn take_status(&mut self, other: &Self) {
        self.status.clone_from(&other.status);
    }
}

fn key_of(object: &impl Resource<DynamicType = ()>) -> Key {
    Key {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
    }
}

/// Never leaves half a file, and is on disk when it returns.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

impl FileObjects {
    /// Opens what an earlier run kept at `path`, and raises the epoch. `say` is told each new event once.
    ///
    /// # Errors
    /// The file is there and cannot be read, or cannot be written.
    pub fn open(
        path: PathBuf,
        say: impl Fn(&Work, &Note) + Send + Sync + 'static,
    ) -> Result<Self, ObjectsError> {
        let state: State = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| ObjectsError::Refused(format!("{}: {error}", path.display())))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => State::default(),
            Err(error) => return Err(ObjectsError::Unavailable(format!("{}: {error}", path.display()))),
        };
        let (changed, _) = broadcast::channel(1024);
        let inner = Inner {
            path,
            state: Mutex::new(state),
            changed,
            said: Mutex::default(),
            say: Box::new(say),
        };
        let objects = Self(Arc::new(inner));
        objects.write(|state| {
            state.epoch += 1;
            unobserve(state);
            Ok(())
        })?;
        Ok(objects)
    }

    /// The stored epoch.
    pub fn epoch(&self) -> u64 {
        self.state().epoch
    }

    /// Stores a higher epoch.
    ///
    /// # Errors
    /// It cannot be stored; the old one stays.
    pub fn raise_epoch(&self, epoch: u64) -> Result<(), ObjectsError> {
        self.write(|state| {
            state.epoch = state.epoch.max(epoch);
            Ok(())
        })
    }

    /// Every object.
    pub fn all(&self) -> Declared {
        let state = self.state();
        Declared {
            clusters: state.clusters.clone(),
            indices: state.indices.clone(),
        }
    }

    /// Counts writes: the same number means that nothing changed.
    pub fn version(&self) -> u64 {
        self.state().version
    }

    /// Makes the stored objects follow `declared`: new ones are created, others take the new spec unless a rule forbids the
    /// change, those that are not declared any more are deleted.
    ///
    /// # Errors
    /// It cannot be stored; nothing changed.
    pub fn declare(&self, declared: &Declared) -> Result<Declaration, ObjectsError> {
        let mut changed = Vec::new();
        let mut declaration = Declaration::default();
        self.write(|state| {
            follow(state, &declared.clusters, &mut declaration, &mut changed);
            follow(state, &declared.indices, &mut declaration, &mut changed);
            Ok(())
        })?;
        self.tell(changed);
        Ok(declaration)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // replaced whole by one assignment
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a copy, stores it, and only then shows it to others. Nothing is written where nothing changed.
    fn write<T>(
        &self,
        change: impl FnOnce(&mut State) -> Result<T, ObjectsError>,
    ) -> Result<T, ObjectsError> {
        let mut state = self.state();
        let mut next = state.clone();
        let answer = change(&mut next)?;
        if next.version == state.version && next.epoch == state.epoch {
            return Ok(answer);
        }
        let failed = |error: &dyn std::fmt::Display| {
            ObjectsError::Unavailable(format!("writing {}: {error}", self.0.path.display()))
        };
        let text = serde_json::to_vec_pretty(&next).map_err(|error| failed(&error))?;
        replace(&self.0.path, &text).map_err(|error| failed(&error))?;
        *state = next;
        Ok(answer)
    }

    fn tell(&self, changed: impl IntoIterator<Item = Work>) {
        for work in changed {
            // nobody listens before the loops start; they begin with every object
            let _ = self.0.changed.send(work);
        }
    }

    fn find<K: Kept>(&self, key: &Key) -> Option<K> {
        K::all(&mut self.state())
            .iter()
            .find(|object| key_of(*object) == *key)
            .cloned()
    }

    fn list<K: Kept>(&self, namespace: &str) -> Vec<K> {
        let mut state = self.state();
        K::all(&mut state)
            .iter()
            .filter(|object| object.namespace().as_deref() == Some(namespace))
            .cloned()
            .collect()
    }

    /// Changes the stored object if it is still the one that was read.
    fn change<K: Kept>(&self, read: &K, change: impl FnOnce(&mut K)) -> Result<K, ObjectsError> {
        let key = key_of(read);
        self.write(|state| {
            let version = state.version + 1;
            let stored = K::all(state).iter_mut().find(|object| key_of(*object) == key);
            let same = stored.filter(|stored| {
                stored.meta().uid == read.meta().uid
                    && stored.meta().resource_version == read.meta().resource_version
            });
            let Some(stored) = same else {
                return Err(ObjectsError::Conflict(format!("{} {key}", K::KIND)));
            };
            change(stored);
            stored.meta_mut().resource_version = Some(version.to_string());
            let answer = stored.clone();
            state.version = version;
            Ok(answer)
        })
    }
}

/// What an earlier run observed is no observation of this one: nothing is shown as Ready before it was looked at.
fn unobserve(state: &mut State) {
    let forget = |conditions: &mut Vec<Condition>, health: &mut Option<Health>| {
        for ready in conditions
            .iter_mut()
            .filter(|condition| condition.type_ == conditions::READY)
        {
            conditions::Truth::Unknown.as_str().clone_into(&mut ready.status);
            conditions::reason::UNKNOWN.clone_into(&mut ready.reason);
            "not observed since this start".clone_into(&mut ready.message);
            ready.last_transition_time = Time(Timestamp::now());
        }
        *health = Some(Health::Unknown);
    };
    let State {
        version,
        clusters,
        indices,
        ..
    } = state;
    let mut next = || {
        *version += 1;
        Some(version.to_string())
    };
    for cluster in clusters {
        if let Some(status) = &mut cluster.status {
            forget(&mut status.conditions, &mut status.health);
            cluster.metadata.resource_version = next();
        }
    }
    for index in indices {
        if let Some(status) = &mut index.status {
            forget(&mut status.conditions, &mut status.health);
            index.metadata.resource_version = next();
        }
    }
}

/// One kind of [`FileObjects::declare`].
fn follow<K: Kept>(
    state: &mut State,
    declared: &[K],
    declaration: &mut Declaration,
    changed: &mut Vec<Work>,
) {
    let mut version = state.version;
    let stored = K::all(state);
    let wanted: BTreeSet<Key> = declared.iter().map(key_of).collect();
    stored.retain_mut(|object| {
        let key = key_of(object);
        if wanted.contains(&key) || object.meta().deletion_timestamp.is_some() {
            return true;
        }
        version += 1;
        changed.push(K::work(key));
        let held = !object.finalizers().is_empty();
        object.meta_mut().deletion_timestamp = Some(Time(Timestamp::now()));
        object.meta_mut().resource_version = Some(version.to_string());
        held
    });
    for new in declared {
        let key = key_of(new);
        let work = K::work(key.clone());
        let Some(old) = stored.iter_mut().find(|object| key_of(*object) == key) else {
            version += 1;
            let mut object = new.clone();
            *object.meta_mut() = ObjectMeta {
                name: Some(key.name.clone()),
                namespace: Some(key.namespace.clone()),
                uid: Some(uuid::Uuid::new_v4().to_string()),
                generation: Some(1),
                creation_timestamp: Some(Time(Timestamp::now())),
                resource_version: Some(version.to_string()),
                labels: new.meta().labels.clone(),
                annotations: new.meta().annotations.clone(),
                ..ObjectMeta::default()
            };
            stored.push(object);
            changed.push(work);
            continue;
        };
        if old.meta().deletion_timestamp.is_some() {
            declaration.waiting.push(work);
            continue;
        }
        let refusals = K::refusals(old, new);
        if !refusals.is_empty() {
            let text = format!(
                "{} {}: {}; the running object keeps what it has",
                K::KIND,
                key.name,
                refusals.join("; ")
            );
            declaration.refused.push(text);
            continue;
        }
        let other_spec = old.take_spec(new);
        let (labels, annotations) = (&new.meta().labels, &new.meta().annotations);
        let other_words = old.meta().labels != *labels || old.meta().annotations != *annotations;
        if other_spec || other_words {
            version += 1;
            let meta = old.meta_mut();
            meta.labels.clone_from(labels);
            meta.annotations.clone_from(annotations);
            meta.resource_version = Some(version.to_string());
            if other_spec {
                meta.generation = Some(meta.generation.unwrap_or_default() + 1);
            }
            changed.push(work);
        }
    }
    state.version = version;
}

impl Objects for FileObjects {
    async fn get_cluster(&self, key: &Key) -> Result<Option<IndexCluster>, ObjectsError> {
        Ok(self.find(key))
    }

    async fn get_index(&self, key: &Key) -> Result<Option<Index>, ObjectsError> {
        Ok(self.find(key))
    }

    async fn list_clusters(&self, namespace: &str) -> Result<Vec<IndexCluster>, ObjectsError> {
        Ok(self.list(namespace))
    }

    async fn list_indices(&self, namespace: &str) -> Result<Vec<Index>, ObjectsError> {
        Ok(self.list(namespace))
    }

    async fn write_cluster_status(&self, object: &IndexCluster) -> Result<IndexCluster, ObjectsError> {
        self.change(object, |stored| stored.take_status(object))
    }

    async fn write_index_status(&self, object: &Index) -> Result<Index, ObjectsError> {
        self.change(object, |stored| stored.take_status(object))
    }

    async fn set_finalizer(&self, object: &Index, present: bool) -> Result<(), ObjectsError> {
        let key = key_of(object);
        self.change(object, |stored| {
            let finalizers = stored.finalizers_mut();
            finalizers.retain(|finalizer| finalizer != labels::INDEX_FINALIZER);
            if present {
                finalizers.push(labels::INDEX_FINALIZER.to_owned());
            }
        })?;
        self.write(|state| {
            let before = state.indices.len();
            state.indices.retain(|index| {
                index.metadata.deletion_timestamp.is_none() || !index.finalizers().is_empty()
            });
            if state.indices.len() != before {
                state.version += 1;
            }
            Ok(())
        })?;
        self.tell([Work::Index(key)]);
        Ok(())
    }

    async fn claim_cluster(&self, _: &IndexCluster) -> Result<Claim, ObjectsError> {
        // the folder's lock is the claim
        Ok(Claim::Mine)
    }

    async fn claim_index(&self, _: &Index) -> Result<Claim, ObjectsError> {
        Ok(Claim::Mine)
    }

    async fn event(&self, about: &Work, _: &str, note: &Note) {
        let fresh = {
            let mut said = self.0.said.lock().unwrap_or_else(PoisonError::into_inner);
            said.insert((about.clone(), note.reason), note.message.clone())
                .as_ref()
                != Some(&note.message)
        };
        if fresh {
            (self.0.say)(about, note);
        }
    }

    async fn namespace_terminating(&self, _: &str) -> Result<bool, ObjectsError> {
        // a file has no namespaces that could go
        Ok(false)
    }

    fn changes(&self) -> BoxStream<'static, Work> {
        let receiver = self.0.changed.subscribe();
        let first = every(&self.all());
        let door = self.clone();
        let later = futures::stream::unfold((receiver, door), |(mut receiver, door)| async move {
            let works = match receiver.recv().await {
                Ok(work) => vec![work],
                // what was missed is among what exists, or is noticed by a periodic pass
                Err(broadcast::error::RecvError::Lagged(_)) => every(&door.all()),
                Err(broadcast::error::RecvError::Closed) => return None,
            };
            Some((futures::stream::iter(works), (receiver, door)))
        });
        futures::stream::iter(first).chain(later.flatten()).boxed()
    }
}

fn every(all: &Declared) -> Vec<Work> {
    let clusters = all.clusters.iter().map(|cluster| Work::Cluster(key_of(cluster)));
    clusters
        .chain(all.indices.iter().map(|index| Work::Index(key_of(index))))
        .collect()
}

#[cfg(test)]
mod tests;
