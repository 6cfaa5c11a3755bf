//! `match` and `match_phrase`: text is analysed as its field says, words become terms.

use super::{
    SearchError,
    compile::{Compiled, Compiler, LUCENE_FACTOR, boosted, constant, nothing, scored_term},
};
use crate::{analysis, schema::Located};
use segmentry_mapping::{Field as MappedField, FieldType};
use segmentry_query::{MatchPhraseQuery, MatchQuery, QueryError, Scalar};
use tantivy::{
    Term,
    query::{AllQuery, BooleanQuery, PhraseQuery, Query},
    schema::IndexRecordOption,
};

impl Compiler<'_> {
    pub(super) fn text(&self, query: &MatchQuery) -> Compiled {
        let located = self.view.locate(&query.field);
        let (mapped, handle) = match located {
            Located::Field(mapped, handle) if mapped.kind == FieldType::Text => (mapped, Some(handle)),
            Located::Unmaterialised(mapped) if mapped.kind == FieldType::Text => (mapped, None),
            _ => return self.exact_match(&query.field, &query.query, query.boost, query.lenient),
        };
        let words = self.words(mapped, query.analyzer.as_deref(), &query.query)?;
        let Some(handle) = handle.filter(|_| !words.is_empty()) else {
            return Ok(if words.is_empty() && query.zero_terms_all {
                constant(Box::new(AllQuery), query.boost)
            } else {
                nothing()
            });
        };
        let mut terms: Vec<Box<dyn Query>> = words
            .into_iter()
            .map(|(_, word)| {
                scored_term(
                    Term::from_field_text(handle, &word),
                    IndexRecordOption::WithFreqs,
                    1.0,
                )
            })
            .collect();
        let compiled: Box<dyn Query> = match (terms.len(), query.all_words) {
            // As in OpenSearch, one word is no boolean query, and `minimum_should_match` is about those.
            (1, _) => terms.swap_remove(0),
            (_, true)
                if query
                    .minimum_should_match
                    .is_some_and(|minimum| minimum.resolve(0) > 0) =>
            {
                nothing()
            }
            (_, true) => Box::new(BooleanQuery::intersection(terms)),
            (count, false) => {
                let minimum = query
                    .minimum_should_match
                    .map_or(1, |minimum| minimum.resolve(count).max(1));
                Box::new(BooleanQuery::union_with_minimum_required_clauses(terms, minimum))
            }
        };
        Ok(boosted(compiled, query.boost))
    }

    pub(super) fn phrase(&self, query: &MatchPhraseQuery) -> Compiled {
        let (mapped, handle) = match self.view.locate(&query.field) {
            Located::Field(mapped, handle) if mapped.kind == FieldType::Text => (mapped, Some(handle)),
            Located::Unmaterialised(mapped) if mapped.kind == FieldType::Text => (mapped, None),
            _ => return self.exact_match(&query.field, &query.query, query.boost, false),
        };
        let words = self.words(mapped, query.analyzer.as_deref(), &query.query)?;
        let Some(handle) = handle.filter(|_| !words.is_empty()) else {
            return Ok(if words.is_empty() && query.zero_terms_all {
                constant(Box::new(AllQuery), query.boost)
            } else {
                nothing()
            });
        };
        let first = words.first().map_or(0, |(position, _)| *position);
        let mut terms: Vec<(usize, Term)> = words
            .into_iter()
            .map(|(position, word)| (position - first, Term::from_field_text(handle, &word)))
            .collect();
        if terms.len() == 1 {
            let (_, term) = terms.swap_remove(0);
            return Ok(scored_term(term, IndexRecordOption::WithFreqs, query.boost));
        }
        Ok(boosted(
            Box::new(PhraseQuery::new_with_offset_and_slop(terms, query.slop)),
            query.boost * LUCENE_FACTOR,
        ))
    }

    /// `match` on a field that is not analysed text is a `term`.
    fn exact_match(&self, path: &str, value: &Scalar, boost: f32, lenient: bool) -> Compiled {
        match self.term(path, value, boost) {
            Err(SearchError::Query(_)) if lenient => Ok(nothing()),
            compiled => compiled,
        }
    }

    /// Words of a text with their positions.
    fn words(
        &self,
        mapped: &MappedField,
        analyzer: Option<&str>,
        text: &Scalar,
    ) -> Result<Vec<(usize, String)>, SearchError> {
        if !mapped.indexed {
            return Err(QueryError::illegal(format!(
                "Cannot search on field [{}] since it is not indexed.",
                mapped.name
            ))
            .into());
        }
        let name = analysis::tokenizer_name(analyzer.or(mapped.analyzer.as_deref()));
        let mut analyzer = self
            .view
            .searcher()
            .index()
            .tokenizers()
            .get(name)
            .ok_or_else(|| QueryError::shard(format!("[match] analyzer [{name}] not found")))?;
        let text = text.text();
        let mut stream = analyzer.token_stream(&text);
        let mut words = Vec::new();
        while let Some(token) = stream.next() {
            words.push((token.position, token.text.clone()));
        }
        if words.len() > segmentry_query::MAX_CLAUSES {
            return Err(QueryError::new(
                segmentry_query::QueryErrorKind::TooManyClauses,
                format!("maxClauseCount is set to {}", segmentry_query::MAX_CLAUSES),
            )
            .into());
        }
        Ok(words)
    }
}
