//! `_cluster/health` and `_cluster/settings`.

use crate::{Context, reply::Reply, table::Route};
use segmentry_coordinator::{
    ApiError,
    health::{ClusterHealth, CopyCounts, HealthWait, NodeCount},
};
use segmentry_settings::{admin::Health, cluster, flat};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, time::Duration};

const HEALTH: &[&str] = &[
    "level",
    "wait_for_status",
    "wait_for_nodes",
    "wait_for_active_shards",
    "wait_for_no_initializing_shards",
    "wait_for_no_relocating_shards",
    "timeout",
    "local",
    "master_timeout",
    "cluster_manager_timeout",
    "expand_wildcards",
    "ignore_unavailable",
    "allow_no_indices",
];

/// Endpoints.
pub const ROUTES: &[Route] = &[
    Route {
        methods: &["GET"],
        path: "/_cluster/health",
        params: HEALTH,
        handler: handler!(health),
    },
    Route {
        methods: &["GET"],
        path: "/_cluster/health/{target}",
        params: HEALTH,
        handler: handler!(health),
    },
    Route {
        methods: &["GET"],
        path: "/_cluster/settings",
        params: &[
            "flat_settings",
            "include_defaults",
            "local",
            "master_timeout",
            "cluster_manager_timeout",
            "timeout",
        ],
        handler: handler!(get_settings),
    },
    Route {
        methods: &["PUT"],
        path: "/_cluster/settings",
        params: &[
            "flat_settings",
            "master_timeout",
            "cluster_manager_timeout",
            "timeout",
        ],
        handler: handler!(put_settings),
    },
];

/// As health is written.
pub const fn word(health: Health) -> &'static str {
    match health {
        Health::Green => "green",
        Health::Yellow => "yellow",
        Health::Red => "red",
    }
}

async fn health(context: Context) -> Result<Reply, ApiError> {
    let params = &context.params;
    let expression = context.segment("target");
    let level = params.get("level").unwrap_or("cluster");
    if !["cluster", "indices", "shards"].contains(&level) {
        return Err(ApiError::illegal(format!(
            "unknown level [{level}], must be one of [cluster], [indices], [shards]"
        )));
    }
    let status = match params
        .get("wait_for_status")
        .map(str::to_ascii_lowercase)
        .as_deref()
    {
        None => None,
        Some("green") => Some(Health::Green),
        Some("yellow") => Some(Health::Yellow),
        Some("red") => Some(Health::Red),
        Some(other) => {
            return Err(ApiError::illegal(format!(
                "unknown cluster health status [{other}]"
            )));
        }
    };
    let active_shards = match params.get("wait_for_active_shards") {
        None => None,
        Some("all") => Some(None),
        Some(text) => Some(Some(text.parse().map_err(|_| {
            ApiError::illegal(format!("cannot parse ActiveShardCount[{text}]"))
        })?)),
    };
    // Copies do not move here, so nothing relocates: the wait for that is over at once.
    params.bool("wait_for_no_relocating_shards", false)?;
    let local = params.bool("local", false)?;
    let indices = expression
        .map(|list| {
            list.split(',')
                .filter(|name| !name.contains('*') && *name != "_all")
                .map(str::to_owned)
                .collect()
        })
        .unwrap_or_default();
    let wait = HealthWait {
        status,
        nodes: params.get("wait_for_nodes").map(NodeCount::parse).transpose()?,
        active_shards,
        no_initializing: params.bool("wait_for_no_initializing_shards", false)?,
        indices,
    };
    let timeout = params.time("timeout", Duration::from_secs(30))?;
    let waits = wait != HealthWait::default() || params.get("timeout").is_some();
    let coordinator = &context.shared.coordinator;
    let health = if waits {
        coordinator
            .wait_health(expression, context.names()?, &wait, timeout)
            .await?
    } else if local {
        let state = coordinator.state();
        let indices = segmentry_coordinator::names::resolve(&state, expression, context.names()?)?;
        coordinator.health(&state, &indices)
    } else {
        coordinator.fresh_health(expression, context.names()?).await?
    };
    Reply::with_status(if health.timed_out { 408 } else { 200 }, &body(&health, level))
}

fn counts(out: &mut Map<String, Value>, counts: CopyCounts) {
    out.insert("active_primary_shards".into(), json!(counts.active_primaries));
    out.insert("active_shards".into(), json!(counts.active));
    // Roles change hands and files are built beside live ones: no copy moves while it serves.
    out.insert("relocating_shards".into(), json!(0));
    out.insert("initializing_shards".into(), json!(counts.initializing));
    out.insert("unassigned_shards".into(), json!(counts.unassigned));
}

fn body(health: &ClusterHealth, level: &str) -> Value {
    let mut out = Map::new();
    out.insert("cluster_name".into(), json!(health.cluster_name));
    out.insert("status".into(), json!(word(health.status)));
    out.insert("timed_out".into(), json!(health.timed_out));
    out.insert("number_of_nodes".into(), json!(health.nodes));
    out.insert("number_of_data_nodes".into(), json!(health.nodes));
    out.insert("discovered_master".into(), json!(health.has_leader));
    out.insert("discovered_cluster_manager".into(), json!(health.has_leader));
    counts(&mut out, health.counts);
    out.insert("delayed_unassigned_shards".into(), json!(health.counts.delayed));
    // Changes are committed one batch after the other, without a queue of tasks; and copies report by themselves.
    out.insert("number_of_pending_tasks".into(), json!(0));
    out.insert("number_of_in_flight_fetch".into(), json!(0));
    out.insert("task_max_waiting_in_queue_millis".into(), json!(0));
    out.insert(
        "active_shards_percent_as_number".into(),
        json!(health.active_percent()),
    );
    if level == "cluster" {
        return Value::Object(out);
    }
    let mut indices = Map::new();
    for index in &health.indices {
        let mut one = Map::new();
        one.insert("status".into(), json!(word(index.status)));
        one.insert(
            "number_of_shards".into(),
            json!(index.index.settings.number_of_shards),
        );
        one.insert(
            "number_of_replicas".into(),
            json!(index.index.settings.number_of_replicas),
        );
        counts(&mut one, index.counts);
        if level == "shards" {
            let mut shards = Map::new();
            for (number, (status, copies)) in index.shards.iter().enumerate() {
                let mut shard = Map::new();
                shard.insert("status".into(), json!(word(*status)));
                shard.insert("primary_active".into(), json!(copies.active_primaries > 0));
                shard.insert("active_shards".into(), json!(copies.active));
                shard.insert("relocating_shards".into(), json!(0));
                shard.insert("initializing_shards".into(), json!(copies.initializing));
                shard.insert("unassigned_shards".into(), json!(copies.unassigned));
                shards.insert(number.to_string(), Value::Object(shard));
            }
            one.insert("shards".into(), Value::Object(shards));
        }
        indices.insert(index.index.name.clone(), Value::Object(one));
    }
    out.insert("indices".into(), Value::Object(indices));
    Value::Object(out)
}

async fn get_settings(context: Context) -> Result<Reply, ApiError> {
    let flat_settings = context.params.bool("flat_settings", false)?;
    let state = context.shared.coordinator.formed()?;
    let mut out = Map::new();
    out.insert("persistent".into(), flat::render(&state.settings, flat_settings));
    out.insert("transient".into(), json!({}));
    if context.params.bool("include_defaults", false)? {
        let mut defaults = state.cluster_settings().effective();
        defaults.retain(|key, _| !state.settings.contains_key(key));
        out.insert("defaults".into(), flat::render(&defaults, flat_settings));
    }
    Reply::json(&Value::Object(out))
}

async fn put_settings(context: Context) -> Result<Reply, ApiError> {
    let flat_settings = context.params.bool("flat_settings", false)?;
    let Value::Object(body) = context.json()? else {
        return Err(ApiError::validation("no settings to update"));
    };
    let mut changes = BTreeMap::new();
    for (name, value) in &body {
        match name.as_str() {
            "persistent" => changes = cluster::parse_update(value)?,
            "transient" if flat::flatten(value)?.is_empty() => {}
            "transient" => {
                return Err(ApiError::unsupported(
                    "a [transient] cluster setting, use [persistent],",
                ));
            }
            other => {
                return Err(ApiError::illegal(format!(
                    "unknown field [{other}] in the body of a settings update"
                )));
            }
        }
    }
    if changes.is_empty() {
        return Err(ApiError::validation("no settings to update"));
    }
    let coordinator = &context.shared.coordinator;
    coordinator.formed()?;
    let named: Vec<String> = changes.keys().cloned().collect();
    let state = coordinator.put_cluster_settings(None, changes).await?;
    let mut now = state.settings.clone();
    now.retain(|key, _| named.contains(key));
    Reply::json(&json!({
        "acknowledged": true,
        "persistent": flat::render(&now, flat_settings),
        "transient": {},
    }))
}
