//! Values of columns as order-preserving `u64` codes, which is how columns keep them: comparing codes compares values.

use segmentry_mapping::{
    Field as MappedField, FieldType,
    date::{DEFAULT_FORMAT, Formats},
};
use serde::{Deserialize, Serialize};
use tantivy::{
    SegmentReader,
    columnar::{Column, ColumnType, StrColumn},
    f64_to_u64, i64_to_u64,
};

/// What the codes of a column mean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Coding {
    /// Whole numbers.
    Long,
    /// `_seq_no`, `_version`, `_primary_term`.
    Unsigned,
    /// Numbers with a fraction.
    Double,
    /// Booleans.
    Boolean,
    /// Milliseconds since 1970 UTC, and the `format` in which they are written.
    Date(String),
    /// Ordinals of a segment's own dictionary.
    Keyword,
}

impl Coding {
    /// Of a mapped field; none for text, which has no column.
    pub fn of(field: &MappedField) -> Option<Self> {
        Some(match field.kind {
            FieldType::Text => return None,
            FieldType::Keyword => Self::Keyword,
            FieldType::Long | FieldType::Integer | FieldType::Short | FieldType::Byte => Self::Long,
            FieldType::Double | FieldType::Float => Self::Double,
            FieldType::Boolean => Self::Boolean,
            FieldType::Date => Self::Date(field.format.clone().unwrap_or_else(|| DEFAULT_FORMAT.to_owned())),
        })
    }

    fn column_type(&self) -> ColumnType {
        match self {
            Self::Long | Self::Date(_) => ColumnType::I64,
            Self::Unsigned => ColumnType::U64,
            Self::Double => ColumnType::F64,
            Self::Boolean => ColumnType::Bool,
            Self::Keyword => ColumnType::Str,
        }
    }
}

/// Code of a whole number or a date.
pub fn long(value: i64) -> u64 {
    i64_to_u64(value)
}

/// Code of a number.
pub fn double(value: f64) -> u64 {
    f64_to_u64(value)
}

/// Formats of a `format` that was checked when it was read.
pub fn formats(text: &str) -> Formats {
    Formats::parse(text).unwrap_or_default()
}

/// A column of one segment; for keywords with its dictionary.
pub struct Codes {
    /// Codes.
    pub column: Column<u64>,
    /// The dictionary of a keyword column.
    pub terms: Option<StrColumn>,
}

impl Codes {
    /// Opens the column of a tantivy field; none where the segment has none, or no value at all.
    pub fn open(segment: &SegmentReader, name: &str, coding: &Coding) -> tantivy::Result<Option<Self>> {
        // A field that is younger than the segment is in the schema of neither the segment's columns nor its data.
        let Some((column, _)) = segment
            .fast_fields()
            .u64_lenient_for_type(Some(&[coding.column_type()]), name)?
        else {
            return Ok(None);
        };
        let terms = match coding {
            Coding::Keyword => match segment.fast_fields().str(name)? {
                Some(terms) => Some(terms),
                None => return Ok(None),
            },
            _ => None,
        };
        Ok(Some(Self { column, terms }))
    }
}
