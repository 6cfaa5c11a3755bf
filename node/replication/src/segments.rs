//! A replica of SEGMENT follows the checkpoints of its primary.
//!
//! One task a copy. It fetches when it is told of a checkpoint, when somebody asks for the newest, and by itself every few seconds. A
//! checkpoint is installed once the mapping that it needs is known, its files are here, and the copy's log has reached its last
//! operation.

use crate::{
    applier::Inner,
    protocol::{CALL_DEADLINE, PIN, PinRequest, Pinned, UNPIN, Which, call},
    recovery::{RecoveryError, receive, wait_for_mapping},
};
use segmentry_settings::ReplicationType;
use segmentry_shard::{CopyError, Role, ShardCopy};
use segmentry_wire::Peer;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tracing::{debug, warn};

/// A copy looks by itself this often.
const LOOK: Duration = Duration::from_secs(5);
/// After a failed attempt, doubled with each further one.
const AGAIN: Duration = Duration::from_millis(50);
/// How long the log may take to reach a checkpoint.
const LOG: Duration = Duration::from_secs(30);

type Asked = oneshot::Sender<Result<(), String>>;

/// Handle of the task.
pub(crate) struct Segments {
    ask: mpsc::Sender<Option<Asked>>,
    task: JoinHandle<()>,
}

impl Segments {
    pub fn start(inner: Arc<Inner>, copy: Arc<ShardCopy>) -> Self {
        let (ask, asked) = mpsc::channel(64);
        let task = inner.data.clone().spawn(run(inner, copy, asked));
        Self { ask, task }
    }

    pub fn door(&self) -> mpsc::Sender<Option<Asked>> {
        self.ask.clone()
    }

    pub async fn stop(self) {
        let Self { ask, task } = self;
        drop(ask);
        task.abort();
        if let Err(error) = task.await
            && !error.is_cancelled()
        {
            tracing::error!(%error, "the task of a replica ended abnormally");
        }
    }
}

async fn run(inner: Arc<Inner>, copy: Arc<ShardCopy>, mut asked: mpsc::Receiver<Option<Asked>>) {
    let mut wait = Duration::ZERO;
    let mut again = AGAIN;
    loop {
        let mut waiting: Vec<Asked> = Vec::new();
        tokio::select! {
            first = asked.recv() => match first {
                Some(first) => waiting.extend(first),
                None => return,
            },
            () = tokio::time::sleep(wait) => {}
        }
        while let Ok(more) = asked.try_recv() {
            waiting.extend(more);
        }
        let outcome = fetch(&inner, &copy).await;
        wait = match &outcome {
            Ok(()) => {
                again = AGAIN;
                LOOK
            }
            Err(error) => {
                debug!(shard = %copy.shard(), %error, "the newest checkpoint is not here yet");
                again = (again * 2).min(LOOK);
                again
            }
        };
        for asked in waiting {
            // Who gave up waiting needs no answer.
            drop(asked.send(outcome.as_ref().copied().map_err(ToString::to_string)));
        }
    }
}

/// The primary's process and term, as the cluster state has them.
fn primary(inner: &Inner, copy: &ShardCopy) -> Result<(Peer, u64), RecoveryError> {
    let state = inner.meta.current();
    let shard = state.shard(copy.shard());
    match (state.primary_node(copy.shard()), shard) {
        (Some(node), Some(shard)) if shard.started => Ok((Peer::process(node), shard.term)),
        _ => Err(RecoveryError::Other("the shard has no active primary".to_owned())),
    }
}

async fn fetch(inner: &Arc<Inner>, copy: &Arc<ShardCopy>) -> Result<(), RecoveryError> {
    if !matches!(copy.role(), Role::Replica { .. }) {
        return Ok(());
    }
    let (peer, term) = primary(inner, copy)?;
    let which = Which {
        shard: copy.shard(),
        allocation: copy.allocation(),
    };
    let have = Some(copy.engine().meta_versions().0);
    let request = PinRequest {
        which,
        term,
        recovery: false,
        have,
    };
    let pinned: Pinned = call(&inner.client, &peer, PIN, &request, CALL_DEADLINE).await?;
    let Some((pin, checkpoint)) = pinned.pin else {
        return Ok(());
    };
    let max = checkpoint.payload.max_seq_no;
    if max < copy.engine().commit_info().max_seq_no {
        // A new primary indexes behind: what a search saw once it goes on seeing.
        call::<_, ()>(&inner.client, &peer, UNPIN, &pin, CALL_DEADLINE).await?;
        return Err(RecoveryError::Other(format!(
            "the primary's checkpoint ends at {max:?}, before the installed one"
        )));
    }
    wait_for_mapping(copy, checkpoint.payload.mapping_version).await?;
    let moved = receive(inner, copy, &peer, pin, &checkpoint, false).await?;
    let mut last = copy.watch_last();
    let reached = async { last.wait_for(|(last, _)| *last >= max).await.is_ok() };
    if tokio::time::timeout(LOG, reached).await != Ok(true) {
        return Err(RecoveryError::Other(format!(
            "the log did not reach operation {max:?} of the checkpoint"
        )));
    }
    // An operation that the primary's commit holds is on every in-sync copy, and counts here as well.
    copy.learn_checkpoint(term, max);
    let version = checkpoint.meta_version;
    match copy.install(checkpoint).await {
        Ok(_) => {
            debug!(shard = %copy.shard(), version, fetched = moved.fetched, bytes = moved.bytes, "checkpoint installed");
            Ok(())
        }
        Err(error) => {
            warn!(shard = %copy.shard(), version, %error, "a checkpoint was not installed");
            Err(error.into())
        }
    }
}

/// True for a replica that follows checkpoints.
pub(crate) fn follows_segments(copy: &ShardCopy) -> bool {
    copy.index().settings.replication_type == ReplicationType::Segment
        && !matches!(copy.role(), Role::Primary { .. })
}

impl Inner {
    /// Brings the primary's newest checkpoint to a replica of SEGMENT.
    pub(crate) async fn fetch_newest(&self, copy: &Arc<ShardCopy>) -> Result<(), CopyError> {
        let unusable = |reason: String| CopyError::Unusable(reason);
        let door = self
            .segments_door(copy.shard())
            .ok_or_else(|| unusable("the copy does not follow checkpoints yet".to_owned()))?;
        let (reply, answer) = oneshot::channel();
        let gone = || unusable("the copy was closed".to_owned());
        door.send(Some(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?.map_err(unusable)
    }
}
