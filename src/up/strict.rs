//! A manifest against the published schema, as an API server with strict field validation checks it: unknown fields, types,
//! missing fields, lengths, enumerations.

use serde_json::{Map, Value};

/// The first thing that `value` has and the schema does not allow, with its path.
///
/// # Errors
/// A sentence that names the path and the rule.
pub fn check(value: &Value, schema: &Value, path: &str) -> Result<(), String> {
    // null is "not set"
    if value.is_null() || schema["x-kubernetes-preserve-unknown-fields"] == true {
        return Ok(());
    }
    if schema["x-kubernetes-int-or-string"] == true {
        let fits = value.is_string() || value.is_number();
        return if fits {
            Ok(())
        } else {
            Err(format!("`{path}` must be a number or a string"))
        };
    }
    let (fits, what) = match schema["type"].as_str() {
        Some("object") => (value.is_object(), "an object"),
        Some("array") => (value.is_array(), "a list"),
        Some("string") => (value.is_string(), "a string (quote it)"),
        Some("integer") => (value.is_i64() || value.is_u64(), "a whole number"),
        Some("number") => (value.is_number(), "a number"),
        Some("boolean") => (value.is_boolean(), "true or false"),
        _ => (true, ""),
    };
    if !fits {
        return Err(format!("`{path}` must be {what}"));
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let words: Vec<String> = allowed.iter().map(Value::to_string).collect();
        return Err(format!(
            "`{path}` is {value}: it must be one of {}",
            words.join(", ")
        ));
    }
    bounds(value, schema, path)?;
    match value {
        Value::Object(map) => object(map, schema, path),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .try_for_each(|(number, item)| check(item, &schema["items"], &format!("{path}[{number}]"))),
        _ => Ok(()),
    }
}

fn bounds(value: &Value, schema: &Value, path: &str) -> Result<(), String> {
    let (size, least, most, unit) = match value {
        Value::String(text) => (text.chars().count(), "minLength", "maxLength", "characters"),
        Value::Array(items) => (items.len(), "minItems", "maxItems", "entries"),
        Value::Object(map) => (map.len(), "minProperties", "maxProperties", "entries"),
        _ => return Ok(()),
    };
    let bound = |key: &str| schema[key].as_u64().and_then(|bound| usize::try_from(bound).ok());
    if bound(least).is_some_and(|bound| size < bound) {
        return Err(format!(
            "`{path}` has {size} {unit}: at least {} are needed",
            schema[least]
        ));
    }
    if bound(most).is_some_and(|bound| size > bound) {
        return Err(format!(
            "`{path}` has {size} {unit}: at most {} are allowed",
            schema[most]
        ));
    }
    Ok(())
}

fn object(map: &Map<String, Value>, schema: &Value, path: &str) -> Result<(), String> {
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    let required = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    if let Some(missing) = required
        .into_iter()
        .find(|key| map.get(*key).is_none_or(Value::is_null))
    {
        return Err(format!("`{path}.{missing}` is missing"));
    }
    for (key, value) in map {
        let below = format!("{path}.{key}");
        match (properties.get(key), &schema["additionalProperties"]) {
            (Some(property), _) => check(value, property, &below)?,
            (None, Value::Object(_)) => check(value, &schema["additionalProperties"], &below)?,
            (None, _) => {
                let known: Vec<&str> = properties.keys().map(String::as_str).collect();
                return Err(format!(
                    "`{below}` is no known field: known are {}",
                    known.join(", ")
                ));
            }
        }
    }
    Ok(())
}
