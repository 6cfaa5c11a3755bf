//! Shards on real files, and the documents that they should hold.

use segmentry_engine::{
    CommitPayload, Engine, EngineConfig, OperationRef, PartialResult, SearchError, SearchResult, merge,
};
use segmentry_mapping::{Limits, Mapping, Parser};
use segmentry_query::{SearchRequest, UrlParams, parse_search};
use segmentry_vfs::RealFs;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// `now` of every search: 2024-03-31T12:34:56.789Z.
pub const NOW_MS: i64 = 1_711_888_496_789;

/// One shard copy with the documents that it should hold, by id.
pub struct Shard {
    pub engine: Engine,
    pub documents: BTreeMap<String, Value>,
    mapping: Arc<Mapping>,
    seq_no: u64,
    _dir: TempDir,
}

impl Shard {
    /// A new shard; `mappings` as `{"properties": …}`.
    pub fn new(mappings: Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mapping = Arc::new(Mapping::from_json(&mappings, 1_000).unwrap());
        let config = EngineConfig::new(Arc::new(RealFs), dir.path().join("index"), Arc::clone(&mapping));
        let engine = Engine::create(
            config,
            &CommitPayload {
                term: 1,
                ..CommitPayload::default()
            },
        )
        .unwrap();
        engine.open_writer(1).unwrap();
        Self {
            engine,
            documents: BTreeMap::new(),
            mapping,
            seq_no: 0,
            _dir: dir,
        }
    }

    /// Indexes or replaces a document.
    pub fn index(&mut self, id: &str, document: Value) {
        let source = serde_json::to_vec(&document).unwrap();
        let parsed = Parser::new(Arc::clone(&self.mapping), Limits::default())
            .parse(id, &source)
            .unwrap();
        if let Some(grown) = parsed.grown {
            self.mapping = grown;
        }
        let operation = OperationRef {
            id,
            seq_no: self.seq_no,
            term: 1,
            version: 1,
            routing: None,
            source: &source,
        };
        self.engine
            .index(&operation, &parsed.document, &self.mapping, false)
            .unwrap();
        self.seq_no += 1;
        self.documents.insert(id.to_owned(), document);
    }

    /// Deletes a document.
    pub fn delete(&mut self, id: &str) {
        let operation = OperationRef {
            id,
            seq_no: self.seq_no,
            term: 1,
            version: 2,
            routing: None,
            source: &[],
        };
        self.engine.delete(&operation).unwrap();
        self.seq_no += 1;
        self.documents.remove(id);
    }

    /// Makes all of it visible.
    pub fn refresh(&mut self) {
        let payload = CommitPayload {
            term: 1,
            max_seq_no: self.seq_no.checked_sub(1),
            mapping_version: self.mapping.version,
            ..CommitPayload::default()
        };
        self.engine.refresh(&payload).unwrap();
    }

    /// One segment of all. A merge in the background may take away what this one was about to merge: it is asked for again.
    pub fn merge(&mut self) {
        self.refresh();
        let deadline = Instant::now() + Duration::from_secs(20);
        while let Err(error) = self.engine.force_merge() {
            assert!(Instant::now() < deadline, "no merge succeeds: {error}");
            self.refresh();
        }
        self.refresh();
    }

    pub fn segments(&self) -> usize {
        self.engine.view().searcher().segment_readers().len()
    }

    /// A search of this shard alone.
    pub fn search(&self, body: Value) -> SearchResult {
        search(&[self], body)
    }

    /// Ids of all matches of a query.
    pub fn ids(&self, query: &Value) -> Vec<String> {
        let mut ids =
            ids(&self.search(serde_json::json!({"query": query, "size": 10_000, "_source": false})));
        ids.sort();
        ids
    }

    /// Why a search is refused: type and reason.
    pub fn refusal(&self, body: Value) -> (&'static str, String) {
        match self.engine.search(&parse(&body), 0) {
            Err(SearchError::Query(error)) => (error.kind.name(), error.reason),
            other => panic!("{body} gave {other:?}"),
        }
    }
}

pub fn parse(body: &Value) -> SearchRequest {
    parse_search(body, &UrlParams::new(), NOW_MS).unwrap_or_else(|error| panic!("{body}: {error}"))
}

/// A search of several shards, as it goes over the wire.
pub fn search(shards: &[&Shard], body: Value) -> SearchResult {
    let request = parse(&body);
    let travelled: SearchRequest = serde_json::from_slice(&serde_json::to_vec(&request).unwrap()).unwrap();
    let partials = (0..)
        .zip(shards)
        .map(|(ordinal, shard)| {
            let partial = shard
                .engine
                .search(&travelled, ordinal)
                .unwrap_or_else(|error| panic!("{body}: {error}"));
            PartialResult::from_bytes(&partial.to_bytes().unwrap()).unwrap()
        })
        // Answers come in any order.
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .collect();
    merge(partials, &request).unwrap_or_else(|error| panic!("{body}: {error}"))
}

pub fn ids(result: &SearchResult) -> Vec<String> {
    result.hits.iter().map(|hit| hit.id.clone()).collect()
}

/// All values of a field of a document.
pub fn values<'a>(document: &'a Value, field: &str) -> Vec<&'a Value> {
    match document.get(field) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => items.iter().filter(|item| !item.is_null()).collect(),
        Some(value) => vec![value],
    }
}
