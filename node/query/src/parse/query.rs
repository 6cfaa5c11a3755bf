//! The query DSL.

use super::{
    json::{as_bool, as_boost, as_integer, as_str, body, found, not_supported, scalar, token, unknown_field},
    text,
};
use crate::{
    date,
    error::{QueryError, QueryErrorKind},
    tree::{
        BoolQuery, MAX_CLAUSES, MAX_DEPTH, MAX_TERMS, MinimumShouldMatch, Query, RangeBound, RangeQuery,
        Scalar,
    },
};
use serde_json::Value;

/// Queries of OpenSearch that are known and not supported yet.
const UNSUPPORTED: &[&str] = &[
    "agentic",
    "boosting",
    "combined_fields",
    "dis_max",
    "distance_feature",
    "function_score",
    "fuzzy",
    "geo_bounding_box",
    "geo_distance",
    "geo_polygon",
    "geo_shape",
    "has_child",
    "has_parent",
    "hybrid",
    "intervals",
    "knn",
    "match_bool_prefix",
    "match_phrase_prefix",
    "more_like_this",
    "multi_match",
    "nested",
    "neural",
    "parent_id",
    "percolate",
    "prefix",
    "query_string",
    "rank_feature",
    "regexp",
    "script",
    "script_score",
    "simple_query_string",
    "span_containing",
    "span_first",
    "span_multi",
    "span_near",
    "span_not",
    "span_or",
    "span_term",
    "span_within",
    "template",
    "terms_set",
    "wildcard",
    "wrapper",
    "xy_shape",
];

/// Bounds of one request.
#[derive(Default)]
struct Budget {
    clauses: usize,
}

impl Budget {
    fn take(&mut self, count: usize) -> Result<(), QueryError> {
        self.clauses += count;
        if self.clauses > MAX_CLAUSES {
            return Err(QueryError::new(
                QueryErrorKind::TooManyClauses,
                format!("maxClauseCount is set to {MAX_CLAUSES}"),
            ));
        }
        Ok(())
    }
}

/// Reads one query.
pub fn parse(value: &Value) -> Result<Query, QueryError> {
    inner(value, 1, &mut Budget::default())
}

fn inner(value: &Value, depth: usize, budget: &mut Budget) -> Result<Query, QueryError> {
    if depth > MAX_DEPTH {
        return Err(QueryError::illegal(format!(
            "The nested depth of the query exceeds the maximum nested depth of [{MAX_DEPTH}]"
        )));
    }
    budget.take(1)?;
    let Value::Object(map) = value else {
        return Err(QueryError::parsing(
            "[_na] query malformed, must start with start_object",
        ));
    };
    let mut entries = map.iter();
    let Some((name, value)) = entries.next() else {
        return Err(QueryError::illegal("query malformed, empty clause found"));
    };
    if entries.next().is_some() {
        return Err(QueryError::parsing(format!(
            "[{name}] malformed query, expected [END_OBJECT] but found [FIELD_NAME]"
        )));
    }
    match name.as_str() {
        "match_all" => {
            let mut boost = 1.0;
            for (key, value) in body(name, value)? {
                match key.as_str() {
                    "boost" => boost = as_boost(name, value)?,
                    other => return Err(unknown_field(name, other)),
                }
            }
            Ok(Query::MatchAll { boost })
        }
        "match_none" => match body(name, value)?.keys().find(|key| *key != "boost") {
            None => Ok(Query::MatchNone),
            Some(other) => Err(unknown_field(name, other)),
        },
        "match" => text::parse_match(value),
        "match_phrase" => text::parse_match_phrase(value),
        "term" => term(value),
        "terms" => terms(value),
        "range" => range(value),
        "bool" => boolean(value, depth, budget),
        "exists" => exists(value),
        "ids" => ids(value),
        "constant_score" => constant_score(value, depth, budget),
        known if UNSUPPORTED.contains(&known) => {
            body(known, value)?;
            Err(QueryError::unsupported(format!("query [{known}]")))
        }
        unknown => {
            body(unknown, value)?;
            Err(QueryError::parsing(format!("unknown query [{unknown}]")))
        }
    }
}

fn term(value: &Value) -> Result<Query, QueryError> {
    const NAME: &str = "term";
    let (field, value) = single_field(NAME, value)?;
    let (mut boost, mut written) = (1.0, None);
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match key.as_str() {
                    "value" | "term" => written = Some(term_value(NAME, value)?),
                    "boost" => boost = as_boost(NAME, value)?,
                    "case_insensitive" if value == &Value::Bool(false) => {}
                    "case_insensitive" => {
                        return Err(QueryError::unsupported("[case_insensitive] of the [term] query"));
                    }
                    other => return Err(not_supported(NAME, other)),
                }
            }
        }
        Value::Array(_) => {
            return Err(QueryError::parsing(
                "[term] query does not support array of values",
            ));
        }
        value => written = Some(term_value(NAME, value)?),
    }
    let value = written.ok_or_else(|| QueryError::illegal("value cannot be null"))?;
    Ok(Query::Term {
        field: field.to_owned(),
        value,
        boost,
    })
}

fn term_value(query: &str, value: &Value) -> Result<Scalar, QueryError> {
    match value {
        Value::Null => Err(QueryError::illegal("value cannot be null")),
        Value::Array(_) | Value::Object(_) => Err(QueryError::parsing(format!(
            "[{query}] query does not support array of values"
        ))),
        value => scalar(value)
            .ok_or_else(|| QueryError::illegal(format!("[{query}] cannot read the number [{value}]"))),
    }
}

/// The one field of `{"<query>": {"<field>": …}}`.
pub fn single_field<'a>(query: &str, value: &'a Value) -> Result<(&'a str, &'a Value), QueryError> {
    let mut entries = body(query, value)?.iter();
    match (entries.next(), entries.next()) {
        (Some((field, value)), None) if !field.is_empty() => Ok((field, value)),
        (Some((first, _)), Some((second, _))) => Err(QueryError::parsing(format!(
            "[{query}] query doesn't support multiple fields, found [{first}] and [{second}]"
        ))),
        _ => Err(QueryError::illegal("field name is null or empty")),
    }
}

fn terms(value: &Value) -> Result<Query, QueryError> {
    const NAME: &str = "terms";
    let (mut boost, mut found_field) = (1.0, None);
    for (key, value) in body(NAME, value)? {
        match (key.as_str(), value) {
            ("boost", value) => boost = as_boost(NAME, value)?,
            ("_name" | "value_type", _) => return Err(not_supported(NAME, key)),
            (_, Value::Array(items)) => {
                if found_field.is_some() {
                    return Err(QueryError::parsing(
                        "[terms] query does not support multiple fields",
                    ));
                }
                if items.len() > MAX_TERMS {
                    return Err(QueryError::illegal(format!(
                        "The number of terms [{}] used in the Terms Query request has exceeded the allowed maximum of [{MAX_TERMS}]. This \
                         maximum can be set by changing the [index.max_terms_count] index level setting.",
                        items.len()
                    )));
                }
                let values = items
                    .iter()
                    .map(|item| {
                        scalar(item).ok_or_else(|| {
                            QueryError::parsing(format!(
                                "No value specified for terms query, found [{}]",
                                found(item)
                            ))
                        })
                    })
                    .collect::<Result<Vec<_>, _>>()?;
                found_field = Some((key.clone(), values));
            }
            (_, Value::Object(_)) => {
                return Err(QueryError::unsupported("the terms lookup of the [terms] query"));
            }
            (other, _) => return Err(not_supported(NAME, other)),
        }
    }
    let (field, values) = found_field.ok_or_else(|| {
        QueryError::parsing("[terms] query requires a field name, followed by array of terms or a document lookup specification")
    })?;
    Ok(Query::Terms { field, values, boost })
}

fn range(value: &Value) -> Result<Query, QueryError> {
    const NAME: &str = "range";
    let (field, value) = single_field(NAME, value)?;
    let Value::Object(map) = value else {
        return Err(not_supported(NAME, field));
    };
    let mut range = RangeQuery {
        field: field.to_owned(),
        lower: RangeBound::Open,
        upper: RangeBound::Open,
        format: None,
        time_zone_minutes: 0,
        boost: 1.0,
    };
    // `null` means open; whether `from`/`to` include their value is said beside them, in any order.
    let (mut lower, mut upper) = ((None, true), (None, true));
    for (key, value) in map {
        match key.as_str() {
            "gte" => lower = (bound(value)?, true),
            "gt" => lower = (bound(value)?, false),
            "lte" => upper = (bound(value)?, true),
            "lt" => upper = (bound(value)?, false),
            "from" => lower.0 = bound(value)?,
            "to" => upper.0 = bound(value)?,
            "include_lower" => lower.1 = as_bool(key, value)?,
            "include_upper" => upper.1 = as_bool(key, value)?,
            "format" => range.format = Some(date_format(as_str(key, value)?)?.to_owned()),
            "time_zone" => range.time_zone_minutes = date::parse_time_zone(as_str(key, value)?)?,
            "boost" => range.boost = as_boost(NAME, value)?,
            other => return Err(not_supported(NAME, other)),
        }
    }
    let bound = |(value, included): (Option<Scalar>, bool)| match (value, included) {
        (None, _) => RangeBound::Open,
        (Some(value), true) => RangeBound::Included(value),
        (Some(value), false) => RangeBound::Excluded(value),
    };
    (range.lower, range.upper) = (bound(lower), bound(upper));
    Ok(Query::Range(range))
}

fn bound(value: &Value) -> Result<Option<Scalar>, QueryError> {
    if value.is_null() {
        return Ok(None);
    }
    term_value("range", value).map(Some)
}

/// A format of dates that is supported.
pub fn date_format(text: &str) -> Result<&str, QueryError> {
    segmentry_mapping::date::Formats::parse(text)
        .map(|_| text)
        .map_err(|part| QueryError::illegal(format!("Invalid format: [{text}]: [{part}] is not supported")))
}

fn boolean(value: &Value, depth: usize, budget: &mut Budget) -> Result<Query, QueryError> {
    const NAME: &str = "bool";
    let mut query = BoolQuery {
        must: vec![],
        filter: vec![],
        should: vec![],
        must_not: vec![],
        minimum_should_match: None,
        boost: 1.0,
    };
    for (key, value) in body(NAME, value)? {
        match key.as_str() {
            "must" => clauses(key, value, depth, budget, &mut query.must)?,
            "filter" => clauses(key, value, depth, budget, &mut query.filter)?,
            "should" => clauses(key, value, depth, budget, &mut query.should)?,
            "must_not" | "mustNot" => clauses(key, value, depth, budget, &mut query.must_not)?,
            "minimum_should_match" => query.minimum_should_match = minimum_should_match(value)?,
            "adjust_pure_negative" if value == &Value::Bool(true) => {}
            "boost" => query.boost = as_boost(NAME, value)?,
            other => return Err(not_supported(NAME, other)),
        }
    }
    Ok(Query::Bool(query))
}

fn clauses(
    key: &str,
    value: &Value,
    depth: usize,
    budget: &mut Budget,
    into: &mut Vec<Query>,
) -> Result<(), QueryError> {
    match value {
        Value::Object(_) => into.push(inner(value, depth + 1, budget)?),
        Value::Array(items) => {
            for item in items {
                into.push(inner(item, depth + 1, budget)?);
            }
        }
        other => {
            return Err(QueryError::parsing(format!(
                "[bool] query does not support [{key}] with [{}]",
                token(other)
            )));
        }
    }
    Ok(())
}

/// Reads `minimum_should_match`: a number or a percentage. `null` is none.
pub fn minimum_should_match(value: &Value) -> Result<Option<MinimumShouldMatch>, QueryError> {
    let text = match value {
        Value::Null => return Ok(None),
        Value::String(text) => text.trim().to_owned(),
        number @ Value::Number(_) => as_integer("minimum_should_match", number)?.to_string(),
        other => {
            return Err(QueryError::illegal(format!(
                "[minimum_should_match] cannot be [{}]",
                found(other)
            )));
        }
    };
    let number = |text: &str| text.parse::<i32>().ok();
    match text.strip_suffix('%') {
        Some(percent) => number(percent)
            .filter(|percent| percent.abs() <= 100)
            .map(MinimumShouldMatch::Percent),
        None => number(&text).map(MinimumShouldMatch::Count),
    }
    .map(Some)
    .ok_or_else(|| {
        QueryError::unsupported(format!(
            "[minimum_should_match] [{text}], other than a number or a percentage,"
        ))
    })
}

fn exists(value: &Value) -> Result<Query, QueryError> {
    const NAME: &str = "exists";
    let (mut field, mut boost) = (None, 1.0);
    for (key, value) in body(NAME, value)? {
        match key.as_str() {
            "field" => field = Some(as_str(key, value)?),
            "boost" => boost = as_boost(NAME, value)?,
            other => return Err(not_supported(NAME, other)),
        }
    }
    let field = field
        .filter(|field| !field.is_empty())
        .ok_or_else(|| QueryError::parsing("[exists] must be provided with a [field]"))?;
    if field.contains('*') {
        return Err(QueryError::unsupported(
            "a wildcard in the [field] of the [exists] query",
        ));
    }
    Ok(Query::Exists {
        field: field.to_owned(),
        boost,
    })
}

fn ids(value: &Value) -> Result<Query, QueryError> {
    const NAME: &str = "ids";
    let (mut values, mut boost) = (None, 1.0);
    for (key, value) in body(NAME, value)? {
        match key.as_str() {
            "values" => values = Some(id_list(value)?),
            "boost" => boost = as_boost(NAME, value)?,
            other => return Err(unknown_field(NAME, other)),
        }
    }
    let values = values.ok_or_else(|| QueryError::illegal("Required [values]"))?;
    if values.len() > MAX_TERMS {
        return Err(QueryError::illegal(format!(
            "[ids] has [{}] values, the allowed maximum is [{MAX_TERMS}]",
            values.len()
        )));
    }
    Ok(Query::Ids { values, boost })
}

fn id_list(value: &Value) -> Result<Vec<String>, QueryError> {
    let one = |item: &Value| match item {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(QueryError::parsing(format!(
            "[ids] failed to parse field [values], found [{}]",
            token(other)
        ))),
    };
    match value {
        Value::Array(items) => items.iter().map(one).collect(),
        item => one(item).map(|id| vec![id]),
    }
}

fn constant_score(value: &Value, depth: usize, budget: &mut Budget) -> Result<Query, QueryError> {
    const NAME: &str = "constant_score";
    let (mut filter, mut boost) = (None, 1.0);
    for (key, value) in body(NAME, value)? {
        match (key.as_str(), value) {
            ("filter", Value::Array(_)) => return Err(QueryError::parsing("unexpected token [START_ARRAY]")),
            ("filter", value) => filter = Some(Box::new(inner(value, depth + 1, budget)?)),
            ("boost", value) => boost = as_boost(NAME, value)?,
            (other, _) => return Err(not_supported(NAME, other)),
        }
    }
    let filter = filter.ok_or_else(|| QueryError::parsing("[constant_score] requires a 'filter' element"))?;
    Ok(Query::ConstantScore { filter, boost })
}
