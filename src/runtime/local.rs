//! Nodes as child processes on loopback, for `segmentry up`.
//!
//! ```text
//!   <root>/up.lock                           one `up` a folder
//!   <root>/<namespace>/<cluster>/set.json    what was applied: template hash, image, addresses
//!                               /token       of the internal port, made once
//!                               /<node>/     the node's volume; `disk-id` in it is the volume's identity
//!                               /<node>.log  what the node prints
//! ```
//!
//! Each node has a supervising task: it starts the process from the newest applied template, and again whenever it ended,
//! with a growing pause while it ends soon after its start. Nodes run with `--end-with-parent`: when `up` itself is killed
//! they end in order by themselves, so a new `up` finds no process to adopt.

mod node;
mod ports;

use super::{Instance, NodeSet, Runtime, RuntimeError, RuntimeFacts, SetFacts};
use crate::api::valid::{Key, ValidCluster};
use node::Supervised;
use rand::RngCore as _;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::broadcast;

/// What was applied, as it is kept on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Applied {
    template_hash: String,
    image: String,
    /// Node name → addresses.
    nodes: BTreeMap<String, Addresses>,
}

/// Where one node listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Addresses {
    rest: String,
    internal: String,
}

#[derive(Default)]
struct Running {
    applied: Applied,
    nodes: BTreeMap<String, Supervised>,
}

/// The local runtime of one data folder.
pub struct LocalRuntime {
    root: PathBuf,
    program: PathBuf,
    sets: Mutex<BTreeMap<Key, Running>>,
    changed: broadcast::Sender<Key>,
    /// Held while this value lives; the kernel drops it with the process.
    _lock: File,
}

impl LocalRuntime {
    /// Takes the folder. `program` is this program's own file, started as `segmentry node`.
    ///
    /// # Errors
    /// The folder cannot be made or written, or another `up` holds it.
    pub fn open(root: &Path, program: PathBuf) -> Result<Self, RuntimeError> {
        let refused = |error: io::Error| RuntimeError::Refused(format!("{}: {error}", root.display()));
        std::fs::create_dir_all(root).map_err(refused)?;
        let root = root.canonicalize().map_err(refused)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(root.join("up.lock"))
            .map_err(|error| RuntimeError::Refused(format!("{}: {error}", root.display())))?;
        lock.try_lock().map_err(|error| {
            RuntimeError::Refused(format!(
                "another segmentry up works in {} ({error}); stop it, or choose another folder with --data",
                root.display()
            ))
        })?;
        let (changed, _) = broadcast::channel(256);
        Ok(Self {
            root,
            program,
            sets: Mutex::default(),
            changed,
            _lock: lock,
        })
    }

    fn sets(&self) -> MutexGuard<'_, BTreeMap<Key, Running>> {
        // a panic elsewhere leaves the map whole: every change of it is one insertion or assignment
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folder(&self, key: &Key) -> PathBuf {
        self.root.join(&key.namespace).join(&key.name)
    }

    fn read_applied(&self, key: &Key) -> Result<Option<Applied>, RuntimeError> {
        let path = self.folder(key).join("set.json");
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| RuntimeError::Refused(format!("{}: {error}", path.display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(RuntimeError::Unavailable(format!("{}: {error}", path.display()))),
        }
    }

    /// REST addresses by node name, for people.
    pub fn rest_addresses(&self, key: &Key) -> BTreeMap<String, String> {
        let sets = self.sets();
        let nodes = sets.get(key).map(|set| &set.applied.nodes);
        nodes
            .into_iter()
            .flatten()
            .map(|(name, at)| (name.clone(), format!("http://{}", at.rest)))
            .collect()
    }

    /// Ends the nodes of a cluster that is no longer declared; its data stays.
    pub async fn retire(&self, key: &Key) {
        let gone = self.sets().remove(key);
        if let Some(set) = gone {
            end_all(set.nodes.into_values()).await;
        }
    }

    /// Ends every node in its own time and waits for it.
    pub async fn shut_down(&self) {
        let all = std::mem::take(&mut *self.sets());
        end_all(all.into_values().flat_map(|set| set.nodes.into_values())).await;
    }
}

async fn end_all(nodes: impl Iterator<Item = Supervised>) {
    futures::future::join_all(nodes.map(Supervised::end)).await;
}

/// The token of a cluster's internal port, made at the first call: 32 random bytes as hex, readable by its owner alone.
fn token(folder: &Path) -> io::Result<String> {
    let path = folder.join("token");
    match std::fs::read_to_string(&path) {
        Ok(token) => return Ok(token.trim().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut bytes = [0; 32];
    rand::rng().fill_bytes(&mut bytes);
    let mut token = String::with_capacity(64);
    for byte in bytes {
        // writing to a String cannot fail
        let _ = write!(token, "{byte:02x}");
    }
    write_whole(&path, token.as_bytes())?;
    Ok(token)
}

/// Identity of a node's volume: made with the folder, gone with it.
fn disk_id(volume: &Path) -> io::Result<String> {
    std::fs::create_dir_all(volume)?;
    let path = volume.join("disk-id");
    match std::fs::read_to_string(&path) {
        Ok(id) => Ok(id.trim().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let id = uuid::Uuid::new_v4().to_string();
            write_whole(&path, id.as_bytes())?;
            Ok(id)
        }
        Err(error) => Err(error),
    }
}

/// Never leaves half a file: written beside, synced, renamed.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)
}

impl Runtime for LocalRuntime {
    async fn observe(&self, cluster: &ValidCluster) -> Result<RuntimeFacts, RuntimeError> {
        let sets = self.sets();
        let Some(set) = sets.get(&cluster.key) else {
            drop(sets);
            // applied by an earlier `up`, its nodes not started yet
            let applied = self.read_applied(&cluster.key)?;
            let set = applied.map(|applied| SetFacts {
                template_hash: Some(applied.template_hash),
                image: Some(applied.image),
                current: true,
            });
            return Ok(RuntimeFacts {
                set,
                ..RuntimeFacts::default()
            });
        };
        let folder = self.folder(&cluster.key);
        let token = token(&folder).map_err(|error| RuntimeError::Unavailable(format!("token: {error}")))?;
        let instances: Vec<Instance> = set.nodes.values().map(Supervised::instance).collect();
        let endpoint = set
            .applied
            .nodes
            .values()
            .next()
            .map(|first| format!("http://{}", first.rest));
        let facts = SetFacts {
            template_hash: Some(set.applied.template_hash.clone()),
            image: Some(set.applied.image.clone()),
            current: true,
        };
        Ok(RuntimeFacts {
            set: Some(facts),
            instances,
            token: Some(token),
            endpoint,
        })
    }

    async fn ensure(&self, wanted: &NodeSet) -> Result<bool, RuntimeError> {
        let key = &wanted.cluster.key;
        let folder = self.folder(key);
        let unavailable =
            |what: &str, error: io::Error| RuntimeError::Unavailable(format!("{what}: {error}"));
        std::fs::create_dir_all(&folder)
            .map_err(|error| unavailable(&folder.display().to_string(), error))?;
        token(&folder).map_err(|error| unavailable("token", error))?;

        let mut sets = self.sets();
        let before = match sets.get(key) {
            Some(set) => Some(set.applied.clone()),
            None => self.read_applied(key)?,
        };
        let mut applied = before.clone().unwrap_or_default();
        if wanted.apply_template || before.is_none() {
            applied.template_hash.clone_from(&wanted.template_hash);
            applied.image.clone_from(&wanted.image);
        }
        let names: Vec<String> = (0..wanted.cluster.set.replicas)
            .map(|ordinal| wanted.cluster.node_name(ordinal))
            .collect();
        let mut taken: Vec<String> = sets
            .values()
            .flat_map(|set| set.applied.nodes.values())
            .flat_map(|at| [at.rest.clone(), at.internal.clone()])
            .collect();
        let started = sets.contains_key(key);
        for name in &names {
            // while its node runs an address is in use by ourselves; before that it may have gone to somebody else
            let usable = applied
                .nodes
                .get(name)
                .is_some_and(|at| started || ports::free(&at.rest, &at.internal));
            if !usable {
                let addresses = ports::allot(&mut taken)
                    .ok_or_else(|| RuntimeError::Unavailable("no free port on 127.0.0.1".to_owned()))?;
                applied.nodes.insert(name.clone(), addresses);
            }
        }
        let changed = before.as_ref() != Some(&applied);
        if changed {
            let text = serde_json::to_vec_pretty(&applied)
                .map_err(|error| RuntimeError::Refused(format!("set.json: {error}")))?;
            write_whole(&folder.join("set.json"), &text).map_err(|error| unavailable("set.json", error))?;
        }
        let set = sets.entry(key.clone()).or_default();
        for (name, addresses) in &applied.nodes {
            let volume = folder.join(name);
            let disk = disk_id(&volume).map_err(|error| unavailable(&volume.display().to_string(), error))?;
            let template = node::Template {
                hash: applied.template_hash.clone(),
                program: self.program.clone(),
                cluster_name: key.name.clone(),
                rest: addresses.rest.clone(),
                internal: addresses.internal.clone(),
                token_file: folder.join("token"),
                log: folder.join(format!("{name}.log")),
                volume,
                disk_id: disk,
            };
            if let Some(supervised) = set.nodes.get(name) {
                supervised.apply(template);
            } else {
                let supervised = Supervised::start(name.clone(), template, key.clone(), self.changed.clone());
                set.nodes.insert(name.clone(), supervised);
            }
        }
        set.applied = applied;
        Ok(changed || !started)
    }

    async fn stop(&self, cluster: &Key, instance: &Instance) -> Result<(), RuntimeError> {
        let sets = self.sets();
        let node = sets.get(cluster).and_then(|set| set.nodes.get(&instance.name));
        match node {
            Some(node) if node.stop(&instance.instance_id) => Ok(()),
            _ => Err(RuntimeError::Changed(instance.name.clone())),
        }
    }

    fn member_address(&self, cluster: &ValidCluster, node: &str) -> String {
        let known = self.sets().get(&cluster.key).map(|set| set.applied.clone());
        // before the first `ensure` nobody can ask: members are told addresses once their nodes run
        let applied = known
            .or_else(|| self.read_applied(&cluster.key).ok().flatten())
            .unwrap_or_default();
        applied
            .nodes
            .get(node)
            .map(|at| at.internal.clone())
            .unwrap_or_default()
    }

    fn events(&self) -> futures::stream::BoxStream<'static, Key> {
        let receiver = self.changed.subscribe();
        Box::pin(futures::stream::unfold(receiver, |mut receiver| async move {
            loop {
                match receiver.recv().await {
                    Ok(key) => return Some((key, receiver)),
                    // what was missed is seen by the next periodic look
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        }))
    }
}

#[cfg(test)]
mod tests;
