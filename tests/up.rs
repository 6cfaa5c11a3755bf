//! `segmentry up` and `segmentry load` with the real program: a cluster on loopback from the example's manifest.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::File,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_segmentry");

fn example(name: &str) -> PathBuf {
    segmentry_testbed::repository().join("examples").join(name)
}

/// A folder with a manifest, and `segmentry up` over it.
struct Up {
    folder: tempfile::TempDir,
    process: Option<Child>,
    starts: u32,
}

impl Up {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(example("quickstart.yaml"), folder.path().join("manifest.yaml")).unwrap();
        let mut up = Self {
            folder,
            process: None,
            starts: 0,
        };
        up.start_again();
        up
    }

    fn start_again(&mut self) {
        self.starts += 1;
        let log = File::create(self.output()).unwrap();
        let process = Command::new(PROGRAM)
            .arg("up")
            .arg(self.manifest())
            .arg("--data")
            .arg(self.data())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.process = Some(process);
    }

    fn manifest(&self) -> PathBuf {
        self.folder.path().join("manifest.yaml")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn output(&self) -> PathBuf {
        self.folder.path().join(format!("output.{}", self.starts))
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.output()).unwrap_or_default()
    }

    fn edit(&self, from: &str, to: &str) {
        let old = std::fs::read_to_string(self.manifest()).unwrap();
        assert!(old.contains(from), "{from}");
        std::fs::write(self.manifest(), old.replace(from, to)).unwrap();
    }

    fn until<T>(&mut self, what: &str, within: Duration, mut ask: impl FnMut(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + within;
        loop {
            if let Some(found) = ask(self) {
                return found;
            }
            let ended = self
                .process
                .as_mut()
                .and_then(|process| process.try_wait().unwrap());
            assert!(
                ended.is_none(),
                "waiting for {what}: up ended with {ended:?}: {}",
                self.said()
            );
            assert!(
                Instant::now() < deadline,
                "waited {within:?} for {what}\n{}\n{}",
                self.said(),
                self.status()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn status(&self) -> Value {
        let text = std::fs::read_to_string(self.data().join("status.yaml")).unwrap_or_default();
        serde_saphyr::from_str(&text).unwrap_or_default()
    }

    fn is_ready(&self, kind: &str) -> bool {
        let status = self.status();
        let object = status["items"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|item| item["kind"] == kind);
        let conditions = object.and_then(|object| object["status"]["conditions"].as_array());
        conditions
            .into_iter()
            .flatten()
            .any(|found| found["type"] == "Ready" && found["status"] == "True")
    }

    fn wait_ready(&mut self) -> String {
        self.until("Ready", Duration::from_secs(90), |up| {
            (up.is_ready("IndexCluster") && up.is_ready("Index")).then_some(())
        });
        self.until("the address", Duration::from_secs(10), |up| {
            let said = up.said();
            let line = said
                .lines()
                .find(|line| line.contains("is ready, REST at"))?
                .to_owned();
            line.split_whitespace()
                .find(|word| word.starts_with("http://"))
                .map(str::to_owned)
        })
    }

    /// Process ids of the nodes, by the data folder in their arguments.
    fn nodes(&self) -> Vec<i32> {
        let data = self.data().canonicalize().unwrap().display().to_string();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<i32>().ok())
            else {
                continue;
            };
            let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
            if arguments.contains(" node ") && arguments.contains(&data) {
                found.push(pid);
            }
        }
        found
    }

    fn stop(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("runs");
        kill_process(
            Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap(),
            Signal::INT,
        )
        .unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = process.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > deadline {
                process.kill().unwrap();
                process.wait().unwrap();
                panic!("up did not end within 60 s of SIGINT: {}", self.said());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // nodes end with their parent
            let _ = process.kill();
            let _ = process.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- up\n{}\n--- log", self.said());
            eprintln!(
                "{}",
                std::fs::read_to_string(self.data().join("up.log")).unwrap_or_default()
            );
        }
    }
}

fn call(method: &str, url: &str, body: Option<Value>) -> Result<Value, String> {
    let url = url.to_owned();
    let method = method.to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async move {
        let client = reqwest::Client::builder()
            .timeout(Duration::from_secs(30))
            .build()
            .unwrap();
        let mut call = client.request(method.parse().unwrap(), url);
        if let Some(body) = body {
            call = call.json(&body);
        }
        let answer = call.send().await.map_err(|error| error.to_string())?;
        let status = answer.status();
        let text = answer.text().await.map_err(|error| error.to_string())?;
        if !status.is_success() {
            return Err(format!("{status}: {text}"));
        }
        serde_json::from_str(&text).map_err(|error| error.to_string())
    })
}

fn load(url: &str) -> String {
    let outcome = Command::new(PROGRAM)
        .arg("load")
        .arg(example("flights.ndjson.zst"))
        .args(["--index", "flights", "--url", url])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    assert!(
        outcome.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&outcome.stderr)
    );
    text
}

/// Documents by carrier, counted from the file.
fn carriers() -> BTreeMap<String, u64> {
    let bytes = zstd::decode_all(File::open(example("flights.ndjson.zst")).unwrap()).unwrap();
    let mut counts = BTreeMap::new();
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let document: Value = serde_json::from_slice(line).unwrap();
        *counts
            .entry(document["carrier"].as_str().unwrap().to_owned())
            .or_default() += 1;
    }
    counts
}

fn searched(url: &str) -> (u64, BTreeMap<String, u64>) {
    call("POST", &format!("{url}/flights/_refresh"), None).unwrap();
    // dynamic mappings of text have a keyword beside it
    let body = json!({"size": 0, "track_total_hits": true,
        "aggs": {"carriers": {"terms": {"field": "carrier.keyword", "size": 100}}}});
    let answer = call("POST", &format!("{url}/flights/_search"), Some(body)).unwrap();
    let buckets = answer["aggregations"]["carriers"]["buckets"].as_array().unwrap();
    let counts = buckets
        .iter()
        .map(|bucket| {
            (
                bucket["key"].as_str().unwrap().to_owned(),
                bucket["doc_count"].as_u64().unwrap(),
            )
        })
        .collect();
    (answer["hits"]["total"]["value"].as_u64().unwrap(), counts)
}

#[test]
fn a_manifest_becomes_a_cluster_that_loads_searches_survives_a_kill_and_starts_again() {
    let mut up = Up::start();
    let url = up.wait_ready();
    let summary = load(&url);
    assert!(
        summary.starts_with("loaded 5026 documents into [flights]"),
        "{summary}"
    );
    let expected = (5026, carriers());
    assert_eq!(searched(&url), expected);

    // a killed node is replaced, and the cluster is whole again
    let before = up.nodes();
    assert_eq!(before.len(), 3, "{before:?}");
    kill_process(Pid::from_raw(before[1]).unwrap(), Signal::KILL).unwrap();
    up.until("three nodes, one of them new", Duration::from_secs(60), |up| {
        let now = up.nodes();
        (now.len() == 3 && !now.contains(&before[1])).then_some(())
    });
    let health = format!("{url}/_cluster/health");
    up.until("green", Duration::from_secs(90), |_| {
        // the killed node may be the one that is asked
        let health = call("GET", &health, None).ok()?;
        (health["status"] == "green" && health["number_of_nodes"] == 3).then_some(())
    });
    assert_eq!(searched(&url), expected);

    let status = up.stop();
    assert_eq!(status.code(), Some(0), "{}", up.said());
    assert_eq!(up.nodes(), Vec::<i32>::new());

    up.start_again();
    let url = up.wait_ready();
    assert_eq!(searched(&url), expected);
    assert_eq!(up.stop().code(), Some(0), "{}", up.said());
}

#[test]
fn edits_of_the_file_are_carried_out_or_refused_in_the_words_of_the_schema() {
    let mut up = Up::start();
    let url = up.wait_ready();
    let settings = format!("{url}/flights/_settings?flat_settings=true");
    let replicas = |answer: &Value| answer["flights"]["settings"]["index.number_of_replicas"].clone();
    assert_eq!(replicas(&call("GET", &settings, None).unwrap()), "1");

    up.edit("replicas: 1", "replicas: 2");
    up.until("two replicas", Duration::from_secs(60), |_| {
        (replicas(&call("GET", &settings, None).ok()?) == "2").then_some(())
    });

    up.edit("shards: 3", "shards: 4");
    up.until("the refusal", Duration::from_secs(20), |up| {
        up.said()
            .contains("refused: Index flights: `shards` must not change")
            .then_some(())
    });
    up.edit("shards: 4", "shards: 3\n  shard: 4");
    up.until("the second refusal", Duration::from_secs(20), |up| {
        up.said()
            .contains("document 2: Index flights: `spec.shard` is no known field")
            .then_some(())
    });

    // removed with Delete: its index goes
    up.edit("shards: 3\n  shard: 4", "shards: 3\n  deletionPolicy: Delete");
    up.until("the finalizer", Duration::from_secs(30), |up| {
        let status = up.status();
        let index = status["items"]
            .as_array()?
            .iter()
            .find(|item| item["kind"] == "Index")?
            .clone();
        index["metadata"]["finalizers"].is_array().then_some(())
    });
    let text = std::fs::read_to_string(up.manifest()).unwrap();
    let (cluster, _) = text.split_once("---\n").unwrap();
    std::fs::write(up.manifest(), cluster).unwrap();
    up.until("the deletion", Duration::from_secs(60), |_| {
        call("GET", &format!("{url}/flights"), None)
            .err()
            .filter(|error| error.starts_with("404"))
    });
    assert_eq!(up.stop().code(), Some(0), "{}", up.said());
}

#[test]
fn a_faulty_manifest_ends_up_with_a_message_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("m.yaml");
    std::fs::write(
        &manifest,
        std::fs::read_to_string(example("quickstart.yaml"))
            .unwrap()
            .replace("replicas: 3", "replicas: 2"),
    )
    .unwrap();
    let data = folder.path().join("data");
    let outcome = Command::new(PROGRAM)
        .arg("up")
        .arg(&manifest)
        .arg("--data")
        .arg(&data)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&outcome.stderr).into_owned();
    assert_eq!(outcome.status.code(), Some(1));
    for part in [
        "m.yaml",
        "document 1: IndexCluster quickstart",
        "`replicas` must be 1 or 3",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!data.exists());
}
