//! Settings of indices and clusters: names, values, bounds, and the texts of their refusals.
//!
//! Shared by the storage node and by the operator's CRD types, so that both mean the same by a word. No I/O.
//!
//! - [`index`]: one index's settings, parsed from OpenSearch's JSON (flat, nested, with or without `index.`).
//! - [`cluster`]: persistent cluster settings.
//! - [`units`]: time and byte values as OpenSearch writes them (`5s`, `512mb`, `-1`).
//! - [`admin`]: the JSON shapes of the node's admin API, which the operator and `segmentry up` speak.
//! - [`flat`]: nested and flat JSON forms, and the rendering of `_settings`.
//! - [`unsupported`]: OpenSearch's settings that have no effect here, refused by name.

pub mod admin;
pub mod cluster;
pub mod flat;
pub mod index;
pub mod units;
pub mod unsupported;

use serde::{Deserialize, Serialize};

/// How the copies of a shard follow their primary (`index.replication.type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "UPPERCASE")]
pub enum ReplicationType {
    /// Each copy logs and indexes every operation itself.
    #[default]
    Document,
    /// Replicas log operations and copy the primary's segment files.
    Segment,
}

/// When an operation counts as safe on a copy (`index.translog.durability`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Synced to stable storage before the answer.
    #[default]
    Request,
    /// Handed to the kernel before the answer, synced every `sync_interval`.
    Async,
}

/// A setting that was refused; the text is what a client reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingError(pub String);

impl ReplicationType {
    /// As written in settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Document => "DOCUMENT",
            Self::Segment => "SEGMENT",
        }
    }

    /// Reads a setting's value; case does not matter, as in OpenSearch.
    ///
    /// # Errors
    /// Any other word.
    pub fn parse(text: &str) -> Result<Self, SettingError> {
        match text.trim().to_ascii_uppercase().as_str() {
            "DOCUMENT" => Ok(Self::Document),
            "SEGMENT" => Ok(Self::Segment),
            _ => Err(SettingError(format!(
                "Could not parse ReplicationStrategy for [{text}]"
            ))),
        }
    }
}

impl Durability {
    /// As written in settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Async => "async",
        }
    }

    /// Reads the value of setting `key`; case does not matter, as in OpenSearch.
    ///
    /// # Errors
    /// Any other word.
    pub fn parse(key: &str, text: &str) -> Result<Self, SettingError> {
        match text.trim().to_ascii_lowercase().as_str() {
            "request" => Ok(Self::Request),
            "async" => Ok(Self::Async),
            _ => Err(SettingError(format!(
                "failed to parse value [{text}] for setting [{key}], must be [request] or [async]"
            ))),
        }
    }
}
