//! Typed client of the node's admin API. Every call has a deadline; a call that changes something carries the lease epoch.

use segmentry_settings::admin::{
    CLUSTER_HEADER, CreateIndex, EPOCH_HEADER, FinishRestart, IndexOverview, Initialise, NodeStatus,
    Overview, Owner, PrepareRestart, ReplaceMember, Reset, RestartRecord, UpdateIndex,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{collections::BTreeMap, time::Duration};

/// Deadline of calls that only read.
const READ: Duration = Duration::from_secs(4);
/// Deadline of calls that change the cluster state.
const CHANGE: Duration = Duration::from_secs(15);
/// Deadline of calls that flush every shard first.
const FLUSH: Duration = Duration::from_secs(120);
/// Nobody needs longer for a handshake inside one site.
const CONNECT: Duration = Duration::from_secs(2);

/// Where a call goes and what it states.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `ip:port` of the internal port.
    pub address: String,
    /// The cluster's token.
    pub token: String,
    /// The cluster that is meant; a node of another one refuses.
    pub cluster_uuid: Option<String>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token stays out of logs.
        f.debug_struct("Endpoint")
            .field("address", &self.address)
            .field("cluster_uuid", &self.cluster_uuid)
            .finish_non_exhaustive()
    }
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// No answer: the outcome of a change is unknown.
    #[error("{address} does not answer: {reason}")]
    Silent {
        /// Whom.
        address: String,
        /// Why.
        reason: String,
    },
    /// The node answered with an error.
    #[error("{reason}")]
    Refused {
        /// OpenSearch's error type.
        kind: String,
        /// Text.
        reason: String,
        /// HTTP status.
        status: u16,
    },
    /// The answer is not what this version understands.
    #[error("{address} answered what is not understood: {reason}")]
    Garbled {
        /// Who.
        address: String,
        /// Why.
        reason: String,
    },
}

impl NodeError {
    /// True for a refusal that repeating does not change (HTTP 4xx other than 408, 429, and stale reads).
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if (400..500).contains(status) && ![408, 409, 429].contains(status))
    }

    /// True for a refusal of the given type.
    pub fn is_kind(&self, wanted: &str) -> bool {
        matches!(self, Self::Refused { kind, .. } if kind == wanted)
    }

    /// True if what was asked for is not there.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }
}

/// Client for any number of nodes; one connection pool.
#[derive(Clone, Debug)]
pub struct NodeClient {
    http: reqwest::Client,
}

#[derive(serde::Deserialize)]
struct ErrorBody {
    error: ErrorDetail,
}

#[derive(serde::Deserialize)]
struct ErrorDetail {
    #[serde(rename = "type")]
    kind: String,
    reason: Option<String>,
}

impl NodeClient {
    /// A client. No proxy of the environment is used: nodes are in the same network.
    ///
    /// # Errors
    /// The HTTP client cannot be made.
    pub fn new() -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(CONNECT)
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(2)
            .build()?;
        Ok(Self { http })
    }

    async fn call<B: Serialize, T: DeserializeOwned>(
        &self,
        method: reqwest::Method,
        to: &Endpoint,
        path: &str,
        epoch: Option<u64>,
        body: Option<&B>,
        deadline: Duration,
    ) -> Result<T, NodeError> {
        let mut request = self
            .http
            .request(method, format!("http://{}{path}", to.address))
            .timeout(deadline)
            .bearer_auth(&to.token);
        if let Some(uuid) = &to.cluster_uuid {
            request = request.header(CLUSTER_HEADER, uuid);
        }
        if let Some(epoch) = epoch {
            request = request.header(EPOCH_HEADER, epoch.to_string());
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let silent = |error: reqwest::Error| NodeError::Silent {
            address: to.address.clone(),
            reason: innermost(&error),
        };
        let answer = request.send().await.map_err(silent)?;
        let status = answer.status();
        let bytes = answer.bytes().await.map_err(silent)?;
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|error| NodeError::Garbled {
                address: to.address.clone(),
                reason: error.to_string(),
            });
        }
        let (kind, reason) = match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(body) => (body.error.kind, body.error.reason.unwrap_or_default()),
            Err(_) => (
                "unknown".to_owned(),
                format!(
                    "{} answered {status}: {}",
                    to.address,
                    String::from_utf8_lossy(&bytes)
                        .chars()
                        .take(200)
                        .collect::<String>()
                ),
            ),
        };
        Err(NodeError::Refused {
            kind,
            reason,
            status: status.as_u16(),
        })
    }

    async fn post<B: Serialize, T: DeserializeOwned>(
        &self,
        to: &Endpoint,
        path: &str,
        epoch: u64,
        body: &B,
        deadline: Duration,
    ) -> Result<T, NodeError> {
        self.call(reqwest::Method::POST, to, path, Some(epoch), Some(body), deadline)
            .await
    }

    async fn nothing<B: Serialize>(
        &self,
        to: &Endpoint,
        path: &str,
        epoch: u64,
        body: &B,
    ) -> Result<(), NodeError> {
        let _: serde::de::IgnoredAny = self.post(to, path, epoch, body, CHANGE).await?;
        Ok(())
    }

    /// What the node says of itself; needs no quorum.
    ///
    /// # Errors
    /// See [`NodeError`]; so for every call below.
    pub async fn node_status(&self, to: &Endpoint) -> Result<NodeStatus, NodeError> {
        self.call(reqwest::Method::GET, to, "/_admin/node", None, None::<&()>, READ)
            .await
    }

    /// The whole cluster, after a linearizable read.
    pub async fn overview(&self, to: &Endpoint) -> Result<Overview, NodeError> {
        self.call(
            reqwest::Method::GET,
            to,
            "/_admin/overview",
            None,
            None::<&()>,
            READ,
        )
        .await
    }

    /// First formation; idempotent.
    pub async fn initialise(
        &self,
        to: &Endpoint,
        epoch: u64,
        request: &Initialise,
    ) -> Result<NodeStatus, NodeError> {
        self.post(to, "/_admin/initialise", epoch, request, CHANGE).await
    }

    /// Forgets a formation that was never used.
    pub async fn reset(&self, to: &Endpoint, epoch: u64, request: &Reset) -> Result<NodeStatus, NodeError> {
        self.post(to, "/_admin/reset", epoch, request, CHANGE).await
    }

    /// Creates an index for its declared object.
    pub async fn create_index(
        &self,
        to: &Endpoint,
        epoch: u64,
        request: &CreateIndex,
    ) -> Result<IndexOverview, NodeError> {
        self.post(to, "/_admin/indices", epoch, request, CHANGE).await
    }

    /// Changes dynamic settings and the set of owned keys.
    pub async fn update_index(
        &self,
        to: &Endpoint,
        epoch: u64,
        uuid: &str,
        request: &UpdateIndex,
    ) -> Result<IndexOverview, NodeError> {
        self.post(
            to,
            &format!("/_admin/indices/{uuid}/settings"),
            epoch,
            request,
            CHANGE,
        )
        .await
    }

    /// Takes over an ownerless index.
    pub async fn adopt_index(
        &self,
        to: &Endpoint,
        epoch: u64,
        uuid: &str,
        owner: &Owner,
    ) -> Result<IndexOverview, NodeError> {
        self.post(to, &format!("/_admin/indices/{uuid}/adopt"), epoch, owner, CHANGE)
            .await
    }

    /// Leaves an index without an owner.
    pub async fn release_index(
        &self,
        to: &Endpoint,
        epoch: u64,
        uuid: &str,
        owner_uid: &str,
    ) -> Result<(), NodeError> {
        self.nothing(
            to,
            &format!("/_admin/indices/{uuid}/release"),
            epoch,
            &serde_json::json!({"uid": owner_uid}),
        )
        .await
    }

    /// Deletes an index.
    pub async fn delete_index(&self, to: &Endpoint, epoch: u64, uuid: &str) -> Result<(), NodeError> {
        let _: serde::de::IgnoredAny = self
            .call(
                reqwest::Method::DELETE,
                to,
                &format!("/_admin/indices/{uuid}"),
                Some(epoch),
                None::<&()>,
                CHANGE,
            )
            .await?;
        Ok(())
    }

    /// Persistent cluster settings.
    pub async fn cluster_settings(
        &self,
        to: &Endpoint,
        epoch: u64,
        settings: &BTreeMap<String, Option<String>>,
    ) -> Result<(), NodeError> {
        self.nothing(to, "/_admin/settings", epoch, settings).await
    }

    /// Flushes all shards and records the active primaries.
    pub async fn prepare_restart(
        &self,
        to: &Endpoint,
        epoch: u64,
        request: &PrepareRestart,
    ) -> Result<RestartRecord, NodeError> {
        self.post(to, "/_admin/restart/prepare", epoch, request, FLUSH)
            .await
    }

    /// Ends a restart.
    pub async fn finish_restart(
        &self,
        to: &Endpoint,
        epoch: u64,
        request: &FinishRestart,
    ) -> Result<(), NodeError> {
        self.nothing(to, "/_admin/restart/finish", epoch, request).await
    }

    /// The voter of a lost disk makes way for the new one.
    pub async fn replace_member(
        &self,
        to: &Endpoint,
        epoch: u64,
        request: &ReplaceMember,
    ) -> Result<(), NodeError> {
        self.nothing(to, "/_admin/members/replace", epoch, request).await
    }
}

/// reqwest's own text is the URL; what people need is the cause.
fn innermost(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "deadline exceeded".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests;
