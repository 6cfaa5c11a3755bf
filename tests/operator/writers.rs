//! Writers that run through faults and remember every id that was acknowledged.

use super::flow::Flow;
use segmentry_testbed::eventually;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

pub struct Writers {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
    tasks: JoinSet<BTreeSet<String>>,
    index: String,
}

impl Writers {
    /// Two writers, each with one bulk of 20 documents in flight, over all nodes in turn.
    pub fn start(flow: &Arc<Flow>, index: &str) -> Self {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for writer in 0..2 {
            tasks.spawn(write(
                flow.clone(),
                index.to_owned(),
                writer,
                stop.clone(),
                acknowledged.clone(),
            ));
        }
        Self {
            stop,
            acknowledged,
            tasks,
            index: index.to_owned(),
        }
    }

    /// Waits until more documents are acknowledged: writes go on.
    pub async fn go_on(&self, flow: &Flow) {
        let target = self.acknowledged.load(Ordering::Relaxed) + 100;
        eventually(super::flow::LIMIT, "writes are acknowledged", || async {
            let now = self.acknowledged.load(Ordering::Relaxed);
            anyhow::ensure!(now >= target, "{now} of {target}");
            Ok(())
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", flow.story()));
    }

    /// Stops; every acknowledged id is on the primaries and on the replicas, and no document is there that nobody sent.
    pub async fn assert_kept(mut self, flow: &Flow) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let mut ids = BTreeSet::new();
        while let Some(written) = self.tasks.join_next().await {
            ids.extend(written.expect("a writer failed"));
        }
        assert!(!ids.is_empty(), "nothing was acknowledged");
        flow.equal_copies(&self.index).await;
        for preference in ["_primary", "_replica"] {
            let mut missing = ids.clone();
            for chunk in ids.iter().collect::<Vec<_>>().chunks(1000) {
                let path = format!("/{}/_search?preference={preference}", self.index);
                let body =
                    json!({"size": chunk.len(), "_source": false, "query": {"ids": {"values": chunk}}});
                let answer = flow
                    .call(reqwest::Method::POST, &path, Some(&body))
                    .await
                    .unwrap();
                assert_eq!(answer["_shards"]["failed"], 0, "{}", answer["_shards"]);
                for hit in answer["hits"]["hits"].as_array().expect("hits") {
                    missing.remove(hit["_id"].as_str().expect("_id"));
                }
            }
            let some: Vec<_> = missing.iter().take(5).collect();
            assert!(
                missing.is_empty(),
                "{} of {} acknowledged are gone on {preference}: {some:?}\n{}",
                missing.len(),
                ids.len(),
                flow.story()
            );
        }
        ids.len()
    }
}

async fn write(
    flow: Arc<Flow>,
    index: String,
    writer: usize,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
) -> BTreeSet<String> {
    let mut acknowledged = BTreeSet::new();
    let mut round = 0_usize;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let ids: Vec<String> = (0..20)
            .map(|document| format!("w{writer}-{round}-{document}"))
            .collect();
        let lines = ids.iter().map(|id| {
            format!(
                "{}\n{}\n",
                json!({"create": {"_id": id}}),
                json!({"writer": writer, "round": round})
            )
        });
        let addresses = flow.addresses();
        let answer = match addresses.get((writer + round) % addresses.len().max(1)) {
            Some(address) => {
                let request = flow
                    .http
                    .post(format!("{address}/{index}/_bulk"))
                    .header("content-type", "application/x-ndjson");
                let sent = request.body(lines.collect::<String>()).send().await;
                match sent {
                    Ok(answer) if answer.status().is_success() => answer.json::<Value>().await.ok(),
                    _ => None,
                }
            }
            None => None,
        };
        // Of an unknown outcome nothing is claimed, and it is never sent again.
        let Some(answer) = answer else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let items = answer["items"].as_array().expect("items");
        for (id, item) in ids.iter().zip(items) {
            if item["create"]["status"] == 201 {
                acknowledged.insert(id.clone());
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    acknowledged
}
