//! Search bodies and URL parameters → syntax tree.
//!
//! - `json`: reading scalars, numbers, objects with known fields;
//! - `query`: the query DSL; `text`: its queries on analysed text;
//! - `sort`; `aggregation`; `url`.

mod aggregation;
mod json;
mod query;
mod sort;
mod text;
mod url;

pub use url::UrlParams;

use crate::{
    error::QueryError,
    tree::{Query, SearchRequest, SourceFilter, TrackTotalHits},
};
use json::{as_bool, as_f32, as_integer, found, token};
use serde_json::Value;

const DEFAULT_SIZE: usize = 10;
const DEFAULT_TRACKED_HITS: u64 = 10_000;

/// Parts of OpenSearch's search body that are known and not supported yet.
const UNSUPPORTED: &[&str] = &[
    "_name",
    "collapse",
    "derived",
    "docvalue_fields",
    "explain",
    "ext",
    "fields",
    "highlight",
    "include_named_queries_score",
    "indices_boost",
    "pit",
    "point_in_time",
    "post_filter",
    "profile",
    "rescore",
    "script_fields",
    "search_pipeline",
    "slice",
    "stats",
    "stored_fields",
    "suggest",
    "terminate_after",
    "timeout",
    "verbose_pipeline",
];

impl SearchRequest {
    /// A search of all documents with every option at its default.
    pub fn new(query: Query, now_ms: i64) -> Self {
        Self {
            query,
            from: 0,
            size: DEFAULT_SIZE,
            sort: Vec::new(),
            search_after: None,
            source: SourceFilter::All,
            track_total_hits: TrackTotalHits::UpTo(DEFAULT_TRACKED_HITS),
            track_scores: false,
            min_score: None,
            version: false,
            seq_no_primary_term: false,
            aggregations: Vec::new(),
            now_ms,
        }
    }

    /// Refuses a request for hits beyond an index's `index.max_result_window`, whose default is [`crate::MAX_RESULT_WINDOW`]. Every index of
    /// a search has its own, so this is for those who know them.
    pub fn check_window(&self, max_result_window: u64) -> Result<(), QueryError> {
        let window = self.from.saturating_add(self.size);
        if u64::try_from(window).unwrap_or(u64::MAX) <= max_result_window {
            return Ok(());
        }
        Err(QueryError::illegal(format!(
            "Result window is too large, from + size must be less than or equal to: [{max_result_window}] but was [{window}]. See the scroll \
             api for a more efficient way to request large data sets. This limit can be set by changing the [index.max_result_window] index \
             level setting."
        )))
    }
}

/// Reads the body of `_search` (`null` where there is none) and the URL parameters that belong to the search itself; these win over the
/// body, as in OpenSearch. Parameters of the REST layer (`pretty`, `routing`, …) must have been taken out before: any that is left and
/// unknown is refused. `now_ms` is what `now` means in date math, milliseconds since 1970 UTC.
pub fn parse_search(body: &Value, params: &UrlParams, now_ms: i64) -> Result<SearchRequest, QueryError> {
    let mut request = SearchRequest::new(Query::MatchAll { boost: 1.0 }, now_ms);
    match body {
        Value::Null => {}
        Value::Object(map) => {
            for (key, value) in map {
                search_key(&mut request, key, value)?;
            }
        }
        other => {
            return Err(QueryError::parsing(format!(
                "Expected [START_OBJECT] but found [{}]",
                token(other)
            )));
        }
    }
    url::apply(&mut request, params)?;
    if request.search_after.is_none() {
        request.sort = sort::normalise(request.sort);
    }
    check(&request)?;
    Ok(request)
}

/// Reads the body of `_count`: a `query` and nothing else.
pub fn parse_count(body: &Value, params: &UrlParams) -> Result<Query, QueryError> {
    if let Some(name) = params.keys().next() {
        return Err(url::unrecognized(name));
    }
    let mut query = Query::MatchAll { boost: 1.0 };
    match body {
        Value::Null => {}
        Value::Object(map) => {
            for (key, value) in map {
                match key.as_str() {
                    "query" => query = query::parse(value)?,
                    other => return Err(QueryError::parsing(format!("request does not support [{other}]"))),
                }
            }
        }
        other => {
            return Err(QueryError::parsing(format!(
                "Expected [START_OBJECT] but found [{}]",
                token(other)
            )));
        }
    }
    Ok(query)
}

fn search_key(request: &mut SearchRequest, key: &str, value: &Value) -> Result<(), QueryError> {
    match key {
        "query" => request.query = query::parse(value)?,
        "from" => request.from = window(as_integer(key, value)?, key)?,
        "size" => request.size = window(as_integer(key, value)?, key)?,
        "sort" => request.sort = sort::parse(value)?,
        "search_after" => request.search_after = Some(sort::parse_after(value)?),
        "_source" => request.source = source(value)?,
        "track_total_hits" => request.track_total_hits = track_total_hits(value)?,
        "track_scores" => request.track_scores = as_bool(key, value)?,
        "min_score" => request.min_score = Some(as_f32(key, value)?),
        "version" => request.version = as_bool(key, value)?,
        "seq_no_primary_term" => request.seq_no_primary_term = as_bool(key, value)?,
        "aggs" | "aggregations" => {
            if !request.aggregations.is_empty() {
                return Err(QueryError::parsing(
                    "Found two aggregation definitions in the request",
                ));
            }
            request.aggregations = aggregation::parse(value)?;
        }
        known if UNSUPPORTED.contains(&known) => {
            return Err(QueryError::unsupported(format!("[{known}] in a search request")));
        }
        unknown => {
            return Err(QueryError::parsing(format!(
                "Unknown key for a {} in [{unknown}].",
                token(value)
            )));
        }
    }
    Ok(())
}

fn window(value: i64, name: &str) -> Result<usize, QueryError> {
    usize::try_from(value)
        .map_err(|_| QueryError::illegal(format!("[{name}] parameter cannot be negative, found [{value}]")))
}

fn track_total_hits(value: &Value) -> Result<TrackTotalHits, QueryError> {
    match value {
        Value::Bool(true) => Ok(TrackTotalHits::Exact),
        Value::Bool(false) => Ok(TrackTotalHits::Off),
        Value::String(text) if text == "true" => Ok(TrackTotalHits::Exact),
        Value::String(text) if text == "false" => Ok(TrackTotalHits::Off),
        other => match as_integer("track_total_hits", other)? {
            -1 => Ok(TrackTotalHits::Off),
            count => u64::try_from(count).map(TrackTotalHits::UpTo).map_err(|_| {
                QueryError::illegal(format!(
                    "[track_total_hits] parameter must be positive or equals to -1, got {count}"
                ))
            }),
        },
    }
}

fn source(value: &Value) -> Result<SourceFilter, QueryError> {
    let unexpected = |value: &Value| {
        QueryError::parsing(format!(
            "Expected one of [VALUE_BOOLEAN, VALUE_STRING, START_ARRAY, START_OBJECT] but found [{}]",
            token(value)
        ))
    };
    match value {
        Value::Bool(true) => Ok(SourceFilter::All),
        Value::Bool(false) => Ok(SourceFilter::None),
        Value::String(_) | Value::Array(_) => Ok(paths(strings(value)?, Vec::new())),
        Value::Object(map) => {
            let (mut includes, mut excludes) = (Vec::new(), Vec::new());
            for (key, value) in map {
                match key.as_str() {
                    "includes" | "include" => includes = strings(value)?,
                    "excludes" | "exclude" => excludes = strings(value)?,
                    other => {
                        return Err(QueryError::parsing(format!(
                            "Unknown key for a {} in [{other}].",
                            token(value)
                        )));
                    }
                }
            }
            Ok(paths(includes, excludes))
        }
        other => Err(unexpected(other)),
    }
}

fn paths(includes: Vec<String>, excludes: Vec<String>) -> SourceFilter {
    if includes.is_empty() && excludes.is_empty() {
        SourceFilter::All
    } else {
        SourceFilter::Paths { includes, excludes }
    }
}

fn strings(value: &Value) -> Result<Vec<String>, QueryError> {
    match value {
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Array(items) => items
            .iter()
            .map(|item| match item {
                Value::String(text) => Ok(text.clone()),
                other => Err(QueryError::parsing(format!(
                    "Unknown key for a {} in [_source].",
                    token(other)
                ))),
            })
            .collect(),
        other => Err(QueryError::parsing(format!(
            "Expected [VALUE_STRING] but found [{}]",
            found(other)
        ))),
    }
}

/// Rules between parts of a request.
fn check(request: &SearchRequest) -> Result<(), QueryError> {
    if let Some(after) = &request.search_after {
        if request.from > 0 {
            return Err(QueryError::illegal(
                "`from` parameter must be set to 0 when `search_after` is used.",
            ));
        }
        if request.sort.is_empty() {
            return Err(QueryError::illegal("Sort must contain at least one field."));
        }
        if after.len() != request.sort.len() {
            return Err(QueryError::illegal(format!(
                "search_after has {} value(s) but sort has {}.",
                after.len(),
                request.sort.len()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
