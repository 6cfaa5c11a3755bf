//! The operator's API on the internal port, as `segmentry_settings::admin` describes it.
//!
//! Every call carries the cluster's token. A call that names a cluster is refused by a node of another one; a call that
//! changes something carries the caller's lease epoch, and the cluster state refuses an older one.

use crate::{
    Shared, body,
    params::Params,
    reply::Reply,
    table::{self, Found, Route},
    text,
};
use axum::{Router, extract::Request, response::Response};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::Method;
use segmentry_coordinator::{ApiError, document::ActiveShards, indices::NewIndex, names};
use segmentry_settings::admin::{
    CLUSTER_HEADER, CreateIndex, EPOCH_HEADER, FinishRestart, Initialise, NodeStatus, Owner, PrepareRestart,
    ReplaceMember, Reset, RestartRecord, UpdateIndex,
};
use segmentry_settings::flat;
use segmentry_state::{Change, ClusterState, IndexUuid, ShardId};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// How long a creation waits for its primaries; the operator looks again by itself.
const START: Duration = Duration::from_secs(10);

/// What only the node itself can do.
pub trait NodeAdmin: Send + Sync + 'static {
    /// What this node says of itself.
    fn status(&self) -> NodeStatus;
    /// First formation; the same again is a no-op.
    fn initialise(&self, request: Initialise) -> BoxFuture<'static, Result<NodeStatus, ApiError>>;
    /// Forgets a formation that holds no index.
    fn reset(&self, request: Reset) -> BoxFuture<'static, Result<NodeStatus, ApiError>>;
    /// Puts an empty node in the place of a voter whose disk is gone.
    fn replace(&self, epoch: u64, request: ReplaceMember) -> BoxFuture<'static, Result<(), ApiError>>;
}

#[derive(Clone)]
struct Door {
    shared: Shared,
    admin: Arc<dyn NodeAdmin>,
}

struct Call {
    door: Door,
    epoch: Option<u64>,
    uuid: Option<String>,
    body: Bytes,
}

type Run = fn(Call) -> BoxFuture<'static, Result<Reply, ApiError>>;

macro_rules! run {
    ($run:path) => {
        |call| Box::pin($run(call))
    };
}

/// Method, path, does it change the cluster (so that an epoch is required), what runs.
const CALLS: &[(&str, &str, bool, Run)] = &[
    ("GET", "/_admin/node", false, run!(node)),
    ("POST", "/_admin/initialise", false, run!(initialise)),
    ("POST", "/_admin/reset", false, run!(reset)),
    ("GET", "/_admin/overview", false, run!(overview)),
    ("POST", "/_admin/indices", true, run!(create)),
    ("POST", "/_admin/indices/{uuid}/settings", true, run!(update)),
    ("POST", "/_admin/indices/{uuid}/adopt", true, run!(adopt)),
    ("POST", "/_admin/indices/{uuid}/release", true, run!(release)),
    ("DELETE", "/_admin/indices/{uuid}", true, run!(delete)),
    ("POST", "/_admin/settings", true, run!(settings)),
    ("POST", "/_admin/restart/prepare", true, run!(prepare)),
    ("POST", "/_admin/restart/finish", true, run!(finish)),
    ("POST", "/_admin/members/replace", true, run!(replace)),
];

/// The router of the admin API; any other path is answered with OpenSearch's error.
pub fn router(shared: Shared, admin: Arc<dyn NodeAdmin>) -> Router {
    let door = Door { shared, admin };
    Router::new().fallback(move |request: Request| {
        let door = door.clone();
        async move {
            let (parts, body) = request.into_parts();
            let reply = match enter(door, &parts, body).await {
                Ok(reply) => reply,
                Err(error) => Reply::error(&error),
            };
            let response: Response = reply.into_response(&parts.method, &parts.headers, &Params::default());
            response
        }
    })
}

async fn enter(door: Door, parts: &http::request::Parts, body: axum::body::Body) -> Result<Reply, ApiError> {
    let identity = door.shared.coordinator.identity().clone();
    if !identity
        .token
        .accepts(text(&parts.headers, http::header::AUTHORIZATION.as_str()))
    {
        return Err(ApiError::new(
            401,
            "security_exception",
            "the cluster token is missing or wrong",
        ));
    }
    if let (Some(sent), Some(own)) = (text(&parts.headers, CLUSTER_HEADER), identity.cluster_uuid.get())
        && sent != own.to_string()
    {
        return Err(ApiError::new(
            409,
            "foreign_cluster",
            format!("this node belongs to cluster [{own}], the call is for [{sent}]"),
        ));
    }
    let path = parts.uri.path();
    let routes: Vec<Route> = CALLS
        .iter()
        .map(|(method, path, _, _)| Route {
            methods: match *method {
                "GET" => &["GET"],
                "DELETE" => &["DELETE"],
                _ => &["POST"],
            },
            path,
            params: &[],
            handler: |_| Box::pin(async { Err(ApiError::new(500, "internal_error", "not a REST route")) }),
        })
        .collect();
    let (route, named) = match table::find(&routes, &parts.method, path)? {
        Found::Route(route, named) => (route, named),
        Found::Method(_) | Found::Nothing => {
            return Err(ApiError::new(
                404,
                "no_such_call",
                format!("no handler found for uri [{path}] and method [{}]", parts.method),
            ));
        }
    };
    let method = if parts.method == Method::HEAD {
        "GET"
    } else {
        parts.method.as_str()
    };
    let Some((_, _, changes, run)) = CALLS
        .iter()
        .find(|(known, pattern, _, _)| *known == method && *pattern == route.path)
    else {
        return Err(ApiError::new(
            404,
            "no_such_call",
            format!("no handler found for uri [{path}]"),
        ));
    };
    let epoch = text(&parts.headers, EPOCH_HEADER)
        .map(|text| {
            text.parse::<u64>()
                .map_err(|_| ApiError::illegal(format!("header [{EPOCH_HEADER}] is not a number")))
        })
        .transpose()?;
    let known = door.shared.coordinator.state().epoch;
    match epoch {
        None if *changes => return Err(ApiError::illegal(format!("header [{EPOCH_HEADER}] is missing"))),
        Some(given) if given < known => {
            return Err(ApiError::new(
                409,
                "stale_epoch",
                format!("operator epoch [{given}] is older than [{known}]"),
            ));
        }
        _ => {}
    }
    let body = body::read(&parts.headers, body).await?;
    let running = run(Call {
        door,
        epoch,
        uuid: named.get("uuid").cloned(),
        body,
    });
    match tokio::spawn(running).await {
        Ok(answer) => answer,
        Err(error) => Err(ApiError::new(
            500,
            "internal_error",
            format!("the handler ended abnormally: {error}"),
        )),
    }
}

impl Call {
    fn json<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_json::from_slice(&self.body)
            .map_err(|error| ApiError::new(400, "parse_exception", format!("body cannot be read: {error}")))
    }

    fn epoch(&self) -> u64 {
        self.epoch.unwrap_or(0)
    }

    fn index(&self) -> Result<IndexUuid, ApiError> {
        let text = self.uuid.as_deref().unwrap_or_default();
        text.parse().map_err(|_| ApiError::no_index(text))
    }

    async fn answer_index(&self, uuid: IndexUuid) -> Result<Reply, ApiError> {
        Reply::json(&self.door.shared.coordinator.index_overview(uuid).await?)
    }
}

async fn node(call: Call) -> Result<Reply, ApiError> {
    Reply::json(&call.door.admin.status())
}

async fn initialise(call: Call) -> Result<Reply, ApiError> {
    Reply::json(&call.door.admin.initialise(call.json()?).await?)
}

async fn reset(call: Call) -> Result<Reply, ApiError> {
    Reply::json(&call.door.admin.reset(call.json()?).await?)
}

async fn overview(call: Call) -> Result<Reply, ApiError> {
    Reply::json(&call.door.shared.coordinator.overview().await?)
}

async fn create(call: Call) -> Result<Reply, ApiError> {
    let request: CreateIndex = call.json()?;
    let coordinator = &call.door.shared.coordinator;
    let owner = request.owner.clone();
    let epoch = call.epoch();
    let new = NewIndex {
        name: request.name.clone(),
        settings: request.settings,
        mappings: request.mappings,
        declared: request.owner.map(|owner| (epoch, owner)),
    };
    match coordinator.create_index(new, ActiveShards::Count(1), START).await {
        Ok(created) => call.answer_index(created.index.uuid).await,
        Err(error) if error.kind == "resource_already_exists_exception" => {
            // The outcome of an earlier call that nobody heard of, or somebody else's index.
            let state = coordinator.read().await?;
            let index = names::exact(&state, &request.name)?;
            match (&index.owner, &owner) {
                (Some(recorded), Some(asking)) if recorded.uid == asking.uid => {
                    call.answer_index(index.uuid).await
                }
                (None, None) => call.answer_index(index.uuid).await,
                (Some(recorded), _) => {
                    Err(
                        ApiError::new(409, "owned_by_other", format!("owned by [{}]", recorded.name))
                            .about(&index),
                    )
                }
                (None, Some(_)) => Err(ApiError::new(
                    409,
                    "exists_without_owner",
                    format!("index [{}] exists and has no owner", index.name),
                )
                .about(&index)),
            }
        }
        Err(error) => Err(error),
    }
}

async fn update(call: Call) -> Result<Reply, ApiError> {
    let request: UpdateIndex = call.json()?;
    let uuid = call.index()?;
    call.door
        .shared
        .coordinator
        .update_settings(uuid, Some((call.epoch(), request.owner)), request.settings)
        .await?;
    call.answer_index(uuid).await
}

async fn adopt(call: Call) -> Result<Reply, ApiError> {
    let owner: Owner = call.json()?;
    let uuid = call.index()?;
    let change = Change::AdoptIndex {
        epoch: call.epoch(),
        index: uuid,
        owner,
    };
    call.door.shared.coordinator.propose(change).await?;
    call.answer_index(uuid).await
}

async fn release(call: Call) -> Result<Reply, ApiError> {
    #[derive(Deserialize)]
    struct Leaving {
        uid: String,
    }
    let leaving: Leaving = call.json()?;
    let change = Change::ReleaseIndex {
        epoch: call.epoch(),
        index: call.index()?,
        uid: leaving.uid,
    };
    call.door.shared.coordinator.propose(change).await?;
    Reply::json(&json!({}))
}

async fn delete(call: Call) -> Result<Reply, ApiError> {
    let coordinator = &call.door.shared.coordinator;
    let uuid = call.index()?;
    let state = coordinator.read().await?;
    let index = state
        .index(uuid)
        .ok_or_else(|| ApiError::no_index(&uuid.to_string()))?;
    let owner = index.owner.as_ref().map(|owner| owner.uid.clone());
    coordinator
        .delete_index(uuid, Some((call.epoch(), owner)))
        .await?;
    Reply::json(&json!({}))
}

async fn settings(call: Call) -> Result<Reply, ApiError> {
    let body: Value = call.json()?;
    let changes = flat::flatten(&body)?;
    if !changes.is_empty() {
        call.door
            .shared
            .coordinator
            .put_cluster_settings(call.epoch, changes)
            .await?;
    }
    Reply::json(&json!({}))
}

async fn prepare(call: Call) -> Result<Reply, ApiError> {
    let request: PrepareRestart = call.json()?;
    let coordinator = &call.door.shared.coordinator;
    let state = coordinator.read().await?;
    let indices = names::resolve(&state, None, names::NameOptions::default())?;
    let flushed = coordinator.flush(&indices).await;
    if let Some(failure) = flushed.failures.first() {
        return Err(ApiError::new(
            503,
            "flush_failed",
            format!(
                "{} of {} copies did not flush; [{}][{}] on [{}]: {}",
                flushed.failures.len(),
                flushed.total,
                failure.index,
                failure.shard,
                failure.node.as_deref().unwrap_or("?"),
                failure.error.reason
            ),
        ));
    }
    let state = coordinator.read().await?;
    let record = RestartRecord {
        target: request.target,
        primaries: primaries(&state),
    };
    let change = Change::RestartPrepared {
        epoch: call.epoch(),
        record: record.clone(),
    };
    coordinator.propose(change).await?;
    Reply::json(&record)
}

fn primaries(state: &ClusterState) -> BTreeMap<String, String> {
    state
        .shards()
        .filter_map(|(id, _, _)| {
            let ShardId { index, shard } = id;
            Some((format!("{index}/{shard}"), state.primary_node(id)?.name.clone()))
        })
        .collect()
}

async fn finish(call: Call) -> Result<Reply, ApiError> {
    let request: FinishRestart = call.json()?;
    let change = Change::RestartFinished {
        epoch: call.epoch(),
        target: request.target,
    };
    call.door.shared.coordinator.propose(change).await?;
    Reply::json(&json!({}))
}

async fn replace(call: Call) -> Result<Reply, ApiError> {
    call.door.admin.replace(call.epoch(), call.json()?).await?;
    Reply::json(&json!({}))
}
