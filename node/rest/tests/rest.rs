//! Every endpoint, every refusal, and the traps of clients, over HTTP.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use segmentry_coordinator::document::WriteKind;
use serde_json::{Value, json};
use std::io::{Read, Write};
use support::{Fault, Rest};

async fn three_documents() -> Rest {
    let rest = Rest::start(true);
    let index = json!({"settings": {"number_of_shards": 2, "number_of_replicas": 0},
                       "mappings": {"properties": {"name": {"type": "keyword"}, "n": {"type": "long"}}}});
    let made = rest.call("PUT", "/a", &index.to_string()).await.expect(200);
    assert_eq!(
        made,
        json!({"acknowledged": true, "shards_acknowledged": true, "index": "a"})
    );
    let body = "{\"index\":{\"_id\":\"1\"}}\n{\"name\":\"x\",\"n\":1}\n{\"index\":{\"_id\":\"2\"}}\n{\"name\":\"y\",\"n\":2}\n\
                {\"index\":{\"_id\":\"3\"}}\n{\"name\":\"x\",\"n\":3}\n";
    let bulk = rest.call("POST", "/a/_bulk?refresh=true", body).await.expect(200);
    assert_eq!(bulk["errors"], false, "{bulk}");
    rest
}

#[tokio::test]
async fn the_root_says_what_clients_look_for() {
    let rest = Rest::start(true);
    let root = rest.call("GET", "/", "").await.expect(200);
    assert_eq!(root["name"], "n-0");
    assert_eq!(root["cluster_name"], "test");
    assert_eq!(root["version"]["distribution"], "opensearch");
    assert!(root["version"]["number"].as_str().unwrap().starts_with("3."));
    assert_eq!(root["segmentry"]["version"], "0.0.0-test");
    assert!(root["version"]["build_hash"].is_string());
}

#[tokio::test]
async fn head_is_served_wherever_get_is_and_has_no_body() {
    let rest = three_documents().await;
    for (path, status) in [
        ("/", 200),
        ("/a", 200),
        ("/none", 404),
        ("/a/_doc/1", 200),
        ("/a/_doc/none", 404),
        ("/a/_source/1", 200),
        ("/_cluster/health", 200),
        ("/_cat/indices", 200),
        ("/_nodes", 200),
        ("/a/_mapping", 200),
        ("/_foo", 400),
    ] {
        let head = rest.call("HEAD", path, "").await;
        let get = rest.call("GET", path, "").await;
        assert_eq!(
            (head.status, get.status),
            (status, status),
            "{path}: {}",
            get.text()
        );
        assert!(head.bytes.is_empty(), "{path}");
        assert_eq!(
            head.headers["content-type"], get.headers["content-type"],
            "{path}"
        );
        if status != 400 && path != "/_cat/indices" {
            assert_eq!(
                head.headers["content-length"], get.headers["content-length"],
                "{path}"
            );
        }
    }
}

#[tokio::test]
async fn json_is_compact_unless_pretty_is_asked_for() {
    let rest = Rest::start(true);
    let compact = rest.call("GET", "/_cluster/health", "").await.text();
    assert!(!compact.contains(": ") && !compact.contains('\n'), "{compact}");
    let pretty = rest.call("GET", "/_cluster/health?pretty", "").await.text();
    assert!(
        pretty.contains("\"timed_out\": false") && pretty.ends_with("}\n"),
        "{pretty}"
    );
    let filtered = rest
        .call("GET", "/_cluster/health?filter_path=status,number_of_*", "")
        .await
        .expect(200);
    assert_eq!(
        filtered,
        json!({"status": "green", "number_of_nodes": 1, "number_of_data_nodes": 1,
                                 "number_of_pending_tasks": 0, "number_of_in_flight_fetch": 0})
    );
}

#[tokio::test]
async fn bulk_answers_in_the_order_that_clients_scan_for() {
    let rest = Rest::start(true);
    let ok = rest
        .call(
            "POST",
            "/_bulk/",
            "{\"index\":{\"_index\":\"a\",\"_id\":\"1\"}}\n{\"x\":1}\n",
        )
        .await;
    let text = ok.text();
    assert!(text.starts_with("{\"took\":") && text.contains(",\"errors\":false,\"items\":[{\"index\":{\"_index\":\"a\",\"_id\":\"1\",\"_version\":1,\"result\":\"created\",\"_shards\":{\"total\":2,\"successful\":1,\"failed\":0},\"_seq_no\":0,\"_primary_term\":1,\"status\":201}}]}"), "{text}");
    let body = "{\"create\":{\"_index\":\"a\",\"_id\":\"1\"}}\n{\"x\":1}\n{\"index\":{\"_index\":\"a\"}}\n{\"x\":\"no number\"}\n\
                {\"delete\":{\"_index\":\"a\",\"_id\":\"none\"}}\n{\"delete\":{\"_index\":\"absent\",\"_id\":\"1\"}}\n\
                {\"update\":{\"_index\":\"a\",\"_id\":\"1\"}}\n{\"doc\":{\"y\":2}}\n";
    let mixed = rest.call("PUT", "/_bulk", body).await;
    let text = mixed.text();
    assert!(text.contains(",\"errors\":true,\"items\":["), "{text}");
    let items = mixed.json()["items"].clone();
    assert_eq!(items[0]["create"]["status"], 409);
    assert_eq!(
        items[0]["create"]["error"]["type"],
        "version_conflict_engine_exception"
    );
    assert_eq!(items[1]["index"]["status"], 400);
    assert_eq!(items[1]["index"]["error"]["type"], "mapper_parsing_exception");
    assert_eq!(
        (
            items[2]["delete"]["status"].as_u64(),
            items[2]["delete"]["result"].as_str()
        ),
        (Some(404), Some("not_found"))
    );
    assert_eq!(items[3]["delete"]["error"]["type"], "index_not_found_exception");
    assert_eq!(
        (
            items[4]["update"]["status"].as_u64(),
            items[4]["update"]["result"].as_str()
        ),
        (Some(200), Some("updated"))
    );
    assert!(rest.meta_has("a") && !rest.meta_has("absent"));
}

trait MetaHas {
    fn meta_has(&self, name: &str) -> bool;
}

impl MetaHas for Rest {
    fn meta_has(&self, name: &str) -> bool {
        use segmentry_meta::MetaStore;
        self.meta.current().index_by_name(name).is_some()
    }
}

#[tokio::test]
async fn bodies_may_be_gzip_and_answers_are_when_asked() {
    let rest = three_documents().await;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder
        .write_all(b"{\"index\":{\"_index\":\"a\",\"_id\":\"9\"}}\n{\"n\":9}\n")
        .unwrap();
    let zipped = encoder.finish().unwrap();
    let bulk = rest
        .send("POST", "/_bulk", &[("content-encoding", "gzip")], zipped)
        .await
        .expect(200);
    assert_eq!(bulk["items"][0]["index"]["status"], 201);
    let broken = rest
        .send("POST", "/_bulk", &[("content-encoding", "gzip")], "not gzip")
        .await
        .expect(400);
    assert_eq!(broken["error"]["type"], "parse_exception");
    let other = rest
        .send("POST", "/_bulk", &[("content-encoding", "br")], "x")
        .await
        .expect(415);
    assert_eq!(other["status"], 415);
    let said = rest
        .send("GET", "/a/_search", &[("accept-encoding", "gzip, deflate")], "")
        .await;
    assert_eq!(said.headers["content-encoding"], "gzip");
    let mut text = String::new();
    GzDecoder::new(said.bytes.as_ref())
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&text).unwrap()["hits"]["total"]["value"],
        3
    );
    let plain = rest
        .send("GET", "/a/_search", &[("accept-encoding", "gzip;q=0")], "")
        .await;
    assert!(!plain.headers.contains_key("content-encoding"));
}

#[tokio::test]
async fn too_large_a_body_is_refused_with_413() {
    let rest = Rest::start(true);
    let said = rest
        .send("POST", "/_bulk", &[], vec![b' '; (100 << 20) + 1])
        .await
        .expect(413);
    assert_eq!(said["error"]["type"], "content_too_large_exception");
    // 200 MB of blanks pack into little: the bound holds for what comes out as well.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    for _ in 0..200 {
        encoder.write_all(&vec![b' '; 1 << 20]).unwrap();
    }
    let said = rest
        .send(
            "POST",
            "/_bulk",
            &[("content-encoding", "gzip")],
            encoder.finish().unwrap(),
        )
        .await
        .expect(413);
    assert_eq!(said["status"], 413);
}

#[tokio::test]
async fn what_is_unknown_or_not_supported_is_refused_by_name() {
    let rest = three_documents().await;
    let long = format!("/a/_doc/{}", "i".repeat(513));
    let table: Vec<(&str, &str, &str, u16, &str)> = vec![
        (
            "GET",
            "/_search?foo=1",
            "",
            400,
            "request [/_search] contains unrecognized parameter: [foo]",
        ),
        (
            "GET",
            "/a/_search?x=1&y=2",
            "",
            400,
            "request [/a/_search] contains unrecognized parameters: [x], [y]",
        ),
        (
            "GET",
            "/_cluster/health?foo",
            "",
            400,
            "contains unrecognized parameter: [foo]",
        ),
        (
            "GET",
            "/?human=true",
            "",
            400,
            "parameter [human] is not supported",
        ),
        (
            "GET",
            "/_foo/bar",
            "",
            400,
            "no handler found for uri [/_foo/bar] and method [GET]",
        ),
        ("GET", "/a/_search?q=x", "", 400, "[q]"),
        ("GET", "/a/_search?scroll=1m", "", 400, "[scroll]"),
        (
            "GET",
            "/a/_search?preference=_shards:0",
            "",
            400,
            "preference [_shards:0]",
        ),
        (
            "GET",
            "/a/_search?preference=_foo",
            "",
            400,
            "no Preference for [_foo]",
        ),
        ("POST", "/a/_search", "{\"suggest\":{}}", 400, "[suggest]"),
        ("POST", "/a/_search", "{\"query\":{\"fuzzy\":{}}}", 400, "[fuzzy]"),
        ("POST", "/a/_search", "not json", 400, "Failed to parse content"),
        (
            "POST",
            "/a/_search",
            "{\"from\":9000,\"size\":2000}",
            400,
            "Result window is too large",
        ),
        ("GET", "/a/_count?q=x", "", 400, "[q]"),
        ("POST", "/a/_count", "{\"size\":1}", 400, "[size]"),
        ("GET", "/none/_search", "", 404, "no such index [none]"),
        ("GET", "/none/_doc/1", "", 404, "no such index [none]"),
        ("GET", "/none", "", 404, "no such index [none]"),
        ("DELETE", "/none", "", 404, "no such index [none]"),
        (
            "PUT",
            "/UPPER",
            "",
            400,
            "Invalid index name [UPPER], must be lowercase",
        ),
        ("PUT", "/a", "", 400, "already exists"),
        ("PUT", "/b", "{\"foo\":1}", 400, "unknown key [foo]"),
        ("PUT", "/b", "{\"aliases\":{\"x\":{}}}", 400, "[aliases]"),
        (
            "PUT",
            "/b",
            "{\"settings\":{\"index.codec\":\"best_compression\"}}",
            400,
            "[index.codec] is not supported",
        ),
        (
            "PUT",
            "/b",
            "{\"settings\":{\"foo\":1}}",
            400,
            "unknown setting [index.foo]",
        ),
        (
            "PUT",
            "/b?wait_for_active_shards=3",
            "",
            400,
            "wait_for_active_shards",
        ),
        (
            "PUT",
            "/b",
            "{\"mappings\":{\"properties\":{\"x\":{\"type\":\"nested\"}}}}",
            400,
            "nested",
        ),
        (
            "PUT",
            "/a/_settings",
            "{\"index.number_of_shards\":3}",
            400,
            "Can't update non dynamic settings",
        ),
        (
            "PUT",
            "/a/_settings",
            "{\"index.refresh_interval\":\"soon\"}",
            400,
            "refresh_interval",
        ),
        (
            "PUT",
            "/a/_mapping",
            "{\"properties\":{\"n\":{\"type\":\"keyword\"}}}",
            400,
            "n",
        ),
        (
            "PUT",
            "/_cluster/settings",
            "{\"transient\":{\"cluster.routing.allocation.enable\":\"none\"}}",
            400,
            "[transient]",
        ),
        (
            "PUT",
            "/_cluster/settings",
            "{\"persistent\":{\"cluster.routing.allocation.enable\":\"none\"}}",
            400,
            "[cluster.routing.allocation.enable] is not supported",
        ),
        ("PUT", "/_cluster/settings", "{}", 400, "no settings to update"),
        (
            "GET",
            "/_cluster/health?level=foo",
            "",
            400,
            "unknown level [foo]",
        ),
        ("GET", "/_cluster/health?wait_for_status=blue", "", 400, "[blue]"),
        ("GET", "/_stats/foo", "", 400, "metric [foo]"),
        ("GET", "/_stats?level=foo", "", 400, "[foo]"),
        ("GET", "/_nodes/stats/jvm", "", 400, "metric [jvm]"),
        ("GET", "/_cat/indices?format=yaml", "", 400, "[yaml]"),
        ("GET", "/_cat/indices?bytes=x", "", 400, "[x]"),
        ("GET", "/_cat/indices?s=foo", "", 400, "`foo`"),
        (
            "POST",
            "/_bulk?pipeline=p",
            "{\"index\":{\"_index\":\"a\"}}\n{}\n",
            400,
            "[p] of parameter [pipeline]",
        ),
        (
            "POST",
            "/_bulk",
            "{\"index\":{\"_index\":\"a\",\"_type\":\"_doc\"}}\n{}\n",
            400,
            "unknown parameter [_type]",
        ),
        ("POST", "/_bulk", "", 400, "request body is required"),
        (
            "POST",
            "/_bulk",
            "{\"index\":{\"_index\":\"a\"}}\n{}",
            400,
            "must be terminated by a newline",
        ),
        ("POST", "/_bulk", "{\"index\":{}}\n{}\n", 400, "index is missing"),
        (
            "POST",
            "/a/_bulk?refresh=maybe",
            "{\"index\":{}}\n{}\n",
            400,
            "Unknown value for refresh: [maybe].",
        ),
        ("PUT", &long, "{}", 400, "id [iii"),
        (
            "PUT",
            "/a/_doc/1?version=3",
            "{}",
            400,
            "internal versioning can not be used",
        ),
        (
            "PUT",
            "/a/_doc/1?version=3&version_type=external",
            "{}",
            400,
            "[external]",
        ),
        (
            "PUT",
            "/a/_doc/1?if_seq_no=1",
            "{}",
            400,
            "must be given together",
        ),
        ("PUT", "/a/_doc/1?op_type=foo", "{}", 400, "[foo]"),
        ("PUT", "/a/_doc/9", "{\"n\":\"x\"}", 400, "n"),
        ("PUT", "/a/_doc/9", "", 400, "source is missing"),
        ("GET", "/a/_doc/1?stored_fields=n", "", 400, "[stored_fields]"),
        ("POST", "/_mget", "{}", 400, "no documents to get"),
        ("POST", "/_mget", "{\"ids\":[\"1\"]}", 400, "index is missing"),
        ("DELETE", "/a/_doc/1", "{}", 400, "does not support having a body"),
    ];
    for (method, path, body, status, text) in table {
        let said = rest.call(method, path, body).await;
        let shown = said.text();
        assert_eq!(said.status, status, "{method} {path} {body}: {shown}");
        let json = said.json();
        assert_eq!(json["status"], status, "{method} {path}: {shown}");
        let reason = json["error"]["reason"]
            .as_str()
            .unwrap_or_else(|| panic!("{method} {path}: {shown}"));
        let all = format!("{reason} {}", json["error"]["root_cause"]);
        assert!(all.contains(text), "{method} {path} {body}: {shown}");
        let cause = &json["error"]["root_cause"][0];
        assert!(
            cause["type"].is_string() && cause["reason"].is_string(),
            "{shown}"
        );
    }
    assert!(!rest.meta_has("b"));
}

#[tokio::test]
async fn a_wrong_method_is_answered_with_405_and_the_right_ones() {
    let rest = Rest::start(true);
    for (method, path, allowed) in [
        ("DELETE", "/_bulk", "POST, PUT"),
        ("POST", "/", "GET, HEAD"),
        ("PUT", "/_search", "GET, POST, HEAD"),
    ] {
        let said = rest.call(method, path, "").await;
        assert_eq!(said.headers["allow"], allowed, "{path}");
        let json = said.expect(405);
        assert!(
            json["error"]
                .as_str()
                .unwrap()
                .contains("Incorrect HTTP method for uri"),
            "{json}"
        );
    }
}

#[tokio::test]
async fn documents_are_created_read_updated_and_deleted() {
    let rest = Rest::start(true);
    let made = rest
        .call("PUT", "/d/_doc/x%2Fy?refresh=true", "{\"a\": 1,  \"b\":[1, 2]}")
        .await;
    assert_eq!(made.headers["location"], "/d/_doc/x/y");
    let made = made.expect(201);
    assert_eq!(
        (
            &made["_id"],
            &made["result"],
            &made["_version"],
            &made["forced_refresh"]
        ),
        (&json!("x/y"), &json!("created"), &json!(1), &json!(true))
    );
    let got = rest.call("GET", "/d/_doc/x%2Fy", "").await;
    assert!(
        got.text().contains("\"_source\":{\"a\": 1,  \"b\":[1, 2]}"),
        "the source is answered as it was sent: {}",
        got.text()
    );
    assert_eq!(
        rest.call("GET", "/d/_source/x%2Fy", "").await.text(),
        "{\"a\": 1,  \"b\":[1, 2]}"
    );
    assert_eq!(
        rest.call("GET", "/d/_doc/x%2Fy?_source=a", "").await.expect(200)["_source"],
        json!({"a": 1})
    );
    assert_eq!(
        rest.call("GET", "/d/_doc/x%2Fy?_source_excludes=a", "")
            .await
            .expect(200)["_source"],
        json!({"b": [1, 2]})
    );
    assert!(
        rest.call("GET", "/d/_doc/x%2Fy?_source=false", "")
            .await
            .expect(200)
            .get("_source")
            .is_none()
    );
    assert_eq!(
        rest.call("POST", "/d/_update/x%2Fy", "{\"doc\":{\"a\":2}}")
            .await
            .expect(200)["result"],
        "updated"
    );
    assert_eq!(
        rest.call("GET", "/d/_doc/x%2Fy?version=2", "").await.expect(200)["_source"]["a"],
        2
    );
    assert_eq!(
        rest.call("GET", "/d/_doc/x%2Fy?version=1", "").await.expect(409)["error"]["type"],
        "version_conflict_engine_exception"
    );
    assert_eq!(
        rest.call("PUT", "/d/_create/x%2Fy", "{}").await.expect(409)["error"]["type"],
        "version_conflict_engine_exception"
    );
    rest.call("PUT", "/d/_doc/x%2Fy?op_type=create", "{}")
        .await
        .expect(409);
    let stale = rest
        .call("PUT", "/d/_doc/x%2Fy?if_seq_no=0&if_primary_term=1", "{}")
        .await
        .expect(409);
    assert_eq!(stale["error"]["index"], Value::Null);
    rest.call("PUT", "/d/_doc/x%2Fy?if_seq_no=1&if_primary_term=1", "{}")
        .await
        .expect(200);
    let auto = rest.call("POST", "/d/_doc", "{\"a\":1}").await.expect(201);
    assert_eq!(auto["_id"].as_str().unwrap().len(), 22);
    assert_eq!(
        rest.call("DELETE", "/d/_doc/x%2Fy", "").await.expect(200)["result"],
        "deleted"
    );
    assert_eq!(
        rest.call("DELETE", "/d/_doc/x%2Fy", "").await.expect(404)["result"],
        "not_found"
    );
    assert_eq!(
        rest.call("GET", "/d/_doc/x%2Fy", "").await.expect(404),
        json!({"_index": "d", "_id": "x/y", "found": false})
    );
    assert_eq!(
        rest.call("GET", "/d/_source/x%2Fy", "").await.expect(404)["error"]["type"],
        "resource_not_found_exception"
    );
    assert_eq!(
        rest.call("POST", "/d/_update/none", "{\"doc\":{}}")
            .await
            .expect(404)["error"]["type"],
        "document_missing_exception"
    );
}

#[tokio::test]
async fn several_documents_are_read_at_once_in_order() {
    let rest = three_documents().await;
    let body = json!({"docs": [{"_index": "a", "_id": "2", "_source": ["n"]}, {"_id": "none"}, {"_index": "absent", "_id": "1"}, {"_id": "1", "_source": false}]});
    let docs = rest.call("POST", "/a/_mget", &body.to_string()).await.expect(200)["docs"].clone();
    assert_eq!(docs[0]["_source"], json!({"n": 2}));
    assert_eq!(docs[1], json!({"_index": "a", "_id": "none", "found": false}));
    assert_eq!(docs[2]["error"]["type"], "index_not_found_exception");
    assert_eq!((&docs[3]["found"], docs[3].get("_source")), (&json!(true), None));
    let ids = rest
        .call("GET", "/a/_mget", "{\"ids\":[\"3\",\"1\"]}")
        .await
        .expect(200)["docs"]
        .clone();
    assert_eq!((&ids[0]["_id"], &ids[1]["_id"]), (&json!("3"), &json!("1")));
}

#[tokio::test]
async fn searches_and_counts_merge_over_shards() {
    let rest = three_documents().await;
    let said = rest.call("GET", "/a/_search", "").await;
    assert!(said.text().starts_with("{\"took\":"), "{}", said.text());
    let json = said.expect(200);
    assert_eq!(
        json["_shards"],
        json!({"total": 2, "successful": 2, "skipped": 0, "failed": 0})
    );
    assert_eq!(json["hits"]["total"], json!({"value": 3, "relation": "eq"}));
    let body = json!({"query": {"term": {"name": "x"}}, "sort": [{"n": "desc"}], "_source": ["n"],
                      "aggs": {"names": {"terms": {"field": "name"}}, "top": {"max": {"field": "n"}}}});
    let json = rest
        .call("POST", "/a/_search", &body.to_string())
        .await
        .expect(200);
    let ids: Vec<&str> = json["hits"]["hits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|hit| hit["_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["3", "1"]);
    assert_eq!(json["hits"]["hits"][0]["_source"], json!({"n": 3}));
    assert_eq!(json["hits"]["hits"][0]["_index"], "a");
    assert_eq!(
        json["aggregations"]["names"]["buckets"],
        json!([{"key": "x", "doc_count": 2}])
    );
    assert_eq!(json["aggregations"]["top"]["value"], 3.0);
    let count = rest
        .call("POST", "/a/_count", "{\"query\":{\"range\":{\"n\":{\"gte\":2}}}}")
        .await
        .expect(200);
    assert_eq!(
        count,
        json!({"count": 2, "_shards": {"total": 2, "successful": 2, "skipped": 0, "failed": 0}})
    );
    assert_eq!(rest.call("GET", "/_count", "").await.expect(200)["count"], 3);
    assert_eq!(
        rest.call("GET", "/none*/_search", "").await.expect(200)["_shards"]["total"],
        0
    );
    assert_eq!(
        rest.call("GET", "/a,none/_search?ignore_unavailable=true", "")
            .await
            .expect(200)["hits"]["total"]["value"],
        3
    );
    for preference in [
        "_primary",
        "_local",
        "_only_local",
        "_only_nodes:n-0",
        "session-1",
    ] {
        let count = rest
            .call("GET", &format!("/a/_count?preference={preference}"), "")
            .await
            .expect(200);
        assert_eq!(count["count"], 3, "{preference}");
    }
    for preference in ["_replica", "_only_nodes:other"] {
        let said = rest
            .call("GET", &format!("/a/_search?preference={preference}"), "")
            .await
            .expect(503);
        assert_eq!(
            said["error"]["type"], "search_phase_execution_exception",
            "{preference}"
        );
        assert_eq!(said["error"]["failed_shards"].as_array().unwrap().len(), 2);
        assert_eq!(
            said["error"]["root_cause"][0]["type"],
            "no_shard_available_action_exception"
        );
    }
    let wrong = rest
        .call("POST", "/a/_search", "{\"sort\":[{\"absent\":\"asc\"}]}")
        .await
        .expect(400);
    assert_eq!(wrong["error"]["type"], "search_phase_execution_exception");
    assert_eq!(wrong["error"]["reason"], "all shards failed");
    assert_eq!(wrong["error"]["root_cause"][0]["type"], "query_shard_exception");
}

#[tokio::test]
async fn what_was_written_is_searched_after_a_refresh() {
    let rest = three_documents().await;
    rest.call("PUT", "/a/_doc/4", "{\"n\":4}").await.expect(201);
    assert_eq!(rest.call("GET", "/a/_count", "").await.expect(200)["count"], 3);
    assert_eq!(
        rest.call("POST", "/a/_refresh", "").await.expect(200),
        json!({"_shards": {"total": 2, "successful": 2, "failed": 0}})
    );
    assert_eq!(rest.call("GET", "/a/_count", "").await.expect(200)["count"], 4);
    assert_eq!(
        rest.call("POST", "/_flush", "").await.expect(200)["_shards"]["successful"],
        2
    );
    assert_eq!(
        rest.call("GET", "/_all/_flush", "").await.expect(200)["_shards"]["failed"],
        0
    );
}

#[tokio::test]
async fn indices_are_read_changed_and_deleted() {
    let rest = three_documents().await;
    let index = rest.call("GET", "/a", "").await.expect(200);
    assert_eq!(index["a"]["settings"]["index"]["number_of_shards"], "2");
    assert_eq!(index["a"]["mappings"]["properties"]["n"], json!({"type": "long"}));
    assert_eq!(index["a"]["aliases"], json!({}));
    let flat = rest
        .call("GET", "/a/_settings?flat_settings=true&include_defaults=true", "")
        .await
        .expect(200);
    assert_eq!(flat["a"]["settings"]["index.number_of_replicas"], "0");
    assert_eq!(flat["a"]["defaults"]["index.translog.durability"], "request");
    let one = rest
        .call("GET", "/_all/_settings/index.number_of_*?flat_settings=true", "")
        .await
        .expect(200);
    assert_eq!(one["a"]["settings"].as_object().unwrap().len(), 2);
    rest.call(
        "PUT",
        "/a/_settings",
        "{\"index\":{\"refresh_interval\":\"5s\",\"translog.durability\":\"async\"}}",
    )
    .await
    .expect(200);
    let now = rest.call("GET", "/a/_settings", "").await.expect(200);
    assert_eq!(now["a"]["settings"]["index"]["translog"]["durability"], "async");
    rest.call("PUT", "/a/_settings", "{\"index.refresh_interval\":null}")
        .await
        .expect(200);
    assert!(
        rest.call("GET", "/a/_settings", "").await.expect(200)["a"]["settings"]["index"]
            .get("refresh_interval")
            .is_none()
    );
    rest.call(
        "PUT",
        "/a/_settings?preserve_existing=true",
        "{\"index.translog.durability\":\"request\"}",
    )
    .await
    .expect(200);
    assert_eq!(
        rest.call("GET", "/a/_settings", "").await.expect(200)["a"]["settings"]["index"]["translog"]["durability"],
        "async"
    );
    rest.call(
        "PUT",
        "/a/_mapping",
        "{\"properties\":{\"new\":{\"type\":\"date\"}}}",
    )
    .await
    .expect(200);
    assert_eq!(
        rest.call("GET", "/_mapping", "").await.expect(200)["a"]["mappings"]["properties"]["new"]["type"],
        "date"
    );
    let again = rest.call("PUT", "/a", "").await.expect(400);
    assert_eq!(again["error"]["type"], "resource_already_exists_exception");
    assert_eq!(again["error"]["index"], "a");
    rest.call("DELETE", "/a", "").await.expect(200);
    assert_eq!(rest.call("HEAD", "/a", "").await.status, 404);
}

#[tokio::test]
async fn cluster_settings_are_kept_and_answered() {
    let rest = Rest::start(true);
    let body = "{\"persistent\":{\"cluster\":{\"indices\":{\"replication\":{\"strategy\":\"SEGMENT\"}}}}}";
    let put = rest
        .call("PUT", "/_cluster/settings?flat_settings=true", body)
        .await
        .expect(200);
    assert_eq!(
        put,
        json!({"acknowledged": true, "persistent": {"cluster.indices.replication.strategy": "SEGMENT"}, "transient": {}})
    );
    let get = rest
        .call(
            "GET",
            "/_cluster/settings?include_defaults=true&flat_settings",
            "",
        )
        .await
        .expect(200);
    assert_eq!(
        get["persistent"]["cluster.indices.replication.strategy"],
        "SEGMENT"
    );
    assert!(
        get["defaults"]
            .get("cluster.indices.replication.strategy")
            .is_none()
    );
    rest.call("PUT", "/s", "").await.expect(200);
    assert_eq!(
        rest.call("GET", "/s/_settings", "").await.expect(200)["s"]["settings"]["index"]["replication"]["type"],
        "SEGMENT"
    );
    rest.call(
        "PUT",
        "/_cluster/settings",
        "{\"persistent\":{\"cluster.indices.replication.strategy\":null}}",
    )
    .await
    .expect(200);
    assert_eq!(
        rest.call("GET", "/_cluster/settings", "").await.expect(200),
        json!({"persistent": {}, "transient": {}})
    );
}

#[tokio::test]
async fn health_counts_copies_and_waits() {
    let rest = three_documents().await;
    let health = rest.call("GET", "/_cluster/health", "").await.expect(200);
    assert_eq!(
        (
            &health["status"],
            &health["active_shards"],
            &health["unassigned_shards"]
        ),
        (&json!("green"), &json!(2), &json!(0))
    );
    assert_eq!(health["active_shards_percent_as_number"], 100.0);
    assert_eq!(health["discovered_cluster_manager"], true);
    rest.call("PUT", "/b", "").await.expect(200);
    let health = rest
        .call("GET", "/_cluster/health/b?level=shards", "")
        .await
        .expect(200);
    assert_eq!(
        (&health["status"], &health["unassigned_shards"]),
        (&json!("yellow"), &json!(1))
    );
    assert_eq!(health["indices"]["b"]["shards"]["0"]["status"], "yellow");
    rest.call("GET", "/_cluster/health?wait_for_status=yellow&wait_for_nodes=>=1&wait_for_no_initializing_shards=true&timeout=5s", "").await.expect(200);
    let late = rest
        .call("GET", "/_cluster/health?wait_for_status=green&timeout=50ms", "")
        .await
        .expect(408);
    assert_eq!(
        (&late["timed_out"], &late["status"]),
        (&json!(true), &json!("yellow"))
    );
    rest.call("GET", "/_cluster/health?wait_for_nodes=2&timeout=50ms", "")
        .await
        .expect(408);
    rest.call(
        "GET",
        "/_cluster/health/absent?wait_for_status=red&timeout=50ms",
        "",
    )
    .await
    .expect(408);
    let waiting = rest.call(
        "GET",
        "/_cluster/health/late?wait_for_status=yellow&timeout=10s",
        "",
    );
    let making = rest.call("PUT", "/late", "");
    let (waited, _) = tokio::join!(waiting, making);
    assert_eq!(waited.expect(200)["timed_out"], false);
}

#[tokio::test]
async fn nodes_are_listed_as_clients_sniff_them() {
    let rest = three_documents().await;
    let address = rest.url.trim_start_matches("http://").to_owned();
    for path in [
        "/_nodes/_all/http",
        "/_nodes/http",
        "/_nodes",
        "/_nodes/n-0",
        "/_nodes/_local",
        "/_nodes/_cluster_manager",
    ] {
        let nodes = rest.call("GET", path, "").await.expect(200);
        assert_eq!(
            nodes["_nodes"],
            json!({"total": 1, "successful": 1, "failed": 0}),
            "{path}"
        );
        let node = nodes["nodes"]
            .as_object()
            .unwrap()
            .values()
            .next()
            .unwrap()
            .clone();
        assert_eq!(
            (&node["name"], &node["http"]["publish_address"]),
            (&json!("n-0"), &json!(address)),
            "{path}"
        );
    }
    let stats = rest.call("GET", "/_nodes/stats", "").await.expect(200);
    assert_eq!(stats["nodes"]["0000000000000007"]["indices"]["docs"]["count"], 3);
    assert_eq!(
        rest.call("GET", "/_nodes/other", "").await.expect(200)["nodes"],
        json!({})
    );
}

#[tokio::test]
async fn stats_and_segments_show_what_was_counted() {
    let rest = three_documents().await;
    rest.call("POST", "/a/_flush", "").await.expect(200);
    let stats = rest
        .call("GET", "/_stats/_all?level=shards", "")
        .await
        .expect(200);
    assert_eq!(stats["_all"]["primaries"]["docs"]["count"], 3);
    assert_eq!(stats["_all"]["total"]["indexing"]["index_total"], 3);
    assert_eq!(stats["indices"]["a"]["total"]["flush"]["total"], 2);
    assert!(stats["_all"]["total"]["store"]["size_in_bytes"].as_u64().unwrap() > 0);
    assert_eq!(stats["_all"]["total"]["translog"]["operations"], 3);
    assert_eq!(
        stats["indices"]["a"]["shards"]["0"][0]["routing"]["primary"],
        true
    );
    let docs = rest.call("GET", "/a/_stats/docs", "").await.expect(200);
    assert_eq!(
        docs["_all"]["total"]
            .as_object()
            .unwrap()
            .keys()
            .collect::<Vec<_>>(),
        ["docs"]
    );
    assert!(
        rest.call("GET", "/a/_stats?level=cluster", "")
            .await
            .expect(200)
            .get("indices")
            .is_none()
    );
    let segments = rest.call("GET", "/a/_segments", "").await.expect(200);
    let copy = &segments["indices"]["a"]["shards"]["0"][0];
    assert_eq!(copy["routing"]["state"], "STARTED");
    assert!(
        copy["segments"]
            .as_object()
            .unwrap()
            .values()
            .all(|segment| segment["search"] == true),
        "{copy}"
    );
}

#[tokio::test]
async fn tables_are_printed_for_people_and_for_programs() {
    let rest = three_documents().await;
    let text = rest
        .call("GET", "/_cat/indices?v&h=index,pri,rep,docs.count", "")
        .await
        .text();
    assert_eq!(text, "index pri rep docs.count\na       2   0          3\n");
    let json = rest
        .call("GET", "/_cat/indices?format=json&h=index,docs.count", "")
        .await
        .expect(200);
    assert_eq!(json, json!([{"index": "a", "docs.count": "3"}]));
    rest.call("PUT", "/b", "").await.expect(200);
    let shards = rest
        .call("GET", "/_cat/shards?h=i,s,p,st,n&s=i:desc,s", "")
        .await
        .text();
    assert_eq!(
        shards,
        "b 0 p STARTED    n-0\nb 0 r UNASSIGNED\na 0 p STARTED    n-0\na 1 p STARTED    n-0\n"
    );
    let one = rest
        .call("GET", "/_cat/shards/a?format=json&bytes=b", "")
        .await
        .expect(200);
    assert!(one[0]["store"].as_str().unwrap().parse::<u64>().is_ok(), "{one}");
    let nodes = rest
        .call("GET", "/_cat/nodes?h=cluster_manager,name", "")
        .await
        .text();
    assert_eq!(nodes, "* n-0\n");
    let health = rest
        .call("GET", "/_cat/health?h=cluster,status,shards", "")
        .await
        .text();
    assert_eq!(health, "test yellow 3\n");
    let help = rest.call("GET", "/_cat/shards?help", "").await.text();
    assert!(
        help.lines()
            .any(|line| line.starts_with("unassigned.reason ") && line.contains("| ur ")),
        "{help}"
    );
    let yellow = rest
        .call("GET", "/_cat/indices?health=yellow&h=index", "")
        .await
        .text();
    assert_eq!(yellow, "b\n");
}

#[tokio::test]
async fn a_write_is_sent_again_only_where_that_is_safe() {
    let rest = three_documents().await;
    let seen = |rest: &Rest| {
        let list = rest.copies.seen.lock().unwrap().drain(..).collect::<Vec<_>>();
        list.into_iter()
            .map(|(kind, _, fresh)| (kind, fresh))
            .collect::<Vec<_>>()
    };
    seen(&rest);
    // Nothing was done: every kind is sent again.
    for (method, path, body, status) in [
        ("PUT", "/a/_create/c1", "{}", 201),
        ("PUT", "/a/_doc/1?if_seq_no=0&if_primary_term=1", "{}", 200),
        ("POST", "/a/_update/2", "{\"doc\":{\"n\":5}}", 200),
        ("DELETE", "/a/_doc/3", "", 200),
    ] {
        rest.fail(&[Fault::NotHere, Fault::NotHere]);
        let said = rest.call(method, path, body).await;
        assert_eq!(said.status, status, "{method} {path}: {}", said.text());
        assert_eq!(seen(&rest).len(), 3, "{method} {path}");
    }
    // The answer was lost: only what may be done twice is done again.
    for (method, path, body, status, times) in [
        ("PUT", "/a/_create/c2", "{}", 503, 1),
        ("PUT", "/a/_doc/c2?if_seq_no=9&if_primary_term=1", "{}", 503, 1),
        ("POST", "/a/_update/2", "{\"doc\":{\"n\":6}}", 503, 1),
        ("PUT", "/a/_doc/1", "{}", 200, 2),
        ("DELETE", "/a/_doc/2", "", 404, 2),
    ] {
        rest.fail(&[Fault::LostAnswer]);
        let said = rest.call(method, path, body).await;
        assert_eq!(said.status, status, "{method} {path}: {}", said.text());
        assert_eq!(seen(&rest).len(), times, "{method} {path}");
        if status == 503 {
            assert_eq!(said.json()["error"]["type"], "unknown_outcome_exception");
        }
    }
    // An id that was made here may exist once its first attempt went out.
    rest.fail(&[Fault::LostAnswer]);
    let made = rest.call("POST", "/a/_doc", "{}").await;
    assert_eq!(made.status, 200, "{}", made.text());
    assert_eq!(seen(&rest), [(WriteKind::Index, true), (WriteKind::Index, false)]);
}

#[tokio::test]
async fn a_primary_that_does_not_start_in_time_is_named() {
    let rest = three_documents().await;
    rest.fail(&[Fault::NotHere; 8]);
    let late = rest
        .call("PUT", "/a/_doc/1?timeout=100ms", "{}")
        .await
        .expect(503);
    assert_eq!(late["error"]["type"], "unavailable_shards_exception");
    let few = rest
        .call("PUT", "/a/_doc/1?wait_for_active_shards=2&timeout=100ms", "{}")
        .await
        .expect(503);
    assert!(
        few["error"]["reason"]
            .as_str()
            .unwrap()
            .contains("Not enough active copies"),
        "{few}"
    );
}

#[tokio::test]
async fn a_node_without_a_cluster_says_so() {
    let rest = Rest::start(false);
    for (method, path) in [
        ("GET", "/a/_search"),
        ("PUT", "/a"),
        ("GET", "/a/_doc/1"),
        ("GET", "/_cat/nodes"),
        ("GET", "/_cluster/settings"),
    ] {
        let said = rest.call(method, path, "").await;
        assert_eq!(said.headers["retry-after"], "1");
        assert_eq!(
            said.expect(503)["error"]["type"],
            "cluster_manager_not_discovered_exception",
            "{path}"
        );
    }
    assert_eq!(
        rest.call("GET", "/", "").await.expect(200)["cluster_name"],
        "not formed"
    );
    rest.call("GET", "/_segmentry/health/live", "").await.expect(200);
    let ready = rest.call("GET", "/_segmentry/health/ready", "").await.expect(503);
    assert_eq!(ready["waiting_for"], "waiting_for_initialise");
    rest.set_ready();
    rest.call("GET", "/_segmentry/health/ready", "").await.expect(200);
}
