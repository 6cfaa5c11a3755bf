//! Values of blocks of documents, as codes.

use super::plan::{MissingValue, Plan, PlanKind};
use crate::search::{
    SearchError,
    coding::{Codes, Coding},
};
use tantivy::{
    DocId, SegmentReader,
    columnar::{Column, ColumnIndex},
};

/// Values of a block: `codes[i]` belongs to the document at `at[i]` of the block, or at `i` if `at` is empty.
#[derive(Default)]
pub struct Fetched {
    at: Vec<u32>,
    /// See above.
    pub codes: Vec<u64>,
    docs: Vec<DocId>,
    rows: Vec<u32>,
}

impl Fetched {
    /// Place in the block of the document of a value.
    #[inline]
    pub fn place(&self, index: usize) -> usize {
        self.at.get(index).map_or(index, |&at| at as usize)
    }
}

/// Reads the values of one aggregation in one segment.
pub struct Reader {
    /// Column; none where the segment has none.
    pub codes: Option<Codes>,
    /// What its codes mean.
    pub coding: Coding,
    missing: Option<u64>,
    /// Ordinal that stands for the text of `missing`, where the dictionary does not have it.
    pub missing_text: Option<(u64, String)>,
    /// Each value counts once in a document.
    unique: bool,
}

impl Reader {
    /// Opens the column of a plan.
    pub fn open(segment: &SegmentReader, plan: &Plan) -> Result<Self, SearchError> {
        let coding = plan.coding.clone().unwrap_or(Coding::Long);
        let codes = match &plan.column {
            Some(name) => Codes::open(segment, name, &coding)?,
            None => None,
        };
        let (mut missing, mut missing_text) = (None, None);
        match &plan.missing {
            None => {}
            Some(MissingValue::Code(code)) => missing = Some(*code),
            Some(MissingValue::Text(text)) => {
                let terms = codes.as_ref().and_then(|codes| codes.terms.as_ref());
                let found = match terms {
                    Some(terms) => terms
                        .dictionary()
                        .term_ord(text.as_bytes())
                        .map_err(tantivy::TantivyError::from)?,
                    None => None,
                };
                let ord = found.unwrap_or_else(|| terms.map_or(0, |terms| terms.num_terms() as u64));
                if found.is_none() {
                    missing_text = Some((ord, text.clone()));
                }
                missing = Some(ord);
            }
        }
        let unique = match plan.kind {
            PlanKind::Metric(_) => coding == Coding::Keyword,
            PlanKind::Terms | PlanKind::Histogram { .. } => true,
        };
        Ok(Self {
            codes,
            coding,
            missing,
            missing_text,
            unique,
        })
    }

    /// Smallest and largest code that may come.
    pub fn bounds(&self) -> Option<(u64, u64)> {
        let column = self
            .codes
            .as_ref()
            .filter(|codes| codes.column.values.num_vals() > 0);
        let column = column.map(|codes| (codes.column.min_value(), codes.column.max_value()));
        match (column, self.missing) {
            (Some((low, high)), Some(missing)) => Some((low.min(missing), high.max(missing))),
            (Some(bounds), None) => Some(bounds),
            (None, missing) => missing.map(|missing| (missing, missing)),
        }
    }

    /// Reads the values of a block of documents.
    pub fn fetch(&self, docs: &[DocId], into: &mut Fetched) {
        into.at.clear();
        into.codes.clear();
        let Some(codes) = &self.codes else {
            if let Some(missing) = self.missing {
                into.codes.resize(docs.len(), missing);
            }
            return;
        };
        let column = &codes.column;
        if matches!(column.index, ColumnIndex::Full) {
            into.codes.resize(docs.len(), 0);
            column.values.get_vals(docs, &mut into.codes);
            return;
        }
        if matches!(column.index, ColumnIndex::Optional(_)) && docs.windows(2).all(|pair| pair[0] < pair[1]) {
            self.fetch_optional(column, docs, into);
            return;
        }
        for (at, &doc) in (0..).zip(docs) {
            let start = into.codes.len();
            into.codes.extend(column.values_for_doc(doc));
            if into.codes.len() == start {
                into.codes.extend(self.missing);
            } else if self.unique && into.codes.len() > start + 1 {
                into.codes[start..].sort_unstable();
                let mut kept = start + 1;
                for index in start + 1..into.codes.len() {
                    if into.codes[index] != into.codes[kept - 1] {
                        into.codes[kept] = into.codes[index];
                        kept += 1;
                    }
                }
                into.codes.truncate(kept);
            }
            into.at.resize(into.codes.len(), at);
        }
        if into.codes.is_empty() {
            into.at.clear();
        }
    }
}

impl Reader {
    /// At most one value for each of ascending documents: looked up for all of them at once.
    fn fetch_optional(&self, column: &Column<u64>, docs: &[DocId], into: &mut Fetched) {
        into.docs.clear();
        into.rows.clear();
        column.row_ids_for_docs(docs, &mut into.docs, &mut into.rows);
        into.codes.resize(into.rows.len(), 0);
        column.values.get_vals(&into.rows, &mut into.codes);
        if into.docs.len() == docs.len() {
            return; // all have a value
        }
        let mut present = into.docs.iter().copied().peekable();
        if let Some(missing) = self.missing {
            let mut codes = Vec::with_capacity(docs.len());
            let mut found = into.codes.iter().copied();
            for &doc in docs {
                let code = present.next_if_eq(&doc).and_then(|_| found.next());
                codes.push(code.unwrap_or(missing));
            }
            into.codes = codes;
            return;
        }
        for (at, doc) in (0..).zip(docs) {
            if present.next_if_eq(doc).is_some() {
                into.at.push(at);
            }
        }
    }
}
