//! Faults under load: every acknowledged document is there at the end, and health returns to green without help.

use super::flow::{Flow, PODS};
use super::writers::Writers;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, EvictParams};
use rustix::process::Signal;
use segmentry_testbed::eventually;
use std::sync::Arc;

/// Load on both indices, a fault, load again, then the comparison.
async fn survives<F: Future<Output = ()>>(name: &str, fault: impl FnOnce(Arc<Flow>) -> F) {
    let flow = Arc::new(Flow::with_indices(name).await);
    let writers = [
        Writers::start(&flow, "documents"),
        Writers::start(&flow, "segments"),
    ];
    for writer in &writers {
        writer.go_on(&flow).await;
    }
    fault(flow.clone()).await;
    let seconds = flow.green().await;
    for writer in writers {
        writer.go_on(&flow).await;
        let kept = writer.assert_kept(&flow).await;
        println!(
            "{name}: {kept} acknowledged documents kept, green after {:.1} s",
            seconds.as_secs_f32()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node() {
    survives("kill", |flow| async move {
        flow.bed
            .kubelet
            .signal(&flow.scope.name, PODS[0], Signal::KILL)
            .unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_pod() {
    survives("delete", |flow| async move {
        let old = flow.pod(PODS[1]).await;
        flow.scope
            .api::<Pod>()
            .delete(PODS[1], &DeleteParams::default())
            .await
            .unwrap();
        flow.successor(&old).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_deleted_pod_of_the_leader() {
    survives("leader", |flow| async move {
        let leader = flow.leader().await;
        let old = flow.pod(&leader).await;
        flow.scope
            .api::<Pod>()
            .delete(&leader, &DeleteParams::default())
            .await
            .unwrap();
        flow.successor(&old).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evicted_pod_and_a_second_eviction_is_refused_meanwhile() {
    survives("evict", |flow| async move {
        let pods = flow.scope.api::<Pod>();
        let old = flow.pod(PODS[2]).await;
        // The budget opens once the operator has seen a copy of every shard elsewhere.
        eventually(super::flow::LIMIT, "an eviction is allowed", || async {
            pods.evict(PODS[2], &EvictParams::default()).await?;
            Ok(())
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", flow.story()));
        match pods.evict(PODS[0], &EvictParams::default()).await {
            Err(kube::Error::Api(refusal)) => assert_eq!(refusal.code, 429, "{refusal:?}"),
            other => panic!("a second eviction should be refused: {other:?}"),
        }
        flow.successor(&old).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_volume() {
    survives("volume", |flow| async move {
        let old = flow.pod(PODS[0]).await;
        let claim = format!("data-{}", PODS[0]);
        flow.scope
            .api::<PersistentVolumeClaim>()
            .delete(&claim, &DeleteParams::default())
            .await
            .unwrap();
        flow.scope
            .api::<Pod>()
            .delete(PODS[0], &DeleteParams::default().grace_period(0))
            .await
            .unwrap();
        flow.successor(&old).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_killed_at_once() {
    survives("all", |flow| async move {
        for pod in PODS {
            flow.bed
                .kubelet
                .signal(&flow.scope.name, pod, Signal::KILL)
                .unwrap();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_operator_and_a_killed_node() {
    survives("operator", |flow| async move {
        assert!(flow.kill_operator().await);
        flow.bed
            .kubelet
            .signal(&flow.scope.name, PODS[0], Signal::KILL)
            .unwrap();
    })
    .await;
}
