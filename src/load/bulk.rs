//! Sends one batch until each of its documents is loaded or refused for good.

use super::source::{Batch, Item};
use anyhow::{Context as _, bail};
use serde::Deserialize;
use std::time::{Duration, Instant};

/// One call's deadline: above the servers' own minute for a write.
const CALL_TIMEOUT: Duration = Duration::from_secs(90);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Where bulk requests go.
#[derive(Clone)]
pub struct Endpoint {
    client: reqwest::Client,
    url: String,
    give_up_after: Duration,
}

/// What became of one batch.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Documents that are in the index.
    pub loaded: u64,
    /// Line number and reason of those that are not.
    pub failures: Vec<(u64, String)>,
    /// Documents that were sent more than once.
    pub retried: u64,
    /// Bytes of documents and action lines, without retries.
    pub bytes: u64,
}

#[derive(Deserialize)]
struct Answer {
    items: Vec<std::collections::BTreeMap<String, ItemAnswer>>,
}

#[derive(Deserialize)]
struct ItemAnswer {
    status: u16,
    error: Option<ItemError>,
}

#[derive(Deserialize)]
struct ItemError {
    #[serde(rename = "type")]
    kind: String,
    reason: Option<String>,
}

/// Statuses that ask for patience: over a limit, or no primary for the moment.
fn worth_a_retry(status: u16) -> bool {
    matches!(status, 429 | 502 | 503 | 504)
}

impl Endpoint {
    /// `url` is the address of a node, `index` a name that goes into the path.
    pub fn new(url: &str, index: &str, give_up_after: Duration) -> anyhow::Result<Self> {
        let plain = !index.is_empty() && !index.contains(['/', '?', '#', '%', ' ']);
        if !plain {
            bail!("[{index}] is no index name");
        }
        let url = format!("{}/{index}/_bulk", url.trim_end_matches('/'));
        reqwest::Url::parse(&url).with_context(|| format!("[{url}] is no address"))?;
        let client = reqwest::Client::builder()
            .timeout(CALL_TIMEOUT)
            .build()
            .context("no HTTP client")?;
        Ok(Self {
            client,
            url,
            give_up_after,
        })
    }

    /// Sends what is left of the batch until nothing is left. A 409 on a document of this run means that an earlier try with
    /// an unknown outcome had succeeded.
    pub async fn send(&self, batch: Batch) -> anyhow::Result<Outcome> {
        let mut outcome = Outcome {
            failures: batch.refused,
            ..Outcome::default()
        };
        outcome.bytes = batch.items.iter().map(|item| item.body.len() as u64).sum();
        let mut left = batch.items;
        let (mut pause, mut unknown_before) = (FIRST_PAUSE, false);
        let began = Instant::now();
        while !left.is_empty() {
            let last_reason = match self.call(&left).await {
                Ok(items) => {
                    let mut again = Vec::new();
                    let mut reason = String::new();
                    for (item, answer) in left.into_iter().zip(items) {
                        match answer.status {
                            200..=299 => outcome.loaded += 1,
                            409 if unknown_before => outcome.loaded += 1,
                            status if worth_a_retry(status) => {
                                reason = describe(&answer);
                                again.push(item);
                            }
                            _ => outcome.failures.push((item.line, describe(&answer))),
                        }
                    }
                    left = again;
                    reason
                }
                Err(Fault::Again {
                    reason,
                    outcome_unknown,
                }) => {
                    unknown_before |= outcome_unknown;
                    reason
                }
                Err(Fault::Fatal(error)) => return Err(error),
            };
            if left.is_empty() {
                break;
            }
            outcome.retried += left.len() as u64;
            if began.elapsed() >= self.give_up_after {
                bail!(
                    "gave up after {} s of retries: {last_reason}",
                    self.give_up_after.as_secs()
                );
            }
            tokio::time::sleep(pause.mul_f64(0.75 + rand::random::<f64>() / 2.0)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(outcome)
    }

    async fn call(&self, items: &[Item]) -> Result<Vec<ItemAnswer>, Fault> {
        let body: Vec<u8> = items.iter().flat_map(|item| item.body.iter().copied()).collect();
        let call = self
            .client
            .post(&self.url)
            .header("content-type", "application/x-ndjson")
            .body(body);
        let response = call.send().await.map_err(|error| Fault::Again {
            // a refused connection did nothing; anything later may have been carried out
            outcome_unknown: !error.is_connect(),
            reason: error_chain(&error),
        })?;
        let status = response.status().as_u16();
        let text = response.bytes().await.map_err(|error| Fault::Again {
            outcome_unknown: true,
            reason: error_chain(&error),
        })?;
        if worth_a_retry(status) {
            return Err(Fault::Again {
                outcome_unknown: status != 429,
                reason: shorten(&text),
            });
        }
        if !(200..300).contains(&status) {
            return Err(Fault::Fatal(anyhow::anyhow!(
                "{} answered {status}: {}",
                self.url,
                shorten(&text)
            )));
        }
        let answer: Answer = serde_json::from_slice(&text)
            .map_err(|error| Fault::Fatal(anyhow::anyhow!("unreadable bulk answer: {error}")))?;
        let answers: Vec<ItemAnswer> = answer
            .items
            .into_iter()
            .filter_map(|item| item.into_values().next())
            .collect();
        if answers.len() != items.len() {
            let (sent, got) = (items.len(), answers.len());
            return Err(Fault::Fatal(anyhow::anyhow!(
                "{sent} documents were sent, {got} were answered"
            )));
        }
        Ok(answers)
    }
}

enum Fault {
    Again { reason: String, outcome_unknown: bool },
    Fatal(anyhow::Error),
}

fn describe(answer: &ItemAnswer) -> String {
    match &answer.error {
        Some(error) => format!(
            "{} {}: {}",
            answer.status,
            error.kind,
            error.reason.as_deref().unwrap_or("")
        ),
        None => answer.status.to_string(),
    }
}

fn shorten(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().take(400).collect()
}

/// reqwest's own text names only the outermost error.
fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
    use super::*;
    use axum::{Router, extract::State, http::StatusCode, routing::post};
    use std::sync::{Arc, Mutex};

    /// A server that answers from a script and keeps what it was sent.
    #[derive(Clone)]
    struct Script(Arc<Mutex<Conversation>>);

    /// Answers to give, last first, and bodies that were sent.
    type Conversation = (Vec<(u16, String)>, Vec<String>);

    async fn serve(answers: &[(u16, &str)]) -> (Endpoint, Script) {
        let answers = answers
            .iter()
            .rev()
            .map(|(status, text)| (*status, (*text).to_owned()))
            .collect();
        let script = Script(Arc::new(Mutex::new((answers, Vec::new()))));
        let router = Router::new()
            .route(
                "/i/_bulk",
                post(|State(script): State<Script>, body: String| async move {
                    let mut script = script.0.lock().unwrap();
                    script.1.push(body);
                    let (status, text) = script.0.pop().unwrap();
                    (StatusCode::from_u16(status).unwrap(), text)
                }),
            )
            .with_state(script.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (Endpoint::new(&url, "i", Duration::from_secs(20)).unwrap(), script)
    }

    fn batch(lines: &[u64]) -> Batch {
        let items = lines
            .iter()
            .map(|line| Item {
                line: *line,
                body: format!("{line}\n").into_bytes(),
            })
            .collect();
        Batch {
            items,
            refused: vec![],
            position: 0,
        }
    }

    #[tokio::test]
    async fn only_the_rejected_documents_are_sent_again() {
        let (endpoint, script) = serve(&[
            (200, r#"{"items":[{"create":{"status":201}},{"create":{"status":429,"error":{"type":"r","reason":"x"}}}]}"#),
            (429, "busy"),
            (200, r#"{"items":[{"create":{"status":201}}]}"#),
        ])
        .await;
        let outcome = endpoint.send(batch(&[1, 2])).await.unwrap();
        assert_eq!(
            (outcome.loaded, outcome.retried, outcome.failures.len()),
            (2, 2, 0)
        );
        assert_eq!(script.0.lock().unwrap().1, ["1\n2\n", "2\n", "2\n"]);
    }

    #[tokio::test]
    async fn a_conflict_counts_as_loaded_only_after_an_unknown_outcome() {
        let conflict = r#"{"items":[{"create":{"status":409,"error":{"type":"v","reason":"there"}}}]}"#;
        let (endpoint, _) = serve(&[(503, "restarting"), (200, conflict)]).await;
        assert_eq!(endpoint.send(batch(&[1])).await.unwrap().loaded, 1);
        let (endpoint, _) = serve(&[(200, conflict)]).await;
        let outcome = endpoint.send(batch(&[1])).await.unwrap();
        assert_eq!(outcome.failures, [(1, "409 v: there".to_owned())]);
    }

    #[tokio::test]
    async fn a_refusal_of_the_whole_request_stops_the_load_with_its_text() {
        let (endpoint, _) = serve(&[(400, "no such thing")]).await;
        let error = endpoint.send(batch(&[1])).await.unwrap_err().to_string();
        assert!(
            error.contains("400") && error.contains("no such thing"),
            "{error}"
        );
    }

    #[test]
    fn an_index_name_that_would_change_the_path_is_refused() {
        for name in ["", "a/b", "a?b", "a b"] {
            assert!(
                Endpoint::new("http://127.0.0.1:1", name, CALL_TIMEOUT).is_err(),
                "{name}"
            );
        }
    }
}
