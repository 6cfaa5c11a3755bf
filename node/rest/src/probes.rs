//! `/_segmentry/health/{live,ready}`: what Kubernetes asks.

use crate::{Context, reply::Reply, table::Route};
use segmentry_coordinator::ApiError;
use serde_json::json;

/// Endpoints.
pub const ROUTES: &[Route] = &[
    Route {
        methods: &["GET"],
        path: "/_segmentry/health/live",
        params: &[],
        handler: handler!(live),
    },
    Route {
        methods: &["GET"],
        path: "/_segmentry/health/ready",
        params: &[],
        handler: handler!(ready),
    },
];

/// Looks at the process only: it answers.
async fn live(_: Context) -> Result<Reply, ApiError> {
    Reply::json(&json!({"live": true}))
}

/// Latches: a loss of quorum takes no node out of its Service.
async fn ready(context: Context) -> Result<Reply, ApiError> {
    let facts = &context.shared.facts;
    if facts.ready() {
        return Reply::json(&json!({"ready": true}));
    }
    let waiting_for = facts.waiting_for();
    Reply::with_status(503, &json!({"ready": false, "waiting_for": waiting_for}))
}
