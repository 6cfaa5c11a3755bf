//! The `_source` filter.
//!
//! A pattern names a path (`a.b`), `*` stands for any characters, dots included. A pattern that matches an object keeps, or leaves out, all
//! below it. What is left out of an object by name leaves the object there, perhaps empty; an object of which nothing is included is not there.

use crate::tree::SourceFilter;
use serde_json::{Map, Value};

/// Compiled patterns of one request.
#[derive(Debug, Clone)]
pub struct Filter<'a> {
    includes: &'a [String],
    excludes: &'a [String],
}

impl SourceFilter {
    /// The filter, where one has to run over the source; none for all or nothing.
    pub fn paths(&self) -> Option<Filter<'_>> {
        match self {
            Self::Paths { includes, excludes } => Some(Filter { includes, excludes }),
            Self::All | Self::None => None,
        }
    }
}

impl Filter<'_> {
    /// What is left of a source.
    pub fn apply(&self, source: Map<String, Value>) -> Map<String, Value> {
        let mut path = String::new();
        self.object(source, &mut path, self.includes.is_empty())
    }

    fn object(&self, source: Map<String, Value>, path: &mut String, included: bool) -> Map<String, Value> {
        let mut kept = Map::new();
        for (key, value) in source {
            let length = path.len();
            if length > 0 {
                path.push('.');
            }
            path.push_str(&key);
            let included = included || self.includes.iter().any(|pattern| matches(pattern, path));
            if !self.excludes.iter().any(|pattern| matches(pattern, path))
                && let Some(value) = self.value(value, path, included)
            {
                kept.insert(key, value);
            }
            path.truncate(length);
        }
        kept
    }

    fn value(&self, value: Value, path: &mut String, included: bool) -> Option<Value> {
        match value {
            Value::Object(map) => {
                let kept = self.object(map, path, included);
                (included || !kept.is_empty()).then_some(Value::Object(kept))
            }
            Value::Array(items) => {
                let was_empty = items.is_empty();
                let kept: Vec<Value> = items
                    .into_iter()
                    .filter_map(|item| self.value(item, path, included))
                    .collect();
                (!kept.is_empty() || (included && was_empty)).then_some(Value::Array(kept))
            }
            scalar => included.then_some(scalar),
        }
    }
}

/// True if a text matches a pattern in which `*` stands for any characters.
pub fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut rest = rest;
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;
    use serde_json::json;

    fn filter(source: Value, includes: &[&str], excludes: &[&str]) -> Value {
        let owned = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
        let filter = SourceFilter::Paths {
            includes: owned(includes),
            excludes: owned(excludes),
        };
        let Value::Object(map) = source else {
            panic!("an object")
        };
        Value::Object(filter.paths().unwrap().apply(map))
    }

    #[test]
    fn patterns_keep_and_leave_out_paths() {
        let source = json!({"a": {"b": 1, "c": [{"d": 2, "e": 3}, {"e": 4}]}, "name": "x", "names": ["y"]});
        assert_eq!(filter(source.clone(), &["a.b"], &[]), json!({"a": {"b": 1}}));
        assert_eq!(
            filter(source.clone(), &["a"], &["a.c.e"]),
            json!({"a": {"b": 1, "c": [{"d": 2}, {}]}})
        );
        assert_eq!(
            filter(source.clone(), &["name*"], &[]),
            json!({"name": "x", "names": ["y"]})
        );
        assert_eq!(
            filter(source.clone(), &["*.d"], &[]),
            json!({"a": {"c": [{"d": 2}]}})
        );
        assert_eq!(
            filter(source.clone(), &[], &["a.*"]),
            json!({"a": {}, "name": "x", "names": ["y"]})
        );
        assert_eq!(
            filter(source.clone(), &[], &["a"]),
            json!({"name": "x", "names": ["y"]})
        );
        assert_eq!(filter(source, &["zzz"], &[]), json!({}));
        assert_eq!(
            filter(json!({"a.b": 1, "l": []}), &["a.b"], &[]),
            json!({"a.b": 1})
        );
    }

    #[test]
    fn stars_match_any_run_of_characters() {
        for (pattern, text, yes) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "abcd", false),
            ("*b*", "abc", true),
            ("a*b*c", "a1b2c", true),
            ("a*a", "a", false),
            ("*ab", "aab", true),
        ] {
            assert_eq!(matches(pattern, text), yes, "{pattern} {text}");
        }
    }
}
