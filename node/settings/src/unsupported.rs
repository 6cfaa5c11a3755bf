//! Settings that OpenSearch has and this program does not act upon: refused by name, so that nobody believes in one that
//! has no effect.

use crate::SettingError;

/// Known index settings; a trailing `.` marks a family.
const INDEX: [&str; 46] = [
    "index.allocation.",
    "index.analysis.",
    "index.analyze.",
    "index.append_only.",
    "index.auto_expand_replicas",
    "index.blocks.",
    "index.check_pending_flush.",
    "index.codec",
    "index.codec.",
    "index.composite_index.",
    "index.default_pipeline",
    "index.fielddata.",
    "index.final_pipeline",
    "index.flush_after_merge",
    "index.format",
    "index.gc_deletes",
    "index.hidden",
    "index.highlight.",
    "index.indexing.",
    "index.knn",
    "index.knn.",
    "index.lifecycle.",
    "index.load_fixed_bitset_filters_eagerly",
    "index.mapper.dynamic",
    "index.mapping.",
    "index.max_",
    "index.merge.",
    "index.number_of_routing_shards",
    "index.optimize_auto_generated_id",
    "index.percolator.",
    "index.periodic_flush_interval",
    "index.plugins.",
    "index.priority",
    "index.queries.",
    "index.query.",
    "index.recovery.",
    "index.remote_store.",
    "index.requests.",
    "index.routing",
    "index.search.",
    "index.segment_counter_increment_step",
    "index.shard.",
    "index.similarity.",
    "index.soft_deletes.",
    "index.sort.",
    "index.store.",
];

/// The rest of the known index settings, apart only because of the array's length.
const INDEX_MORE: [&str; 8] = [
    "index.context.",
    "index.derived_source.",
    "index.merge_on_flush.",
    "index.refresh.",
    "index.translog.",
    "index.unreferenced_file_cleanup.",
    "index.verified_before_close",
    "index.write.",
];

/// Families of cluster and node settings.
const CLUSTER: [&str; 18] = [
    "action.",
    "cluster.",
    "discovery.",
    "gateway.",
    "http.",
    "indices.",
    "ingest.",
    "logger.",
    "network.",
    "node.",
    "plugins.",
    "repositories.",
    "script.",
    "search.",
    "search_backpressure.",
    "segrep.",
    "transport.",
    "thread_pool.",
];

fn matches(table: &[&str], key: &str) -> bool {
    table.iter().any(|known| {
        key == *known || ((known.ends_with('.') || known.ends_with('_')) && key.starts_with(known))
    })
}

/// The refusal of an index setting that is not in the table of supported ones.
pub fn refusal(key: &str) -> SettingError {
    let routing = key.starts_with("index.routing.") || key.starts_with("index.routing_");
    if routing || matches(&INDEX, key) || matches(&INDEX_MORE, key) {
        SettingError(format!("setting [{key}] is not supported by Segmentry yet"))
    } else {
        SettingError(format!(
            "unknown setting [{key}] please check that any required plugins are installed, or check the breaking changes \
             documentation for removed settings"
        ))
    }
}

/// True for settings of OpenSearch's nodes and clusters.
pub(crate) fn cluster(key: &str) -> bool {
    matches(&CLUSTER, key)
}
