//! The kubelet stand-in does to pods what a node would do, as seen through the API server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{DeleteParams, EvictParams, PostParams};
use rustix::process::Signal;
use segmentry_testbed::audit::Write;
use segmentry_testbed::{Bed, Scope, eventually};
use serde_json::json;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const IMAGE: &str = "localhost/sample:1";

/// Three pods `db-0..2` with a volume each.
async fn three_pods(prefix: &str, image: &str) -> (&'static Bed, Scope) {
    let bed = Bed::shared().await.unwrap();
    bed.kubelet
        .add_image(IMAGE, Path::new(env!("CARGO_BIN_EXE_segmentry-bed")));
    let scope = bed.namespace(prefix).await.unwrap();
    let service = json!({
        "metadata": {"name": "db"},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": true, "selector": {"app": "db"}, "ports": [{"port": 8080}]},
    });
    create::<Service>(&scope, service).await;
    let set = json!({
        "metadata": {"name": "db"},
        "spec": {
            "serviceName": "db", "replicas": 3, "podManagementPolicy": "Parallel", "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": {"app": "db"}},
            "template": {
                "metadata": {"labels": {"app": "db"}},
                "spec": {
                    "terminationGracePeriodSeconds": 10,
                    "containers": [{
                        "name": "db", "image": image, "args": ["sample", "--listen=0.0.0.0:8080", "--data", "/data"],
                        "ports": [{"name": "http", "containerPort": 8080}],
                        "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 1, "failureThreshold": 1},
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    }],
                },
            },
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}},
            }],
        },
    });
    create::<StatefulSet>(&scope, set).await;
    (bed, scope)
}

async fn create<K>(scope: &Scope, object: serde_json::Value)
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>
        + serde::Serialize
        + serde::de::DeserializeOwned,
    K: Clone + std::fmt::Debug,
    K::DynamicType: Default,
{
    let object: K = serde_json::from_value(object).unwrap();
    scope
        .api::<K>()
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

async fn all_ready(scope: &Scope) {
    let pods = scope.api::<Pod>();
    eventually(LIMIT, "three pods are ready", || async {
        let pods = pods.list(&kube::api::ListParams::default()).await?.items;
        let ready = pods
            .iter()
            .filter(|pod| is_ready(pod) && pod.metadata.deletion_timestamp.is_none())
            .count();
        ensure!(
            ready == 3,
            "{ready} of {}: {:?}",
            pods.len(),
            pods.iter().map(|pod| &pod.status).collect::<Vec<_>>()
        );
        Ok(())
    })
    .await
    .unwrap();
}

async fn get(pod: &Pod, path: &str) -> Result<String> {
    let address = pod
        .status
        .as_ref()
        .and_then(|status| status.pod_ip.clone())
        .context("no address")?;
    Ok(reqwest::get(format!("http://{address}:8080{path}"))
        .await?
        .text()
        .await?)
}

/// Waits for the successor of a pod to be ready.
async fn successor(scope: &Scope, old: &Pod) -> Pod {
    let pods = scope.api::<Pod>();
    let name = old.name_any();
    eventually(LIMIT, "a new pod of the same name is ready", || async {
        let pod = pods.get(&name).await?;
        ensure!(
            pod.uid() != old.uid(),
            "the old pod is there: {:?}",
            pod.metadata.deletion_timestamp
        );
        ensure!(is_ready(&pod), "{:?}", pod.status);
        Ok(pod)
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn pods_of_a_set_are_ready_and_find_each_other_by_name() {
    let (_, scope) = three_pods("names", IMAGE).await;
    all_ready(&scope).await;
    let pods = scope.api::<Pod>();
    let (first, second) = (pods.get("db-0").await.unwrap(), pods.get("db-1").await.unwrap());
    let name = format!("db-1.db.{}.svc", scope.name);
    let found = get(&first, &format!("/resolve/{name}")).await.unwrap();
    assert_eq!(found.trim(), second.status.unwrap().pod_ip.unwrap());
    let all = get(&first, &format!("/resolve/db.{}.svc", scope.name))
        .await
        .unwrap();
    assert_eq!(all.lines().count(), 3, "{all}");
    let set = scope.api::<StatefulSet>();
    eventually(LIMIT, "the set counts them", || async {
        let ready = set
            .get("db")
            .await?
            .status
            .and_then(|status| status.ready_replicas);
        ensure!(ready == Some(3), "{ready:?}");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_killed_process_is_started_again_in_the_same_pod() {
    let (bed, scope) = three_pods("kill", IMAGE).await;
    all_ready(&scope).await;
    let pods = scope.api::<Pod>();
    let before = pods.get("db-0").await.unwrap();
    bed.kubelet.signal(&scope.name, "db-0", Signal::KILL).unwrap();
    let after = eventually(LIMIT, "db-0 is ready after a restart", || async {
        let pod = pods.get("db-0").await?;
        let status = pod
            .status
            .as_ref()
            .and_then(|status| status.container_statuses.as_ref()?.first().cloned())
            .context("no status")?;
        ensure!(status.restart_count == 1 && status.ready, "{status:?}");
        Ok(pod)
    })
    .await
    .unwrap();
    assert_eq!(after.uid(), before.uid());
    let status = after
        .status
        .clone()
        .unwrap()
        .container_statuses
        .unwrap()
        .remove(0);
    let ended = status.last_state.unwrap().terminated.unwrap();
    assert_eq!((ended.exit_code, ended.signal), (137, Some(9)));
    assert_eq!(get(&after, "/started").await.unwrap(), "2");
}

#[tokio::test]
async fn a_deleted_pod_ends_by_sigterm_and_its_successor_has_its_volume_and_a_new_address() {
    let (bed, scope) = three_pods("delete", IMAGE).await;
    all_ready(&scope).await;
    let pods = scope.api::<Pod>();
    let before = pods.get("db-1").await.unwrap();
    let old_process = bed.kubelet.pid(&scope.name, "db-1").unwrap();
    pods.delete("db-1", &DeleteParams::default()).await.unwrap();
    let after = successor(&scope, &before).await;
    assert!(!segmentry_testbed::daemon::exists(old_process));
    assert_eq!(get(&after, "/started").await.unwrap(), "2");
    assert_ne!(after.status.unwrap().pod_ip, before.status.unwrap().pod_ip);
}

#[tokio::test]
async fn a_lost_volume_is_replaced_by_an_empty_one() {
    let (_, scope) = three_pods("volume", IMAGE).await;
    all_ready(&scope).await;
    let before = scope.api::<Pod>().get("db-2").await.unwrap();
    scope
        .api::<PersistentVolumeClaim>()
        .delete("data-db-2", &DeleteParams::default())
        .await
        .unwrap();
    scope
        .api::<Pod>()
        .delete("db-2", &DeleteParams::default())
        .await
        .unwrap();
    let after = successor(&scope, &before).await;
    assert_eq!(get(&after, "/started").await.unwrap(), "1");
}

#[tokio::test]
async fn an_unknown_image_is_reported_and_a_known_one_starts() {
    let (bed, scope) = three_pods("image", "localhost/sample:typo").await;
    let pods = scope.api::<Pod>();
    eventually(LIMIT, "the pull is backed off", || async {
        let status = pods.get("db-0").await?.status.context("no status")?;
        let state = status
            .container_statuses
            .context("no containers")?
            .remove(0)
            .state;
        let waiting = state.and_then(|state| state.waiting).context("not waiting")?;
        ensure!(
            waiting.reason.as_deref() == Some("ImagePullBackOff"),
            "{waiting:?}"
        );
        ensure!(status.phase.as_deref() == Some("Pending"), "{:?}", status.phase);
        Ok(())
    })
    .await
    .unwrap();
    bed.kubelet.add_image(
        "localhost/sample:typo",
        Path::new(env!("CARGO_BIN_EXE_segmentry-bed")),
    );
    all_ready(&scope).await;
}

#[tokio::test]
async fn an_unready_process_keeps_running_and_its_pod_is_not_ready() {
    let (bed, scope) = three_pods("unready", IMAGE).await;
    all_ready(&scope).await;
    let claim = scope
        .api::<PersistentVolumeClaim>()
        .get("data-db-0")
        .await
        .unwrap();
    let folder = bed
        .folder()
        .join("volumes")
        .join(claim.spec.unwrap().volume_name.unwrap());
    let process = bed.kubelet.pid(&scope.name, "db-0").unwrap();
    std::fs::write(folder.join("unready"), "").unwrap();
    let pods = scope.api::<Pod>();
    eventually(LIMIT, "db-0 is not ready", || async {
        ensure!(!is_ready(&pods.get("db-0").await?));
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(bed.kubelet.pid(&scope.name, "db-0").unwrap(), process);
    std::fs::remove_file(folder.join("unready")).unwrap();
    all_ready(&scope).await;
}

#[tokio::test]
async fn an_eviction_obeys_the_budget() {
    let (_, scope) = three_pods("evict", IMAGE).await;
    let budget = json!({"metadata": {"name": "db"}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "db"}}}});
    create::<PodDisruptionBudget>(&scope, budget).await;
    all_ready(&scope).await;
    let budgets = scope.api::<PodDisruptionBudget>();
    eventually(LIMIT, "one disruption is allowed", || async {
        let allowed = budgets
            .get("db")
            .await?
            .status
            .map(|status| status.disruptions_allowed);
        ensure!(allowed == Some(1), "{allowed:?}");
        Ok(())
    })
    .await
    .unwrap();
    let pods = scope.api::<Pod>();
    let before = pods.get("db-0").await.unwrap();
    pods.evict("db-0", &EvictParams::default()).await.unwrap();
    match pods.evict("db-1", &EvictParams::default()).await {
        Err(kube::Error::Api(refusal)) => assert_eq!(refusal.code, 429, "{refusal:?}"),
        other => panic!("a second eviction at once should be refused: {other:?}"),
    }
    successor(&scope, &before).await;
}

#[tokio::test]
async fn a_held_namespace_says_why_its_pods_wait() {
    let (bed, scope) = three_pods("held", IMAGE).await;
    all_ready(&scope).await;
    bed.kubelet.hold_scheduling(&scope.name, true);
    let pods = scope.api::<Pod>();
    let before = pods.get("db-0").await.unwrap();
    pods.delete("db-0", &DeleteParams::default()).await.unwrap();
    eventually(LIMIT, "the new pod is unschedulable", || async {
        let pod = pods.get("db-0").await?;
        let conditions = pod
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        let Some(condition) = conditions
            .iter()
            .find(|condition| condition.type_ == "PodScheduled")
        else {
            bail!("{conditions:?}")
        };
        ensure!(
            condition.reason.as_deref() == Some("Unschedulable"),
            "{condition:?}"
        );
        Ok(())
    })
    .await
    .unwrap();
    bed.kubelet.hold_scheduling(&scope.name, false);
    successor(&scope, &before).await;
}

#[tokio::test]
async fn the_audit_log_tells_who_wrote() {
    let bed = Bed::shared().await.unwrap();
    let mark = bed.audit_mark().unwrap();
    let scope = bed.namespace("audit").await.unwrap();
    let writes = bed.writes_since(mark).unwrap();
    let made = |write: &&Write| write.verb == "create" && write.resource == "namespaces" && write.code == 201;
    assert!(
        writes
            .iter()
            .find(made)
            .is_some_and(|write| write.user == "admin"),
        "{writes:?}"
    );
    assert!(
        bed.writes_since(bed.audit_mark().unwrap())
            .unwrap()
            .iter()
            .find(made)
            .is_none()
    );
    scope.delete().await.unwrap();
}
