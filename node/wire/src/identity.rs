//! Who speaks, and to whom.

use arc_swap::ArcSwapOption;
use segmentry_state::{BootId, Node, NodeId};
use std::{fmt, sync::Arc};
use uuid::Uuid;

/// The secret that all nodes and the operator share. Never printed.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl Token {
    /// From the text of the token file; surrounding white space is not part of it.
    pub fn new(text: &str) -> Self {
        Self(Arc::from(text.trim()))
    }

    /// True where the file held nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As an `Authorization` header's value.
    pub fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Compares in time that depends on the lengths only, so that the token cannot be guessed byte by byte.
    pub fn accepts(&self, authorization: Option<&str>) -> bool {
        let Some(given) = authorization.and_then(|value| value.strip_prefix("Bearer ")) else {
            return false;
        };
        let (given, known) = (given.as_bytes(), self.0.as_bytes());
        if given.len() != known.len() || known.is_empty() {
            return false;
        }
        let difference = given.iter().zip(known).fold(0_u8, |sum, (left, right)| {
            std::hint::black_box(sum | (left ^ right))
        });
        difference == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(..)")
    }
}

/// The cluster uuid of this node, shared by all rooms; empty until the node belongs to a cluster.
#[derive(Debug, Clone, Default)]
pub struct ClusterCell(Arc<ArcSwapOption<Uuid>>);

impl ClusterCell {
    /// A cell that holds `uuid`.
    pub fn new(uuid: Option<Uuid>) -> Self {
        Self(Arc::new(ArcSwapOption::from_pointee(uuid)))
    }

    /// What it holds now.
    pub fn get(&self) -> Option<Uuid> {
        self.0.load().as_deref().copied()
    }

    /// From now on every call carries and expects `uuid`.
    pub fn set(&self, uuid: Option<Uuid>) {
        self.0.store(uuid.map(Arc::new));
    }
}

/// This process.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Id of the data directory.
    pub node_id: NodeId,
    /// Stable name.
    pub name: String,
    /// Id of this process start.
    pub boot_id: BootId,
    /// Shared secret.
    pub token: Token,
    /// The cluster that this node belongs to.
    pub cluster_uuid: ClusterCell,
}

/// Whom a call is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// `host:port` of the internal port; a name is resolved at each connect.
    pub address: String,
    /// The node that is meant; `None` only where it is not known yet (hello by address).
    pub node_id: Option<NodeId>,
    /// The process that is meant; `None` where any process of that node will do (Raft, hello).
    pub boot_id: Option<BootId>,
}

impl Peer {
    /// Whoever listens at `address`.
    pub fn at(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            node_id: None,
            boot_id: None,
        }
    }

    /// The process that the cluster state holds for a member.
    pub fn process(node: &Node) -> Self {
        Self {
            address: node.address.clone(),
            node_id: Some(node.id),
            boot_id: node.boot_id,
        }
    }

    /// Any process of a member.
    pub fn node(node: &Node) -> Self {
        Self {
            boot_id: None,
            ..Self::process(node)
        }
    }
}
