//! Compiles `query` syntax trees to tantivy, runs them, merges partial results.
//!
//! - `compile`: a tree against the fields of one searcher; `text`: its queries on analysed text; `values`, `coding`, `scan`: values as codes of columns, queries that scan them;
//! - `collect`: one pass over the segments; `sort`: keys and values of the order; `aggs`: aggregations;
//! - `fetch`: hits → their documents;
//! - `result`: [`PartialResult`] of a shard, [`merge`] of several, the JSON of hits.
//!
//! Nothing is kept between searches: a [`View`] holds the fields of its own searcher, and field handles never leave it.

mod aggs;
mod coding;
mod collect;
mod compile;
mod fetch;
mod result;
mod scan;
mod sort;
mod text;
mod values;

pub use result::{Hit, PartialHit, PartialResult, SearchResult, TotalHits, merge};

use crate::{Engine, view::View};
use aggs::ShardAggregations;
use collect::{Candidate, Collected, Pass};
use compile::Compiler;
use segmentry_query::{Query, QueryError, SearchRequest};
use sort::SortPlan;
use tantivy::{DocAddress, query::EnableScoring};

/// Why a search fails.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The request is refused; the client has to change it.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The index cannot be read.
    #[error("reading the index: {0}")]
    Index(#[from] tantivy::TantivyError),
    /// A partial result is not one.
    #[error("partial search result: {0}")]
    Encoding(String),
    /// A stored source is not what was stored.
    #[error("stored source of document [{id}]: {reason}")]
    Source {
        /// Document.
        id: String,
        /// What is wrong.
        reason: String,
    },
}

impl Engine {
    /// Searches what the last refresh made visible. `ordinal` is the place of this shard among those of the request: it orders equal hits, and
    /// hits name it.
    ///
    /// Errors: [`SearchError::Query`] where the request does not fit the mapping.
    pub fn search(&self, request: &SearchRequest, ordinal: u32) -> Result<PartialResult, SearchError> {
        search(&self.view(), request, ordinal)
    }

    /// Counts the matches of a query. `now_ms` is `now` of date math, milliseconds since 1970 UTC.
    pub fn count(&self, query: &Query, now_ms: i64) -> Result<u64, SearchError> {
        count(&self.view(), query, now_ms)
    }
}

/// Searches one view of a shard copy; see [`Engine::search`].
pub fn search(view: &View, request: &SearchRequest, ordinal: u32) -> Result<PartialResult, SearchError> {
    let query = Compiler::new(view, request.now_ms).compile(&request.query)?;
    let sort = SortPlan::new(view, request)?;
    let mut aggregations = ShardAggregations::new(view, &request.aggregations)?;
    let show_scores = request.needs_scores() && request.from + request.size > 0;
    // Scores that are all the same need not be computed, and what is not scored is found faster.
    let constant = compile::constant_score(&request.query)
        .filter(|score| request.min_score.is_none_or(|min| *score >= min));
    let scored = request.needs_scores() && constant.is_none();
    let keep = request.from.saturating_add(request.size);
    let searcher = view.searcher();
    let scoring = if scored {
        EnableScoring::enabled_from_searcher(searcher)
    } else {
        EnableScoring::disabled_from_searcher(searcher)
    };
    let weight = query.weight(scoring)?;

    let collected = if let Some(collected) = shortcut(view, request, keep) {
        collected
    } else if keep == 0 && request.aggregations.is_empty() && request.min_score.is_none() {
        let mut total = 0;
        for segment in searcher.segment_readers() {
            total += u64::from(weight.count(segment)?);
        }
        Collected {
            total,
            max_score: None,
            candidates: Vec::new(),
        }
    } else {
        let min_score = request.min_score;
        Pass {
            searcher,
            weight: weight.as_ref(),
            scored,
            score: constant.unwrap_or_default(),
            min_score,
            keep,
            sort: &sort,
        }
        .run(&mut aggregations)?
    };

    let Collected {
        total,
        max_score,
        mut candidates,
    } = collected;
    if request.sorts_by_score() {
        candidates.sort_by(|left, right| {
            right
                .score
                .total_cmp(&left.score)
                .then(left.address.cmp(&right.address))
        });
    } else {
        candidates.sort_by(|left, right| {
            sort::compare(&left.values, &right.values, &request.sort).then(left.address.cmp(&right.address))
        });
    }
    candidates.truncate(keep);
    let hits = fetch::fetch(view, request, candidates, show_scores)?;
    let (aggregations, shapes) = aggregations.finish(&request.aggregations);
    let max_score = max_score.filter(|_| show_scores && (request.sorts_by_score() || request.track_scores));
    Ok(PartialResult {
        ordinal,
        total,
        max_score,
        hits,
        aggregations,
        shapes,
    })
}

/// All documents in the order of the shard need no pass over them.
fn shortcut(view: &View, request: &SearchRequest, keep: usize) -> Option<Collected> {
    let Query::MatchAll { boost } = request.query else {
        return None;
    };
    if !request.sorts_by_score() || !request.aggregations.is_empty() || request.min_score.is_some() {
        return None;
    }
    let searcher = view.searcher();
    let mut candidates: Vec<Candidate> = Vec::new();
    for (ord, segment) in (0..).zip(searcher.segment_readers()) {
        let wanted = keep - candidates.len();
        let found = segment.doc_ids_alive().take(wanted);
        candidates.extend(found.map(|doc| Candidate {
            address: DocAddress::new(ord, doc),
            score: boost,
            values: Vec::new(),
        }));
    }
    let total = searcher.num_docs();
    Some(Collected {
        total,
        max_score: (total > 0).then_some(boost),
        candidates,
    })
}

/// Counts on one view of a shard copy; see [`Engine::count`].
pub fn count(view: &View, query: &Query, now_ms: i64) -> Result<u64, SearchError> {
    if matches!(query, Query::MatchAll { .. }) {
        return Ok(view.searcher().num_docs());
    }
    let weight = Compiler::new(view, now_ms)
        .compile(query)?
        .weight(EnableScoring::disabled_from_searcher(view.searcher()))?;
    let mut total = 0;
    for segment in view.searcher().segment_readers() {
        total += u64::from(weight.count(segment)?);
    }
    Ok(total)
}
