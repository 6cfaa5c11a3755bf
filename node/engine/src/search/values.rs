//! Values of a query as codes of the field that they are compared with.

use super::coding::{double, long};
use segmentry_mapping::{
    Field as MappedField, FieldType,
    date::{Fill, Formats},
};
use segmentry_query::{QueryError, RangeBound, Scalar, date};
use std::ops::RangeInclusive;

/// Codes that match a value; none: no document can have it.
pub type CodeRange = Option<RangeInclusive<u64>>;

/// Moment and format with which dates of a query are read.
#[derive(Clone, Copy)]
pub struct DateContext<'a> {
    /// `now`.
    pub now_ms: i64,
    /// Formats, parsed, and as they were written.
    pub formats: &'a Formats,
    /// As they were written.
    pub format_text: &'a str,
    /// Offset of dates that carry none.
    pub zone_minutes: i32,
}

fn not_a_number(value: &Scalar) -> QueryError {
    QueryError::shard(format!(
        "failed to create query: For input string: \"{}\"",
        value.text()
    ))
}

fn number(value: &Scalar) -> Result<f64, QueryError> {
    match value {
        Scalar::Long(value) => Ok(*value as f64),
        Scalar::Unsigned(value) => Ok(*value as f64),
        Scalar::Double(value) => Ok(*value),
        Scalar::Text(text) => {
            // Rust also reads `inf` and `nan`, which no client means.
            let plain = text
                .bytes()
                .all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+' | b'e' | b'E'));
            text.parse::<f64>()
                .ok()
                .filter(|value| plain && value.is_finite())
                .ok_or_else(|| not_a_number(value))
        }
        Scalar::Bool(_) | Scalar::Null => Err(not_a_number(value)),
    }
}

/// A number as a whole one below and a whole one above, equal where it has no fraction. Saturates at 64 bits; `true` where it did.
fn whole(value: &Scalar) -> Result<(i64, i64, bool), QueryError> {
    let exact = match value {
        Scalar::Long(value) => Some(*value),
        Scalar::Text(text) => text.parse::<i64>().ok(),
        _ => None,
    };
    if let Some(value) = exact {
        return Ok((value, value, false));
    }
    let value = number(value)?;
    let outside = !(-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&value);
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a cast of a float saturates, which is what is wanted"
    )]
    Ok((value.floor() as i64, value.ceil() as i64, outside))
}

/// Codes equal to a value of a field with a column of numbers, dates or booleans.
pub fn equal(field: &MappedField, value: &Scalar, dates: DateContext<'_>) -> Result<CodeRange, QueryError> {
    let one = |code: u64| Some(code..=code);
    match field.kind {
        FieldType::Long | FieldType::Integer | FieldType::Short | FieldType::Byte => {
            let (low, high, outside) = whole(value)?;
            Ok(if low == high && !outside {
                one(long(low))
            } else {
                None
            })
        }
        FieldType::Double | FieldType::Float => Ok(one(double(number(value)?))),
        FieldType::Boolean => Ok(one(u64::from(boolean(value)?))),
        // A date of lower precision means all of its moments.
        FieldType::Date => Ok(Some(
            long(moment(value, dates, Fill::Low)?)..=long(moment(value, dates, Fill::High)?),
        )),
        FieldType::Keyword | FieldType::Text => Ok(None),
    }
}

/// Codes between two bounds of a field with a column of numbers, dates or booleans.
pub fn between(
    field: &MappedField,
    lower: &RangeBound,
    upper: &RangeBound,
    dates: DateContext<'_>,
) -> Result<CodeRange, QueryError> {
    let low = match lower {
        RangeBound::Open => Some(0),
        RangeBound::Included(value) => lowest(field, value, true, dates)?,
        RangeBound::Excluded(value) => lowest(field, value, false, dates)?,
    };
    let high = match upper {
        RangeBound::Open => Some(u64::MAX),
        RangeBound::Included(value) => highest(field, value, true, dates)?,
        RangeBound::Excluded(value) => highest(field, value, false, dates)?,
    };
    Ok(match (low, high) {
        (Some(low), Some(high)) if low <= high => Some(low..=high),
        _ => None,
    })
}

fn lowest(
    field: &MappedField,
    value: &Scalar,
    included: bool,
    dates: DateContext<'_>,
) -> Result<Option<u64>, QueryError> {
    Ok(match field.kind {
        FieldType::Long | FieldType::Integer | FieldType::Short | FieldType::Byte => {
            let (low, high, outside) = whole(value)?;
            match (outside, low > 0) {
                (true, true) => None,
                (true, false) => Some(0),
                (false, _) if included || low != high => Some(long(high)),
                (false, _) => high.checked_add(1).map(long),
            }
        }
        FieldType::Double | FieldType::Float => {
            let code = double(number(value)?);
            if included { Some(code) } else { code.checked_add(1) }
        }
        FieldType::Boolean => {
            let code = u64::from(boolean(value)?);
            if included { Some(code) } else { Some(code + 1) }
        }
        FieldType::Date if included => Some(long(moment(value, dates, Fill::Low)?)),
        FieldType::Date => moment(value, dates, Fill::High)?.checked_add(1).map(long),
        FieldType::Keyword | FieldType::Text => None,
    })
}

fn highest(
    field: &MappedField,
    value: &Scalar,
    included: bool,
    dates: DateContext<'_>,
) -> Result<Option<u64>, QueryError> {
    Ok(match field.kind {
        FieldType::Long | FieldType::Integer | FieldType::Short | FieldType::Byte => {
            let (low, high, outside) = whole(value)?;
            match (outside, low > 0) {
                (true, true) => Some(u64::MAX),
                (true, false) => None,
                (false, _) if included || low != high => Some(long(low)),
                (false, _) => low.checked_sub(1).map(long),
            }
        }
        FieldType::Double | FieldType::Float => {
            let code = double(number(value)?);
            if included { Some(code) } else { code.checked_sub(1) }
        }
        FieldType::Boolean => {
            let code = u64::from(boolean(value)?);
            if included { Some(code) } else { code.checked_sub(1) }
        }
        FieldType::Date if included => Some(long(moment(value, dates, Fill::High)?)),
        FieldType::Date => moment(value, dates, Fill::Low)?.checked_sub(1).map(long),
        FieldType::Keyword | FieldType::Text => None,
    })
}

fn moment(value: &Scalar, dates: DateContext<'_>, fill: Fill) -> Result<i64, QueryError> {
    date::resolve(
        &value.text(),
        dates.formats,
        dates.format_text,
        dates.now_ms,
        fill,
        dates.zone_minutes,
    )
}

fn boolean(value: &Scalar) -> Result<bool, QueryError> {
    match value {
        Scalar::Bool(value) => Ok(*value),
        Scalar::Text(text) if text == "true" => Ok(true),
        Scalar::Text(text) if text == "false" || text.is_empty() => Ok(false),
        other => Err(QueryError::shard(format!(
            "failed to create query: Can't parse boolean value [{}], expected [true] or [false]",
            other.text()
        ))),
    }
}

/// The code of one value: of `missing` in an aggregation, of `search_after`.
pub fn code(field: &MappedField, value: &Scalar, dates: DateContext<'_>) -> Result<Option<u64>, QueryError> {
    Ok(equal(field, value, dates)?.map(|range| *range.start()))
}
