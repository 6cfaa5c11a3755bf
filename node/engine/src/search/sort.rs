//! The order of hits: keys within a segment, values across segments and shards.
//!
//! Within a segment every criterion is one `u64` that is compared ascending: the code of the value (ordinals of keywords as `2 · ord + 1`, so
//! that a text which the segment does not have falls between two; booleans as 1 and 2), inverted for a descending order. Documents without a value get the
//! smallest or the largest key. Ordinals mean nothing outside their segment, so the best of a segment are turned into values at its end.
//!
//! Ties go by shard, then by the place in the shard.

use super::{
    SearchError,
    coding::{Codes, Coding, double, formats},
    values::{self, DateContext},
};
use crate::{schema, view::View};
use segmentry_mapping::{Field as MappedField, FieldType};
use segmentry_query::{Missing, Order, QueryError, Scalar, SearchRequest, Sort, SortMode, SortTarget};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use tantivy::{
    DocId, Score, SegmentReader,
    columnar::{ColumnIndex, TermOrdHit},
    u64_to_f64, u64_to_i64,
};

/// A value by which hits of several segments and shards are ordered, and which `sort` of a hit shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum SortValue {
    /// A keyword field without a value.
    Null,
    /// Whole number, date, boolean; also a missing one as the smallest or largest value, as in OpenSearch.
    Long(i64),
    /// `_seq_no` and the like.
    Unsigned(u64),
    /// Number with a fraction; infinite where it is missing.
    Double(f64),
    /// `_score`.
    Score(f32),
    /// Keyword.
    Text(String),
}

impl SortValue {
    /// As JSON shows it.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Null => serde_json::Value::Null,
            Self::Long(value) => (*value).into(),
            Self::Unsigned(value) => (*value).into(),
            Self::Double(value) if value.is_infinite() => {
                if *value > 0.0 { "Infinity" } else { "-Infinity" }.into()
            }
            Self::Double(value) => (*value).into(),
            Self::Score(value) => super::result::score_json(*value),
            Self::Text(text) => text.clone().into(),
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Self::Long(value) => Some(*value as f64),
            Self::Unsigned(value) => Some(*value as f64),
            Self::Double(value) => Some(*value),
            Self::Score(value) => Some(f64::from(*value)),
            Self::Null | Self::Text(_) => None,
        }
    }
}

/// Compares the values of one criterion, in its direction.
fn compare_one(left: &SortValue, right: &SortValue, sort: &Sort) -> Ordering {
    use SortValue::{Long, Null, Text, Unsigned};
    let missing = |left_is_missing: bool| {
        if left_is_missing == (sort.missing == Missing::First) {
            Ordering::Less
        } else {
            Ordering::Greater
        }
    };
    let ascending = match (left, right) {
        (Null, Null) => return Ordering::Equal,
        (Null, _) => return missing(true),
        (_, Null) => return missing(false),
        (Long(left), Long(right)) => left.cmp(right),
        (Unsigned(left), Unsigned(right)) => left.cmp(right),
        (Text(left), Text(right)) => left.as_bytes().cmp(right.as_bytes()),
        // A field with different types in different indices.
        (Text(_), _) => Ordering::Greater,
        (_, Text(_)) => Ordering::Less,
        (left, right) => left
            .number()
            .unwrap_or_default()
            .total_cmp(&right.number().unwrap_or_default()),
    };
    if sort.order == Order::Asc {
        ascending
    } else {
        ascending.reverse()
    }
}

/// Compares the sort values of two hits; equal ones are ordered by their shard.
pub fn compare(left: &[SortValue], right: &[SortValue], sorts: &[Sort]) -> Ordering {
    for ((left, right), sort) in left.iter().zip(right).zip(sorts) {
        let order = compare_one(left, right, sort);
        if order != Ordering::Equal {
            return order;
        }
    }
    Ordering::Equal
}

enum Source {
    Score,
    Doc,
    /// tantivy's name of the column, and its codes; no name where no document has the field.
    Column {
        name: Option<String>,
        coding: Coding,
        field: Option<Box<MappedField>>,
    },
}

struct Criterion {
    source: Source,
    descending: bool,
    missing_first: bool,
    largest: bool,
}

/// What a request sorts by, resolved against the mapping.
pub struct SortPlan {
    criteria: Vec<Criterion>,
    after: Option<Vec<Scalar>>,
    now_ms: i64,
}

impl SortPlan {
    /// Resolves the sorts of a request; by score, highest first, if it has none.
    pub fn new(view: &View, request: &SearchRequest) -> Result<Self, SearchError> {
        let mut criteria = Vec::with_capacity(request.sort.len().max(1));
        for sort in &request.sort {
            criteria.push(criterion(view, sort)?);
        }
        if criteria.is_empty() {
            criteria.push(Criterion {
                source: Source::Score,
                descending: true,
                missing_first: false,
                largest: true,
            });
        }
        Ok(Self {
            criteria,
            after: request.search_after.clone(),
            now_ms: request.now_ms,
        })
    }

    /// Opens the columns of one segment.
    pub fn open(&self, segment: &SegmentReader, segment_ord: u32) -> Result<SegmentKeys, SearchError> {
        let mut keys = Vec::with_capacity(self.criteria.len());
        for criterion in &self.criteria {
            let kind = match &criterion.source {
                Source::Score => KeyKind::Score,
                Source::Doc => KeyKind::Doc(segment_ord),
                Source::Column {
                    name: None, coding, ..
                } => KeyKind::Column(None, coding.clone()),
                Source::Column {
                    name: Some(name),
                    coding,
                    ..
                } => KeyKind::Column(Codes::open(segment, name, coding)?.map(Box::new), coding.clone()),
            };
            keys.push(Key {
                kind,
                flip: if criterion.descending { u64::MAX } else { 0 },
                missing: if criterion.missing_first { 0 } else { u64::MAX },
                largest: criterion.largest,
            });
        }
        let after = match &self.after {
            None => None,
            Some(values) => Some(
                self.criteria
                    .iter()
                    .zip(&keys)
                    .zip(values)
                    .map(|((criterion, key), value)| after_key(criterion, key, value, self.now_ms))
                    .collect::<Result<Vec<_>, _>>()?,
            ),
        };
        Ok(SegmentKeys {
            keys,
            after,
            present: Vec::new(),
            rows: Vec::new(),
            codes: Vec::new(),
        })
    }
}

fn criterion(view: &View, sort: &Sort) -> Result<Criterion, SearchError> {
    let descending = sort.order == Order::Desc;
    let largest = match sort.mode {
        Some(SortMode::Max) => true,
        Some(SortMode::Min) => false,
        None => descending,
    };
    let column = |name: Option<String>, coding, field| Source::Column { name, coding, field };
    let source = match &sort.target {
        SortTarget::Score => Source::Score,
        SortTarget::Doc => Source::Doc,
        SortTarget::Field(path) => match (path.as_str(), view.mapping().field(path)) {
            (schema::SEQ_NO, _) => column(Some(schema::SEQ_NO.to_owned()), Coding::Unsigned, None),
            (_, Some(mapped)) => {
                let coding = column_coding(mapped)?;
                let name = view.fields().get(path).map(|_| schema::tantivy_name(path));
                column(name, coding, Some(Box::new(mapped.clone())))
            }
            (_, None) => match sort.unmapped_type.as_deref().and_then(FieldType::of_name) {
                Some(kind) => {
                    let field = MappedField::new(path, kind);
                    column(None, column_coding(&field)?, Some(Box::new(field)))
                }
                None => {
                    return Err(QueryError::shard(format!(
                        "No mapping found for [{path}] in order to sort on"
                    ))
                    .into());
                }
            },
        },
    };
    Ok(Criterion {
        source,
        descending,
        missing_first: sort.missing == Missing::First,
        largest,
    })
}

/// The coding of a field's column, or OpenSearch's refusal where it has none.
pub fn column_coding(mapped: &MappedField) -> Result<Coding, SearchError> {
    match Coding::of(mapped) {
        None => Err(QueryError::illegal(format!(
            "Text fields are not optimised for operations that require per-document field data like aggregations and sorting, so these \
             operations are disabled by default. Please use a keyword field instead. Alternatively, set fielddata=true on [{}] in order to \
             load field data by uninverting the inverted index. Note that this can use significant memory.",
            mapped.name
        ))
        .into()),
        Some(_) if !mapped.doc_values => Err(QueryError::illegal(format!(
            "Can't load fielddata on [{}] because fielddata is unsupported on fields of type [{}]. Use doc values instead.",
            mapped.name,
            mapped.kind.name()
        ))
        .into()),
        Some(coding) => Ok(coding),
    }
}

fn after_key(criterion: &Criterion, key: &Key, value: &Scalar, now_ms: i64) -> Result<u64, SearchError> {
    let unreadable = |what: &str| {
        SearchError::from(QueryError::illegal(format!(
            "Failed to parse search_after value [{}] for a sort on {what}",
            value.text()
        )))
    };
    let number = |value: &Scalar| match value {
        Scalar::Long(value) => Some(*value as f64),
        Scalar::Unsigned(value) => Some(*value as f64),
        Scalar::Double(value) => Some(*value),
        Scalar::Text(text) => text.parse().ok(),
        Scalar::Bool(_) | Scalar::Null => None,
    };
    let code = match (&key.kind, &criterion.source) {
        #[allow(clippy::cast_possible_truncation, reason = "scores are single precision")]
        (KeyKind::Score, _) => score_code(number(value).ok_or_else(|| unreadable("_score"))? as f32),
        (KeyKind::Doc(_), _) => match value {
            Scalar::Long(place) => u64::try_from(*place).map_err(|_| unreadable("_doc"))?,
            _ => return Err(unreadable("_doc")),
        },
        (KeyKind::Column(..), _) if *value == Scalar::Null => return Ok(key.missing),
        (KeyKind::Column(codes, Coding::Keyword), _) => {
            match codes.as_ref().and_then(|codes| codes.terms.as_ref()) {
                None => 1,
                Some(terms) => match terms
                    .dictionary()
                    .term_ord_or_next(value.text().as_bytes())
                    .map_err(tantivy::TantivyError::from)?
                {
                    TermOrdHit::Exact(ord) => ord * 2 + 2,
                    // Between two terms, and never 0: that is the place of documents without a value.
                    TermOrdHit::Next(ord) => ord.min(terms.num_terms() as u64) * 2 + 1,
                },
            }
        }
        (KeyKind::Column(_, Coding::Unsigned), _) => match value {
            Scalar::Long(value) => u64::try_from(*value).map_err(|_| unreadable("a sequence number"))?,
            Scalar::Unsigned(value) => *value,
            _ => return Err(unreadable("a sequence number")),
        },
        (KeyKind::Column(_, Coding::Double), _) => match value {
            Scalar::Text(text) if text == "Infinity" => u64::MAX,
            Scalar::Text(text) if text == "-Infinity" => 0,
            value => double(number(value).ok_or_else(|| unreadable("a number"))?),
        },
        // Missing values are shown as the smallest and the largest number.
        (KeyKind::Column(_, Coding::Boolean), _) => match value {
            Scalar::Long(i64::MAX) => u64::MAX,
            Scalar::Long(i64::MIN) => 0,
            Scalar::Long(value @ (0 | 1)) => u64::from(*value == 1) + 1,
            Scalar::Bool(value) => u64::from(*value) + 1,
            Scalar::Text(text) if text == "true" || text == "false" => u64::from(text == "true") + 1,
            _ => return Err(unreadable("a boolean")),
        },
        (
            KeyKind::Column(_, Coding::Long | Coding::Date(_)),
            Source::Column {
                field: Some(field), ..
            },
        ) => match value {
            Scalar::Long(value) => super::coding::long(*value),
            value => {
                let text = field.date_format();
                let formats = formats(text);
                let dates = DateContext {
                    now_ms,
                    formats: &formats,
                    format_text: text,
                    zone_minutes: 0,
                };
                values::code(field, value, dates)?.ok_or_else(|| unreadable(&format!("[{}]", field.name)))?
            }
        },
        (KeyKind::Column(..), _) => return Err(unreadable("a field")),
    };
    Ok(code ^ key.flip)
}

enum KeyKind {
    Score,
    Doc(u32),
    Column(Option<Box<Codes>>, Coding),
}

struct Key {
    kind: KeyKind,
    flip: u64,
    missing: u64,
    largest: bool,
}

/// Order-preserving code of a score.
fn score_code(score: Score) -> u64 {
    double(f64::from(score))
}

impl Key {
    fn of_code(&self, code: u64) -> u64 {
        let place = match self.kind {
            // Odd places are between terms, 0 and the last are those of missing values.
            KeyKind::Column(_, Coding::Keyword) => code * 2 + 2,
            // Leaves the ends to missing values.
            KeyKind::Column(_, Coding::Boolean) => code + 1,
            _ => code,
        };
        place ^ self.flip
    }

    fn of(&self, doc: DocId, score: Score) -> u64 {
        match &self.kind {
            KeyKind::Score => score_code(score) ^ self.flip,
            KeyKind::Doc(segment) => ((u64::from(*segment) << 32) | u64::from(doc)) ^ self.flip,
            KeyKind::Column(None, _) => self.missing,
            KeyKind::Column(Some(codes), _) => {
                let values = codes.column.values_for_doc(doc);
                let picked = if self.largest { values.max() } else { values.min() };
                picked.map_or(self.missing, |code| self.of_code(code))
            }
        }
    }

    /// The value that a key stands for.
    fn value(&self, key: u64) -> Result<SortValue, SearchError> {
        let code = key ^ self.flip;
        Ok(match &self.kind {
            #[allow(clippy::cast_possible_truncation, reason = "it was single precision before")]
            KeyKind::Score => SortValue::Score(u64_to_f64(code) as f32),
            KeyKind::Doc(_) => SortValue::Long(i64::try_from(code).unwrap_or(i64::MAX)),
            KeyKind::Column(codes, Coding::Keyword) => {
                let terms = codes.as_ref().and_then(|codes| codes.terms.as_ref());
                match terms.filter(|_| key != self.missing) {
                    None => SortValue::Null,
                    Some(terms) => {
                        let mut text = String::new();
                        terms
                            .ord_to_str((code - 2) / 2, &mut text)
                            .map_err(tantivy::TantivyError::from)?;
                        SortValue::Text(text)
                    }
                }
            }
            KeyKind::Column(_, Coding::Long | Coding::Date(_)) => SortValue::Long(u64_to_i64(code)),
            KeyKind::Column(_, Coding::Unsigned) => SortValue::Unsigned(code),
            KeyKind::Column(_, Coding::Double) if key == self.missing => SortValue::Double(if code == 0 {
                f64::NEG_INFINITY
            } else {
                f64::INFINITY
            }),
            KeyKind::Column(_, Coding::Double) => SortValue::Double(u64_to_f64(code)),
            KeyKind::Column(_, Coding::Boolean) => SortValue::Long(match code {
                0 => i64::MIN,
                u64::MAX => i64::MAX,
                code => i64::from(code == 2),
            }),
        })
    }
}

/// Keys of the documents of one segment.
pub struct SegmentKeys {
    keys: Vec<Key>,
    after: Option<Vec<u64>>,
    present: Vec<DocId>,
    rows: Vec<u32>,
    codes: Vec<u64>,
}

impl SegmentKeys {
    /// First keys of a block of documents; `score` is that of documents without one of their own.
    pub fn first(&mut self, docs: &[DocId], scores: &[Score], score: Score, into: &mut Vec<u64>) {
        into.clear();
        let Some(key) = self.keys.first() else { return };
        match &key.kind {
            KeyKind::Column(Some(codes), _) if matches!(codes.column.index, ColumnIndex::Full) => {
                into.resize(docs.len(), 0);
                codes.column.values.get_vals(docs, into);
                for code in into.iter_mut() {
                    *code = key.of_code(*code);
                }
            }
            KeyKind::Column(Some(codes), _) if matches!(codes.column.index, ColumnIndex::Optional(_)) => {
                // Documents of a block ascend, each comes once.
                let (present, rows) = (&mut self.present, &mut self.rows);
                present.clear();
                rows.clear();
                codes.column.row_ids_for_docs(docs, present, rows);
                self.codes.resize(rows.len(), 0);
                codes.column.values.get_vals(rows, &mut self.codes);
                let mut present = present.iter().copied().peekable();
                let mut found = self.codes.iter().copied();
                into.extend(docs.iter().map(|doc| {
                    let code = present.next_if_eq(doc).and_then(|_| found.next());
                    code.map_or(key.missing, |code| key.of_code(code))
                }));
            }
            _ => {
                into.extend(
                    docs.iter()
                        .enumerate()
                        .map(|(at, &doc)| key.of(doc, scores.get(at).copied().unwrap_or(score))),
                );
            }
        }
    }

    /// True if the first key is the only one.
    pub fn is_single(&self) -> bool {
        self.keys.len() == 1
    }

    /// Keys after the first one.
    pub fn rest(&self, doc: DocId, score: Score) -> Box<[u64]> {
        self.keys.iter().skip(1).map(|key| key.of(doc, score)).collect()
    }

    /// True if a document comes after the one that `search_after` names.
    pub fn is_after(&self, first: u64, rest: &[u64]) -> bool {
        match self.after.as_deref() {
            None => true,
            Some([]) => false,
            Some([after_first, after_rest @ ..]) => (first, rest) > (*after_first, after_rest),
        }
    }

    /// Values of a document that was kept.
    pub fn values(&self, first: u64, rest: &[u64]) -> Result<Vec<SortValue>, SearchError> {
        self.keys
            .iter()
            .zip(std::iter::once(&first).chain(rest))
            .map(|(key, code)| key.value(*code))
            .collect()
    }
}
