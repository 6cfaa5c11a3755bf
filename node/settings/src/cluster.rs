//! Persistent cluster settings: only those that have an effect here.

use crate::{Durability, ReplicationType, SettingError, flat, unsupported};
use serde_json::Value;
use std::collections::BTreeMap;

/// Spread primaries evenly (per index first, then over the cluster). On by default here, off in OpenSearch.
pub const PREFER_PRIMARY: &str = "cluster.routing.allocation.balance.prefer_primary";
/// Replication type of new indices that do not name one.
pub const REPLICATION_STRATEGY: &str = "cluster.indices.replication.strategy";
/// Translog durability of new indices that do not name one.
pub const DEFAULT_DURABILITY: &str = "cluster.segmentry.translog.durability";

/// Every cluster setting that this node acts upon.
pub const SETTINGS: [&str; 3] = [PREFER_PRIMARY, REPLICATION_STRATEGY, DEFAULT_DURABILITY];

/// The cluster settings in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterSettings {
    /// See [`PREFER_PRIMARY`].
    pub prefer_primary: bool,
    /// See [`REPLICATION_STRATEGY`].
    pub replication_strategy: ReplicationType,
    /// See [`DEFAULT_DURABILITY`]; none where it is not set.
    pub translog_durability: Option<Durability>,
}

impl Default for ClusterSettings {
    fn default() -> Self {
        Self {
            prefer_primary: true,
            replication_strategy: ReplicationType::Document,
            translog_durability: None,
        }
    }
}

impl ClusterSettings {
    /// The settings in force, from the flat map of the cluster state.
    ///
    /// # Errors
    /// A key or value that [`validate`] would refuse.
    pub fn from_flat(flat: &BTreeMap<String, String>) -> Result<Self, SettingError> {
        let mut out = Self::default();
        for (key, value) in flat {
            match key.as_str() {
                PREFER_PRIMARY => out.prefer_primary = boolean(value)?,
                REPLICATION_STRATEGY => out.replication_strategy = ReplicationType::parse(value)?,
                DEFAULT_DURABILITY => out.translog_durability = Some(Durability::parse(key, value)?),
                other => return Err(refusal(other)),
            }
        }
        Ok(out)
    }

    /// All settings with the values in force, flat.
    pub fn effective(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            (PREFER_PRIMARY.to_owned(), self.prefer_primary.to_string()),
            (
                REPLICATION_STRATEGY.to_owned(),
                self.replication_strategy.as_str().to_owned(),
            ),
            (
                DEFAULT_DURABILITY.to_owned(),
                self.translog_durability.unwrap_or_default().as_str().to_owned(),
            ),
        ])
    }
}

/// Checks one setting and answers the text to store.
///
/// # Errors
/// Unknown, not supported, or a malformed value.
pub fn validate(key: &str, value: &str) -> Result<String, SettingError> {
    Ok(match key {
        PREFER_PRIMARY => boolean(value)?.to_string(),
        REPLICATION_STRATEGY => ReplicationType::parse(value)?.as_str().to_owned(),
        DEFAULT_DURABILITY => Durability::parse(key, value)?.as_str().to_owned(),
        other => return Err(refusal(other)),
    })
}

/// The flat map after an update: values are checked and normalised, `None` removes, a key that ends in `*` with `None`
/// removes all that it matches.
///
/// # Errors
/// As [`validate`]; also the removal of a key that does not exist as a setting.
pub fn update(
    current: &BTreeMap<String, String>,
    changes: &BTreeMap<String, Option<String>>,
) -> Result<BTreeMap<String, String>, SettingError> {
    let mut next = current.clone();
    for (key, value) in changes {
        match value {
            Some(value) => {
                next.insert(key.clone(), validate(key, value)?);
            }
            None => match key.strip_suffix('*') {
                Some(prefix) => next.retain(|k, _| !k.starts_with(prefix)),
                None if SETTINGS.contains(&key.as_str()) => {
                    next.remove(key);
                }
                None => return Err(refusal(key)),
            },
        }
    }
    Ok(next)
}

/// The changes in the `persistent` object of a `PUT /_cluster/settings` body, checked.
///
/// # Errors
/// See [`flat::flatten`] and [`validate`].
pub fn parse_update(json: &Value) -> Result<BTreeMap<String, Option<String>>, SettingError> {
    let changes = flat::flatten(json)?;
    update(&BTreeMap::new(), &changes)?;
    Ok(changes)
}

fn refusal(key: &str) -> SettingError {
    if unsupported::cluster(key) {
        SettingError(format!("setting [{key}] is not supported by Segmentry yet"))
    } else {
        SettingError(format!("persistent setting [{key}], not recognized"))
    }
}

fn boolean(value: &str) -> Result<bool, SettingError> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(SettingError(format!(
            "Failed to parse value [{value}] as only [true] or [false] are allowed."
        ))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;
    use serde_json::json;

    #[test]
    fn primaries_are_spread_unless_it_is_switched_off() {
        assert!(
            ClusterSettings::from_flat(&BTreeMap::new())
                .unwrap()
                .prefer_primary
        );
        let off = BTreeMap::from([(PREFER_PRIMARY.to_owned(), "false".to_owned())]);
        assert!(!ClusterSettings::from_flat(&off).unwrap().prefer_primary);
    }

    #[test]
    fn values_are_checked_and_normalised() {
        let changes =
            parse_update(&json!({"cluster": {"indices": {"replication": {"strategy": "segment"}}}})).unwrap();
        let next = update(&BTreeMap::new(), &changes).unwrap();
        assert_eq!(next[REPLICATION_STRATEGY], "SEGMENT");
        assert!(validate(PREFER_PRIMARY, "yes").is_err());
        let gone = update(&next, &BTreeMap::from([("cluster.indices.*".to_owned(), None)])).unwrap();
        assert!(gone.is_empty());
    }

    #[test]
    fn what_has_no_effect_is_refused_by_name() {
        assert_eq!(
            validate("cluster.routing.allocation.enable", "none")
                .unwrap_err()
                .0,
            "setting [cluster.routing.allocation.enable] is not supported by Segmentry yet"
        );
        assert_eq!(
            validate("foo.bar", "1").unwrap_err().0,
            "persistent setting [foo.bar], not recognized"
        );
        assert!(update(&BTreeMap::new(), &BTreeMap::from([("foo.bar".to_owned(), None)])).is_err());
    }
}
