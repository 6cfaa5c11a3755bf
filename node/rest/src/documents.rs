//! Single documents: a write is a bulk of one, a read goes to the primary.

use crate::{Context, indices::active_shards, reply::Reply, table::Route};
use bytes::Bytes;
use segmentry_coordinator::{
    ApiError,
    document::{
        Found, GetRequest, Outcome, Refresh, WriteItem, WriteKind, WriteOptions, WriteRequest, Written,
    },
};
use segmentry_query::SourceFilter;
use segmentry_state::Index;
use serde_json::{Map, Value, json, value::RawValue};
use std::{sync::Arc, time::Duration};

const WRITE: &[&str] = &[
    "op_type",
    "refresh",
    "routing",
    "timeout",
    "if_seq_no",
    "if_primary_term",
    "wait_for_active_shards",
    "version",
    "version_type",
    "pipeline",
    "require_alias",
];
const UPDATE: &[&str] = &[
    "refresh",
    "routing",
    "timeout",
    "if_seq_no",
    "if_primary_term",
    "wait_for_active_shards",
    "retry_on_conflict",
    "require_alias",
    "_source",
    "_source_includes",
    "_source_excludes",
];
pub(crate) const READ: &[&str] = &[
    "routing",
    "realtime",
    "refresh",
    "preference",
    "version",
    "version_type",
    "stored_fields",
    "_source",
    "_source_includes",
    "_source_excludes",
];

/// Endpoints.
pub const ROUTES: &[Route] = &[
    Route {
        methods: &["POST"],
        path: "/{index}/_doc",
        params: WRITE,
        handler: handler!(index),
    },
    Route {
        methods: &["PUT", "POST"],
        path: "/{index}/_doc/{id}",
        params: WRITE,
        handler: handler!(index),
    },
    Route {
        methods: &["PUT", "POST"],
        path: "/{index}/_create/{id}",
        params: WRITE,
        handler: handler!(create),
    },
    Route {
        methods: &["POST"],
        path: "/{index}/_update/{id}",
        params: UPDATE,
        handler: handler!(update),
    },
    Route {
        methods: &["DELETE"],
        path: "/{index}/_doc/{id}",
        params: WRITE,
        handler: handler!(delete),
    },
    Route {
        methods: &["GET"],
        path: "/{index}/_doc/{id}",
        params: READ,
        handler: handler!(get),
    },
    Route {
        methods: &["GET"],
        path: "/{index}/_source/{id}",
        params: READ,
        handler: handler!(get_source),
    },
];

/// `refresh` of a write.
///
/// # Errors
/// A word that OpenSearch does not have.
pub fn refresh(context: &Context) -> Result<Refresh, ApiError> {
    match context.params.get("refresh") {
        None | Some("false") => Ok(Refresh::No),
        Some("" | "true") => Ok(Refresh::Now),
        Some("wait_for") => Ok(Refresh::WaitFor),
        Some(other) => Err(ApiError::illegal(format!(
            "Unknown value for refresh: [{other}]."
        ))),
    }
}

/// Options of a write or a bulk; refuses what has no effect here.
///
/// # Errors
/// A value that is not supported.
pub fn write_options(context: &Context) -> Result<WriteOptions, ApiError> {
    let params = &context.params;
    params.only("pipeline", &["", "_none"])?;
    params.only("require_alias", &["false"])?;
    Ok(WriteOptions {
        refresh: refresh(context)?,
        timeout: params.time("timeout", Duration::from_secs(60))?,
        wait_for_active_shards: active_shards(context)?,
    })
}

fn request(context: &Context, kind: WriteKind) -> Result<WriteRequest, ApiError> {
    let params = &context.params;
    if params.get("version").is_some() && matches!(params.get("version_type"), None | Some("internal")) {
        return Err(ApiError::validation(
            "internal versioning can not be used for optimistic concurrency control. Please use `if_seq_no` and \
             `if_primary_term` instead",
        ));
    }
    params.only("version_type", &["internal"])?;
    Ok(WriteRequest {
        index: Arc::from(context.index().unwrap_or_default()),
        kind,
        id: context.segment("id").map(Arc::from),
        routing: params
            .get("routing")
            .filter(|routing| !routing.is_empty())
            .map(Arc::from),
        if_seq_no: params.number("if_seq_no")?,
        if_primary_term: params.number("if_primary_term")?,
        source: context.body.clone(),
    })
}

async fn run(context: Context, request: WriteRequest) -> Result<Reply, ApiError> {
    let options = write_options(&context)?;
    let coordinator = context.shared.coordinator;
    coordinator.formed()?;
    let _share = coordinator.admit_write(request.source.len())?;
    let item = coordinator.write(request, options).await?;
    let written = item.result.clone()?;
    let mut reply = Reply::with_status(written.outcome.status(), &written_object(&item, &written))?;
    if written.outcome == Outcome::Created
        && let Ok(location) = http::HeaderValue::from_str(&format!(
            "/{}/_doc/{}",
            item.index,
            item.id.as_deref().unwrap_or_default()
        ))
    {
        reply.headers.push((http::header::LOCATION, location));
    }
    Ok(reply)
}

/// What a write answers, without `status`.
pub fn written_object(item: &WriteItem, written: &Written) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("_index".into(), json!(&*item.index));
    out.insert("_id".into(), json!(item.id.as_deref()));
    out.insert("_version".into(), json!(written.version));
    out.insert("result".into(), json!(written.outcome.name()));
    if written.forced_refresh {
        out.insert("forced_refresh".into(), json!(true));
    }
    out.insert(
        "_shards".into(),
        json!({"total": written.copies.total, "successful": written.copies.successful, "failed": 0}),
    );
    out.insert("_seq_no".into(), json!(written.seq_no));
    out.insert("_primary_term".into(), json!(written.term));
    out
}

async fn index(context: Context) -> Result<Reply, ApiError> {
    if context.body.is_empty() {
        return Err(ApiError::validation("source is missing"));
    }
    let mut kind = WriteKind::Index;
    match context.params.get("op_type") {
        None | Some("index") => {}
        Some("create") => kind = WriteKind::Create,
        Some(other) => {
            return Err(ApiError::illegal(format!(
                "opType must be 'create' or 'index', found: [{other}]"
            )));
        }
    }
    let request = request(&context, kind)?;
    run(context, request).await
}

async fn create(context: Context) -> Result<Reply, ApiError> {
    if context.body.is_empty() {
        return Err(ApiError::validation("source is missing"));
    }
    context.params.only("op_type", &["create"])?;
    let request = request(&context, WriteKind::Create)?;
    run(context, request).await
}

async fn update(context: Context) -> Result<Reply, ApiError> {
    if context.body.is_empty() {
        return Err(ApiError::validation("script or doc is missing"));
    }
    context.params.only("_source", &["false"])?;
    for name in ["_source_includes", "_source_excludes"] {
        context.params.only(name, &[])?;
    }
    // Read and write are one step on the primary: whatever number is given, no retry is needed.
    context.params.number("retry_on_conflict")?;
    let request = request(&context, WriteKind::Update)?;
    run(context, request).await
}

async fn delete(context: Context) -> Result<Reply, ApiError> {
    context.no_body("/{index}/_doc/{id}")?;
    context.params.only("op_type", &[])?;
    let request = request(&context, WriteKind::Delete)?;
    run(context, request).await
}

/// The `_source` that a read asks for.
pub(crate) fn source_filter(context: &Context) -> SourceFilter {
    let list = |text: Option<&str>| -> Vec<String> {
        text.map(|text| {
            text.split(',')
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect()
        })
        .unwrap_or_default()
    };
    let mut includes = list(context.params.get("_source_includes"));
    let excludes = list(context.params.get("_source_excludes"));
    match context.params.get("_source") {
        None | Some("" | "true") => {}
        Some("false") => return SourceFilter::None,
        Some(paths) => includes.extend(list(Some(paths))),
    }
    if includes.is_empty() && excludes.is_empty() {
        SourceFilter::All
    } else {
        SourceFilter::Paths { includes, excludes }
    }
}

/// A source after its filter; nothing where none is wanted.
fn filtered(source: &Bytes, filter: &SourceFilter) -> Result<Option<Box<RawValue>>, ApiError> {
    let broken = |error: serde_json::Error| {
        ApiError::new(
            500,
            "internal_error",
            format!("stored source cannot be read: {error}"),
        )
    };
    match filter.paths() {
        None if *filter == SourceFilter::None => Ok(None),
        None => serde_json::from_slice(source).map(Some).map_err(broken),
        Some(paths) => {
            let kept = paths.apply(serde_json::from_slice(source).map_err(broken)?);
            serde_json::value::to_raw_value(&kept).map(Some).map_err(broken)
        }
    }
}

/// A document as `_doc` and `_mget` answer it; the source stays the bytes that it is.
#[derive(serde::Serialize)]
pub(crate) struct Document<'a> {
    _index: &'a str,
    _id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    _version: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    _seq_no: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    _primary_term: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    _routing: Option<&'a str>,
    found: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    _source: Option<Box<RawValue>>,
}

impl<'a> Document<'a> {
    pub(crate) fn new(
        index: &'a Index,
        id: &'a str,
        found: Option<&'a Found>,
        filter: &SourceFilter,
    ) -> Result<Self, ApiError> {
        Ok(Self {
            _index: &index.name,
            _id: id,
            _version: found.map(|found| found.version),
            _seq_no: found.map(|found| found.seq_no),
            _primary_term: found.map(|found| found.term),
            _routing: found.and_then(|found| found.routing.as_deref()),
            found: found.is_some(),
            _source: match found {
                Some(found) => filtered(&found.source, filter)?,
                None => None,
            },
        })
    }
}

pub(crate) fn read_params(context: &Context) -> Result<(bool, bool), ApiError> {
    let params = &context.params;
    params.only("stored_fields", &["", "_none_"])?;
    params.only("version_type", &["internal"])?;
    // Reads by id always go to the primary.
    params.only("preference", &["", "_primary"])?;
    Ok((params.bool("realtime", true)?, params.bool("refresh", false)?))
}

async fn fetch(context: &Context) -> Result<(Arc<Index>, String, Option<Found>), ApiError> {
    let (realtime, refresh) = read_params(context)?;
    let id = context.segment("id").unwrap_or_default().to_owned();
    let coordinator = &context.shared.coordinator;
    coordinator.formed()?;
    let request = GetRequest {
        index: context.index().unwrap_or_default().to_owned(),
        id: id.clone(),
        routing: context.params.get("routing").map(str::to_owned),
        realtime,
        refresh,
    };
    let (index, found) = coordinator.get(request).await?;
    if let (Some(found), Some(wanted)) = (&found, context.params.number("version")?)
        && found.version != wanted
    {
        return Err(ApiError::new(
            409,
            "version_conflict_engine_exception",
            format!("[{id}]: version conflict, current version [{}] is different than the one provided [{wanted}]", found.version),
        )
        .about(&index));
    }
    Ok((index, id, found))
}

async fn get(context: Context) -> Result<Reply, ApiError> {
    context.no_body("/{index}/_doc/{id}")?;
    let (index, id, found) = fetch(&context).await?;
    let status = if found.is_some() { 200 } else { 404 };
    Reply::with_status(
        status,
        &Document::new(&index, &id, found.as_ref(), &source_filter(&context))?,
    )
}

async fn get_source(context: Context) -> Result<Reply, ApiError> {
    context.no_body("/{index}/_source/{id}")?;
    let (index, id, found) = fetch(&context).await?;
    let source = match found {
        Some(found) => filtered(&found.source, &source_filter(&context))?,
        None => None,
    };
    match source {
        Some(source) => Reply::json(&source),
        None => Err(ApiError::new(
            404,
            "resource_not_found_exception",
            format!("Document not found [{}]/[{id}]", index.name),
        )
        .about(&index)),
    }
}
