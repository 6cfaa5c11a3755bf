//! The syntax tree of a search request.

use serde::{Deserialize, Serialize};

/// `index.max_result_window`.
pub const MAX_RESULT_WINDOW: u64 = 10_000;
/// `indices.query.bool.max_clause_count`: leaves and boolean clauses of one request.
pub const MAX_CLAUSES: usize = 1_024;
/// Queries and aggregations nested deeper than this are refused. A level of the tree is three levels of the JSON that it travels as,
/// and JSON readers stop at 128.
pub const MAX_DEPTH: usize = 30;
/// `index.max_terms_count` of one `terms` query.
pub const MAX_TERMS: usize = 65_536;
/// `search.max_buckets` of one answer.
pub const MAX_BUCKETS: usize = 65_535;

/// A search as every shard gets it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchRequest {
    /// What to match; `match_all` if none was written.
    pub query: Query,
    /// Hits to skip.
    pub from: usize,
    /// Hits to return after these.
    pub size: usize,
    /// Order of the hits; empty means by score, highest first.
    pub sort: Vec<Sort>,
    /// Sort values after which the hits begin (exclusive), one for each of `sort`.
    pub search_after: Option<Vec<Scalar>>,
    /// What of the source is returned.
    pub source: SourceFilter,
    /// How far matches are counted.
    pub track_total_hits: TrackTotalHits,
    /// Scores also where the order does not need them.
    pub track_scores: bool,
    /// Hits with a lower score do not match.
    pub min_score: Option<f32>,
    /// Return `_version` of each hit.
    pub version: bool,
    /// Return `_seq_no` and `_primary_term` of each hit.
    pub seq_no_primary_term: bool,
    /// Aggregations over all matches, in the order in which they were written.
    pub aggregations: Vec<Aggregation>,
    /// `now` of date math, milliseconds since 1970 UTC.
    pub now_ms: i64,
}

impl SearchRequest {
    /// True if the order of the hits is by score alone.
    pub fn sorts_by_score(&self) -> bool {
        self.sort.is_empty()
    }

    /// True if a score of a hit is computed: it decides the order, is asked for, or filters.
    pub fn needs_scores(&self) -> bool {
        self.min_score.is_some()
            || (self.from + self.size > 0
                && (self.sort.is_empty()
                    || self.track_scores
                    || self.sort.iter().any(|sort| sort.target == SortTarget::Score)))
    }
}

/// A JSON scalar of a query, not yet read as any field's type. Doubles travel as their bits, so that every node sees the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scalar {
    /// `null`; only in `search_after`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Long(i64),
    /// A whole number above `i64::MAX`.
    Unsigned(u64),
    /// Any other number.
    Double(#[serde(with = "bits")] f64),
    /// A string.
    Text(String),
}

impl Scalar {
    /// As error texts and keyword fields show it.
    pub fn text(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Long(value) => value.to_string(),
            Self::Unsigned(value) => value.to_string(),
            Self::Double(value) => serde_json::Number::from_f64(*value)
                .map_or_else(|| value.to_string(), |number| number.to_string()),
            Self::Text(text) => text.clone(),
        }
    }
}

/// Doubles as their bits.
mod bits {
    use serde::{Deserialize, Deserializer, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value.to_bits())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        u64::deserialize(deserializer).map(f64::from_bits)
    }
}

/// A query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Query {
    /// All documents; the score is the boost.
    MatchAll {
        /// Score.
        boost: f32,
    },
    /// No document.
    MatchNone,
    /// Analysed text.
    Match(MatchQuery),
    /// Analysed text, its words in their order.
    MatchPhrase(MatchPhraseQuery),
    /// One exact value.
    Term {
        /// Path.
        field: String,
        /// Value.
        value: Scalar,
        /// Factor of the score.
        boost: f32,
    },
    /// Any of several exact values; the score is the boost.
    Terms {
        /// Path.
        field: String,
        /// Values.
        values: Vec<Scalar>,
        /// Score.
        boost: f32,
    },
    /// Values between bounds; the score is the boost.
    Range(RangeQuery),
    /// Combination.
    Bool(BoolQuery),
    /// Documents that have a value in a field; the score is the boost.
    Exists {
        /// Path of a field or an object.
        field: String,
        /// Score.
        boost: f32,
    },
    /// Documents by id; the score is the boost.
    Ids {
        /// Ids.
        values: Vec<String>,
        /// Score.
        boost: f32,
    },
    /// What a filter matches, with the boost as score.
    ConstantScore {
        /// Filter.
        filter: Box<Query>,
        /// Score.
        boost: f32,
    },
}

/// `match`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MatchQuery {
    /// Path.
    pub field: String,
    /// Text or other value.
    pub query: Scalar,
    /// True: all words must match; else any.
    pub all_words: bool,
    /// How many words must match, of an `or`.
    pub minimum_should_match: Option<MinimumShouldMatch>,
    /// Analyzer instead of the field's.
    pub analyzer: Option<String>,
    /// `zero_terms_query: all`: a text without any word matches everything.
    pub zero_terms_all: bool,
    /// A value that the field's type cannot hold matches nothing instead of being refused.
    pub lenient: bool,
    /// Factor of the score.
    pub boost: f32,
}

/// `match_phrase`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MatchPhraseQuery {
    /// Path.
    pub field: String,
    /// Text or other value.
    pub query: Scalar,
    /// How far words may be moved.
    pub slop: u32,
    /// Analyzer instead of the field's.
    pub analyzer: Option<String>,
    /// `zero_terms_query: all`.
    pub zero_terms_all: bool,
    /// Factor of the score.
    pub boost: f32,
}

/// `range`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RangeQuery {
    /// Path.
    pub field: String,
    /// Lower end.
    pub lower: RangeBound,
    /// Upper end.
    pub upper: RangeBound,
    /// `format` of the bounds of a date field, instead of the field's.
    pub format: Option<String>,
    /// Offset east of UTC, in minutes, of date bounds that carry none.
    pub time_zone_minutes: i32,
    /// Score.
    pub boost: f32,
}

/// One end of a range.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RangeBound {
    /// Not limited.
    Open,
    /// The value belongs to the range.
    Included(Scalar),
    /// The value does not.
    Excluded(Scalar),
}

/// `bool`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BoolQuery {
    /// Must match, scored.
    pub must: Vec<Query>,
    /// Must match, not scored.
    pub filter: Vec<Query>,
    /// Adds to the score; see `minimum_should_match`.
    pub should: Vec<Query>,
    /// Must not match.
    pub must_not: Vec<Query>,
    /// How many of `should` must match; if none is written: one where there is neither `must` nor `filter`, else none.
    pub minimum_should_match: Option<MinimumShouldMatch>,
    /// Factor of the score.
    pub boost: f32,
}

/// How many of the optional clauses have to match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MinimumShouldMatch {
    /// That many; if negative, all but that many.
    Count(i32),
    /// That share; if negative, all but that share. Rounded towards zero.
    Percent(i32),
}

impl MinimumShouldMatch {
    /// The number, of so many optional clauses. May be larger than `clauses`: then nothing matches.
    pub fn resolve(self, clauses: usize) -> usize {
        let clauses = i64::try_from(clauses).unwrap_or(i64::MAX);
        let wanted = match self {
            Self::Count(count) => i64::from(count),
            Self::Percent(percent) => clauses.saturating_mul(i64::from(percent)) / 100,
        };
        let negative = match self {
            Self::Count(count) => count < 0,
            Self::Percent(percent) => percent < 0,
        };
        usize::try_from(if negative { clauses + wanted } else { wanted }).unwrap_or(0)
    }
}

/// One criterion of the order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sort {
    /// By what.
    pub target: SortTarget,
    /// Direction.
    pub order: Order,
    /// Where documents without a value go.
    pub missing: Missing,
    /// Which of several values counts; the smallest of an ascending, the largest of a descending order if none is written.
    pub mode: Option<SortMode>,
    /// Type to assume for a field that is not mapped (all documents are missing it); none: refuse.
    pub unmapped_type: Option<String>,
}

/// What a sort compares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SortTarget {
    /// `_score`.
    Score,
    /// `_doc`: the order of the shard.
    Doc,
    /// A field with a column.
    Field(String),
}

/// Direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Smallest first.
    Asc,
    /// Largest first.
    Desc,
}

/// Place of documents without a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    /// After all others, in either direction.
    #[default]
    Last,
    /// Before all others.
    First,
}

/// Which of several values of one document is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SortMode {
    /// Smallest.
    Min,
    /// Largest.
    Max,
}

/// `_source` of the hits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceFilter {
    /// As it was sent.
    All,
    /// None.
    None,
    /// Parts of it, by paths with `*`.
    Paths {
        /// Kept; empty keeps all.
        includes: Vec<String>,
        /// Left out of these.
        excludes: Vec<String>,
    },
}

/// `track_total_hits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrackTotalHits {
    /// Not reported.
    Off,
    /// Exact.
    Exact,
    /// Exact up to a number; above it, `gte` that number.
    UpTo(u64),
}

/// A named aggregation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Aggregation {
    /// Name in the answer.
    pub name: String,
    /// What is computed.
    pub kind: AggregationKind,
    /// Aggregations within each bucket.
    pub sub: Vec<Aggregation>,
    /// Returned as it was sent.
    pub meta: Option<serde_json::Map<String, serde_json::Value>>,
}

/// Kinds of aggregations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AggregationKind {
    /// A bucket for each value.
    Terms(TermsAggregation),
    /// A bucket for each interval of time.
    DateHistogram(DateHistogramAggregation),
    /// A number over values.
    Metric(MetricAggregation),
}

/// `terms`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TermsAggregation {
    /// Path.
    pub field: String,
    /// Buckets in the answer.
    pub size: usize,
    /// Buckets that a shard sends; none: all up to the engine's own bound.
    pub shard_size: Option<usize>,
    /// Buckets with fewer documents are left out; at least one.
    pub min_doc_count: u64,
    /// Order of the buckets; ties go by key, ascending.
    pub order: Vec<BucketOrder>,
    /// Value of documents that have none.
    pub missing: Option<Scalar>,
    /// `format` of the keys of a date field.
    pub format: Option<String>,
}

/// One criterion of the order of buckets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketOrder {
    /// By what.
    pub by: BucketKey,
    /// Direction.
    pub order: Order,
}

/// What an order of buckets compares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BucketKey {
    /// `_count`.
    Count,
    /// `_key`.
    Key,
    /// The value of a metric right below.
    Metric {
        /// Name of the metric.
        name: String,
        /// Which of its values, for `stats`.
        property: Option<StatsProperty>,
    },
}

/// A value of `stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "OpenSearch's names")]
pub enum StatsProperty {
    Count,
    Min,
    Max,
    Avg,
    Sum,
}

/// `date_histogram`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DateHistogramAggregation {
    /// Path.
    pub field: String,
    /// Width of the buckets.
    pub interval: Interval,
    /// Buckets with fewer documents are left out; with 0 the empty ones between the first and the last are there too.
    pub min_doc_count: u64,
    /// Offset east of UTC in minutes, in which days, weeks, months begin.
    pub time_zone_minutes: i32,
    /// `format` of the keys instead of the field's.
    pub format: Option<String>,
    /// Order of the buckets; by key, ascending, if empty.
    pub order: Vec<BucketOrder>,
}

/// Width of a bucket of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interval {
    /// `fixed_interval`, in milliseconds.
    Fixed(i64),
    /// `calendar_interval`.
    Calendar(crate::date::CalendarUnit),
}

/// A metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricAggregation {
    /// Which.
    pub kind: MetricKind,
    /// Path.
    pub field: String,
    /// Value of documents that have none.
    pub missing: Option<Scalar>,
    /// `format` of the values of a date field.
    pub format: Option<String>,
}

/// Kinds of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "OpenSearch's names")]
pub enum MetricKind {
    Min,
    Max,
    Avg,
    Sum,
    Stats,
    ValueCount,
}

impl MetricKind {
    /// OpenSearch's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::Sum => "sum",
            Self::Stats => "stats",
            Self::ValueCount => "value_count",
        }
    }
}
