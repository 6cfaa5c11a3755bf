//! The elected leader's loop: it watches the members, activates primaries, and keeps the wanted number of replicas.
//!
//! ```text
//!   pings ──▶ watchdog ──NodeLost──┐
//!   cluster state (watch) ─────────┼──▶ plan (pure) ──▶ one batch of Changes ──▶ MetaStore ──▶ cluster state …
//!   clock (next deadline) ─────────┘
//! ```
//!
//! It runs on every node and acts only while its node leads the metadata. Nothing that it does relies on being the only one:
//! every Change carries its own precondition, so a leader that was replaced unnoticed is refused.
//!
//! - a refused connection or another boot id ends a process at once; silence needs [`Timing::silence`];
//! - a shard without an active primary gets one under the next term: only from the in-sync set, only on a live node. Where
//!   there is none it waits, and [`segmentry_allocation::explain_shard`] says for whom;
//! - a copy whose node is away is not rebuilt elsewhere before `index.unassigned.node_left.delayed_timeout` has passed; on a
//!   node that came back it is rebuilt at once.
//!
//! The manager holds the clock: times live in its memory only, so a new leader counts delays from its own start.
//!
//! [`run`] is the loop; [`join`] and [`keep_joined`] announce a process start of this node.

mod join;
mod plan;
mod watchdog;

pub use join::{join, keep_joined};

use plan::{Memory, plan};
use segmentry_meta::{MetaStore, ProposeError};
use segmentry_state::{BootId, ClusterState, Node, NodeId, Refusal};
use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};
use watchdog::{Report, Watchdog};

/// What a member answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ping {
    /// A process answers; its boot id tells whether it is the recorded one.
    Alive(BootId),
    /// Nobody listens: the process is gone.
    Refused(String),
    /// No answer in time; the process may live.
    Silent(String),
}

/// Asks a member whether it lives.
pub trait Pinger: Send + Sync + 'static {
    /// One call to `node`'s internal port. It is cut off after [`Timing::deadline`], which counts as silence.
    fn ping(&self, node: &Node) -> impl Future<Output = Ping> + Send;
}

/// How patient the manager is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Between two pings of a member.
    pub interval: Duration,
    /// For one ping.
    pub deadline: Duration,
    /// Without any answer a member is lost after this long.
    pub silence: Duration,
    /// How long, after a prepared restart, a shard waits for the node that had its primary before.
    pub restart_patience: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            deadline: Duration::from_secs(1),
            silence: Duration::from_secs(5),
            restart_patience: Duration::from_secs(60),
        }
    }
}

/// First pause after a Change was refused or had no outcome; doubles up to [`MAX_PAUSE`] while that goes on.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Reports of pings that wait; more wait in their own tasks.
const REPORTS: usize = 64;
/// The loop looks again after this long even if nothing happened.
const IDLE: Duration = Duration::from_secs(5);

/// Manages the cluster whenever this node leads, until `shutdown`. All tasks that it starts have ended when it returns.
pub async fn run<P: Pinger>(
    meta: Arc<dyn MetaStore>,
    me: NodeId,
    pinger: Arc<P>,
    timing: Timing,
    shutdown: impl Future<Output = ()> + Send,
) {
    let (stop, mut stopped) = watch::channel(false);
    let managing = async {
        let mut leadership = meta.leadership();
        loop {
            tokio::select! {
                led = leadership.wait_for(|l| l.local) => if led.is_err() { return },
                _ = stopped.wait_for(|s| *s) => return,
            }
            info!(node = %me, "manages the cluster");
            let (reports, reported) = mpsc::channel(REPORTS);
            let mut watchdog = Watchdog::new(me, Arc::clone(&pinger), timing, reports);
            let stopping = tokio::select! {
                () = lead(&meta, &mut watchdog, reported, timing) => false,
                _ = stopped.wait_for(|s| *s) => true,
            };
            watchdog.stop().await;
            info!(node = %me, "no longer manages the cluster");
            if stopping {
                return;
            }
        }
    };
    let stopping = async {
        shutdown.await;
        stop.send_replace(true);
    };
    tokio::join!(managing, stopping);
}

/// One period of leadership.
async fn lead<P: Pinger>(
    meta: &Arc<dyn MetaStore>,
    watchdog: &mut Watchdog<P>,
    mut reported: mpsc::Receiver<Report>,
    timing: Timing,
) {
    let mut leadership = meta.leadership();
    // What was committed before must be known before anything is decided.
    while meta.read().await.is_err() {
        if !leadership.borrow().local {
            return;
        }
    }
    let mut states = meta.watch();
    let mut memory = Memory::new(Instant::now(), timing.restart_patience);
    let mut pause = None;
    while leadership.borrow_and_update().local {
        let now = Instant::now();
        let state = Arc::clone(&states.borrow_and_update());
        watchdog.follow(&state, now);
        let (changes, wake) = decide(&state, watchdog, &mut memory, now);
        pause = if changes.is_empty() {
            None
        } else {
            next_pause(&meta.propose_all(changes).await, pause)
        };
        wait(
            &mut states,
            &mut leadership,
            &mut reported,
            watchdog,
            pause.unwrap_or_default(),
            wake,
        )
        .await;
    }
}

/// The Changes that are due: losses first, and what follows from them in the same batch.
fn decide<P: Pinger>(
    state: &Arc<ClusterState>,
    watchdog: &Watchdog<P>,
    memory: &mut Memory,
    now: Instant,
) -> (Vec<segmentry_state::Change>, Option<Instant>) {
    let mut changes = watchdog.losses(now);
    let mut wake = watchdog.next_deadline();
    if changes.is_empty() {
        let planned = plan(state, memory, now);
        changes = planned.changes;
        wake = wake.into_iter().chain(planned.wake).min();
    } else {
        let mut after = ClusterState::clone(state);
        // A loss that is refused here would be refused there too: then nothing follows from it.
        changes.retain(|change| after.apply(change.clone()).is_ok());
        let planned = plan(&after, memory, now);
        changes.extend(planned.changes);
        wake = wake.into_iter().chain(planned.wake).min();
    }
    (changes, wake)
}

/// A refusal or a missing outcome must not become a tight loop: the same state gives the same plan.
fn next_pause(
    outcome: &Result<Vec<Result<(), Refusal>>, ProposeError>,
    pause: Option<Duration>,
) -> Option<Duration> {
    let failed = match outcome {
        Ok(results) => {
            let refused = results.iter().find_map(|r| r.as_ref().err());
            if let Some(refusal) = refused {
                warn!(%refusal, "the cluster state refused a change of the manager");
            }
            refused.is_some()
        }
        Err(error) => {
            warn!(%error, "a change of the manager had no outcome");
            true
        }
    };
    failed.then(|| pause.map_or(MIN_PAUSE, |p| (p * 2).min(MAX_PAUSE)))
}

/// Until something happens that may make another plan due.
async fn wait<P: Pinger>(
    states: &mut watch::Receiver<Arc<ClusterState>>,
    leadership: &mut watch::Receiver<segmentry_meta::Leadership>,
    reported: &mut mpsc::Receiver<Report>,
    watchdog: &mut Watchdog<P>,
    pause: Duration,
    wake: Option<Instant>,
) {
    tokio::time::sleep(pause).await;
    let until = wake
        .map_or(IDLE, |w| w.saturating_duration_since(Instant::now()))
        .min(IDLE);
    tokio::select! {
        // A closed channel ends the outer loop: its sender said last that nobody leads.
        _ = states.changed() => {}
        _ = leadership.changed() => {}
        report = reported.recv() => {
            let mut next = report;
            while let Some(report) = next {
                watchdog.take_in(report, Instant::now());
                next = reported.try_recv().ok();
            }
        }
        () = tokio::time::sleep(until) => {}
    }
}
