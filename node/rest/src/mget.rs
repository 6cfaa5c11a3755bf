//! `_mget`: several documents by id.

use crate::{
    Context,
    documents::{Document, READ, read_params, source_filter},
    reply::{Reply, error_object},
    table::Route,
};
use segmentry_coordinator::{ApiError, document::GetRequest};
use segmentry_query::SourceFilter;
use serde_json::{Value, json, value::RawValue};

const fn route(path: &'static str) -> Route {
    Route {
        methods: &["GET", "POST"],
        path,
        params: READ,
        handler: handler!(mget),
    }
}

/// Endpoints.
pub const ROUTES: &[Route] = &[route("/_mget"), route("/{index}/_mget")];

async fn mget(context: Context) -> Result<Reply, ApiError> {
    let (realtime, refresh) = read_params(&context)?;
    context.params.only("version", &[])?;
    let filter = source_filter(&context);
    let Value::Object(body) = context.json()? else {
        return Err(ApiError::validation("no documents to get"));
    };
    let mut requests = Vec::new();
    let mut filters = Vec::new();
    let default_index = context.index();
    for (key, value) in &body {
        let Value::Array(entries) = value else {
            return Err(ApiError::new(
                400,
                "parsing_exception",
                format!("unexpected value for [{key}]"),
            ));
        };
        for entry in entries {
            let (request, own) = mget_entry(key, entry, default_index, &context)?;
            requests.push(GetRequest {
                realtime,
                refresh,
                ..request
            });
            filters.push(own.unwrap_or_else(|| filter.clone()));
        }
    }
    if requests.is_empty() {
        return Err(ApiError::validation("no documents to get"));
    }
    let coordinator = &context.shared.coordinator;
    coordinator.formed()?;
    let results = coordinator.mget(requests.clone()).await;
    let mut docs: Vec<Box<RawValue>> = Vec::with_capacity(results.len());
    let encode = |value: &dyn erased::Raw| value.raw();
    for ((request, result), filter) in requests.iter().zip(&results).zip(&filters) {
        docs.push(match result {
            Ok((index, found)) => encode(&Document::new(index, &request.id, found.as_ref(), filter)?)?,
            Err(error) => encode(&json!({
                "_index": request.index,
                "_id": request.id,
                "error": Value::Object({
                    let mut object = error_object(error);
                    object.insert("root_cause".into(), json!([error_object(error)]));
                    object
                }),
            }))?,
        });
    }
    #[derive(serde::Serialize)]
    struct Docs {
        docs: Vec<Box<RawValue>>,
    }
    Reply::json(&Docs { docs })
}

/// Values that become raw JSON, whatever their type.
mod erased {
    use segmentry_coordinator::ApiError;
    use serde_json::value::RawValue;

    pub trait Raw {
        fn raw(&self) -> Result<Box<RawValue>, ApiError>;
    }

    impl<T: serde::Serialize> Raw for T {
        fn raw(&self) -> Result<Box<RawValue>, ApiError> {
            serde_json::value::to_raw_value(self).map_err(|error| {
                ApiError::new(
                    500,
                    "internal_error",
                    format!("answer cannot be encoded: {error}"),
                )
            })
        }
    }
}

fn mget_entry(
    key: &str,
    entry: &Value,
    default_index: Option<&str>,
    context: &Context,
) -> Result<(GetRequest, Option<SourceFilter>), ApiError> {
    let parsing = |reason: String| ApiError::new(400, "parsing_exception", reason);
    let mut request = GetRequest {
        index: default_index.unwrap_or_default().to_owned(),
        id: String::new(),
        routing: context.params.get("routing").map(str::to_owned),
        realtime: true,
        refresh: false,
    };
    let mut filter = None;
    match (key, entry) {
        ("ids", Value::String(id)) => request.id.clone_from(id),
        ("ids", Value::Number(id)) => request.id = id.to_string(),
        ("docs", Value::Object(fields)) => {
            for (name, value) in fields {
                match (name.as_str(), value) {
                    ("_index", Value::String(index)) => request.index.clone_from(index),
                    ("_id", Value::String(id)) => request.id.clone_from(id),
                    ("_id", Value::Number(id)) => request.id = id.to_string(),
                    ("routing" | "_routing", Value::String(routing)) => {
                        request.routing = Some(routing.clone());
                    }
                    ("_source", value) => filter = Some(mget_source(value)?),
                    (other, _) => {
                        return Err(parsing(format!(
                            "[multi_get] unknown or malformed field [{other}]"
                        )));
                    }
                }
            }
        }
        _ => return Err(parsing(format!("[multi_get] unknown or malformed [{key}]"))),
    }
    if request.index.is_empty() {
        return Err(ApiError::validation("index is missing"));
    }
    if request.id.is_empty() {
        return Err(ApiError::validation("id is missing"));
    }
    Ok((request, filter))
}

fn mget_source(value: &Value) -> Result<SourceFilter, ApiError> {
    let list = |value: &Value| -> Option<Vec<String>> {
        match value {
            Value::String(one) => Some(vec![one.clone()]),
            Value::Array(many) => many.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
            _ => None,
        }
    };
    let refuse = || {
        ApiError::new(
            400,
            "parsing_exception",
            format!("[multi_get] malformed [_source]: {value}"),
        )
    };
    match value {
        Value::Bool(true) => Ok(SourceFilter::All),
        Value::Bool(false) => Ok(SourceFilter::None),
        Value::Object(map) => {
            let (mut includes, mut excludes) = (Vec::new(), Vec::new());
            for (name, value) in map {
                match name.as_str() {
                    "includes" | "include" => includes = list(value).ok_or_else(refuse)?,
                    "excludes" | "exclude" => excludes = list(value).ok_or_else(refuse)?,
                    _ => return Err(refuse()),
                }
            }
            Ok(SourceFilter::Paths { includes, excludes })
        }
        other => Ok(SourceFilter::Paths {
            includes: list(other).ok_or_else(refuse)?,
            excludes: Vec::new(),
        }),
    }
}
