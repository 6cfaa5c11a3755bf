//! `_search` and `_count`.

use crate::{
    Context,
    indices::resolve,
    reply::{Content, Reply, failure_object},
    table::Route,
};
use segmentry_coordinator::{
    ApiError, now_ms,
    search::{Preference, Searched, ShardTally},
};
use segmentry_query::{UrlParams, parse_count, parse_search};
use serde_json::{Map, Value, json};
use std::fmt::Display;

/// Parameters that this layer takes; the others of a search go to its parser, which refuses by name what it does not take.
const OWN: &[&str] = &[
    "pretty",
    "human",
    "error_trace",
    "filter_path",
    "ignore_unavailable",
    "allow_no_indices",
    "expand_wildcards",
    "routing",
    "preference",
    "allow_partial_search_results",
    "rest_total_hits_as_int",
    "typed_keys",
    "search_type",
    "ccs_minimize_roundtrips",
    "max_concurrent_shard_requests",
    "batched_reduce_size",
    "pre_filter_shard_size",
    "request_cache",
    "ignore_throttled",
    "cancel_after_time_interval",
    "phase_took",
];

const SEARCH: &[&str] = &[
    "ignore_unavailable",
    "allow_no_indices",
    "expand_wildcards",
    "routing",
    "preference",
    "allow_partial_search_results",
    "rest_total_hits_as_int",
    "typed_keys",
    "search_type",
    "ccs_minimize_roundtrips",
    "max_concurrent_shard_requests",
    "batched_reduce_size",
    "pre_filter_shard_size",
    "request_cache",
    "ignore_throttled",
    "cancel_after_time_interval",
    "phase_took",
    "from",
    "size",
    "sort",
    "_source",
    "_source_includes",
    "_source_excludes",
    "track_total_hits",
    "track_scores",
    "version",
    "seq_no_primary_term",
    "q",
    "df",
    "analyzer",
    "analyze_wildcard",
    "default_operator",
    "lenient",
    "explain",
    "timeout",
    "terminate_after",
    "stored_fields",
    "docvalue_fields",
    "stats",
    "suggest_field",
    "suggest_mode",
    "suggest_size",
    "suggest_text",
    "scroll",
    "search_pipeline",
    "include_named_queries_score",
    "source",
    "source_content_type",
];

const COUNT: &[&str] = &[
    "ignore_unavailable",
    "allow_no_indices",
    "expand_wildcards",
    "routing",
    "preference",
    "ignore_throttled",
    "q",
    "df",
    "analyzer",
    "analyze_wildcard",
    "default_operator",
    "lenient",
    "min_score",
    "terminate_after",
    "source",
    "source_content_type",
];

const fn route(path: &'static str, params: &'static [&'static str], handler: crate::table::Handler) -> Route {
    Route {
        methods: &["GET", "POST"],
        path,
        params,
        handler,
    }
}

/// Endpoints.
pub const ROUTES: &[Route] = &[
    route("/_search", SEARCH, handler!(search)),
    route("/{index}/_search", SEARCH, handler!(search)),
    route("/_count", COUNT, handler!(count)),
    route("/{index}/_count", COUNT, handler!(count)),
];

/// Refuses values of parameters that would change the answer in OpenSearch and have no effect here.
fn refuse(context: &Context) -> Result<(), ApiError> {
    let params = &context.params;
    for name in ["rest_total_hits_as_int", "typed_keys", "phase_took"] {
        params.only(name, &["false"])?;
    }
    params.only("search_type", &["query_then_fetch"])?;
    params.only("ignore_throttled", &["true", "false", ""])?;
    params.only("request_cache", &["false"])?;
    for name in ["cancel_after_time_interval", "source", "source_content_type"] {
        params.only(name, &[])?;
    }
    // One round for all shards: these bound work that is not done here.
    params.bool("ccs_minimize_roundtrips", true)?;
    for name in [
        "max_concurrent_shard_requests",
        "batched_reduce_size",
        "pre_filter_shard_size",
    ] {
        params.number(name)?;
    }
    Ok(())
}

async fn search(context: Context) -> Result<Reply, ApiError> {
    refuse(&context)?;
    let params: UrlParams = context
        .params
        .iter()
        .filter(|(name, _)| !OWN.contains(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let now = i64::try_from(now_ms()).unwrap_or(i64::MAX);
    let request = parse_search(&context.json()?, &params, now)?;
    let preference = Preference::parse(context.params.get("preference"))?;
    let partial = context.params.bool("allow_partial_search_results", true)?;
    let indices = resolve(&context)?;
    let searched = context
        .shared
        .coordinator
        .search(
            &indices,
            request,
            context.params.get("routing"),
            &preference,
            partial,
        )
        .await?;
    Ok(Reply {
        status: 200,
        body: Content::Json(answer(&searched)?),
        headers: Vec::new(),
    })
}

fn broken(error: impl Display) -> ApiError {
    ApiError::new(
        500,
        "internal_error",
        format!("answer cannot be encoded: {error}"),
    )
}

/// Keys in OpenSearch's order; sources go out as the bytes that they are.
fn answer(searched: &Searched) -> Result<Vec<u8>, ApiError> {
    let names = |ordinal: u32| {
        usize::try_from(ordinal)
            .ok()
            .and_then(|position| searched.targets.get(position))
            .map_or("", |(index, _)| index.name.as_str())
    };
    let hits = searched.result.hits_json(names).map_err(broken)?;
    let mut out = Vec::with_capacity(hits.len() + 256);
    out.extend_from_slice(
        format!(r#"{{"took":{},"timed_out":false,"_shards":"#, searched.took_ms).as_bytes(),
    );
    serde_json::to_writer(&mut out, &tally(&searched.shards, true)).map_err(broken)?;
    out.extend_from_slice(br#","hits":"#);
    out.extend_from_slice(&hits);
    if let Some(aggregations) = &searched.result.aggregations {
        out.extend_from_slice(br#","aggregations":"#);
        serde_json::to_writer(&mut out, aggregations).map_err(broken)?;
    }
    out.push(b'}');
    Ok(out)
}

fn tally(shards: &ShardTally, skipped: bool) -> Value {
    let mut out = Map::new();
    out.insert("total".into(), json!(shards.total));
    out.insert("successful".into(), json!(shards.successful));
    if skipped {
        // Every shard is asked.
        out.insert("skipped".into(), json!(0));
    }
    out.insert("failed".into(), json!(shards.failures.len()));
    if !shards.failures.is_empty() {
        let failures: Vec<Value> = shards.failures.iter().map(failure_object).collect();
        out.insert("failures".into(), json!(failures));
    }
    Value::Object(out)
}

async fn count(context: Context) -> Result<Reply, ApiError> {
    let params = &context.params;
    params.only("ignore_throttled", &["true", "false", ""])?;
    for name in [
        "q",
        "df",
        "analyzer",
        "analyze_wildcard",
        "default_operator",
        "lenient",
        "min_score",
        "terminate_after",
        "source",
        "source_content_type",
    ] {
        if params.get(name).is_some() {
            return Err(ApiError::unsupported(format!(
                "parameter [{name}] of a count request"
            )));
        }
    }
    let query = parse_count(&context.json()?, &UrlParams::new())?;
    let preference = Preference::parse(params.get("preference"))?;
    let indices = resolve(&context)?;
    let (count, shards) = context
        .shared
        .coordinator
        .count(&indices, query, params.get("routing"), &preference)
        .await?;
    Reply::json(&json!({"count": count, "_shards": tally(&shards, true)}))
}
