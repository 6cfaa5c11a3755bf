//! `/`: who answers.

use crate::{Context, reply::Reply, table::Route};
use segmentry_coordinator::ApiError;
use serde_json::json;

/// The version of OpenSearch's API that clients are told: what they decide features by.
pub const API_VERSION: &str = "3.1.0";

/// Endpoints.
pub const ROUTES: &[Route] = &[Route {
    methods: &["GET"],
    path: "/",
    params: &[],
    handler: handler!(info),
}];

async fn info(context: Context) -> Result<Reply, ApiError> {
    let state = context.shared.coordinator.state();
    let version = context.shared.facts.version();
    let cluster_name = if state.cluster_name.is_empty() {
        context.shared.facts.cluster_name()
    } else {
        state.cluster_name.clone()
    };
    Reply::json(&json!({
        "name": context.shared.coordinator.identity().name,
        "cluster_name": cluster_name,
        "cluster_uuid": state.cluster_uuid.map_or_else(|| "_na_".to_owned(), |uuid| uuid.to_string()),
        "version": {
            "distribution": "opensearch",
            "number": API_VERSION,
            "build_type": "segmentry",
            "build_hash": format!("segmentry-{version}"),
            "build_date": "unknown",
            "build_snapshot": false,
            "lucene_version": "none",
            "minimum_wire_compatibility_version": API_VERSION,
            "minimum_index_compatibility_version": API_VERSION,
        },
        "segmentry": {"version": version},
        "tagline": "Segmentry, speaking the OpenSearch REST API",
    }))
}
