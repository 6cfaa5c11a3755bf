//! StatefulSet, Services, PodDisruptionBudget, NetworkPolicy, Secret of one cluster.

use super::{Context, template};
use crate::api::{INTERNAL_PORT, REST_PORT, labels, valid::ValidCluster};
use serde_json::{Value, json};

/// Name of the key in the token Secret.
pub const TOKEN_KEY: &str = "token";

fn metadata(cluster: &ValidCluster, name: &str) -> Value {
    json!({
        "name": name,
        "namespace": cluster.key.namespace,
        "labels": labels::owned(&cluster.key.name),
        "ownerReferences": [{
            "apiVersion": "segmentry.io/v1alpha1",
            "kind": "IndexCluster",
            "name": cluster.key.name,
            "uid": cluster.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        }],
    })
}

/// The StatefulSet. `running_template`: the template that stays while a restart is due; none applies the wanted one.
pub fn stateful_set(cluster: &ValidCluster, image: &str, running_template: Option<Value>) -> Value {
    let set = &cluster.set;
    let mut claim = json!({
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": set.storage_size}},
    });
    if let (Some(class), Value::Object(map)) = (&set.storage_class, &mut claim) {
        map.insert("storageClassName".to_owned(), json!(class));
    }
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(cluster, &labels::set_name(&cluster.key.name, &set.name)),
        "spec": {
            "replicas": set.replicas,
            "serviceName": labels::headless_name(&cluster.key.name),
            // Any one node may start first, and quorum needs more than the first.
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "selector": {"matchLabels": labels::selector(&cluster.key.name)},
            "template": running_template.unwrap_or_else(|| template::pod_template(cluster, image)),
            "volumeClaimTemplates": [{
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "data", "labels": labels::selector(&cluster.key.name)},
                "spec": claim,
            }],
        },
    })
}

/// Gives pods their DNS names, also before they are ready: a quorum has to meet before anybody is ready.
pub fn headless_service(cluster: &ValidCluster) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(cluster, &labels::headless_name(&cluster.key.name)),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": labels::selector(&cluster.key.name),
            "ports": [
                {"name": "internal", "port": INTERNAL_PORT, "targetPort": "internal", "protocol": "TCP"},
                {"name": "rest", "port": REST_PORT, "targetPort": "rest", "protocol": "TCP"},
            ],
        },
    })
}

/// REST for clients.
pub fn client_service(cluster: &ValidCluster) -> Value {
    let mut metadata = metadata(cluster, &cluster.key.name);
    if let Value::Object(map) = &mut metadata
        && !cluster.service_annotations.is_empty()
    {
        map.insert("annotations".to_owned(), json!(cluster.service_annotations));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "type": cluster.service_type.as_str(),
            "selector": labels::selector(&cluster.key.name),
            "ports": [{"name": "rest", "port": REST_PORT, "targetPort": "rest", "protocol": "TCP"}],
        },
    })
}

/// At most one pod may be evicted, and none while a shard has no in-sync copy elsewhere. None for one node: it would only
/// block the drain of its machine.
pub fn disruption_budget(cluster: &ValidCluster, disruption_allowed: bool) -> Option<Value> {
    (cluster.set.replicas > 1).then(|| {
        json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata(cluster, &cluster.key.name),
            "spec": {
                "maxUnavailable": i32::from(disruption_allowed),
                // A pod that is not ready may go without harm to readiness, but it may hold the last in-sync copy.
                "unhealthyPodEvictionPolicy": "IfHealthyBudget",
                "selector": {"matchLabels": labels::selector(&cluster.key.name)},
            },
        })
    })
}

/// Closes the internal port to all but the cluster's pods and the operator; REST stays open to all.
pub fn network_policy(cluster: &ValidCluster, context: &Context) -> Value {
    let mut from = vec![json!({"podSelector": {"matchLabels": labels::selector(&cluster.key.name)}})];
    if let Some(namespace) = &context.operator_namespace {
        from.push(json!({
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "podSelector": {"matchLabels": {labels::NAME: labels::APP, labels::COMPONENT: "operator"}},
        }));
    }
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(cluster, &cluster.key.name),
        "spec": {
            "podSelector": {"matchLabels": labels::selector(&cluster.key.name)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": [{"port": REST_PORT, "protocol": "TCP"}]},
                {"ports": [{"port": INTERNAL_PORT, "protocol": "TCP"}], "from": from},
            ],
        },
    })
}

/// The token of the internal port. Created once; never rewritten, because running nodes hold it.
pub fn token_secret(cluster: &ValidCluster, token: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(cluster, &labels::token_name(&cluster.key.name)),
        "type": "Opaque",
        "immutable": true,
        "stringData": {TOKEN_KEY: token},
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;
    use crate::build::template::tests::sample;
    use k8s_openapi::api::{
        apps::v1::StatefulSet,
        core::v1::{Secret, Service},
        networking::v1::NetworkPolicy,
        policy::v1::PodDisruptionBudget,
    };

    /// A misspelt field is dropped by the typed form and the two differ.
    fn typed<T: serde::de::DeserializeOwned + serde::Serialize>(value: &Value) {
        let object: T = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(
            crate::build::digest(&serde_json::to_value(object).unwrap()),
            crate::build::digest(value),
            "{value:#}"
        );
    }

    fn all(context: &Context) -> Vec<Value> {
        let cluster = sample();
        vec![
            stateful_set(&cluster, "registry.example/segmentry:0.1.0", None),
            headless_service(&cluster),
            client_service(&cluster),
            disruption_budget(&cluster, true).unwrap(),
            network_policy(&cluster, context),
            token_secret(&cluster, "secret"),
        ]
    }

    #[test]
    fn builders_use_only_fields_that_kubernetes_has() {
        let objects = all(&Context {
            operator_namespace: Some("segmentry".to_owned()),
        });
        typed::<StatefulSet>(&objects[0]);
        typed::<Service>(&objects[1]);
        typed::<Service>(&objects[2]);
        typed::<PodDisruptionBudget>(&objects[3]);
        typed::<NetworkPolicy>(&objects[4]);
        typed::<Secret>(&objects[5]);
    }

    #[test]
    fn output_is_byte_identical_to_the_golden_file() {
        let context = Context {
            operator_namespace: Some("segmentry".to_owned()),
        };
        let text = serde_json::to_string_pretty(&all(&context)).unwrap() + "\n";
        assert_eq!(text, serde_json::to_string_pretty(&all(&context)).unwrap() + "\n");
        if let Ok(path) = std::env::var("SEGMENTRY_WRITE_GOLDEN") {
            std::fs::write(format!("{path}/objects.json"), &text).unwrap();
            std::fs::write(
                format!("{path}/template-hash.txt"),
                template::template_hash(&sample(), "registry.example/segmentry:0.1.0") + "\n",
            )
            .unwrap();
        }
        assert!(
            text == include_str!("golden/objects.json"),
            "builders changed; if that is meant, write the golden files anew:\n{text}"
        );
    }

    #[test]
    fn one_node_has_no_disruption_budget_and_a_last_copy_is_kept() {
        let mut cluster = sample();
        assert_eq!(
            disruption_budget(&cluster, false).unwrap()["spec"]["maxUnavailable"],
            0
        );
        cluster.set.replicas = 1;
        assert!(disruption_budget(&cluster, true).is_none());
    }

    #[test]
    fn the_running_template_stays_while_a_restart_is_due() {
        let running = json!({"metadata": {"labels": {}}, "spec": {"containers": []}});
        let set = stateful_set(&sample(), "b", Some(running.clone()));
        assert_eq!(set["spec"]["template"], running);
        assert_eq!(set["spec"]["updateStrategy"]["type"], "OnDelete");
        assert_eq!(set["spec"]["podManagementPolicy"], "Parallel");
        assert_eq!(
            set["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"],
            "Retain"
        );
    }
}
