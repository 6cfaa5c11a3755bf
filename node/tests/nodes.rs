//! Real nodes in one process: one, and three; over their ports, on real disks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use segmentry_node::{Node, NodeConfig, StartError, disk::DiskError};
use segmentry_settings::admin::{Initialise, Member, NodeStatus};
use serde_json::{Value, json};
use std::{
    path::Path,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);
const TOKEN: &str = "test-token";

/// Logs of the nodes go with the output of a test that fails; `RUST_LOG` chooses.
fn logs() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    // The second test of a process finds the first one's.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_test_writer()
        .try_init();
}

fn config(dir: &Path, name: &str) -> NodeConfig {
    logs();
    std::fs::write(dir.join("token"), TOKEN).unwrap();
    NodeConfig {
        name: name.into(),
        data_dir: dir.join(name),
        rest_listen: "127.0.0.1:0".parse().unwrap(),
        rest_advertise: None,
        transport_listen: "127.0.0.1:0".parse().unwrap(),
        advertise: None,
        token_file: dir.join("token"),
        disk_id: Some(format!("disk-{name}")),
        cluster_name: "test".into(),
        indexing_budget_bytes: None,
    }
}

/// The same node again, on the ports that it had: members know it by them.
fn again(config: &NodeConfig, node: &Node) -> NodeConfig {
    NodeConfig {
        rest_listen: node.rest_address(),
        transport_listen: node.transport_address(),
        ..config.clone()
    }
}

struct Http(reqwest::Client);

impl Http {
    fn new() -> Self {
        Self(reqwest::Client::builder().no_proxy().build().unwrap())
    }

    async fn send(
        &self,
        method: &str,
        url: String,
        token: Option<&str>,
        body: String,
    ) -> Result<(u16, Value), reqwest::Error> {
        let mut request = self.0.request(method.parse().unwrap(), url).body(body);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await?;
        let status = response.status().as_u16();
        let bytes = response.bytes().await?;
        Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
    }

    async fn rest(&self, node: &Node, method: &str, path: &str, body: &str) -> (u16, Value) {
        self.send(
            method,
            format!("http://{}{path}", node.rest_address()),
            None,
            body.to_owned(),
        )
        .await
        .unwrap()
    }

    async fn ok(&self, node: &Node, method: &str, path: &str, body: &str) -> Value {
        let (status, json) = self.rest(node, method, path, body).await;
        assert!((200..300).contains(&status), "{method} {path}: {status} {json}");
        json
    }

    async fn admin(&self, node: &Node, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let url = format!("http://{}{path}", node.transport_address());
        self.send(method, url, Some(TOKEN), body).await.unwrap()
    }

    async fn status(&self, node: &Node) -> NodeStatus {
        let (code, json) = self.admin(node, "GET", "/_admin/node", &Value::Null).await;
        assert_eq!(code, 200, "{json}");
        serde_json::from_value(json).unwrap()
    }

    async fn ready(&self, node: &Node) {
        let begun = Instant::now();
        loop {
            let (status, said) = self.rest(node, "GET", "/_segmentry/health/ready", "").await;
            if status == 200 {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "not ready: {said}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn form(&self, nodes: &[&Node]) {
        let mut members = Vec::new();
        for node in nodes {
            let status = self.status(node).await;
            assert!(status.empty && !status.formed, "{status:?}");
            assert_eq!(status.waiting_for.as_deref(), Some("waiting_for_initialise"));
            members.push(Member {
                node_id: status.node_id,
                name: status.name,
                address: node.transport_address().to_string(),
                disk_id: status.disk_id,
            });
        }
        let request = Initialise {
            cluster_uuid: uuid::Uuid::new_v4().to_string(),
            cluster_name: "formed".into(),
            members,
        };
        let body = serde_json::to_value(&request).unwrap();
        for _ in 0..2 {
            let (code, json) = self.admin(nodes[0], "POST", "/_admin/initialise", &body).await;
            assert_eq!(code, 200, "{json}");
        }
        for node in nodes {
            self.ready(node).await;
        }
    }
}

async fn stop(nodes: Vec<Node>) {
    futures::future::join_all(nodes.into_iter().map(Node::stop)).await;
}

fn documents(count: usize) -> String {
    use std::fmt::Write;
    let mut body = String::new();
    for n in 0..count {
        writeln!(
            body,
            "{{\"index\":{{\"_id\":\"{n}\"}}}}\n{{\"n\":{n},\"word\":\"w{}\"}}",
            n % 3
        )
        .unwrap();
    }
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_waits_to_be_initialised_then_serves_and_keeps_its_data_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let http = Http::new();
    let first = config(dir.path(), "n-0");
    let node = Node::start(first.clone()).await.unwrap();
    assert_eq!(http.rest(&node, "GET", "/_search", "").await.0, 503);
    http.form(&[&node]).await;
    assert_eq!(http.ok(&node, "GET", "/", "").await["cluster_name"], "formed");
    http.ok(
        &node,
        "PUT",
        "/a",
        r#"{"settings":{"number_of_shards":2,"number_of_replicas":0}}"#,
    )
    .await;
    let bulk = http
        .ok(&node, "POST", "/a/_bulk?refresh=true", &documents(30))
        .await;
    assert_eq!(bulk["errors"], false, "{bulk}");
    assert_eq!(http.ok(&node, "GET", "/a/_count", "").await["count"], 30);
    let conflict = http.rest(&node, "PUT", "/a/_create/1", "{}").await;
    assert_eq!(
        (conflict.0, conflict.1["error"]["type"].as_str()),
        (409, Some("version_conflict_engine_exception"))
    );
    http.ok(&node, "POST", "/a/_update/1", r#"{"doc":{"n":100}}"#)
        .await;
    assert_eq!(http.ok(&node, "GET", "/a/_doc/1", "").await["_source"]["n"], 100);
    let boot = http.status(&node).await.boot_id;
    let second = again(&first, &node);
    node.stop().await;

    let node = Node::start(second).await.unwrap();
    http.ready(&node).await;
    // Ready says that the copies are open; their activation follows.
    http.ok(
        &node,
        "GET",
        "/_cluster/health?wait_for_status=green&timeout=30s",
        "",
    )
    .await;
    let status = http.status(&node).await;
    assert!(
        status.boot_id != boot && status.formed && !status.empty && status.opened,
        "{status:?}"
    );
    let got = http.ok(&node, "GET", "/a/_doc/1", "").await;
    assert_eq!((&got["_source"]["n"], &got["_version"]), (&json!(100), &json!(2)));
    http.ok(&node, "POST", "/a/_refresh", "").await;
    assert_eq!(http.ok(&node, "GET", "/a/_count", "").await["count"], 30);
    let words = http
        .ok(
            &node,
            "POST",
            "/a/_search",
            r#"{"size":0,"aggs":{"w":{"terms":{"field":"word.keyword"}}}}"#,
        )
        .await;
    assert_eq!(
        words["aggregations"]["w"]["buckets"][0]["doc_count"], 10,
        "{words}"
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_index_on_one_and_search_on_another() {
    let dir = tempfile::tempdir().unwrap();
    let http = Http::new();
    let mut nodes = Vec::new();
    for name in ["n-0", "n-1", "n-2"] {
        nodes.push(Node::start(config(dir.path(), name)).await.unwrap());
    }
    http.form(&nodes.iter().collect::<Vec<_>>()).await;
    for (name, kind) in [("doc", "DOCUMENT"), ("seg", "SEGMENT")] {
        let body =
            json!({"settings": {"number_of_shards": 3, "number_of_replicas": 1, "replication.type": kind}});
        http.ok(
            &nodes[0],
            "PUT",
            &format!("/{name}?wait_for_active_shards=all"),
            &body.to_string(),
        )
        .await;
        let bulk = http
            .ok(
                &nodes[1],
                "POST",
                &format!("/{name}/_bulk?refresh=true"),
                &documents(60),
            )
            .await;
        assert_eq!(bulk["errors"], false, "{bulk}");
        assert_eq!(
            bulk["items"][0]["index"]["_shards"],
            json!({"total": 2, "successful": 2, "failed": 0})
        );
        for node in &nodes {
            assert_eq!(
                http.ok(node, "GET", &format!("/{name}/_count"), "").await["count"],
                60,
                "{kind}"
            );
            assert_eq!(
                http.ok(node, "GET", &format!("/{name}/_doc/7"), "").await["_source"]["n"],
                7,
                "{kind}"
            );
        }
        // Copy by copy: primaries and replicas show the same.
        for preference in ["_primary", "_replica"] {
            let said = http
                .ok(
                    &nodes[2],
                    "GET",
                    &format!("/{name}/_count?preference={preference}"),
                    "",
                )
                .await;
            assert_eq!(
                (&said["count"], &said["_shards"]["failed"]),
                (&json!(60), &json!(0)),
                "{kind} {preference}"
            );
        }
    }
    let health = http
        .ok(
            &nodes[2],
            "GET",
            "/_cluster/health?wait_for_status=green&wait_for_nodes=3&timeout=30s",
            "",
        )
        .await;
    assert_eq!(
        (&health["status"], &health["active_shards"]),
        (&json!("green"), &json!(12))
    );
    stop(nodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_a_node_from_starting_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let first = config(dir.path(), "n-0");
    let node = Node::start(first.clone()).await.unwrap();
    let in_use = Node::start(first.clone()).await.unwrap_err();
    assert!(
        matches!(in_use, StartError::Disk(DiskError::InUse(_))),
        "{in_use}"
    );
    let taken = NodeConfig {
        rest_listen: node.rest_address(),
        ..config(dir.path(), "n-1")
    };
    let taken = Node::start(taken).await.unwrap_err();
    assert!(
        matches!(taken, StartError::Listen { what: "REST", .. }),
        "{taken}"
    );
    let no_token = NodeConfig {
        token_file: dir.path().join("none"),
        ..config(dir.path(), "n-2")
    };
    let no_token = Node::start(no_token).await.unwrap_err();
    assert!(no_token.to_string().contains("none"), "{no_token}");
    let broken = config(dir.path(), "n-3");
    std::fs::create_dir(&broken.data_dir).unwrap();
    std::fs::write(broken.data_dir.join("node.json"), r#"{"format":2}"#).unwrap();
    let format = Node::start(broken).await.unwrap_err();
    assert!(
        matches!(format, StartError::Disk(DiskError::Format { found: 2, .. })),
        "{format}"
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_forgets_a_formation_that_holds_no_index_and_only_such_a_one() {
    let dir = tempfile::tempdir().unwrap();
    let http = Http::new();
    let first = config(dir.path(), "n-0");
    let node = Node::start(first.clone()).await.unwrap();
    http.form(&[&node]).await;
    let uuid = http.status(&node).await.cluster_uuid.unwrap();
    let wrong = http
        .admin(&node, "POST", "/_admin/reset", &json!({"cluster_uuid": "other"}))
        .await;
    assert_eq!(
        (wrong.0, wrong.1["error"]["type"].as_str()),
        (409, Some("foreign_cluster"))
    );
    let (code, said) = http
        .admin(&node, "POST", "/_admin/reset", &json!({"cluster_uuid": uuid}))
        .await;
    assert_eq!(code, 200, "{said}");
    let why = tokio::time::timeout(PATIENCE, node.ended())
        .await
        .unwrap()
        .unwrap_err();
    assert!(why.to_string().contains("reset"), "{why}");
    let second = again(&first, &node);
    node.stop().await;
    let node = Node::start(second).await.unwrap();
    http.form(&[&node]).await;
    http.ok(&node, "PUT", "/a", "").await;
    let uuid = http.status(&node).await.cluster_uuid.unwrap();
    let full = http
        .admin(&node, "POST", "/_admin/reset", &json!({"cluster_uuid": uuid}))
        .await;
    assert_eq!(
        (full.0, full.1["error"]["type"].as_str()),
        (409, Some("not_empty"))
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_hands_its_shards_over_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let http = Http::new();
    let configs: Vec<NodeConfig> = ["n-0", "n-1", "n-2"]
        .iter()
        .map(|name| config(dir.path(), name))
        .collect();
    let mut nodes = Vec::new();
    for config in &configs {
        nodes.push(Node::start(config.clone()).await.unwrap());
    }
    http.form(&nodes.iter().collect::<Vec<_>>()).await;
    let body = r#"{"settings":{"number_of_shards":3,"number_of_replicas":1}}"#;
    http.ok(&nodes[0], "PUT", "/a?wait_for_active_shards=all", body)
        .await;
    http.ok(&nodes[0], "POST", "/a/_bulk", &documents(30)).await;
    let gone = nodes.pop().unwrap();
    let back = again(&configs[2], &gone);
    gone.stop().await;
    let health = http
        .ok(
            &nodes[0],
            "GET",
            "/_cluster/health?wait_for_status=yellow&wait_for_nodes=2&timeout=30s",
            "",
        )
        .await;
    assert_eq!(health["active_primary_shards"], 3, "{health}");
    let bulk = http
        .ok(&nodes[1], "POST", "/a/_bulk?refresh=true", &documents(60))
        .await;
    assert_eq!(bulk["errors"], false, "{bulk}");
    nodes.push(Node::start(back).await.unwrap());
    http.ok(
        &nodes[2],
        "GET",
        "/_cluster/health?wait_for_status=green&wait_for_nodes=3&timeout=60s",
        "",
    )
    .await;
    http.ok(&nodes[2], "POST", "/a/_refresh", "").await;
    for preference in ["_primary", "_replica"] {
        let said = http
            .ok(
                &nodes[2],
                "GET",
                &format!("/a/_count?preference={preference}"),
                "",
            )
            .await;
        assert_eq!(said["count"], 60, "{preference}: {said}");
    }
    stop(nodes).await;
}
