//! Refresh, flush, stats and segments.

use crate::{
    Context,
    indices::resolve,
    nodes::sections,
    reply::{Reply, failure_object},
    table::Route,
};
use segmentry_coordinator::{ApiError, maintenance::Broadcast, stats::CopyStats};
use segmentry_state::{ClusterState, Index};
use serde_json::{Map, Value, json};
use std::sync::Arc;

const NAMES: &[&str] = &["ignore_unavailable", "allow_no_indices", "expand_wildcards"];
const FLUSH: &[&str] = &[
    "ignore_unavailable",
    "allow_no_indices",
    "expand_wildcards",
    "force",
    "wait_if_ongoing",
];
const STATS: &[&str] = &[
    "ignore_unavailable",
    "allow_no_indices",
    "expand_wildcards",
    "level",
    "forbid_closed_indices",
];

const fn route(
    methods: &'static [&'static str],
    path: &'static str,
    params: &'static [&'static str],
    handler: crate::table::Handler,
) -> Route {
    Route {
        methods,
        path,
        params,
        handler,
    }
}

/// Endpoints.
pub const ROUTES: &[Route] = &[
    route(&["POST", "GET"], "/_refresh", NAMES, handler!(refresh)),
    route(&["POST", "GET"], "/{index}/_refresh", NAMES, handler!(refresh)),
    route(&["POST", "GET"], "/_flush", FLUSH, handler!(flush)),
    route(&["POST", "GET"], "/{index}/_flush", FLUSH, handler!(flush)),
    route(&["GET"], "/_stats", STATS, handler!(stats)),
    route(&["GET"], "/_stats/{metric}", STATS, handler!(stats)),
    route(&["GET"], "/{index}/_stats", STATS, handler!(stats)),
    route(&["GET"], "/{index}/_stats/{metric}", STATS, handler!(stats)),
    route(&["GET"], "/_segments", NAMES, handler!(segments)),
    route(&["GET"], "/{index}/_segments", NAMES, handler!(segments)),
];

fn tally(done: &Broadcast) -> Value {
    let mut out = Map::new();
    out.insert("total".into(), json!(done.total));
    out.insert("successful".into(), json!(done.successful));
    out.insert("failed".into(), json!(done.failures.len()));
    if !done.failures.is_empty() {
        let failures: Vec<Value> = done.failures.iter().map(failure_object).collect();
        out.insert("failures".into(), json!(failures));
    }
    Value::Object(out)
}

async fn refresh(context: Context) -> Result<Reply, ApiError> {
    let done = context.shared.coordinator.refresh(&resolve(&context)?).await;
    Reply::json(&json!({"_shards": tally(&done)}))
}

async fn flush(context: Context) -> Result<Reply, ApiError> {
    context.params.only("wait_if_ongoing", &["", "true"])?;
    context.params.bool("force", false)?;
    let done = context.shared.coordinator.flush(&resolve(&context)?).await;
    Reply::json(&json!({"_shards": tally(&done)}))
}

/// True for the sections of numbers that a metric list names.
///
/// # Errors
/// A metric that is not counted here.
fn wanted(metric: Option<&str>) -> Result<Vec<&str>, ApiError> {
    let all = vec![
        "docs", "store", "indexing", "search", "refresh", "flush", "segments", "translog",
    ];
    let Some(list) = metric.filter(|list| *list != "_all") else {
        return Ok(all);
    };
    let mut out = Vec::new();
    for name in list.split(',').filter(|name| !name.is_empty()) {
        match all.iter().find(|known| **known == name) {
            Some(known) => out.push(*known),
            None => {
                return Err(ApiError::unsupported(format!(
                    "metric [{name}] of the stats request"
                )));
            }
        }
    }
    Ok(out)
}

fn sum<'a>(copies: impl Iterator<Item = &'a CopyStats>, wanted: &[&str]) -> Value {
    let copies: Vec<&CopyStats> = copies.collect();
    let mut out = sections(&copies);
    out.retain(|name, _| wanted.contains(&name.as_str()));
    Value::Object(out)
}

async fn stats(context: Context) -> Result<Reply, ApiError> {
    let level = context.params.get("level").unwrap_or("indices").to_owned();
    if !["cluster", "indices", "shards"].contains(&level.as_str()) {
        return Err(ApiError::illegal(format!(
            "level parameter must be one of [cluster] or [indices] or [shards] but was [{level}]"
        )));
    }
    context.params.bool("forbid_closed_indices", true)?;
    // `/_stats/a,b`: a list of metrics; `/_all` is every one.
    let wanted = wanted(context.segment("metric"))?;
    let indices = resolve(&context)?;
    let coordinator = &context.shared.coordinator;
    let (copies, failed) = coordinator.stats(&indices).await;
    let state = coordinator.state();
    let primary = |copy: &&CopyStats| is_primary(&state, copy);
    let total: usize = indices
        .iter()
        .map(|index| {
            index.shards.len() * (1 + usize::try_from(index.settings.number_of_replicas).unwrap_or(0))
        })
        .sum();
    let mut out = Map::new();
    out.insert(
        "_shards".into(),
        json!({"total": total, "successful": copies.len(), "failed": failed.len()}),
    );
    out.insert(
        "_all".into(),
        json!({
            "primaries": sum(copies.iter().filter(primary), &wanted),
            "total": sum(copies.iter(), &wanted),
        }),
    );
    if level == "cluster" {
        return Reply::json(&Value::Object(out));
    }
    let mut by_index = Map::new();
    for index in &indices {
        let own: Vec<&CopyStats> = copies
            .iter()
            .filter(|copy| copy.shard.index == index.uuid)
            .collect();
        let mut one = Map::new();
        one.insert("uuid".into(), json!(index.uuid.to_string()));
        one.insert(
            "primaries".into(),
            sum(own.iter().copied().filter(primary), &wanted),
        );
        one.insert("total".into(), sum(own.iter().copied(), &wanted));
        if level == "shards" {
            one.insert("shards".into(), by_shard(&state, index, &own, &wanted));
        }
        by_index.insert(index.name.clone(), Value::Object(one));
    }
    out.insert("indices".into(), Value::Object(by_index));
    Reply::json(&Value::Object(out))
}

fn is_primary(state: &ClusterState, copy: &CopyStats) -> bool {
    state
        .shard(copy.shard)
        .is_some_and(|shard| shard.primary == Some(copy.allocation))
}

fn routing(state: &ClusterState, copy: &CopyStats) -> Value {
    let started = state
        .shard(copy.shard)
        .and_then(|shard| Some(state.copy_state(shard, shard.copy(copy.allocation)?).as_str()));
    json!({
        "state": started.unwrap_or("UNASSIGNED"),
        "primary": is_primary(state, copy),
        "node": copy.node.to_string(),
        "relocating_node": Value::Null,
    })
}

fn by_shard(state: &ClusterState, index: &Arc<Index>, copies: &[&CopyStats], wanted: &[&str]) -> Value {
    let mut shards = Map::new();
    for shard in &index.shards {
        let list: Vec<Value> = copies
            .iter()
            .filter(|copy| copy.shard.shard == shard.number)
            .map(|copy| {
                let mut one = Map::new();
                one.insert("routing".into(), routing(state, copy));
                if let Value::Object(sections) = sum(std::iter::once(*copy), wanted) {
                    one.extend(sections);
                }
                one.insert(
                    "seq_no".into(),
                    json!({"max_seq_no": copy.report.max_seq_no, "local_checkpoint": copy.report.max_seq_no,
                           "global_checkpoint": copy.report.global_checkpoint}),
                );
                one.insert(
                    "segment_replication".into(),
                    json!({"operations_behind": copy.report.lag_operations, "lag_millis": copy.report.lag_millis}),
                );
                Value::Object(one)
            })
            .collect();
        shards.insert(shard.number.to_string(), json!(list));
    }
    Value::Object(shards)
}

async fn segments(context: Context) -> Result<Reply, ApiError> {
    let indices = resolve(&context)?;
    let coordinator = &context.shared.coordinator;
    let (copies, failed) = coordinator.stats(&indices).await;
    let state = coordinator.state();
    let mut by_index = Map::new();
    for index in &indices {
        let mut shards = Map::new();
        for shard in &index.shards {
            let list: Vec<Value> = copies
                .iter()
                .filter(|copy| copy.shard.index == index.uuid && copy.shard.shard == shard.number)
                .map(|copy| {
                    let segments: Map<String, Value> = copy
                        .segments
                        .iter()
                        .map(|segment| {
                            let value = json!({
                                "num_docs": segment.documents,
                                "deleted_docs": segment.deleted,
                                "size_in_bytes": segment.size_bytes,
                                "committed": segment.committed,
                                "search": segment.searchable,
                            });
                            (segment.name.clone(), value)
                        })
                        .collect();
                    let mut place = routing(&state, copy);
                    if let Some(place) = place.as_object_mut() {
                        place.shift_remove("relocating_node");
                    }
                    json!({
                        "routing": place,
                        "num_committed_segments": copy.segments.iter().filter(|segment| segment.committed).count(),
                        "num_search_segments": copy.segments.iter().filter(|segment| segment.searchable).count(),
                        "segments": segments,
                    })
                })
                .collect();
            if !list.is_empty() {
                shards.insert(shard.number.to_string(), json!(list));
            }
        }
        by_index.insert(index.name.clone(), json!({"shards": shards}));
    }
    let total: usize = indices
        .iter()
        .map(|index| {
            index.shards.len() * (1 + usize::try_from(index.settings.number_of_replicas).unwrap_or(0))
        })
        .sum();
    Reply::json(&json!({
        "_shards": {"total": total, "successful": copies.len(), "failed": failed.len()},
        "indices": by_index,
    }))
}
