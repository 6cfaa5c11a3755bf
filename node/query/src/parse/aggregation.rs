//! Aggregations.

use super::{
    json::{as_integer, as_str, scalar, token, unknown_field},
    query::date_format,
    sort::parse_order,
};
use crate::{
    date::{self, CalendarUnit},
    error::QueryError,
    tree::{
        Aggregation, AggregationKind, BucketKey, BucketOrder, DateHistogramAggregation, Interval,
        MAX_CLAUSES, MAX_DEPTH, MetricAggregation, MetricKind, Order, Scalar, StatsProperty,
        TermsAggregation,
    },
};
use serde_json::{Map, Value};

/// Aggregations of OpenSearch that are known and not supported yet.
const UNSUPPORTED: &[&str] = &[
    "adjacency_matrix",
    "auto_date_histogram",
    "avg_bucket",
    "bucket_script",
    "bucket_selector",
    "bucket_sort",
    "cardinality",
    "children",
    "composite",
    "cumulative_sum",
    "date_range",
    "derivative",
    "diversified_sampler",
    "extended_stats",
    "extended_stats_bucket",
    "filter",
    "filters",
    "geo_bounds",
    "geo_centroid",
    "geo_distance",
    "geohash_grid",
    "geotile_grid",
    "global",
    "histogram",
    "ip_range",
    "matrix_stats",
    "max_bucket",
    "median_absolute_deviation",
    "min_bucket",
    "missing",
    "moving_avg",
    "moving_fn",
    "multi_terms",
    "nested",
    "parent",
    "percentile_ranks",
    "percentiles",
    "percentiles_bucket",
    "range",
    "rare_terms",
    "reverse_nested",
    "sampler",
    "scripted_metric",
    "serial_diff",
    "significant_terms",
    "significant_text",
    "stats_bucket",
    "sum_bucket",
    "top_hits",
    "variable_width_histogram",
    "weighted_avg",
];

/// Reads `aggs`.
pub fn parse(value: &Value) -> Result<Vec<Aggregation>, QueryError> {
    let mut count = 0;
    level(value, 1, &mut count)
}

fn level(value: &Value, depth: usize, count: &mut usize) -> Result<Vec<Aggregation>, QueryError> {
    if depth > MAX_DEPTH {
        return Err(QueryError::illegal(format!(
            "Aggregations are nested deeper than the maximum of [{MAX_DEPTH}]"
        )));
    }
    let Value::Object(map) = value else {
        return Err(QueryError::parsing(format!(
            "Expected [START_OBJECT] under [aggs], but got a [{}]",
            token(value)
        )));
    };
    map.iter()
        .map(|(name, definition)| one(name, definition, depth, count))
        .collect()
}

fn one(name: &str, definition: &Value, depth: usize, count: &mut usize) -> Result<Aggregation, QueryError> {
    *count += 1;
    if *count > MAX_CLAUSES {
        return Err(QueryError::illegal(format!(
            "A request may have at most [{MAX_CLAUSES}] aggregations"
        )));
    }
    if name.is_empty() || name.contains(['[', ']', '>']) {
        return Err(QueryError::parsing(format!(
            "Invalid aggregation name [{name}]. Aggregation names can contain any character except '[', ']', and '>'"
        )));
    }
    let Value::Object(map) = definition else {
        return Err(QueryError::parsing(format!(
            "Aggregation definition for [{name} starts with a [{}], expected a [START_OBJECT].",
            token(definition)
        )));
    };
    let (mut kind, mut sub, mut meta) = (None, Vec::new(), None);
    let mut sub_written = false;
    for (key, value) in map {
        let Value::Object(body) = value else {
            return Err(QueryError::parsing(format!(
                "Expected [START_OBJECT] under [{key}], but got a [{}] in [{name}]",
                token(value)
            )));
        };
        match key.as_str() {
            "meta" => meta = Some(body.clone()),
            "aggs" | "aggregations" => {
                if sub_written {
                    return Err(QueryError::parsing(format!(
                        "Found two sub aggregation definitions under [{name}]"
                    )));
                }
                sub_written = true;
                sub = level(value, depth + 1, count)?;
            }
            other => {
                if let Some((first, _)) = &kind {
                    return Err(QueryError::parsing(format!(
                        "Found two aggregation type definitions in [{name}]: [{first}] and [{other}]"
                    )));
                }
                kind = Some((other.to_owned(), of_type(name, other, body)?));
            }
        }
    }
    let Some((type_name, kind)) = kind else {
        return Err(QueryError::parsing(format!(
            "Missing definition for aggregation [{name}]"
        )));
    };
    if matches!(kind, AggregationKind::Metric(_)) && !sub.is_empty() {
        return Err(QueryError::illegal(format!(
            "Aggregator [{name}] of type [{type_name}] cannot accept sub-aggregations"
        )));
    }
    check_order(name, &kind, &sub)?;
    Ok(Aggregation {
        name: name.to_owned(),
        kind,
        sub,
        meta,
    })
}

fn of_type(name: &str, type_name: &str, body: &Map<String, Value>) -> Result<AggregationKind, QueryError> {
    let metric = |kind| metric(kind, body).map(AggregationKind::Metric);
    match type_name {
        "terms" => terms(name, body).map(AggregationKind::Terms),
        "date_histogram" => date_histogram(name, body).map(AggregationKind::DateHistogram),
        "min" => metric(MetricKind::Min),
        "max" => metric(MetricKind::Max),
        "avg" => metric(MetricKind::Avg),
        "sum" => metric(MetricKind::Sum),
        "stats" => metric(MetricKind::Stats),
        "value_count" => metric(MetricKind::ValueCount),
        known if UNSUPPORTED.contains(&known) => {
            Err(QueryError::unsupported(format!("aggregation type [{known}]")))
        }
        unknown => Err(QueryError::parsing(format!(
            "Unknown aggregation type [{unknown}]"
        ))),
    }
}

fn required_field(field: Option<String>) -> Result<String, QueryError> {
    field.filter(|field| !field.is_empty()).ok_or_else(|| {
        QueryError::illegal("Required one of fields [field, script], but none were specified. ")
    })
}

fn missing(key: &str, value: &Value) -> Result<Scalar, QueryError> {
    scalar(value).ok_or_else(|| QueryError::illegal(format!("[{key}] must not be null")))
}

/// Options of OpenSearch's aggregations that are known and not supported.
fn refuse(type_name: &str, key: &str, known: &[&str]) -> QueryError {
    if known.contains(&key) {
        QueryError::unsupported(format!("[{key}] of aggregation type [{type_name}]"))
    } else {
        unknown_field(type_name, key)
    }
}

fn metric(kind: MetricKind, body: &Map<String, Value>) -> Result<MetricAggregation, QueryError> {
    let (mut field, mut missing_value, mut format) = (None, None, None);
    for (key, value) in body {
        match key.as_str() {
            "field" => field = Some(as_str(key, value)?.to_owned()),
            "missing" => missing_value = Some(missing(key, value)?),
            "format" => format = Some(date_format(as_str(key, value)?)?.to_owned()),
            other => return Err(refuse(kind.name(), other, &["script", "value_type"])),
        }
    }
    Ok(MetricAggregation {
        kind,
        field: required_field(field)?,
        missing: missing_value,
        format,
    })
}

fn terms(name: &str, body: &Map<String, Value>) -> Result<TermsAggregation, QueryError> {
    let mut terms = TermsAggregation {
        field: String::new(),
        size: 10,
        shard_size: None,
        min_doc_count: 1,
        order: vec![BucketOrder {
            by: BucketKey::Count,
            order: Order::Desc,
        }],
        missing: None,
        format: None,
    };
    let mut field = None;
    let positive = |key: &str, value: &Value| {
        let number = as_integer(key, value)?;
        usize::try_from(number)
            .ok()
            .filter(|number| *number > 0)
            .ok_or_else(|| {
                QueryError::illegal(format!(
                    "[{key}] must be greater than 0. Found [{number}] in [{name}]"
                ))
            })
    };
    for (key, value) in body {
        match key.as_str() {
            "field" => field = Some(as_str(key, value)?.to_owned()),
            "size" => terms.size = positive(key, value)?,
            "shard_size" => terms.shard_size = Some(positive(key, value)?),
            "min_doc_count" => {
                let count = as_integer(key, value)?;
                terms.min_doc_count = match u64::try_from(count) {
                    Ok(0) => {
                        return Err(QueryError::unsupported(
                            "[min_doc_count] of 0 of aggregation type [terms]",
                        ));
                    }
                    Ok(count) => count,
                    Err(_) => {
                        return Err(QueryError::illegal(format!(
                            "[min_doc_count] must be greater than or equal to 0. Found [{count}] in [{name}]"
                        )));
                    }
                };
            }
            "missing" => terms.missing = Some(missing(key, value)?),
            "format" => terms.format = Some(date_format(as_str(key, value)?)?.to_owned()),
            "order" => terms.order = order(value)?,
            other => {
                return Err(refuse(
                    "terms",
                    other,
                    &[
                        "script",
                        "include",
                        "exclude",
                        "collect_mode",
                        "execution_hint",
                        "show_term_doc_count_error",
                        "shard_min_doc_count",
                        "value_type",
                    ],
                ));
            }
        }
    }
    terms.field = required_field(field)?;
    Ok(terms)
}

fn date_histogram(name: &str, body: &Map<String, Value>) -> Result<DateHistogramAggregation, QueryError> {
    let (mut field, mut interval) = (None, None);
    let (mut min_doc_count, mut time_zone_minutes, mut format, mut written_order) = (0, 0, None, Vec::new());
    for (key, value) in body {
        match key.as_str() {
            "field" => field = Some(as_str(key, value)?.to_owned()),
            "calendar_interval" | "fixed_interval" if interval.is_some() => {
                return Err(QueryError::illegal(
                    "Cannot use [fixed_interval] with [calendar_interval] configuration option.",
                ));
            }
            "calendar_interval" => {
                let text = as_str(key, value)?;
                interval = Some(Interval::Calendar(CalendarUnit::of_interval(text).ok_or_else(
                    || {
                        QueryError::illegal(format!(
                            "The supplied interval [{text}] could not be parsed as a calendar interval."
                        ))
                    },
                )?));
            }
            "fixed_interval" => {
                interval = Some(Interval::Fixed(date::parse_fixed_interval(as_str(key, value)?)?));
            }
            "min_doc_count" => {
                let count = as_integer(key, value)?;
                min_doc_count = u64::try_from(count).map_err(|_| {
                    QueryError::illegal(format!(
                        "[min_doc_count] must be greater than or equal to 0. Found [{count}] in [{name}]"
                    ))
                })?;
            }
            "time_zone" => time_zone_minutes = date::parse_time_zone(as_str(key, value)?)?,
            "format" => format = Some(date_format(as_str(key, value)?)?.to_owned()),
            "order" => written_order = order(value)?,
            other => {
                return Err(refuse(
                    "date_histogram",
                    other,
                    &[
                        "script",
                        "interval",
                        "offset",
                        "keyed",
                        "missing",
                        "extended_bounds",
                        "hard_bounds",
                        "value_type",
                    ],
                ));
            }
        }
    }
    let field = required_field(field)?;
    let interval = interval
        .ok_or_else(|| QueryError::illegal("Invalid interval specified, must be non-null and non-empty"))?;
    Ok(DateHistogramAggregation {
        field,
        interval,
        min_doc_count,
        time_zone_minutes,
        format,
        order: written_order,
    })
}

fn order(value: &Value) -> Result<Vec<BucketOrder>, QueryError> {
    match value {
        Value::Array(items) => items.iter().map(one_order).collect(),
        item => one_order(item).map(|order| vec![order]),
    }
}

fn one_order(value: &Value) -> Result<BucketOrder, QueryError> {
    let Value::Object(map) = value else {
        return Err(QueryError::parsing(format!(
            "Order must be specified as an object, found [{}]",
            token(value)
        )));
    };
    let mut entries = map.iter();
    let (Some((path, direction)), None) = (entries.next(), entries.next()) else {
        return Err(QueryError::parsing(
            "Must specify exactly one criterion for each order",
        ));
    };
    let order = parse_order(as_str("order", direction)?).map_err(|_| {
        QueryError::parsing(format!(
            "Unknown order direction [{}]",
            direction.as_str().unwrap_or_default()
        ))
    })?;
    let by = match path.as_str() {
        "_count" => BucketKey::Count,
        "_key" => BucketKey::Key,
        path if path.contains('>') => {
            return Err(QueryError::unsupported(format!(
                "order by [{path}], through several aggregations,"
            )));
        }
        path => {
            let (name, property) = match path.rsplit_once('.') {
                None => (path, None),
                Some((name, property)) => (
                    name,
                    Some(match property {
                        "count" => StatsProperty::Count,
                        "min" => StatsProperty::Min,
                        "max" => StatsProperty::Max,
                        "avg" => StatsProperty::Avg,
                        "sum" => StatsProperty::Sum,
                        // `value` of a metric with one value.
                        "value" => {
                            return Ok(BucketOrder {
                                by: BucketKey::Metric {
                                    name: name.to_owned(),
                                    property: None,
                                },
                                order,
                            });
                        }
                        other => {
                            return Err(QueryError::illegal(format!(
                                "Invalid aggregation order path [{path}]. Unknown value key [{other}]"
                            )));
                        }
                    }),
                ),
            };
            BucketKey::Metric {
                name: name.to_owned(),
                property,
            }
        }
    };
    Ok(BucketOrder { by, order })
}

/// An order by a metric needs that metric right below, and a property exactly where it has several values.
fn check_order(owner: &str, kind: &AggregationKind, sub: &[Aggregation]) -> Result<(), QueryError> {
    let orders = match kind {
        AggregationKind::Terms(terms) => &terms.order,
        AggregationKind::DateHistogram(histogram) => &histogram.order,
        AggregationKind::Metric(_) => return Ok(()),
    };
    for order in orders {
        let BucketKey::Metric { name, property } = &order.by else {
            continue;
        };
        let invalid = |why: &str| {
            Err(QueryError::illegal(format!(
                "Invalid aggregator order path [{name}] of [{owner}]. {why}"
            )))
        };
        let Some(found) = sub.iter().find(|aggregation| aggregation.name == *name) else {
            return invalid(&format!(
                "The provided aggregation [{name}] either does not exist, or is a pipeline aggregation and cannot be used to sort the buckets."
            ));
        };
        match (&found.kind, property) {
            (AggregationKind::Metric(metric), Some(_)) if metric.kind == MetricKind::Stats => {}
            (AggregationKind::Metric(metric), None) if metric.kind != MetricKind::Stats => {}
            (AggregationKind::Metric(metric), None) if metric.kind == MetricKind::Stats => {
                return invalid(
                    "When ordering on a multi-value metrics aggregation a metric name must be specified.",
                );
            }
            (AggregationKind::Metric(_), _) => {
                return invalid(
                    "Ordering on a single-value metrics aggregation can only be done on its value.",
                );
            }
            _ => {
                return invalid(
                    "Buckets can only be sorted on a sub-aggregator path that is built out of metrics.",
                );
            }
        }
    }
    Ok(())
}
