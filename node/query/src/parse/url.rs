//! URL parameters of `_search`.

use super::{json::as_bool, paths, sort, track_total_hits, window};
use crate::{
    error::QueryError,
    tree::{SearchRequest, SourceFilter},
};
use serde_json::Value;
use std::collections::BTreeMap;

/// Parameters, decoded. A flag without a value (`?version`) has an empty one.
pub type UrlParams = BTreeMap<String, String>;

/// `"… contains unrecognized parameter: [x]"`.
pub fn unrecognized(name: &str) -> QueryError {
    QueryError::illegal(format!("request contains unrecognized parameter: [{name}]"))
}

/// Puts parameters over what the body says.
pub fn apply(request: &mut SearchRequest, params: &UrlParams) -> Result<(), QueryError> {
    let (mut includes, mut excludes) = (None, None);
    for (name, text) in params {
        match name.as_str() {
            "from" => request.from = number(name, text)?,
            "size" => request.size = number(name, text)?,
            "sort" => {
                for part in text.split(',') {
                    let mut sort = match part.rsplit_once(':') {
                        Some((field, order)) => {
                            let mut sort = sort::by_name(field)?;
                            sort.order = sort::parse_order(order)?;
                            sort
                        }
                        None => sort::by_name(part)?,
                    };
                    sort.unmapped_type = None;
                    request.sort.push(sort);
                }
            }
            "_source" => match text.as_str() {
                "true" | "" => request.source = SourceFilter::All,
                "false" => request.source = SourceFilter::None,
                list => includes = Some(split(list)),
            },
            "_source_includes" | "_source_include" => includes = Some(split(text)),
            "_source_excludes" | "_source_exclude" => excludes = Some(split(text)),
            "track_total_hits" => request.track_total_hits = track_total_hits(&Value::String(text.clone()))?,
            "track_scores" => request.track_scores = flag(name, text)?,
            "version" => request.version = flag(name, text)?,
            "seq_no_primary_term" => request.seq_no_primary_term = flag(name, text)?,
            "q" => {
                return Err(QueryError::unsupported("parameter [q] (the query string syntax)"));
            }
            "df"
            | "analyzer"
            | "analyze_wildcard"
            | "default_operator"
            | "lenient"
            | "explain"
            | "timeout"
            | "terminate_after"
            | "stored_fields"
            | "docvalue_fields"
            | "stats"
            | "suggest_field"
            | "suggest_mode"
            | "suggest_size"
            | "suggest_text"
            | "scroll"
            | "search_type"
            | "typed_keys"
            | "rest_total_hits_as_int"
            | "search_pipeline"
            | "include_named_queries_score" => {
                return Err(QueryError::unsupported(format!("parameter [{name}]")));
            }
            other => return Err(unrecognized(other)),
        }
    }
    if includes.is_some() || excludes.is_some() {
        request.source = paths(includes.unwrap_or_default(), excludes.unwrap_or_default());
    }
    Ok(())
}

fn split(list: &str) -> Vec<String> {
    list.split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}

fn number(name: &str, text: &str) -> Result<usize, QueryError> {
    let value = text.parse::<i32>().map_err(|_| {
        QueryError::illegal(format!(
            "Failed to parse int parameter [{name}] with value [{text}]"
        ))
    })?;
    window(i64::from(value), name)
}

fn flag(name: &str, text: &str) -> Result<bool, QueryError> {
    if text.is_empty() {
        Ok(true)
    } else {
        as_bool(name, &Value::String(text.to_owned()))
    }
}
