//! A node announces its process start, and sees to it that the cluster state keeps saying so.

use segmentry_meta::{MetaStore, ProposeError};
use segmentry_state::{Change, ClusterState, Node};
use std::{future::Future, sync::Arc, time::Duration};
use tracing::{info, warn};

/// Between attempts, unless the state changes before.
const PAUSE: Duration = Duration::from_millis(500);

/// True where the state says what a join would make it say.
fn recorded(state: &ClusterState, node: &Node) -> bool {
    let Some(known) = state.node(node.id) else {
        return false;
    };
    // A node that does not know its volume leaves what is recorded of it.
    let disk_id = node.disk_id.as_ref().or(known.disk_id.as_ref()).cloned();
    *known
        == Node {
            disk_id,
            ..node.clone()
        }
}

/// Proposes `NodeJoined` until it is applied. Waits while the cluster is not formed, has no quorum, or does not count the
/// node among its members (it may be taken in later); the caller bounds it by dropping it.
///
/// `node` must hold this process's boot id; it is announced as alive.
pub async fn join(meta: &dyn MetaStore, mut node: Node) {
    node.alive = true;
    let mut states = meta.watch();
    let mut last_error = String::new();
    loop {
        let state = Arc::clone(&states.borrow_and_update());
        if recorded(&state, &node) {
            return;
        }
        if state.nodes.contains_key(&node.id) {
            match meta.propose(Change::NodeJoined { node: node.clone() }).await {
                Ok(_) => {
                    info!(node = node.name, boot_id = ?node.boot_id, "joined the cluster");
                    return;
                }
                Err(error) => {
                    let text = error.to_string();
                    if text != last_error {
                        warn!(node = node.name, error = text, "cannot join yet");
                        last_error = text;
                    }
                    // A verdict of the state does not change before the state does.
                    if !matches!(error, ProposeError::Refused(_)) {
                        continue;
                    }
                }
            }
        }
        // Elapsed or changed both mean: look again. A closed channel means a shutdown, which the caller sees too.
        let _ = tokio::time::timeout(PAUSE, states.changed()).await;
    }
}

/// Joins, and joins again whenever the cluster state says otherwise (a silence that was taken for a loss, a late join of an
/// earlier process), until `shutdown`.
pub async fn keep_joined(
    meta: Arc<dyn MetaStore>,
    mut node: Node,
    shutdown: impl Future<Output = ()> + Send,
) {
    node.alive = true;
    let mut states = meta.watch();
    let joining = async {
        loop {
            join(meta.as_ref(), node.clone()).await;
            if states
                .wait_for(|s| s.nodes.contains_key(&node.id) && !recorded(s, &node))
                .await
                .is_err()
            {
                return;
            }
        }
    };
    tokio::select! {
        () = joining => {}
        () = shutdown => {}
    }
}
