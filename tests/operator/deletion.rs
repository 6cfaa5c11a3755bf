//! Cluster, Index, namespace and operator, deleted in every order, end in bounded time.

use super::flow::{CLUSTER, Flow, LIMIT, index};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, ListParams};
use segmentry::api::{Index, IndexCluster};
use segmentry_testbed::eventually;

/// A cluster with an Index of each deletion policy.
async fn declared(prefix: &str) -> Flow {
    let flow = Flow::start(prefix).await;
    flow.apply(CLUSTER);
    flow.apply(&index("kept", "Document", "Retain"));
    flow.apply(&index("removed", "Segment", "Delete"));
    flow.index_is("kept", "Ready", "True").await;
    flow.index_is("removed", "Ready", "True").await;
    flow
}

async fn objects_gone(flow: &Flow) {
    let (clusters, indices, pods) = (
        flow.scope.api::<IndexCluster>(),
        flow.scope.api::<Index>(),
        flow.scope.api::<Pod>(),
    );
    eventually(LIMIT, "all objects and pods are gone", || async {
        let all = ListParams::default();
        let left = (
            clusters.list(&all).await?.items.len(),
            indices.list(&all).await?.items.len(),
            pods.list(&all).await?.items.len(),
        );
        anyhow::ensure!(left == (0, 0, 0), "clusters, indices, pods: {left:?}");
        Ok(())
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", flow.story()));
}

async fn namespace_gone(flow: &Flow) {
    let namespaces: Api<Namespace> = Api::all(flow.scope.client.clone());
    eventually(LIMIT, "the namespace is gone", || async {
        let left = namespaces.get_opt(&flow.scope.name).await?;
        anyhow::ensure!(
            left.is_none(),
            "{:?}",
            left.and_then(|namespace| namespace.status?.conditions)
        );
        Ok(())
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", flow.story()));
}

#[tokio::test]
async fn the_indices_first_and_only_the_policy_delete_takes_data() {
    let flow = declared("first").await;
    flow.kubectl(&["delete", "ix", "--all", "--wait=false"]).unwrap();
    eventually(LIMIT, "the objects are gone", || async {
        let left = flow
            .scope
            .api::<Index>()
            .list(&ListParams::default())
            .await?
            .items
            .len();
        anyhow::ensure!(left == 0, "{left}");
        Ok(())
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", flow.story()));
    let names = flow.get("/_cat/indices?format=json").await.unwrap();
    let names: Vec<_> = names
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["index"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["kept"]);
    flow.kubectl(&["delete", "ixc", "--all", "--wait=false"]).unwrap();
    objects_gone(&flow).await;
}

#[tokio::test]
async fn the_cluster_first() {
    let flow = declared("cluster").await;
    flow.kubectl(&["delete", "ixc", "--all", "--wait=false"]).unwrap();
    eventually(LIMIT, "the cluster's pods are gone", || async {
        let left = flow
            .scope
            .api::<Pod>()
            .list(&ListParams::default())
            .await?
            .items
            .len();
        anyhow::ensure!(left == 0, "{left}");
        Ok(())
    })
    .await
    .unwrap();
    flow.kubectl(&["delete", "ix", "--all", "--wait=false"]).unwrap();
    objects_gone(&flow).await;
}

#[tokio::test]
async fn all_at_once() {
    let flow = declared("at-once").await;
    flow.kubectl(&["delete", "ixc,ix", "--all", "--wait=false"])
        .unwrap();
    objects_gone(&flow).await;
}

#[tokio::test]
async fn the_namespace() {
    let flow = declared("namespace").await;
    flow.scope.delete().await.unwrap();
    namespace_gone(&flow).await;
}

#[tokio::test]
async fn the_operator_first_then_the_namespace() {
    let flow = Flow::with_indices("operator-first").await;
    flow.uninstall().await;
    // Nodes serve without an operator.
    flow.get("/_cluster/health").await.unwrap();
    flow.scope.delete().await.unwrap();
    namespace_gone(&flow).await;
}

/// Without its operator an Index of policy Delete can still be deleted, with or without its namespace: the chart takes the finalizers off.
#[tokio::test]
async fn the_operator_first_then_each_object() {
    let flow = declared("operator-first-objects").await;
    flow.uninstall().await;
    for index in flow
        .scope
        .api::<Index>()
        .list(&ListParams::default())
        .await
        .unwrap()
    {
        assert_eq!(
            index.metadata.finalizers.unwrap_or_default(),
            Vec::<String>::new()
        );
    }
    // The data is as it was.
    let names = flow.get("/_cat/indices?format=json").await.unwrap();
    assert_eq!(names.as_array().unwrap().len(), 2, "{names}");
    flow.kubectl(&["delete", "ix", "--all", "--wait=false"]).unwrap();
    flow.kubectl(&["delete", "ixc", "--all", "--wait=false"]).unwrap();
    objects_gone(&flow).await;
    flow.scope.delete().await.unwrap();
    namespace_gone(&flow).await;
}

/// The namespace goes with everything in it, and no operator is there to finish the Index objects.
#[tokio::test]
async fn the_operator_then_the_namespace_with_a_policy_that_deletes() {
    let flow = declared("operator-then-namespace").await;
    flow.uninstall().await;
    flow.scope.delete().await.unwrap();
    namespace_gone(&flow).await;
}
