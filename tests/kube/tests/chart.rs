//! The Helm chart, by the real helm and a real API server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use anyhow::{Context, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use segmentry_testbed::tools::clients;
use segmentry_testbed::{Bed, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

fn chart() -> PathBuf {
    segmentry_testbed::repository().join("charts/segmentry")
}

fn helm(args: &[&str]) -> Result<String, String> {
    clients::call(&clients::helm().unwrap(), None, args, None).unwrap()
}

fn template(settings: &[&str]) -> Result<Vec<Value>, String> {
    let chart = chart();
    let mut args = vec![
        "template",
        "release",
        chart.to_str().unwrap(),
        "--namespace",
        "operators",
    ];
    for setting in settings {
        args.extend(["--set", setting]);
    }
    let text = helm(&args)?;
    let documents = text.split("\n---").filter(|document| {
        document
            .lines()
            .any(|line| !line.trim().is_empty() && !line.starts_with('#'))
    });
    Ok(documents
        .map(|document| serde_saphyr::from_str(document.trim_start_matches("---")).unwrap())
        .collect())
}

fn kinds(objects: &[Value]) -> BTreeSet<&str> {
    objects
        .iter()
        .map(|object| object["kind"].as_str().unwrap())
        .collect()
}

fn one<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects
        .iter()
        .find(|object| object["kind"] == kind)
        .unwrap_or_else(|| panic!("no {kind}"))
}

#[test]
fn the_chart_is_clean_to_lint() {
    let answer = helm(&["lint", "--strict", chart().to_str().unwrap()]).unwrap();
    assert!(answer.contains("0 chart(s) failed"), "{answer}");
}

#[test]
fn an_operator_of_all_namespaces_has_a_cluster_role() {
    let objects = template(&[]).unwrap();
    assert!(kinds(&objects).is_superset(&BTreeSet::from([
        "ClusterRole",
        "ClusterRoleBinding",
        "Deployment",
        "ServiceAccount"
    ])));
}

#[test]
fn an_operator_of_named_namespaces_may_not_list_anything_cluster_wide() {
    let objects = template(&["watchNamespaces={a,b}"]).unwrap();
    let role = one(&objects, "ClusterRole");
    assert!(
        !role.to_string().contains("list") && !role.to_string().contains("watch"),
        "{role}"
    );
    let objects = template(&["watchNamespaces={a,b}", "rbac.namespaceDeletion=false"]).unwrap();
    let wide: Vec<_> = kinds(&objects)
        .into_iter()
        .filter(|kind| kind.starts_with("Cluster"))
        .collect();
    assert!(wide.is_empty(), "{wide:?}");
    let roles = |namespace: &str| {
        objects
            .iter()
            .filter(|object| object["kind"] == "Role" && object["metadata"]["namespace"] == namespace)
            .count()
    };
    // One of the operator and one of the Job that runs when it is uninstalled.
    assert_eq!((roles("a"), roles("b"), roles("operators")), (2, 2, 2));
    let objects = template(&[
        "watchNamespaces={a,b}",
        "rbac.namespaceDeletion=false",
        "uninstall.removeFinalizers=false",
    ])
    .unwrap();
    assert!(!kinds(&objects).contains("Job"));
    let arguments = &one(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"];
    assert!(
        arguments.as_array().unwrap().contains(&json!("--namespaces=a,b")),
        "{arguments}"
    );
}

#[test]
fn the_job_of_an_uninstall_looks_where_the_operator_looked() {
    for (settings, namespaces, wide) in [
        (&[][..], None, true),
        (&["watchNamespaces={a,b}"][..], Some("--namespaces=a,b"), false),
    ] {
        let objects = template(settings).unwrap();
        let job = one(&objects, "Job");
        assert_eq!(job["metadata"]["annotations"]["helm.sh/hook"], "post-delete");
        let args = job["spec"]["template"]["spec"]["containers"][0]["args"]
            .as_array()
            .unwrap();
        assert!(
            args.contains(&json!("detach")) && args.contains(&json!("--release=release")),
            "{args:?}"
        );
        assert_eq!(
            args.iter()
                .find(|argument| argument.as_str().unwrap().starts_with("--namespaces")),
            namespaces.map(|text| json!(text)).as_ref()
        );
        let hooks = objects
            .iter()
            .filter(|object| object["metadata"]["annotations"]["helm.sh/hook"] == "post-delete");
        let has_wide = hooks
            .clone()
            .any(|object| object["kind"].as_str().unwrap().starts_with("Cluster"));
        assert_eq!(has_wide, wide);
        // Rights come before the Job that needs them.
        for object in hooks.filter(|object| object["kind"] != "Job") {
            assert_eq!(object["metadata"]["annotations"]["helm.sh/hook-weight"], "-1");
        }
    }
}

#[test]
fn a_digest_wins_over_a_tag() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let objects = template(&[
        &format!("image.digest={digest}"),
        "image.tag=v2",
        "image.repository=r.example/s",
    ])
    .unwrap();
    let image = &one(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(image.as_str().unwrap(), format!("r.example/s@{digest}"));
}

#[test]
fn the_definitions_are_those_of_the_repository_and_are_kept_on_uninstall() {
    let objects = template(&[]).unwrap();
    let folder = chart().join("../../crds");
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 2, "{files:?}");
    for file in files {
        let mut wanted: Value = serde_saphyr::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let name = wanted["metadata"]["name"].clone();
        let found = objects
            .iter()
            .find(|object| object["metadata"]["name"] == name)
            .unwrap_or_else(|| panic!("{name}: run `make crds`"));
        wanted["metadata"]["annotations"]["helm.sh/resource-policy"] = json!("keep");
        assert!(*found == wanted, "{name} of the chart is stale: run `make crds`");
    }
    let without = template(&["crds.install=false"]).unwrap();
    assert!(!kinds(&without).contains("CustomResourceDefinition"));
}

#[test]
fn the_chart_has_the_version_of_the_workspace() {
    let text = fs::read_to_string(chart().join("Chart.yaml")).unwrap();
    let chart: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn each_rule_says_why_it_is_there() {
    for file in ["_helpers.tpl", "rbac.yaml", "uninstall.yaml"] {
        let text = fs::read_to_string(chart().join("templates").join(file)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            // The rules of the aggregated roles have their reason above the role.
            let first = lines[at - at.min(1)].starts_with("rules:");
            if line.starts_with("- apiGroups") && !first {
                assert!(lines[at - 1].starts_with("# "), "{file}:{}: {line}", at + 1);
            }
        }
    }
}

#[test]
fn no_rule_grants_a_wildcard_or_the_listing_of_secrets() {
    let objects = template(&[]).unwrap();
    let roles = objects
        .iter()
        .filter(|object| object["kind"].as_str().unwrap().ends_with("Role"));
    for rule in roles.flat_map(|role| role["rules"].as_array().unwrap()) {
        assert!(!rule.to_string().contains('*'), "{rule}");
        if rule["resources"].as_array().unwrap().contains(&json!("secrets")) {
            assert_eq!(rule["verbs"], json!(["get", "create", "patch"]));
        }
    }
}

#[test]
fn wrong_values_are_refused_by_name() {
    for (setting, name) in [
        ("replicaCount=many", "replicaCount"),
        ("replicaCount=-1", "replicaCount"),
        ("watchNamespace=a", "watchNamespace"),
        ("watchNamespaces=a", "watchNamespaces"),
        ("watchNamespaces={A_b}", "watchNamespaces"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("image.digest=sha256:12", "digest"),
        ("image.repository=", "repository"),
        ("crds.keep=false", "crds"),
        ("crds.install=maybe", "install"),
        ("resources.limit.memory=1Gi", "resources"),
        ("extraEnv[0].value=x", "extraEnv"),
        ("log.level=", "level"),
        ("uninstall.removeFinalizers=perhaps", "removeFinalizers"),
        ("uninstall.keep=true", "uninstall"),
    ] {
        let refusal = template(&[setting]).expect_err(setting);
        assert!(refusal.contains(name), "{setting}: {refusal}");
    }
}

#[tokio::test]
async fn it_installs_into_a_restricted_namespace_and_leaves_the_definitions_when_it_goes() {
    let bed = Bed::shared().await.unwrap();
    let scope = bed.namespace("chart").await.unwrap();
    // The API server refuses pods of this namespace that are not restricted.
    let label = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    let namespaces: Api<Namespace> = Api::all(scope.client.clone());
    namespaces
        .patch(&scope.name, &PatchParams::default(), &Patch::Merge(&label))
        .await
        .unwrap();

    let chart = chart();
    let watch = format!("watchNamespaces={{{}}}", scope.name);
    bed.helm(&[
        "install",
        "one",
        chart.to_str().unwrap(),
        "--namespace",
        &scope.name,
        "--set",
        &watch,
        // This chart's image does not exist here, so its Job would not run.
        "--set",
        "uninstall.removeFinalizers=false",
    ])
    .unwrap()
    .unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(scope.client.clone());
    let before = eventually(
        Duration::from_secs(30),
        "the definitions are established",
        || async {
            let found = definitions.list(&ListParams::default()).await?.items;
            let ours: Vec<_> = found
                .into_iter()
                .filter(|definition| definition.spec.group == "segmentry.io")
                .collect();
            ensure!(ours.len() >= 2, "{} definitions", ours.len());
            for definition in &ours {
                let conditions = definition
                    .status
                    .as_ref()
                    .and_then(|status| status.conditions.clone())
                    .unwrap_or_default();
                ensure!(
                    conditions
                        .iter()
                        .any(|condition| condition.type_ == "Established" && condition.status == "True"),
                    "{conditions:?}"
                );
            }
            Ok(ours)
        },
    )
    .await
    .unwrap();
    // The pod exists, so the pod security admission has let it in.
    let pods = scope.api::<Pod>();
    eventually(Duration::from_secs(30), "the operator's pod is there", || async {
        let pods = pods
            .list(&ListParams::default().labels("app.kubernetes.io/component=operator"))
            .await?
            .items;
        ensure!(pods.len() == 1, "{} pods", pods.len());
        Ok(())
    })
    .await
    .unwrap();

    bed.helm(&["uninstall", "one", "--namespace", &scope.name])
        .unwrap()
        .unwrap();
    let deployments = scope.api::<Deployment>();
    eventually(
        Duration::from_secs(60),
        "nothing of the release is left",
        || async {
            ensure!(
                deployments.list(&ListParams::default()).await?.items.is_empty(),
                "the Deployment is there"
            );
            ensure!(
                pods.list(&ListParams::default()).await?.items.is_empty(),
                "the pod is there"
            );
            Ok(())
        },
    )
    .await
    .unwrap();
    for definition in before {
        let now = definitions
            .get_opt(&definition.name_any())
            .await
            .unwrap()
            .context("gone with the release")
            .unwrap();
        assert_eq!(now.uid(), definition.uid());
    }
}
