//! `filter_path`: which parts of an answer are wanted.
//!
//! A path is names joined by `.`; `*` in a name stands for any characters, `**` for any number of names. A path that begins
//! with `-` takes parts out.

use segmentry_query::source::matches;
use serde_json::{Map, Value};

/// What is left of `value`.
pub fn apply(value: Value, paths: &str) -> Value {
    let (out, keep): (Vec<&str>, Vec<&str>) = paths
        .split(',')
        .map(str::trim)
        .filter(|path| !path.is_empty())
        .partition(|path| path.starts_with('-'));
    let keep: Vec<Vec<&str>> = keep.iter().map(|path| path.split('.').collect()).collect();
    let out: Vec<Vec<&str>> = out.iter().map(|path| path[1..].split('.').collect()).collect();
    let kept = if keep.is_empty() {
        Some(value)
    } else {
        include(value, &keep.iter().map(Vec::as_slice).collect::<Vec<_>>())
    };
    let mut kept = kept.unwrap_or_else(|| Value::Object(Map::new()));
    if !out.is_empty() {
        exclude(&mut kept, &out.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }
    kept
}

/// The patterns that go on below `name`; `None` where one of them ends there, so that all below is meant.
fn step<'a>(patterns: &[&'a [&'a str]], name: &str) -> Option<Vec<&'a [&'a str]>> {
    let mut next = Vec::new();
    for pattern in patterns {
        match pattern {
            [] => return None,
            ["**", rest @ ..] => {
                if rest.is_empty() {
                    return None;
                }
                next.push(*pattern);
                next.extend(step(&[rest], name)?);
            }
            [head, rest @ ..] if matches(head, name) => {
                if rest.is_empty() {
                    return None;
                }
                next.push(rest);
            }
            _ => {}
        }
    }
    Some(next)
}

fn include(value: Value, patterns: &[&[&str]]) -> Option<Value> {
    match value {
        Value::Object(map) => {
            let mut kept = Map::new();
            for (name, value) in map {
                match step(patterns, &name) {
                    None => {
                        kept.insert(name, value);
                    }
                    Some(next) if next.is_empty() => {}
                    Some(next) => {
                        if let Some(value) = include(value, &next) {
                            kept.insert(name, value);
                        }
                    }
                }
            }
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        Value::Array(items) => {
            let kept: Vec<Value> = items
                .into_iter()
                .filter_map(|item| include(item, patterns))
                .collect();
            (!kept.is_empty()).then_some(Value::Array(kept))
        }
        _ => None,
    }
}

fn exclude(value: &mut Value, patterns: &[&[&str]]) {
    match value {
        Value::Object(map) => {
            let names: Vec<String> = map.keys().cloned().collect();
            for name in names {
                match step(patterns, &name) {
                    None => {
                        map.shift_remove(&name);
                    }
                    Some(next) if next.is_empty() => {}
                    Some(next) => {
                        if let Some(value) = map.get_mut(&name) {
                            exclude(value, &next);
                        }
                    }
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| exclude(item, patterns)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_keep_and_take_out() {
        let value = json!({"took": 1, "hits": {"total": {"value": 2}, "hits": [{"_id": "a", "_source": {"x": 1}}, {"_id": "b"}]}});
        let table = [
            ("took", json!({"took": 1})),
            (
                "hits.hits._id",
                json!({"hits": {"hits": [{"_id": "a"}, {"_id": "b"}]}}),
            ),
            ("hits.*.value", json!({"hits": {"total": {"value": 2}}})),
            ("**._id", json!({"hits": {"hits": [{"_id": "a"}, {"_id": "b"}]}})),
            (
                "took,hits.total",
                json!({"took": 1, "hits": {"total": {"value": 2}}}),
            ),
            ("-hits", json!({"took": 1})),
            (
                "hits.hits,-**._source",
                json!({"hits": {"hits": [{"_id": "a"}, {"_id": "b"}]}}),
            ),
            ("none", json!({})),
            ("t*k", json!({"took": 1})),
        ];
        for (paths, expected) in table {
            assert_eq!(apply(value.clone(), paths), expected, "{paths}");
        }
    }
}
