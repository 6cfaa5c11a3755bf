//! Applies committed entries to the cluster state, remembers outcomes, makes and takes snapshots.

use super::{
    Batch, Entry, LogId, Membership, OpenError, Outcome, RaftNode, StorageError, TypeConfig, read_error,
    snapshot::{self, Snapshot},
    write_error,
};
use crate::raft::REMEMBERED;
use openraft::{EntryPayload, RaftSnapshotBuilder, SnapshotMeta, storage::RaftStateMachine};
use parking_lot::Mutex;
use segmentry_state::ClusterState;
use segmentry_vfs::Vfs;
use std::{
    collections::{HashMap, VecDeque},
    io::Cursor,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::watch;
use uuid::Uuid;

/// The snapshot on disk, also in memory: it is sent from here.
struct Stored {
    applied: Option<LogId>,
    meta: SnapshotMeta<u64, RaftNode>,
    payload: Arc<Vec<u8>>,
}

/// Where snapshots are.
#[derive(Clone)]
struct Place {
    fs: Arc<dyn Vfs>,
    dir: PathBuf,
    /// Held while the file is written, so that an older snapshot never replaces a newer one.
    stored: Arc<Mutex<Option<Stored>>>,
}

/// Owned by the Raft library's state machine worker.
pub struct Machine {
    place: Place,
    applied: Option<LogId>,
    membership: Membership,
    state: Arc<ClusterState>,
    remembered: Remembered,
    publish: watch::Sender<Arc<ClusterState>>,
}

/// Outcomes of the last proposals.
#[derive(Default, Clone)]
struct Remembered {
    order: VecDeque<Uuid>,
    outcomes: HashMap<Uuid, Outcome>,
}

impl Remembered {
    fn from_list(list: Vec<(Uuid, Outcome)>) -> Self {
        let mut out = Self::default();
        for (id, outcome) in list {
            out.add(id, outcome);
        }
        out
    }

    fn list(&self) -> Vec<(Uuid, Outcome)> {
        self.order
            .iter()
            .filter_map(|id| self.outcomes.get(id).map(|o| (*id, o.clone())))
            .collect()
    }

    fn add(&mut self, id: Uuid, outcome: Outcome) {
        if self.outcomes.insert(id, outcome).is_none() {
            self.order.push_back(id);
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.outcomes.remove(&oldest);
            }
        }
    }
}

impl Machine {
    /// Reads the snapshot below `dir`, if any, and publishes its state. Blocks.
    pub fn open(
        fs: Arc<dyn Vfs>,
        dir: &Path,
        publish: watch::Sender<Arc<ClusterState>>,
    ) -> Result<Self, OpenError> {
        let read = snapshot::read(fs.as_ref(), dir)?;
        let stored = read.as_ref().map(|(snapshot, payload)| Stored {
            applied: snapshot.applied,
            meta: snapshot.meta(),
            payload: Arc::new(payload.clone()),
        });
        let place = Place {
            fs,
            dir: dir.to_owned(),
            stored: Arc::new(Mutex::new(stored)),
        };
        let snapshot = read.map(|(snapshot, _)| snapshot).unwrap_or_default();
        let mut machine = Self {
            place,
            applied: None,
            membership: Membership::default(),
            state: Arc::default(),
            remembered: Remembered::default(),
            publish,
        };
        machine.take_in(snapshot);
        Ok(machine)
    }

    fn take_in(&mut self, snapshot: Snapshot) {
        self.applied = snapshot.applied;
        self.membership = snapshot.membership;
        self.state = snapshot.state;
        self.remembered = Remembered::from_list(snapshot.remembered);
        self.publish.send_replace(Arc::clone(&self.state));
    }

    fn view(&self) -> Snapshot {
        Snapshot {
            applied: self.applied,
            membership: self.membership.clone(),
            state: Arc::clone(&self.state),
            remembered: self.remembered.list(),
        }
    }

    fn apply_batch(&mut self, batch: Batch, state: &mut ClusterState) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.items.len());
        for item in batch.items {
            if let Some(known) = self.remembered.outcomes.get(&item.id) {
                outcomes.push(known.clone());
                continue;
            }
            let results = item.changes.into_iter().map(|c| state.apply(c)).collect();
            let outcome = Outcome {
                version: state.version,
                results,
            };
            self.remembered.add(item.id, outcome.clone());
            outcomes.push(outcome);
        }
        outcomes
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, Membership), StorageError> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Vec<Outcome>>, StorageError>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        // One copy of the state for all entries at hand; indices are shared until they change.
        let mut state = ClusterState::clone(&self.state);
        let mut answers = Vec::new();
        for entry in entries {
            self.applied = Some(entry.log_id);
            answers.push(match entry.payload {
                EntryPayload::Blank => Vec::new(),
                EntryPayload::Normal(batch) => self.apply_batch(batch, &mut state),
                EntryPayload::Membership(membership) => {
                    self.membership = Membership::new(Some(entry.log_id), membership);
                    Vec::new()
                }
            });
        }
        if state.version != self.state.version {
            self.state = Arc::new(state);
            self.publish.send_replace(Arc::clone(&self.state));
        }
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder {
            place: self.place.clone(),
            snapshot: self.view(),
        }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, StorageError> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, RaftNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError> {
        let payload = snapshot.into_inner();
        let read: Snapshot = serde_json::from_slice(&payload)
            .map_err(|e| read_error(format!("the snapshot that was received cannot be read: {e}")))?;
        if read.applied != meta.last_log_id {
            return Err(read_error(
                "the snapshot that was received is of another log position than announced",
            ));
        }
        self.place.store(read.applied, meta.clone(), payload).await?;
        self.take_in(read);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<openraft::Snapshot<TypeConfig>>, StorageError> {
        Ok(self
            .place
            .stored
            .lock()
            .as_ref()
            .map(|stored| openraft::Snapshot {
                meta: stored.meta.clone(),
                snapshot: Box::new(Cursor::new(stored.payload.as_ref().clone())),
            }))
    }
}

impl Place {
    async fn store(
        &self,
        applied: Option<LogId>,
        meta: SnapshotMeta<u64, RaftNode>,
        payload: Vec<u8>,
    ) -> Result<(), StorageError> {
        let place = self.clone();
        let payload = Arc::new(payload);
        tokio::task::spawn_blocking(move || {
            let mut stored = place.stored.lock();
            if stored.as_ref().is_some_and(|s| s.applied >= applied) {
                return Ok(());
            }
            snapshot::write(place.fs.as_ref(), &place.dir, &payload)?;
            *stored = Some(Stored {
                applied,
                meta,
                payload,
            });
            Ok(())
        })
        .await
        .map_err(write_error)?
        .map_err(|e: std::io::Error| write_error(format!("the metadata snapshot was not written: {e}")))
    }
}

/// Makes a snapshot of the state as it was when it was asked for.
pub struct Builder {
    place: Place,
    snapshot: Snapshot,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    async fn build_snapshot(&mut self) -> Result<openraft::Snapshot<TypeConfig>, StorageError> {
        let payload = serde_json::to_vec(&self.snapshot).map_err(write_error)?;
        let meta = self.snapshot.meta();
        self.place
            .store(self.snapshot.applied, meta.clone(), payload.clone())
            .await?;
        Ok(openraft::Snapshot {
            meta,
            snapshot: Box::new(Cursor::new(payload)),
        })
    }
}
