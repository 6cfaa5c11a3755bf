//! The best hits of scored text are those of an exhaustive scan.

use crate::support::{Shard, ids};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tantivy::{Term, fieldnorm::FieldNormReader};

const FIELDS: [&str; 2] = ["dense", "sparse"];
const K1: f64 = 1.2;
const B: f64 = 0.75;

/// How a random corpus is made: several batches, in the first of which no document has the field `sparse`. The faults that pruning would
/// make need postings of several blocks of 128 documents, and fields of very different lengths.
#[derive(Debug, Clone)]
struct Corpus {
    seed: u64,
    old: u64,
    young: Vec<Batch>,
}

#[derive(Debug, Clone)]
struct Batch {
    documents: u64,
    /// Of a hundred documents, so many have the field.
    sparse: u64,
    deletes: u64,
    merge: bool,
}

fn corpus() -> impl Strategy<Value = Corpus> {
    let batch = (
        200_u64..1_500,
        prop::sample::select(vec![10, 50, 100]),
        0_u64..200,
        prop::bool::weighted(0.3),
    )
        .prop_map(|(documents, sparse, deletes, merge)| Batch {
            documents,
            sparse,
            deletes,
            merge,
        });
    (any::<u64>(), 0_u64..3_000, prop::collection::vec(batch, 1..3)).prop_map(|(seed, old, young)| Corpus {
        seed,
        old,
        young,
    })
}

/// A few words are in most documents, many in few.
fn word() -> impl Strategy<Value = u8> {
    prop_oneof![8 => 0_u8..3, 4 => 3_u8..12, 1 => 12_u8..60]
}

fn text(words: &[u8]) -> String {
    words
        .iter()
        .map(|word| format!("w{word}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// xorshift: the same corpus for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn text(&mut self) -> String {
        let longest = [3, 12, 60, 200][usize::try_from(self.below(4)).unwrap()];
        let words: Vec<u8> = (0..=self.below(longest))
            .map(|_| {
                let word = match self.below(13) {
                    0..8 => self.below(3),
                    8..12 => 3 + self.below(9),
                    _ => 12 + self.below(48),
                };
                u8::try_from(word).unwrap()
            })
            .collect();
        text(&words)
    }
}

fn build(corpus: &Corpus) -> Shard {
    let mut shard =
        Shard::new(json!({"properties": {"dense": {"type": "text"}, "sparse": {"type": "text"}}}));
    let mut random = Random(corpus.seed | 1);
    let mut next = 0_u64;
    let old = Batch {
        documents: corpus.old,
        sparse: 0,
        deletes: corpus.old / 20,
        merge: false,
    };
    for batch in std::iter::once(&old).chain(&corpus.young) {
        for _ in 0..batch.documents {
            // Some replace an older document.
            let id = if next > 0 && random.below(20) == 0 {
                random.below(next)
            } else {
                next
            };
            next = next.max(id + 1);
            // Old documents are short, or `sparse` would be long in comparison by chance only.
            let mut document = if batch.sparse == 0 {
                json!({"dense": "w0 w1"})
            } else {
                json!({"dense": random.text()})
            };
            if random.below(100) < batch.sparse {
                document["sparse"] = random.text().into();
            }
            shard.index(&id.to_string(), document);
        }
        for _ in 0..batch.deletes {
            shard.delete(&random.below(next.max(1)).to_string());
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
    #![proptest_config(ProptestConfig { cases: 10, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn the_best_hits_are_those_of_an_exhaustive_scan(
        corpus in corpus(),
        queries in prop::collection::vec((0_usize..2, prop::collection::btree_set(word(), 1..5), 0_usize..4, 1_usize..15), 16),
    ) {
        let shard = build(&corpus);
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
