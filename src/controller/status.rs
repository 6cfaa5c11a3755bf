//! What of a new status is worth a write.
//!
//! Conditions and states are written at once. Counters move at most once a minute an object, texts at most once in three
//! seconds: under load every pass would differ from the last one, and each write wakes every watcher of the object.

use crate::api::{IndexClusterStatus, IndexStatus, status::InProgress, valid::Key};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// Seconds between writes of counters.
const COUNTERS: i64 = 60;
/// Seconds between writes of nothing but texts.
const TEXTS: i64 = 3;

/// When the status of an object was written last by this process.
#[derive(Debug, Default)]
pub struct LastWrites(Mutex<BTreeMap<(&'static str, Key), i64>>);

impl LastWrites {
    /// The status was written now.
    pub fn wrote(&self, kind: &'static str, key: &Key, now: Timestamp) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert((kind, key.clone()), now.as_second());
    }

    /// A write of nothing but texts is due.
    pub fn texts_due(&self, kind: &'static str, key: &Key, now: Timestamp) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&(kind, key.clone()))
            .is_none_or(|last| now.as_second() - last >= TEXTS)
    }

    /// The object is gone.
    pub fn forget(&self, kind: &'static str, key: &Key) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&(kind, key.clone()));
    }
}

/// Keeps `since` of each (node, step) that was under way before.
pub fn keep_since(old: &[InProgress], new: &mut [InProgress]) {
    for entry in new {
        if let Some(before) = old
            .iter()
            .find(|before| before.node == entry.node && before.step == entry.step)
        {
            entry.since = before.since.clone();
        }
    }
}

/// Keeps counters that moved less than a minute ago.
pub fn hold_counters(old: &IndexStatus, new: &mut IndexStatus, now: Timestamp) {
    let same = |new: &IndexStatus| {
        old.documents == new.documents
            && old.size_bytes == new.size_bytes
            && old.translog == new.translog
            && lags(old) == lags(new)
    };
    if same(new) {
        new.counters_time.clone_from(&old.counters_time);
        return;
    }
    let young = old
        .counters_time
        .as_ref()
        .is_some_and(|time| now.as_second() - time.0.as_second() < COUNTERS);
    if !young {
        new.counters_time = Some(Time(now));
        return;
    }
    new.counters_time.clone_from(&old.counters_time);
    new.documents = old.documents;
    new.size_bytes = old.size_bytes;
    new.translog.clone_from(&old.translog);
    for copy in &mut new.copies {
        if let Some(before) = old
            .copies
            .iter()
            .find(|before| before.shard == copy.shard && before.node == copy.node)
        {
            copy.lag_operations = before.lag_operations;
            copy.lag_milliseconds = before.lag_milliseconds;
        }
    }
}

fn lags(status: &IndexStatus) -> Vec<(i32, &str, Option<i64>, Option<i64>)> {
    status
        .copies
        .iter()
        .map(|copy| {
            (
                copy.shard,
                copy.node.as_str(),
                copy.lag_operations,
                copy.lag_milliseconds,
            )
        })
        .collect()
}

/// The two differ in nothing but texts.
pub fn only_texts_differ_index(old: &IndexStatus, new: &IndexStatus) -> bool {
    let strip = |status: &IndexStatus| {
        let mut status = status.clone();
        status
            .conditions
            .iter_mut()
            .for_each(|condition| condition.message.clear());
        status.copies.iter_mut().for_each(|copy| copy.reason = None);
        status.unassigned.iter_mut().for_each(|group| group.reason = None);
        status
    };
    strip(old) == strip(new)
}

/// The two differ in nothing but texts.
pub fn only_texts_differ_cluster(old: &IndexClusterStatus, new: &IndexClusterStatus) -> bool {
    let strip = |status: &IndexClusterStatus| {
        let mut status = status.clone();
        status
            .conditions
            .iter_mut()
            .for_each(|condition| condition.message.clear());
        status
            .in_progress
            .iter_mut()
            .for_each(|entry| entry.waiting_for = None);
        status
    };
    strip(old) == strip(new)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn counters_move_at_most_once_a_minute() {
        let old = IndexStatus {
            documents: Some(5),
            counters_time: Some(Time(at(100))),
            ..IndexStatus::default()
        };
        let mut soon = IndexStatus {
            documents: Some(9),
            ..IndexStatus::default()
        };
        hold_counters(&old, &mut soon, at(159));
        assert_eq!(soon, old);
        let mut later = IndexStatus {
            documents: Some(9),
            ..IndexStatus::default()
        };
        hold_counters(&old, &mut later, at(160));
        assert_eq!(
            (later.documents, later.counters_time),
            (Some(9), Some(Time(at(160))))
        );
    }

    #[test]
    fn counters_that_stand_still_write_nothing() {
        let old = IndexStatus {
            documents: Some(5),
            counters_time: Some(Time(at(100))),
            ..IndexStatus::default()
        };
        let mut same = IndexStatus {
            documents: Some(5),
            ..IndexStatus::default()
        };
        hold_counters(&old, &mut same, at(1000));
        assert_eq!(same, old);
    }

    #[test]
    fn since_is_kept_while_node_and_step_stay() {
        let entry = |step: &str, second| InProgress {
            node: "n".to_owned(),
            step: step.to_owned(),
            waiting_for: None,
            blocked_by: None,
            since: Time(at(second)),
        };
        let mut new = [entry("Start", 50), entry("Restart", 50)];
        keep_since(&[entry("Start", 7)], &mut new);
        assert_eq!(new[0].since, Time(at(7)));
        assert_eq!(new[1].since, Time(at(50)));
    }
}
