//! One consistent view of the engine for readers.

use crate::schema::{self, Fields, Located};
use segmentry_mapping::Mapping;
use std::sync::Arc;
use tantivy::{Searcher, tokenizer::TextAnalyzer};

/// A searcher with the fields of *its* schema and the mapping to read them with. Cheap to clone; keeps its segments alive.
#[derive(Clone)]
pub struct View {
    searcher: Searcher,
    fields: Arc<Fields>,
    mapping: Arc<Mapping>,
}

impl View {
    pub(crate) fn new(searcher: Searcher, fields: Arc<Fields>, mapping: Arc<Mapping>) -> Self {
        Self {
            searcher,
            fields,
            mapping,
        }
    }

    /// tantivy's searcher.
    pub fn searcher(&self) -> &Searcher {
        &self.searcher
    }

    /// Handles, valid for this searcher only.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Mapping as the engine knows it now; may hold fields that this searcher does not have yet.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Finds a mapped path in this view.
    pub fn locate(&self, path: &str) -> Located<'_> {
        schema::locate(&self.mapping, &self.fields, path)
    }

    /// The analyzer of a text field (or of `raw`, for keywords), to analyse the text of a query.
    pub fn analyzer(&self, field: tantivy::schema::Field) -> tantivy::Result<TextAnalyzer> {
        self.searcher.index().tokenizer_for_field(field)
    }
}
