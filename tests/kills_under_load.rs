//! `AckedIsDurable` with real processes: whatever is killed under load, every acknowledged document is there at the end.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use serde_json::json;
use std::time::{Duration, Instant};
use support::{
    cluster::Cluster,
    writers::{Writers, assert_all_there},
};

const GREEN_WITHIN: Duration = Duration::from_secs(60);

async fn create(cluster: &Cluster, index: &str, replication: &str, durability: &str) {
    let body = json!({"settings": {"index": {"number_of_shards": 3, "number_of_replicas": 1,
        "replication": {"type": replication}, "translog": {"durability": durability}}}});
    cluster.call(0, "PUT", &format!("/{index}"), Some(body)).await;
    cluster.wait_health("green", GREEN_WITHIN).await;
}

async fn one_node_killed(replication: &str) {
    let mut cluster = Cluster::start(3).await;
    create(&cluster, "kills", replication, "request").await;
    let writers = Writers::start(&cluster, "kills", 4, 50);
    writers.flow(1000, GREEN_WITHIN).await;
    for n in 0..3 {
        let began = Instant::now();
        cluster.kill(n);
        writers.flow(500, GREEN_WITHIN).await;
        let flows = began.elapsed();
        cluster.start_node(n);
        let green = cluster.wait_health("green", GREEN_WITHIN).await;
        eprintln!(
            "{replication}: node {n} killed: writes flow after {flows:.2?}, green {green:.2?} after its start"
        );
    }
    let ids = writers.finish().await;
    cluster.wait_health("green", GREEN_WITHIN).await;
    assert_all_there(&cluster, 0, "kills", &ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_node_killed_in_turn_loses_nothing_with_document_replication() {
    one_node_killed("DOCUMENT").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_node_killed_in_turn_loses_nothing_with_segment_replication() {
    one_node_killed("SEGMENT").await;
}

async fn all_nodes_killed(replication: &str, durability: &str) {
    let mut cluster = Cluster::start(3).await;
    create(&cluster, "all", replication, durability).await;
    let writers = Writers::start(&cluster, "all", 8, 20);
    for _ in 0..2 {
        writers.flow(1000, GREEN_WITHIN).await;
        cluster.kill_all();
        for n in 0..3 {
            cluster.start_node(n);
        }
        let green = cluster.wait_health("green", GREEN_WITHIN).await;
        eprintln!("{replication} {durability}: all killed: green after {green:.2?}");
    }
    let ids = writers.finish().await;
    cluster.wait_health("green", GREEN_WITHIN).await;
    assert_all_there(&cluster, 1, "all", &ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_killed_at_once_lose_nothing_with_document_replication() {
    all_nodes_killed("DOCUMENT", "request").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_killed_at_once_lose_nothing_with_segment_replication() {
    all_nodes_killed("SEGMENT", "request").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn async_writes_survive_the_kill_of_all_processes_because_the_kernel_has_them() {
    all_nodes_killed("SEGMENT", "async").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_raft_leader_killed_under_load_loses_nothing() {
    let mut cluster = Cluster::start(3).await;
    create(&cluster, "leader", "SEGMENT", "request").await;
    let writers = Writers::start(&cluster, "leader", 4, 50);
    writers.flow(1000, GREEN_WITHIN).await;
    let overview = cluster.overview().await;
    let leader = cluster.number(overview["leader"].as_str().expect("a leader"));
    cluster.kill(leader);
    writers.flow(500, GREEN_WITHIN).await;
    cluster.start_node(leader);
    cluster.wait_health("green", GREEN_WITHIN).await;
    let ids = writers.finish().await;
    assert_all_there(&cluster, leader, "leader", &ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_restart_of_all_recopies_nothing_with_document_replication() {
    let mut cluster = Cluster::start(3).await;
    create(&cluster, "clean", "DOCUMENT", "request").await;
    let writers = Writers::start(&cluster, "clean", 4, 50);
    writers.flow(2000, GREEN_WITHIN).await;
    let ids = writers.finish().await;
    let before = allocations(&cluster);
    for n in 0..3 {
        cluster.stop(n).await;
    }
    for n in 0..3 {
        cluster.start_node(n);
    }
    cluster.wait_health("green", GREEN_WITHIN).await;
    assert_all_there(&cluster, 2, "clean", &ids).await;
    // a recopied copy would have a new allocation, and so a new folder
    assert_eq!(allocations(&cluster), before);
}

fn allocations(cluster: &Cluster) -> Vec<String> {
    let mut folders = Vec::new();
    for node in &cluster.nodes {
        for index in std::fs::read_dir(node.data.join("indices")).unwrap() {
            for shard in std::fs::read_dir(index.unwrap().path()).unwrap() {
                for allocation in std::fs::read_dir(shard.unwrap().path()).unwrap() {
                    let path = allocation.unwrap().path();
                    folders.push(
                        path.strip_prefix(cluster.directory())
                            .unwrap()
                            .display()
                            .to_string(),
                    );
                }
            }
        }
    }
    folders.sort();
    folders
}
