//! The primary's side of recovery and of checkpoints: held files, and their stream.

use crate::{
    applier::Inner,
    protocol::{FilesRequest, NOT_HERE, PinRequest, Pinned, Ready, Which},
};
use bytes::Bytes;
use futures::{Stream, stream};
use parking_lot::Mutex;
use segmentry_engine::PinnedCheckpoint;
use segmentry_shard::{Role, ShardCopy};
use segmentry_state::{AllocationId, NodeId, ShardId};
use segmentry_translog::Pin;
use segmentry_vfs::VfsFile;
use segmentry_wire::RemoteError;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::info;
use uuid::Uuid;

/// A pin that is not used for this long ends.
const PIN_IDLE: Duration = Duration::from_secs(120);
/// Bytes of one chunk.
const CHUNK: usize = 256 << 10;

struct Held {
    which: Which,
    checkpoint: Arc<PinnedCheckpoint>,
    /// Operations behind the checkpoint, for a copy that is being built.
    log: Option<Pin>,
    touched: Arc<Mutex<Instant>>,
}

/// Checkpoints of this node's primaries that other nodes are fetching.
#[derive(Default)]
pub(crate) struct Source {
    held: Mutex<HashMap<Uuid, Held>>,
}

fn not_here(reason: impl std::fmt::Display) -> RemoteError {
    RemoteError::new(503, NOT_HERE, reason.to_string())
}

impl Source {
    /// Ends pins that nobody uses.
    pub fn expire(&self) {
        self.held.lock().retain(|pin, held| {
            let used = held.touched.lock().elapsed() < PIN_IDLE;
            if !used {
                info!(%pin, shard = %held.which.shard, "a held checkpoint was not fetched in time, it is released");
            }
            used
        });
    }

    pub fn unpin(&self, pin: Uuid) {
        self.held.lock().remove(&pin);
    }

    /// Releases what was held for copies of a shard.
    pub fn release(&self, shard: ShardId) {
        self.held.lock().retain(|_, held| held.which.shard != shard);
    }

    /// Takes the log pin of a copy that was built.
    fn take_log(&self, allocation: AllocationId) -> Option<Pin> {
        let mut held = self.held.lock();
        let pin = held
            .values_mut()
            .find(|held| held.which.allocation == allocation && held.log.is_some())?
            .log
            .take();
        held.retain(|_, held| held.which.allocation != allocation);
        pin
    }
}

fn primary(inner: &Inner, shard: ShardId, term: u64) -> Result<Arc<ShardCopy>, RemoteError> {
    let copy = inner
        .shards
        .get(shard)
        .ok_or_else(|| not_here(format_args!("no copy of [{shard}] is open here")))?;
    if copy.role() == (Role::Primary { term }) {
        Ok(copy)
    } else {
        Err(not_here(format_args!(
            "the copy of [{shard}] here is not primary in term {term}: {:?}",
            copy.role()
        )))
    }
}

/// Holds the newest checkpoint for a copy.
pub(crate) async fn pin(inner: &Arc<Inner>, request: PinRequest) -> Result<Pinned, RemoteError> {
    let PinRequest {
        which,
        term,
        recovery,
        have,
    } = request;
    let copy = primary(inner, which.shard, term)?;
    let holding = tokio::task::spawn_blocking(move || {
        // The log first: nothing that is behind the checkpoint may go between the two.
        let next = copy.engine().commit_info().max_seq_no.map_or(0, |max| max + 1);
        let log = recovery.then(|| copy.pin_log(next));
        (log, copy.engine().pin_checkpoint())
    });
    let (log, checkpoint) = holding
        .await
        .map_err(|error| RemoteError::internal(error.to_string()))?;
    if have == Some(checkpoint.checkpoint().meta_version) {
        return Ok(Pinned { pin: None });
    }
    let content = checkpoint.checkpoint().clone();
    let pin = Uuid::new_v4();
    let mut held = inner.source.held.lock();
    if recovery {
        // One attempt at a time for one copy.
        held.retain(|_, held| held.which.allocation != which.allocation);
    }
    let touched = Arc::new(Mutex::new(Instant::now()));
    held.insert(
        pin,
        Held {
            which,
            checkpoint: Arc::new(checkpoint),
            log,
            touched,
        },
    );
    Ok(Pinned {
        pin: Some((pin, content)),
    })
}

/// The bytes of held files, in the order asked for.
pub(crate) fn files(
    inner: &Inner,
    request: FilesRequest,
) -> Result<impl Stream<Item = Result<Bytes, RemoteError>> + Send + 'static + use<>, RemoteError> {
    let (checkpoint, touched) = {
        let held = inner.source.held.lock();
        let held = held
            .get(&request.pin)
            .ok_or_else(|| not_here("the pin of this checkpoint has ended"))?;
        (Arc::clone(&held.checkpoint), Arc::clone(&held.touched))
    };
    let begin = Sending {
        checkpoint,
        touched,
        names: request.names.into(),
        open: None,
    };
    Ok(stream::try_unfold(begin, |sending| async move {
        let next = tokio::task::spawn_blocking(move || sending.next()).await;
        next.map_err(|error| RemoteError::internal(error.to_string()))?
    }))
}

struct Sending {
    checkpoint: Arc<PinnedCheckpoint>,
    touched: Arc<Mutex<Instant>>,
    names: VecDeque<String>,
    open: Option<(Box<dyn VfsFile>, u64)>,
}

impl Sending {
    fn next(mut self) -> Result<Option<(Bytes, Self)>, RemoteError> {
        *self.touched.lock() = Instant::now();
        let internal = |error: &dyn std::fmt::Display| RemoteError::internal(error.to_string());
        loop {
            let (file, at) = match self.open.take() {
                Some(open) => open,
                None => match self.names.pop_front() {
                    Some(name) => (self.checkpoint.open(&name).map_err(|error| internal(&error))?, 0),
                    None => return Ok(None),
                },
            };
            let mut chunk = vec![0; CHUNK];
            let count = file.read_at(&mut chunk, at).map_err(|error| internal(&error))?;
            if count == 0 {
                continue;
            }
            chunk.truncate(count);
            self.open = Some((file, at + count as u64));
            return Ok(Some((Bytes::from(chunk), self)));
        }
    }
}

/// A copy is complete: its log is continued from now on.
pub(crate) fn ready(inner: &Arc<Inner>, node: NodeId, ready: Ready) -> Result<(), RemoteError> {
    let Ready { which, term } = ready;
    primary(inner, which.shard, term)?;
    let state = inner.meta.current();
    let listed = state
        .shard(which.shard)
        .and_then(|shard| Some((shard.copy(which.allocation)?.node, shard)));
    let Some((listed_on, shard)) = listed else {
        return Err(not_here(format_args!(
            "copy [{}] is not listed",
            which.allocation
        )));
    };
    if listed_on != node {
        return Err(not_here(format_args!(
            "copy [{}] is listed on another node",
            which.allocation
        )));
    }
    let running = inner
        .primary(which.shard)
        .filter(|primary| primary.term() == term)
        .ok_or_else(|| not_here("the primary is not ready"))?;
    let pin = inner.source.take_log(which.allocation);
    running.ready(which.allocation, node, shard.is_in_sync(which.allocation), pin);
    Ok(())
}
