//! Which object is looked at when.
//!
//! - Never two passes over one object at once; an object that changes during its pass is looked at again after it.
//! - At most `concurrency` passes at once; a pass that waits for a cluster that does not answer holds only its own place.
//! - A failed pass is repeated after 1 s, 2 s, 4 s … at most a minute, counted by object; a change of the object does not
//!   shorten that below 1 s, so that an object that always fails cannot keep the operator busy.

use super::{Outcome, PassError};
use crate::objects::Work;
use futures::{Stream, StreamExt};
use std::{
    collections::BTreeMap,
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// A change waits this long for others of the same object.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// Longest back-off.
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct Entry {
    due: Option<Instant>,
    running: bool,
    failures: u32,
    /// Not before, after a failure.
    not_before: Option<Instant>,
}

impl Entry {
    fn ask(&mut self, at: Instant) {
        let at = self.not_before.map_or(at, |bound| at.max(bound));
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}

/// Runs passes until `changes` ends or `stop` resolves; then waits for the passes under way.
pub async fn run<F, Fut>(
    mut changes: impl Stream<Item = Work> + Unpin,
    concurrency: usize,
    stop: impl Future<Output = ()>,
    pass: F,
) where
    F: Fn(Work) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Outcome, PassError>> + Send + 'static,
{
    let pass = Arc::new(pass);
    let mut entries: BTreeMap<Work, Entry> = BTreeMap::new();
    let mut running: JoinSet<(Work, Result<Outcome, PassError>)> = JoinSet::new();
    tokio::pin!(stop);
    loop {
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for (work, entry) in &mut entries {
            let Some(due) = entry.due.filter(|_| !entry.running) else {
                continue;
            };
            if due <= now && running.len() < concurrency {
                entry.due = None;
                entry.running = true;
                let pass = pass.clone();
                let work = work.clone();
                running.spawn(async move {
                    let outcome = pass(work.clone()).await;
                    (work, outcome)
                });
            } else if due > now {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        let sleep = next.map_or(Duration::from_secs(3600), |next| {
            next.saturating_duration_since(now)
        });
        tokio::select! {
            () = &mut stop => break,
            change = changes.next() => match change {
                Some(work) => entries.entry(work).or_default().ask(Instant::now() + DEBOUNCE),
                None => break,
            },
            Some(done) = running.join_next() => match done {
                Ok((work, outcome)) => finished(&mut entries, work, outcome),
                // A pass that panicked is a defect that must be seen, not a loop that goes on half blind.
                Err(error) => {
                    tracing::error!(%error, "a pass ended abnormally; the process ends");
                    break;
                }
            },
            () = tokio::time::sleep(sleep) => {}
        }
    }
    while running.join_next().await.is_some() {}
}

fn finished(entries: &mut BTreeMap<Work, Entry>, work: Work, outcome: Result<Outcome, PassError>) {
    let now = Instant::now();
    match outcome {
        Ok(outcome) => {
            for other in outcome.wake {
                entries.entry(other).or_default().ask(now);
            }
            let entry = entries.entry(work.clone()).or_default();
            entry.running = false;
            entry.failures = 0;
            entry.not_before = None;
            // Gone for good: nothing to look at until it is declared again.
            if outcome.again == Duration::MAX {
                if entry.due.is_none() {
                    entries.remove(&work);
                }
            } else {
                entry.ask(now + outcome.again);
            }
        }
        Err(error) => {
            let entry = entries.entry(work.clone()).or_default();
            entry.running = false;
            entry.failures = entry.failures.saturating_add(1);
            let wait = Duration::from_secs(1 << entry.failures.saturating_sub(1).min(6)).min(LONGEST);
            tracing::warn!(object = %work, %error, failures = entry.failures, again_seconds = wait.as_secs(), "pass failed");
            entry.not_before = Some(now + wait.min(Duration::from_secs(1)));
            entry.ask(now + wait);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;
    use crate::{api::valid::Key, objects::ObjectsError};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn work(name: &str) -> Work {
        Work::Cluster(Key {
            namespace: "a".to_owned(),
            name: name.to_owned(),
        })
    }

    async fn until(condition: impl Fn() -> bool) {
        let deadline = tokio::time::sleep(Duration::from_secs(10));
        tokio::pin!(deadline);
        while !condition() {
            tokio::select! {
                () = &mut deadline => panic!("not within 10 s"),
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
    }

    #[tokio::test]
    async fn an_object_is_never_passed_twice_at_once_and_a_slow_one_delays_no_other() {
        let (send, receive) = futures::channel::mpsc::unbounded();
        let active = Arc::new(AtomicUsize::new(0));
        let fast = Arc::new(AtomicUsize::new(0));
        let (active_in, fast_in) = (active.clone(), fast.clone());
        for _ in 0..3 {
            send.unbounded_send(work("slow")).unwrap();
            send.unbounded_send(work("fast")).unwrap();
        }
        // The slow pass ends only when the fast object was passed many times.
        let gate = fast.clone();
        run(
            receive,
            2,
            until(|| fast.load(Ordering::SeqCst) >= 20),
            move |work| {
                let (active, fast, gate) = (active_in.clone(), fast_in.clone(), gate.clone());
                async move {
                    if work == self::work("slow") {
                        assert_eq!(active.fetch_add(1, Ordering::SeqCst), 0, "two passes at once");
                        until(|| gate.load(Ordering::SeqCst) >= 10).await;
                        active.fetch_sub(1, Ordering::SeqCst);
                    } else {
                        fast.fetch_add(1, Ordering::SeqCst);
                    }
                    Ok(Outcome {
                        again: Duration::from_millis(1),
                        wake: Vec::new(),
                    })
                }
            },
        )
        .await;
        drop(send);
        assert_eq!(active.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn failures_back_off_by_object_up_to_a_minute() {
        let mut entries = BTreeMap::new();
        let mut waits = Vec::new();
        for _ in 0..8 {
            let before = Instant::now();
            entries.entry(work("bad")).or_insert_with(Entry::default).due = None;
            finished(
                &mut entries,
                work("bad"),
                Err(PassError::Objects(ObjectsError::Unavailable("x".to_owned()))),
            );
            waits.push((entries[&work("bad")].due.unwrap() - before).as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        finished(
            &mut entries,
            work("bad"),
            Ok(Outcome {
                again: Duration::from_secs(30),
                wake: Vec::new(),
            }),
        );
        assert_eq!(entries[&work("bad")].failures, 0);
    }

    #[test]
    fn a_change_does_not_shorten_the_first_second_of_a_back_off() {
        let mut entries = BTreeMap::new();
        finished(&mut entries, work("bad"), Err(PassError::TooLong));
        let entry = entries.get_mut(&work("bad")).unwrap();
        let bound = entry.not_before.unwrap();
        entry.ask(Instant::now());
        assert!(entry.due.unwrap() >= bound);
    }

    #[tokio::test]
    async fn a_woken_object_is_passed_and_a_gone_one_is_forgotten() {
        let (send, receive) = futures::channel::mpsc::unbounded();
        send.unbounded_send(work("first")).unwrap();
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let list = seen.clone();
        run(
            receive,
            2,
            until(|| seen.lock().unwrap().len() >= 2),
            move |work| {
                list.lock().unwrap().push(work.clone());
                let wake = if work == self::work("first") {
                    vec![self::work("second")]
                } else {
                    Vec::new()
                };
                async move {
                    Ok(Outcome {
                        again: Duration::MAX,
                        wake,
                    })
                }
            },
        )
        .await;
        drop(send);
        assert_eq!(*seen.lock().unwrap(), [work("first"), work("second")]);
    }
}
