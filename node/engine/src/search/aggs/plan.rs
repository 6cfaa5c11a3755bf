//! A request's aggregations resolved against the mapping.

use crate::{
    schema,
    search::{
        SearchError,
        coding::{Coding, double, formats, long},
        sort::column_coding,
        values::{self, DateContext},
    },
    view::View,
};
use segmentry_mapping::{Field as MappedField, FieldType};
use segmentry_query::{Aggregation, AggregationKind, Interval, MetricKind, QueryError, Scalar};
use serde::{Deserialize, Serialize};

/// What the values of an aggregation mean; none for a field that is not mapped.
pub type Shape = Option<ShapeKind>;

/// See [`Shape`].
pub type ShapeKind = Coding;

/// Value of documents that have none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum MissingValue {
    /// Of a keyword field.
    Text(String),
    /// Of any other field.
    Code(u64),
}

/// One aggregation.
pub struct Plan {
    /// Name, for errors.
    pub name: String,
    /// What to do.
    pub kind: PlanKind,
    /// tantivy's name of the column; none where no document has the field.
    pub column: Option<String>,
    /// Codes of the column; none where the field is not mapped.
    pub coding: Option<Coding>,
    /// `missing`.
    pub missing: Option<MissingValue>,
    /// Below.
    pub sub: Vec<Plan>,
    format: Option<String>,
}

/// What a plan does with the codes of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PlanKind {
    /// A bucket for each code.
    Terms,
    /// A bucket for each interval, in an offset east of UTC (milliseconds).
    Histogram {
        /// Width.
        interval: Interval,
        /// Offset.
        zone_ms: i64,
    },
    /// A number.
    Metric(MetricKind),
}

impl Plan {
    /// Resolves one aggregation and all below it.
    pub fn new(view: &View, aggregation: &Aggregation) -> Result<Self, SearchError> {
        let (path, missing, format, type_name) = match &aggregation.kind {
            AggregationKind::Terms(terms) => (
                &terms.field,
                terms.missing.as_ref(),
                terms.format.as_ref(),
                "terms",
            ),
            AggregationKind::DateHistogram(histogram) => (
                &histogram.field,
                None,
                histogram.format.as_ref(),
                "date_histogram",
            ),
            AggregationKind::Metric(metric) => (
                &metric.field,
                metric.missing.as_ref(),
                metric.format.as_ref(),
                metric.kind.name(),
            ),
        };
        let kind = match &aggregation.kind {
            AggregationKind::Terms(_) => PlanKind::Terms,
            AggregationKind::DateHistogram(histogram) => PlanKind::Histogram {
                interval: histogram.interval,
                zone_ms: i64::from(histogram.time_zone_minutes) * 60_000,
            },
            AggregationKind::Metric(metric) => PlanKind::Metric(metric.kind),
        };
        if path == "_id" {
            return Err(QueryError::illegal(
                "Fielddata access on the _id field is disallowed, you can re-enable it by updating the dynamic cluster setting: \
                 indices.id_field_data.enabled",
            )
            .into());
        }
        if path.starts_with('_') && view.mapping().field(path).is_none() {
            return Err(QueryError::unsupported(format!("an aggregation on field [{path}]")).into());
        }
        let sub = aggregation
            .sub
            .iter()
            .map(|aggregation| Self::new(view, aggregation))
            .collect::<Result<Vec<_>, _>>()?;
        let mut plan = Self {
            name: aggregation.name.clone(),
            kind,
            column: None,
            coding: None,
            missing: None,
            sub,
            format: format.cloned(),
        };
        if let Some(mapped) = view.mapping().field(path) {
            let coding = column_coding(mapped)?;
            check_type(mapped, kind, type_name)?;
            if format.is_some() && !matches!(coding, Coding::Date(_)) {
                return Err(QueryError::unsupported(format!(
                    "[format] of an aggregation on field [{path}] of type [{}]",
                    mapped.kind.name()
                ))
                .into());
            }
            plan.column = view.fields().get(path).map(|_| schema::tantivy_name(path));
            plan.missing = missing.map(|value| missing_of(mapped, value)).transpose()?;
            plan.coding = Some(coding);
        } else if let Some(value) = missing {
            let (coding, missing) = match value {
                Scalar::Text(text) if kind == PlanKind::Terms => {
                    (Coding::Keyword, MissingValue::Text(text.clone()))
                }
                Scalar::Long(value) => (Coding::Long, MissingValue::Code(long(*value))),
                Scalar::Double(value) => (Coding::Double, MissingValue::Code(double(*value))),
                Scalar::Bool(value) => (Coding::Boolean, MissingValue::Code(u64::from(*value))),
                other => {
                    return Err(QueryError::illegal(format!(
                        "Failed to parse [missing] value [{}] of [{}]",
                        other.text(),
                        plan.name
                    ))
                    .into());
                }
            };
            plan.coding = Some(coding);
            plan.missing = Some(missing);
        }
        Ok(plan)
    }

    /// Shapes of this plan and all below it, depth first.
    pub fn shapes(&self, into: &mut Vec<Shape>) {
        into.push(match (&self.coding, &self.format) {
            (Some(Coding::Date(_)), Some(format)) => Some(Coding::Date(format.clone())),
            (coding, _) => coding.clone(),
        });
        for plan in &self.sub {
            plan.shapes(into);
        }
    }
}

fn check_type(mapped: &MappedField, kind: PlanKind, type_name: &str) -> Result<(), SearchError> {
    let fits = match kind {
        PlanKind::Terms | PlanKind::Metric(MetricKind::ValueCount) => true,
        PlanKind::Histogram { .. } => mapped.kind == FieldType::Date,
        PlanKind::Metric(_) => mapped.kind != FieldType::Keyword,
    };
    if fits {
        return Ok(());
    }
    Err(QueryError::illegal(format!(
        "Field [{}] of type [{}] is not supported for aggregation [{type_name}]",
        mapped.name,
        mapped.kind.name()
    ))
    .into())
}

fn missing_of(mapped: &MappedField, value: &Scalar) -> Result<MissingValue, SearchError> {
    if mapped.kind == FieldType::Keyword {
        return Ok(MissingValue::Text(value.text()));
    }
    let text = mapped.date_format();
    let formats = formats(text);
    let dates = DateContext {
        now_ms: 0,
        formats: &formats,
        format_text: text,
        zone_minutes: 0,
    };
    let code = values::code(mapped, value, dates)?.ok_or_else(|| {
        QueryError::illegal(format!(
            "Failed to parse [missing] value [{}] as a [{}]",
            value.text(),
            mapped.kind.name()
        ))
    })?;
    Ok(MissingValue::Code(code))
}
