//! Pings, and what they say about the members.

use crate::{Ping, Pinger, Timing};
use segmentry_state::{BootId, Change, ClusterState, Node, NodeId};
use std::{collections::BTreeMap, sync::Arc, time::Instant};
use tokio::{sync::mpsc, task::JoinHandle};
use tracing::{error, warn};

/// One answer.
#[derive(Debug)]
pub struct Report {
    node: NodeId,
    boot_id: BootId,
    ping: Ping,
}

/// What is known of one process.
#[derive(Debug)]
struct Watched {
    boot_id: BootId,
    address: String,
    last_answer: Instant,
    /// Why it is lost, once it is.
    lost: Option<String>,
    silent: Option<String>,
    task: JoinHandle<()>,
}

/// Pings every live member but this one, each in a task of its own.
pub struct Watchdog<P> {
    me: NodeId,
    pinger: Arc<P>,
    timing: Timing,
    reports: mpsc::Sender<Report>,
    watched: BTreeMap<NodeId, Watched>,
}

impl<P: Pinger> Watchdog<P> {
    pub fn new(me: NodeId, pinger: Arc<P>, timing: Timing, reports: mpsc::Sender<Report>) -> Self {
        Self {
            me,
            pinger,
            timing,
            reports,
            watched: BTreeMap::new(),
        }
    }

    /// Watches exactly the processes that the state believes to be alive; a new process is pinged at once.
    pub fn follow(&mut self, state: &ClusterState, now: Instant) {
        let wanted: BTreeMap<NodeId, &Node> = state
            .alive()
            .filter(|n| n.id != self.me)
            .map(|n| (n.id, n))
            .collect();
        self.watched.retain(|id, watched| {
            let same = wanted
                .get(id)
                .is_some_and(|n| n.boot_id == Some(watched.boot_id) && n.address == watched.address);
            if !same {
                watched.task.abort();
            }
            same
        });
        for (id, node) in wanted {
            let Some(boot_id) = node.boot_id else { continue };
            self.watched.entry(id).or_insert_with(|| Watched {
                boot_id,
                address: node.address.clone(),
                last_answer: now,
                lost: None,
                silent: None,
                task: tokio::spawn(ping_forever(
                    Arc::clone(&self.pinger),
                    node.clone(),
                    boot_id,
                    self.timing,
                    self.reports.clone(),
                )),
            });
        }
    }

    /// Takes in one answer; those of an earlier process are dropped.
    pub fn take_in(&mut self, report: Report, now: Instant) {
        let Some(watched) = self
            .watched
            .get_mut(&report.node)
            .filter(|w| w.boot_id == report.boot_id)
        else {
            return;
        };
        match report.ping {
            Ping::Alive(boot_id) if boot_id == watched.boot_id => {
                watched.last_answer = now;
                watched.silent = None;
                watched.lost = None;
            }
            Ping::Alive(boot_id) => watched.lost = Some(format!("another process [{boot_id}] answers")),
            Ping::Refused(why) => watched.lost = Some(why),
            Ping::Silent(why) => watched.silent = Some(why),
        }
    }

    fn silence_ends(&self, watched: &Watched) -> Option<Instant> {
        watched
            .silent
            .as_ref()
            .map(|_| watched.last_answer + self.timing.silence)
    }

    /// A Change for each process that is lost.
    pub fn losses(&self, now: Instant) -> Vec<Change> {
        let mut out = Vec::new();
        for (id, watched) in &self.watched {
            let silent = self.silence_ends(watched).is_some_and(|end| end <= now);
            let why = watched
                .lost
                .as_ref()
                .or(watched.silent.as_ref().filter(|_| silent));
            if let Some(why) = why {
                warn!(node = %id, boot_id = %watched.boot_id, why, "lost a member");
                out.push(Change::NodeLost {
                    node: *id,
                    boot_id: watched.boot_id,
                });
            }
        }
        out
    }

    /// When silence makes the next process a lost one.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.watched.values().filter_map(|w| self.silence_ends(w)).min()
    }

    /// Ends all pings.
    pub async fn stop(mut self) {
        let watched = std::mem::take(&mut self.watched);
        for (id, watched) in watched {
            watched.task.abort();
            if let Err(e) = watched.task.await
                && e.is_panic()
            {
                error!(node = %id, error = %e, "a ping task ended by a panic");
            }
        }
    }
}

impl<P> Drop for Watchdog<P> {
    fn drop(&mut self) {
        for watched in self.watched.values() {
            watched.task.abort();
        }
    }
}

async fn ping_forever<P: Pinger>(
    pinger: Arc<P>,
    node: Node,
    boot_id: BootId,
    timing: Timing,
    reports: mpsc::Sender<Report>,
) {
    let mut ticks = tokio::time::interval(timing.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let ping = match tokio::time::timeout(timing.deadline, pinger.ping(&node)).await {
            Ok(ping) => ping,
            Err(_) => Ping::Silent(format!("no answer within {:?}", timing.deadline)),
        };
        if reports
            .send(Report {
                node: node.id,
                boot_id,
                ping,
            })
            .await
            .is_err()
        {
            return;
        }
    }
}
