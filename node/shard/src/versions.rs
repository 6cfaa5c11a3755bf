//! The version map of a primary: what wrote each document, where no searcher shows it yet.
//!
//! Two halves, swapped at the start of a commit: while the engine commits, new writes go to the new half, and the old half still
//! answers. Once the new searcher is installed, the old half goes; what the commit did not cover stays.

use segmentry_translog::{Operation, OperationKind};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a delete is remembered after a searcher shows it, so that the version of the document goes on.
const DELETES_REMEMBERED: Duration = Duration::from_secs(60);
/// What an entry takes beside its id, in bytes.
const ENTRY_BYTES: u64 = 96;

/// What wrote a document last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub seq_no: u64,
    pub term: u64,
    pub version: u64,
    /// When it was deleted.
    pub deleted: Option<Instant>,
}

#[derive(Debug, Default)]
pub(crate) struct Versions {
    current: HashMap<Arc<str>, Entry>,
    old: HashMap<Arc<str>, Entry>,
    bytes: u64,
}

impl Versions {
    pub fn get(&self, id: &str) -> Option<Entry> {
        self.current.get(id).or_else(|| self.old.get(id)).copied()
    }

    pub fn put(&mut self, operation: &Operation) {
        let deleted = match operation.kind {
            OperationKind::Index | OperationKind::Unindexable => None,
            OperationKind::Delete => Some(Instant::now()),
            OperationKind::NoOp | OperationKind::TermStart { .. } => return,
        };
        let entry = Entry {
            seq_no: operation.seq_no,
            term: operation.term,
            version: operation.version,
            deleted,
        };
        self.insert(Arc::clone(&operation.id), entry);
    }

    fn insert(&mut self, id: Arc<str>, entry: Entry) {
        let bytes = id.len() as u64 + ENTRY_BYTES;
        if self.current.insert(id, entry).is_none() {
            self.bytes += bytes;
        }
    }

    /// A commit begins.
    pub fn swap(&mut self) {
        let entries = std::mem::take(&mut self.current);
        if self.old.is_empty() {
            self.old = entries;
        } else {
            // The last commit was not installed.
            self.old.extend(entries);
        }
    }

    /// A searcher that shows everything up to `visible` is installed.
    pub fn installed(&mut self, visible: Option<u64>) {
        let now = Instant::now();
        let old = std::mem::take(&mut self.old);
        self.bytes = self.current.keys().map(|id| id.len() as u64 + ENTRY_BYTES).sum();
        for (id, entry) in old {
            let remembered = entry
                .deleted
                .is_some_and(|at| now.duration_since(at) < DELETES_REMEMBERED);
            if (Some(entry.seq_no) > visible || remembered) && !self.current.contains_key(&id) {
                self.insert(id, entry);
            }
        }
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// About what it takes, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn operation(seq_no: u64, id: &str, kind: OperationKind) -> Operation {
        Operation {
            seq_no,
            term: 1,
            version: 1,
            mapping_version: 0,
            kind,
            id: id.into(),
            routing: None,
            source: Bytes::new(),
        }
    }

    #[test]
    fn what_a_commit_did_not_cover_stays() {
        let mut versions = Versions::default();
        versions.put(&operation(0, "a", OperationKind::Index));
        versions.put(&operation(1, "b", OperationKind::Index));
        versions.swap();
        versions.put(&operation(2, "a", OperationKind::Index));
        assert_eq!(versions.get("b").map(|e| e.seq_no), Some(1));
        versions.installed(Some(0));
        assert_eq!(
            versions.get("b").map(|e| e.seq_no),
            Some(1),
            "the commit ended before it"
        );
        assert_eq!(
            versions.get("a").map(|e| e.seq_no),
            Some(2),
            "the newer write wins"
        );
        versions.swap();
        versions.installed(Some(2));
        assert_eq!(versions.get("a"), None);
        assert_eq!(versions.bytes(), 0);
    }

    #[test]
    fn a_delete_is_remembered_after_it_is_visible() {
        let mut versions = Versions::default();
        versions.put(&operation(0, "a", OperationKind::Delete));
        versions.swap();
        versions.installed(Some(0));
        assert!(versions.get("a").is_some_and(|e| e.deleted.is_some()));
    }
}
