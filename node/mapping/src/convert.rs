//! One JSON scalar as a value of a field's type, with OpenSearch's coercions (`coerce` is on, `ignore_malformed` off).
//!
//! Numbers in text and keyword fields are written as JSON would print them again (`1e3` becomes `1000.0`). Floats keep the full
//! precision of a double.

use crate::{
    Cause, Field, FieldType, FieldValue,
    date::{Fill, Formats},
};

/// Longest value of a keyword, in bytes.
pub const MAX_KEYWORD_BYTES: usize = 32_766;

/// A JSON scalar as it stands in a document or a query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar<'a> {
    /// String.
    Str(&'a str),
    /// Whole number.
    I64(i64),
    /// Whole number above `i64::MAX`.
    U64(u64),
    /// Number with a fraction or an exponent, or a whole one outside 64 bits.
    F64(f64),
    /// `true` or `false`.
    Bool(bool),
}

impl Scalar<'_> {
    /// As text fields take it, and as error texts show it.
    pub fn text(self) -> String {
        match self {
            Self::Str(text) => text.to_owned(),
            Self::I64(value) => value.to_string(),
            Self::U64(value) => value.to_string(),
            Self::F64(value) => serde_json::Number::from_f64(value)
                .map_or_else(|| value.to_string(), |number| number.to_string()),
            Self::Bool(value) => value.to_string(),
        }
    }
}

/// Date formats of one field, parsed once.
pub fn formats_of(field: &Field) -> Formats {
    // A mapping is refused if its format does not parse, so the default is never a silent replacement.
    Formats::parse(field.date_format()).unwrap_or_default()
}

/// The value that a field takes from a scalar; none if the field ignores it (`ignore_above`, an empty string for a number).
/// `formats` are those of the field ([`formats_of`]), used for dates only.
pub fn convert(
    field: &Field,
    formats: Option<&Formats>,
    scalar: Scalar<'_>,
) -> Result<Option<FieldValue>, Cause> {
    match field.kind {
        FieldType::Text => Ok(Some(FieldValue::Text(scalar.text()))),
        FieldType::Keyword => {
            let text = scalar.text();
            // UTF-16 units in OpenSearch; characters here, which is what its documentation says.
            if field
                .ignore_above
                .is_some_and(|limit| text.chars().count() > limit as usize)
            {
                return Ok(None);
            }
            if text.len() > MAX_KEYWORD_BYTES {
                return Err(Cause::illegal_argument(format!(
                    "Document contains at least one immense term in field=\"{}\" (whose UTF8 encoding is longer than the max length {MAX_KEYWORD_BYTES}), all of which were skipped",
                    field.name
                )));
            }
            Ok(Some(FieldValue::Text(text)))
        }
        FieldType::Long | FieldType::Integer | FieldType::Short | FieldType::Byte => {
            Ok(integer(field.kind, scalar)?.map(FieldValue::Long))
        }
        FieldType::Double | FieldType::Float => Ok(double(field.kind, scalar)?.map(FieldValue::Double)),
        FieldType::Boolean => match scalar {
            Scalar::Bool(value) => Ok(Some(FieldValue::Boolean(value))),
            Scalar::Str("true") => Ok(Some(FieldValue::Boolean(true))),
            Scalar::Str("false" | "") => Ok(Some(FieldValue::Boolean(false))),
            other => Err(Cause::illegal_argument(format!(
                "Failed to parse value [{}] as only [true] or [false] are allowed.",
                other.text()
            ))),
        },
        FieldType::Date => {
            let text = scalar.text();
            let parsed = match formats {
                Some(formats) => formats.millis(&text, Fill::Low),
                None => formats_of(field).millis(&text, Fill::Low),
            };
            match (parsed, scalar) {
                (Some(millis), Scalar::Str(_) | Scalar::I64(_) | Scalar::U64(_) | Scalar::F64(_)) => {
                    Ok(Some(FieldValue::Date(millis)))
                }
                _ => Err(Cause::illegal_argument(format!(
                    "failed to parse date field [{text}] with format [{}]",
                    field.date_format()
                ))),
            }
        }
    }
}

fn type_word(kind: FieldType) -> &'static str {
    match kind {
        FieldType::Integer => "an integer",
        FieldType::Short => "a short",
        FieldType::Byte => "a byte",
        FieldType::Long => "a long",
        other => other.name(),
    }
}

fn not_numeric(value: bool) -> Cause {
    let token = if value { "VALUE_TRUE" } else { "VALUE_FALSE" };
    Cause {
        kind: "input_coercion_exception",
        reason: format!("Current token ({token}) not numeric, can not use numeric value accessors"),
    }
}

fn integer(kind: FieldType, scalar: Scalar<'_>) -> Result<Option<i64>, Cause> {
    let out_of_range = || {
        Cause::illegal_argument(format!(
            "Value [{}] is out of range for {}",
            scalar.text(),
            type_word(kind)
        ))
    };
    let value = match scalar {
        Scalar::Bool(value) => return Err(not_numeric(value)),
        Scalar::I64(value) => value,
        Scalar::U64(_) => return Err(out_of_range()),
        Scalar::F64(value) => truncate(value).ok_or_else(out_of_range)?,
        Scalar::Str("") => return Ok(None),
        Scalar::Str(text) => {
            if let Ok(value) = text.parse::<i64>() {
                value
            } else {
                truncate(decimal(text)?).ok_or_else(out_of_range)?
            }
        }
    };
    match kind.integer_bounds() {
        Some((low, high)) if (low..=high).contains(&value) => Ok(Some(value)),
        _ => Err(out_of_range()),
    }
}

/// Towards zero; none outside of 64 bits.
#[allow(
    clippy::cast_possible_truncation,
    reason = "the range is checked: -2^63 <= value < 2^63"
)]
fn truncate(value: f64) -> Option<i64> {
    const BOUND: f64 = 9_223_372_036_854_775_808.0;
    (value.is_finite() && (-BOUND..BOUND).contains(&value)).then_some(value as i64)
}

/// Rust also reads `inf`, `nan` and `infinity`, which no client means.
fn decimal(text: &str) -> Result<f64, Cause> {
    let plain = !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+' | b'e' | b'E'));
    match text.parse::<f64>() {
        Ok(value) if plain => Ok(value),
        _ => Err(Cause::illegal_argument(format!("For input string: \"{text}\""))),
    }
}

fn double(kind: FieldType, scalar: Scalar<'_>) -> Result<Option<f64>, Cause> {
    let value = match scalar {
        Scalar::Bool(value) => return Err(not_numeric(value)),
        Scalar::I64(value) => value as f64,
        Scalar::U64(value) => value as f64,
        Scalar::F64(value) => value,
        Scalar::Str("") => return Ok(None),
        Scalar::Str(text) => decimal(text)?,
    };
    let finite = match kind {
        FieldType::Float => value.abs() <= f64::from(f32::MAX),
        _ => value.is_finite(),
    };
    if finite {
        Ok(Some(value))
    } else {
        Err(Cause::illegal_argument(format!(
            "[{}] supports only finite values, but got [{}]",
            kind.name(),
            scalar.text()
        )))
    }
}
