//! Reads the documents of the hits.

use super::{SearchError, collect::Candidate, result::PartialHit};
use crate::{schema, view::View};
use bytes::Bytes;
use segmentry_query::{SearchRequest, SourceFilter};
use tantivy::{TantivyDocument, columnar::Column, schema::Value as _};

/// Columns of the operation that wrote a document, of one segment.
struct Versions {
    version: Option<Column<u64>>,
    seq_no: Option<Column<u64>>,
    term: Option<Column<u64>>,
}

/// Reads what a request wants of each candidate, in their order.
pub fn fetch(
    view: &View,
    request: &SearchRequest,
    candidates: Vec<Candidate>,
    show_scores: bool,
) -> Result<Vec<PartialHit>, SearchError> {
    let searcher = view.searcher();
    let mut versions: Vec<Option<Versions>> = searcher.segment_readers().iter().map(|_| None).collect();
    let wants_versions = request.version || request.seq_no_primary_term;
    let mut hits = Vec::with_capacity(candidates.len());
    for Candidate {
        address,
        score,
        values,
    } in candidates
    {
        let document: TantivyDocument = searcher.doc(address)?;
        let text = |field| {
            document
                .get_first(field)
                .and_then(|value| value.as_str())
                .map(str::to_owned)
        };
        let id = text(view.fields().id).ok_or_else(|| SearchError::Source {
            id: String::new(),
            reason: "no _id is stored".to_owned(),
        })?;
        let source = match &request.source {
            SourceFilter::None => None,
            wanted => {
                let stored = document
                    .get_first(view.fields().source)
                    .and_then(|value| value.as_bytes());
                stored.map(|stored| filtered(&id, stored, wanted)).transpose()?
            }
        };
        let mut hit = PartialHit {
            routing: text(view.fields().routing),
            id,
            score: show_scores.then_some(score),
            sort: if request.sorts_by_score() {
                Vec::new()
            } else {
                values
            },
            version: None,
            seq_no: None,
            primary_term: None,
            source,
        };
        if wants_versions && let Some(slot) = versions.get_mut(address.segment_ord as usize) {
            if slot.is_none() {
                let columns = searcher.segment_reader(address.segment_ord).fast_fields();
                *slot = Some(Versions {
                    version: columns.column_opt(schema::VERSION)?,
                    seq_no: columns.column_opt(schema::SEQ_NO)?,
                    term: columns.column_opt(schema::TERM)?,
                });
            }
            if let Some(columns) = slot {
                let value = |column: &Option<Column<u64>>| {
                    column.as_ref().and_then(|column| column.first(address.doc_id))
                };
                hit.version = value(&columns.version).filter(|_| request.version);
                hit.seq_no = value(&columns.seq_no).filter(|_| request.seq_no_primary_term);
                hit.primary_term = value(&columns.term).filter(|_| request.seq_no_primary_term);
            }
        }
        hits.push(hit);
    }
    Ok(hits)
}

fn filtered(id: &str, stored: &[u8], wanted: &SourceFilter) -> Result<Bytes, SearchError> {
    let Some(filter) = wanted.paths() else {
        return Ok(Bytes::copy_from_slice(stored));
    };
    let broken = |error: serde_json::Error| SearchError::Source {
        id: id.to_owned(),
        reason: error.to_string(),
    };
    let source = serde_json::from_slice(stored).map_err(broken)?;
    serde_json::to_vec(&filter.apply(source))
        .map(Bytes::from)
        .map_err(broken)
}
