//! The operator's API: who is let in, what each call does, what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use segmentry_settings::admin::{IndexOverview, NodeStatus, Overview, RestartRecord};
use serde_json::{Value, json};
use support::{Rest, Said};

const TOKEN: (&str, &str) = ("authorization", "Bearer secret");
const EPOCH: (&str, &str) = ("x-segmentry-epoch", "5");

async fn call(rest: &Rest, method: &str, path: &str, body: Value) -> Said {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    rest.send_to(&rest.admin_url, method, path, &[TOKEN, EPOCH], body)
        .await
}

fn owner(uid: &str) -> Value {
    json!({"uid": uid, "name": "ns/one", "settings": ["index.refresh_interval"], "mappings": false})
}

async fn created(rest: &Rest, name: &str, uid: &str) -> IndexOverview {
    let body = json!({"name": name, "settings": {"number_of_replicas": 0, "refresh_interval": "5s"}, "mappings": {"properties": {"n": {"type": "long"}}}, "owner": owner(uid)});
    serde_json::from_value(call(rest, "POST", "/_admin/indices", body).await.expect(200)).unwrap()
}

#[tokio::test]
async fn only_callers_with_the_token_of_this_cluster_and_a_current_epoch_are_let_in() {
    let rest = Rest::start(true);
    let no_token = rest
        .send_to(&rest.admin_url, "GET", "/_admin/node", &[], "")
        .await
        .expect(401);
    assert_eq!(no_token["error"]["type"], "security_exception");
    rest.send_to(
        &rest.admin_url,
        "GET",
        "/_admin/node",
        &[("authorization", "Bearer wrong!")],
        "",
    )
    .await
    .expect(401);
    let foreign = ("x-segmentry-cluster", "00000000-0000-0000-0000-000000000001");
    let said = rest
        .send_to(&rest.admin_url, "GET", "/_admin/overview", &[TOKEN, foreign], "")
        .await
        .expect(409);
    assert_eq!(said["error"]["type"], "foreign_cluster");
    let missing = rest
        .send_to(&rest.admin_url, "POST", "/_admin/settings", &[TOKEN], "{}")
        .await
        .expect(400);
    assert!(
        missing["error"]["reason"]
            .as_str()
            .unwrap()
            .contains("x-segmentry-epoch")
    );
    call(
        &rest,
        "POST",
        "/_admin/settings",
        json!({"cluster.indices.replication.strategy": "SEGMENT"}),
    )
    .await
    .expect(200);
    let stale = rest
        .send_to(
            &rest.admin_url,
            "POST",
            "/_admin/settings",
            &[TOKEN, ("x-segmentry-epoch", "4")],
            "{}",
        )
        .await
        .expect(409);
    assert_eq!(stale["error"]["type"], "stale_epoch");
    let status: NodeStatus =
        serde_json::from_value(call(&rest, "GET", "/_admin/node", Value::Null).await.expect(200)).unwrap();
    assert_eq!(status.name, "n-0");
    call(&rest, "GET", "/_admin/none", Value::Null).await.expect(404);
    call(&rest, "POST", "/_admin/node", Value::Null).await.expect(404);
    call(&rest, "POST", "/_admin/indices", json!({"nonsense": 1}))
        .await
        .expect(400);
}

#[tokio::test]
async fn a_declared_index_is_created_once_and_belongs_to_its_owner() {
    let rest = Rest::start(true);
    let index = created(&rest, "one", "u1").await;
    assert_eq!(
        (
            index.owner.unwrap().uid.as_str(),
            index.shards,
            index.copies.len()
        ),
        ("u1", 1, 1)
    );
    assert_eq!(index.settings["index.refresh_interval"], "5s");
    assert_eq!(index.mappings["properties"]["n"]["type"], "long");
    assert_eq!(created(&rest, "one", "u1").await.uuid, index.uuid);
    let other = json!({"name": "one", "owner": owner("u2")});
    assert_eq!(
        call(&rest, "POST", "/_admin/indices", other).await.expect(409)["error"]["type"],
        "owned_by_other"
    );
    // Over REST the fields that it sets, and the index itself, are refused; other fields are not.
    let said = rest
        .call("PUT", "/one/_settings", "{\"index.refresh_interval\":\"1s\"}")
        .await
        .expect(403);
    assert!(
        said["error"]["reason"].as_str().unwrap().contains("ns/one"),
        "{said}"
    );
    rest.call("DELETE", "/one", "").await.expect(403);
    rest.call(
        "PUT",
        "/one/_settings",
        "{\"index.translog.durability\":\"async\"}",
    )
    .await
    .expect(200);
    let body = json!({"owner": owner("u1"), "settings": {"index.refresh_interval": "7s"}});
    let changed = call(
        &rest,
        "POST",
        &format!("/_admin/indices/{}/settings", index.uuid),
        body,
    )
    .await
    .expect(200);
    assert_eq!(changed["settings"]["index.refresh_interval"], "7s");
    call(
        &rest,
        "DELETE",
        &format!("/_admin/indices/{}", index.uuid),
        Value::Null,
    )
    .await
    .expect(200);
    call(
        &rest,
        "DELETE",
        &format!("/_admin/indices/{}", index.uuid),
        Value::Null,
    )
    .await
    .expect(404);
    call(&rest, "DELETE", "/_admin/indices/nonsense", Value::Null)
        .await
        .expect(404);
}

#[tokio::test]
async fn an_ownerless_index_is_adopted_and_released() {
    let rest = Rest::start(true);
    rest.call("PUT", "/free", "").await.expect(200);
    let declared = json!({"name": "free", "owner": owner("u1")});
    assert_eq!(
        call(&rest, "POST", "/_admin/indices", declared).await.expect(409)["error"]["type"],
        "exists_without_owner"
    );
    let overview: Overview = serde_json::from_value(
        call(&rest, "GET", "/_admin/overview", Value::Null)
            .await
            .expect(200),
    )
    .unwrap();
    let uuid = overview.indices[0].uuid.clone();
    let adopted = call(
        &rest,
        "POST",
        &format!("/_admin/indices/{uuid}/adopt"),
        owner("u1"),
    )
    .await
    .expect(200);
    assert_eq!(adopted["owner"]["uid"], "u1");
    let other = call(
        &rest,
        "POST",
        &format!("/_admin/indices/{uuid}/adopt"),
        owner("u2"),
    )
    .await
    .expect(409);
    assert_eq!(other["error"]["type"], "owned_by_other");
    call(
        &rest,
        "POST",
        &format!("/_admin/indices/{uuid}/release"),
        json!({"uid": "u1"}),
    )
    .await
    .expect(200);
    rest.call("DELETE", "/free", "").await.expect(200);
}

#[tokio::test]
async fn the_overview_tells_what_copies_report_and_what_is_not_settled() {
    let rest = Rest::start(true);
    created(&rest, "one", "u1").await;
    rest.call("PUT", "/one/_doc/1?refresh=true", "{\"n\":1}")
        .await
        .expect(201);
    let overview: Overview = serde_json::from_value(
        call(&rest, "GET", "/_admin/overview", Value::Null)
            .await
            .expect(200),
    )
    .unwrap();
    assert_eq!(
        (
            overview.cluster_name.as_str(),
            overview.leader.as_deref(),
            overview.epoch
        ),
        ("test", Some("n-0"), 5)
    );
    assert!(
        overview.settled && overview.unsettled.is_empty(),
        "{:?}",
        overview.unsettled
    );
    let index = &overview.indices[0];
    assert_eq!(
        (
            index.documents,
            index.copies[0].state.as_str(),
            index.copies[0].in_sync
        ),
        (1, "STARTED", true)
    );
    assert_eq!(index.copies[0].report.as_ref().unwrap().max_seq_no, 0);
    assert_eq!(
        (
            overview.nodes[0].primaries,
            overview.nodes[0].copies,
            overview.nodes[0].alive
        ),
        (1, 1, true)
    );
    // A wanted replica has no place on one node: yellow, and its copy says why.
    rest.call("PUT", "/two", "").await.expect(200);
    let overview: Overview = serde_json::from_value(
        call(&rest, "GET", "/_admin/overview", Value::Null)
            .await
            .expect(200),
    )
    .unwrap();
    let two = overview.indices.iter().find(|index| index.name == "two").unwrap();
    let missing = two.copies.iter().find(|copy| copy.node.is_none()).unwrap();
    assert_eq!(missing.state, "UNASSIGNED");
    assert!(
        missing.reason.as_ref().unwrap().contains("no place"),
        "{missing:?}"
    );
}

#[tokio::test]
async fn a_restart_is_prepared_with_a_record_of_the_primaries_and_finished() {
    let rest = Rest::start(true);
    let index = created(&rest, "one", "u1").await;
    rest.call("PUT", "/one/_doc/1", "{\"n\":1}").await.expect(201);
    let record: RestartRecord = serde_json::from_value(
        call(&rest, "POST", "/_admin/restart/prepare", json!({"target": "h1"}))
            .await
            .expect(200),
    )
    .unwrap();
    assert_eq!(record.primaries[&format!("{}/0", index.uuid)], "n-0");
    let stats = rest.call("GET", "/one/_stats/flush", "").await.expect(200);
    assert_eq!(stats["_all"]["total"]["flush"]["total"], 1);
    let overview = call(&rest, "GET", "/_admin/overview", Value::Null)
        .await
        .expect(200);
    assert_eq!(overview["restart"]["target"], "h1");
    call(
        &rest,
        "POST",
        "/_admin/restart/finish",
        json!({"target": "other"}),
    )
    .await;
    assert_eq!(
        call(&rest, "GET", "/_admin/overview", Value::Null)
            .await
            .expect(200)["restart"]["target"],
        "h1"
    );
    call(&rest, "POST", "/_admin/restart/finish", json!({"target": "h1"}))
        .await
        .expect(200);
    assert!(
        call(&rest, "GET", "/_admin/overview", Value::Null)
            .await
            .expect(200)["restart"]
            .is_null()
    );
}

#[tokio::test]
async fn membership_calls_reach_the_node() {
    let rest = Rest::start(true);
    let member =
        json!({"node_id": "0000000000000009", "name": "n-9", "address": "127.0.0.1:9", "disk_id": null});
    let initialise = json!({"cluster_uuid": "u", "cluster_name": "c", "members": [member]});
    call(&rest, "POST", "/_admin/initialise", initialise)
        .await
        .expect(200);
    call(&rest, "POST", "/_admin/reset", json!({"cluster_uuid": "u"}))
        .await
        .expect(200);
    call(
        &rest,
        "POST",
        "/_admin/members/replace",
        json!({"lost_node_id": "8", "member": member}),
    )
    .await
    .expect(200);
    assert_eq!(
        *rest.admin_calls.lock().unwrap(),
        ["initialise c", "reset u", "replace 8 at epoch 5"]
    );
}
