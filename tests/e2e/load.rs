//! One writer through the Service that runs through faults and remembers every id that was acknowledged.

use super::cluster::{LIMIT, Product};
use segmentry_testbed::eventually;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<BTreeSet<String>>>,
    task: tokio::task::JoinHandle<()>,
    index: String,
}

impl Load {
    pub fn start(product: &Product, index: &str) -> Self {
        let (stop, acknowledged) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(Mutex::new(BTreeSet::new())),
        );
        let url = format!("{}/{index}/_bulk", product.service());
        let task = tokio::spawn(write(url, stop.clone(), acknowledged.clone()));
        Self {
            stop,
            acknowledged,
            task,
            index: index.to_owned(),
        }
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// Waits until more documents are acknowledged: writes go on.
    pub async fn go_on(&self) {
        let target = self.count() + 100;
        eventually(LIMIT, "writes are acknowledged", || async {
            anyhow::ensure!(self.count() >= target, "{} of {target}", self.count());
            Ok(())
        })
        .await
        .unwrap();
    }

    /// Stops; every acknowledged id is on the primaries and on the replicas.
    pub async fn assert_kept(self, product: &Product) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("the writer failed");
        let ids = std::mem::take(&mut *self.acknowledged.lock().unwrap());
        product
            .call(reqwest::Method::POST, &format!("/{}/_refresh", self.index), None)
            .await
            .unwrap();
        for preference in ["_primary", "_replica"] {
            let mut missing = ids.clone();
            for chunk in ids.iter().collect::<Vec<_>>().chunks(1000) {
                let path = format!("/{}/_search?preference={preference}", self.index);
                let body =
                    json!({"size": chunk.len(), "_source": false, "query": {"ids": {"values": chunk}}});
                let answer = product
                    .call(reqwest::Method::POST, &path, Some(&body))
                    .await
                    .unwrap();
                assert_eq!(answer["_shards"]["failed"], 0, "{}", answer["_shards"]);
                for hit in answer["hits"]["hits"].as_array().expect("hits") {
                    missing.remove(hit["_id"].as_str().expect("_id"));
                }
            }
            assert!(
                missing.is_empty(),
                "{} of {} acknowledged are gone on {preference}",
                missing.len(),
                ids.len()
            );
        }
        println!("{} acknowledged documents kept", ids.len());
    }
}

async fn write(url: String, stop: Arc<AtomicBool>, acknowledged: Arc<Mutex<BTreeSet<String>>>) {
    // A connection of its own for each request, so that the Service chooses a node anew.
    let http = reqwest::Client::builder()
        .timeout(Duration::from_secs(70))
        .pool_max_idle_per_host(0)
        .build()
        .unwrap();
    let mut round = 0_usize;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let ids: Vec<String> = (0..20).map(|document| format!("{round}-{document}")).collect();
        let lines: String = ids
            .iter()
            .map(|id| {
                format!(
                    "{}\n{}\n",
                    json!({"create": {"_id": id}}),
                    json!({"round": round})
                )
            })
            .collect();
        let sent = http
            .post(&url)
            .header("content-type", "application/x-ndjson")
            .body(lines)
            .send()
            .await;
        let answer = match sent {
            Ok(answer) if answer.status().is_success() => answer.json::<Value>().await.ok(),
            _ => None,
        };
        // Of an unknown outcome nothing is claimed, and it is never sent again.
        let Some(answer) = answer else {
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        };
        let items = answer["items"].as_array().expect("items");
        let mut acknowledged = acknowledged.lock().unwrap();
        for (id, item) in ids.iter().zip(items) {
            if item["create"]["status"] == 201 {
                acknowledged.insert(id.clone());
            }
        }
    }
}
