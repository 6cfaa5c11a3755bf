//! Writers under load that keep the ids of acknowledged documents, and the comparison with what the cluster holds.

use super::cluster::Cluster;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// Writers that run until they are stopped.
pub struct Writers {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<BTreeSet<String>>>,
    sent: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Writers {
    /// `count` writers, each with one bulk of `documents` in flight, over all nodes in turn.
    pub fn start(cluster: &Cluster, index: &str, count: usize, documents: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(Mutex::new(BTreeSet::new()));
        let sent = Arc::new(AtomicU64::new(0));
        let urls: Vec<String> = cluster
            .nodes
            .iter()
            .map(|node| format!("http://{}/{index}/_bulk", node.rest))
            .collect();
        let tasks = (0..count)
            .map(|writer| {
                let (stop, acknowledged, sent, urls) =
                    (stop.clone(), acknowledged.clone(), sent.clone(), urls.clone());
                tokio::spawn(async move {
                    let http = reqwest::Client::builder()
                        .timeout(Duration::from_secs(70))
                        .build()
                        .unwrap();
                    let mut round = 0usize;
                    while !stop.load(Ordering::Relaxed) {
                        let ids: Vec<String> =
                            (0..documents).map(|d| format!("w{writer}-{round}-{d}")).collect();
                        let body = ids.iter().fold(String::new(), |body, id| {
                            let action = json!({"create": {"_id": id}});
                            let text = format!("text of {id}");
                            let document = json!({"id": id, "writer": writer, "round": round, "text": text});
                            body + &format!("{action}\n{document}\n")
                        });
                        sent.fetch_add(ids.len() as u64, Ordering::Relaxed);
                        let url = &urls[(writer + round) % urls.len()];
                        let call = http
                            .post(url)
                            .header("content-type", "application/x-ndjson")
                            .body(body);
                        let answer = match call.send().await {
                            Ok(answer) if answer.status().is_success() => answer.json::<Value>().await.ok(),
                            _ => None,
                        };
                        match answer {
                            Some(answer) => {
                                let items = answer["items"].as_array().expect("items");
                                assert_eq!(items.len(), ids.len(), "an item for each document");
                                let mut acknowledged = acknowledged.lock().unwrap();
                                for (id, item) in ids.iter().zip(items) {
                                    assert_eq!(item["create"]["_id"], *id, "items in order");
                                    if item["create"]["status"] == 201 {
                                        acknowledged.insert(id.clone());
                                    }
                                }
                            }
                            // outcome unknown: never sent again, and nothing is claimed of it
                            None => tokio::time::sleep(Duration::from_millis(50)).await,
                        }
                        round += 1;
                    }
                })
            })
            .collect();
        Self {
            stop,
            acknowledged,
            sent,
            tasks,
        }
    }

    /// Acknowledged so far.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// Waits until `more` documents were acknowledged from now on: writes flow.
    pub async fn flow(&self, more: usize, within: Duration) {
        let target = self.acknowledged() + more;
        super::wait_for("acknowledged writes", within, || async {
            let now = self.acknowledged();
            if now >= target {
                Ok(())
            } else {
                Err(format!("{now} of {target}"))
            }
        })
        .await;
    }

    /// Ends the writers; the ids that were acknowledged.
    pub async fn finish(self) -> BTreeSet<String> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("a writer failed");
        }
        let ids = std::mem::take(&mut *self.acknowledged.lock().unwrap());
        eprintln!(
            "{} documents sent, {} acknowledged",
            self.sent.load(Ordering::Relaxed),
            ids.len()
        );
        ids
    }
}

/// Which of `ids` a search does not find; `preference` picks the copies that are asked.
pub async fn missing(
    cluster: &Cluster,
    n: usize,
    index: &str,
    ids: &BTreeSet<String>,
    preference: Option<&str>,
) -> BTreeSet<String> {
    let path = match preference {
        Some(preference) => format!("/{index}/_search?preference={preference}"),
        None => format!("/{index}/_search"),
    };
    let all: Vec<&String> = ids.iter().collect();
    let mut missing = ids.clone();
    for chunk in all.chunks(1000) {
        let body = json!({"size": chunk.len(), "_source": false, "query": {"ids": {"values": chunk}}});
        let answer = cluster.call(n, "POST", &path, Some(body)).await;
        assert_eq!(answer["_shards"]["failed"], 0, "{}", answer["_shards"]);
        for hit in answer["hits"]["hits"].as_array().expect("hits") {
            missing.remove(hit["_id"].as_str().expect("_id"));
        }
    }
    missing
}

/// Every acknowledged id is found, on the primaries and on the replicas.
pub async fn assert_all_there(cluster: &Cluster, n: usize, index: &str, ids: &BTreeSet<String>) {
    super::wait_for("a refresh of every copy", Duration::from_secs(30), || async {
        let answer = cluster.call(n, "POST", &format!("/{index}/_refresh"), None).await;
        let shards = &answer["_shards"];
        if shards["failed"] == 0 && shards["successful"] == shards["total"] {
            Ok(())
        } else {
            Err(answer.to_string())
        }
    })
    .await;
    for preference in ["_primary", "_replica"] {
        let gone = missing(cluster, n, index, ids, Some(preference)).await;
        let some: Vec<&String> = gone.iter().take(5).collect();
        assert!(
            gone.is_empty(),
            "{} of {} acknowledged are gone on {preference}: {some:?}",
            gone.len(),
            ids.len()
        );
    }
}
