//! The installed product on a full node, and what a test does to it.

use anyhow::{Result, ensure};
use segmentry_testbed::daemon::temporary_folder;
use segmentry_testbed::eventually;
use segmentry_testbed::image::Image;
use segmentry_testbed::node::FullNode;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub const IMAGE: &str = "localhost/segmentry:one";
/// The same program under another tag: an image to change to.
pub const OTHER_IMAGE: &str = "localhost/segmentry:two";
pub const PODS: [&str; 3] = ["search-nodes-0", "search-nodes-1", "search-nodes-2"];
/// Three nodes, an operator and Kubernetes share two cores in CI.
pub const LIMIT: Duration = Duration::from_secs(300);
/// Of the operator.
const NAMESPACE: &str = "segmentry-system";

pub struct Product {
    pub bed: FullNode,
    pub http: reqwest::Client,
    folder: PathBuf,
    _owner: File,
}

impl Product {
    pub async fn install() -> Self {
        let (folder, owner) = temporary_folder("segmentry-e2e-").unwrap();
        let bed = FullNode::start(&folder).await.unwrap();
        for reference in [IMAGE, OTHER_IMAGE] {
            let image = Image {
                reference: reference.to_owned(),
                program: env!("CARGO_BIN_EXE_segmentry").into(),
                entry_point: "/segmentry".to_owned(),
                arguments: Vec::new(),
                links: vec!["/kubectl-segmentry".to_owned()],
                labels: Vec::new(),
            };
            bed.add_image(&image).unwrap();
        }
        let chart = segmentry_testbed::repository().join("charts/segmentry");
        let mut args = vec![
            "install",
            "segmentry",
            chart.to_str().unwrap(),
            "--namespace",
            NAMESPACE,
            "--create-namespace",
        ];
        args.extend([
            "--wait",
            "--timeout",
            "120s",
            "--set",
            "image.repository=localhost/segmentry",
            "--set",
            "image.tag=one",
        ]);
        let notes = bed.helm(&args).unwrap().unwrap_or_else(|error| {
            panic!(
                "{error}\n{}",
                bed.kubectl(&["describe", "pods", "-n", NAMESPACE], None)
                    .unwrap()
                    .unwrap_or_default()
            )
        });
        println!("{notes}");
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(70))
            .build()
            .unwrap();
        Self {
            bed,
            http,
            folder,
            _owner: owner,
        }
    }

    pub fn try_kubectl(&self, args: &[&str]) -> std::result::Result<String, String> {
        self.bed.kubectl(args, None).unwrap()
    }

    pub fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args)
            .unwrap_or_else(|error| panic!("kubectl {args:?}: {error}"))
    }

    pub fn apply(&self, manifest: &str) {
        self.bed
            .kubectl(&["apply", "-f", "-"], Some(manifest))
            .unwrap()
            .unwrap();
    }

    /// What a person would look at after a failure.
    pub fn story(&self) -> String {
        let look: [&[&str]; 5] = [
            &["get", "ixc,ix,pods,pvc", "-A", "-o", "wide"],
            &["get", "ixc,ix", "-o", "jsonpath={.items[*].status}"],
            &["logs", "-n", NAMESPACE, "deployment/segmentry", "--tail=40"],
            &["get", "events", "-A", "--sort-by=.lastTimestamp"],
            &[
                "logs",
                "-l",
                "app.kubernetes.io/component=node",
                "--tail=15",
                "--prefix",
            ],
        ];
        look.map(|args| {
            format!(
                "--- {args:?}\n{}",
                self.try_kubectl(args).unwrap_or_else(|error| error)
            )
        })
        .join("\n")
    }

    async fn until<T, F: Future<Output = Result<T>>>(&self, what: &str, look: impl FnMut() -> F) -> T {
        eventually(LIMIT, what, look)
            .await
            .unwrap_or_else(|error| panic!("{error:#}\n{}", self.story()))
    }

    async fn condition(&self, object: &str, kind: &str) {
        self.until(&format!("{object} is {kind}"), || async {
            let text = self
                .try_kubectl(&["get", object, "-o", "json"])
                .map_err(anyhow::Error::msg)?;
            let object: Value = serde_json::from_str(&text)?;
            let conditions = object["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let condition = conditions
                .iter()
                .find(|condition| condition["type"] == kind)
                .cloned()
                .unwrap_or_default();
            ensure!(
                condition["status"] == "True"
                    && condition["observedGeneration"] == object["metadata"]["generation"],
                "{condition}"
            );
            Ok(())
        })
        .await;
    }

    pub async fn cluster_ready(&self) {
        self.condition("ixc/search", "Ready").await;
    }

    pub async fn index_ready(&self, name: &str) {
        self.condition(&format!("ix/{name}"), "Ready").await;
    }

    /// The address of the client Service; reached through kube-proxy.
    pub fn service(&self) -> String {
        format!(
            "http://{}:9200",
            self.kubectl(&["get", "service/search", "-o", "jsonpath={.spec.clusterIP}"])
        )
    }

    pub async fn call(&self, method: reqwest::Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let mut request = self.http.request(method, format!("{}{path}", self.service()));
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        ensure!(status.is_success(), "{status} {text}");
        Ok(serde_json::from_str(&text)?)
    }

    /// Loads by `segmentry load` through the Service; answers the number of documents of the file.
    pub async fn load_sample(&self, sample: &Path, index: &str) -> u64 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_segmentry"));
        command
            .arg("load")
            .arg(sample)
            .args(["--index", index, "--url", &self.service()]);
        let output = tokio::task::spawn_blocking(move || command.output())
            .await
            .unwrap()
            .unwrap();
        println!("{}", String::from_utf8_lossy(&output.stdout));
        assert!(
            output.status.success(),
            "{}\n{}",
            String::from_utf8_lossy(&output.stderr),
            self.story()
        );
        u64::try_from(lines(sample).len()).unwrap()
    }

    /// Every copy of every shard, asked copy by copy, counts what its primary counts, and together they hold `expected`.
    pub async fn assert_copies_equal(&self, index: &str, expected: u64) {
        self.until(
            &format!("all copies of {index} hold {expected} documents"),
            || async {
                self.call(reqwest::Method::POST, &format!("/{index}/_refresh"), None)
                    .await?;
                let rows = self
                    .call(
                        reqwest::Method::GET,
                        &format!("/_cat/shards/{index}?format=json"),
                        None,
                    )
                    .await?;
                let mut shards: BTreeMap<String, Vec<u64>> = BTreeMap::new();
                for row in rows.as_array().into_iter().flatten() {
                    ensure!(row["state"] == "STARTED", "{row}");
                    let docs = row["docs"].as_str().unwrap_or_default().parse()?;
                    shards
                        .entry(row["shard"].as_str().unwrap_or_default().to_owned())
                        .or_default()
                        .push(docs);
                }
                ensure!(
                    shards.len() == 3 && shards.values().all(|docs| docs.len() == 2 && docs[0] == docs[1]),
                    "{shards:?}"
                );
                let sum: u64 = shards.values().map(|docs| docs[0]).sum();
                ensure!(sum == expected, "{sum}: {shards:?}");
                Ok(())
            },
        )
        .await;
        let rows = format!("/_cat/shards/{index}?v&h=index,shard,prirep,state,docs,node&s=shard,prirep");
        println!("{}", self.text(&rows).await);
    }

    async fn text(&self, path: &str) -> String {
        let url = format!("{}{path}", self.service());
        self.http.get(url).send().await.unwrap().text().await.unwrap()
    }

    /// Name of the pod whose node leads the Raft group.
    pub async fn leader(&self) -> String {
        self.until("a node leads", || async {
            let rows = self
                .call(reqwest::Method::GET, "/_cat/nodes?format=json", None)
                .await?;
            let row = rows
                .as_array()
                .into_iter()
                .flatten()
                .find(|row| row["cluster_manager"] == "*");
            let name = row.and_then(|row| row["name"].as_str());
            name.map(ToOwned::to_owned)
                .ok_or_else(|| anyhow::anyhow!("{rows}"))
        })
        .await
    }

    /// A terms aggregation gives the numbers that counting the file gives.
    pub async fn assert_carriers_right(&self, sample: &Path, index: &str) {
        let mut expected: BTreeMap<String, u64> = BTreeMap::new();
        for line in lines(sample) {
            let document: Value = serde_json::from_str(&line).unwrap();
            *expected
                .entry(document["carrier"].as_str().unwrap().to_owned())
                .or_default() += 1;
        }
        let body =
            json!({"size": 0, "aggs": {"carriers": {"terms": {"field": "carrier.keyword", "size": 100}}}});
        let answer = self
            .call(reqwest::Method::POST, &format!("/{index}/_search"), Some(&body))
            .await
            .unwrap();
        let buckets = answer["aggregations"]["carriers"]["buckets"].as_array().unwrap();
        let found: BTreeMap<String, u64> = buckets
            .iter()
            .map(|bucket| {
                (
                    bucket["key"].as_str().unwrap().to_owned(),
                    bucket["doc_count"].as_u64().unwrap(),
                )
            })
            .collect();
        assert_eq!(found, expected);
    }

    pub async fn green(&self, after: &str) {
        let started = Instant::now();
        self.until(&format!("health is green after {after}"), || async {
            let health = self.call(reqwest::Method::GET, "/_cluster/health", None).await?;
            ensure!(
                health["status"] == "green" && health["number_of_nodes"] == 3,
                "{health}"
            );
            Ok(())
        })
        .await;
        self.cluster_ready().await;
        println!("green after {after}: {:.1} s", started.elapsed().as_secs_f32());
    }

    fn field(&self, pod: &str, path: &str) -> std::result::Result<String, String> {
        self.try_kubectl(&["get", "pod", pod, "-o", &format!("jsonpath={{{path}}}")])
    }

    /// Kills the process of a container (-9) from the node, as the kernel would.
    pub async fn kill_container(&self, pod: &str) {
        let uid = self.field(pod, ".metadata.uid").unwrap();
        let pid = process_of(&uid, "node").unwrap_or_else(|| panic!("no process of pod {pod}"));
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        self.until("the container has started again", || async {
            let restarts = self
                .field(pod, ".status.containerStatuses[0].restartCount")
                .map_err(anyhow::Error::msg)?;
            let ready = self
                .field(pod, ".status.containerStatuses[0].ready")
                .map_err(anyhow::Error::msg)?;
            ensure!(
                restarts == "1" && ready == "true",
                "restarts {restarts}, ready {ready}"
            );
            Ok(())
        })
        .await;
    }

    async fn replaced(&self, pod: &str, old: &str) {
        self.until(&format!("a new {pod} is ready"), || async {
            let uid = self.field(pod, ".metadata.uid").map_err(anyhow::Error::msg)?;
            ensure!(uid != old, "the old pod is there");
            let ready = self
                .field(pod, ".status.containerStatuses[0].ready")
                .map_err(anyhow::Error::msg)?;
            ensure!(ready == "true", "ready: {ready}");
            Ok(())
        })
        .await;
    }

    pub async fn delete_pod(&self, pod: &str) {
        let old = self.field(pod, ".metadata.uid").unwrap();
        self.kubectl(&["delete", "pod", pod, "--wait=false"]);
        self.replaced(pod, &old).await;
    }

    pub async fn evict_pod(&self, pod: &str) {
        use k8s_openapi::api::core::v1::Pod;
        let old = self.field(pod, ".metadata.uid").unwrap();
        let pods: kube::Api<Pod> = kube::Api::default_namespaced(self.bed.client().await.unwrap());
        self.until("the budget allows an eviction", || async {
            pods.evict(pod, &kube::api::EvictParams::default()).await?;
            Ok(())
        })
        .await;
        self.replaced(pod, &old).await;
    }

    pub async fn lose_volume(&self, pod: &str) {
        let old = self.field(pod, ".metadata.uid").unwrap();
        self.kubectl(&["delete", "pvc", &format!("data-{pod}"), "--wait=false"]);
        self.kubectl(&["delete", "pod", pod, "--wait=false"]);
        self.replaced(pod, &old).await;
    }

    pub async fn set_image(&self, image: &str) {
        let patch = json!({"spec": {"image": image}}).to_string();
        self.kubectl(&["patch", "ixc/search", "--type=merge", "-p", &patch]);
    }

    /// Kills the operator's process (-9); false while none runs.
    fn kill_operator(&self) -> bool {
        let pods = self.kubectl(&[
            "get",
            "pods",
            "-n",
            NAMESPACE,
            "-o",
            "jsonpath={.items[*].metadata.uid}",
        ]);
        pods.split_whitespace()
            .find_map(|uid| process_of(uid, "operator"))
            .is_some_and(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok())
    }

    fn steps(&self) -> BTreeMap<String, String> {
        let text = self.kubectl(&["get", "ixc/search", "-o", "json"]);
        let cluster: Value = serde_json::from_str(&text).unwrap();
        let steps = cluster["status"]["inProgress"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        steps
            .iter()
            .map(|step| (text(&step["step"]), text(&step["waitingFor"])))
            .collect()
    }

    /// Waits until the status says that something waits for `reason`.
    pub async fn waits_for(&self, reason: &str) {
        self.until(&format!("the status names {reason}"), || async {
            let steps = self.steps();
            let told = steps.values().find(|waits| waits.contains(reason));
            println!("{}", told.ok_or_else(|| anyhow::anyhow!("{steps:?}"))?);
            Ok(())
        })
        .await;
    }

    /// Waits until all pods run the image and nothing is in progress, and kills the operator (-9) once in each step that the status names meanwhile.
    /// Answers these steps.
    pub async fn all_run_although_the_operator_dies(&self, image: &str) -> Vec<String> {
        let killed = std::cell::RefCell::new(Vec::new());
        self.until(&format!("all pods run {image}"), || async {
            let steps = self.steps();
            let left = steps.len();
            let fresh = steps.into_keys().find(|step| !killed.borrow().contains(step));
            if let Some(step) = fresh
                && self.kill_operator()
            {
                println!("operator killed in step {step}");
                killed.borrow_mut().push(step);
            }
            ensure!(left == 0, "{left} steps are under way");
            self.images_are(image)
        })
        .await;
        killed.into_inner()
    }

    fn images_are(&self, image: &str) -> Result<()> {
        for pod in PODS {
            let found = self
                .field(pod, ".spec.containers[0].image")
                .map_err(anyhow::Error::msg)?;
            ensure!(found == image, "{pod} runs {found}");
        }
        Ok(())
    }

    pub async fn uninstall(&self) {
        self.bed
            .helm(&["uninstall", "segmentry", "--namespace", NAMESPACE, "--wait"])
            .unwrap()
            .unwrap();
        assert!(
            !self
                .kubectl(&["get", "crd", "-o", "name"])
                .lines()
                .filter(|name| name.contains("segmentry.io"))
                .collect::<Vec<_>>()
                .is_empty()
        );
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        // What is mounted below goes with the namespaces; what stays is swept by the next run.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn lines(sample: &Path) -> Vec<String> {
    let decoder = zstd::Decoder::new(File::open(sample).unwrap()).unwrap();
    BufReader::new(decoder)
        .lines()
        .map(|line| line.unwrap())
        .filter(|line| !line.trim().is_empty())
        .collect()
}

/// The process that runs a subcommand of the product, among those of a pod's cgroup.
fn process_of(uid: &str, subcommand: &str) -> Option<rustix::process::Pid> {
    let underscored = uid.replace('-', "_");
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let cgroup = std::fs::read_to_string(entry.path().join("cgroup")).ok()?;
        let command = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        let ours = cgroup.contains(uid) || cgroup.contains(&underscored);
        (ours && command.starts_with(&format!("/segmentry\0{subcommand}")))
            .then(|| rustix::process::Pid::from_raw(pid))?
    })
}
