//! Counts sync calls of a real node with strace: a refresh does none, and a group of requests shares one.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use serde_json::json;
use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};
use support::{cluster::Cluster, wait_for};

/// strace on a node's process.
struct Trace {
    strace: Child,
    output: std::path::PathBuf,
}

impl Trace {
    async fn start(cluster: &Cluster) -> Self {
        let output = cluster.directory().join("strace");
        let strace = Command::new("strace")
            .args([
                "-f",
                "-e",
                "trace=fsync,fdatasync,sync_file_range,syncfs,msync",
                "-o",
            ])
            .arg(&output)
            .args(["-p", &cluster.pid(0).to_string()])
            .stderr(Stdio::piped())
            .spawn()
            .expect("strace is needed: apt-get install strace");
        let status = format!("/proc/{}/status", cluster.pid(0));
        wait_for("strace to attach", Duration::from_secs(10), || async {
            let text = std::fs::read_to_string(&status).unwrap();
            let tracer = text.lines().find(|line| line.starts_with("TracerPid:")).unwrap();
            if tracer.ends_with("\t0") {
                Err(tracer.to_owned())
            } else {
                Ok(())
            }
        })
        .await;
        Self { strace, output }
    }

    /// Ends strace; the lines of sync calls that it saw.
    fn finish(mut self) -> Vec<String> {
        let pid = i32::try_from(self.strace.id()).unwrap();
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid).unwrap(),
            rustix::process::Signal::INT,
        )
        .unwrap();
        self.strace.wait().unwrap();
        let text = std::fs::read_to_string(&self.output).unwrap();
        // a call that was interrupted by another thread's line is printed twice: its start counts
        text.lines()
            .filter(|line| line.contains("sync") && !line.contains("resumed>"))
            .map(str::to_owned)
            .collect()
    }
}

async fn single(durability: &str) -> Cluster {
    let cluster = Cluster::start(1).await;
    let body = json!({"settings": {"index": {"number_of_replicas": 0, "refresh_interval": "-1",
        "translog": {"durability": durability, "sync_interval": "30m"}}}});
    cluster.call(0, "PUT", "/i", Some(body)).await;
    // the first document grows the mapping, which is a synced change of the cluster state
    cluster
        .call(0, "PUT", "/i/_doc/first", Some(json!({"n": 0})))
        .await;
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_refreshes_with_writes_between_them_sync_nothing_in_async_mode() {
    let cluster = single("async").await;
    let trace = Trace::start(&cluster).await;
    for n in 1..=20 {
        cluster
            .call(0, "PUT", &format!("/i/_doc/{n}"), Some(json!({"n": n})))
            .await;
        cluster.call(0, "POST", "/i/_refresh", None).await;
        let found = cluster.call(0, "GET", "/i/_count", None).await;
        assert_eq!(found["count"], n + 1);
    }
    let syncs = trace.finish();
    assert!(syncs.is_empty(), "{} syncs: {syncs:#?}", syncs.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn in_request_mode_concurrent_requests_share_syncs_and_each_request_alone_has_its_own() {
    let cluster = single("request").await;
    let mut per_request = Vec::new();
    for writers in [1_usize, 64] {
        let trace = Trace::start(&cluster).await;
        let each = 640 / writers;
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..writers {
            let (http, rest) = (cluster.http.clone(), cluster.nodes[0].rest.clone());
            tasks.spawn(async move {
                for n in 0..each {
                    let url = format!("http://{rest}/i/_doc/{writers}-{writer}-{n}");
                    let answer = http.put(url).json(&json!({"n": n})).send().await.unwrap();
                    assert_eq!(answer.status(), 201);
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        let syncs = trace.finish().len();
        eprintln!("{writers} writers: 640 requests, {syncs} syncs");
        per_request.push(syncs);
    }
    assert!(
        per_request[0] >= 640,
        "a request alone was acknowledged without a sync of its own"
    );
    assert!(
        per_request[1] >= 10,
        "64 writers cannot share fewer syncs than rounds"
    );
    assert!(per_request[1] < 640, "64 writers share no sync");
}
