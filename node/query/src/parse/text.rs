//! Queries on analysed text.

use super::{
    json::{as_bool, as_boost, as_integer, as_str, found, not_supported, scalar, token},
    query::{minimum_should_match, single_field},
};
use crate::{
    error::QueryError,
    tree::{MatchPhraseQuery, MatchQuery, Query, Scalar},
};
use serde_json::Value;

/// Analyzers that a mapping may name.
const ANALYZERS: &[&str] = &["standard", "simple", "whitespace", "keyword", "english"];

pub fn parse_match(value: &Value) -> Result<Query, QueryError> {
    const NAME: &str = "match";
    let (field, value) = single_field(NAME, value)?;
    let mut query = MatchQuery {
        field: field.to_owned(),
        query: Scalar::Null,
        all_words: false,
        minimum_should_match: None,
        analyzer: None,
        zero_terms_all: false,
        lenient: false,
        boost: 1.0,
    };
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match key.as_str() {
                    "query" => query.query = text(NAME, field, value)?,
                    "operator" => {
                        query.all_words = match as_str(key, value)?.to_ascii_lowercase().as_str() {
                            "and" => true,
                            "or" => false,
                            _ => {
                                return Err(QueryError::illegal(format!(
                                    "operator needs to be either AND or OR, but not [{}]",
                                    found(value)
                                )));
                            }
                        }
                    }
                    "minimum_should_match" => query.minimum_should_match = minimum_should_match(value)?,
                    "analyzer" => query.analyzer = analyzer(NAME, value)?,
                    "zero_terms_query" => query.zero_terms_all = zero_terms(value)?,
                    "lenient" => query.lenient = as_bool(key, value)?,
                    "boost" => query.boost = as_boost(NAME, value)?,
                    "fuzziness"
                    | "prefix_length"
                    | "max_expansions"
                    | "fuzzy_rewrite"
                    | "fuzzy_transpositions"
                    | "cutoff_frequency"
                    | "auto_generate_synonyms_phrase_query" => {
                        return Err(QueryError::unsupported(format!("[{key}] of the [match] query")));
                    }
                    other => return Err(not_supported(NAME, other)),
                }
            }
        }
        value => query.query = text(NAME, field, value)?,
    }
    if query.query == Scalar::Null {
        return Err(QueryError::parsing("No text specified for text query"));
    }
    Ok(Query::Match(query))
}

pub fn parse_match_phrase(value: &Value) -> Result<Query, QueryError> {
    const NAME: &str = "match_phrase";
    let (field, value) = single_field(NAME, value)?;
    let mut query = MatchPhraseQuery {
        field: field.to_owned(),
        query: Scalar::Null,
        slop: 0,
        analyzer: None,
        zero_terms_all: false,
        boost: 1.0,
    };
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match key.as_str() {
                    "query" => query.query = text(NAME, field, value)?,
                    "slop" => {
                        query.slop = u32::try_from(as_integer(key, value)?)
                            .map_err(|_| QueryError::illegal("No negative slop allowed."))?;
                    }
                    "analyzer" => query.analyzer = analyzer(NAME, value)?,
                    "zero_terms_query" => query.zero_terms_all = zero_terms(value)?,
                    "boost" => query.boost = as_boost(NAME, value)?,
                    other => return Err(not_supported(NAME, other)),
                }
            }
        }
        value => query.query = text(NAME, field, value)?,
    }
    if query.query == Scalar::Null {
        return Err(QueryError::parsing("No text specified for text query"));
    }
    Ok(Query::MatchPhrase(query))
}

fn text(query: &str, field: &str, value: &Value) -> Result<Scalar, QueryError> {
    match value {
        Value::Null => Err(QueryError::parsing("No text specified for text query")),
        value => scalar(value).ok_or_else(|| {
            QueryError::parsing(format!(
                "[{query}] unknown token [{}] after [{field}]",
                token(value)
            ))
        }),
    }
}

fn analyzer(query: &str, value: &Value) -> Result<Option<String>, QueryError> {
    let name = as_str("analyzer", value)?;
    if ANALYZERS.contains(&name) {
        Ok(Some(name.to_owned()))
    } else {
        Err(QueryError::shard(format!(
            "[{query}] analyzer [{name}] not found"
        )))
    }
}

fn zero_terms(value: &Value) -> Result<bool, QueryError> {
    match as_str("zero_terms_query", value)?.to_ascii_lowercase().as_str() {
        "all" => Ok(true),
        "none" => Ok(false),
        other => Err(QueryError::parsing(format!(
            "Unsupported zero_terms_query value [{other}]"
        ))),
    }
}
