//! Faulty manifests are refused by the API server, with a message that says what to do. Nothing of Segmentry runs here: the rules
//! are in the published definitions.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use segmentry_testbed::{Bed, Scope};
use serde_json::{Value, json};

const CRDS: [&str; 2] = ["crd/indexclusters.segmentry.io", "crd/indices.segmentry.io"];

async fn definitions(prefix: &str) -> (&'static Bed, Scope) {
    let bed = Bed::shared().await.unwrap();
    let folder = segmentry_testbed::repository().join("crds");
    bed.kubectl(&["apply", "--server-side", "-f", folder.to_str().unwrap()], None)
        .unwrap()
        .unwrap();
    bed.kubectl(
        &[
            "wait",
            "--for=condition=Established",
            "--timeout=30s",
            CRDS[0],
            CRDS[1],
        ],
        None,
    )
    .unwrap()
    .unwrap();
    (bed, bed.namespace(prefix).await.unwrap())
}

fn cluster() -> Value {
    json!({
        "apiVersion": "segmentry.io/v1alpha1", "kind": "IndexCluster", "metadata": {"name": "search"},
        "spec": {"nodeSets": [{"name": "nodes", "replicas": 3, "storage": {"size": "1Gi"}}]},
    })
}

fn index() -> Value {
    json!({
        "apiVersion": "segmentry.io/v1alpha1", "kind": "Index", "metadata": {"name": "flights"},
        "spec": {"clusterRef": {"name": "search"}, "shards": 3, "replicas": 1, "replicationType": "Segment",
                 "mappings": {"properties": {"carrier": {"type": "keyword"}}}},
    })
}

/// The object with one value set; the path's folders are made.
fn with(mut object: Value, path: &str, value: Value) -> Value {
    let mut place = &mut object;
    for step in path.split('/') {
        place = match step.parse::<usize>() {
            Ok(at) => &mut place[at],
            Err(_) => &mut place[step],
        };
    }
    *place = value;
    object
}

fn apply(bed: &Bed, scope: &Scope, object: &Value, dry: bool) -> Result<String, String> {
    let mut args = vec!["apply", "-n", &scope.name, "-f", "-"];
    if dry {
        args.push("--dry-run=server");
    }
    bed.kubectl(&args, Some(&object.to_string())).unwrap()
}

/// Each case is refused for its own reason; all wrong outcomes are told at once.
fn assert_refused(bed: &Bed, scope: &Scope, cases: Vec<(Value, &str)>) {
    let mut wrong = Vec::new();
    for (object, expected) in cases {
        match apply(bed, scope, &object, true) {
            Ok(_) => wrong.push(format!("accepted: {}", object["spec"])),
            Err(refusal) if refusal.contains(expected) => {
                println!("refused: {}", refusal.trim().replace('\n', " "));
            }
            Err(refusal) => wrong.push(format!("refused without {expected:?}: {}", refusal.trim())),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn the_examples_are_accepted() {
    let (bed, scope) = definitions("accepted").await;
    apply(bed, &scope, &cluster(), false).unwrap();
    apply(bed, &scope, &index(), false).unwrap();
    // a namespace of its own: objects of the same names are in the other one
    let other = bed.namespace("examples").await.unwrap();
    let examples = segmentry_testbed::repository().join("examples/quickstart.yaml");
    let args = [
        "apply",
        "-n",
        &other.name,
        "--dry-run=server",
        "-f",
        examples.to_str().unwrap(),
    ];
    bed.kubectl(&args, None).unwrap().unwrap();
}

#[tokio::test]
async fn a_faulty_cluster_is_refused() {
    let (bed, scope) = definitions("clusters").await;
    let set = json!({"name": "b", "replicas": 1, "storage": {"size": "1Gi"}});
    let two = json!([cluster()["spec"]["nodeSets"][0], set]);
    assert_refused(
        bed,
        &scope,
        vec![
            (
                with(cluster(), "spec/nodeSets/0/replicas", json!(2)),
                "`replicas` must be 1 or 3",
            ),
            (
                with(cluster(), "spec/nodeSets/0/replicas", json!("three")),
                "replicas",
            ),
            (with(cluster(), "spec/nodeSets", two), "exactly one node set"),
            (with(cluster(), "spec/nodeSets", json!([])), "at least 1 item"),
            (
                with(cluster(), "spec/nodeSets/0/name", json!("Nodes")),
                "`name` of a node set must be a DNS label",
            ),
            (
                with(cluster(), "spec/nodeSets/0/name", json!("a-name-too-long")),
                "Too long",
            ),
            (
                with(cluster(), "spec/nodeSets/0/storage/size", json!("1Mi")),
                "at least 64Mi",
            ),
            (
                with(cluster(), "spec/nodeSets/0/storage/size", json!("plenty")),
                "storage.size",
            ),
            (
                with(cluster(), "spec/nodeSets/0/storage", json!({})),
                "storage.size: Required value",
            ),
            (
                with(cluster(), "spec/nodeSets/0/stroage", json!({})),
                "unknown field",
            ),
            (
                with(
                    cluster(),
                    "spec/nodeSets/0/podLabels",
                    json!({"app.kubernetes.io/name": "x"}),
                ),
                "`podLabels` must not set",
            ),
            (
                with(cluster(), "spec/image", json!("an image")),
                "`image` must be an image reference",
            ),
            (
                with(cluster(), "spec/service", json!({"type": "ExternalName"})),
                "Unsupported value",
            ),
            (
                with(cluster(), "spec/primaryBalancing", json!({"mode": "Always"})),
                "Unsupported value",
            ),
            (
                with(cluster(), "metadata/name", json!("9lives")),
                "`metadata.name` must be a DNS label",
            ),
            (
                with(cluster(), "metadata/name", json!("a".repeat(41))),
                "at most 40 characters",
            ),
        ],
    );
}

#[tokio::test]
async fn a_faulty_index_is_refused() {
    let (bed, scope) = definitions("indices").await;
    assert_refused(
        bed,
        &scope,
        vec![
            (
                with(index(), "spec/shards", json!(0)),
                "`shards` must be between 1 and 64",
            ),
            (
                with(index(), "spec/shards", json!(65)),
                "`shards` must be between 1 and 64",
            ),
            (
                with(index(), "spec/replicas", json!(3)),
                "`replicas` must be between 0 and 2",
            ),
            (
                with(index(), "spec/replicationType", json!("Both")),
                "Unsupported value",
            ),
            (
                with(index(), "spec/clusterRef", json!({"name": "Search_1"})),
                "`clusterRef.name` must be the name",
            ),
            (
                with(index(), "spec/indexName", json!("Flights")),
                "`indexName` must consist of lower case letters",
            ),
            (
                with(index(), "spec/refreshIntervalMilliseconds", json!(5)),
                "`refreshIntervalMilliseconds` must be -1",
            ),
            (
                with(index(), "spec/translog", json!({"durability": "Sometimes"})),
                "Unsupported value",
            ),
            (
                with(index(), "spec/translog", json!({"syncIntervalMilliseconds": 10})),
                "must be between 100 and 3600000",
            ),
            (
                with(index(), "spec/translog", json!({"flushThreshold": "1k"})),
                "`translog.flushThreshold` must be a quantity",
            ),
            (
                with(index(), "spec/settings", json!({"max_result_window": "5"})),
                "full keys that begin with 'index.'",
            ),
            (
                with(index(), "spec/settings", json!({"index.number_of_shards": "5"})),
                "keys that have a field of their own",
            ),
            (
                with(index(), "spec/deletionPolicy", json!("Keep")),
                "Unsupported value",
            ),
        ],
    );
}

#[tokio::test]
async fn what_cannot_change_is_refused_and_says_what_to_do() {
    let (bed, scope) = definitions("changes").await;
    apply(bed, &scope, &cluster(), false).unwrap();
    apply(bed, &scope, &index(), false).unwrap();
    assert_refused(
        bed,
        &scope,
        vec![
            (
                with(cluster(), "spec/nodeSets/0/replicas", json!(1)),
                "`replicas` must not change",
            ),
            (
                with(cluster(), "spec/nodeSets/0/storage/size", json!("2Gi")),
                "`storage.size` must not change",
            ),
            (
                with(
                    cluster(),
                    "spec/nodeSets/0/storage/storageClassName",
                    json!("fast"),
                ),
                "`storage.storageClassName` must not change",
            ),
            (
                with(cluster(), "spec/nodeSets/0/name", json!("others")),
                "must not",
            ),
            (
                with(index(), "spec/shards", json!(4)),
                "`shards` must not change: create another Index",
            ),
            (
                with(index(), "spec/replicationType", json!("Document")),
                "`replicationType` must not change",
            ),
            (
                with(index(), "spec/clusterRef", json!({"name": "other"})),
                "`clusterRef` must not change",
            ),
            (
                with(index(), "spec/indexName", json!("other")),
                "`indexName` must not change",
            ),
            (
                with(index(), "spec/mappings", json!({"properties": {}})),
                "`mappings` must not change",
            ),
            (
                with(index(), "spec/settings", json!({"index.max_result_window": "5"})),
                "`settings` must not change",
            ),
        ],
    );
    // The same size in other words is no change.
    apply(
        bed,
        &scope,
        &with(cluster(), "spec/nodeSets/0/storage/size", json!("1024Mi")),
        true,
    )
    .unwrap();
}
