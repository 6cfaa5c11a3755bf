//! The supervisor with real processes: a shell script stands in for the node, so that its end can be chosen.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use super::*;
use crate::api::IndexCluster;
use std::{future::Future, os::unix::fs::PermissionsExt as _, time::Duration};

struct Bed {
    runtime: LocalRuntime,
    cluster: ValidCluster,
    folder: tempfile::TempDir,
}

fn bed(script: &str) -> Bed {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let object: IndexCluster = serde_json::from_value(serde_json::json!({
        "apiVersion": "segmentry.io/v1alpha1", "kind": "IndexCluster",
        "metadata": {"name": "c", "namespace": "n", "uid": "u"},
        "spec": {"nodeSets": [{"name": "s", "replicas": 3, "storage": {"size": "1Gi"}}]}
    }))
    .unwrap();
    let cluster = ValidCluster::new(&object).unwrap();
    let runtime = LocalRuntime::open(&folder.path().join("data"), program).unwrap();
    Bed {
        runtime,
        cluster,
        folder,
    }
}

impl Bed {
    async fn ensure(&self, hash: &str, apply_template: bool) -> bool {
        let set = NodeSet {
            cluster: self.cluster.clone(),
            image: "i".into(),
            template_hash: hash.into(),
            apply_template,
            disruption_allowed: true,
        };
        self.runtime.ensure(&set).await.unwrap()
    }

    async fn instances(&self) -> Vec<Instance> {
        self.runtime.observe(&self.cluster).await.unwrap().instances
    }

    async fn until<T, F, Fut>(&self, what: &str, ask: F) -> T
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Option<T>>,
    {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{what}: {:#?}",
                self.instances().await
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn all_running(&self) -> Vec<Instance> {
        self.until("all run", || async {
            let all = self.instances().await;
            (all.len() == 3 && all.iter().all(|i| i.running)).then_some(all)
        })
        .await
    }
}

#[tokio::test]
async fn a_killed_node_comes_back_as_another_incarnation_on_the_newest_template() {
    let bed = bed("exec sleep 600");
    assert!(bed.ensure("h1", true).await);
    let before = bed.all_running().await;
    assert!(before.iter().all(|i| i.template_hash.as_deref() == Some("h1")));
    assert!(bed.ensure("h2", true).await);
    let untouched = bed.instances().await;
    assert_eq!(
        untouched.iter().map(|i| &i.instance_id).collect::<Vec<_>>(),
        before.iter().map(|i| &i.instance_id).collect::<Vec<_>>()
    );

    let pid: i32 = before[1].instance_id.split('-').next().unwrap().parse().unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    let after = bed
        .until("a new incarnation", || async {
            bed.instances()
                .await
                .into_iter()
                .find(|i| i.name == before[1].name && i.running && i.instance_id != before[1].instance_id)
        })
        .await;
    assert_eq!(after.template_hash.as_deref(), Some("h2"));
    assert_eq!(after.problem.unwrap().to_string(), "Killed: by signal 9");
    assert_eq!(after.disk_id, before[1].disk_id);
    bed.runtime.shut_down().await;
}

#[tokio::test]
async fn stop_ends_the_incarnation_that_was_observed_and_no_other() {
    let bed = bed("exec sleep 600");
    bed.ensure("h", true).await;
    let first = bed.all_running().await.remove(0);
    bed.runtime.stop(&bed.cluster.key, &first).await.unwrap();
    let second = bed
        .until("a new incarnation", || async {
            bed.instances()
                .await
                .into_iter()
                .find(|i| i.name == first.name && i.running && i.instance_id != first.instance_id)
        })
        .await;
    let again = bed.runtime.stop(&bed.cluster.key, &first).await;
    assert!(matches!(again, Err(RuntimeError::Changed(_))), "{again:?}");
    assert!(
        bed.instances()
            .await
            .iter()
            .any(|i| i.instance_id == second.instance_id && !i.terminating)
    );
    bed.runtime.shut_down().await;
}

#[tokio::test]
async fn a_program_that_ends_at_once_is_broken_and_says_its_last_words() {
    let bed = bed("echo cannot work here >&2; exit 7");
    bed.ensure("h", true).await;
    let broken = bed
        .until("broken", || async {
            bed.instances().await.into_iter().find(|i| i.broken)
        })
        .await;
    assert_eq!(
        broken.problem.unwrap().to_string(),
        "Exited: exit code 7: cannot work here"
    );
    bed.runtime.shut_down().await;
}

#[tokio::test]
async fn without_apply_the_running_template_stays_and_nothing_is_written() {
    let bed = bed("exec sleep 600");
    bed.ensure("h1", true).await;
    assert!(!bed.ensure("h2", false).await);
    let facts = bed.runtime.observe(&bed.cluster).await.unwrap();
    assert_eq!(facts.set.unwrap().template_hash.as_deref(), Some("h1"));
    bed.runtime.shut_down().await;
}

#[tokio::test]
async fn a_second_up_in_the_same_folder_is_refused() {
    let bed = bed("exec sleep 600");
    let second = LocalRuntime::open(&bed.folder.path().join("data"), "x".into());
    let text = second.err().expect("refused").to_string();
    assert!(text.contains("another segmentry up works in"), "{text}");
}
