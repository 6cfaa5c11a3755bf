//! What the door hands to the committer thread.

use crate::{Config, Error, Progress, Result, Stats, index::Index};
use parking_lot::{Condvar, Mutex};
use segmentry_vfs::Vfs;
use std::{path::PathBuf, sync::Arc};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use uuid::Uuid;

#[derive(Debug, Clone, Copy)]
pub(crate) struct TermStart {
    pub term: u64,
    pub keep_to: Option<u64>,
}

/// A batch on its way to the committer.
pub(crate) struct Pending {
    pub records: Vec<u8>,
    pub first: u64,
    pub last: u64,
    pub sync: bool,
    pub term_start: Option<TermStart>,
    /// Gives its bytes back when the batch is written.
    pub _room: Option<OwnedSemaphorePermit>,
}

pub(crate) type Reply = oneshot::Sender<Result<()>>;

pub(crate) enum Request {
    Sync(Reply),
    Trim(u64, Reply),
    Close(Reply),
    /// Settings changed.
    Look,
    /// The log was dropped: end without another touch of the files.
    Abandon,
}

/// What waits, and where the log will end once it is written.
pub(crate) struct Queue {
    pub batches: Vec<Pending>,
    pub requests: Vec<Request>,
    /// What the next batch begins with.
    pub next: u64,
    pub term: u64,
    /// The log holds no operation and knows of none.
    pub pristine: bool,
    /// Why nothing more is taken.
    pub stopped: Option<Error>,
}

/// What the door and the committer thread share.
pub(crate) struct Inner {
    pub fs: Arc<dyn Vfs>,
    pub dir: PathBuf,
    pub shard: Uuid,
    pub queue: Mutex<Queue>,
    pub wake: Condvar,
    pub config: Mutex<Config>,
    pub index: Mutex<Index>,
    pub work: Mutex<Stats>,
    pub progress: watch::Sender<Progress>,
    /// Bytes that may still be handed over, in units of [`UNIT`].
    pub room: Arc<Semaphore>,
    pub room_units: u32,
}

/// Unit of the bound on waiting bytes.
pub(crate) const UNIT: usize = 1024;

impl Inner {
    fn stop(&self, error: Error) -> (Vec<Pending>, Vec<Request>) {
        let mut queue = self.queue.lock();
        if !matches!(queue.stopped, Some(Error::Failed(_))) {
            queue.stopped = Some(error);
        }
        (
            std::mem::take(&mut queue.batches),
            std::mem::take(&mut queue.requests),
        )
    }

    pub fn fail(&self, reason: &str) {
        // their replies are dropped, which their callers read as the failure
        drop(self.stop(Error::Failed(reason.to_owned())));
        self.progress
            .send_modify(|at| at.failed = Some(reason.to_owned()));
    }

    pub fn closed(&self) {
        drop(self.stop(Error::Closed));
    }
}
