//! Indices: create, read, delete, exists, mappings, settings.

use crate::{Context, reply::Reply, table::Route};
use segmentry_coordinator::{ApiError, document::ActiveShards, indices::NewIndex, names};
use segmentry_settings::flat;
use segmentry_state::Index;
use serde_json::{Map, Value, json};
use std::{sync::Arc, time::Duration};

const NAMES: &[&str] = &[
    "ignore_unavailable",
    "allow_no_indices",
    "expand_wildcards",
    "local",
    "master_timeout",
    "cluster_manager_timeout",
];
const READ: &[&str] = &[
    "ignore_unavailable",
    "allow_no_indices",
    "expand_wildcards",
    "local",
    "master_timeout",
    "cluster_manager_timeout",
    "flat_settings",
    "include_defaults",
];
const CHANGE: &[&str] = &[
    "ignore_unavailable",
    "allow_no_indices",
    "expand_wildcards",
    "master_timeout",
    "cluster_manager_timeout",
    "timeout",
    "flat_settings",
    "preserve_existing",
    "write_index_only",
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
    route(
        &["PUT"],
        "/{index}",
        &[
            "wait_for_active_shards",
            "timeout",
            "master_timeout",
            "cluster_manager_timeout",
        ],
        handler!(create),
    ),
    route(&["GET"], "/{index}", READ, handler!(get)),
    route(
        &["DELETE"],
        "/{index}",
        &[
            "ignore_unavailable",
            "allow_no_indices",
            "expand_wildcards",
            "timeout",
            "master_timeout",
            "cluster_manager_timeout",
        ],
        handler!(delete),
    ),
    route(&["GET"], "/_mapping", NAMES, handler!(get_mapping)),
    route(&["GET"], "/{index}/_mapping", NAMES, handler!(get_mapping)),
    route(&["GET"], "/{index}/_mappings", NAMES, handler!(get_mapping)),
    route(
        &["PUT", "POST"],
        "/{index}/_mapping",
        CHANGE,
        handler!(put_mapping),
    ),
    route(
        &["PUT", "POST"],
        "/{index}/_mappings",
        CHANGE,
        handler!(put_mapping),
    ),
    route(&["GET"], "/_settings", READ, handler!(get_settings)),
    route(&["GET"], "/{index}/_settings", READ, handler!(get_settings)),
    route(
        &["GET"],
        "/{index}/_settings/{name}",
        READ,
        handler!(get_settings),
    ),
    route(&["PUT"], "/_settings", CHANGE, handler!(put_settings)),
    route(&["PUT"], "/{index}/_settings", CHANGE, handler!(put_settings)),
];

/// `wait_for_active_shards`.
///
/// # Errors
/// Neither `all` nor a number.
pub fn active_shards(context: &Context) -> Result<ActiveShards, ApiError> {
    match context.params.get("wait_for_active_shards") {
        None => Ok(ActiveShards::Count(1)),
        Some("all") => Ok(ActiveShards::All),
        Some(text) => text
            .parse()
            .map(ActiveShards::Count)
            .map_err(|_| ApiError::illegal(format!("cannot parse ActiveShardCount[{text}]"))),
    }
}

/// The indices that the path means, from the state as applied here.
///
/// # Errors
/// A name that does not exist.
pub fn resolve(context: &Context) -> Result<Vec<Arc<Index>>, ApiError> {
    let state = context.shared.coordinator.formed()?;
    names::resolve(&state, context.index(), context.names()?)
}

async fn create(context: Context) -> Result<Reply, ApiError> {
    let name = context.index().unwrap_or_default().to_owned();
    let (mut settings, mut mappings) = (Value::Null, Value::Null);
    match context.json()? {
        Value::Null => {}
        Value::Object(body) => {
            for (key, value) in body {
                match key.as_str() {
                    "settings" => settings = value,
                    "mappings" => mappings = value,
                    "aliases" if value.as_object().is_some_and(Map::is_empty) => {}
                    "aliases" => {
                        return Err(ApiError::unsupported(
                            "[aliases] in the body of a create index request",
                        ));
                    }
                    other => {
                        return Err(ApiError::new(
                            400,
                            "parse_exception",
                            format!("unknown key [{other}] for create index"),
                        ));
                    }
                }
            }
        }
        _ => {
            return Err(ApiError::new(
                400,
                "parse_exception",
                "the body of a create index request must be an object",
            ));
        }
    }
    let new = NewIndex {
        name: name.clone(),
        settings,
        mappings,
        declared: None,
    };
    let wait = active_shards(&context)?;
    let timeout = context.params.time("timeout", Duration::from_secs(30))?;
    let created = context
        .shared
        .coordinator
        .create_index(new, wait, timeout)
        .await?;
    Reply::json(&json!({
        "acknowledged": true,
        "shards_acknowledged": created.shards_acknowledged,
        "index": name,
    }))
}

async fn get(context: Context) -> Result<Reply, ApiError> {
    let flat_settings = context.params.bool("flat_settings", false)?;
    let mut out = Map::new();
    for index in resolve(&context)? {
        let mut one = json!({
            "aliases": {},
            "mappings": index.mapping.to_json(),
            "settings": flat::render(&index.settings_flat(), flat_settings),
        });
        if context.params.bool("include_defaults", false)? {
            one["defaults"] = flat::render(&index.settings.defaults(), flat_settings);
        }
        out.insert(index.name.clone(), one);
    }
    Reply::json(&Value::Object(out))
}

async fn delete(context: Context) -> Result<Reply, ApiError> {
    context.no_body("/{index}")?;
    for index in resolve(&context)? {
        context
            .shared
            .coordinator
            .delete_index(index.uuid, None)
            .await
            .map_err(|error| error.about(&index))?;
    }
    Reply::json(&json!({"acknowledged": true}))
}

async fn get_mapping(context: Context) -> Result<Reply, ApiError> {
    let mut out = Map::new();
    for index in resolve(&context)? {
        out.insert(index.name.clone(), json!({"mappings": index.mapping.to_json()}));
    }
    Reply::json(&Value::Object(out))
}

async fn put_mapping(context: Context) -> Result<Reply, ApiError> {
    context.params.only("write_index_only", &["false"])?;
    let body = context.json()?;
    if body.is_null() {
        return Err(ApiError::validation("mapping source is missing"));
    }
    for index in resolve(&context)? {
        context.shared.coordinator.put_mapping(index.uuid, &body).await?;
    }
    Reply::json(&json!({"acknowledged": true}))
}

async fn get_settings(context: Context) -> Result<Reply, ApiError> {
    let flat_settings = context.params.bool("flat_settings", false)?;
    let wanted = context.segment("name");
    let keep = |key: &str| {
        wanted.is_none_or(|list| {
            list.split(',')
                .any(|pattern| pattern == "_all" || segmentry_query::source::matches(pattern, key))
        })
    };
    let mut out = Map::new();
    for index in resolve(&context)? {
        let mut settings = index.settings_flat();
        settings.retain(|key, _| keep(key));
        let mut one = json!({"settings": flat::render(&settings, flat_settings)});
        if context.params.bool("include_defaults", false)? {
            let mut defaults = index.settings.defaults();
            defaults.retain(|key, _| keep(key));
            one["defaults"] = flat::render(&defaults, flat_settings);
        }
        out.insert(index.name.clone(), one);
    }
    Reply::json(&Value::Object(out))
}

async fn put_settings(context: Context) -> Result<Reply, ApiError> {
    context.params.only("write_index_only", &[])?;
    let preserve = context.params.bool("preserve_existing", false)?;
    let body = match context.json()? {
        Value::Null => return Err(ApiError::validation("no settings to update")),
        // `{"settings": {…}}` means the same as what is in it.
        Value::Object(mut body) if body.len() == 1 && body.contains_key("settings") => {
            body.shift_remove("settings").unwrap_or(Value::Null)
        }
        body => body,
    };
    let indices = resolve(&context)?;
    for index in &indices {
        context
            .shared
            .coordinator
            .put_settings(index.uuid, &body, preserve)
            .await
            .map_err(|error| {
                if error.index.is_none() {
                    error.about(index)
                } else {
                    error
                }
            })?;
    }
    Reply::json(&json!({"acknowledged": true}))
}
