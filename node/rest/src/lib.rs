//! The REST API: OpenSearch's paths, parameters, bodies and errors over the [`Coordinator`].
//!
//! ```text
//!   HTTP ──▶ table (method, path, allowed parameters) ──▶ body (bounded, gunzipped) ──▶ handler ──▶ Reply
//! ```
//!
//! What is not supported is refused by its name, with status 400: an unknown parameter, a known parameter with a value that
//! has no effect here, a part of a body. Every error has OpenSearch's shape. JSON is compact unless `pretty` asks otherwise.
//!
//! Families: [`info`] (`/`), [`cluster`], [`nodes`], [`cat`], [`indices`], [`documents`], [`bulk`], [`search`],
//! [`maintenance`] (refresh, flush, stats, segments), [`probes`]; and [`admin`], the operator's API on the internal port.

/// Wraps an async handler for the table.
macro_rules! handler {
    ($handler:path) => {
        |context| Box::pin($handler(context))
    };
}

pub mod admin;
pub mod body;
pub mod bulk;
pub mod cat;
pub mod cluster;
mod columns;
pub mod documents;
mod filter;
pub mod indices;
pub mod info;
pub mod maintenance;
pub mod mget;
pub mod nodes;
pub mod params;
pub mod probes;
pub mod reply;
pub mod search;
mod server;
pub mod table;

pub use server::serve;

use crate::{
    params::Params,
    reply::{Content, Reply},
    table::{Found, Route},
};
use axum::{Router, extract::Request, response::Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use segmentry_coordinator::{ApiError, Coordinator, METADATA_TIMEOUT, NameOptions, indices::within};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// What the process says of itself, beyond the cluster state.
pub trait NodeFacts: Send + Sync + 'static {
    /// True once this node applied a state of its cluster and opened its copies; stays so.
    fn ready(&self) -> bool;
    /// Why not yet, for people.
    fn waiting_for(&self) -> Option<String>;
    /// Program version.
    fn version(&self) -> &'static str;
    /// Name of the cluster until the cluster state says it.
    fn cluster_name(&self) -> String;
}

/// What all handlers share.
#[derive(Clone)]
pub struct Shared {
    /// Carries out requests.
    pub coordinator: Coordinator,
    /// What the process says of itself.
    pub facts: Arc<dyn NodeFacts>,
}

/// One request on its way to its handler.
pub struct Context {
    /// See [`Shared`].
    pub shared: Shared,
    /// Method.
    pub method: Method,
    /// Named segments of the path, decoded.
    pub path: BTreeMap<&'static str, String>,
    /// URL parameters; all are known to the route.
    pub params: Params,
    /// Body, gunzipped.
    pub body: Bytes,
}

impl Context {
    /// A named segment of the path.
    pub fn segment(&self, name: &str) -> Option<&str> {
        self.path.get(name).map(String::as_str)
    }

    /// The index expression of the path.
    pub fn index(&self) -> Option<&str> {
        self.segment("index")
    }

    /// The body as JSON; null where there is none.
    ///
    /// # Errors
    /// Not JSON.
    pub fn json(&self) -> Result<Value, ApiError> {
        if self.body.iter().all(u8::is_ascii_whitespace) {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&self.body).map_err(|error| {
            ApiError::new(
                400,
                "parse_exception",
                format!("Failed to parse content: {error}"),
            )
        })
    }

    /// Refuses a body where none belongs.
    ///
    /// # Errors
    /// There is one.
    pub fn no_body(&self, route: &str) -> Result<(), ApiError> {
        if self.body.is_empty() {
            return Ok(());
        }
        Err(ApiError::illegal(format!(
            "request [{} {route}] does not support having a body",
            self.method
        )))
    }

    /// `ignore_unavailable`, `allow_no_indices`, `expand_wildcards`.
    ///
    /// # Errors
    /// A value that is not supported.
    pub fn names(&self) -> Result<NameOptions, ApiError> {
        let defaults = NameOptions::default();
        let expand_wildcards = match self.params.get("expand_wildcards") {
            // Every index is open and none is hidden.
            None | Some("open" | "all" | "open,hidden" | "open,closed") => true,
            Some("none") => false,
            Some(other) => {
                return Err(ApiError::unsupported(format!(
                    "value [{other}] of parameter [expand_wildcards]"
                )));
            }
        };
        Ok(NameOptions {
            ignore_unavailable: self
                .params
                .bool("ignore_unavailable", defaults.ignore_unavailable)?,
            allow_no_indices: self.params.bool("allow_no_indices", defaults.allow_no_indices)?,
            expand_wildcards,
        })
    }
}

/// All endpoints of the REST port.
fn routes() -> Vec<Route> {
    [
        info::ROUTES,
        cluster::ROUTES,
        nodes::ROUTES,
        cat::ROUTES,
        indices::ROUTES,
        documents::ROUTES,
        mget::ROUTES,
        bulk::ROUTES,
        search::ROUTES,
        maintenance::ROUTES,
        probes::ROUTES,
    ]
    .concat()
}

/// The REST port's router.
pub fn router(shared: Shared) -> Router {
    let routes: Arc<[Route]> = routes().into();
    Router::new().fallback(move |request: Request| {
        let shared = shared.clone();
        let routes = Arc::clone(&routes);
        async move { answer(shared, &routes, request).await }
    })
}

async fn answer(shared: Shared, routes: &[Route], request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let params = match Params::parse(parts.uri.query()) {
        Ok(params) => params,
        Err(error) => {
            return Reply::error(&error).into_response(&parts.method, &parts.headers, &Params::default());
        }
    };
    let reply = match lead(shared, routes, &parts, &params, body).await {
        Ok(reply) => reply,
        Err(error) => {
            if error.status >= 500 {
                tracing::warn!(method = %parts.method, path = parts.uri.path(), %error, "request failed");
            }
            Reply::error(&error)
        }
    };
    reply.into_response(&parts.method, &parts.headers, &params)
}

async fn lead(
    shared: Shared,
    routes: &[Route],
    parts: &http::request::Parts,
    params: &Params,
    body: axum::body::Body,
) -> Result<Reply, ApiError> {
    let path = parts.uri.path();
    let (route, named) = match table::find(routes, &parts.method, path)? {
        Found::Route(route, named) => (route, named),
        Found::Method(methods) => return Ok(wrong_method(&parts.method, path, &methods)),
        Found::Nothing => {
            return Err(ApiError::illegal(format!(
                "no handler found for uri [{}] and method [{}]",
                parts.uri, parts.method
            )));
        }
    };
    params.check(path, route.params)?;
    let body = body::read(&parts.headers, body).await?;
    // Reads do not wait for the cluster manager; changes do, for so long.
    let limit = match (
        params.get("cluster_manager_timeout"),
        params.get("master_timeout"),
    ) {
        (Some(_), Some(_)) => {
            return Err(ApiError::illegal(
                "Please only use one of the request parameters [master_timeout, cluster_manager_timeout].",
            ));
        }
        (Some(_), None) => Some(params.time("cluster_manager_timeout", METADATA_TIMEOUT)?),
        (None, Some(_)) => Some(params.time("master_timeout", METADATA_TIMEOUT)?),
        (None, None) => None,
    };
    let running = (route.handler)(Context {
        shared,
        method: parts.method.clone(),
        path: named,
        params: params.clone(),
        body,
    });
    // A task of its own: what has begun is finished, also when the client goes away.
    let running = within(limit.unwrap_or(METADATA_TIMEOUT), running);
    match tokio::spawn(running).await {
        Ok(answer) => answer,
        Err(error) => Err(ApiError::new(
            500,
            "internal_error",
            format!("the handler ended abnormally: {error}"),
        )),
    }
}

/// 405, as OpenSearch answers it: the error is a plain text.
fn wrong_method(method: &Method, path: &str, methods: &[&str]) -> Reply {
    let list = methods.join(", ");
    let body = json!({
        "error": format!("Incorrect HTTP method for uri [{path}] and method [{method}], allowed: [{list}]"),
        "status": 405,
    });
    Reply {
        status: 405,
        body: Content::Json(body.to_string().into_bytes()),
        headers: HeaderValue::from_str(&list)
            .map(|value| vec![(header::ALLOW, value)])
            .unwrap_or_default(),
    }
}

/// A header's text.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
