//! Answers of a shard, and of all shards together.

use super::{
    SearchError,
    aggs::{self, PartialAggregation, Shape},
    sort::{SortValue, compare},
};
use bytes::Bytes;
use segmentry_query::{SearchRequest, TrackTotalHits};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{cmp::Ordering, io::Write as _};

/// One hit of a shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartialHit {
    pub(super) id: String,
    pub(super) score: Option<f32>,
    pub(super) sort: Vec<SortValue>,
    pub(super) routing: Option<String>,
    pub(super) version: Option<u64>,
    pub(super) seq_no: Option<u64>,
    pub(super) primary_term: Option<u64>,
    pub(super) source: Option<Bytes>,
}

/// What one shard answers to a search. Opaque to those who carry it; [`PartialResult::to_bytes`] is its form on the wire.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartialResult {
    pub(super) ordinal: u32,
    pub(super) total: u64,
    pub(super) max_score: Option<f32>,
    pub(super) hits: Vec<PartialHit>,
    pub(super) aggregations: Vec<PartialAggregation>,
    pub(super) shapes: Vec<Shape>,
}

impl PartialResult {
    /// Compact binary form.
    pub fn to_bytes(&self) -> Result<Vec<u8>, SearchError> {
        postcard::to_allocvec(self).map_err(|error| SearchError::Encoding(error.to_string()))
    }

    /// Reads [`Self::to_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SearchError> {
        postcard::from_bytes(bytes).map_err(|error| SearchError::Encoding(error.to_string()))
    }
}

/// `hits.total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TotalHits {
    /// How many.
    pub value: u64,
    /// False: at least that many (`gte`).
    pub exact: bool,
}

/// One hit of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    /// Ordinal of the shard that it comes from.
    pub shard: u32,
    /// `_id`.
    pub id: String,
    /// `_score`; none where the order does not need one and none was asked for.
    pub score: Option<f32>,
    /// Values that it is ordered by; empty for the default order.
    pub sort: Vec<Value>,
    /// `_routing`.
    pub routing: Option<String>,
    /// `_version`, if asked for.
    pub version: Option<u64>,
    /// `_seq_no`, if asked for.
    pub seq_no: Option<u64>,
    /// `_primary_term`, if asked for.
    pub primary_term: Option<u64>,
    /// `_source`, filtered; none if it is not wanted.
    pub source: Option<Bytes>,
}

/// The answer to a search.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchResult {
    /// Matches; none if they are not tracked.
    pub total: Option<TotalHits>,
    /// Highest score of all matches.
    pub max_score: Option<f32>,
    /// Hits `from..from + size`.
    pub hits: Vec<Hit>,
    /// Aggregations, if there were any in the request.
    pub aggregations: Option<Map<String, Value>>,
}

/// Merges what the shards answered to one request. Ties go by the ordinals of the shards.
pub fn merge(mut partials: Vec<PartialResult>, request: &SearchRequest) -> Result<SearchResult, SearchError> {
    let mut total = 0;
    let mut max_score: Option<f32> = None;
    let mut hits: Vec<(u32, PartialHit)> = Vec::new();
    partials.sort_by_key(|partial| partial.ordinal);
    let mut aggregations: Vec<PartialAggregation> = request
        .aggregations
        .iter()
        .map(PartialAggregation::empty)
        .collect();
    let mut shapes: Vec<Shape> = Vec::new();
    for partial in partials {
        let shard = partial.ordinal;
        total += partial.total;
        max_score = match (max_score, partial.max_score) {
            (Some(left), Some(right)) => Some(left.max(right)),
            (left, right) => left.or(right),
        };
        hits.extend(partial.hits.into_iter().map(|hit| (shard, hit)));
        for (into, from) in aggregations.iter_mut().zip(partial.aggregations) {
            aggs::merge_into(into, from);
        }
        shapes.resize(shapes.len().max(partial.shapes.len()), None);
        for (known, shape) in shapes.iter_mut().zip(partial.shapes) {
            if known.is_none() {
                *known = shape;
            }
        }
    }
    // Stable: hits of one shard stay in their order, and earlier shards come first.
    hits.sort_by(|(_, left), (_, right)| compare_hits(left, right, request));
    let hits = hits
        .into_iter()
        .skip(request.from)
        .take(request.size)
        .map(|(shard, hit)| Hit {
            shard,
            id: hit.id,
            score: hit.score,
            sort: hit.sort.iter().map(SortValue::to_json).collect(),
            routing: hit.routing,
            version: hit.version,
            seq_no: hit.seq_no,
            primary_term: hit.primary_term,
            source: hit.source,
        })
        .collect();
    let aggregations = if request.aggregations.is_empty() {
        None
    } else {
        Some(aggs::render(&request.aggregations, aggregations, &shapes)?)
    };
    let total = match request.track_total_hits {
        TrackTotalHits::Off => None,
        TrackTotalHits::Exact => Some(TotalHits {
            value: total,
            exact: true,
        }),
        TrackTotalHits::UpTo(limit) => Some(TotalHits {
            value: total.min(limit),
            exact: total <= limit,
        }),
    };
    Ok(SearchResult {
        total,
        max_score,
        hits,
        aggregations,
    })
}

fn compare_hits(left: &PartialHit, right: &PartialHit, request: &SearchRequest) -> Ordering {
    if request.sorts_by_score() {
        right
            .score
            .unwrap_or_default()
            .total_cmp(&left.score.unwrap_or_default())
    } else {
        compare(&left.sort, &right.sort, &request.sort)
    }
}

/// A score as JSON shows it: the shortest digits that mean it in single precision.
pub fn score_json(score: f32) -> Value {
    score.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

impl SearchResult {
    /// Writes the `hits` object of an answer, keys in OpenSearch's order; sources go out as they are. `index_of` names the index of a
    /// shard's ordinal.
    pub fn hits_json<'a>(&self, index_of: impl Fn(u32) -> &'a str) -> Result<Vec<u8>, serde_json::Error> {
        let mut out = Vec::with_capacity(
            256 + self
                .hits
                .iter()
                .map(|hit| hit.source.as_ref().map_or(0, Bytes::len) + 128)
                .sum::<usize>(),
        );
        out.push(b'{');
        if let Some(total) = self.total {
            write(
                &mut out,
                format_args!(
                    "\"total\":{{\"value\":{},\"relation\":\"{}\"}},",
                    total.value,
                    if total.exact { "eq" } else { "gte" }
                ),
            );
        }
        out.extend_from_slice(b"\"max_score\":");
        serde_json::to_writer(&mut out, &self.max_score.map_or(Value::Null, score_json))?;
        out.extend_from_slice(b",\"hits\":[");
        for (at, hit) in self.hits.iter().enumerate() {
            out.extend_from_slice(if at == 0 {
                b"{\"_index\":"
            } else {
                b",{\"_index\":"
            });
            serde_json::to_writer(&mut out, index_of(hit.shard))?;
            out.extend_from_slice(b",\"_id\":");
            serde_json::to_writer(&mut out, &hit.id)?;
            if let Some(version) = hit.version {
                write(&mut out, format_args!(",\"_version\":{version}"));
            }
            if let (Some(seq_no), Some(term)) = (hit.seq_no, hit.primary_term) {
                write(
                    &mut out,
                    format_args!(",\"_seq_no\":{seq_no},\"_primary_term\":{term}"),
                );
            }
            out.extend_from_slice(b",\"_score\":");
            serde_json::to_writer(&mut out, &hit.score.map_or(Value::Null, score_json))?;
            if let Some(routing) = &hit.routing {
                out.extend_from_slice(b",\"_routing\":");
                serde_json::to_writer(&mut out, routing)?;
            }
            if let Some(source) = &hit.source {
                out.extend_from_slice(b",\"_source\":");
                out.extend_from_slice(source);
            }
            if !hit.sort.is_empty() {
                out.extend_from_slice(b",\"sort\":");
                serde_json::to_writer(&mut out, &hit.sort)?;
            }
            out.push(b'}');
        }
        out.extend_from_slice(b"]}");
        Ok(out)
    }
}

/// Writing to memory does not fail.
fn write(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok());
}
