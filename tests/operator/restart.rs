//! A change of the image is carried out as a full restart, whoever is killed meanwhile.

use super::flow::{Flow, IMAGE, LIMIT, OTHER_IMAGE, PODS};
use super::writers::Writers;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use segmentry_testbed::eventually;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

async fn images(flow: &Flow) -> anyhow::Result<Vec<String>> {
    let pods = flow.scope.api::<Pod>().list(&ListParams::default()).await?.items;
    anyhow::ensure!(pods.len() == PODS.len(), "{} pods", pods.len());
    Ok(pods
        .into_iter()
        .filter_map(|pod| pod.spec?.containers.first()?.image.clone())
        .collect())
}

async fn all_run(flow: &Flow, image: &str) {
    eventually(LIMIT, "all pods run the image", || async {
        let images = images(flow).await?;
        anyhow::ensure!(images.iter().all(|found| found == image), "{images:?}");
        Ok(())
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", flow.story()));
}

async fn uids(flow: &Flow) -> BTreeSet<String> {
    let pods = flow
        .scope
        .api::<Pod>()
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    pods.into_iter().filter_map(|pod| pod.uid()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_change_under_load_survives_an_operator_that_is_killed_again_and_again() {
    let flow = Arc::new(Flow::with_indices("upgrade").await);
    let writers = [
        Writers::start(&flow, "documents"),
        Writers::start(&flow, "segments"),
    ];
    for writer in &writers {
        writer.go_on(&flow).await;
    }
    flow.set_image(OTHER_IMAGE);
    // A step takes a few hundred milliseconds, so kills at a drifting distance meet each of them.
    let mut kills = 0;
    for round in 0..12_u64 {
        tokio::time::sleep(Duration::from_millis(300 + 170 * round)).await;
        kills += u32::from(flow.kill_operator().await);
    }
    assert!(kills >= 6, "the operator ran only {kills} times");
    all_run(&flow, OTHER_IMAGE).await;
    flow.cluster_is("Upgrading", "False").await;
    flow.green().await;
    for writer in writers {
        writer.go_on(&flow).await;
        writer.assert_kept(&flow).await;
    }
    // Nothing is left behind that would restart anything.
    let before = uids(&flow).await;
    assert!(flow.kill_operator().await);
    flow.cluster_is("Ready", "True").await;
    assert_eq!(uids(&flow).await, before);
}

/// Ends the operator's process each time it comes to `point`, deletes a pod meanwhile, and sees it come back on the old image.
async fn comes_back_on_the_old_image(flow: &Flow, point: &str, pod: &str) {
    flow.set_faults(&[format!("always {point}")]);
    flow.set_image(OTHER_IMAGE);
    flow.met(&[point]).await;
    let old = flow.pod(pod).await;
    flow.kubectl(&["delete", "pod", pod, "--wait=false"]).unwrap();
    let new = flow.successor(&old).await;
    let image = new
        .spec
        .and_then(|spec| spec.containers.into_iter().next()?.image);
    assert_eq!(
        image.as_deref(),
        Some(IMAGE),
        "deleted while the operator ends at {point}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_change_under_load_survives_an_operator_that_is_killed_at_each_step() {
    let flow = Arc::new(Flow::with_indices("steps").await);
    flow.set_image(IMAGE);
    flow.cluster_is("Ready", "True").await;
    let writers = [
        Writers::start(&flow, "documents"),
        Writers::start(&flow, "segments"),
    ];
    for writer in &writers {
        writer.go_on(&flow).await;
    }
    // Until the template is applied, a pod that is made anew is the old one.
    let before = ["Prepare:before", "Prepare:after", "Apply:before"];
    for (point, pod) in before.into_iter().zip(PODS) {
        comes_back_on_the_old_image(&flow, point, pod).await;
    }
    // From here on one kill at each further step, on a machine where every step comes only after a new start of the operator.
    let after = [
        "Apply:after",
        "StopOld:before",
        "Stop:between",
        "WaitNodes:before",
        "Finish:before",
        "Finish:after",
    ];
    flow.set_faults(&after.map(|point| format!("once {point}")));
    flow.met(&after).await;
    all_run(&flow, OTHER_IMAGE).await;
    flow.cluster_is("Upgrading", "False").await;
    flow.green().await;
    // Each copy was there before and is again: nothing was copied but what the deleted pods caused before.
    println!(
        "killed at {:?}; {} bytes were copied between nodes",
        flow.faults_met(),
        flow.fetched_bytes()
    );
    for writer in writers {
        writer.go_on(&flow).await;
        writer.assert_kept(&flow).await;
    }
    let nodes_before = uids(&flow).await;
    assert!(flow.kill_operator().await);
    flow.cluster_is("Ready", "True").await;
    assert_eq!(uids(&flow).await, nodes_before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_restart_copies_nothing() {
    let flow = Arc::new(Flow::with_indices("copies").await);
    flow.set_image(IMAGE);
    flow.cluster_is("Ready", "True").await;
    let writer = Writers::start(&flow, "documents");
    writer.go_on(&flow).await;
    let kept = writer.assert_kept(&flow).await;
    flow.set_image(OTHER_IMAGE);
    all_run(&flow, OTHER_IMAGE).await;
    flow.cluster_is("Upgrading", "False").await;
    flow.green().await;
    assert_eq!(flow.equal_copies("documents").await, u64::try_from(kept).unwrap());
    assert_eq!(flow.fetched_bytes(), 0, "{}", flow.story());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_image_is_named_and_rolled_back_without_loss() {
    let flow = Arc::new(Flow::with_indices("wrong").await);
    flow.set_image(IMAGE);
    flow.cluster_is("Ready", "True").await;
    let writer = Writers::start(&flow, "segments");
    writer.go_on(&flow).await;
    flow.set_image("localhost/segmentry:typo");
    eventually(LIMIT, "the pull error stands in the status", || async {
        let cluster = flow
            .scope
            .api::<segmentry::api::IndexCluster>()
            .get("search")
            .await?;
        let status = cluster.status.unwrap_or_default();
        let told = status.in_progress.iter().any(|step| {
            step.waiting_for
                .as_deref()
                .is_some_and(|text| text.contains("ImagePull"))
        });
        anyhow::ensure!(told, "{:?}", status.in_progress);
        Ok(())
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", flow.story()));
    flow.set_image(IMAGE);
    all_run(&flow, IMAGE).await;
    flow.green().await;
    writer.go_on(&flow).await;
    writer.assert_kept(&flow).await;
}
