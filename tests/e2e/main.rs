//! The product as a user gets it: its image, its chart, a whole Kubernetes node. Run by `make e2e`, as root.
//!
//! One story, because a node costs half a minute: install, apply, load through the Service, look, kill and delete pods under load, evict,
//! lose a volume, change the image, uninstall.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

mod cluster;
mod load;

use cluster::{IMAGE, OTHER_IMAGE, PODS, Product};
use load::Load;
use std::path::Path;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_helm_install_to_an_image_change_and_nothing_is_lost() {
    let product = Product::install().await;
    product.apply(include_str!("manifests.yaml"));
    product.cluster_ready().await;
    product.index_ready("flights").await;
    product.index_ready("notes").await;

    // The sample, through the Service, by the product's own loader.
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/flights.ndjson.zst");
    let expected = product.load_sample(&sample, "flights").await;
    product.assert_copies_equal("flights", expected).await;
    product.assert_carriers_right(&sample, "flights").await;
    println!("{}", product.kubectl(&["get", "ixc,ix"]));
    println!("{}", product.kubectl(&["get", "ixc,ix", "-o", "yaml"]));

    // Faults under load on the other index.
    let load = Load::start(&product, "notes");
    load.go_on().await;
    product.kill_container(PODS[0]).await;
    product.green("a killed container").await;
    load.go_on().await;
    product.delete_pod(PODS[1]).await;
    product.green("a deleted pod").await;
    load.go_on().await;
    product.evict_pod(PODS[2]).await;
    product.green("an evicted pod").await;
    load.go_on().await;
    product.lose_volume(PODS[0]).await;
    product.green("a lost volume").await;
    load.go_on().await;

    product.set_image(OTHER_IMAGE).await;
    product.all_run(OTHER_IMAGE).await;
    product.green("a change of the image").await;
    load.go_on().await;
    load.assert_kept(&product).await;
    product.assert_copies_equal("flights", expected).await;

    // The operator goes, the nodes serve on.
    product.uninstall().await;
    product.assert_copies_equal("flights", expected).await;
    assert_ne!(IMAGE, OTHER_IMAGE);
}
