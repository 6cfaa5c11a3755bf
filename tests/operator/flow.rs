//! One operator in a namespace of its own, and one namespace that it looks after.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::ListParams;
use rustix::process::Signal;
use segmentry::api::{Index, IndexCluster};
use segmentry_testbed::{Bed, Scope, eventually};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::OnceCell;

/// The product's image, and the same program under another name: an image to change to.
pub const IMAGE: &str = "localhost/segmentry:one";
pub const OTHER_IMAGE: &str = "localhost/segmentry:two";
/// Pods of [`CLUSTER`].
pub const PODS: [&str; 3] = ["search-nodes-0", "search-nodes-1", "search-nodes-2"];
/// For whatever ends by itself: a loaded machine with two cores is slow, a hang is much slower.
pub const LIMIT: Duration = Duration::from_secs(180);

pub const CLUSTER: &str = "
apiVersion: segmentry.io/v1alpha1
kind: IndexCluster
metadata: {name: search}
spec:
  nodeSets:
  - {name: nodes, replicas: 3, storage: {size: 256Mi}}
";

/// An Index of three shards with one replica each.
pub fn index(name: &str, replication: &str, policy: &str) -> String {
    format!(
        "
apiVersion: segmentry.io/v1alpha1
kind: Index
metadata: {{name: {name}}}
spec:
  clusterRef: {{name: search}}
  shards: 3
  replicas: 1
  replicationType: {replication}
  deletionPolicy: {policy}
"
    )
}

pub struct Flow {
    pub bed: &'static Bed,
    /// The declared objects.
    pub scope: Scope,
    /// The operator.
    pub operator: Scope,
    pub http: reqwest::Client,
    /// Points at which the operator's process ends (`segmentry::fault`).
    faults: PathBuf,
}

impl Flow {
    /// Installs the operator; nothing is declared yet.
    pub async fn start(prefix: &str) -> Self {
        static DEFINITIONS: OnceCell<()> = OnceCell::const_new();
        let bed = Bed::shared().await.unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_segmentry"));
        bed.kubelet.add_image(IMAGE, program);
        bed.kubelet.add_image(OTHER_IMAGE, program);
        DEFINITIONS
            .get_or_init(|| async {
                let folder = repository().join("crds");
                bed.kubectl(&["apply", "--server-side", "-f", folder.to_str().unwrap()], None)
                    .unwrap()
                    .unwrap();
                let names = ["crd/indexclusters.segmentry.io", "crd/indices.segmentry.io"];
                bed.kubectl(
                    &[
                        "wait",
                        "--for=condition=Established",
                        "--timeout=60s",
                        names[0],
                        names[1],
                    ],
                    None,
                )
                .unwrap()
                .unwrap();
            })
            .await;
        let scope = bed.namespace(prefix).await.unwrap();
        let operator = bed.namespace(&format!("{prefix}-operator")).await.unwrap();
        let chart = repository().join("charts/segmentry");
        let faults = bed.folder().join(format!("{}.faults", operator.name));
        let points = format!("extraEnv[0].value={}", faults.display());
        let watch = format!("watchNamespaces={{{}}}", scope.name);
        let mut args = vec![
            "install",
            "operator",
            chart.to_str().unwrap(),
            "--namespace",
            &operator.name,
        ];
        for setting in [
            "crds.install=false",
            "image.repository=localhost/segmentry",
            "image.tag=one",
            "log.level=info\\,segmentry=debug",
            "extraEnv[0].name=SEGMENTRY_FAULTS",
            &points,
            &watch,
        ] {
            args.extend(["--set", setting]);
        }
        bed.helm(&args).unwrap().unwrap();
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(70))
            .build()
            .unwrap();
        Self {
            bed,
            scope,
            operator,
            http,
            faults,
        }
    }

    /// A ready cluster with one Index of each replication type, `documents` and `segments`.
    pub async fn with_indices(prefix: &str) -> Self {
        let flow = Self::start(prefix).await;
        flow.apply(CLUSTER);
        flow.apply(&index("documents", "Document", "Retain"));
        flow.apply(&index("segments", "Segment", "Retain"));
        flow.cluster_is("Ready", "True").await;
        flow.index_is("documents", "Ready", "True").await;
        flow.index_is("segments", "Ready", "True").await;
        flow
    }

    pub fn kubectl(&self, args: &[&str]) -> Result<String, String> {
        let args = [args, &["-n", &self.scope.name]].concat();
        self.bed.kubectl(&args, None).unwrap()
    }

    pub fn apply(&self, manifest: &str) {
        self.bed
            .kubectl(&["apply", "-n", &self.scope.name, "-f", "-"], Some(manifest))
            .unwrap()
            .unwrap();
    }

    /// Changes the cluster's image, as a user does.
    pub fn set_image(&self, image: &str) {
        let patch = format!("{{\"spec\":{{\"image\":\"{image}\"}}}}");
        self.kubectl(&["patch", "indexcluster/search", "--type=merge", "-p", &patch])
            .unwrap();
    }

    /// Waits for a condition of the cluster, for the generation that is declared now.
    pub async fn cluster_is(&self, kind: &str, status: &str) -> IndexCluster {
        let clusters = self.scope.api::<IndexCluster>();
        eventually(LIMIT, &format!("IndexCluster is {kind}={status}"), || async {
            let cluster = clusters.get("search").await?;
            let conditions = cluster
                .status
                .as_ref()
                .map(|status| status.conditions.clone())
                .unwrap_or_default();
            holds(&conditions, kind, status, cluster.metadata.generation)?;
            Ok(cluster)
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.story()))
    }

    /// Waits for a condition of an Index.
    pub async fn index_is(&self, name: &str, kind: &str, status: &str) -> Index {
        let indices = self.scope.api::<Index>();
        eventually(LIMIT, &format!("Index {name} is {kind}={status}"), || async {
            let index = indices.get(name).await?;
            let conditions = index
                .status
                .as_ref()
                .map(|status| status.conditions.clone())
                .unwrap_or_default();
            holds(&conditions, kind, status, index.metadata.generation)?;
            Ok(index)
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.story()))
    }

    /// Waits until the REST API itself says green, and the operator says Ready.
    pub async fn green(&self) -> Duration {
        let started = std::time::Instant::now();
        eventually(LIMIT, "health is green", || async {
            let health = self.get("/_cluster/health").await?;
            ensure!(
                health["status"] == "green" && health["number_of_nodes"] == 3,
                "{health}"
            );
            Ok(())
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.story()));
        self.cluster_is("Ready", "True").await;
        started.elapsed()
    }

    /// What a person would look at after a failure.
    pub fn story(&self) -> String {
        let objects = self
            .kubectl(&["get", "ixc,ix,pods,pvc", "-o", "wide"])
            .unwrap_or_else(|error| error);
        let status = self
            .kubectl(&["get", "ixc", "-o", "jsonpath={.items[*].status}"])
            .unwrap_or_else(|error| error);
        let operator = self.log(&self.operator.name, "operator");
        let nodes = PODS
            .map(|pod| {
                format!(
                    "--- {pod}\n{}",
                    tail(&self.bed.kubelet.log(&self.scope.name, pod), 12)
                )
            })
            .join("\n");
        format!("{objects}\n{status}\n--- operator\n{operator}\n{nodes}")
    }

    fn log(&self, namespace: &str, prefix: &str) -> String {
        let folder = self.bed.folder().join("pods").join(namespace);
        let logs = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let wanted = |path: &PathBuf| {
            path.extension().is_some_and(|end| end == "log")
                && path
                    .file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        };
        logs.filter(wanted)
            .map(|path| tail(&path, 25))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// REST addresses of the pods that have one.
    pub fn addresses(&self) -> Vec<String> {
        let addresses = PODS
            .iter()
            .filter_map(|pod| self.bed.kubelet.address(&self.scope.name, pod));
        addresses
            .map(|address| format!("http://{address}:9200"))
            .collect()
    }

    /// GET from the first node that answers with success.
    pub async fn get(&self, path: &str) -> Result<Value> {
        self.call(reqwest::Method::GET, path, None).await
    }

    /// A call to the first node that answers with success.
    pub async fn call(&self, method: reqwest::Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let mut last = anyhow::anyhow!("no pod has an address");
        for address in self.addresses() {
            let mut request = self.http.request(method.clone(), format!("{address}{path}"));
            if let Some(body) = body {
                request = request.json(body);
            }
            match request.send().await {
                Ok(answer) if answer.status().is_success() => return Ok(answer.json().await?),
                Ok(answer) => last = anyhow::anyhow!("{} {}", answer.status(), answer.text().await?),
                Err(error) => last = error.into(),
            }
        }
        Err(last.context(path.to_owned()))
    }

    /// Documents of each copy, asked copy by copy: (shard, is primary, node, documents), sorted.
    pub async fn copies(&self, index: &str) -> Result<Vec<(String, bool, String, u64)>> {
        self.call(reqwest::Method::POST, &format!("/{index}/_refresh"), None)
            .await?;
        let rows = self.get(&format!("/_cat/shards/{index}?format=json")).await?;
        let mut copies = Vec::new();
        for row in rows.as_array().context("rows")? {
            let text = |key: &str| {
                row[key]
                    .as_str()
                    .map(ToOwned::to_owned)
                    .with_context(|| format!("{key} of {row}"))
            };
            ensure!(row["state"] == "STARTED", "{row}");
            copies.push((
                text("shard")?,
                text("prirep")? == "p",
                text("node")?,
                text("docs")?.parse()?,
            ));
        }
        copies.sort();
        Ok(copies)
    }

    /// Waits until every copy of each shard counts the same, and answers the sum over primaries.
    pub async fn equal_copies(&self, index: &str) -> u64 {
        eventually(LIMIT, "all copies count the same", || async {
            let copies = self.copies(index).await?;
            ensure!(copies.len() == 6, "{copies:?}");
            for pair in copies.chunks(2) {
                ensure!(pair[0].0 == pair[1].0 && pair[0].3 == pair[1].3, "{pair:?}");
            }
            Ok(copies.iter().filter(|copy| copy.1).map(|copy| copy.3).sum())
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.story()))
    }

    /// Name of the node that leads the Raft group.
    pub async fn leader(&self) -> String {
        let rows = self.get("/_cat/nodes?format=json").await.unwrap();
        let leads = |row: &&Value| row["cluster_manager"] == "*" || row["master"] == "*";
        let row = rows
            .as_array()
            .unwrap()
            .iter()
            .find(leads)
            .unwrap_or_else(|| panic!("nobody leads: {rows}"));
        row["name"].as_str().unwrap().to_owned()
    }

    pub async fn pod(&self, name: &str) -> Pod {
        self.scope.api::<Pod>().get(name).await.unwrap()
    }

    /// Waits for a pod of this name that is not `old`, and has started.
    pub async fn successor(&self, old: &Pod) -> Pod {
        let pods = self.scope.api::<Pod>();
        eventually(LIMIT, "a new pod of the same name is ready", || async {
            let pod = pods.get(&old.name_any()).await?;
            ensure!(pod.uid() != old.uid(), "the old pod is there");
            let ready = pod
                .status
                .iter()
                .flat_map(|status| status.conditions.iter().flatten())
                .any(|c| c.type_ == "Ready" && c.status == "True");
            ensure!(ready, "{:?}", pod.status);
            Ok(pod)
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.story()))
    }

    /// Kills the operator's process (-9). Answers false where none runs at the moment.
    pub async fn kill_operator(&self) -> bool {
        let pods = self
            .operator
            .api::<Pod>()
            .list(&ListParams::default())
            .await
            .unwrap();
        let killed = pods.iter().filter(|pod| {
            self.bed
                .kubelet
                .signal(&self.operator.name, &pod.name_any(), Signal::KILL)
                .is_ok()
        });
        killed.count() > 0
    }

    /// The operator's process ends at these points from now on: `once POINT` or `always POINT`.
    pub fn set_faults(&self, points: &[String]) {
        // Replaced in one step: the operator reads and rewrites the file too.
        let new = self.faults.with_extension("new");
        std::fs::write(&new, points.join("\n")).unwrap();
        std::fs::rename(&new, &self.faults).unwrap();
    }

    /// Points at which the operator's process has ended so far, in order.
    pub fn faults_met(&self) -> Vec<String> {
        let met = std::fs::read_to_string(self.faults.with_extension("met")).unwrap_or_default();
        met.lines().map(ToOwned::to_owned).collect()
    }

    /// Waits until the operator's process has ended at each of these points.
    pub async fn met(&self, points: &[&str]) {
        eventually(LIMIT, &format!("the operator ends at {points:?}"), || async {
            let met = self.faults_met();
            let missing: Vec<_> = points
                .iter()
                .filter(|point| !met.iter().any(|met| met == *point))
                .collect();
            ensure!(missing.is_empty(), "not at {missing:?}");
            Ok(())
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.story()));
    }

    /// Bytes of index files that the nodes' present processes fetched from other nodes, as their logs tell.
    pub fn fetched_bytes(&self) -> u64 {
        let mut sum = 0;
        for pod in PODS {
            let log = std::fs::read_to_string(self.bed.kubelet.log(&self.scope.name, pod)).unwrap();
            assert!(!log.is_empty(), "{pod} has no log");
            for line in log
                .lines()
                .filter(|line| line.contains("files of the primary are here"))
            {
                let line: Value = serde_json::from_str(line).expect("a log line is JSON");
                sum += line["fields"]["bytes"].as_u64().expect("bytes");
            }
        }
        sum
    }

    pub async fn uninstall(&self) {
        self.bed
            .helm(&["uninstall", "operator", "--namespace", &self.operator.name])
            .unwrap()
            .unwrap();
        let pods = self.operator.api::<Pod>();
        eventually(LIMIT, "the operator is gone", || async {
            ensure!(pods.list(&ListParams::default()).await?.items.is_empty());
            Ok(())
        })
        .await
        .unwrap();
    }
}

fn holds(conditions: &[Condition], kind: &str, status: &str, generation: Option<i64>) -> Result<()> {
    let Some(condition) = conditions.iter().find(|condition| condition.type_ == kind) else {
        bail!("no condition {kind}: {conditions:?}")
    };
    ensure!(
        condition.observed_generation == generation,
        "{condition:?} is not of generation {generation:?}"
    );
    ensure!(
        condition.status == status,
        "{}: {}: {}",
        condition.status,
        condition.reason,
        condition.message
    );
    Ok(())
}

fn tail(log: &Path, lines: usize) -> String {
    segmentry_testbed::daemon::tail(log, lines)
}

pub fn repository() -> PathBuf {
    segmentry_testbed::repository()
}
