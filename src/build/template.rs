//! The pod template of a node set, and the hash that tells whether a restart is due.

use crate::api::{INTERNAL_PORT, REST_PORT, labels, valid::ValidCluster};
use serde_json::{Map, Value, json};

/// User and group of the process; the volume's group.
const USER: i64 = 10_001;
/// Keys of the pod spec that the hash covers.
const HASHED_POD: [&str; 7] = [
    "volumes",
    "nodeSelector",
    "tolerations",
    "affinity",
    "topologySpreadConstraints",
    "priorityClassName",
    "imagePullSecrets",
];
/// Keys of the container that the hash covers.
const HASHED_CONTAINER: [&str; 8] = [
    "image",
    "args",
    "env",
    "resources",
    "volumeMounts",
    "startupProbe",
    "livenessProbe",
    "readinessProbe",
];

/// Hash over a fixed list of fields of the template: what a running pod can only get by a restart. Never over replicas,
/// labels, annotations, or what the API server adds.
pub fn template_hash(cluster: &ValidCluster, image: &str) -> String {
    let pod = pod_spec(cluster, image);
    let mut hashed = Map::new();
    for key in HASHED_POD {
        if let Some(value) = pod.get(key) {
            hashed.insert(key.to_owned(), value.clone());
        }
    }
    let container = &pod["containers"][0];
    for key in HASHED_CONTAINER {
        if let Some(value) = container.get(key) {
            hashed.insert(format!("container.{key}"), value.clone());
        }
    }
    super::digest(&Value::Object(hashed))
}

/// The pod template.
pub fn pod_template(cluster: &ValidCluster, image: &str) -> Value {
    let mut pod_labels = labels::owned(&cluster.key.name);
    pod_labels.insert(labels::NODE_SET.to_owned(), cluster.set.name.clone());
    pod_labels.extend(cluster.set.pod_labels.clone());
    let mut annotations = cluster.set.pod_annotations.clone();
    annotations.insert(labels::TEMPLATE_HASH.to_owned(), template_hash(cluster, image));
    json!({
        "metadata": {"labels": pod_labels, "annotations": annotations},
        "spec": pod_spec(cluster, image),
    })
}

fn pod_spec(cluster: &ValidCluster, image: &str) -> Value {
    let set = &cluster.set;
    let headless = labels::headless_name(&cluster.key.name);
    let namespace = &cluster.key.namespace;
    let mut spec = json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 120,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            // A volume with millions of files is not walked again at each start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": set.affinity.clone().unwrap_or_else(|| json!({
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": 100,
                "podAffinityTerm": {
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {"matchLabels": labels::selector(&cluster.key.name)},
                },
            }]}
        })),
        "containers": [{
            "name": "node",
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "args": [
                "node",
                "--name", "$(POD_NAME)",
                "--data", "/data",
                "--rest", format!("0.0.0.0:{REST_PORT}"),
                "--rest-advertise", format!("$(POD_NAME).{headless}.{namespace}.svc:{REST_PORT}"),
                "--transport", format!("0.0.0.0:{INTERNAL_PORT}"),
                "--advertise", format!("$(POD_NAME).{headless}.{namespace}.svc:{INTERNAL_PORT}"),
                "--token-file", "/etc/segmentry/token/token",
            ],
            "env": [
                {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
            ],
            "ports": [
                {"name": "rest", "containerPort": REST_PORT, "protocol": "TCP"},
                {"name": "internal", "containerPort": INTERNAL_PORT, "protocol": "TCP"},
            ],
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [
                {"name": "data", "mountPath": "/data"},
                {"name": "token", "mountPath": "/etc/segmentry/token", "readOnly": true},
            ],
            // Replay of a long translog is no reason to be killed: start-up and liveness look at the process only.
            "startupProbe": probe("live", 2, 60),
            "livenessProbe": probe("live", 10, 6),
            "readinessProbe": probe("ready", 2, 3),
        }],
        "volumes": [{
            "name": "token",
            "secret": {"secretName": labels::token_name(&cluster.key.name), "defaultMode": 288},
        }],
    });
    if let Value::Object(map) = &mut spec {
        let mut add = |key: &str, value: Value, empty: bool| {
            if !empty {
                map.insert(key.to_owned(), value);
            }
        };
        add(
            "nodeSelector",
            json!(set.node_selector),
            set.node_selector.is_empty(),
        );
        add("tolerations", json!(set.tolerations), set.tolerations.is_empty());
        add(
            "topologySpreadConstraints",
            json!(spread(cluster)),
            set.spread.is_empty(),
        );
        add(
            "priorityClassName",
            json!(set.priority_class),
            set.priority_class.is_none(),
        );
        let secrets: Vec<Value> = set
            .pull_secrets
            .iter()
            .map(|name| json!({"name": name}))
            .collect();
        add("imagePullSecrets", json!(secrets), secrets.is_empty());
    }
    if set
        .resources
        .as_object()
        .is_some_and(|resources| !resources.is_empty())
        && let Some(Value::Object(container)) = spec.pointer_mut("/containers/0")
    {
        container.insert("resources".to_owned(), set.resources.clone());
    }
    spec
}

fn probe(what: &str, period_seconds: u32, failures: u32) -> Value {
    json!({
        "httpGet": {"path": format!("/_segmentry/health/{what}"), "port": "rest", "scheme": "HTTP"},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
        "successThreshold": 1,
    })
}

/// A constraint without a selector counts this cluster's pods.
fn spread(cluster: &ValidCluster) -> Vec<Value> {
    cluster
        .set
        .spread
        .iter()
        .map(|constraint| {
            let mut constraint = constraint.clone();
            if let Value::Object(map) = &mut constraint
                && !map.contains_key("labelSelector")
            {
                map.insert(
                    "labelSelector".to_owned(),
                    json!({"matchLabels": labels::selector(&cluster.key.name)}),
                );
            }
            constraint
        })
        .collect()
}

#[cfg(test)]
pub mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        missing_docs,
        reason = "tests"
    )]
    use super::*;
    use crate::api::IndexCluster;

    pub fn sample() -> ValidCluster {
        let object: IndexCluster = serde_json::from_value(json!({
            "apiVersion": "segmentry.io/v1alpha1", "kind": "IndexCluster",
            "metadata": {"name": "quick", "namespace": "search", "uid": "0000-1", "generation": 4},
            "spec": {"image": "registry.example/segmentry:0.1.0", "nodeSets": [{
                "name": "nodes", "replicas": 3, "storage": {"size": "10Gi"},
                "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
                "nodeSelector": {"disk": "fast", "arch": "amd64"},
                "tolerations": [{"key": "search", "operator": "Exists"}],
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}],
                "podLabels": {"team": "search"}
            }]}
        }))
        .unwrap();
        ValidCluster::new(&object).unwrap()
    }

    #[test]
    fn an_upgrade_of_the_operator_restarts_nothing() {
        // A change of this value restarts every cluster of every user at the operator's next upgrade: it needs a release note.
        assert_eq!(
            template_hash(&sample(), "registry.example/segmentry:0.1.0"),
            include_str!("golden/template-hash.txt").trim()
        );
    }

    #[test]
    fn the_hash_covers_what_needs_a_restart_and_nothing_else() {
        let base = sample();
        let hash = |cluster: &ValidCluster| template_hash(cluster, "a");
        let mut other = base.clone();
        other.set.replicas = 1;
        other
            .set
            .pod_labels
            .insert("more".to_owned(), "labels".to_owned());
        other
            .set
            .pod_annotations
            .insert("more".to_owned(), "annotations".to_owned());
        other.service_annotations.insert("x".to_owned(), "y".to_owned());
        other.generation += 1;
        assert_eq!(hash(&base), hash(&other));
        assert_ne!(hash(&base), template_hash(&base, "b"));
        let mut placed = base.clone();
        placed
            .set
            .node_selector
            .insert("disk".to_owned(), "slow".to_owned());
        assert_ne!(hash(&base), hash(&placed));
        let mut sized = base.clone();
        sized.set.resources = json!({"limits": {"memory": "2Gi"}});
        assert_ne!(hash(&base), hash(&sized));
    }

    #[test]
    fn the_template_obeys_the_restricted_profile() {
        let pod = pod_template(&sample(), "a");
        let spec = &pod["spec"];
        assert_eq!(spec["automountServiceAccountToken"], false);
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert_eq!(
            spec["securityContext"]["seccompProfile"]["type"],
            "RuntimeDefault"
        );
        let container = &spec["containers"][0];
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
        assert_eq!(container["securityContext"]["capabilities"]["drop"][0], "ALL");
    }
}
