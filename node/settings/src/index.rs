//! One index's settings.
//!
//! A setting is known (listed in [`SETTINGS`] and acted upon), known to OpenSearch but not supported here (refused by name,
//! see [`crate::unsupported`]), or unknown (refused with OpenSearch's text). Nothing is taken and ignored.

use crate::{
    Durability, ReplicationType, SettingError,
    cluster::ClusterSettings,
    flat,
    units::{format_bytes, format_time_ms, parse_bytes, parse_time_ms},
    unsupported,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// `index.number_of_shards`
pub const NUMBER_OF_SHARDS: &str = "index.number_of_shards";
/// `index.number_of_replicas`
pub const NUMBER_OF_REPLICAS: &str = "index.number_of_replicas";
/// `index.replication.type`
pub const REPLICATION_TYPE: &str = "index.replication.type";
/// `index.translog.durability`
pub const TRANSLOG_DURABILITY: &str = "index.translog.durability";
/// `index.translog.sync_interval`
pub const TRANSLOG_SYNC_INTERVAL: &str = "index.translog.sync_interval";
/// `index.translog.flush_threshold_size`
pub const TRANSLOG_FLUSH_THRESHOLD: &str = "index.translog.flush_threshold_size";
/// `index.translog.generation_threshold_size`
pub const TRANSLOG_GENERATION_THRESHOLD: &str = "index.translog.generation_threshold_size";
/// `index.refresh_interval`
pub const REFRESH_INTERVAL: &str = "index.refresh_interval";
/// `index.max_result_window`
pub const MAX_RESULT_WINDOW: &str = "index.max_result_window";
/// `index.mapping.total_fields.limit`
pub const TOTAL_FIELDS_LIMIT: &str = "index.mapping.total_fields.limit";
/// `index.unassigned.node_left.delayed_timeout`
pub const DELAYED_TIMEOUT: &str = "index.unassigned.node_left.delayed_timeout";

/// Most shards of one index.
pub const MAX_SHARDS: u32 = 1024;
/// Most replicas of one shard.
pub const MAX_REPLICAS: u32 = 8;
/// Shortest `index.translog.sync_interval`, milliseconds (OpenSearch's bound).
pub const MIN_SYNC_INTERVAL_MS: u64 = 100;
/// Smallest translog thresholds, bytes (OpenSearch's bound: an empty generation with one operation).
pub const MIN_TRANSLOG_THRESHOLD: u64 = 56;

/// One supported setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Definition {
    /// Full key.
    pub key: &'static str,
    /// May be changed on a live index.
    pub dynamic: bool,
}

/// Every setting that this node acts upon.
pub const SETTINGS: [Definition; 11] = [
    Definition {
        key: NUMBER_OF_SHARDS,
        dynamic: false,
    },
    Definition {
        key: NUMBER_OF_REPLICAS,
        dynamic: true,
    },
    Definition {
        key: REPLICATION_TYPE,
        dynamic: false,
    },
    Definition {
        key: TRANSLOG_DURABILITY,
        dynamic: true,
    },
    Definition {
        key: TRANSLOG_SYNC_INTERVAL,
        dynamic: true,
    },
    Definition {
        key: TRANSLOG_FLUSH_THRESHOLD,
        dynamic: true,
    },
    Definition {
        key: TRANSLOG_GENERATION_THRESHOLD,
        dynamic: true,
    },
    Definition {
        key: REFRESH_INTERVAL,
        dynamic: true,
    },
    Definition {
        key: MAX_RESULT_WINDOW,
        dynamic: true,
    },
    Definition {
        key: TOTAL_FIELDS_LIMIT,
        dynamic: true,
    },
    Definition {
        key: DELAYED_TIMEOUT,
        dynamic: true,
    },
];

/// Keys that OpenSearch writes itself and refuses to take.
const PRIVATE: [&str; 5] = [
    "index.creation_date",
    "index.provided_name",
    "index.uuid",
    "index.version.created",
    "index.version.upgraded",
];

/// The settings that this node acts on, with OpenSearch's defaults.
///
/// Times are milliseconds, sizes bytes. `refresh_interval_ms` is `None` for `-1` (no periodic refresh).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IndexSettings {
    /// `index.number_of_shards`, 1..=1024, fixed at creation.
    pub number_of_shards: u32,
    /// `index.number_of_replicas`, 0..=8, dynamic.
    pub number_of_replicas: u32,
    /// `index.replication.type`, fixed at creation.
    pub replication_type: ReplicationType,
    /// `index.translog.durability`, dynamic.
    pub durability: Durability,
    /// `index.translog.sync_interval`, at least 100 ms, dynamic.
    pub sync_interval_ms: u64,
    /// `index.translog.flush_threshold_size`, dynamic.
    pub flush_threshold_bytes: u64,
    /// `index.translog.generation_threshold_size`, dynamic.
    pub generation_threshold_bytes: u64,
    /// `index.refresh_interval`, dynamic.
    pub refresh_interval_ms: Option<u64>,
    /// `index.max_result_window`, dynamic.
    pub max_result_window: u64,
    /// `index.mapping.total_fields.limit`, dynamic.
    pub total_fields_limit: u64,
    /// `index.unassigned.node_left.delayed_timeout`: how long the copies of a lost node are waited for before they are
    /// rebuilt elsewhere, dynamic.
    pub delayed_timeout_ms: u64,
    /// What was set explicitly, by full key (`index.…`), as the string that OpenSearch answers. Like in OpenSearch, the
    /// numbers of shards and replicas and the replication type are always in here, and so are defaults of the cluster that
    /// were fixed at creation.
    pub explicit: BTreeMap<String, String>,
}

impl Default for IndexSettings {
    fn default() -> Self {
        Self {
            number_of_shards: 1,
            number_of_replicas: 1,
            replication_type: ReplicationType::Document,
            durability: Durability::Request,
            sync_interval_ms: 5_000,
            flush_threshold_bytes: 512 << 20,
            generation_threshold_bytes: 64 << 20,
            refresh_interval_ms: Some(1_000),
            max_result_window: 10_000,
            total_fields_limit: 1_000,
            delayed_timeout_ms: 60_000,
            explicit: BTreeMap::new(),
        }
    }
}

impl IndexSettings {
    /// Settings of a new index from the `settings` of a create call (`null` for none), over the cluster's defaults for new
    /// indices, which are fixed at creation.
    ///
    /// # Errors
    /// A key is unknown or not supported, or a value is malformed or out of bounds.
    pub fn create(json: &Value, cluster: &ClusterSettings) -> Result<Self, SettingError> {
        let mut settings = Self::default();
        settings.set(NUMBER_OF_SHARDS, "1")?;
        settings.set(NUMBER_OF_REPLICAS, "1")?;
        settings.set(REPLICATION_TYPE, cluster.replication_strategy.as_str())?;
        if let Some(durability) = cluster.translog_durability {
            settings.set(TRANSLOG_DURABILITY, durability.as_str())?;
        }
        for (key, value) in normalise(json)? {
            // `"index.x": null` in a create call means "not set", as in OpenSearch.
            match value {
                Some(value) => settings.set(&key, &value)?,
                None => {
                    known(&key)?;
                }
            }
        }
        Ok(settings)
    }

    /// The settings after an update of a live index. Keys are full (`index.…`), see [`normalise`]; `None` resets to
    /// OpenSearch's default, a key that ends in `*` with `None` resets all explicit ones that it matches.
    ///
    /// `index` is `name/uuid`, for the text.
    ///
    /// # Errors
    /// As for [`Self::create`], and `Can't update non dynamic settings […]` where one is fixed at creation.
    pub fn update(
        &self,
        index: &str,
        changes: &BTreeMap<String, Option<String>>,
    ) -> Result<Self, SettingError> {
        let changes = self.expand(changes)?;
        let mut fixed = Vec::new();
        for key in changes.keys() {
            if !known(key)?.dynamic {
                fixed.push(key.as_str());
            }
        }
        let mut next = self.clone();
        for (key, value) in &changes {
            match value {
                Some(value) => next.set(key, value)?,
                None => next.reset(key)?,
            }
        }
        if !fixed.is_empty() {
            return Err(SettingError(format!(
                "Can't update non dynamic settings [[{}]] for open indices [[{index}]]",
                fixed.join(", ")
            )));
        }
        Ok(next)
    }

    /// Replaces wildcard resets by the explicit dynamic keys that they match.
    ///
    /// # Errors
    /// A wildcard with a value.
    pub fn expand(
        &self,
        changes: &BTreeMap<String, Option<String>>,
    ) -> Result<BTreeMap<String, Option<String>>, SettingError> {
        let mut out = BTreeMap::new();
        for (key, value) in changes {
            match (key.strip_suffix('*'), value) {
                (None, _) => {
                    out.insert(key.clone(), value.clone());
                }
                (Some(_), Some(_)) => return Err(unsupported::refusal(key)),
                (Some(prefix), None) => {
                    for explicit in self.explicit.keys().filter(|k| k.starts_with(prefix)) {
                        if SETTINGS.iter().any(|d| d.key == explicit && d.dynamic) {
                            out.insert(explicit.clone(), None);
                        }
                    }
                }
            }
        }
        Ok(out)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        match known(key)?.key {
            NUMBER_OF_SHARDS => {
                self.number_of_shards = narrow(key, value, integer(key, value, 1, u64::from(MAX_SHARDS))?)?;
            }
            NUMBER_OF_REPLICAS => {
                self.number_of_replicas =
                    narrow(key, value, integer(key, value, 0, u64::from(MAX_REPLICAS))?)?;
            }
            REPLICATION_TYPE => self.replication_type = ReplicationType::parse(value)?,
            TRANSLOG_DURABILITY => self.durability = Durability::parse(key, value)?,
            TRANSLOG_SYNC_INTERVAL => self.sync_interval_ms = time(key, value, MIN_SYNC_INTERVAL_MS)?,
            TRANSLOG_FLUSH_THRESHOLD => {
                self.flush_threshold_bytes = size(key, value, MIN_TRANSLOG_THRESHOLD)?;
            }
            TRANSLOG_GENERATION_THRESHOLD => {
                self.generation_threshold_bytes = size(key, value, MIN_TRANSLOG_THRESHOLD)?;
            }
            REFRESH_INTERVAL => self.refresh_interval_ms = parse_time_ms(key, value)?,
            MAX_RESULT_WINDOW => {
                self.max_result_window = integer(key, value, 1, i32::MAX.unsigned_abs().into())?;
            }
            TOTAL_FIELDS_LIMIT => self.total_fields_limit = integer(key, value, 0, i64::MAX.unsigned_abs())?,
            DELAYED_TIMEOUT => self.delayed_timeout_ms = time(key, value, 0)?,
            other => return Err(unsupported::refusal(other)),
        }
        let text = match key {
            REPLICATION_TYPE => self.replication_type.as_str().to_owned(),
            TRANSLOG_DURABILITY => self.durability.as_str().to_owned(),
            _ => value.trim().to_owned(),
        };
        self.explicit.insert(key.to_owned(), text);
        Ok(())
    }

    fn reset(&mut self, key: &str) -> Result<(), SettingError> {
        // As in OpenSearch, the number of replicas is always explicit.
        if key == NUMBER_OF_REPLICAS {
            return self.set(key, "1");
        }
        let defaults = Self::default();
        match key {
            TRANSLOG_DURABILITY => self.durability = defaults.durability,
            TRANSLOG_SYNC_INTERVAL => self.sync_interval_ms = defaults.sync_interval_ms,
            TRANSLOG_FLUSH_THRESHOLD => self.flush_threshold_bytes = defaults.flush_threshold_bytes,
            TRANSLOG_GENERATION_THRESHOLD => {
                self.generation_threshold_bytes = defaults.generation_threshold_bytes;
            }
            REFRESH_INTERVAL => self.refresh_interval_ms = defaults.refresh_interval_ms,
            MAX_RESULT_WINDOW => self.max_result_window = defaults.max_result_window,
            TOTAL_FIELDS_LIMIT => self.total_fields_limit = defaults.total_fields_limit,
            DELAYED_TIMEOUT => self.delayed_timeout_ms = defaults.delayed_timeout_ms,
            // Fixed at creation: `update` refuses after it has looked at all keys.
            NUMBER_OF_SHARDS | REPLICATION_TYPE => return Ok(()),
            other => return Err(unsupported::refusal(other)),
        }
        self.explicit.remove(key);
        Ok(())
    }

    /// Every supported setting with the value in force, flat, full keys (`include_defaults=true` answers those that are not
    /// explicit).
    pub fn effective(&self) -> BTreeMap<String, String> {
        BTreeMap::from(
            [
                (NUMBER_OF_SHARDS, self.number_of_shards.to_string()),
                (NUMBER_OF_REPLICAS, self.number_of_replicas.to_string()),
                (REPLICATION_TYPE, self.replication_type.as_str().to_owned()),
                (TRANSLOG_DURABILITY, self.durability.as_str().to_owned()),
                (TRANSLOG_SYNC_INTERVAL, format_time_ms(self.sync_interval_ms)),
                (TRANSLOG_FLUSH_THRESHOLD, format_bytes(self.flush_threshold_bytes)),
                (
                    TRANSLOG_GENERATION_THRESHOLD,
                    format_bytes(self.generation_threshold_bytes),
                ),
                (
                    REFRESH_INTERVAL,
                    self.refresh_interval_ms
                        .map_or_else(|| "-1".to_owned(), format_time_ms),
                ),
                (MAX_RESULT_WINDOW, self.max_result_window.to_string()),
                (TOTAL_FIELDS_LIMIT, self.total_fields_limit.to_string()),
                (DELAYED_TIMEOUT, format_time_ms(self.delayed_timeout_ms)),
            ]
            .map(|(key, value)| (key.to_owned(), value)),
        )
    }

    /// What is in force and not explicit, flat, full keys.
    pub fn defaults(&self) -> BTreeMap<String, String> {
        let mut all = self.effective();
        all.retain(|key, _| !self.explicit.contains_key(key));
        all
    }
}

/// Flat full keys from a settings body: nested or flat, with or without the `index.` prefix.
///
/// # Errors
/// See [`flat::flatten`]; also where a key is given with and without the prefix.
pub fn normalise(json: &Value) -> Result<BTreeMap<String, Option<String>>, SettingError> {
    let mut out: BTreeMap<String, Option<String>> = BTreeMap::new();
    for (key, value) in flat::flatten(json)? {
        let key = if key.starts_with("index.") || key == "*" {
            key
        } else {
            format!("index.{key}")
        };
        let key = if key == "*" { "index.*".to_owned() } else { key };
        if let Some(earlier) = out.get(&key)
            && *earlier != value
        {
            return Err(SettingError(format!(
                "setting [{key}] is given twice with different values"
            )));
        }
        out.insert(key, value);
    }
    Ok(out)
}

/// The definition of a full key.
///
/// # Errors
/// Unknown, private or not supported; the text says which.
pub fn known(key: &str) -> Result<Definition, SettingError> {
    if PRIVATE.contains(&key) {
        return Err(SettingError(format!(
            "private index setting [{key}] can not be set explicitly"
        )));
    }
    SETTINGS
        .iter()
        .find(|d| d.key == key)
        .copied()
        .ok_or_else(|| unsupported::refusal(key))
}

fn integer(key: &str, value: &str, min: u64, max: u64) -> Result<u64, SettingError> {
    let fail = |why: String| {
        SettingError(format!(
            "Failed to parse value [{value}] for setting [{key}]{why}"
        ))
    };
    let number: i128 = value.trim().parse().map_err(|_| fail(String::new()))?;
    if number < i128::from(min) {
        return Err(fail(format!(" must be >= {min}")));
    }
    if number > i128::from(max) {
        return Err(fail(format!(" must be <= {max}")));
    }
    u64::try_from(number).map_err(|_| fail(String::new()))
}

fn narrow(key: &str, value: &str, number: u64) -> Result<u32, SettingError> {
    u32::try_from(number)
        .map_err(|_| SettingError(format!("Failed to parse value [{value}] for setting [{key}]")))
}

fn time(key: &str, value: &str, min_ms: u64) -> Result<u64, SettingError> {
    parse_time_ms(key, value)?
        .filter(|ms| *ms >= min_ms)
        .ok_or_else(|| {
            SettingError(format!(
                "failed to parse value [{value}] for setting [{key}], must be >= [{}]",
                format_time_ms(min_ms)
            ))
        })
}

fn size(key: &str, value: &str, min: u64) -> Result<u64, SettingError> {
    parse_bytes(key, value)?
        .filter(|bytes| *bytes >= min)
        .ok_or_else(|| {
            SettingError(format!(
                "failed to parse value [{value}] for setting [{key}], must be >= [{}]",
                format_bytes(min)
            ))
        })
}

#[cfg(test)]
mod tests;
