//! Aggregations over several shards, against the same computed plainly from the documents.

use crate::support::{Shard, search, values};
use proptest::prelude::*;
use segmentry_mapping::date::Formats;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const HOUR_MS: i64 = 3_600_000;

fn mappings() -> Value {
    json!({"properties": {
        "n": {"type": "long"}, "k": {"type": "keyword"}, "d": {"type": "double"}, "b": {"type": "boolean"}, "ts": {"type": "date"},
        "day": {"type": "date", "format": "yyyy-MM-dd"}, "t": {"type": "text"},
    }})
}

fn document() -> impl Strategy<Value = Value> {
    let optional = |value: BoxedStrategy<Value>| prop_oneof![1 => Just(None), 4 => value.clone().prop_map(Some), 1 => prop::collection::vec(value, 1..4).prop_map(|list| Some(list.into()))];
    (
        optional((-3_i64..4).prop_map(Value::from).boxed()),
        optional(
            prop::sample::select(vec!["a", "b", "c", "d", "e", "f", "é"])
                .prop_map(Value::from)
                .boxed(),
        ),
        optional(
            (-9_i32..10)
                .prop_map(|halves| Value::from(f64::from(halves) / 2.0))
                .boxed(),
        ),
        optional(any::<bool>().prop_map(Value::from).boxed()),
        // Half a year on both sides of 1970.
        optional(
            (-4_000_i64..4_000)
                .prop_map(|hours| Value::from(hours * HOUR_MS))
                .boxed(),
        ),
    )
        .prop_map(|(n, k, d, b, ts)| {
            let mut document = json!({});
            for (name, value) in [("n", n), ("k", k), ("d", d), ("b", b), ("ts", ts)] {
                if let Some(value) = value {
                    document[name] = value;
                }
            }
            document
        })
}

fn numbers(documents: &[&Value], field: &str) -> Vec<f64> {
    documents
        .iter()
        .flat_map(|document| values(document, field))
        .map(|value| value.as_f64().unwrap())
        .collect()
}

fn total(list: &[f64]) -> f64 {
    list.iter().sum()
}

fn least(list: &[f64]) -> Option<f64> {
    list.iter().copied().min_by(f64::total_cmp)
}

fn most(list: &[f64]) -> Option<f64> {
    list.iter().copied().max_by(f64::total_cmp)
}

#[allow(clippy::cast_precision_loss, reason = "small numbers")]
fn average(list: &[f64]) -> Option<f64> {
    (!list.is_empty()).then(|| total(list) / list.len() as f64)
}

fn stats(list: &[f64]) -> Value {
    json!({"count": list.len(), "min": least(list), "max": most(list), "avg": average(list), "sum": total(list)})
}

/// Documents by each different value of a field, in the order of the keys that `key` gives.
fn grouped<'a, K: Ord>(
    documents: &[&'a Value],
    field: &str,
    key: impl Fn(&Value) -> K,
) -> BTreeMap<K, Vec<&'a Value>> {
    let mut groups: BTreeMap<K, Vec<&Value>> = BTreeMap::new();
    for document in documents {
        let keys: std::collections::BTreeSet<K> = values(document, field).into_iter().map(&key).collect();
        for key in keys {
            groups.entry(key).or_default().push(document);
        }
    }
    groups
}

fn terms(buckets: Vec<(u64, Value)>, size: usize) -> Value {
    let other: u64 = buckets.iter().skip(size).map(|(count, _)| count).sum();
    let buckets: Vec<Value> = buckets.into_iter().take(size).map(|(_, bucket)| bucket).collect();
    json!({"doc_count_error_upper_bound": 0, "sum_other_doc_count": other, "buckets": buckets})
}

fn by_count(groups: Vec<(u64, Value)>) -> Vec<(u64, Value)> {
    let mut groups = groups;
    groups.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    groups
}

/// Year and month of a moment, by the text of its date.
fn month(millis: i64) -> (i64, i64) {
    let text = Formats::default().write(millis);
    let (year, month) = text[..7].split_once('-').unwrap();
    (year.parse().unwrap(), month.parse().unwrap())
}

fn start_of_month((year, month): (i64, i64)) -> i64 {
    Formats::default()
        .millis(
            &format!("{year:04}-{month:02}-01"),
            segmentry_mapping::date::Fill::Low,
        )
        .unwrap()
}

fn months(
    documents: &[&Value],
    zone_hours: i64,
    zone: &str,
    below: impl Fn(&[&Value]) -> Map<String, Value>,
) -> Value {
    let groups = grouped(documents, "ts", |value| {
        month(value.as_i64().unwrap() + zone_hours * HOUR_MS)
    });
    let (Some(first), Some(last)) = (groups.keys().next().copied(), groups.keys().last().copied()) else {
        return json!({"buckets": []});
    };
    let mut buckets = Vec::new();
    let mut at = first;
    while at <= last {
        let group = groups.get(&at).cloned().unwrap_or_default();
        let text = format!("{:04}-{:02}-01T00:00:00.000{zone}", at.0, at.1);
        let mut bucket = json!({"key_as_string": text, "key": start_of_month(at) - zone_hours * HOUR_MS, "doc_count": group.len()});
        bucket.as_object_mut().unwrap().extend(below(&group));
        buckets.push(bucket);
        at = if at.1 == 12 {
            (at.0 + 1, 1)
        } else {
            (at.0, at.1 + 1)
        };
    }
    json!({ "buckets": buckets })
}

fn object(value: Value) -> Map<String, Value> {
    let Value::Object(map) = value else {
        panic!("an object")
    };
    map
}

fn flags(documents: &[&Value]) -> Value {
    let groups = grouped(documents, "b", |value| value.as_bool().unwrap());
    let buckets = groups.into_iter().map(|(flag, group)| {
        (
            group.len() as u64,
            json!({"key": u8::from(flag), "key_as_string": flag.to_string(), "doc_count": group.len()}),
        )
    });
    terms(by_count(buckets.collect()), 10)
}

fn by_the_book(documents: &[&Value]) -> Value {
    let letters = grouped(documents, "k", |value| value.as_str().unwrap().to_owned());
    let letter = |(key, group): (&String, &Vec<&Value>)| {
        let list = numbers(group, "n");
        (
            group.len() as u64,
            json!({
                "key": key, "doc_count": group.len(), "mean": {"value": average(&list)},
                "time": months(group, 0, "Z", |group| object(json!({"half": {"value": total(&numbers(group, "d"))}, "flags": flags(group)}))),
            }),
        )
    };
    let whole = grouped(documents, "n", |value| value.as_i64().unwrap());
    let whole: Vec<_> = whole
        .iter()
        .rev()
        .map(|(key, group)| (group.len() as u64, json!({"key": key, "doc_count": group.len()})))
        .collect();
    let doubles = grouped(documents, "d", |value| {
        (value.as_f64().unwrap() * 2.0)
            .round()
            .to_string()
            .parse::<i64>()
            .unwrap()
    });
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    let doubles = doubles.iter().map(|(key, group)| {
        (
            group.len() as u64,
            json!({"key": *key as f64 / 2.0, "doc_count": group.len()}),
        )
    });
    let halves = grouped(documents, "ts", |value| {
        value.as_i64().unwrap().div_euclid(12 * HOUR_MS)
    });
    let halves: Vec<_> = halves
        .iter()
        .filter(|(_, group)| group.len() >= 2)
        .map(|(index, group)| {
            let key = index * 12 * HOUR_MS;
            json!({"key_as_string": Formats::default().write(key), "key": key, "doc_count": group.len()})
        })
        .collect();
    // By the highest number in a group; groups without one come last, ties go by key.
    let mut ranked: Vec<(&String, Option<f64>, usize)> = letters
        .iter()
        .map(|(key, group)| (key, most(&numbers(group, "n")), group.len()))
        .collect();
    ranked.sort_by(|left, right| match (left.1, right.1) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (Some(_), None) => std::cmp::Ordering::Less,
        (None, Some(_)) => std::cmp::Ordering::Greater,
        (None, None) => std::cmp::Ordering::Equal,
    });
    let ranked: Vec<_> = ranked
        .into_iter()
        .map(|(key, most, count)| {
            (
                count as u64,
                json!({"key": key, "doc_count": count, "most": {"value": most}}),
            )
        })
        .collect();
    let mut with_missing = letters
        .iter()
        .map(|(key, group)| (key.clone(), group.len() as u64))
        .collect::<BTreeMap<_, _>>();
    let without = documents
        .iter()
        .filter(|document| values(document, "k").is_empty())
        .count() as u64;
    if without > 0 {
        *with_missing.entry("bb".to_owned()).or_default() += without;
    }
    let with_missing: Vec<_> = with_missing
        .iter()
        .map(|(key, count)| (*count, json!({"key": key, "doc_count": count})))
        .collect();
    let unique: usize = documents
        .iter()
        .map(|document| {
            values(document, "k")
                .iter()
                .map(|value| value.as_str().unwrap())
                .collect::<std::collections::BTreeSet<_>>()
                .len()
        })
        .sum();
    json!({
        "letters": terms(by_count(letters.iter().map(letter).collect()), 3),
        "whole": terms(whole, 5),
        "doubles": terms(by_count(doubles.collect()), 50),
        "flags": flags(documents),
        "months": months(documents, -2, "-02:00", |group| object(json!({"all": stats(&numbers(group, "n"))}))),
        "halves": {"buckets": halves},
        "ranked": terms(ranked, 10),
        "missing": terms(by_count(with_missing), 10),
        "least": {"value": least(&numbers(documents, "d"))},
        "count": {"value": numbers(documents, "n").len()},
        "texts": {"value": unique},
    })
}

fn request() -> Value {
    json!({"size": 0, "query": {"match_all": {}}, "aggs": {
        "letters": {"terms": {"field": "k", "size": 3}, "aggs": {
            "mean": {"avg": {"field": "n"}},
            "time": {"date_histogram": {"field": "ts", "calendar_interval": "month"}, "aggs": {
                "half": {"sum": {"field": "d"}}, "flags": {"terms": {"field": "b"}},
            }},
        }},
        "whole": {"terms": {"field": "n", "size": 5, "order": {"_key": "desc"}}},
        "doubles": {"terms": {"field": "d", "size": 50}},
        "flags": {"terms": {"field": "b"}},
        "months": {"date_histogram": {"field": "ts", "calendar_interval": "1M", "time_zone": "-02:00"}, "aggs": {"all": {"stats": {"field": "n"}}}},
        "halves": {"date_histogram": {"field": "ts", "fixed_interval": "12h", "min_doc_count": 2}},
        "ranked": {"terms": {"field": "k", "order": {"most": "desc"}}, "aggs": {"most": {"max": {"field": "n"}}}},
        "missing": {"terms": {"field": "k", "missing": "bb"}},
        "least": {"min": {"field": "d"}},
        "count": {"value_count": {"field": "n"}},
        "texts": {"value_count": {"field": "k"}},
    }})
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn aggregations_over_shards_equal_a_plain_computation(
        shards in prop::collection::vec(
            prop::collection::vec((prop::collection::vec((0_u16..400, document()), 1..60), prop::collection::vec(0_u16..400, 0..20)), 1..4),
            1..4,
        ),
    ) {
        let shards: Vec<Shard> = shards
            .into_iter()
            .map(|batches| {
                let mut shard = Shard::new(mappings());
                for (documents, deletes) in batches {
                    for (id, document) in documents {
                        shard.index(&id.to_string(), document);
                    }
                    for id in deletes {
                        shard.delete(&id.to_string());
                    }
                    shard.refresh();
                }
                shard
            })
            .collect();
        let references: Vec<&Shard> = shards.iter().collect();
        let documents: Vec<&Value> = shards.iter().flat_map(|shard| shard.documents.values()).collect();
        let result = search(&references, request());
        prop_assert_eq!(result.total.unwrap().value, documents.len() as u64);
        let found = Value::Object(result.aggregations.unwrap());
        let expected = by_the_book(&documents);
        for (name, expected) in expected.as_object().unwrap() {
            prop_assert_eq!(&found[name], expected, "{}", name);
        }

        // Aggregations see what the query matches, and nothing else.
        let mut filtered = request();
        filtered["query"] = json!({"range": {"n": {"gte": 0}}});
        let documents: Vec<&Value> =
            documents.into_iter().filter(|document| values(document, "n").iter().any(|value| value.as_i64().unwrap() >= 0)).collect();
        let found = Value::Object(search(&references, filtered).aggregations.unwrap());
        prop_assert_eq!(found, by_the_book(&documents));
    }
}

#[test]
fn keys_of_an_answer_stand_in_opensearchs_order() {
    let mut shard = Shard::new(mappings());
    shard.index(
        "1",
        json!({"k": "a", "n": 1, "b": true, "ts": "1970-01-02", "day": "2024-02-03"}),
    );
    shard.refresh();
    let answer = |aggs: Value| {
        serde_json::to_string(
            &shard
                .search(json!({"size": 0, "aggs": aggs}))
                .aggregations
                .unwrap(),
        )
        .unwrap()
    };
    assert_eq!(
        answer(
            json!({"x": {"terms": {"field": "ts"}, "meta": {"z": 1, "a": 2}, "aggs": {"m": {"max": {"field": "ts"}}}}})
        ),
        r#"{"x":{"meta":{"z":1,"a":2},"doc_count_error_upper_bound":0,"sum_other_doc_count":0,"buckets":[{"key":86400000,"key_as_string":"1970-01-02T00:00:00.000Z","doc_count":1,"m":{"value":86400000.0,"value_as_string":"1970-01-02T00:00:00.000Z"}}]}}"#
    );
    assert_eq!(
        answer(json!({"x": {"date_histogram": {"field": "day", "calendar_interval": "year"}}})),
        r#"{"x":{"buckets":[{"key_as_string":"2024-01-01","key":1704067200000,"doc_count":1}]}}"#
    );
    assert_eq!(
        answer(
            json!({"x": {"date_histogram": {"field": "day", "calendar_interval": "quarter", "format": "yyyy/MM/dd"}}})
        ),
        r#"{"x":{"buckets":[{"key_as_string":"2024/01/01","key":1704067200000,"doc_count":1}]}}"#
    );
    assert_eq!(
        answer(json!({"x": {"stats": {"field": "ts"}}})),
        r#"{"x":{"count":1,"min":86400000.0,"max":86400000.0,"avg":86400000.0,"sum":86400000.0,"min_as_string":"1970-01-02T00:00:00.000Z","max_as_string":"1970-01-02T00:00:00.000Z","avg_as_string":"1970-01-02T00:00:00.000Z","sum_as_string":"1970-01-02T00:00:00.000Z"}}"#
    );
}

#[test]
fn a_shard_that_leaves_terms_out_says_how_far_counts_may_be_off() {
    let (mut first, mut second) = (Shard::new(mappings()), Shard::new(mappings()));
    for (shard, counts) in [
        (&mut first, [("a", 5), ("b", 3), ("c", 2)]),
        (&mut second, [("c", 4), ("b", 3), ("a", 1)]),
    ] {
        for (letter, count) in counts {
            for id in 0..count {
                shard.index(&format!("{letter}{id}"), json!({"k": letter}));
            }
        }
        shard.refresh();
    }
    let answer = |body: Value| {
        search(
            &[&first, &second],
            json!({"size": 0, "aggs": {"x": {"terms": body}}}),
        )
        .aggregations
        .unwrap()["x"]
            .clone()
    };
    let exact = answer(json!({"field": "k", "size": 1}));
    assert_eq!(
        exact,
        json!({"doc_count_error_upper_bound": 0, "sum_other_doc_count": 12, "buckets": [{"key": "a", "doc_count": 6}]})
    );
    // Each shard sends its first two: a: 5, b: 3 and c: 4, b: 3.
    let rough = answer(json!({"field": "k", "size": 1, "shard_size": 2}));
    assert_eq!(
        rough,
        json!({"doc_count_error_upper_bound": 6, "sum_other_doc_count": 12, "buckets": [{"key": "b", "doc_count": 6}]})
    );
}

#[test]
fn what_a_field_cannot_give_is_refused() {
    let mut shard = Shard::new(mappings());
    shard.index("1", json!({"k": "a", "t": "x", "ts": 0}));
    shard.index("2", json!({"ts": "2999-01-01"}));
    shard.refresh();
    let refusal = |aggregation: Value| shard.refusal(json!({"aggs": {"x": aggregation}}));
    assert_eq!(
        refusal(json!({"avg": {"field": "k"}})),
        (
            "illegal_argument_exception",
            "Field [k] of type [keyword] is not supported for aggregation [avg]".to_owned()
        )
    );
    assert_eq!(
        refusal(json!({"date_histogram": {"field": "n", "fixed_interval": "1h"}})),
        (
            "illegal_argument_exception",
            "Field [n] of type [long] is not supported for aggregation [date_histogram]".to_owned()
        )
    );
    assert!(
        refusal(json!({"terms": {"field": "t"}}))
            .1
            .starts_with("Text fields are not optimised")
    );
    assert_eq!(
        refusal(json!({"terms": {"field": "_index"}})).1,
        "an aggregation on field [_index] is not supported"
    );
    assert_eq!(
        refusal(json!({"avg": {"field": "n", "missing": "x"}})).0,
        "query_shard_exception"
    );

    let request = crate::support::parse(
        &json!({"size": 0, "aggs": {"x": {"date_histogram": {"field": "ts", "fixed_interval": "1m"}}}}),
    );
    let partial = shard.engine.search(&request, 0).unwrap();
    let error = segmentry_engine::merge(vec![partial], &request)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("too_many_buckets_exception: Trying to create too many buckets."),
        "{error}"
    );
}
