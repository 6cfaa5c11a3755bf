//! Numbers of a copy.

use crate::{CounterValues, Role, ShardCopy, ShardStats};
use segmentry_settings::{Durability, admin::CopyReport};
use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Shortest time between two marks of the lag.
const MARK_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Adds microseconds.
    pub fn add_time(&self, time: Duration) {
        self.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub index_total: Counter,
    pub delete_total: Counter,
    pub index_failed: Counter,
    pub refresh_total: Counter,
    pub refresh_time_us: Counter,
    pub flush_total: Counter,
    pub flush_time_us: Counter,
    pub query_total: Counter,
    pub query_time_us: Counter,
    pub unindexable_total: Counter,
    /// When operations came that may not be visible yet.
    marks: parking_lot::Mutex<VecDeque<(u64, Instant)>>,
}

impl ShardCopy {
    /// An operation came that is not visible yet.
    pub(crate) fn lag_begins(&self, seq_no: u64) {
        let mut marks = self.counters.marks.lock();
        let now = Instant::now();
        match marks.back_mut() {
            Some((end, at)) if now.duration_since(*at) < MARK_EVERY => *end = seq_no,
            _ => marks.push_back((seq_no, now)),
        }
    }

    /// What is shown is no lag any more.
    pub(crate) fn lag_ends(&self, visible: Option<u64>) {
        let mut marks = self.counters.marks.lock();
        while marks.front().is_some_and(|(end, _)| Some(*end) <= visible) {
            marks.pop_front();
        }
    }

    fn lag_millis(&self) -> u64 {
        let marks = self.counters.marks.lock();
        marks.front().map_or(0, |(_, at)| {
            u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX)
        })
    }

    /// Numbers of this copy. Blocks for moments (locks of engine and log).
    pub fn stats(&self) -> ShardStats {
        let engine = self.engine.stats();
        let durable = self.engine.durable_info().max_seq_no;
        let log = self.log.stats(durable.map(|max| max + 1));
        let state = self.log_state();
        let role = self.role();
        let primary = matches!(role, Role::Primary { .. });
        let primary_last = if primary {
            state.last
        } else {
            self.announced.lock().1.max(state.last)
        };
        let count = |position: Option<u64>| position.map_or(0, |last| last + 1);
        let signed = |position: Option<u64>| position.map_or(-1, |at| i64::try_from(at).unwrap_or(i64::MAX));
        let lag_operations = count(primary_last).saturating_sub(count(state.visible));
        let settings = &self.index.load().settings;
        let report = CopyReport {
            documents: engine.docs,
            size_bytes: engine.size_bytes + log.size_bytes,
            max_seq_no: signed(state.last),
            global_checkpoint: signed(state.global_checkpoint),
            lag_operations,
            lag_millis: if primary || lag_operations == 0 {
                0
            } else {
                self.lag_millis()
            },
            durability: if self.durability_in_force() {
                settings.durability
            } else {
                Durability::Async
            },
            replication_type: settings.replication_type,
            translog_operations: log.operations,
            translog_size_bytes: log.size_bytes,
            uncommitted_operations: log.uncommitted_operations,
            uncommitted_size_bytes: log.uncommitted_size_bytes,
        };
        let millis = |counter: &Counter| counter.get() / 1000;
        let counters = &self.counters;
        ShardStats {
            report,
            primary,
            engine,
            log,
            counters: CounterValues {
                index_total: counters.index_total.get(),
                delete_total: counters.delete_total.get(),
                index_failed: counters.index_failed.get(),
                refresh_total: counters.refresh_total.get(),
                refresh_time_ms: millis(&counters.refresh_time_us),
                flush_total: counters.flush_total.get(),
                flush_time_ms: millis(&counters.flush_time_us),
                query_total: counters.query_total.get(),
                query_time_ms: millis(&counters.query_time_us),
                unindexable_total: counters.unindexable_total.get(),
            },
            waiting_for: self.waiting.lock().clone(),
        }
    }

    /// What the admin API answers for this copy.
    pub fn report(&self) -> CopyReport {
        self.stats().report
    }
}
