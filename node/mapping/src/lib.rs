//! Mappings: which field has which type, how a document's JSON becomes field values, and how a mapping grows.
//!
//! Pure: no I/O, no search library. The engine turns [`Mapping`] into its own schema; the cluster state holds it.
//!
//! - types below: the mapping itself, ordered as it was written;
//! - `json`: from and to OpenSearch's `mappings` JSON, merge of an update, refusals;
//! - `parse`: one document's source → [`ParsedDocument`] without a value tree, with the fields that it would add.

use serde::{Deserialize, Serialize};

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "OpenSearch's type names")]
pub enum FieldType {
    Text,
    Keyword,
    Long,
    Integer,
    Short,
    Byte,
    Double,
    Float,
    Date,
    Boolean,
}

/// `dynamic` of the mapping's root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dynamic {
    /// New fields are added.
    #[default]
    True,
    /// New fields are kept in `_source` only.
    False,
    /// New fields are refused with `strict_dynamic_mapping_exception`.
    Strict,
}

/// One leaf field, also a multi-field (`name` then is `parent.sub` and `parent` says which field it copies).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// Full dotted path.
    pub name: String,
    /// Type.
    pub kind: FieldType,
    /// For a multi-field: the full path of the field whose values it takes.
    pub parent: Option<String>,
    /// Searchable by term (inverted). For numerics, dates and booleans: false unless the mapping asks (`index: true` written
    /// out); a term query then scans the column.
    pub indexed: bool,
    /// Column (sort, aggregations, range). Text has none.
    pub doc_values: bool,
    /// Analyzer of a text field: `standard` (default), `simple`, `whitespace`, `keyword`, `english`.
    pub analyzer: Option<String>,
    /// `ignore_above` of a keyword, in characters.
    pub ignore_above: Option<u32>,
    /// `format` of a date.
    pub format: Option<String>,
    /// What was written explicitly and must be answered again (`index`, `doc_values`, …).
    #[serde(default)]
    pub explicit: serde_json::Map<String, serde_json::Value>,
}

/// All fields of an index.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Mapping {
    /// Grows by one with each addition; 0 is the empty mapping.
    pub version: u64,
    /// Root `dynamic`.
    pub dynamic: Dynamic,
    /// Leaf fields in the order in which they were added, multi-fields after their parent. Append-only.
    pub fields: Vec<Field>,
    /// Paths of objects (also empty ones), so that a leaf and an object can never share a path.
    pub objects: Vec<String>,
}

/// One value of one field.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldValue {
    /// Text or keyword.
    Text(String),
    /// Any integer type.
    Long(i64),
    /// Double and float.
    Double(f64),
    /// Date: milliseconds since 1970, UTC.
    Date(i64),
    /// Boolean.
    Boolean(bool),
}

/// A document as the engine takes it. Field ids are positions in [`Mapping::fields`] of the mapping that it was parsed with.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ParsedDocument {
    /// (position in `Mapping::fields`, value), values of one field in document order; multi-fields are included.
    pub values: Vec<(u32, FieldValue)>,
}
