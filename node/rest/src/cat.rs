//! `_cat/{health,nodes,indices,shards}`: tables for people, or JSON.
//!
//! `h` chooses columns by name or alias, `s` sorts (`name`, `name:desc`), `v` prints a head, `help` lists the columns,
//! `format=json` answers objects of strings. `bytes` and `time` choose units; without them a fitting one is printed.

use crate::{
    Context,
    cluster::word,
    columns::{Cell, Column, column, help, print},
    nodes::host,
    reply::Reply,
    table::Route,
};
use segmentry_coordinator::{ApiError, health::index_health, names, stats::CopyStats};
use segmentry_state::{AllocationId, ClusterState, Index, ShardId};
use std::{collections::HashMap, sync::Arc};

const TABLE: &[&str] = &[
    "v",
    "h",
    "s",
    "help",
    "format",
    "bytes",
    "time",
    "local",
    "master_timeout",
    "cluster_manager_timeout",
    "expand_wildcards",
    "health",
    "pri",
];

const fn route(path: &'static str, handler: crate::table::Handler) -> Route {
    Route {
        methods: &["GET"],
        path,
        params: TABLE,
        handler,
    }
}

/// Endpoints.
pub const ROUTES: &[Route] = &[
    route("/_cat/health", handler!(health)),
    route("/_cat/nodes", handler!(nodes)),
    route("/_cat/indices", handler!(indices)),
    route("/_cat/indices/{target}", handler!(indices)),
    route("/_cat/shards", handler!(shards)),
    route("/_cat/shards/{target}", handler!(shards)),
];

const HEALTH: &[Column] = &[
    column(
        "epoch",
        &["t", "time"],
        true,
        true,
        "seconds since 1970-01-01 00:00:00",
    ),
    column(
        "timestamp",
        &["ts", "hms", "hhmmss"],
        true,
        false,
        "time in HH:MM:SS",
    ),
    column("cluster", &["cl"], true, false, "cluster name"),
    column("status", &["st"], true, false, "health status"),
    column(
        "node.total",
        &["nt", "nodeTotal"],
        true,
        true,
        "total number of nodes",
    ),
    column(
        "node.data",
        &["nd", "nodeData"],
        true,
        true,
        "number of nodes that can store data",
    ),
    column(
        "discovered_cluster_manager",
        &["dcm"],
        true,
        false,
        "cluster manager is discovered",
    ),
    column(
        "shards",
        &["t", "sh", "shards.total", "shardsTotal"],
        true,
        true,
        "total number of started shards",
    ),
    column(
        "pri",
        &["p", "shards.primary", "shardsPrimary"],
        true,
        true,
        "number of started primary shards",
    ),
    column(
        "init",
        &["i", "shards.initializing", "shardsInitializing"],
        true,
        true,
        "number of initializing shards",
    ),
    column(
        "unassign",
        &["u", "shards.unassigned", "shardsUnassigned"],
        true,
        true,
        "number of unassigned shards",
    ),
    column(
        "active_shards_percent",
        &["asp", "activeShardsPercent"],
        true,
        true,
        "active number of shards in percent",
    ),
];

const NODES: &[Column] = &[
    column("id", &["nodeId"], false, false, "unique node id"),
    column("ip", &["i"], true, false, "ip address"),
    column("port", &["po"], false, true, "bound transport port"),
    column("http_address", &["http"], false, false, "bound http address"),
    column("version", &["v"], false, false, "program version"),
    column(
        "node.role",
        &["r", "role", "nodeRole"],
        true,
        false,
        "m:cluster manager eligible node, d:data node",
    ),
    column(
        "cluster_manager",
        &["m", "master"],
        true,
        false,
        "*:current cluster manager",
    ),
    column("name", &["n"], true, false, "node name"),
];

const INDICES: &[Column] = &[
    column("health", &["h"], true, false, "current health status"),
    column("status", &["s"], true, false, "open/close status"),
    column("index", &["i", "idx"], true, false, "index name"),
    column("uuid", &["id"], true, false, "index uuid"),
    column(
        "pri",
        &["p", "shards.primary", "shardsPrimary"],
        true,
        true,
        "number of primary shards",
    ),
    column(
        "rep",
        &["r", "shards.replica", "shardsReplica"],
        true,
        true,
        "number of replica shards",
    ),
    column("docs.count", &["dc", "docsCount"], true, true, "available docs"),
    column("docs.deleted", &["dd", "docsDeleted"], true, true, "deleted docs"),
    column(
        "creation.date",
        &["cd"],
        false,
        true,
        "index creation date (millisecond value)",
    ),
    column(
        "store.size",
        &["ss", "storeSize"],
        true,
        true,
        "store size of primaries & replicas",
    ),
    column("pri.store.size", &[], true, true, "store size of primaries"),
];

const SHARDS: &[Column] = &[
    column("index", &["i", "idx"], true, false, "index name"),
    column("shard", &["s", "sh"], true, true, "shard name"),
    column(
        "prirep",
        &["p", "pr", "primaryOrReplica"],
        true,
        false,
        "primary or replica",
    ),
    column("state", &["st"], true, false, "shard state"),
    column("docs", &["d", "dc"], true, true, "number of docs in shard"),
    column(
        "store",
        &["sto"],
        true,
        true,
        "store size of shard (how much disk it uses)",
    ),
    column("ip", &[], true, false, "ip of node where it lives"),
    column("id", &[], false, false, "unique id of node where it lives"),
    column("node", &["n"], true, false, "name of node where it lives"),
    column(
        "unassigned.reason",
        &["ur"],
        false,
        false,
        "reason shard is unassigned",
    ),
    column(
        "segments.count",
        &["sc", "segmentsCount"],
        false,
        true,
        "number of segments",
    ),
    column(
        "seq_no.max",
        &["sqm", "maxSeqNo"],
        false,
        true,
        "max sequence number",
    ),
    column(
        "seq_no.global_checkpoint",
        &["sqg", "globalCheckpoint"],
        false,
        true,
        "global checkpoint",
    ),
];

async fn health(context: Context) -> Result<Reply, ApiError> {
    if let Some(help) = help(&context, HEALTH)? {
        return Ok(help);
    }
    let coordinator = &context.shared.coordinator;
    coordinator.formed()?;
    let health = coordinator
        .fresh_health(None, names::NameOptions::default())
        .await?;
    let seconds = segmentry_coordinator::now_ms() / 1000;
    let day = seconds % 86_400;
    let row = vec![
        Cell::Number(seconds),
        Cell::Text(format!("{:02}:{:02}:{:02}", day / 3600, day / 60 % 60, day % 60)),
        Cell::Text(health.cluster_name.clone()),
        Cell::Text(word(health.status).into()),
        Cell::Number(health.nodes.into()),
        Cell::Number(health.nodes.into()),
        Cell::Text(health.has_leader.to_string()),
        Cell::Number(health.counts.active.into()),
        Cell::Number(health.counts.active_primaries.into()),
        Cell::Number(health.counts.initializing.into()),
        Cell::Number(health.counts.unassigned.into()),
        Cell::Text(format!("{:.1}%", health.active_percent())),
    ];
    print(&context, HEALTH, vec![row])
}

async fn nodes(context: Context) -> Result<Reply, ApiError> {
    if let Some(help) = help(&context, NODES)? {
        return Ok(help);
    }
    let coordinator = &context.shared.coordinator;
    let state = coordinator.formed()?;
    let leader = coordinator.leader();
    let rows = state
        .alive()
        .map(|node| {
            let port = node.address.rsplit_once(':').map_or("", |(_, port)| port);
            vec![
                Cell::Text(node.id.to_string()),
                Cell::Text(host(&node.rest_address).to_owned()),
                Cell::Text(port.to_owned()),
                Cell::Text(node.rest_address.clone()),
                Cell::Text(node.version.clone()),
                Cell::Text("dim".into()),
                Cell::Text(if leader == Some(node.id) { "*" } else { "-" }.into()),
                Cell::Text(node.name.clone()),
            ]
        })
        .collect();
    print(&context, NODES, rows)
}

async fn chosen(
    context: &Context,
) -> Result<
    (
        Arc<ClusterState>,
        Vec<Arc<Index>>,
        HashMap<AllocationId, CopyStats>,
    ),
    ApiError,
> {
    let coordinator = &context.shared.coordinator;
    let state = coordinator.formed()?;
    let indices = names::resolve(&state, context.segment("target"), context.names()?)?;
    let (copies, _) = coordinator.stats(&indices).await;
    let copies = copies.into_iter().map(|copy| (copy.allocation, copy)).collect();
    Ok((state, indices, copies))
}

async fn indices(context: Context) -> Result<Reply, ApiError> {
    if let Some(help) = help(&context, INDICES)? {
        return Ok(help);
    }
    context.params.only("pri", &["false"])?;
    let (state, indices, copies) = chosen(&context).await?;
    let wanted = context.params.get("health");
    let mut rows = Vec::new();
    for index in &indices {
        let status = word(index_health(&state, index).status);
        if wanted.is_some_and(|wanted| wanted != status) {
            continue;
        }
        let (mut documents, mut deleted, mut size, mut primary_size) = (None, None, None, None);
        let add = |sum: &mut Option<u64>, number: u64| *sum = Some(sum.unwrap_or(0) + number);
        for shard in &index.shards {
            for copy in &shard.copies {
                let Some(stats) = copies.get(&copy.allocation) else {
                    continue;
                };
                add(&mut size, stats.store_bytes);
                if shard.primary == Some(copy.allocation) {
                    add(&mut documents, stats.report.documents);
                    add(&mut deleted, stats.deleted);
                    add(&mut primary_size, stats.store_bytes);
                }
            }
        }
        let number = |value: Option<u64>| value.map_or(Cell::Nothing, Cell::Number);
        let bytes = |value: Option<u64>| value.map_or(Cell::Nothing, Cell::Bytes);
        rows.push(vec![
            Cell::Text(status.into()),
            Cell::Text("open".into()),
            Cell::Text(index.name.clone()),
            Cell::Text(index.uuid.to_string()),
            Cell::Number(index.settings.number_of_shards.into()),
            Cell::Number(index.settings.number_of_replicas.into()),
            number(documents),
            number(deleted),
            Cell::Number(index.created_ms),
            bytes(size),
            bytes(primary_size),
        ]);
    }
    print(&context, INDICES, rows)
}

async fn shards(context: Context) -> Result<Reply, ApiError> {
    if let Some(help) = help(&context, SHARDS)? {
        return Ok(help);
    }
    let (state, indices, copies) = chosen(&context).await?;
    let mut rows = Vec::new();
    for index in &indices {
        let wanted = 1 + usize::try_from(index.settings.number_of_replicas).unwrap_or(0);
        for shard in &index.shards {
            let id = ShardId {
                index: index.uuid,
                shard: shard.number,
            };
            let mut listed: Vec<_> = shard.copies.iter().collect();
            listed.sort_by_key(|copy| shard.primary != Some(copy.allocation));
            for copy in &listed {
                let copy_state = state.copy_state(shard, copy);
                let node = state.node(copy.node);
                let stats = copies.get(&copy.allocation);
                let text = |value: Option<String>| value.map_or(Cell::Nothing, Cell::Text);
                rows.push(vec![
                    Cell::Text(index.name.clone()),
                    Cell::Number(shard.number.into()),
                    Cell::Text(
                        if shard.primary == Some(copy.allocation) {
                            "p"
                        } else {
                            "r"
                        }
                        .into(),
                    ),
                    Cell::Text(copy_state.as_str().into()),
                    stats.map_or(Cell::Nothing, |stats| Cell::Number(stats.report.documents)),
                    stats.map_or(Cell::Nothing, |stats| Cell::Bytes(stats.store_bytes)),
                    text(node.map(|node| host(&node.rest_address).to_owned())),
                    Cell::Text(copy.node.to_string()),
                    text(node.map(|node| node.name.clone())),
                    text(segmentry_allocation::explain(&state, id, copy)),
                    stats.map_or(Cell::Nothing, |stats| {
                        Cell::Number(u64::try_from(stats.segments.len()).unwrap_or(u64::MAX))
                    }),
                    text(stats.map(|stats| stats.report.max_seq_no.to_string())),
                    text(stats.map(|stats| stats.report.global_checkpoint.to_string())),
                ]);
            }
            for _ in listed.len()..wanted {
                let mut row = vec![Cell::Nothing; SHARDS.len()];
                row[0] = Cell::Text(index.name.clone());
                row[1] = Cell::Number(shard.number.into());
                row[2] = Cell::Text(
                    if shard.primary.is_none() && listed.is_empty() {
                        "p"
                    } else {
                        "r"
                    }
                    .into(),
                );
                row[3] = Cell::Text("UNASSIGNED".into());
                row[9] = segmentry_allocation::explain_shard(&state, id)
                    .pop()
                    .map_or(Cell::Nothing, Cell::Text);
                rows.push(row);
            }
        }
    }
    print(&context, SHARDS, rows)
}
