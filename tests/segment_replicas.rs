//! SEGMENT replicas hold the primary's segments, not their own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};
use support::{
    cluster::Cluster,
    wait_for,
    writers::{Writers, assert_all_there},
};

/// Segment names of each copy of each shard: (shard, primary?, names).
fn segments(answer: &Value, index: &str) -> Vec<(String, bool, BTreeSet<String>)> {
    let shards = answer["indices"][index]["shards"].as_object().expect("shards");
    let mut all = Vec::new();
    for (number, copies) in shards {
        for copy in copies.as_array().expect("copies") {
            let names = copy["segments"]
                .as_object()
                .expect("segments")
                .keys()
                .cloned()
                .collect();
            all.push((number.clone(), copy["routing"]["primary"] == true, names));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_replica_shows_the_primarys_segment_ids_and_a_document_replica_its_own() {
    let cluster = Cluster::start(3).await;
    for (index, kind) in [("seg", "SEGMENT"), ("doc", "DOCUMENT")] {
        let body = json!({"settings": {"index": {"number_of_shards": 2, "number_of_replicas": 1,
            "refresh_interval": "-1", "replication": {"type": kind}}}});
        cluster.call(0, "PUT", &format!("/{index}"), Some(body)).await;
    }
    cluster.wait_health("green", Duration::from_secs(60)).await;
    for index in ["seg", "doc"] {
        let writers = Writers::start(&cluster, index, 2, 50);
        writers.flow(2000, Duration::from_secs(60)).await;
        let ids = writers.finish().await;
        assert_all_there(&cluster, 2, index, &ids).await;
    }
    wait_for("equal segment ids", Duration::from_secs(20), || async {
        let copies = segments(&cluster.call(1, "GET", "/seg/_segments", None).await, "seg");
        for (shard, _, names) in copies.iter().filter(|copy| copy.1) {
            let replica = copies
                .iter()
                .find(|copy| copy.0 == *shard && !copy.1)
                .expect("a replica");
            if replica.2 != *names || names.is_empty() {
                return Err(format!("shard {shard}: {names:?} and {:?}", replica.2));
            }
        }
        Ok(())
    })
    .await;
    let copies = segments(&cluster.call(1, "GET", "/doc/_segments", None).await, "doc");
    for (shard, _, names) in copies.iter().filter(|copy| copy.1) {
        let replica = copies
            .iter()
            .find(|copy| copy.0 == *shard && !copy.1)
            .expect("a replica");
        assert!(replica.2.is_disjoint(names), "DOCUMENT copies index on their own");
    }
}
