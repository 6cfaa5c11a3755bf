//! One error for everything that a client can be told, in OpenSearch's terms.

use segmentry_mapping::MappingError;
use segmentry_meta::{ProposeError, ReadError};
use segmentry_query::QueryError;
use segmentry_settings::SettingError;
use segmentry_state::{Index, Refusal};
use segmentry_wire::{CallError, RemoteError};
use serde::{Deserialize, Serialize};

/// Type of the error of a change that was made from an older state.
pub(crate) const STALE: &str = "stale_state_exception";

/// Why a request, or one item of it, failed. REST renders it as OpenSearch's error body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{kind}: {reason}")]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// OpenSearch's `type`.
    pub kind: String,
    /// For people.
    pub reason: String,
    /// Name of the index that it is about.
    pub index: Option<Box<str>>,
    /// Its uuid, where it exists.
    pub index_uuid: Option<Box<str>>,
    /// The shard that it is about.
    pub shard: Option<u32>,
    /// `caused_by`: type and reason.
    pub caused_by: Option<Box<(String, String)>>,
    /// What failed on which shard, where the error sums that up.
    #[serde(default)]
    pub failures: Box<[ShardFailure]>,
}

/// One shard's part of a failed, or partly failed, request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardFailure {
    /// Index name.
    pub index: String,
    /// Shard number.
    pub shard: u32,
    /// Name of the node of the copy that was asked last; none where no copy could be asked.
    pub node: Option<String>,
    /// Why.
    pub error: Box<ApiError>,
}

impl ApiError {
    /// An error of a status and type.
    pub fn new(status: u16, kind: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            status,
            kind: kind.into(),
            reason: reason.into(),
            index: None,
            index_uuid: None,
            shard: None,
            caused_by: None,
            failures: Box::default(),
        }
    }

    /// The same, about an index.
    #[must_use]
    pub fn about(mut self, index: &Index) -> Self {
        self.index = Some(index.name.as_str().into());
        self.index_uuid = Some(index.uuid.to_string().into());
        self
    }

    /// The same, about a name that is no index.
    #[must_use]
    pub fn about_name(mut self, name: &str) -> Self {
        self.index = Some(name.into());
        self.index_uuid = Some("_na_".into());
        self
    }

    /// The same, about a shard.
    #[must_use]
    pub fn on_shard(mut self, shard: u32) -> Self {
        self.shard = Some(shard);
        self
    }

    /// `illegal_argument_exception`, 400.
    pub fn illegal(reason: impl Into<String>) -> Self {
        Self::new(400, "illegal_argument_exception", reason)
    }

    /// A known part of OpenSearch's API that is not supported here.
    pub fn unsupported(what: impl std::fmt::Display) -> Self {
        Self::illegal(format!("{what} is not supported by Segmentry"))
    }

    /// `action_request_validation_exception`, 400.
    pub fn validation(problem: impl std::fmt::Display) -> Self {
        Self::new(
            400,
            "action_request_validation_exception",
            format!("Validation Failed: 1: {problem};"),
        )
    }

    /// `index_not_found_exception`, 404.
    pub fn no_index(name: &str) -> Self {
        Self::new(
            404,
            "index_not_found_exception",
            format!("no such index [{name}]"),
        )
        .about_name(name)
    }

    /// The cluster metadata has no leader: 503.
    pub fn no_quorum() -> Self {
        Self::new(
            503,
            "cluster_manager_not_discovered_exception",
            "the cluster metadata has no leader",
        )
    }

    /// A shard whose primary did not become active in time: 503.
    pub fn primary_not_active(index: &Index, shard: u32, timeout: &str) -> Self {
        Self::new(
            503,
            "unavailable_shards_exception",
            format!(
                "[{}][{shard}] primary shard is not active Timeout: [{timeout}]",
                index.name
            ),
        )
        .about(index)
        .on_shard(shard)
    }

    /// The outcome of a write is unknown and it is not safe to send it again: 503.
    pub fn unknown_outcome(reason: impl std::fmt::Display) -> Self {
        Self::new(
            503,
            "unknown_outcome_exception",
            format!("the outcome of the operation is unknown, it may have been applied: {reason}"),
        )
    }
}

impl From<MappingError> for ApiError {
    fn from(error: MappingError) -> Self {
        Self {
            caused_by: error
                .caused_by
                .map(|cause| Box::new((cause.kind.to_owned(), cause.reason))),
            ..Self::new(MappingError::STATUS, error.kind.name(), error.reason)
        }
    }
}

impl From<SettingError> for ApiError {
    fn from(error: SettingError) -> Self {
        Self::illegal(error.0)
    }
}

impl From<QueryError> for ApiError {
    fn from(error: QueryError) -> Self {
        Self::new(error.status(), error.kind.name(), error.reason)
    }
}

/// What a client is told of a search that failed on a copy.
pub fn search_error(error: segmentry_engine::search::SearchError) -> ApiError {
    match error {
        segmentry_engine::search::SearchError::Query(error) => error.into(),
        other => ApiError::new(500, "search_exception", other.to_string()),
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let reason = refusal.to_string();
        match refusal {
            Refusal::StaleEpoch { .. } => Self::new(409, "stale_epoch", reason),
            Refusal::NoSuchIndex(name) => {
                Self::new(404, "index_not_found_exception", reason).about_name(&name)
            }
            Refusal::IndexExists { name, uuid } => Self {
                index: Some(name.into()),
                index_uuid: Some(uuid.to_string().into()),
                ..Self::new(400, "resource_already_exists_exception", reason)
            },
            Refusal::Owned { .. } => Self::new(403, "declared_elsewhere_exception", reason),
            Refusal::OwnedByOther(_) => Self::new(409, "owned_by_other", reason),
            Refusal::Stale(_) => Self::new(409, STALE, reason),
            Refusal::Invalid(_) => Self::illegal(reason),
        }
    }
}

impl From<ProposeError> for ApiError {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::NoQuorum => Self::no_quorum(),
            ProposeError::Refused(refusal) => refusal.into(),
            ProposeError::Unknown => Self::unknown_outcome(error),
        }
    }
}

impl From<ReadError> for ApiError {
    fn from(_: ReadError) -> Self {
        Self::no_quorum()
    }
}

impl From<CallError> for ApiError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Remote(remote) => remote.into(),
            other => Self::new(503, "node_not_connected_exception", other.to_string()),
        }
    }
}

impl From<RemoteError> for ApiError {
    fn from(error: RemoteError) -> Self {
        Self::new(error.status, error.kind, error.reason)
    }
}

impl From<ApiError> for RemoteError {
    fn from(error: ApiError) -> Self {
        Self::new(error.status, error.kind, error.reason)
    }
}
