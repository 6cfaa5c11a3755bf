//! The best hits of scored text are those of an exhaustive scan.

use crate::support::{Shard, ids};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tantivy::{Term, fieldnorm::FieldNormReader};

const FIELDS: [&str; 2] = ["dense", "sparse"];
const K1: f64 = 1.2;
const B: f64 = 0.75;

/// One batch: documents with their words, ids to delete, whether all is merged after it.
#[derive(Debug, Clone)]
struct Batch {
    documents: Vec<(u16, Vec<u8>, Option<Vec<u8>>)>,
    deletes: Vec<u16>,
    merge: bool,
}

/// A few words are in most documents, many in few.
fn word() -> impl Strategy<Value = u8> {
    prop_oneof![8 => 0_u8..3, 4 => 3_u8..12, 1 => 12_u8..60]
}

fn batch(with_sparse: bool, count: std::ops::Range<usize>) -> impl Strategy<Value = Batch> {
    let sparse = if with_sparse {
        prop::option::weighted(0.4, prop::collection::vec(word(), 1..40)).boxed()
    } else {
        Just(None).boxed()
    };
    let document = (0_u16..2_000, prop::collection::vec(word(), 0..25), sparse);
    (
        prop::collection::vec(document, count),
        prop::collection::vec(0_u16..2_000, 0..60),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(documents, deletes, merge)| Batch {
            documents,
            deletes,
            merge,
        })
}

fn text(words: &[u8]) -> String {
    words
        .iter()
        .map(|word| format!("w{word}"))
        .collect::<Vec<_>>()
        .join(" ")
}

fn build(batches: &[Batch]) -> Shard {
    let mut shard =
        Shard::new(json!({"properties": {"dense": {"type": "text"}, "sparse": {"type": "text"}}}));
    for batch in batches {
        for (id, dense, sparse) in &batch.documents {
            let mut document = json!({"dense": text(dense)});
            if let Some(sparse) = sparse {
                document["sparse"] = text(sparse).into();
            }
            shard.index(&id.to_string(), document);
        }
        for id in &batch.deletes {
            shard.delete(&id.to_string());
        }
        shard.refresh();
        if batch.merge {
            shard.merge();
        }
    }
    shard
}

/// BM25 of every live document by the book, from the documents alone but for the statistics, which count deleted documents until a merge.
fn by_the_book(shard: &Shard, field: &str, words: &[u8], minimum: usize) -> BTreeMap<String, f64> {
    let view = shard.engine.view();
    let searcher = view.searcher();
    let Some(handle) = view.fields().get(field) else {
        return BTreeMap::new();
    };
    let documents: f64 = searcher
        .segment_readers()
        .iter()
        .map(|segment| f64::from(segment.max_doc()))
        .sum();
    let tokens: u64 = searcher
        .segment_readers()
        .iter()
        .map(|segment| segment.inverted_index(handle).unwrap().total_num_tokens())
        .sum();
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    let average = tokens as f64 / documents;
    let mut scores = BTreeMap::new();
    for (id, document) in &shard.documents {
        let Some(text) = document.get(field).and_then(Value::as_str) else {
            continue;
        };
        let tokens: Vec<&str> = text.split_whitespace().collect();
        let norm = FieldNormReader::fieldnorm_to_id(u32::try_from(tokens.len()).unwrap());
        let length = f64::from(FieldNormReader::id_to_fieldnorm(norm));
        let (mut score, mut matched) = (0.0, 0);
        for word in words {
            let word = format!("w{word}");
            let frequency = u32::try_from(tokens.iter().filter(|token| **token == word).count()).unwrap();
            if frequency == 0 {
                continue;
            }
            matched += 1;
            let frequency = f64::from(frequency);
            #[allow(clippy::cast_precision_loss, reason = "small numbers")]
            let holding = searcher.doc_freq(&Term::from_field_text(handle, &word)).unwrap() as f64;
            let idf = (1.0 + (documents - holding + 0.5) / (holding + 0.5)).ln();
            score += idf * frequency / (frequency + K1 * (1.0 - B + B * length / average));
        }
        if matched >= minimum.max(1) {
            scores.insert(id.clone(), score);
        }
    }
    scores
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn the_best_hits_are_those_of_an_exhaustive_scan(
        old in prop::collection::vec(batch(false, 100..700), 1..3),
        young in prop::collection::vec(batch(true, 50..400), 1..3),
        queries in prop::collection::vec((0_usize..2, prop::collection::btree_set(word(), 1..5), 0_usize..4, 1_usize..15), 12),
    ) {
        let batches: Vec<Batch> = old.into_iter().chain(young).collect();
        let shard = build(&batches);
        for (field, words, rule, size) in queries {
            let words: Vec<u8> = words.into_iter().collect();
            let field = FIELDS[field];
            let mut body = json!({"query": text(&words)});
            let minimum = match rule {
                0 => { body["operator"] = "and".into(); words.len() }
                1 => { body["minimum_should_match"] = 2.into(); if words.len() == 1 { 1 } else { 2 } }
                _ => 1,
            };
            let query = json!({"match": {field: body}});
            let expected = by_the_book(&shard, field, &words, minimum);
            let all = shard.search(json!({"query": query, "size": 10_000}));
            let best = shard.search(json!({"query": query, "size": size}));

            prop_assert_eq!(all.total.unwrap().value, expected.len() as u64);
            prop_assert_eq!(all.hits.len(), expected.len());
            for hit in &all.hits {
                let (score, book) = (f64::from(hit.score.unwrap()), expected[&hit.id]);
                prop_assert!((score - book).abs() <= 1e-4 * book.max(1.0), "{} of {field}: {score}, by the book {book}", hit.id);
            }
            for pair in all.hits.windows(2) {
                prop_assert!(pair[0].score >= pair[1].score);
            }
            prop_assert_eq!(&best.hits[..], &all.hits[..size.min(all.hits.len())], "{} best of {:?}", size, query);
            prop_assert_eq!(best.max_score, all.hits.first().and_then(|hit| hit.score));
            let paged = shard.search(json!({"query": query, "from": 3, "size": size}));
            prop_assert_eq!(&paged.hits[..], all.hits.get(3..(3 + size).min(all.hits.len())).unwrap_or_default());
        }
    }
}

#[test]
fn filters_do_not_score_and_boosts_do() {
    let mut shard = Shard::new(json!({"properties": {"t": {"type": "text"}, "n": {"type": "long"}}}));
    for (id, text, number) in [("a", "red", 1), ("b", "red blue", 2), ("c", "blue", 3)] {
        shard.index(id, json!({"t": text, "n": number}));
    }
    shard.refresh();
    let score = |query: Value, id: &str| {
        let result = shard.search(json!({ "query": query }));
        result
            .hits
            .into_iter()
            .find(|hit| hit.id == id)
            .and_then(|hit| hit.score)
    };
    let red = score(json!({"match": {"t": "red"}}), "a").unwrap();
    let close = |left: Option<f32>, right: f32| (left.unwrap() - right).abs() < 1e-5;
    assert!(close(
        score(
            json!({"bool": {"must": {"match": {"t": "red"}}, "filter": {"match": {"t": "red"}}}}),
            "a"
        ),
        red
    ));
    assert!(close(
        score(
            json!({"bool": {"must": [{"match": {"t": "red"}}, {"match_all": {}}]}}),
            "a"
        ),
        red + 1.0
    ));
    assert!(close(
        score(
            json!({"bool": {"should": [{"match": {"t": "red"}}, {"range": {"n": {"gte": 1, "boost": 5}}}]}}),
            "a"
        ),
        red + 5.0
    ));
    assert!(close(
        score(json!({"match": {"t": {"query": "red", "boost": 3}}}), "a"),
        red * 3.0
    ));
    assert!(close(
        score(
            json!({"constant_score": {"filter": {"match": {"t": "red"}}, "boost": 7}}),
            "a"
        ),
        7.0
    ));
    assert!(close(
        score(json!({"bool": {"filter": {"match": {"t": "red"}}}}), "a"),
        0.0
    ));
    assert!(close(
        score(json!({"bool": {"must_not": {"match": {"t": "blue"}}}}), "a"),
        0.0
    ));
    assert!(close(
        score(json!({"bool": {"must": {"term": {"n": 1}}, "boost": 2}}), "a"),
        2.0
    ));
    assert_eq!(
        ids(&shard.search(json!({"query": {"match": {"t": "red"}}, "min_score": red + 0.001}))),
        Vec::<String>::new()
    );
}
