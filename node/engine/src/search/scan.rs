//! A query that scans a column: numbers, dates and booleans have no inverted index unless the mapping asks for one.

use super::coding::{Codes, Coding};
use std::ops::{Bound, RangeInclusive};
use tantivy::{
    BitSet, DocId, Score, SegmentReader, TantivyError,
    columnar::{BytesColumn, ColumnIndex},
    query::{
        AllScorer, BitSetDocSet, ConstScorer, EmptyScorer, EnableScoring, Explanation, Query, Scorer, Weight,
    },
};

/// Documents read from a column at a time; the matches of one block stay in the cache.
const BLOCK: u32 = 16_384;
/// One match in so many documents is many.
const DENSE: usize = 8;

/// What a column has to hold.
#[derive(Debug, Clone)]
pub enum Wanted {
    /// Any value.
    Any,
    /// A code within a range.
    Range(RangeInclusive<u64>),
    /// A code of these, ascending.
    Codes(Vec<u64>),
    /// A text of a keyword within bounds.
    Texts(Bound<String>, Bound<String>),
    /// A text of a keyword among these.
    TextSet(Vec<String>),
}

/// Documents with a value of a column.
#[derive(Debug, Clone)]
pub struct ColumnQuery {
    /// tantivy's name of the field.
    pub name: String,
    /// Codes of the column.
    pub coding: Coding,
    /// Values that match.
    pub wanted: Wanted,
}

impl Query for ColumnQuery {
    fn weight(&self, _: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        Ok(Box::new(ColumnWeight(self.clone())))
    }
}

struct ColumnWeight(ColumnQuery);

impl Weight for ColumnWeight {
    fn scorer(&self, reader: &SegmentReader, boost: Score) -> tantivy::Result<Box<dyn Scorer>> {
        let Some(codes) = Codes::open(reader, &self.0.name, &self.0.coding)? else {
            return Ok(Box::new(EmptyScorer));
        };
        match wanted_codes(&self.0.wanted, &codes)? {
            Matching::None => Ok(Box::new(EmptyScorer)),
            Matching::Range(range) => Ok(scan_range(&codes, range, reader.max_doc(), boost)),
            Matching::Codes(wanted) => Ok(scan_codes(&codes, &wanted, reader.max_doc(), boost)),
        }
    }

    fn explain(&self, reader: &SegmentReader, doc: DocId) -> tantivy::Result<Explanation> {
        let mut scorer = self.scorer(reader, 1.0)?;
        if scorer.doc() > doc || scorer.seek(doc) != doc {
            return Err(TantivyError::InvalidArgument(format!(
                "document #({doc}) does not match"
            )));
        }
        Ok(Explanation::new("column scan", 1.0))
    }
}

enum Matching {
    None,
    Range(RangeInclusive<u64>),
    Codes(Vec<u64>),
}

fn wanted_codes(wanted: &Wanted, codes: &Codes) -> tantivy::Result<Matching> {
    let dictionary = || codes.terms.as_deref().map(BytesColumn::dictionary);
    Ok(match wanted {
        Wanted::Any => Matching::Range(0..=u64::MAX),
        Wanted::Range(range) => Matching::Range(range.clone()),
        Wanted::Codes(list) => Matching::Codes(list.clone()),
        Wanted::Texts(lower, upper) => {
            let Some(dictionary) = dictionary() else {
                return Ok(Matching::None);
            };
            let bytes = |bound: &Bound<String>| match bound {
                Bound::Included(text) => Bound::Included(text.clone().into_bytes()),
                Bound::Excluded(text) => Bound::Excluded(text.clone().into_bytes()),
                Bound::Unbounded => Bound::Unbounded,
            };
            let (low, high) = dictionary.term_bounds_to_ord(bytes(lower), bytes(upper))?;
            let low = match low {
                Bound::Included(ord) => Some(ord),
                Bound::Excluded(ord) => ord.checked_add(1),
                Bound::Unbounded => Some(0),
            };
            let high = match high {
                Bound::Included(ord) => Some(ord),
                Bound::Excluded(ord) => ord.checked_sub(1),
                Bound::Unbounded => Some(u64::MAX),
            };
            match (low, high) {
                (Some(low), Some(high)) if low <= high => Matching::Range(low..=high),
                _ => Matching::None,
            }
        }
        Wanted::TextSet(texts) => {
            let Some(dictionary) = dictionary() else {
                return Ok(Matching::None);
            };
            let mut ords = Vec::with_capacity(texts.len());
            for text in texts {
                ords.extend(dictionary.term_ord(text.as_bytes())?);
            }
            ords.sort_unstable();
            ords.dedup();
            match ords.as_slice() {
                [] => Matching::None,
                [ord] => Matching::Range(*ord..=*ord),
                _ => Matching::Codes(ords),
            }
        }
    })
}

fn scan_range(codes: &Codes, range: RangeInclusive<u64>, max_doc: DocId, boost: Score) -> Box<dyn Scorer> {
    let column = &codes.column;
    if *range.start() > column.max_value() || *range.end() < column.min_value() {
        return Box::new(EmptyScorer);
    }
    let covers = *range.start() <= column.min_value() && *range.end() >= column.max_value();
    if covers && matches!(column.index, ColumnIndex::Full) {
        return Box::new(ConstScorer::new(AllScorer::new(max_doc), boost));
    }
    let mut matches = BitSet::with_max_value(max_doc);
    let (mut block, mut docs, mut present, mut rows) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut start = 0;
    while start < max_doc {
        let end = start.saturating_add(BLOCK).min(max_doc);
        block.clear();
        if matches!(column.index, ColumnIndex::Optional(_)) {
            let within = column.index.docid_range_to_rowids(start..end);
            let first = within.start;
            column
                .values
                .get_row_ids_for_value_range(range.clone(), within, &mut block);
            if block.len() < (end - start) as usize / DENSE {
                column.index.select_batch_in_place(start, &mut block);
            } else {
                // Many rows: one walk over all documents is faster than a look-up for each row.
                docs.clear();
                present.clear();
                rows.clear();
                docs.extend(start..end);
                column.row_ids_for_docs(&docs, &mut present, &mut rows);
                for row in &mut block {
                    *row = present[(*row - first) as usize];
                }
            }
        } else {
            column.get_docids_for_value_range(range.clone(), start..end, &mut block);
        }
        for &doc in &block {
            matches.insert(doc);
        }
        start = end;
    }
    scorer(matches, boost)
}

fn scan_codes(codes: &Codes, wanted: &[u64], max_doc: DocId, boost: Score) -> Box<dyn Scorer> {
    let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else {
        return Box::new(EmptyScorer);
    };
    let mut matches = BitSet::with_max_value(max_doc);
    for doc in 0..max_doc {
        if codes
            .column
            .values_for_doc(doc)
            .any(|code| (*first..=*last).contains(&code) && wanted.binary_search(&code).is_ok())
        {
            matches.insert(doc);
        }
    }
    scorer(matches, boost)
}

#[allow(clippy::len_zero, reason = "the set has no is_empty")]
fn scorer(matches: BitSet, boost: Score) -> Box<dyn Scorer> {
    if matches.len() == 0 {
        // tantivy's set of an empty segment has no first block to look at.
        return Box::new(EmptyScorer);
    }
    Box::new(ConstScorer::new(BitSetDocSet::from(matches), boost))
}
