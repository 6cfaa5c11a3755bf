//! One document by its id.

use crate::{Engine, EngineError, View, schema};
use bytes::Bytes;
use tantivy::{
    DocSet, SegmentReader, TERMINATED, TantivyDocument, Term,
    schema::{IndexRecordOption, Value as _},
};

/// What wrote a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocVersion {
    /// Sequence number.
    pub seq_no: u64,
    /// Primary term.
    pub term: u64,
    /// Version.
    pub version: u64,
}

/// A document with its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDoc {
    /// Sequence number.
    pub seq_no: u64,
    /// Primary term.
    pub term: u64,
    /// Version.
    pub version: u64,
    /// Routing, where one was given.
    pub routing: Option<String>,
    /// Source.
    pub source: Bytes,
}

impl View {
    /// The live document of an id: position of its segment in the searcher, and its number there.
    fn find(&self, id: &str) -> tantivy::Result<Option<(u32, u32)>> {
        let term = Term::from_field_text(self.fields().id, id);
        // The newest segments are small and hold what is asked for most often; they come last.
        for (ord, segment) in self.searcher().segment_readers().iter().enumerate().rev() {
            let Some(mut postings) = segment
                .inverted_index(self.fields().id)?
                .read_postings(&term, IndexRecordOption::Basic)?
            else {
                continue;
            };
            let mut doc = postings.doc();
            while doc != TERMINATED {
                if !segment.is_deleted(doc) {
                    return Ok(Some((u32::try_from(ord).unwrap_or(u32::MAX), doc)));
                }
                doc = postings.advance();
            }
        }
        Ok(None)
    }

    /// What wrote the visible document of an id.
    pub fn lookup_version(&self, id: &str) -> Result<Option<DocVersion>, EngineError> {
        let Some((ord, doc)) = self.find(id)? else {
            return Ok(None);
        };
        Ok(Some(version_of(self.searcher().segment_reader(ord), doc)?))
    }

    /// The visible document of an id.
    pub fn get(&self, id: &str) -> Result<Option<StoredDoc>, EngineError> {
        let Some((ord, doc)) = self.find(id)? else {
            return Ok(None);
        };
        let DocVersion {
            seq_no,
            term,
            version,
        } = version_of(self.searcher().segment_reader(ord), doc)?;
        let stored: TantivyDocument = self.searcher().doc(tantivy::DocAddress::new(ord, doc))?;
        let source = stored
            .get_first(self.fields().source)
            .and_then(|value| value.as_bytes().map(Bytes::copy_from_slice));
        let routing = stored
            .get_first(self.fields().routing)
            .and_then(|value| value.as_str().map(str::to_owned));
        let source = source.ok_or_else(|| EngineError::Corrupt {
            file: self.searcher().segment_reader(ord).segment_id().uuid_string(),
            reason: format!("document [{id}] has no source"),
        })?;
        Ok(Some(StoredDoc {
            seq_no,
            term,
            version,
            routing,
            source,
        }))
    }
}

fn version_of(segment: &SegmentReader, doc: u32) -> Result<DocVersion, EngineError> {
    let read = |name: &str| -> Result<u64, EngineError> {
        segment
            .fast_fields()
            .u64(name)?
            .first(doc)
            .ok_or_else(|| EngineError::Corrupt {
                file: segment.segment_id().uuid_string(),
                reason: format!("document {doc} has no {name}"),
            })
    };
    Ok(DocVersion {
        seq_no: read(schema::SEQ_NO)?,
        term: read(schema::TERM)?,
        version: read(schema::VERSION)?,
    })
}

impl Engine {
    /// The visible document of an id.
    pub fn get(&self, id: &str) -> Result<Option<StoredDoc>, EngineError> {
        self.view().get(id)
    }

    /// What wrote the visible document of an id.
    pub fn lookup_version(&self, id: &str) -> Result<Option<DocVersion>, EngineError> {
        self.view().lookup_version(id)
    }
}
