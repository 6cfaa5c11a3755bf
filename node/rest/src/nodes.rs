//! `_nodes`, `_nodes/http`, `_nodes/stats`.

use crate::{Context, info::API_VERSION, reply::Reply, table::Route};
use segmentry_coordinator::{
    ApiError,
    stats::{CopyStats, Counters},
};
use segmentry_query::source::matches;
use segmentry_state::{ClusterState, Index, Node};
use serde_json::{Map, Value, json};
use std::sync::Arc;

const PARAMS: &[&str] = &["timeout", "flat_settings"];
const STATS: &[&str] = &[
    "timeout",
    "level",
    "types",
    "completion_fields",
    "include_segment_file_sizes",
];

const fn route(path: &'static str, params: &'static [&'static str], handler: crate::table::Handler) -> Route {
    Route {
        methods: &["GET"],
        path,
        params,
        handler,
    }
}

/// Endpoints.
pub const ROUTES: &[Route] = &[
    route("/_nodes", PARAMS, handler!(all)),
    route("/_nodes/http", PARAMS, handler!(all)),
    route("/_nodes/_all", PARAMS, handler!(all)),
    route("/_nodes/stats", STATS, handler!(stats)),
    route("/_nodes/stats/{metric}", STATS, handler!(stats)),
    route("/_nodes/{id}", PARAMS, handler!(all)),
    route("/_nodes/{id}/http", PARAMS, handler!(all)),
    route("/_nodes/{id}/info", PARAMS, handler!(all)),
    route("/_nodes/{id}/stats", STATS, handler!(stats)),
    route("/_nodes/{id}/stats/{metric}", STATS, handler!(stats)),
];

/// Members that are alive and that the path means: `_all`, `_local`, `_cluster_manager`, names and ids with `*`.
fn chosen(context: &Context, state: &ClusterState) -> Vec<Node> {
    let coordinator = &context.shared.coordinator;
    let own = coordinator.identity().node_id;
    let leader = coordinator.leader();
    let list = context.segment("id").unwrap_or("_all");
    let mut nodes: Vec<Node> = state
        .alive()
        .filter(|node| {
            list.split(',').any(|part| match part {
                "_all" => true,
                "_local" => node.id == own,
                "_cluster_manager" | "_master" => leader == Some(node.id),
                other => matches(other, &node.name) || matches(other, &node.id.to_string()),
            })
        })
        .cloned()
        .collect();
    nodes.sort_by(|left, right| left.name.cmp(&right.name));
    nodes
}

/// The host of `host:port`.
pub fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

fn head(node: &Node) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("name".into(), json!(node.name));
    out.insert("transport_address".into(), json!(node.address));
    out.insert("host".into(), json!(host(&node.rest_address)));
    out.insert("ip".into(), json!(host(&node.rest_address)));
    out.insert("roles".into(), json!(["cluster_manager", "data", "ingest"]));
    out
}

fn answer(state: &ClusterState, nodes: Map<String, Value>, failed: usize) -> Result<Reply, ApiError> {
    Reply::json(&json!({
        "_nodes": {"total": nodes.len() + failed, "successful": nodes.len(), "failed": failed},
        "cluster_name": state.cluster_name,
        "nodes": nodes,
    }))
}

async fn all(context: Context) -> Result<Reply, ApiError> {
    context.params.bool("flat_settings", false)?;
    let state = context.shared.coordinator.formed()?;
    let nodes = chosen(&context, &state)
        .into_iter()
        .map(|node| {
            let mut one = head(&node);
            one.insert("version".into(), json!(API_VERSION));
            one.insert("build_type".into(), json!("segmentry"));
            one.insert("build_hash".into(), json!(format!("segmentry-{}", node.version)));
            one.insert("segmentry_version".into(), json!(node.version));
            one.insert(
                "http".into(),
                json!({"bound_address": [node.rest_address], "publish_address": node.rest_address,
                       "max_content_length_in_bytes": crate::body::MAX_BODY_BYTES}),
            );
            one.insert("plugins".into(), json!([]));
            one.insert("modules".into(), json!([]));
            (node.id.to_string(), Value::Object(one))
        })
        .collect();
    answer(&state, nodes, 0)
}

async fn stats(context: Context) -> Result<Reply, ApiError> {
    context.params.only("level", &["node"])?;
    for name in ["types", "completion_fields"] {
        context.params.only(name, &[])?;
    }
    context.params.only("include_segment_file_sizes", &["false"])?;
    match context.segment("metric") {
        None | Some("_all" | "indices") => {}
        Some(other) => {
            return Err(ApiError::unsupported(format!(
                "metric [{other}] of the nodes stats request"
            )));
        }
    }
    let coordinator = &context.shared.coordinator;
    let state = coordinator.formed()?;
    let indices: Vec<Arc<Index>> = state.indices.values().cloned().collect();
    let (copies, failed) = coordinator.stats(&indices).await;
    let nodes = chosen(&context, &state)
        .into_iter()
        .filter(|node| !failed.iter().any(|(name, _)| *name == node.name))
        .map(|node| {
            let mut one = head(&node);
            one.insert("timestamp".into(), json!(segmentry_coordinator::now_ms()));
            let own: Vec<&CopyStats> = copies.iter().filter(|copy| copy.node == node.id).collect();
            one.insert("indices".into(), Value::Object(sections(&own)));
            (node.id.to_string(), Value::Object(one))
        })
        .collect();
    answer(&state, nodes, failed.len())
}

/// Numbers of some copies together, in OpenSearch's sections; only what is counted.
pub fn sections(copies: &[&CopyStats]) -> Map<String, Value> {
    let mut counters = Counters::default();
    for copy in copies {
        counters.add(&copy.counters);
    }
    let total = |number: fn(&CopyStats) -> u64| -> u64 { copies.iter().map(|copy| number(copy)).sum() };
    let earliest = copies
        .iter()
        .map(|copy| copy.translog_earliest_age_ms)
        .max()
        .unwrap_or(0);
    let segments: usize = copies.iter().map(|copy| copy.segments.len()).sum();
    let mut out = Map::new();
    out.insert(
        "docs".into(),
        json!({"count": total(|copy| copy.report.documents), "deleted": total(|copy| copy.deleted)}),
    );
    out.insert(
        "store".into(),
        json!({"size_in_bytes": total(|copy| copy.store_bytes)}),
    );
    out.insert(
        "indexing".into(),
        json!({"index_total": counters.index_total, "delete_total": counters.delete_total, "index_failed": counters.index_failed}),
    );
    out.insert(
        "search".into(),
        json!({"query_total": counters.query_total, "query_time_in_millis": counters.query_time_ms}),
    );
    out.insert(
        "refresh".into(),
        json!({"total": counters.refresh_total, "total_time_in_millis": counters.refresh_time_ms}),
    );
    out.insert(
        "flush".into(),
        json!({"total": counters.flush_total, "total_time_in_millis": counters.flush_time_ms}),
    );
    out.insert("segments".into(), json!({"count": segments}));
    out.insert(
        "translog".into(),
        json!({
            "operations": total(|copy| copy.report.translog_operations),
            "size_in_bytes": total(|copy| copy.report.translog_size_bytes),
            "uncommitted_operations": total(|copy| copy.report.uncommitted_operations),
            "uncommitted_size_in_bytes": total(|copy| copy.report.uncommitted_size_bytes),
            "earliest_last_modified_age": earliest,
        }),
    );
    out
}
