//! Reading JSON values of a request, with OpenSearch's texts where one is not what it should be.

use crate::{error::QueryError, tree::Scalar};
use serde_json::{Map, Value};

/// Name of the token with which a value begins.
pub fn token(value: &Value) -> &'static str {
    match value {
        Value::Null => "VALUE_NULL",
        Value::Bool(_) => "VALUE_BOOLEAN",
        Value::Number(_) => "VALUE_NUMBER",
        Value::String(_) => "VALUE_STRING",
        Value::Array(_) => "START_ARRAY",
        Value::Object(_) => "START_OBJECT",
    }
}

/// A value as an error text shows it: scalars by their text, others by their token.
pub fn found(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(_) | Value::Object(_) => token(value).to_owned(),
        scalar => scalar.to_string(),
    }
}

/// A scalar other than `null`.
pub fn scalar(value: &Value) -> Option<Scalar> {
    match value {
        Value::Bool(value) => Some(Scalar::Bool(*value)),
        Value::String(text) => Some(Scalar::Text(text.clone())),
        Value::Number(number) => Some(match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(value), _, _) => Scalar::Long(value),
            (None, Some(value), _) => Scalar::Unsigned(value),
            (None, None, Some(value)) => Scalar::Double(value),
            (None, None, None) => return None,
        }),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// A whole number, also written as a string or with a fraction of zero.
pub fn as_integer(name: &str, value: &Value) -> Result<i64, QueryError> {
    let read = match value {
        Value::Number(number) => match number.as_i64() {
            Some(value) => Some(value),
            None => number.as_f64().and_then(whole),
        },
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    read.filter(|value| i32::try_from(*value).is_ok()).ok_or_else(|| {
        QueryError::illegal(format!(
            "Failed to parse int parameter [{name}] with value [{}]",
            found(value)
        ))
    })
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "checked to be a whole number of less than 2^53"
)]
fn whole(value: f64) -> Option<i64> {
    (value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0).then_some(value as i64)
}

/// A boolean, also written as a string.
pub fn as_bool(name: &str, value: &Value) -> Result<bool, QueryError> {
    match value {
        Value::Bool(value) => Ok(*value),
        Value::String(text) if text == "true" => Ok(true),
        Value::String(text) if text == "false" => Ok(false),
        other => Err(QueryError::illegal(format!(
            "Failed to parse value [{}] of [{name}] as only [true] or [false] are allowed.",
            found(other)
        ))),
    }
}

/// A number, also written as a string.
#[allow(
    clippy::cast_possible_truncation,
    reason = "scores are single precision, as in OpenSearch; the result is checked to be finite"
)]
pub fn as_f32(name: &str, value: &Value) -> Result<f32, QueryError> {
    let read = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse::<f64>().ok(),
        _ => None,
    };
    read.map(|value| value as f32)
        .filter(|value| value.is_finite())
        .ok_or_else(|| {
            QueryError::illegal(format!(
                "Failed to parse float parameter [{name}] with value [{}]",
                found(value)
            ))
        })
}

/// A boost: a number that is not negative.
pub fn as_boost(query: &str, value: &Value) -> Result<f32, QueryError> {
    let boost = as_f32("boost", value)?;
    if boost < 0.0 {
        return Err(QueryError::illegal(format!(
            "negative [boost] are not allowed in [{query}] query, use a value between 0 and 1 to deboost"
        )));
    }
    Ok(boost)
}

/// A string.
pub fn as_str<'a>(name: &str, value: &'a Value) -> Result<&'a str, QueryError> {
    value
        .as_str()
        .ok_or_else(|| QueryError::illegal(format!("[{name}] must be a string, found [{}]", found(value))))
}

/// The body of a query: an object.
pub fn body<'a>(name: &str, value: &'a Value) -> Result<&'a Map<String, Value>, QueryError> {
    value.as_object().ok_or_else(|| {
        QueryError::parsing(format!(
            "[{name}] query malformed, no start_object after query name"
        ))
    })
}

/// `"[x] query does not support [foo]"`.
pub fn not_supported(query: &str, key: &str) -> QueryError {
    QueryError::parsing(format!("[{query}] query does not support [{key}]"))
}

/// `"[x] unknown field [foo]"`, of objects that OpenSearch reads with its object parser.
pub fn unknown_field(object: &str, key: &str) -> QueryError {
    QueryError::new(
        crate::error::QueryErrorKind::XContentParseException,
        format!("[{object}] unknown field [{key}]"),
    )
}
