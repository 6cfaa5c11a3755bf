//! The product as a user gets it: its image, its chart, a whole Kubernetes node. Run by `make e2e`, as root.
//!
//! One story, because a node costs half a minute: install, apply, load through the Service, look, kill and delete pods under load (the Raft
//! leader's too), evict, lose a volume, declare a wrong image and then a right one while the operator dies again and again, uninstall.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

mod cluster;
mod load;

use cluster::{OTHER_IMAGE, PODS, Product};
use load::Load;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_helm_install_to_an_image_change_and_nothing_is_lost() {
    let product = Product::install().await;
    product.apply(include_str!("manifests.yaml"));
    product.cluster_ready().await;
    product.index_ready("flights").await;
    product.index_ready("notes").await;

    // The sample, through the Service, by the product's own loader.
    let sample = segmentry_testbed::repository().join("examples/flights.ndjson.zst");
    let expected = product.load_sample(&sample, "flights").await;
    product.assert_copies_equal("flights", expected).await;
    product.assert_carriers_right(&sample, "flights").await;
    product.assert_copies_equal("notes", 0).await;
    println!("{}", product.kubectl(&["get", "ixc,ix"]));
    println!("{}", product.kubectl(&["get", "ixc,ix", "-o", "yaml"]));

    // Faults under load, on an index of each replication type.
    product.apply(include_str!("events.yaml"));
    product.index_ready("events").await;
    let loads = [Load::start(&product, "notes"), Load::start(&product, "events")];
    go_on(&loads).await;
    product.kill_container(PODS[0]).await;
    product.green("a killed container").await;
    go_on(&loads).await;
    product.delete_pod(PODS[1]).await;
    product.green("a deleted pod").await;
    go_on(&loads).await;
    product.evict_pod(PODS[2]).await;
    product.green("an evicted pod").await;
    go_on(&loads).await;
    let leader = product.leader().await;
    product.delete_pod(&leader).await;
    product
        .green(&format!("the deleted pod of the Raft leader, {leader}"))
        .await;
    go_on(&loads).await;
    product.lose_volume(PODS[0]).await;
    product.green("a lost volume").await;
    go_on(&loads).await;

    // A wrong image is named; corrected, the restart goes on although the operator dies in each step.
    product.set_image("localhost/segmentry:typo").await;
    product.waits_for("ImagePull").await;
    product.set_image(OTHER_IMAGE).await;
    let steps = product.all_run_although_the_operator_dies(OTHER_IMAGE).await;
    assert!(!steps.is_empty(), "the operator was never killed");
    product.green("a change of the image").await;
    go_on(&loads).await;
    for load in loads {
        load.assert_kept(&product).await;
    }
    product.assert_copies_equal("flights", expected).await;

    // The operator goes, the nodes serve on.
    product.uninstall().await;
    product.assert_copies_equal("flights", expected).await;
}

/// Writes are acknowledged on every index.
async fn go_on(loads: &[Load]) {
    for load in loads {
        load.go_on().await;
    }
}
