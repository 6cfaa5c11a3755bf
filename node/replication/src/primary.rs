//! The owner of what one activation of a primary runs: a stream to each other copy, and notices of its checkpoints (SEGMENT).

use crate::{
    applier::Inner,
    protocol::{CALL_DEADLINE, CHECKPOINT, Notice, call},
    stream::{Stream, follow_state, which},
};
use futures::future::join_all;
use parking_lot::Mutex;
use segmentry_settings::ReplicationType;
use segmentry_shard::{Role, ShardCopy};
use segmentry_state::{AllocationId, ClusterState, NodeId};
use segmentry_translog::Pin;
use segmentry_wire::Peer;
use std::{collections::HashMap, sync::Arc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::debug;

struct Running {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

/// See the module.
pub(crate) struct Primary {
    inner: Arc<Inner>,
    copy: Arc<ShardCopy>,
    term: u64,
    streams: Mutex<HashMap<AllocationId, Running>>,
    publisher: Mutex<Option<JoinHandle<()>>>,
    stop: CancellationToken,
}

impl Primary {
    /// Starts with the streams to the in-sync copies.
    pub fn start(inner: Arc<Inner>, copy: Arc<ShardCopy>, term: u64, state: &ClusterState) -> Arc<Self> {
        let primary = Arc::new(Self {
            inner,
            copy,
            term,
            streams: Mutex::default(),
            publisher: Mutex::default(),
            stop: CancellationToken::new(),
        });
        primary.follow(state);
        if primary.copy.index().settings.replication_type == ReplicationType::Segment {
            let publishing = publish(Arc::clone(&primary.inner), Arc::clone(&primary.copy), term);
            let stop = primary.stop.clone();
            let task = primary.inner.data.spawn(async move {
                tokio::select! {
                    () = publishing => {}
                    () = stop.cancelled() => {}
                }
            });
            *primary.publisher.lock() = Some(task);
        }
        primary
    }

    pub fn term(&self) -> u64 {
        self.term
    }

    /// What the cluster state says of this shard.
    pub fn follow(&self, state: &ClusterState) {
        let Some(shard) = state
            .shard(self.copy.shard())
            .filter(|shard| shard.term == self.term)
        else {
            return;
        };
        follow_state(&self.copy, self.term, state);
        self.streams.lock().retain(|allocation, running| {
            let listed = shard.copy(*allocation).is_some();
            if !listed {
                running.stop.cancel();
            }
            // An ended task has nothing left to join for.
            listed && !running.task.is_finished()
        });
        for copy in shard
            .in_sync_copies()
            .filter(|copy| copy.allocation != self.copy.allocation())
        {
            self.stream(copy.allocation, copy.node, false, None);
        }
    }

    /// A copy is complete and takes operations from now on.
    pub fn ready(&self, allocation: AllocationId, node: NodeId, in_sync: bool, pin: Option<Pin>) {
        if !in_sync {
            self.copy.track(allocation);
        }
        self.stream(allocation, node, !in_sync, pin);
    }

    fn stream(&self, allocation: AllocationId, node: NodeId, joining: bool, pin: Option<Pin>) {
        let mut streams = self.streams.lock();
        if self.stop.is_cancelled()
            || streams
                .get(&allocation)
                .is_some_and(|running| !running.task.is_finished())
        {
            return;
        }
        let stop = self.stop.child_token();
        let stream = Stream {
            inner: Arc::clone(&self.inner),
            copy: Arc::clone(&self.copy),
            term: self.term,
            which: which(&self.copy, allocation),
            node,
            joining,
            pin,
            asked: tokio::time::Instant::now(),
        };
        let task = self.inner.data.spawn(stream.run(stop.clone()));
        streams.insert(allocation, Running { task, stop });
    }

    /// Ends all of it.
    pub async fn stop(&self) {
        self.stop.cancel();
        let mut tasks: Vec<JoinHandle<()>> = self
            .streams
            .lock()
            .drain()
            .map(|(_, running)| running.task)
            .collect();
        tasks.extend(self.publisher.lock().take());
        for outcome in join_all(tasks).await {
            if let Err(error) = outcome {
                tracing::error!(shard = %self.copy.shard(), %error, "a task of a primary ended abnormally");
            }
        }
    }
}

/// Tells the other copies of each new checkpoint. A copy that does not hear of one asks by itself.
async fn publish(inner: Arc<Inner>, copy: Arc<ShardCopy>, term: u64) {
    let mut published = copy.watch_published();
    while copy.role() == (Role::Primary { term }) {
        let meta_version = *published.borrow_and_update();
        let state = inner.meta.current();
        let peers: Vec<(AllocationId, Peer)> = state
            .shard(copy.shard())
            .into_iter()
            .flat_map(|shard| shard.copies.iter())
            .filter(|other| other.allocation != copy.allocation() && state.is_alive(other.node))
            .filter_map(|other| Some((other.allocation, Peer::process(state.node(other.node)?))))
            .collect();
        let notices = peers.into_iter().map(|(allocation, peer)| {
            let (client, copy) = (inner.client.clone(), &copy);
            async move {
                let notice = Notice {
                    which: which(copy, allocation),
                    term,
                    meta_version,
                };
                let told: Result<(), _> = call(&client, &peer, CHECKPOINT, &notice, CALL_DEADLINE).await;
                if let Err(error) = told {
                    debug!(shard = %copy.shard(), %allocation, %error, "a copy was not told of a checkpoint");
                }
            }
        });
        join_all(notices).await;
        if published.changed().await.is_err() {
            return;
        }
    }
}
