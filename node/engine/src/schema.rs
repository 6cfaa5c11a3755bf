//! How a mapping becomes a tantivy schema: names, types, and which fields exist in a given searcher.
//!
//! **Names.** A mapped field `a.b` is the tantivy field `f:a.b` ([`tantivy_name`]); in tantivy's aggregation requests and for
//! its columns the same string is used. The prefix keeps user fields apart from the fields of the engine, which have bare names:
//!
//! | name | tantivy type | what |
//! |---|---|---|
//! | `_id` | text, raw, `Basic`, no norms, stored | document id, one term |
//! | `_seq_no`, `_term`, `_version` | u64, fast only | of the operation that wrote the document; every document has all three |
//! | `_source` | bytes, stored | source as it was sent |
//! | `_routing` | text, raw, `Basic`, stored | only where a routing was given |
//! | `_field_names` | text, raw, `Basic`, no norms | mapping paths of the fields that this document has and that have **no column** (text; keyword or numbers without `doc_values`): `exists` on those is a term query here, on all others a look at the column |
//!
//! **Types.**
//!
//! | mapping type | tantivy | term (only if `indexed`) | column (only if `doc_values`) |
//! |---|---|---|---|
//! | text | text, analyzer [`analysis::tokenizer_name`], frequencies and positions, norms | analysed terms | none |
//! | keyword | text, `raw`, `Basic`, no norms | whole value | `Str`, ordinals in byte order |
//! | long, integer, short, byte | i64 | `Term::from_field_i64` | `I64` |
//! | date | i64: **milliseconds** since 1970 UTC (tantivy's own dates are nanoseconds and end in 2262) | `Term::from_field_i64` | `I64` |
//! | double, float | f64 | `Term::from_field_f64` | `F64` |
//! | boolean | bool | `Term::from_field_bool` | `Bool` |
//!
//! Numbers, dates and booleans are indexed only where the mapping says `indexed`; otherwise a term query is a scan of the column.
//! Nothing is stored but `_source`.
//!
//! **Materialised lazily.** A field is appended to the schema when a document first carries it, at a commit boundary. Appending
//! never moves a field, but another copy's lineage may have appended in another order: resolve names through the [`Fields`] of
//! the very searcher that is asked ([`crate::View`]), never keep a handle across searchers. A field that is mapped and not
//! materialised matches nothing. In segments older than the field, its column is absent (use `column_opt`) and its inverted
//! index is empty.

use crate::analysis;
use segmentry_mapping::{Field as MappedField, FieldType, Mapping};
use std::collections::HashMap;
use tantivy::schema::{
    BytesOptions, Field, FieldEntry, IndexRecordOption, NumericOptions, STORED, Schema, SchemaBuilder,
    TextFieldIndexing, TextOptions,
};

/// Document id.
pub const ID: &str = "_id";
/// Sequence number of the operation.
pub const SEQ_NO: &str = "_seq_no";
/// Primary term of the operation.
pub const TERM: &str = "_term";
/// Version of the document.
pub const VERSION: &str = "_version";
/// Source bytes.
pub const SOURCE: &str = "_source";
/// Routing, where one was given.
pub const ROUTING: &str = "_routing";
/// Paths of the present fields that have no column.
pub const FIELD_NAMES: &str = "_field_names";

const PREFIX: &str = "f:";
const RAW: &str = "raw";

/// Name of the tantivy field (and of its column) of a mapped field.
pub fn tantivy_name(path: &str) -> String {
    format!("{PREFIX}{path}")
}

/// Mapping path of a tantivy field; none for the engine's own fields.
pub fn mapping_path(tantivy_name: &str) -> Option<&str> {
    tantivy_name.strip_prefix(PREFIX)
}

/// The engine's own fields, in an order that is fixed for ever.
pub fn base_schema() -> Schema {
    let mut builder = SchemaBuilder::new();
    let number = NumericOptions::default().set_fast();
    builder.add_field(FieldEntry::new_text(ID.to_owned(), raw_options().set_stored()));
    builder.add_field(FieldEntry::new_u64(SEQ_NO.to_owned(), number.clone()));
    builder.add_field(FieldEntry::new_u64(TERM.to_owned(), number.clone()));
    builder.add_field(FieldEntry::new_u64(VERSION.to_owned(), number));
    builder.add_field(FieldEntry::new_bytes(
        SOURCE.to_owned(),
        BytesOptions::from(STORED),
    ));
    builder.add_field(FieldEntry::new_text(
        ROUTING.to_owned(),
        raw_options().set_stored(),
    ));
    builder.add_field(FieldEntry::new_text(FIELD_NAMES.to_owned(), raw_options()));
    builder.build()
}

fn raw_options() -> TextOptions {
    TextOptions::default().set_indexing_options(
        TextFieldIndexing::default()
            .set_tokenizer(RAW)
            .set_fieldnorms(false)
            .set_index_option(IndexRecordOption::Basic),
    )
}

/// True where `exists` has to ask [`FIELD_NAMES`].
pub fn needs_field_name(field: &MappedField) -> bool {
    field.indexed && (field.kind == FieldType::Text || !field.doc_values)
}

/// The tantivy field of a mapped field; none where it is neither indexed nor has a column (it lives in `_source` only).
pub fn field_entry(field: &MappedField) -> Option<FieldEntry> {
    let name = tantivy_name(&field.name);
    let number = || {
        let mut options = NumericOptions::default();
        if field.indexed {
            options = options.set_indexed();
        }
        if field.doc_values {
            options = options.set_fast();
        }
        options
    };
    match field.kind {
        FieldType::Text => field.indexed.then(|| {
            FieldEntry::new_text(
                name,
                TextOptions::default().set_indexing_options(
                    TextFieldIndexing::default()
                        .set_tokenizer(analysis::tokenizer_name(field.analyzer.as_deref()))
                        .set_fieldnorms(true)
                        .set_index_option(IndexRecordOption::WithFreqsAndPositions),
                ),
            )
        }),
        FieldType::Keyword => (field.indexed || field.doc_values).then(|| {
            let mut options = if field.indexed {
                raw_options()
            } else {
                TextOptions::default()
            };
            if field.doc_values {
                options = options.set_fast(RAW);
            }
            FieldEntry::new_text(name, options)
        }),
        _ if !field.indexed && !field.doc_values => None,
        FieldType::Long | FieldType::Integer | FieldType::Short | FieldType::Byte | FieldType::Date => {
            Some(FieldEntry::new_i64(name, number()))
        }
        FieldType::Double | FieldType::Float => Some(FieldEntry::new_f64(name, number())),
        FieldType::Boolean => Some(FieldEntry::new_bool(name, number())),
    }
}

/// Field handles of one schema (one lineage of one copy).
#[derive(Debug, Clone)]
pub struct Fields {
    /// `_id`.
    pub id: Field,
    /// `_seq_no`.
    pub seq_no: Field,
    /// `_term`.
    pub term: Field,
    /// `_version`.
    pub version: Field,
    /// `_source`.
    pub source: Field,
    /// `_routing`.
    pub routing: Field,
    /// `_field_names`.
    pub field_names: Field,
    by_path: HashMap<String, Field>,
}

impl Fields {
    /// Handles of a schema that was made by this module.
    pub fn of(schema: &Schema) -> Result<Self, tantivy::TantivyError> {
        let by_path = schema
            .fields()
            .filter_map(|(handle, entry)| mapping_path(entry.name()).map(|path| (path.to_owned(), handle)))
            .collect();
        Ok(Self {
            id: schema.get_field(ID)?,
            seq_no: schema.get_field(SEQ_NO)?,
            term: schema.get_field(TERM)?,
            version: schema.get_field(VERSION)?,
            source: schema.get_field(SOURCE)?,
            routing: schema.get_field(ROUTING)?,
            field_names: schema.get_field(FIELD_NAMES)?,
            by_path,
        })
    }

    /// Handle of a mapped field, by its path; none while it is not materialised.
    pub fn get(&self, path: &str) -> Option<Field> {
        self.by_path.get(path).copied()
    }
}

/// What is known of a path in one searcher.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Located<'a> {
    /// Mapped, and in the schema of this searcher.
    Field(&'a MappedField, Field),
    /// Mapped, and no document of this searcher has it as a tantivy field: matches nothing, aggregates nothing, sorts as missing.
    Unmaterialised(&'a MappedField),
    /// Not mapped (also: an object's path).
    Unmapped,
}

/// Finds a path.
pub fn locate<'a>(mapping: &'a Mapping, fields: &Fields, path: &str) -> Located<'a> {
    match mapping.field(path) {
        None => Located::Unmapped,
        Some(mapped) => match fields.get(path) {
            Some(handle) => Located::Field(mapped, handle),
            None => Located::Unmaterialised(mapped),
        },
    }
}
