//! `sort` and `search_after`.

use super::json::{as_str, found, scalar, token, unknown_field};
use crate::{
    error::QueryError,
    tree::{Missing, Order, Scalar, Sort, SortMode, SortTarget},
};
use segmentry_mapping::FieldType;
use serde_json::{Map, Value};

/// Reads `sort`: one criterion or an array of them.
pub fn parse(value: &Value) -> Result<Vec<Sort>, QueryError> {
    let mut sorts = Vec::new();
    match value {
        Value::Array(items) => {
            for item in items {
                one(item, &mut sorts)?;
            }
        }
        item => one(item, &mut sorts)?,
    }
    Ok(sorts)
}

/// A sort by score alone, highest first, is the default order.
pub fn normalise(sorts: Vec<Sort>) -> Vec<Sort> {
    match sorts.as_slice() {
        [
            Sort {
                target: SortTarget::Score,
                order: Order::Desc,
                ..
            },
        ] => Vec::new(),
        _ => sorts,
    }
}

fn one(value: &Value, sorts: &mut Vec<Sort>) -> Result<(), QueryError> {
    match value {
        Value::String(field) => sorts.push(by_name(field)?),
        Value::Object(map) => {
            for (field, options) in map {
                sorts.push(by_options(field, options)?);
            }
        }
        other => {
            return Err(QueryError::illegal(format!(
                "malformed sort format, within the sort array, an object, or an actual string are allowed, found [{}]",
                token(other)
            )));
        }
    }
    Ok(())
}

/// A field (or `_score`, `_doc`) with its default order.
pub fn by_name(field: &str) -> Result<Sort, QueryError> {
    let target = match field {
        "_score" => SortTarget::Score,
        "_doc" => SortTarget::Doc,
        "" => return Err(QueryError::illegal("fieldName must not be null")),
        "_id" => {
            return Err(QueryError::illegal(
                "Fielddata access on the _id field is disallowed, you can re-enable it by updating the dynamic cluster setting: \
                 indices.id_field_data.enabled",
            ));
        }
        "_geo_distance" | "_script" => return Err(QueryError::unsupported(format!("sort [{field}]"))),
        field => SortTarget::Field(field.to_owned()),
    };
    let order = if target == SortTarget::Score {
        Order::Desc
    } else {
        Order::Asc
    };
    Ok(Sort {
        target,
        order,
        missing: Missing::Last,
        mode: None,
        unmapped_type: None,
    })
}

fn by_options(field: &str, options: &Value) -> Result<Sort, QueryError> {
    let mut sort = by_name(field)?;
    match options {
        Value::String(order) => sort.order = parse_order(order)?,
        Value::Object(map) => apply_options(&mut sort, map)?,
        other => {
            return Err(QueryError::parsing(format!(
                "[field_sort] malformed options of [{field}], found [{}]",
                token(other)
            )));
        }
    }
    Ok(sort)
}

fn apply_options(sort: &mut Sort, map: &Map<String, Value>) -> Result<(), QueryError> {
    let of_field = matches!(sort.target, SortTarget::Field(_));
    for (key, value) in map {
        match key.as_str() {
            "order" => sort.order = parse_order(as_str(key, value)?)?,
            "missing" if of_field => {
                sort.missing = match value {
                    Value::String(text) if text == "_last" => Missing::Last,
                    Value::String(text) if text == "_first" => Missing::First,
                    other => {
                        return Err(QueryError::unsupported(format!(
                            "[missing] of a sort other than _first and _last, found [{}],",
                            found(other)
                        )));
                    }
                }
            }
            "mode" if of_field => {
                sort.mode = Some(match as_str(key, value)?.to_ascii_lowercase().as_str() {
                    "min" => SortMode::Min,
                    "max" => SortMode::Max,
                    mode @ ("sum" | "avg" | "median") => {
                        return Err(QueryError::unsupported(format!("sort mode [{mode}]")));
                    }
                    mode => return Err(QueryError::illegal(format!("Unknown SortMode [{mode}]"))),
                });
            }
            "unmapped_type" if of_field => {
                let name = as_str(key, value)?;
                if FieldType::of_name(name).is_none() {
                    return Err(QueryError::illegal(format!("No mapper found for type [{name}]")));
                }
                sort.unmapped_type = Some(name.to_owned());
            }
            "nested" | "nested_path" | "nested_filter" | "numeric_type" | "format" if of_field => {
                return Err(QueryError::unsupported(format!("[{key}] of a sort")));
            }
            other => {
                return Err(unknown_field(
                    if of_field { "field_sort" } else { "_score" },
                    other,
                ));
            }
        }
    }
    Ok(())
}

/// `asc` or `desc`.
pub fn parse_order(text: &str) -> Result<Order, QueryError> {
    match text.to_ascii_lowercase().as_str() {
        "asc" => Ok(Order::Asc),
        "desc" => Ok(Order::Desc),
        _ => Err(QueryError::illegal(format!("Unknown SortOrder [{text}]"))),
    }
}

/// Reads `search_after`.
pub fn parse_after(value: &Value) -> Result<Vec<Scalar>, QueryError> {
    let Value::Array(items) = value else {
        return Err(QueryError::parsing(format!(
            "Expected [START_ARRAY] in [search_after] but found [{}]",
            token(value)
        )));
    };
    if items.is_empty() {
        return Err(QueryError::illegal("Values must contains at least one value."));
    }
    items
        .iter()
        .map(|item| match item {
            Value::Null => Ok(Scalar::Null),
            item => scalar(item).ok_or_else(|| {
                QueryError::parsing(format!(
                    "Expected [VALUE_STRING] or [VALUE_NUMBER] or [VALUE_BOOLEAN] or [VALUE_NULL] but found [{}] inside search_after.",
                    token(item)
                ))
            }),
        })
        .collect()
}
