//! The `aggregations` of an answer, keys in OpenSearch's order.

use super::{
    partial::{Key, MetricState, PartialAggregation, PartialBucket, compare_buckets},
    plan::Shape,
};
use crate::search::coding::{Coding, formats};
use segmentry_mapping::date::Formats;
use segmentry_query::{
    Aggregation, AggregationKind, DateHistogramAggregation, Interval, MAX_BUCKETS, MetricKind, QueryError,
    QueryErrorKind, TermsAggregation, date::write_in_zone,
};
use serde_json::{Map, Value};
use tantivy::u64_to_f64;

/// Writes all aggregations of a request. `shapes` are those of a shard, depth first.
pub fn render(
    aggregations: &[Aggregation],
    partials: Vec<PartialAggregation>,
    shapes: &[Shape],
) -> Result<Map<String, Value>, QueryError> {
    let mut writer = Writer { buckets: 0 };
    let mut at = 0;
    let shapes: Vec<Tree> = aggregations
        .iter()
        .map(|aggregation| Tree::new(aggregation, shapes, &mut at))
        .collect();
    writer.level(aggregations, partials, &shapes)
}

/// Shapes in the form of the tree, with their formats parsed.
struct Tree {
    shape: Shape,
    formats: Option<Formats>,
    sub: Vec<Tree>,
}

impl Tree {
    fn new(aggregation: &Aggregation, shapes: &[Shape], at: &mut usize) -> Self {
        let shape = shapes.get(*at).cloned().flatten();
        *at += 1;
        let dates = match (&shape, &aggregation.kind) {
            (Some(Coding::Date(format)), _) => Some(formats(format)),
            // A histogram of an unmapped field may still have buckets from another index.
            (None, AggregationKind::DateHistogram(_)) => Some(Formats::default()),
            _ => None,
        };
        Self {
            shape,
            formats: dates,
            sub: aggregation
                .sub
                .iter()
                .map(|below| Self::new(below, shapes, at))
                .collect(),
        }
    }
}

struct Writer {
    buckets: usize,
}

impl Writer {
    fn level(
        &mut self,
        aggregations: &[Aggregation],
        partials: Vec<PartialAggregation>,
        trees: &[Tree],
    ) -> Result<Map<String, Value>, QueryError> {
        let mut out = Map::new();
        let mut partials = partials.into_iter();
        for (aggregation, tree) in aggregations.iter().zip(trees) {
            let partial = partials
                .next()
                .unwrap_or_else(|| PartialAggregation::empty(aggregation));
            out.insert(
                aggregation.name.clone(),
                Value::Object(self.one(aggregation, partial, tree)?),
            );
        }
        Ok(out)
    }

    fn one(
        &mut self,
        aggregation: &Aggregation,
        partial: PartialAggregation,
        tree: &Tree,
    ) -> Result<Map<String, Value>, QueryError> {
        let mut out = Map::new();
        if let Some(meta) = &aggregation.meta {
            out.insert("meta".to_owned(), Value::Object(meta.clone()));
        }
        match (&aggregation.kind, partial) {
            (AggregationKind::Metric(metric), PartialAggregation::Metric(state)) => {
                write_metric(metric.kind, &state, tree, &mut out);
            }
            (
                AggregationKind::Terms(terms),
                PartialAggregation::Buckets {
                    buckets,
                    other,
                    error,
                },
            ) => {
                self.terms(aggregation, terms, buckets, (other, error), tree, &mut out)?;
            }
            (AggregationKind::DateHistogram(histogram), PartialAggregation::Buckets { buckets, .. }) => {
                self.histogram(aggregation, histogram, buckets, tree, &mut out)?;
            }
            // Of another kind than the request: cannot come from a shard that was sent this request.
            (_, _) => {
                return Err(QueryError::illegal(format!(
                    "a shard answered another aggregation than [{}]",
                    aggregation.name
                )));
            }
        }
        Ok(out)
    }

    fn count(&mut self, more: usize) -> Result<(), QueryError> {
        self.buckets = self.buckets.saturating_add(more);
        if self.buckets > MAX_BUCKETS {
            return Err(QueryError::new(
                QueryErrorKind::TooManyBucketsException,
                format!(
                    "Trying to create too many buckets. Must be less than or equal to: [{MAX_BUCKETS}] but was [{}]. This limit can be set by \
                     changing the [search.max_buckets] cluster level setting.",
                    self.buckets
                ),
            ));
        }
        Ok(())
    }

    fn terms(
        &mut self,
        aggregation: &Aggregation,
        terms: &TermsAggregation,
        mut buckets: Vec<PartialBucket>,
        (other, error): (u64, u64),
        tree: &Tree,
        out: &mut Map<String, Value>,
    ) -> Result<(), QueryError> {
        buckets.retain(|bucket| bucket.count >= terms.min_doc_count);
        buckets.sort_by(|left, right| compare_buckets(left, right, &terms.order, aggregation));
        let left_out: u64 = buckets.iter().skip(terms.size).map(|bucket| bucket.count).sum();
        buckets.truncate(terms.size);
        self.count(buckets.len())?;
        let mut written = Vec::with_capacity(buckets.len());
        for bucket in buckets {
            let mut object = Map::new();
            write_key(&bucket.key, tree, &mut object);
            object.insert("doc_count".to_owned(), bucket.count.into());
            object.extend(self.level(&aggregation.sub, bucket.sub, &tree.sub)?);
            written.push(Value::Object(object));
        }
        out.insert("doc_count_error_upper_bound".to_owned(), error.into());
        out.insert("sum_other_doc_count".to_owned(), (other + left_out).into());
        out.insert("buckets".to_owned(), Value::Array(written));
        Ok(())
    }

    fn histogram(
        &mut self,
        aggregation: &Aggregation,
        histogram: &DateHistogramAggregation,
        buckets: Vec<PartialBucket>,
        tree: &Tree,
        out: &mut Map<String, Value>,
    ) -> Result<(), QueryError> {
        let mut buckets = if histogram.min_doc_count == 0 {
            self.fill(buckets)?
        } else {
            let mut buckets = buckets;
            buckets.retain(|bucket| bucket.count >= histogram.min_doc_count);
            buckets
        };
        self.count(buckets.len())?;
        if !histogram.order.is_empty() {
            buckets.sort_by(|left, right| compare_buckets(left, right, &histogram.order, aggregation));
        }
        let zone_ms = i64::from(histogram.time_zone_minutes) * 60_000;
        let mut written = Vec::with_capacity(buckets.len());
        for bucket in buckets {
            let index = number(&bucket.key);
            let local = match histogram.interval {
                Interval::Fixed(interval) => index.saturating_mul(interval),
                Interval::Calendar(unit) => unit.start_of(index),
            };
            let start = local.saturating_sub(zone_ms);
            let mut object = Map::new();
            if let Some(formats) = &tree.formats {
                object.insert(
                    "key_as_string".to_owned(),
                    write_in_zone(formats, start, histogram.time_zone_minutes).into(),
                );
            }
            object.insert("key".to_owned(), start.into());
            object.insert("doc_count".to_owned(), bucket.count.into());
            object.extend(self.level(&aggregation.sub, bucket.sub, &tree.sub)?);
            written.push(Value::Object(object));
        }
        out.insert("buckets".to_owned(), Value::Array(written));
        Ok(())
    }

    /// Empty buckets between the first and the last one.
    fn fill(&mut self, buckets: Vec<PartialBucket>) -> Result<Vec<PartialBucket>, QueryError> {
        let (Some(first), Some(last)) = (
            buckets.first().map(|bucket| number(&bucket.key)),
            buckets.last().map(|bucket| number(&bucket.key)),
        ) else {
            return Ok(buckets);
        };
        let width = usize::try_from(i128::from(last) - i128::from(first) + 1).unwrap_or(usize::MAX);
        if width > MAX_BUCKETS {
            self.count(width)?;
        }
        let mut filled = Vec::with_capacity(width);
        let mut buckets = buckets.into_iter().peekable();
        for index in first..=last {
            let bucket = buckets.next_if(|bucket| number(&bucket.key) == index);
            filled.push(bucket.unwrap_or(PartialBucket {
                key: Key::Long(index),
                count: 0,
                sub: Vec::new(),
            }));
        }
        Ok(filled)
    }
}

fn number(key: &Key) -> i64 {
    match key {
        Key::Long(value) => *value,
        Key::Double(_) | Key::Boolean(_) | Key::Text(_) => 0,
    }
}

fn write_key(key: &Key, tree: &Tree, object: &mut Map<String, Value>) {
    match key {
        Key::Long(value) => {
            object.insert("key".to_owned(), (*value).into());
            if let (Some(Coding::Date(_)), Some(formats)) = (&tree.shape, &tree.formats) {
                object.insert("key_as_string".to_owned(), formats.write(*value).into());
            }
        }
        Key::Double(code) => {
            object.insert("key".to_owned(), u64_to_f64(*code).into());
        }
        Key::Boolean(value) => {
            object.insert("key".to_owned(), u8::from(*value).into());
            object.insert("key_as_string".to_owned(), value.to_string().into());
        }
        Key::Text(text) => {
            object.insert("key".to_owned(), text.clone().into());
        }
    }
}

fn write_metric(kind: MetricKind, state: &MetricState, tree: &Tree, out: &mut Map<String, Value>) {
    let values: &[(&str, Option<f64>)] = match kind {
        MetricKind::ValueCount => {
            out.insert("value".to_owned(), state.count.into());
            return;
        }
        MetricKind::Min => &[("value", state.min())],
        MetricKind::Max => &[("value", state.max())],
        MetricKind::Avg => &[("value", state.avg())],
        MetricKind::Sum => &[("value", Some(state.sum()))],
        MetricKind::Stats => {
            out.insert("count".to_owned(), state.count.into());
            &[
                ("min", state.min()),
                ("max", state.max()),
                ("avg", state.avg()),
                ("sum", Some(state.sum())),
            ]
        }
    };
    for (name, value) in values {
        out.insert((*name).to_owned(), value.map_or(Value::Null, Value::from));
    }
    let Some(formats) = tree.formats.as_ref().filter(|_| state.count > 0) else {
        return;
    };
    for (name, value) in values {
        if let Some(value) = value {
            #[allow(
                clippy::cast_possible_truncation,
                reason = "milliseconds; a cast saturates, and so would the calendar"
            )]
            out.insert(format!("{name}_as_string"), formats.write(*value as i64).into());
        }
    }
}
