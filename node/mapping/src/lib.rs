//! Mappings: which field has which type, how a document's JSON becomes field values, and how a mapping grows.
//!
//! Pure: no I/O, no search library. The engine turns [`Mapping`] into its own schema; the cluster state holds it.
//!
//! - types below: the mapping itself, ordered as it was written;
//! - [`json`]: from and to OpenSearch's `mappings` JSON, refusals by name; [`merge`]: one mapping grown by another;
//! - [`parse`]: one document's source → [`ParsedDocument`] without a value tree, with the fields that it would add;
//! - [`convert`]: one JSON scalar as a value of a field's type; also what a query's value becomes;
//! - [`date`]: date formats, both directions;
//! - [`error`]: refusals with OpenSearch's types and texts.

pub mod convert;
pub mod date;
pub mod error;
pub mod json;
pub mod merge;
pub mod parse;

pub use error::{Cause, ErrorKind, MappingError};
pub use parse::{Limits, Parsed, Parser, validate_id};

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
    /// `date_detection` where it was written; new strings that look like dates become dates unless it is `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date_detection: Option<bool>,
    /// True if `dynamic` was written, so that it is answered even where it is the default.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dynamic_explicit: bool,
}

impl FieldType {
    /// OpenSearch's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Keyword => "keyword",
            Self::Long => "long",
            Self::Integer => "integer",
            Self::Short => "short",
            Self::Byte => "byte",
            Self::Double => "double",
            Self::Float => "float",
            Self::Date => "date",
            Self::Boolean => "boolean",
        }
    }

    /// The type of a name; none if it is not supported.
    pub fn of_name(name: &str) -> Option<Self> {
        [
            Self::Text,
            Self::Keyword,
            Self::Long,
            Self::Integer,
            Self::Short,
            Self::Byte,
            Self::Double,
            Self::Float,
            Self::Date,
            Self::Boolean,
        ]
        .into_iter()
        .find(|kind| kind.name() == name)
    }

    /// Whole numbers, without dates.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::Long | Self::Integer | Self::Short | Self::Byte)
    }

    /// Smallest and largest value of a whole-number type; `None` for others.
    pub const fn integer_bounds(self) -> Option<(i64, i64)> {
        match self {
            Self::Long => Some((i64::MIN, i64::MAX)),
            Self::Integer => Some((i32::MIN as i64, i32::MAX as i64)),
            Self::Short => Some((i16::MIN as i64, i16::MAX as i64)),
            Self::Byte => Some((i8::MIN as i64, i8::MAX as i64)),
            _ => None,
        }
    }
}

impl Field {
    /// A field with the defaults of its type.
    pub fn new(name: impl Into<String>, kind: FieldType) -> Self {
        Self {
            name: name.into(),
            kind,
            parent: None,
            indexed: matches!(kind, FieldType::Text | FieldType::Keyword),
            doc_values: kind != FieldType::Text,
            analyzer: None,
            ignore_above: None,
            format: None,
            explicit: serde_json::Map::new(),
        }
    }

    /// Formats of a date field, written or default.
    pub fn date_format(&self) -> &str {
        self.format.as_deref().unwrap_or(date::DEFAULT_FORMAT)
    }
}

impl Mapping {
    /// The field of a full dotted path.
    pub fn field(&self, path: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == path)
    }

    /// True for the path of an object.
    pub fn is_object(&self, path: &str) -> bool {
        self.objects.iter().any(|object| object == path)
    }

    /// What counts against `index.mapping.total_fields.limit`: leaves, multi-fields and objects.
    pub fn total_fields(&self) -> usize {
        self.fields.len() + self.objects.len()
    }
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
