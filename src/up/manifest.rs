//! A manifest file → declared objects. Every error names the file, the document and the rule.

use super::strict;
use crate::{
    api::{
        Index, IndexCluster,
        valid::{ValidCluster, ValidIndex},
    },
    objects::file::Declared,
};
use anyhow::{Context as _, anyhow, bail};
use kube::CustomResourceExt as _;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{collections::BTreeSet, path::Path};

/// Namespace of objects that do not say.
const NAMESPACE: &str = "default";
/// What people declare in metadata.
const METADATA: [&str; 4] = ["name", "namespace", "labels", "annotations"];
/// What an API server adds to metadata: seen in manifests that were read from one, without a meaning in a file.
const SERVER_METADATA: [&str; 11] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];
/// Fields of a cluster that mean something to Kubernetes only.
const CLUSTER_UNUSED: [&str; 2] = ["image", "service"];
/// Fields of a node set that mean something to Kubernetes only; all but `storage` are left out of the object.
const SET_UNUSED: [&str; 10] = [
    "resources",
    "storage",
    "nodeSelector",
    "tolerations",
    "affinity",
    "topologySpreadConstraints",
    "priorityClassName",
    "imagePullSecrets",
    "podLabels",
    "podAnnotations",
];

/// A read manifest file.
#[derive(Debug, Default)]
pub struct Manifest {
    /// Its objects.
    pub declared: Declared,
    /// Fields that are set and have no meaning without Kubernetes.
    pub unused: BTreeSet<String>,
}

/// Reads and checks a file.
///
/// # Errors
/// The first thing that is wrong.
pub fn read(path: &Path) -> anyhow::Result<Manifest> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

/// Checks the text of a file.
///
/// # Errors
/// The first thing that is wrong.
pub fn parse(text: &str) -> anyhow::Result<Manifest> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|error| anyhow!("not YAML: {error}"))?;
    let mut manifest = Manifest::default();
    let mut seen = BTreeSet::new();
    for (number, document) in documents.into_iter().enumerate() {
        if document.is_null() {
            continue;
        }
        let name = format!("document {}", number + 1);
        let identity = add(&mut manifest, document).map_err(|error| anyhow!("{name}: {error:#}"))?;
        if !seen.insert(identity.clone()) {
            bail!("{name}: {identity} is declared twice");
        }
    }
    if seen.is_empty() {
        bail!("no object is declared: expected at least one IndexCluster");
    }
    Ok(manifest)
}

/// Adds one document; answers kind, namespace and name.
fn add(manifest: &mut Manifest, mut document: Value) -> anyhow::Result<String> {
    let version = document["apiVersion"].as_str().unwrap_or_default();
    let kind = document["kind"].as_str().unwrap_or_default().to_owned();
    if version != "segmentry.io/v1alpha1" || !["IndexCluster", "Index"].contains(&kind.as_str()) {
        bail!(
            "kind [{kind}] of apiVersion [{version}] is not known: IndexCluster and Index of segmentry.io/v1alpha1 are"
        );
    }
    let (namespace, name) =
        metadata(&mut document, &mut manifest.unused).map_err(|error| anyhow!("{kind}: {error}"))?;
    let identity = format!("{kind} {namespace}/{name}");
    let named = |error: anyhow::Error| anyhow!("{kind} {name}: {error:#}");
    if let Some(map) = document.as_object_mut()
        && map.shift_remove("status").is_some()
    {
        manifest.unused.insert("status".to_owned());
    }
    if kind == "IndexCluster" {
        let mut object: IndexCluster = typed(&document, &IndexCluster::crd()).map_err(named)?;
        ValidCluster::new(&object).map_err(|error| named(error.into()))?;
        leave_out(&document, &mut object, &mut manifest.unused);
        manifest.declared.clusters.push(object);
    } else {
        let object: Index = typed(&document, &Index::crd()).map_err(named)?;
        ValidIndex::new(&object).map_err(|error| named(error.into()))?;
        manifest.declared.indices.push(object);
    }
    Ok(identity)
}

fn typed<T: DeserializeOwned>(document: &Value, crd: &impl serde::Serialize) -> anyhow::Result<T> {
    let crd = serde_json::to_value(crd)?;
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    for key in document.as_object().into_iter().flat_map(|map| map.keys()) {
        if !["apiVersion", "kind", "metadata", "spec"].contains(&key.as_str()) {
            bail!("`{key}` is no known field: known are apiVersion, kind, metadata, spec");
        }
    }
    if document["spec"].is_null() {
        bail!("`spec` is missing");
    }
    strict::check(&document["spec"], &schema["properties"]["spec"], "spec")
        .map_err(|error| anyhow!(error))?;
    Ok(serde_json::from_value(document.clone())?)
}

/// Checks metadata, sets the namespace, leaves out what only a server sets; answers namespace and name.
fn metadata(document: &mut Value, unused: &mut BTreeSet<String>) -> Result<(String, String), String> {
    let Some(map) = document.get_mut("metadata").and_then(Value::as_object_mut) else {
        return Err("`metadata.name` is missing".to_owned());
    };
    let foreign: Vec<String> = map
        .keys()
        .filter(|key| !METADATA.contains(&key.as_str()))
        .cloned()
        .collect();
    for key in foreign {
        if !SERVER_METADATA.contains(&key.as_str()) {
            return Err(format!(
                "`metadata.{key}` is no known field: known are {}",
                METADATA.join(", ")
            ));
        }
        map.shift_remove(&key);
        unused.insert(format!("metadata.{key}"));
    }
    let name = map
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let word = |part: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    if name.len() > 253 || !name.split('.').all(word) {
        return Err(format!(
            "`metadata.name` [{name}] must consist of lower case letters, digits, '-' and '.', and begin and end with a letter or digit"
        ));
    }
    let namespace = map
        .get("namespace")
        .and_then(Value::as_str)
        .unwrap_or(NAMESPACE)
        .to_owned();
    if namespace.len() > 63 || !word(&namespace) {
        return Err(format!(
            "`metadata.namespace` [{namespace}] must be a DNS label of at most 63 characters"
        ));
    }
    map.insert("namespace".to_owned(), Value::String(namespace.clone()));
    Ok((namespace, name))
}

/// Takes fields without a meaning out of the object, so that their change changes nothing, and notes them.
fn leave_out(document: &Value, object: &mut IndexCluster, unused: &mut BTreeSet<String>) {
    let spec = &document["spec"];
    unused.extend(
        CLUSTER_UNUSED
            .iter()
            .filter(|key| !spec[**key].is_null())
            .map(|key| format!("spec.{key}")),
    );
    for set in spec["nodeSets"].as_array().into_iter().flatten() {
        unused.extend(
            SET_UNUSED
                .iter()
                .filter(|key| !set[**key].is_null())
                .map(|key| format!("spec.nodeSets[].{key}")),
        );
    }
    object.spec.image = None;
    object.spec.service = None;
    for set in &mut object.spec.node_sets {
        *set = crate::api::index_cluster::NodeSetSpec {
            name: set.name.clone(),
            replicas: set.replicas,
            // not used for nodes, but its rules of change are those of the API server
            storage: set.storage.clone(),
            ..crate::api::index_cluster::NodeSetSpec::default()
        };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;

    const CLUSTER: &str = "apiVersion: segmentry.io/v1alpha1\nkind: IndexCluster\nmetadata:\n  name: c\nspec:\n  nodeSets:\n    - name: s\n      replicas: 3\n      storage:\n        size: 1Gi\n";
    const INDEX: &str = "apiVersion: segmentry.io/v1alpha1\nkind: Index\nmetadata:\n  name: i\nspec:\n  clusterRef:\n    name: c\n";

    #[test]
    fn the_example_is_valid() {
        let path = segmentry_testbed::repository().join("examples/quickstart.yaml");
        let manifest = read(&path).unwrap();
        assert_eq!(
            (manifest.declared.clusters.len(), manifest.declared.indices.len()),
            (1, 1)
        );
        assert_eq!(
            manifest.declared.indices[0].metadata.namespace.as_deref(),
            Some("default")
        );
        assert_eq!(
            manifest.unused.into_iter().collect::<Vec<_>>(),
            ["spec.nodeSets[].storage"]
        );
    }

    #[test]
    fn each_fault_is_named_with_its_document_and_rule() {
        let two = format!("{CLUSTER}---\n{INDEX}");
        for (from, to, parts) in [
            ("kind: Index\n", "kind: Indx\n", ["document 2", "kind [Indx]"]),
            (
                "v1alpha1\nkind: Index\n",
                "v2\nkind: Index\n",
                ["document 2", "segmentry.io/v2"],
            ),
            (
                "replicas: 3",
                "replicas: 2",
                ["document 1: IndexCluster c", "`replicas` must be 1 or 3"],
            ),
            (
                "replicas: 3",
                "replica: 3",
                ["document 1", "`spec.nodeSets[0].replicas` is missing"],
            ),
            (
                "replicas: 3",
                "replicas: 3\n      replica: 3",
                ["document 1", "`spec.nodeSets[0].replica` is no known field"],
            ),
            (
                "replicas: 3",
                "replicas: '3'",
                ["document 1", "`spec.nodeSets[0].replicas` must be a whole number"],
            ),
            (
                "clusterRef:",
                "shards: 65\n  clusterRef:",
                ["document 2: Index i", "`shards` must be between 1 and 64"],
            ),
            (
                "clusterRef:",
                "replicationType: segment\n  clusterRef:",
                ["document 2", "it must be one of \"Document\", \"Segment\""],
            ),
            (
                "clusterRef:",
                "settings: {index.x: 1}\n  clusterRef:",
                ["document 2", "`spec.settings.index.x` must be a string"],
            ),
            ("name: i", "name: I", ["document 2", "`metadata.name` [I]"]),
            (
                "name: i",
                "nam: i",
                ["document 2", "`metadata.nam` is no known field"],
            ),
            (
                "name: i",
                "name: i\n  namespace: ../x",
                ["document 2", "`metadata.namespace`"],
            ),
            (
                "name: i\nspec:",
                "name: i\nspecs:",
                ["document 2", "`specs` is no known field"],
            ),
        ] {
            let text = two.replace(from, to);
            assert_ne!(text, two, "{from}");
            let error = format!("{:#}", parse(&text).unwrap_err());
            assert!(parts.iter().all(|part| error.contains(part)), "{to}: {error}");
        }
    }

    #[test]
    fn a_file_that_declares_nothing_or_one_thing_twice_is_refused() {
        assert!(parse("---\n").unwrap_err().to_string().contains("no object"));
        let error = parse(&format!("{INDEX}---\n{INDEX}")).unwrap_err().to_string();
        assert!(error.contains("Index default/i is declared twice"), "{error}");
        assert!(parse("a: [").is_err());
    }

    #[test]
    fn fields_for_kubernetes_only_are_noted_and_do_not_reach_the_plan() {
        let text = CLUSTER
            .replace("spec:\n", "spec:\n  image: a/b:c\n  service: {type: NodePort}\n")
            .replace("name: s\n", "name: s\n      nodeSelector: {a: b}\n");
        let manifest = parse(&text).unwrap();
        let unused: Vec<String> = manifest.unused.into_iter().collect();
        let expected = [
            "spec.image",
            "spec.nodeSets[].nodeSelector",
            "spec.nodeSets[].storage",
            "spec.service",
        ];
        assert_eq!(unused, expected);
        let spec = &manifest.declared.clusters[0].spec;
        assert_eq!(spec.image, None);
        assert!(spec.node_sets[0].node_selector.is_empty());
    }
}
