//! From an open disk to ready, and what is kept up from then on: membership on disk, the join, the copies.

use crate::{
    admin::Facts,
    disk::{Disk, FORMAT, READABLE},
    links::{HELLO, HELLO_DEADLINE, Hello},
};
use segmentry_meta::{MetaStore, RaftMeta};
use segmentry_replication::Replication;
use segmentry_state::{ClusterState, Node as Member};
use segmentry_vfs::Vfs;
use segmentry_wire::{Client, Identity, Peer};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Between hellos while a member has a foreign format.
const HELLO_PAUSE: Duration = Duration::from_secs(1);

/// Records on disk which cluster this node belongs to, as soon as the cluster state says it; before any call carries it.
pub(crate) async fn membership(
    disk: Disk,
    fs: Arc<dyn Vfs>,
    raft: Arc<RaftMeta>,
    identity: Identity,
    stop: CancellationToken,
    recorded: watch::Sender<bool>,
    fail: watch::Sender<Option<String>>,
) {
    let mut watch = raft.watch();
    let mut disk = disk;
    loop {
        let uuid = watch.borrow_and_update().cluster_uuid;
        if let Some(uuid) = uuid
            && disk.cluster_uuid() != Some(uuid)
        {
            let fs = Arc::clone(&fs);
            let recorded = tokio::task::spawn_blocking(move || {
                let outcome = disk.set_cluster(&fs, Some(uuid));
                (disk, outcome)
            })
            .await;
            match recorded {
                Ok((back, Ok(()))) => {
                    disk = back;
                    tracing::info!(cluster = %uuid, "this node belongs to a cluster");
                }
                Ok((_, Err(error))) => {
                    tracing::error!(%error, "membership cannot be recorded");
                    fail.send_replace(Some(error.to_string()));
                    return;
                }
                Err(error) => {
                    fail.send_replace(Some(error.to_string()));
                    return;
                }
            }
        }
        if uuid.is_some() {
            identity.cluster_uuid.set(uuid);
            recorded.send_replace(true);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = watch.changed() => if changed.is_err() { return },
        }
    }
}

/// From the disk to ready: hello to the members, join, open the copies, stay joined.
pub(crate) async fn follow(
    meta: Arc<dyn MetaStore>,
    own: Member,
    client: Client,
    facts: Facts,
    replication: Arc<Replication>,
    mut recorded: watch::Receiver<bool>,
    stop: CancellationToken,
) {
    let mut watch = meta.watch();
    let member = |state: &ClusterState| state.nodes.contains_key(&own.id);
    tokio::select! {
        () = stop.cancelled() => return,
        formed = watch.wait_for(|state| member(state)) => if formed.is_err() { return },
    }
    // Calls between copies carry the cluster's uuid: none is made before the disk says to which cluster its data belongs.
    tokio::select! {
        () = stop.cancelled() => return,
        known = recorded.wait_for(|recorded| *recorded) => if known.is_err() { return },
    }
    let greeting = greet(&meta, &own, &client, &facts);
    tokio::select! {
        () = stop.cancelled() => return,
        () = greeting => {}
    }
    let joined = segmentry_manager::keep_joined(Arc::clone(&meta), own.clone(), stop.cancelled());
    let opening = async {
        replication.opened().await;
        facts.progress.opened.store(true, Ordering::Release);
        tracing::info!("all copies that the cluster state lists here are open");
    };
    let applying = replication.follow(stop.cancelled());
    tokio::join!(joined, applying, async {
        tokio::select! {
            () = opening => {}
            () = stop.cancelled() => {}
        }
    });
}

/// Says hello to every other member: they learn this node's address, and it learns their data formats. Comes back once no
/// member that answers has a format that does not go together with this program's; members that do not answer are not
/// waited for, but hear the hello when they come up and say their own.
async fn greet(meta: &Arc<dyn MetaStore>, own: &Member, client: &Client, facts: &Facts) {
    loop {
        let state = meta.current();
        let mut foreign = false;
        for node in state.nodes.values().filter(|node| node.id != own.id) {
            let answer = client
                .call::<_, Hello>(
                    &Peer::node(node),
                    HELLO,
                    &Hello { node: own.clone() },
                    HELLO_DEADLINE,
                )
                .await;
            match answer {
                Ok(hello) => {
                    facts
                        .raft
                        .learn_address(hello.node.id, hello.node.address.clone());
                    let fits = hello.node.formats_readable.contains(&FORMAT)
                        && READABLE.contains(&hello.node.format_written);
                    if !fits {
                        tracing::warn!(
                            node = hello.node.name,
                            format = hello.node.format_written,
                            "a live member has another data format, waiting before the data is opened"
                        );
                        foreign = true;
                    }
                }
                Err(error) => tracing::info!(node = node.name, %error, "a member did not answer to hello"),
            }
        }
        facts.progress.foreign_format.store(foreign, Ordering::Release);
        if !foreign {
            return;
        }
        tokio::time::sleep(HELLO_PAUSE).await;
    }
}
