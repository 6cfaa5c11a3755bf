//! Settings JSON: nested and flat forms, and their rendering.

use crate::SettingError;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Deepest nesting that a settings body may have; real ones stay under eight.
const MAX_DEPTH: usize = 16;
/// Most keys that a settings body may have.
const MAX_KEYS: usize = 1_000;

/// Flattens a settings object: `{"index":{"refresh_interval":"1s"}}` and `{"index.refresh_interval":"1s"}` give the same.
///
/// Numbers and booleans become their text; `null` (reset) becomes `None`; an array of scalars becomes a comma list.
///
/// # Errors
/// Not an object, too deep, too many keys, or one key given twice with different values.
pub fn flatten(json: &Value) -> Result<BTreeMap<String, Option<String>>, SettingError> {
    let mut out = BTreeMap::new();
    match json {
        Value::Null => {}
        Value::Object(map) => walk("", map, 0, &mut out)?,
        _ => return Err(SettingError("settings must be an object".into())),
    }
    Ok(out)
}

fn walk(
    prefix: &str,
    map: &Map<String, Value>,
    depth: usize,
    out: &mut BTreeMap<String, Option<String>>,
) -> Result<(), SettingError> {
    if depth > MAX_DEPTH {
        return Err(SettingError(format!(
            "settings are nested deeper than {MAX_DEPTH} levels"
        )));
    }
    for (name, value) in map {
        let key = if prefix.is_empty() {
            name.clone()
        } else {
            format!("{prefix}.{name}")
        };
        let text = match value {
            Value::Object(inner) => {
                walk(&key, inner, depth + 1, out)?;
                continue;
            }
            Value::Null => None,
            other => Some(scalar(&key, other)?),
        };
        if let Some(earlier) = out.get(&key)
            && *earlier != text
        {
            return Err(SettingError(format!(
                "setting [{key}] is given twice with different values"
            )));
        }
        out.insert(key, text);
        if out.len() > MAX_KEYS {
            return Err(SettingError(format!(
                "more than {MAX_KEYS} settings in one request"
            )));
        }
    }
    Ok(())
}

fn scalar(key: &str, value: &Value) -> Result<String, SettingError> {
    match value {
        Value::String(s) => Ok(s.clone()),
        Value::Number(n) => Ok(n.to_string()),
        Value::Bool(b) => Ok(b.to_string()),
        Value::Array(items) => {
            let parts: Result<Vec<_>, _> = items.iter().map(|v| scalar(key, v)).collect();
            Ok(parts?.join(","))
        }
        Value::Null | Value::Object(_) => Err(SettingError(format!(
            "failed to parse value [{value}] for setting [{key}]"
        ))),
    }
}

/// Renders flat settings as `_settings` answers them: nested objects of strings, or flat with `flat_settings=true`.
pub fn render(flat: &BTreeMap<String, String>, flat_settings: bool) -> Value {
    let mut root = Map::new();
    for (key, value) in flat {
        if flat_settings {
            root.insert(key.clone(), Value::String(value.clone()));
        } else {
            insert_nested(&mut root, key, value);
        }
    }
    Value::Object(root)
}

fn insert_nested(map: &mut Map<String, Value>, key: &str, value: &str) {
    let Some((head, rest)) = key.split_once('.') else {
        map.insert(key.to_owned(), Value::String(value.to_owned()));
        return;
    };
    match map
        .entry(head.to_owned())
        .or_insert_with(|| Value::Object(Map::new()))
    {
        Value::Object(inner) => insert_nested(inner, rest, value),
        // `a` and `a.b` both set: OpenSearch keeps the longer one in its dotted form.
        _ => {
            map.insert(key.to_owned(), Value::String(value.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn nested_and_flat_forms_mean_the_same() {
        let nested =
            flatten(&json!({"index": {"translog": {"durability": "async"}, "number_of_shards": 3}})).unwrap();
        let flat =
            flatten(&json!({"index.translog.durability": "async", "index.number_of_shards": "3"})).unwrap();
        assert_eq!(nested, flat);
        assert_eq!(flat["index.number_of_shards"].as_deref(), Some("3"));
    }

    #[test]
    fn null_is_a_reset_and_a_contradiction_is_refused() {
        assert_eq!(
            flatten(&json!({"index": {"refresh_interval": null}})).unwrap()["index.refresh_interval"],
            None
        );
        assert!(flatten(&json!({"index": {"a": 1}, "index.a": 2})).is_err());
        assert!(flatten(&json!([1])).is_err());
    }

    #[test]
    fn rendering_is_nested_strings_or_flat() {
        let flat = BTreeMap::from([
            ("index.a.b".to_owned(), "1".to_owned()),
            ("index.c".to_owned(), "x".to_owned()),
        ]);
        assert_eq!(
            render(&flat, false),
            json!({"index": {"a": {"b": "1"}, "c": "x"}})
        );
        assert_eq!(render(&flat, true), json!({"index.a.b": "1", "index.c": "x"}));
    }

    proptest! {
        #[test]
        fn rendered_settings_flatten_back(keys in proptest::collection::btree_map("[a-c]{1}(\\.[d-f]{1}){0,3}", "[a-z0-9]{0,5}", 0..8)) {
            let expected: BTreeMap<String, Option<String>> = keys.iter().map(|(k, v)| (k.clone(), Some(v.clone()))).collect();
            prop_assert_eq!(flatten(&render(&keys, false)).unwrap(), expected.clone());
            prop_assert_eq!(flatten(&render(&keys, true)).unwrap(), expected);
        }
    }
}
