#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
use super::*;
use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, StatusCode},
    routing::{get, post},
};
use serde_json::json;

async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn endpoint(address: &str) -> Endpoint {
    Endpoint {
        address: address.to_owned(),
        token: "secret".to_owned(),
        cluster_uuid: Some("u1".to_owned()),
    }
}

#[tokio::test]
async fn a_change_states_token_cluster_and_epoch() {
    let router = Router::new().route(
        "/_admin/restart/prepare",
        post(|headers: HeaderMap, body: Bytes| async move {
            let body: PrepareRestart = serde_json::from_slice(&body).unwrap();
            assert_eq!(headers["authorization"], "Bearer secret");
            assert_eq!(headers[CLUSTER_HEADER], "u1");
            assert_eq!(headers[EPOCH_HEADER], "7");
            serde_json::to_string(&RestartRecord {
                target: body.target,
                primaries: BTreeMap::new(),
            })
            .unwrap()
        }),
    );
    let to = endpoint(&serve(router).await);
    let record = NodeClient::new()
        .unwrap()
        .prepare_restart(
            &to,
            7,
            &PrepareRestart {
                target: "h".to_owned(),
            },
        )
        .await
        .unwrap();
    assert_eq!(record.target, "h");
}

#[tokio::test]
async fn a_refusal_keeps_type_reason_and_status() {
    let router = Router::new().route(
        "/_admin/overview",
        get(|| async {
            (
                StatusCode::SERVICE_UNAVAILABLE,
                json!({"error": {"type": "no_quorum", "reason": "no leader"}, "status": 503}).to_string(),
            )
        }),
    );
    let error = NodeClient::new()
        .unwrap()
        .overview(&endpoint(&serve(router).await))
        .await
        .unwrap_err();
    assert_eq!(
        error,
        NodeError::Refused {
            kind: "no_quorum".to_owned(),
            reason: "no leader".to_owned(),
            status: 503
        }
    );
    assert!(!error.is_final());
}

#[tokio::test]
async fn a_node_that_never_answers_costs_its_deadline_only() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = endpoint(&listener.local_addr().unwrap().to_string());
    let start = std::time::Instant::now();
    let error = NodeClient::new().unwrap().node_status(&to).await.unwrap_err();
    assert!(
        matches!(&error, NodeError::Silent { reason, .. } if reason == "deadline exceeded"),
        "{error}"
    );
    assert!(start.elapsed() < READ + Duration::from_secs(2));
}

#[tokio::test]
async fn nobody_listening_is_told_by_its_cause_and_without_the_token() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = endpoint(&listener.local_addr().unwrap().to_string());
    drop(listener);
    let error = NodeClient::new().unwrap().node_status(&to).await.unwrap_err();
    assert!(error.to_string().to_lowercase().contains("refused"), "{error}");
    assert!(!format!("{to:?}").contains("secret"));
}

#[tokio::test]
async fn an_index_that_is_gone_is_a_missing_one() {
    let router = Router::new().route(
        "/_admin/indices/{uuid}",
        axum::routing::delete(|| async { (StatusCode::NOT_FOUND, json!({"error": {"type": "index_not_found_exception", "reason": "no such index"}, "status": 404}).to_string()) }),
    );
    let error = NodeClient::new()
        .unwrap()
        .delete_index(&endpoint(&serve(router).await), 1, "x")
        .await
        .unwrap_err();
    assert!(error.is_missing() && error.is_kind("index_not_found_exception"));
}
