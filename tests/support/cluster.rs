//! Node processes on loopback, formed through the admin API as the operator does it.

use super::wait_for;
use serde_json::{Value, json};
use std::{
    fs::File,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// One node: its address and folder outlive its process.
pub struct Node {
    pub name: String,
    pub rest: String,
    pub transport: String,
    pub data: PathBuf,
    process: Option<Child>,
    starts: u32,
}

/// Some nodes with one token.
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub http: reqwest::Client,
    directory: tempfile::TempDir,
    token: String,
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string()
}

impl Cluster {
    /// Starts and forms a cluster; returns once every node has joined.
    pub async fn start(size: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let token = "a-token-of-this-test-only-0123456789".to_owned();
        std::fs::write(directory.path().join("token"), &token).unwrap();
        let nodes = (0..size)
            .map(|n| Node {
                name: format!("node-{n}"),
                rest: free_address(),
                transport: free_address(),
                data: directory.path().join(format!("node-{n}")),
                process: None,
                starts: 0,
            })
            .collect();
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(70))
            .build()
            .unwrap();
        let mut cluster = Self {
            nodes,
            http,
            directory,
            token,
        };
        for n in 0..size {
            cluster.start_node(n);
        }
        cluster.form().await;
        cluster
    }

    async fn form(&self) {
        let mut members = Vec::new();
        for node in &self.nodes {
            let status = wait_for("a node's status", Duration::from_secs(20), || {
                self.admin_get(node, "node")
            })
            .await;
            members.push(
                json!({"node_id": status["node_id"], "name": node.name, "address": node.transport,
                "disk_id": null}),
            );
        }
        let uuid = uuid::Uuid::new_v4().to_string();
        let body = json!({"cluster_uuid": uuid, "cluster_name": "test", "members": members});
        let url = format!("http://{}/_admin/initialise", self.nodes[0].transport);
        let call = self
            .http
            .post(url)
            .bearer_auth(&self.token)
            .header("x-segmentry-epoch", "1")
            .json(&body);
        let answer = call.send().await.unwrap();
        assert!(
            answer.status().is_success(),
            "initialise: {}",
            answer.text().await.unwrap()
        );
        self.wait_nodes(self.nodes.len()).await;
    }

    async fn admin_get(&self, node: &Node, path: &str) -> Result<Value, String> {
        let url = format!("http://{}/_admin/{path}", node.transport);
        let answer = self
            .http
            .get(url)
            .bearer_auth(&self.token)
            .send()
            .await
            .map_err(|e| e.to_string())?;
        let (status, text) = (answer.status(), answer.text().await.map_err(|e| e.to_string())?);
        if !status.is_success() {
            return Err(format!("{status} {text}"));
        }
        serde_json::from_str(&text).map_err(|e| e.to_string())
    }

    /// The overview as the operator reads it, from any node that answers.
    pub async fn overview(&self) -> Value {
        wait_for("an overview", Duration::from_secs(30), || async {
            let mut last = String::new();
            for node in &self.nodes {
                match self.admin_get(node, "overview").await {
                    Ok(overview) => return Ok(overview),
                    Err(error) => last = error,
                }
            }
            Err(last)
        })
        .await
    }

    /// Starts a node's process on its old folder and addresses.
    pub fn start_node(&mut self, n: usize) {
        let token_file = self.directory.path().join("token");
        let node = &mut self.nodes[n];
        assert!(node.process.is_none(), "{} runs already", node.name);
        node.starts += 1;
        let log = File::create(
            self.directory
                .path()
                .join(format!("{}.{}.log", node.name, node.starts)),
        )
        .unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_segmentry"))
            .args([
                "node",
                "--name",
                &node.name,
                "--rest",
                &node.rest,
                "--transport",
                &node.transport,
            ])
            .args(["--advertise", &node.transport, "--cluster-name", "test"])
            .arg("--data")
            .arg(&node.data)
            .arg("--token-file")
            .arg(token_file)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        node.process = Some(process);
    }

    /// The process id of a running node.
    pub fn pid(&self, n: usize) -> u32 {
        self.nodes[n].process.as_ref().expect("runs").id()
    }

    /// SIGKILL.
    pub fn kill(&mut self, n: usize) {
        let mut process = self.nodes[n].process.take().expect("runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// SIGKILL to all before the first is waited for.
    pub fn kill_all(&mut self) {
        for node in &mut self.nodes {
            node.process.as_mut().expect("runs").kill().unwrap();
        }
        for node in &mut self.nodes {
            node.process.take().expect("runs").wait().unwrap();
        }
    }

    /// SIGTERM, and the exit within its grace.
    pub async fn stop(&mut self, n: usize) {
        let pid = i32::try_from(self.pid(n)).unwrap();
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid).unwrap(),
            rustix::process::Signal::TERM,
        )
        .unwrap();
        let mut process = self.nodes[n].process.take().expect("runs");
        let deadline = Instant::now() + Duration::from_secs(30);
        let status = loop {
            if let Some(status) = process.try_wait().unwrap() {
                break status;
            }
            assert!(
                Instant::now() < deadline,
                "{} did not end after SIGTERM",
                self.nodes[n].name
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!(
            status.success(),
            "{} ended with {status}: {}",
            self.nodes[n].name,
            self.log_tail(n)
        );
    }

    /// The disk of a stopped node is gone.
    pub fn lose_volume(&mut self, n: usize) {
        assert!(self.nodes[n].process.is_none());
        std::fs::remove_dir_all(&self.nodes[n].data).unwrap();
    }

    /// Last lines of a node's newest log.
    pub fn log_tail(&self, n: usize) -> String {
        let node = &self.nodes[n];
        let path = self
            .directory
            .path()
            .join(format!("{}.{}.log", node.name, node.starts));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Number of the node with this name.
    pub fn number(&self, name: &str) -> usize {
        self.nodes
            .iter()
            .position(|node| node.name == name)
            .expect("a node of this cluster")
    }

    /// REST call; panics on a status outside 2xx.
    pub async fn call(&self, n: usize, method: &str, path: &str, body: Option<Value>) -> Value {
        let (status, value) = self.try_call(n, method, path, body).await.unwrap();
        assert!((200..300).contains(&status), "{method} {path}: {status} {value}");
        value
    }

    /// REST call with its status, or the connection's error.
    pub async fn try_call(
        &self,
        n: usize,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Result<(u16, Value), String> {
        let url = format!("http://{}{path}", self.nodes[n].rest);
        let mut call = self.http.request(method.parse().unwrap(), url);
        if let Some(body) = body {
            call = call.json(&body);
        }
        let answer = call.send().await.map_err(|e| e.to_string())?;
        let status = answer.status().as_u16();
        let text = answer.text().await.map_err(|e| e.to_string())?;
        Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    /// Waits until `status` is what any running node answers; returns how long that took.
    pub async fn wait_health(&self, status: &str, within: Duration) -> Duration {
        let began = Instant::now();
        wait_for(&format!("health {status}"), within, || async {
            let mut last = String::from("no node runs");
            for n in (0..self.nodes.len()).filter(|n| self.nodes[*n].process.is_some()) {
                match self.try_call(n, "GET", "/_cluster/health", None).await {
                    Ok((200, health)) if health["status"] == status => return Ok(()),
                    other => last = format!("{other:?}"),
                }
            }
            Err(last)
        })
        .await;
        began.elapsed()
    }

    async fn wait_nodes(&self, count: usize) {
        for n in 0..count {
            wait_for("all nodes joined", Duration::from_secs(30), || async {
                match self.try_call(n, "GET", "/_cluster/health", None).await {
                    Ok((200, health)) if health["number_of_nodes"] == count => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        }
    }

    /// Folder of this cluster's files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if let Some(process) = &mut node.process {
                // the test is over; a process that is gone already is fine
                let _ = process.kill();
                let _ = process.wait();
            }
        }
        if std::thread::panicking() {
            for n in 0..self.nodes.len() {
                eprintln!("--- {}\n{}", self.nodes[n].name, self.log_tail(n));
            }
        }
    }
}
