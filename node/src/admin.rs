//! What this node says of itself, and what only it can do for the operator.

use crate::disk::{Disk, FORMAT, READABLE};
use futures::future::BoxFuture;
use segmentry_coordinator::ApiError;
use segmentry_meta::{MetaStore, RaftMeta, raft::MemberError};
use segmentry_rest::{NodeFacts, admin::NodeAdmin};
use segmentry_settings::admin::{Initialise, Member, NodeStatus, ReplaceMember, Reset};
use segmentry_state::{Node, NodeId};
use segmentry_vfs::Vfs;
use segmentry_wire::Identity;
use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// Program version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How far the start of the node has come.
#[derive(Debug, Default)]
pub struct Progress {
    /// All copies that the cluster state puts here were opened, or failed with a report; latches.
    pub opened: AtomicBool,
    /// A live member has a data format that does not go together with this program's.
    pub foreign_format: AtomicBool,
}

/// The node as the operator and the probes see it.
#[derive(Clone)]
pub struct Facts {
    pub(crate) identity: Identity,
    pub(crate) raft: Arc<RaftMeta>,
    pub(crate) fs: Arc<dyn Vfs>,
    pub(crate) root: PathBuf,
    pub(crate) disk_id: Option<String>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) cluster_name: String,
    /// Where Raft's calls run.
    pub(crate) metadata: Handle,
    /// Ends the process, so that its runtime starts it again.
    pub(crate) restart: CancellationToken,
}

impl Facts {
    fn formed(&self) -> bool {
        let state = self.raft.current();
        state.cluster_uuid.is_some() && !state.nodes.is_empty()
    }
}

impl NodeFacts for Facts {
    fn ready(&self) -> bool {
        self.progress.opened.load(Ordering::Acquire)
    }

    fn waiting_for(&self) -> Option<String> {
        if let Some(why) = self.raft.failed() {
            return Some(format!("metadata_failed: {why}"));
        }
        if self.progress.foreign_format.load(Ordering::Acquire) {
            return Some("foreign_format".into());
        }
        if !self.formed() {
            let recorded = self.identity.cluster_uuid.get().is_some();
            return Some(
                if recorded {
                    "no_quorum"
                } else {
                    "waiting_for_initialise"
                }
                .into(),
            );
        }
        if !self.ready() {
            return Some("opening_copies".into());
        }
        self.raft.leader().is_none().then(|| "no_quorum".into())
    }

    fn version(&self) -> &'static str {
        VERSION
    }

    fn cluster_name(&self) -> String {
        self.cluster_name.clone()
    }
}

impl NodeAdmin for Facts {
    fn status(&self) -> NodeStatus {
        let state = self.raft.current();
        let indices_on_disk = Disk::indices_on_disk(&self.fs, &self.root);
        let leader = self
            .raft
            .leader()
            .and_then(|id| state.node(id))
            .map(|node| node.name.clone());
        NodeStatus {
            name: self.identity.name.clone(),
            node_id: self.identity.node_id.to_string(),
            boot_id: self.identity.boot_id.to_string(),
            version: VERSION.to_owned(),
            format_written: FORMAT,
            formats_readable: READABLE.to_vec(),
            cluster_uuid: self.identity.cluster_uuid.get().map(|uuid| uuid.to_string()),
            formed: self.formed(),
            empty: self.raft.is_empty() && indices_on_disk == 0,
            indices_on_disk,
            disk_id: self.disk_id.clone(),
            leader,
            opened: self.ready(),
            waiting_for: self.waiting_for(),
        }
    }

    fn initialise(&self, request: Initialise) -> BoxFuture<'static, Result<NodeStatus, ApiError>> {
        let own = self.clone();
        Box::pin(async move {
            let uuid = request
                .cluster_uuid
                .parse()
                .map_err(|_| ApiError::illegal(format!("[{}] is not a uuid", request.cluster_uuid)))?;
            if let Some(known) = own.identity.cluster_uuid.get()
                && known != uuid
            {
                return Err(foreign(known));
            }
            let members: Vec<Node> = request.members.iter().map(member).collect::<Result<_, _>>()?;
            let raft = Arc::clone(&own.raft);
            let name = request.cluster_name;
            let forming = own
                .metadata
                .spawn(async move { raft.initialise(uuid, name, members).await });
            match forming.await {
                Ok(Ok(_)) => Ok(own.status()),
                Ok(Err(error)) => Err(refused(error)),
                Err(error) => Err(ApiError::new(
                    500,
                    "internal_error",
                    format!("formation ended abnormally: {error}"),
                )),
            }
        })
    }

    fn reset(&self, request: Reset) -> BoxFuture<'static, Result<NodeStatus, ApiError>> {
        let own = self.clone();
        Box::pin(async move {
            let state = own.raft.current();
            if let Some(known) = own.identity.cluster_uuid.get()
                && known.to_string() != request.cluster_uuid
            {
                return Err(foreign(known));
            }
            if !state.indices.is_empty() || Disk::indices_on_disk(&own.fs, &own.root) > 0 {
                return Err(ApiError::new(
                    409,
                    "not_empty",
                    "this node holds indices, it is not reset",
                ));
            }
            if own.raft.is_empty() && own.identity.cluster_uuid.get().is_none() {
                return Ok(own.status());
            }
            // Raft cannot be forgotten under its feet: the next start does it, and this process ends for that.
            let (fs, root) = (Arc::clone(&own.fs), own.root.clone());
            let marked = tokio::task::spawn_blocking(move || Disk::mark_reset(&fs, &root)).await;
            match marked {
                Ok(Ok(())) => {
                    tracing::warn!("reset: this process ends, the next one starts without a cluster");
                    own.restart.cancel();
                    Ok(own.status())
                }
                Ok(Err(error)) => Err(ApiError::new(500, "reset_failed", error.to_string())),
                Err(error) => Err(ApiError::new(
                    500,
                    "internal_error",
                    format!("reset ended abnormally: {error}"),
                )),
            }
        })
    }

    fn replace(&self, epoch: u64, request: ReplaceMember) -> BoxFuture<'static, Result<(), ApiError>> {
        let own = self.clone();
        Box::pin(async move {
            let lost: NodeId = request
                .lost_node_id
                .parse()
                .map_err(|_| ApiError::illegal(format!("[{}] is not a node id", request.lost_node_id)))?;
            let node = member(&request.member)?;
            let raft = Arc::clone(&own.raft);
            let replacing = own
                .metadata
                .spawn(async move { raft.replace(epoch, lost, node).await });
            match replacing.await {
                Ok(outcome) => outcome.map_err(refused),
                Err(error) => Err(ApiError::new(
                    500,
                    "internal_error",
                    format!("replacement ended abnormally: {error}"),
                )),
            }
        })
    }
}

fn foreign(known: uuid::Uuid) -> ApiError {
    ApiError::new(
        409,
        "foreign_cluster",
        format!("this node belongs to cluster [{known}]"),
    )
}

fn refused(error: MemberError) -> ApiError {
    match error {
        MemberError::Refused(refusal) => refusal.into(),
        error @ MemberError::OtherMembers(_) => ApiError::new(409, "other_members", error.to_string()),
        error @ MemberError::NoQuorum(_) => ApiError::new(503, "no_quorum", error.to_string()),
        error @ MemberError::NotCaughtUp(_) => ApiError::new(503, "not_caught_up", error.to_string()),
    }
}

/// A member before its first hello: where it is, and nothing about its process.
fn member(member: &Member) -> Result<Node, ApiError> {
    let id = member
        .node_id
        .parse()
        .map_err(|_| ApiError::illegal(format!("[{}] is not a node id", member.node_id)))?;
    Ok(Node {
        id,
        name: member.name.clone(),
        address: member.address.clone(),
        rest_address: String::new(),
        boot_id: None,
        alive: false,
        version: String::new(),
        format_written: FORMAT,
        formats_readable: BTreeSet::new(),
        disk_id: member.disk_id.clone(),
    })
}
