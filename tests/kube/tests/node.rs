//! The full node runs pods as a cluster does. Run by `make e2e`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use anyhow::ensure;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::Api;
use segmentry_testbed::daemon::temporary_folder;
use segmentry_testbed::eventually;
use segmentry_testbed::image::Image;
use segmentry_testbed::node::FullNode;
use segmentry_testbed::node::isolate::PROGRAM;
use std::time::Duration;

const SET: &str = "
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {app: db}, ports: [{port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: db-clients}
spec: {selector: {app: db}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 3
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 5
      securityContext: {runAsNonRoot: true, runAsUser: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: db
        image: localhost/sample:1
        imagePullPolicy: Never
        args: [--listen=0.0.0.0:8080, --data=/data]
        securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
        readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1}
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}
";

#[tokio::test]
async fn pods_run_restricted_write_their_volumes_and_find_each_other_by_dns_and_service() {
    let (folder, _owner) = temporary_folder("segmentry-node-").unwrap();
    let bed = FullNode::start(&folder).await.unwrap();
    bed.add_image(&Image {
        reference: "localhost/sample:1".to_owned(),
        program: std::env::var_os(PROGRAM).unwrap().into(),
        entry_point: "/sample".to_owned(),
        arguments: vec!["sample".to_owned()],
        links: Vec::new(),
        labels: Vec::new(),
    })
    .unwrap();
    bed.kubectl(&["apply", "-f", "-"], Some(SET)).unwrap().unwrap();
    let sets: Api<StatefulSet> = Api::default_namespaced(bed.client().await.unwrap());
    eventually(Duration::from_secs(120), "three pods are ready", || async {
        let ready = sets
            .get("db")
            .await?
            .status
            .and_then(|status| status.ready_replicas);
        ensure!(
            ready == Some(3),
            "{}",
            bed.kubectl(&["describe", "pods"], None)?.unwrap_or_default()
        );
        Ok(())
    })
    .await
    .unwrap();
    let client = reqwest::Client::builder()
        .timeout(Duration::from_secs(3))
        .build()
        .unwrap();
    let address = |args: &[&str]| bed.kubectl(args, None).unwrap().unwrap();
    let virtual_ip = address(&["get", "service", "db-clients", "-o", "jsonpath={.spec.clusterIP}"]);
    eventually(
        Duration::from_secs(30),
        "the Service answers, and resolves a pod's name",
        || async {
            let url = format!("http://{virtual_ip}/resolve/db-1.db.default.svc");
            let found = client.get(url).send().await?.text().await?;
            let wanted = address(&["get", "pod", "db-1", "-o", "jsonpath={.status.podIP}"]);
            ensure!(found.trim() == wanted, "{found} is not {wanted}");
            Ok(())
        },
    )
    .await
    .unwrap();

    // Its data outlives a pod.
    bed.kubectl(&["delete", "pod", "db-0"], None).unwrap().unwrap();
    eventually(
        Duration::from_secs(60),
        "db-0 has started twice on the same volume",
        || async {
            let pod = address(&["get", "pod", "db-0", "-o", "jsonpath={.status.podIP}"]);
            let starts = client
                .get(format!("http://{pod}:8080/started"))
                .send()
                .await?
                .text()
                .await?;
            ensure!(starts == "2", "{starts}");
            Ok(())
        },
    )
    .await
    .unwrap();
    drop(bed);
    let _ = std::fs::remove_dir_all(folder);
}
