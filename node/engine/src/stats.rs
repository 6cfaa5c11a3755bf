//! Counters of one engine.

use crate::Engine;
use serde::{Deserialize, Serialize};
use std::{collections::HashSet, sync::atomic::Ordering};

/// One segment, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentInfo {
    /// 32 hex digits.
    pub id: String,
    /// Live documents.
    pub docs: u64,
    /// Deleted documents that it still holds.
    pub deleted: u64,
    /// Bytes of its files.
    pub size_bytes: u64,
    /// True if the durable commit names it.
    pub committed: bool,
}

/// Counters of one engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineStats {
    /// Live documents that a search sees.
    pub docs: u64,
    /// Deleted documents that its segments hold.
    pub deleted: u64,
    /// Bytes of the files of the current meta.
    pub size_bytes: u64,
    /// Bytes that pins alone keep.
    pub pinned_bytes: u64,
    /// Bytes that were never synced.
    pub unsynced_bytes: u64,
    /// Version of the current meta.
    pub meta_version: u64,
    /// True while a writer is open.
    pub writer_open: bool,
    /// Operations in the writer that no commit has.
    pub uncommitted: u64,
    /// By size.
    pub segments: Vec<SegmentInfo>,
}

impl Engine {
    /// Counters.
    pub fn stats(&self) -> EngineStats {
        let searcher = self.view().searcher().clone();
        // Not by the writer's lock, which a commit or a forced merge holds for long.
        let writer_open = self.counters.open.load(Ordering::Acquire);
        let uncommitted = self.counters.uncommitted.load(Ordering::Acquire);
        let state = self.shared.state.lock();
        let current = &state.current;
        let durable: HashSet<&str> = state
            .durable
            .iter()
            .flat_map(|meta| meta.segments.iter().map(|segment| segment.id.as_str()))
            .collect();
        let mut segments: Vec<SegmentInfo> = current
            .segments
            .iter()
            .map(|segment| {
                let deleted = segment.deletes.map_or(0, |(count, _)| u64::from(count));
                SegmentInfo {
                    id: segment.id.clone(),
                    docs: u64::from(segment.max_doc) - deleted,
                    deleted,
                    size_bytes: current
                        .files
                        .iter()
                        .filter(|file| file.name.starts_with(&segment.id))
                        .map(|file| file.len)
                        .sum(),
                    committed: durable.contains(segment.id.as_str()),
                }
            })
            .collect();
        segments.sort_by_key(|segment| std::cmp::Reverse(segment.size_bytes));
        let live: HashSet<&str> = current.files.iter().map(|file| file.disk_name.as_str()).collect();
        EngineStats {
            docs: searcher.num_docs(),
            deleted: searcher
                .segment_readers()
                .iter()
                .map(|segment| u64::from(segment.num_deleted_docs()))
                .sum(),
            size_bytes: current.files.iter().map(|file| file.len).sum(),
            pinned_bytes: self.pinned_bytes(&state, &live),
            unsynced_bytes: current
                .files
                .iter()
                .filter(|file| state.dirty.contains(&file.disk_name))
                .map(|file| file.len)
                .sum(),
            meta_version: current.version,
            writer_open,
            uncommitted,
            segments,
        }
    }
}
