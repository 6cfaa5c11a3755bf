//! From `kubectl apply` to search.

use super::flow::{CLUSTER, Flow, PODS, index};
use serde_json::json;

#[tokio::test]
async fn a_cluster_and_two_indices_become_ready_and_every_copy_holds_the_same() {
    let flow = Flow::with_indices("ready").await;
    for index in ["documents", "segments"] {
        let lines: String = (0..300)
            .map(|n| {
                format!(
                    "{}\n{}\n",
                    json!({"index": {"_id": n.to_string()}}),
                    json!({"n": n})
                )
            })
            .collect();
        let url = format!("{}/{index}/_bulk", flow.addresses()[0]);
        let request = flow
            .http
            .post(url)
            .header("content-type", "application/x-ndjson")
            .body(lines);
        let answer: serde_json::Value = request.send().await.unwrap().json().await.unwrap();
        assert_eq!(answer["errors"], false, "{answer}");
        assert_eq!(flow.equal_copies(index).await, 300);
    }
    let cluster = flow.cluster_is("PrimariesBalanced", "True").await;
    let status = cluster.status.unwrap();
    assert_eq!((status.nodes.ready, status.nodes.desired), (3, 3));
    assert_eq!(
        status
            .primaries_by_node
            .iter()
            .map(|node| node.primaries)
            .collect::<Vec<_>>(),
        [2, 2, 2]
    );
    assert_eq!(status.identity.unwrap().members.len(), 3);
    let printed = flow.kubectl(&["get", "ixc,ix"]).unwrap();
    assert!(
        printed.contains("indexcluster.segmentry.io/search")
            && printed.contains("index.segmentry.io/segments"),
        "{printed}"
    );
    let applied = flow.index_is("segments", "ReplicationApplied", "True").await;
    assert_eq!(
        applied.status.unwrap().replication_type,
        Some(segmentry::api::ReplicationType::Segment)
    );
}

#[tokio::test]
async fn an_index_whose_cluster_is_missing_waits_with_a_reason() {
    let flow = Flow::start("waiting").await;
    flow.apply(&index("documents", "Document", "Delete"));
    let waiting = flow.index_is("documents", "Ready", "False").await;
    let conditions = waiting.status.unwrap().conditions;
    let ready = conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
        .unwrap();
    assert_eq!(ready.reason, "ClusterMissing", "{}", ready.message);
    flow.apply(CLUSTER);
    flow.index_is("documents", "Ready", "True").await;
}

#[tokio::test]
async fn a_pod_that_does_not_start_is_explained_in_the_status() {
    let flow = Flow::start("blocked").await;
    flow.bed.kubelet.hold_scheduling(&flow.scope.name, true);
    flow.apply(CLUSTER);
    let seen = |word: &'static str| {
        let flow = &flow;
        async move {
            segmentry_testbed::eventually(super::flow::LIMIT, word, || async {
                let cluster = flow
                    .scope
                    .api::<segmentry::api::IndexCluster>()
                    .get("search")
                    .await?;
                let status = cluster.status.unwrap_or_default();
                let waits = status.in_progress.iter().any(|step| {
                    step.waiting_for
                        .as_deref()
                        .is_some_and(|text| text.contains(word))
                });
                let ready = status
                    .conditions
                    .iter()
                    .find(|condition| condition.type_ == "Ready");
                let told = ready.is_some_and(|condition| condition.message.contains(word));
                anyhow::ensure!(waits && told, "{:?} {ready:?}", status.in_progress);
                Ok(())
            })
            .await
            .unwrap_or_else(|error| panic!("{error:#}\n{}", flow.story()));
        }
    };
    seen("Unschedulable").await;
    flow.bed.kubelet.hold_scheduling(&flow.scope.name, false);
    flow.cluster_is("Ready", "True").await;
    assert_eq!(flow.addresses().len(), PODS.len());
}

#[tokio::test]
async fn what_was_deleted_or_edited_by_hand_comes_back() {
    let flow = Flow::start("drift").await;
    flow.apply(CLUSTER);
    flow.cluster_is("Ready", "True").await;
    flow.kubectl(&["delete", "service/search"]).unwrap();
    flow.kubectl(&[
        "patch",
        "statefulset/search-nodes",
        "--type=merge",
        "-p",
        r#"{"spec":{"replicas":2}}"#,
    ])
    .unwrap();
    segmentry_testbed::eventually(
        super::flow::LIMIT,
        "the Service and the set are as declared",
        || async {
            flow.kubectl(&["get", "service/search"])
                .map_err(anyhow::Error::msg)?;
            let replicas = flow
                .kubectl(&[
                    "get",
                    "statefulset/search-nodes",
                    "-o",
                    "jsonpath={.spec.replicas}",
                ])
                .map_err(anyhow::Error::msg)?;
            anyhow::ensure!(replicas == "3", "{replicas} replicas");
            Ok(())
        },
    )
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", flow.story()));
    flow.cluster_is("Ready", "True").await;
}
