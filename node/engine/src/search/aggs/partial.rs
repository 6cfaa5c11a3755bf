//! Results that travel between shards, and how they merge.

use segmentry_query::{Aggregation, AggregationKind, BucketKey, BucketOrder, Order, StatsProperty};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// Buckets of one `terms` aggregation that a shard sends where the request names no `shard_size`. Up to this many different terms counts are
/// exact.
pub const SHARD_BUCKETS: usize = 65_536;

/// Key of a bucket; ordered as OpenSearch orders keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Key {
    /// Whole number, date, or the number of an interval.
    Long(i64),
    /// Number with a fraction, as its code.
    Double(u64),
    /// Boolean.
    Boolean(bool),
    /// Keyword.
    Text(String),
}

/// One bucket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartialBucket {
    /// Key.
    pub key: Key,
    /// Documents.
    pub count: u64,
    /// Aggregations below.
    pub sub: Vec<PartialAggregation>,
}

/// Result of one aggregation over a part of the documents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum PartialAggregation {
    /// Of `terms` and `date_histogram`.
    Buckets {
        /// By key, ascending.
        buckets: Vec<PartialBucket>,
        /// Documents of buckets that were left out.
        other: u64,
        /// The most documents that a bucket which was left out can have.
        error: u64,
    },
    /// Of a metric.
    Metric(MetricState),
}

/// All metrics of one set of values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MetricState {
    /// Values.
    pub count: u64,
    sum: f64,
    /// What the additions to `sum` lost (Kahan and Neumaier).
    lost: f64,
    /// Smallest; infinite if there is none.
    pub min: f64,
    /// Largest; minus infinity if there is none.
    pub max: f64,
}

impl Default for MetricState {
    fn default() -> Self {
        Self {
            count: 0,
            sum: 0.0,
            lost: 0.0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
        }
    }
}

impl MetricState {
    /// Adds a value.
    #[inline]
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.add_to_sum(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    fn add_to_sum(&mut self, value: f64) {
        let sum = self.sum + value;
        self.lost += if self.sum.abs() >= value.abs() {
            (self.sum - sum) + value
        } else {
            (value - sum) + self.sum
        };
        self.sum = sum;
    }

    fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.add_to_sum(other.sum);
        self.lost += other.lost;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Sum of the values.
    pub fn sum(&self) -> f64 {
        let sum = self.sum + self.lost;
        if sum.is_finite() { sum } else { self.sum }
    }

    /// Mean; none without values.
    pub fn avg(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum() / self.count as f64)
    }

    /// Smallest value.
    pub fn min(&self) -> Option<f64> {
        (self.count > 0).then_some(self.min)
    }

    /// Largest value.
    pub fn max(&self) -> Option<f64> {
        (self.count > 0).then_some(self.max)
    }
}

impl PartialAggregation {
    /// Of no documents.
    pub fn empty(aggregation: &Aggregation) -> Self {
        match aggregation.kind {
            AggregationKind::Metric(_) => Self::Metric(MetricState::default()),
            AggregationKind::Terms(_) | AggregationKind::DateHistogram(_) => Self::Buckets {
                buckets: Vec::new(),
                other: 0,
                error: 0,
            },
        }
    }

    /// Leaves out what a shard does not send, here and below.
    pub fn truncate(&mut self, aggregation: &Aggregation) {
        let Self::Buckets {
            buckets,
            other,
            error,
        } = self
        else {
            return;
        };
        if let AggregationKind::Terms(terms) = &aggregation.kind {
            let limit = terms.shard_size.unwrap_or(SHARD_BUCKETS).max(terms.size);
            if buckets.len() > limit {
                buckets.sort_by(|left, right| compare_buckets(left, right, &terms.order, aggregation));
                *other += buckets[limit..].iter().map(|bucket| bucket.count).sum::<u64>();
                buckets.truncate(limit);
                // Only an order by count, highest first, bounds what was left out.
                if let (
                    [
                        BucketOrder {
                            by: BucketKey::Count,
                            order: Order::Desc,
                        },
                        ..,
                    ],
                    Some(last),
                ) = (terms.order.as_slice(), buckets.last())
                {
                    *error += last.count;
                }
                buckets.sort_by(|left, right| left.key.cmp(&right.key));
            }
        }
        for bucket in buckets {
            for (partial, below) in bucket.sub.iter_mut().zip(&aggregation.sub) {
                partial.truncate(below);
            }
        }
    }
}

/// Adds one result to another of the same aggregation.
pub fn merge_into(into: &mut PartialAggregation, from: PartialAggregation) {
    match (into, from) {
        (PartialAggregation::Metric(into), PartialAggregation::Metric(from)) => into.merge(&from),
        (
            PartialAggregation::Buckets {
                buckets,
                other,
                error,
            },
            PartialAggregation::Buckets {
                buckets: more,
                other: more_other,
                error: more_error,
            },
        ) => {
            *other += more_other;
            *error += more_error;
            if buckets.is_empty() {
                *buckets = more;
            } else if !more.is_empty() {
                *buckets = merge_sorted(std::mem::take(buckets), more);
            }
        }
        // Both come from the same request, so they are of one kind.
        (PartialAggregation::Metric(_), PartialAggregation::Buckets { .. })
        | (PartialAggregation::Buckets { .. }, PartialAggregation::Metric(_)) => {}
    }
}

fn merge_sorted(left: Vec<PartialBucket>, right: Vec<PartialBucket>) -> Vec<PartialBucket> {
    let mut merged = Vec::with_capacity(left.len().max(right.len()));
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    loop {
        let order = match (left.peek(), right.peek()) {
            (Some(left), Some(right)) => left.key.cmp(&right.key),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return merged,
        };
        match order {
            Ordering::Less => merged.extend(left.next()),
            Ordering::Greater => merged.extend(right.next()),
            Ordering::Equal => {
                if let (Some(mut bucket), Some(more)) = (left.next(), right.next()) {
                    bucket.count += more.count;
                    for (into, from) in bucket.sub.iter_mut().zip(more.sub) {
                        merge_into(into, from);
                    }
                    merged.push(bucket);
                }
            }
        }
    }
}

/// Compares two buckets in an order; ties go by key, ascending. Buckets without a value of a metric come last, in either direction.
pub fn compare_buckets(
    left: &PartialBucket,
    right: &PartialBucket,
    orders: &[BucketOrder],
    aggregation: &Aggregation,
) -> Ordering {
    for BucketOrder { by, order } in orders {
        let ascending = match by {
            BucketKey::Count => left.count.cmp(&right.count),
            BucketKey::Key => left.key.cmp(&right.key),
            BucketKey::Metric { name, property } => {
                let value = |bucket: &PartialBucket| metric_value(bucket, name, *property, aggregation);
                match (value(left), value(right)) {
                    (Some(left), Some(right)) => left.total_cmp(&right),
                    (Some(_), None) => return Ordering::Less,
                    (None, Some(_)) => return Ordering::Greater,
                    (None, None) => Ordering::Equal,
                }
            }
        };
        let ordering = if *order == Order::Asc {
            ascending
        } else {
            ascending.reverse()
        };
        if ordering != Ordering::Equal {
            return ordering;
        }
    }
    left.key.cmp(&right.key)
}

fn metric_value(
    bucket: &PartialBucket,
    name: &str,
    property: Option<StatsProperty>,
    aggregation: &Aggregation,
) -> Option<f64> {
    use segmentry_query::MetricKind::{Avg, Max, Min, Stats, Sum, ValueCount};
    let place = aggregation.sub.iter().position(|below| below.name == name)?;
    let PartialAggregation::Metric(state) = bucket.sub.get(place)? else {
        return None;
    };
    let AggregationKind::Metric(metric) = &aggregation.sub.get(place)?.kind else {
        return None;
    };
    match (metric.kind, property) {
        (Min, _) | (Stats, Some(StatsProperty::Min)) => state.min(),
        (Max, _) | (Stats, Some(StatsProperty::Max)) => state.max(),
        (Avg, _) | (Stats, Some(StatsProperty::Avg)) => state.avg(),
        (Sum, _) | (Stats, Some(StatsProperty::Sum)) => Some(state.sum()),
        (ValueCount, _) | (Stats, Some(StatsProperty::Count)) => Some(state.count as f64),
        (Stats, None) => None,
    }
}
