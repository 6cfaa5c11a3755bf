//! Index names: what a new one may be, and which indices an expression means.

use crate::ApiError;
use segmentry_query::source::matches;
use segmentry_state::{ClusterState, Index};
use std::sync::Arc;

/// Longest index name, in bytes (OpenSearch's bound).
pub const MAX_NAME_BYTES: usize = 255;

/// How an expression that finds nothing is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameOptions {
    /// `ignore_unavailable`: an exact name that does not exist is skipped.
    pub ignore_unavailable: bool,
    /// `allow_no_indices`: a wildcard (or `_all`) may match nothing.
    pub allow_no_indices: bool,
    /// `expand_wildcards` other than `none`: wildcards match open indices.
    pub expand_wildcards: bool,
}

impl Default for NameOptions {
    fn default() -> Self {
        Self {
            ignore_unavailable: false,
            allow_no_indices: true,
            expand_wildcards: true,
        }
    }
}

/// Refuses a name that OpenSearch would refuse for a new index.
pub fn validate_new(name: &str) -> Result<(), ApiError> {
    let refuse = |why: &str| {
        Err(ApiError::new(
            400,
            "invalid_index_name_exception",
            format!("Invalid index name [{name}], {why}"),
        )
        .about_name(name))
    };
    if name.is_empty() {
        return refuse("must not be empty");
    }
    if name == "." || name == ".." {
        return refuse("must not be '.' or '..'");
    }
    if name.starts_with(['_', '-', '+']) {
        return refuse("must not start with '_', '-', or '+'");
    }
    if let Some(bad) = name.chars().find(|c| {
        matches!(
            c,
            '\\' | '/' | '*' | '?' | '"' | '<' | '>' | '|' | ' ' | ',' | '#' | ':'
        ) || c.is_control()
    }) {
        return refuse(&format!("must not contain the following characters [{bad}]"));
    }
    if name.chars().any(char::is_uppercase) {
        return refuse("must be lowercase");
    }
    if name.len() > MAX_NAME_BYTES {
        return refuse(&format!(
            "index name is too long, ({} > {MAX_NAME_BYTES})",
            name.len()
        ));
    }
    Ok(())
}

/// The indices of an expression: names, comma lists, `*` and `-` (taken out of what came before), `_all`, by name.
/// No expression means all.
pub fn resolve(
    state: &ClusterState,
    expression: Option<&str>,
    options: NameOptions,
) -> Result<Vec<Arc<Index>>, ApiError> {
    let mut all: Vec<&Arc<Index>> = state.indices.values().collect();
    all.sort_by(|left, right| left.name.cmp(&right.name));
    let expression = expression.unwrap_or("_all");
    let mut found: Vec<Arc<Index>> = Vec::new();
    let mut wildcard = false;
    for part in expression.split(',').filter(|part| !part.is_empty()) {
        let pattern = if part == "_all" { "*" } else { part };
        if let Some(excluded) = pattern.strip_prefix('-').filter(|_| wildcard) {
            found.retain(|index| !matches(excluded, &index.name));
            continue;
        }
        if pattern.contains('*') {
            wildcard = true;
            let before = found.len();
            if options.expand_wildcards {
                for index in all.iter().filter(|index| matches(pattern, &index.name)) {
                    if !found.iter().any(|known| known.uuid == index.uuid) {
                        found.push(Arc::clone(index));
                    }
                }
            }
            if found.len() == before && !options.allow_no_indices {
                return Err(ApiError::no_index(part));
            }
            continue;
        }
        match all.iter().find(|index| index.name == pattern) {
            Some(index) if found.iter().any(|known| known.uuid == index.uuid) => {}
            Some(index) => found.push(Arc::clone(index)),
            None if options.ignore_unavailable => {}
            None => return Err(ApiError::no_index(part)),
        }
    }
    if found.is_empty() && !options.allow_no_indices {
        return Err(ApiError::no_index(expression));
    }
    Ok(found)
}

/// The one index of an exact name.
pub fn exact(state: &ClusterState, name: &str) -> Result<Arc<Index>, ApiError> {
    state
        .index_by_name(name)
        .cloned()
        .ok_or_else(|| ApiError::no_index(name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;
    use segmentry_settings::index::IndexSettings;
    use uuid::Uuid;

    fn state(names: &[&str]) -> ClusterState {
        let mut state = ClusterState::default();
        for name in names {
            let uuid = Uuid::new_v4();
            let index = Index {
                uuid,
                name: (*name).to_owned(),
                settings: IndexSettings::default(),
                settings_version: 1,
                mapping: Arc::default(),
                owner: None,
                created_ms: 0,
                shards: Vec::new(),
            };
            state.indices.insert(uuid, Arc::new(index));
        }
        state
    }

    fn names(
        state: &ClusterState,
        expression: Option<&str>,
        options: NameOptions,
    ) -> Result<Vec<String>, String> {
        resolve(state, expression, options)
            .map(|list| list.iter().map(|index| index.name.clone()).collect())
            .map_err(|error| error.reason)
    }

    #[test]
    fn expressions_mean_what_they_mean_in_opensearch() {
        let state = state(&["logs-1", "logs-2", "other"]);
        let default = NameOptions::default();
        let table: [(Option<&str>, &[&str]); 8] = [
            (None, &["logs-1", "logs-2", "other"]),
            (Some("_all"), &["logs-1", "logs-2", "other"]),
            (Some("*"), &["logs-1", "logs-2", "other"]),
            (Some("other"), &["other"]),
            (Some("logs-*"), &["logs-1", "logs-2"]),
            (Some("other,logs-2,other"), &["other", "logs-2"]),
            (Some("logs-*,-logs-1"), &["logs-2"]),
            (Some("none*"), &[]),
        ];
        for (expression, expected) in table {
            assert_eq!(
                names(&state, expression, default).unwrap(),
                expected,
                "{expression:?}"
            );
        }
        assert_eq!(
            names(&state, Some("none"), default).unwrap_err(),
            "no such index [none]"
        );
        let lenient = NameOptions {
            ignore_unavailable: true,
            ..default
        };
        assert_eq!(names(&state, Some("none,other"), lenient).unwrap(), ["other"]);
        let strict = NameOptions {
            allow_no_indices: false,
            ..default
        };
        assert_eq!(
            names(&state, Some("none*"), strict).unwrap_err(),
            "no such index [none*]"
        );
    }

    #[test]
    fn names_that_opensearch_refuses_are_refused() {
        for bad in [
            "", ".", "..", "_a", "-a", "+a", "A", "a b", "a/b", "a*", "a,b", "a:b", "a#b", "a\"b", "a\nb",
        ] {
            let error = validate_new(bad).unwrap_err();
            assert_eq!(
                (error.status, error.kind.as_str()),
                (400, "invalid_index_name_exception"),
                "{bad}"
            );
        }
        assert!(validate_new(&"a".repeat(256)).is_err());
        for good in ["a", "logs-2026.12.01", ".hidden", "ü", "a_b-c+d"] {
            assert!(validate_new(good).is_ok(), "{good}");
        }
    }
}
