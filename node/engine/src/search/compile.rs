//! Query trees → tantivy queries, against one searcher.
//!
//! Scores are BM25 with shard-local statistics, k1 = 1.2 and b = 0.75, as Lucene computes them since version 8 (no factor `k1 + 1`, which
//! tantivy has). Queries that are not about words score their boost. Nothing in a filter or below `must_not` is scored.

use super::{
    SearchError,
    coding::{Coding, formats},
    scan::{ColumnQuery, Wanted},
    values::{self, DateContext},
};
use crate::{schema, schema::Located, view::View};
use segmentry_mapping::{Field as MappedField, FieldType};
use segmentry_query::{BoolQuery, Query as Tree, QueryError, RangeBound, RangeQuery, Scalar};
use std::ops::Bound;
use tantivy::{
    Term,
    query::{
        AllQuery, BooleanQuery, BoostQuery, ConstScoreQuery, EmptyQuery, Occur, Query, TermQuery,
        TermSetQuery,
    },
    schema::{Field, IndexRecordOption},
};

/// tantivy multiplies every score by `k1 + 1` = 2.2.
pub(super) const LUCENE_FACTOR: f32 = 1.0 / 2.2;

pub(super) type Compiled = Result<Box<dyn Query>, SearchError>;

/// The score of every match of a tree, where it is the same for all of them.
pub fn constant_score(tree: &Tree) -> Option<f32> {
    match tree {
        Tree::MatchAll { boost }
        | Tree::Terms { boost, .. }
        | Tree::Exists { boost, .. }
        | Tree::Ids { boost, .. }
        | Tree::ConstantScore { boost, .. } => Some(*boost),
        Tree::Range(query) => Some(query.boost),
        Tree::Bool(query) if query.must.is_empty() && query.should.is_empty() => {
            let everything = query.filter.is_empty() && query.must_not.is_empty();
            Some(if everything { query.boost } else { 0.0 })
        }
        Tree::MatchNone | Tree::Match(_) | Tree::MatchPhrase(_) | Tree::Term { .. } | Tree::Bool(_) => None,
    }
}

/// Compiles trees against one view.
pub struct Compiler<'a> {
    pub(super) view: &'a View,
    now_ms: i64,
}

impl<'a> Compiler<'a> {
    /// A compiler; `now_ms` is `now` of date math.
    pub fn new(view: &'a View, now_ms: i64) -> Self {
        Self { view, now_ms }
    }

    /// Compiles one tree.
    pub fn compile(&self, tree: &Tree) -> Compiled {
        match tree {
            // tantivy drops a bare match-all beside other clauses, and its score with it.
            Tree::MatchAll { boost } => Ok(constant(Box::new(AllQuery), *boost)),
            Tree::MatchNone => Ok(nothing()),
            Tree::Match(query) => self.text(query),
            Tree::MatchPhrase(query) => self.phrase(query),
            Tree::Term { field, value, boost } => self.term(field, value, *boost),
            Tree::Terms { field, values, boost } => self.terms(field, values, *boost),
            Tree::Range(query) => self.range(query),
            Tree::Bool(query) => self.boolean(query),
            Tree::Exists { field, boost } => Ok(constant(self.exists(field)?, *boost)),
            Tree::Ids { values, boost } => Ok(constant(self.ids(values.iter().map(String::as_str)), *boost)),
            Tree::ConstantScore { filter, boost } => Ok(constant(self.compile(filter)?, *boost)),
        }
    }

    fn ids<'b>(&self, ids: impl Iterator<Item = &'b str>) -> Box<dyn Query> {
        let field = self.view.fields().id;
        Box::new(TermSetQuery::new(ids.map(|id| Term::from_field_text(field, id))))
    }

    pub(super) fn term(&self, path: &str, value: &Scalar, boost: f32) -> Compiled {
        match special(path)? {
            Some(Special::Id) => {
                return Ok(constant(self.ids(std::iter::once(value.text().as_str())), boost));
            }
            Some(Special::Unsigned(name)) => {
                let wanted =
                    unsigned(value).map_or(Wanted::Codes(Vec::new()), |code| Wanted::Range(code..=code));
                return Ok(constant(column(name, Coding::Unsigned, wanted), boost));
            }
            None => {}
        }
        match self.view.locate(path) {
            Located::Unmapped => Ok(nothing()),
            Located::Unmaterialised(mapped) => {
                // What is no value of the field is refused whether or not a document has the field yet.
                self.check_value(mapped, value)?;
                Ok(nothing())
            }
            Located::Field(mapped, handle) => match mapped.kind {
                FieldType::Text => Ok(scored_term(
                    Term::from_field_text(handle, &value.text()),
                    IndexRecordOption::WithFreqs,
                    boost,
                )),
                FieldType::Keyword if mapped.indexed => Ok(scored_term(
                    Term::from_field_text(handle, &value.text()),
                    IndexRecordOption::Basic,
                    boost,
                )),
                FieldType::Keyword => Ok(constant(
                    self.scan(mapped, Wanted::TextSet(vec![value.text()]))?,
                    boost,
                )),
                _ => {
                    let query = match self.equal(mapped, value)? {
                        None => nothing(),
                        Some(range) => self.numeric(mapped, handle, range)?,
                    };
                    Ok(constant(query, boost))
                }
            },
        }
    }

    fn check_value(&self, mapped: &MappedField, value: &Scalar) -> Result<(), SearchError> {
        if !matches!(mapped.kind, FieldType::Text | FieldType::Keyword) {
            self.equal(mapped, value)?;
        }
        Ok(())
    }

    fn equal(&self, mapped: &MappedField, value: &Scalar) -> Result<values::CodeRange, SearchError> {
        let text = mapped.date_format();
        let formats = formats(text);
        let dates = DateContext {
            now_ms: self.now_ms,
            formats: &formats,
            format_text: text,
            zone_minutes: 0,
        };
        Ok(values::equal(mapped, value, dates)?)
    }

    /// Codes of a field that is not text: by its index where it has one and one value is wanted, else by its column.
    fn numeric(&self, mapped: &MappedField, handle: Field, range: std::ops::RangeInclusive<u64>) -> Compiled {
        let term = |code: u64| match mapped.kind {
            FieldType::Double | FieldType::Float => Term::from_field_f64(handle, tantivy::u64_to_f64(code)),
            FieldType::Boolean => Term::from_field_bool(handle, code == 1),
            _ => Term::from_field_i64(handle, tantivy::u64_to_i64(code)),
        };
        if mapped.indexed && range.start() == range.end() {
            return Ok(Box::new(TermQuery::new(
                term(*range.start()),
                IndexRecordOption::Basic,
            )));
        }
        if mapped.indexed && !mapped.doc_values {
            if (*range.start(), *range.end()) == (0, u64::MAX) {
                return self.exists(&mapped.name);
            }
            let bound = |code: u64, open: u64| {
                if code == open {
                    Bound::Unbounded
                } else {
                    Bound::Included(term(code))
                }
            };
            return Ok(Box::new(tantivy::query::RangeQuery::new(
                bound(*range.start(), 0),
                bound(*range.end(), u64::MAX),
            )));
        }
        self.scan(mapped, Wanted::Range(range))
    }

    /// A scan of a field's column.
    #[allow(clippy::unused_self, reason = "reads as the other ways to compile")]
    fn scan(&self, mapped: &MappedField, wanted: Wanted) -> Compiled {
        match Coding::of(mapped) {
            Some(coding) if mapped.doc_values => {
                Ok(column(&schema::tantivy_name(&mapped.name), coding, wanted))
            }
            _ => Err(QueryError::illegal(format!(
                "Cannot search on field [{}] since it is not indexed and has no doc_values.",
                mapped.name
            ))
            .into()),
        }
    }

    fn terms(&self, path: &str, list: &[Scalar], boost: f32) -> Compiled {
        match special(path)? {
            Some(Special::Id) => {
                let ids: Vec<String> = list.iter().map(Scalar::text).collect();
                return Ok(constant(self.ids(ids.iter().map(String::as_str)), boost));
            }
            Some(Special::Unsigned(name)) => {
                let mut codes: Vec<u64> = list.iter().filter_map(unsigned).collect();
                codes.sort_unstable();
                codes.dedup();
                return Ok(constant(
                    column(name, Coding::Unsigned, Wanted::Codes(codes)),
                    boost,
                ));
            }
            None => {}
        }
        let (mapped, handle) = match self.view.locate(path) {
            Located::Unmapped => return Ok(nothing()),
            Located::Unmaterialised(mapped) => {
                for value in list {
                    self.check_value(mapped, value)?;
                }
                return Ok(nothing());
            }
            Located::Field(mapped, handle) => (mapped, handle),
        };
        let query: Box<dyn Query> = match mapped.kind {
            FieldType::Text | FieldType::Keyword if mapped.indexed => Box::new(TermSetQuery::new(
                list.iter()
                    .map(|value| Term::from_field_text(handle, &value.text())),
            )),
            FieldType::Keyword | FieldType::Text => {
                self.scan(mapped, Wanted::TextSet(list.iter().map(Scalar::text).collect()))?
            }
            _ => {
                let (mut codes, mut ranges) = (Vec::new(), Vec::new());
                for value in list {
                    match self.equal(mapped, value)? {
                        Some(range) if range.start() == range.end() => codes.push(*range.start()),
                        Some(range) => ranges.push(range),
                        None => {}
                    }
                }
                codes.sort_unstable();
                codes.dedup();
                let mut parts = Vec::new();
                match codes.as_slice() {
                    [] => {}
                    [code] => parts.push(self.numeric(mapped, handle, *code..=*code)?),
                    _ if mapped.doc_values => parts.push(self.scan(mapped, Wanted::Codes(codes))?),
                    _ => {
                        for code in codes {
                            parts.push(self.numeric(mapped, handle, code..=code)?);
                        }
                    }
                }
                for range in ranges {
                    parts.push(self.scan(mapped, Wanted::Range(range))?);
                }
                any(parts)
            }
        };
        Ok(constant(query, boost))
    }

    fn range(&self, query: &RangeQuery) -> Compiled {
        match special(&query.field)? {
            Some(Special::Id) => return Err(QueryError::unsupported("a [range] query on [_id]").into()),
            Some(Special::Unsigned(name)) => {
                let mapped = MappedField::new(name, FieldType::Long);
                let formats = formats("epoch_millis");
                let dates = DateContext {
                    now_ms: self.now_ms,
                    formats: &formats,
                    format_text: "epoch_millis",
                    zone_minutes: 0,
                };
                let codes = values::between(&mapped, &query.lower, &query.upper, dates)?;
                // Of the codes of signed numbers, those of the positive ones are the numbers themselves with the highest bit set.
                let sign = super::coding::long(0);
                let wanted = codes
                    .filter(|range| *range.end() >= sign)
                    .map_or(Wanted::Codes(Vec::new()), |range| {
                        Wanted::Range(range.start().saturating_sub(sign)..=range.end() - sign)
                    });
                return Ok(constant(column(name, Coding::Unsigned, wanted), query.boost));
            }
            None => {}
        }
        let (mapped, handle) = match self.view.locate(&query.field) {
            Located::Unmapped => return Ok(nothing()),
            Located::Unmaterialised(mapped) => (mapped, None),
            Located::Field(mapped, handle) => (mapped, Some(handle)),
        };
        let compiled: Box<dyn Query> = match mapped.kind {
            FieldType::Text | FieldType::Keyword => {
                let bound = |bound: &RangeBound| match bound {
                    RangeBound::Open => Bound::Unbounded,
                    RangeBound::Included(value) => Bound::Included(value.text()),
                    RangeBound::Excluded(value) => Bound::Excluded(value.text()),
                };
                let (lower, upper) = (bound(&query.lower), bound(&query.upper));
                match handle {
                    None => nothing(),
                    Some(_) if (&lower, &upper) == (&Bound::Unbounded, &Bound::Unbounded) => {
                        self.exists(&query.field)?
                    }
                    Some(_) if mapped.doc_values => self.scan(mapped, Wanted::Texts(lower, upper))?,
                    Some(handle) => {
                        let term =
                            |bound: Bound<String>| bound.map(|text| Term::from_field_text(handle, &text));
                        Box::new(tantivy::query::RangeQuery::new(term(lower), term(upper)))
                    }
                }
            }
            _ => {
                let text = query.format.as_deref().unwrap_or(mapped.date_format());
                let formats = formats(text);
                let dates = DateContext {
                    now_ms: self.now_ms,
                    formats: &formats,
                    format_text: text,
                    zone_minutes: query.time_zone_minutes,
                };
                match (
                    values::between(mapped, &query.lower, &query.upper, dates)?,
                    handle,
                ) {
                    (None, _) | (_, None) => nothing(),
                    (Some(range), Some(handle)) => self.numeric(mapped, handle, range)?,
                }
            }
        };
        Ok(constant(compiled, query.boost))
    }

    fn exists(&self, path: &str) -> Compiled {
        match special(path)? {
            Some(Special::Id | Special::Unsigned(_)) => return Ok(Box::new(AllQuery)),
            None => {}
        }
        match self.view.locate(path) {
            Located::Field(mapped, _) if schema::needs_field_name(mapped) => Ok(Box::new(TermQuery::new(
                Term::from_field_text(self.view.fields().field_names, path),
                IndexRecordOption::Basic,
            ))),
            Located::Field(mapped, _) => self.scan(mapped, Wanted::Any),
            Located::Unmaterialised(_) => Ok(nothing()),
            Located::Unmapped => {
                // An object exists where a leaf below it does.
                let prefix = format!("{path}.");
                let below = self
                    .view
                    .mapping()
                    .fields
                    .iter()
                    .filter(|field| field.name.starts_with(&prefix));
                let mut parts = Vec::new();
                for field in below {
                    if field.doc_values || schema::needs_field_name(field) {
                        parts.push(self.exists(&field.name)?);
                    }
                }
                Ok(any(parts))
            }
        }
    }

    fn boolean(&self, query: &BoolQuery) -> Compiled {
        let BoolQuery {
            must,
            filter,
            should,
            must_not,
            minimum_should_match,
            boost,
        } = query;
        let written = minimum_should_match.map_or(0, |minimum| minimum.resolve(should.len()));
        // Where nothing is required, one of the optional clauses is, whatever was written.
        let minimum = written.max(usize::from(
            !should.is_empty() && must.is_empty() && filter.is_empty(),
        ));
        if must.is_empty() && filter.is_empty() && should.is_empty() {
            if must_not.is_empty() {
                return Ok(if minimum > 0 {
                    nothing()
                } else {
                    constant(Box::new(AllQuery), *boost)
                });
            }
            if minimum > 0 {
                return Ok(nothing());
            }
        }
        let mut clauses: Vec<(Occur, Box<dyn Query>)> = Vec::new();
        for tree in must {
            clauses.push((Occur::Must, self.compile(tree)?));
        }
        for tree in filter {
            clauses.push((Occur::Must, constant(self.compile(tree)?, 0.0)));
        }
        for tree in should {
            clauses.push((Occur::Should, self.compile(tree)?));
        }
        for tree in must_not {
            clauses.push((Occur::MustNot, constant(self.compile(tree)?, 0.0)));
        }
        if must.is_empty() && filter.is_empty() && should.is_empty() {
            // Only exclusions: all other documents match, with a score of zero.
            clauses.push((Occur::Must, constant(Box::new(AllQuery), 0.0)));
        }
        Ok(boosted(
            Box::new(BooleanQuery::with_minimum_required_clauses(clauses, minimum)),
            *boost,
        ))
    }
}

enum Special {
    Id,
    Unsigned(&'static str),
}

/// The engine's own fields. Those that OpenSearch has and this engine cannot search are refused.
fn special(path: &str) -> Result<Option<Special>, SearchError> {
    Ok(match path {
        "_id" => Some(Special::Id),
        schema::SEQ_NO => Some(Special::Unsigned(schema::SEQ_NO)),
        "_primary_term" => Some(Special::Unsigned(schema::TERM)),
        "_index" | "_routing" | "_source" | "_ignored" | "_field_names" | "_version" | "_tier" | "_type" => {
            return Err(QueryError::unsupported(format!("a query on field [{path}]")).into());
        }
        _ => None,
    })
}

fn unsigned(value: &Scalar) -> Option<u64> {
    match value {
        Scalar::Long(value) => u64::try_from(*value).ok(),
        Scalar::Unsigned(value) => Some(*value),
        Scalar::Text(text) => text.parse().ok(),
        Scalar::Double(_) | Scalar::Bool(_) | Scalar::Null => None,
    }
}

fn column(name: &str, coding: Coding, wanted: Wanted) -> Box<dyn Query> {
    Box::new(ColumnQuery {
        name: name.to_owned(),
        coding,
        wanted,
    })
}

pub(super) fn nothing() -> Box<dyn Query> {
    Box::new(EmptyQuery)
}

pub(super) fn constant(query: Box<dyn Query>, score: f32) -> Box<dyn Query> {
    Box::new(ConstScoreQuery::new(query, score))
}

#[allow(clippy::float_cmp, reason = "exactly 1 is the default and changes nothing")]
pub(super) fn boosted(query: Box<dyn Query>, boost: f32) -> Box<dyn Query> {
    if boost == 1.0 {
        query
    } else {
        Box::new(BoostQuery::new(query, boost))
    }
}

pub(super) fn scored_term(term: Term, option: IndexRecordOption, boost: f32) -> Box<dyn Query> {
    boosted(Box::new(TermQuery::new(term, option)), boost * LUCENE_FACTOR)
}

fn any(mut parts: Vec<Box<dyn Query>>) -> Box<dyn Query> {
    match parts.len() {
        0 => nothing(),
        1 => parts.swap_remove(0),
        _ => Box::new(BooleanQuery::union(parts)),
    }
}
