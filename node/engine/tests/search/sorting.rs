//! The order of hits.

use crate::support::{Shard, ids, search, values};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::cmp::Ordering;

fn document() -> impl Strategy<Value = Value> {
    let optional = |value: BoxedStrategy<Value>| prop_oneof![1 => Just(None), 4 => value.clone().prop_map(Some), 1 => prop::collection::vec(value, 1..4).prop_map(|list| Some(list.into()))];
    (
        optional((-5_i64..6).prop_map(Value::from).boxed()),
        optional(
            prop::sample::select(vec!["a", "b", "c", "d", "é"])
                .prop_map(Value::from)
                .boxed(),
        ),
        optional(
            (-4_i32..5)
                .prop_map(|halves| Value::from(f64::from(halves) / 2.0))
                .boxed(),
        ),
        optional(any::<bool>().prop_map(Value::from).boxed()),
    )
        .prop_map(|(n, k, d, b)| {
            let mut document = json!({});
            for (name, value) in [("n", n), ("k", k), ("d", d), ("b", b)] {
                if let Some(value) = value {
                    document[name] = value;
                }
            }
            document
        })
}

fn criterion() -> impl Strategy<Value = (&'static str, bool, bool, Option<bool>)> {
    (
        prop::sample::select(vec!["n", "k", "d", "b"]),
        any::<bool>(),
        any::<bool>(),
        prop::option::of(any::<bool>()),
    )
}

fn compare(left: &Value, right: &Value) -> Ordering {
    let number = |value: &Value| {
        value
            .as_f64()
            .or(value.as_bool().map(|value| f64::from(u8::from(value))))
    };
    match (number(left), number(right)) {
        (Some(left), Some(right)) => left.partial_cmp(&right).unwrap(),
        _ => left
            .as_str()
            .unwrap()
            .as_bytes()
            .cmp(right.as_str().unwrap().as_bytes()),
    }
}

/// The value that a criterion compares; none if the document has none.
fn picked<'a>(document: &'a Value, field: &str, largest: bool) -> Option<&'a Value> {
    let list = values(document, field).into_iter();
    if largest {
        list.max_by(|left, right| compare(left, right))
    } else {
        list.min_by(|left, right| compare(left, right))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn hits_of_several_shards_come_in_the_order_of_their_values(
        batches in prop::collection::vec(prop::collection::vec((0_u16..300, document()), 1..60), 1..4),
        others in prop::collection::vec((300_u16..400, document()), 0..40),
        sorts in prop::collection::vec(prop::collection::vec(criterion(), 1..4), 6),
        size in 1_usize..12,
    ) {
        let mappings = json!({"properties": {"n": {"type": "long"}, "k": {"type": "keyword"}, "d": {"type": "double"}, "b": {"type": "boolean"}}});
        let (mut first, mut second) = (Shard::new(mappings.clone()), Shard::new(mappings));
        for batch in batches {
            for (id, document) in batch {
                first.index(&id.to_string(), document);
            }
            first.refresh();
        }
        for (id, document) in others {
            second.index(&id.to_string(), document);
        }
        second.refresh();
        let shards = [&first, &second];
        for criteria in sorts {
            let sort: Vec<Value> = criteria
                .iter()
                .map(|(field, descending, missing_first, largest)| {
                    let mut options = json!({
                        "order": if *descending { "desc" } else { "asc" },
                        "missing": if *missing_first { "_first" } else { "_last" },
                    });
                    if let Some(largest) = largest {
                        options["mode"] = if *largest { "max" } else { "min" }.into();
                    }
                    json!({*field: options})
                })
                .collect();
            let by_the_book = |left: &str, right: &str| {
                let document = |id: &str| first.documents.get(id).or(second.documents.get(id)).unwrap();
                criteria
                    .iter()
                    .map(|(field, descending, missing_first, largest)| {
                        let largest = largest.unwrap_or(*descending);
                        match (picked(document(left), field, largest), picked(document(right), field, largest)) {
                            (Some(left), Some(right)) if *descending => compare(right, left),
                            (Some(left), Some(right)) => compare(left, right),
                            (None, None) => Ordering::Equal,
                            (None, Some(_)) if *missing_first => Ordering::Less,
                            (None, Some(_)) => Ordering::Greater,
                            (Some(_), None) if *missing_first => Ordering::Greater,
                            (Some(_), None) => Ordering::Less,
                        }
                    })
                    .find(|order| order.is_ne())
                    .unwrap_or(Ordering::Equal)
            };
            let all = search(&shards, json!({"sort": sort, "size": 10_000}));
            prop_assert_eq!(all.hits.len(), first.documents.len() + second.documents.len());
            for pair in all.hits.windows(2) {
                let order = by_the_book(&pair[0].id, &pair[1].id);
                prop_assert!(order.is_le(), "{:?} before {:?} by {:?}", pair[0], pair[1], sort);
                prop_assert!(order.is_lt() || pair[0].shard <= pair[1].shard, "ties go by shard");
            }
            let best = search(&shards, json!({"sort": sort, "size": size, "from": 1}));
            prop_assert_eq!(ids(&best), ids(&all).into_iter().skip(1).take(size).collect::<Vec<_>>(), "{:?}", sort);

            // Pages over a unique last criterion hold every hit once.
            let mut unique = sort.clone();
            unique.push(json!("_seq_no"));
            let whole = ids(&first.search(json!({"sort": unique, "size": 10_000})));
            let mut paged: Vec<String> = Vec::new();
            let mut after: Option<Vec<Value>> = None;
            loop {
                let mut body = json!({"sort": unique, "size": size + 5});
                if let Some(after) = &after {
                    body["search_after"] = Value::Array(after.clone());
                }
                let page = first.search(body);
                let Some(last) = page.hits.last() else { break };
                // Over the wire a client sends back what it was shown.
                after = Some(serde_json::from_str(&serde_json::to_string(&last.sort).unwrap()).unwrap());
                paged.extend(ids(&page));
                prop_assert!(paged.len() <= whole.len(), "a page repeats hits by {:?}", unique);
            }
            prop_assert_eq!(paged, whole, "{:?}", unique);
        }
    }
}

#[test]
fn sort_values_are_shown_as_opensearch_shows_them() {
    let mut shard = Shard::new(json!({"properties": {
        "n": {"type": "long"}, "k": {"type": "keyword"}, "d": {"type": "double"}, "b": {"type": "boolean"}, "ts": {"type": "date"},
    }}));
    shard.index(
        "full",
        json!({"n": 3, "k": "x", "d": 1.5, "b": true, "ts": "1970-01-01T00:00:01Z"}),
    );
    shard.index("empty", json!({}));
    shard.refresh();
    let shown = |order: &str| {
        let sort: Vec<Value> = ["n", "k", "d", "b", "ts"]
            .iter()
            .map(|field| json!({*field: order}))
            .collect();
        let result = shard.search(json!({ "sort": sort }));
        result
            .hits
            .into_iter()
            .map(|hit| Value::Array(hit.sort))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        shown("asc"),
        [
            json!([3, "x", 1.5, 1, 1000]),
            json!([i64::MAX, null, "Infinity", i64::MAX, i64::MAX])
        ]
    );
    assert_eq!(
        shown("desc"),
        [
            json!([3, "x", 1.5, 1, 1000]),
            json!([i64::MIN, null, "-Infinity", i64::MIN, i64::MIN])
        ]
    );
}

#[test]
fn what_cannot_be_sorted_by_is_refused() {
    let mut shard = Shard::new(json!({"properties": {"t": {"type": "text"}}}));
    shard.index("1", json!({"t": "x"}));
    shard.refresh();
    assert_eq!(
        shard.refusal(json!({"sort": ["nope"]})),
        (
            "query_shard_exception",
            "No mapping found for [nope] in order to sort on".to_owned()
        )
    );
    let (kind, reason) = shard.refusal(json!({"sort": ["t"]}));
    assert_eq!(kind, "illegal_argument_exception");
    assert!(
        reason
            .starts_with("Text fields are not optimised for operations that require per-document field data"),
        "{reason}"
    );
    assert_eq!(
        ids(&shard.search(json!({"sort": [{"nope": {"unmapped_type": "long"}}]}))),
        ["1"]
    );
}

#[test]
fn scores_take_part_in_an_order() {
    let mut shard = Shard::new(json!({"properties": {"t": {"type": "text"}, "n": {"type": "long"}}}));
    for (id, text, number) in [("a", "red", 1), ("b", "red red red", 2), ("c", "red", 2)] {
        shard.index(id, json!({"t": text, "n": number}));
    }
    shard.refresh();
    let result = shard.search(json!({"query": {"match": {"t": "red"}}, "sort": [{"n": "desc"}, "_score"]}));
    assert_eq!(ids(&result), ["b", "c", "a"]);
    assert!(result.max_score.is_none());
    assert!(result.hits.iter().all(|hit| hit.score.is_some()));
    let tracked =
        shard.search(json!({"query": {"match": {"t": "red"}}, "sort": ["n"], "track_scores": true}));
    assert_eq!(ids(&tracked), ["a", "b", "c"]);
    assert_eq!(tracked.max_score, tracked.hits[1].score);
    assert_eq!(
        ids(&shard.search(json!({"query": {"match": {"t": "red"}}, "sort": [{"_doc": "desc"}]}))),
        ["c", "b", "a"]
    );
}
