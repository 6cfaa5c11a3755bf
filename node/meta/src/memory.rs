//! [`MemoryMeta`]: the cluster state in memory, for tests of rooms that only need a [`MetaStore`].

use crate::{Leadership, MetaFuture, MetaStore, ProposeError, ReadError};
use parking_lot::Mutex;
use segmentry_state::{Change, ClusterState, NodeId, Refusal};
use std::{collections::VecDeque, sync::Arc};
use tokio::sync::watch;

/// One cluster state in memory; every clone of the `Arc` that holds it is another "node". Faults can be injected.
pub struct MemoryMeta {
    inner: Mutex<Inner>,
    state: watch::Sender<Arc<ClusterState>>,
    leadership: watch::Sender<Leadership>,
}

#[derive(Default)]
struct Inner {
    faults: VecDeque<(ProposeError, bool)>,
    proposed: Vec<Change>,
}

impl MemoryMeta {
    /// A store that holds `state`, led by `leader` (this very "node").
    pub fn new(state: ClusterState, leader: NodeId) -> Self {
        Self {
            inner: Mutex::new(Inner::default()),
            state: watch::Sender::new(Arc::new(state)),
            leadership: watch::Sender::new(Leadership {
                leader: Some(leader),
                term: 1,
                local: true,
            }),
        }
    }

    /// The next proposal fails with `error`. With `applied`, the Change is applied all the same (an answer that was lost).
    pub fn fail_next(&self, error: ProposeError, applied: bool) {
        self.inner.lock().faults.push_back((error, applied));
    }

    /// Changes who leads.
    pub fn set_leadership(&self, leadership: Leadership) {
        self.leadership.send_replace(leadership);
    }

    /// Every Change that was proposed so far, also refused ones.
    pub fn proposed(&self) -> Vec<Change> {
        self.inner.lock().proposed.clone()
    }

    /// Applies one Change at once.
    ///
    /// # Errors
    /// As [`ClusterState::apply`], or an injected fault.
    pub fn apply(&self, change: Change) -> Result<Arc<ClusterState>, ProposeError> {
        let mut inner = self.inner.lock();
        inner.proposed.push(change.clone());
        let fault = inner.faults.pop_front();
        if let Some((error, false)) = fault {
            return Err(error);
        }
        let mut next = ClusterState::clone(&self.state.borrow());
        let outcome = next.apply(change);
        let next = Arc::new(next);
        self.state.send_replace(Arc::clone(&next));
        drop(inner);
        match fault {
            Some((error, _)) => Err(error),
            None => outcome.map(|()| next).map_err(ProposeError::Refused),
        }
    }
}

impl MetaStore for MemoryMeta {
    fn current(&self) -> Arc<ClusterState> {
        Arc::clone(&self.state.borrow())
    }

    fn watch(&self) -> watch::Receiver<Arc<ClusterState>> {
        self.state.subscribe()
    }

    fn read(&self) -> MetaFuture<'_, Result<Arc<ClusterState>, ReadError>> {
        Box::pin(async { Ok(self.current()) })
    }

    fn propose(&self, change: Change) -> MetaFuture<'_, Result<Arc<ClusterState>, ProposeError>> {
        Box::pin(async move { self.apply(change) })
    }

    fn propose_all(
        &self,
        changes: Vec<Change>,
    ) -> MetaFuture<'_, Result<Vec<Result<(), Refusal>>, ProposeError>> {
        Box::pin(async move {
            let mut results = Vec::with_capacity(changes.len());
            for change in changes {
                match self.apply(change) {
                    Ok(_) => results.push(Ok(())),
                    Err(ProposeError::Refused(refusal)) => results.push(Err(refusal)),
                    Err(other) => return Err(other),
                }
            }
            Ok(results)
        })
    }

    fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }
}
