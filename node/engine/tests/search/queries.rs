//! Which documents a query matches.

use crate::support::{Shard, values};
use proptest::prelude::*;
use serde_json::{Value, json};

const DAY_MS: i64 = 86_400_000;

fn mappings() -> Value {
    json!({"properties": {
        "n": {"type": "long"}, "i": {"type": "integer", "index": true}, "d": {"type": "double"}, "b": {"type": "boolean"},
        "ts": {"type": "date"}, "k": {"type": "keyword"}, "c": {"type": "keyword", "index": false}, "t": {"type": "text"},
    }})
}

/// One value, several, or none.
fn field(value: impl Strategy<Value = Value> + Clone + 'static) -> BoxedStrategy<Option<Value>> {
    prop_oneof![
        2 => Just(None),
        5 => value.clone().prop_map(Some),
        1 => prop::collection::vec(value, 1..4).prop_map(|list| Some(Value::Array(list))),
    ]
    .boxed()
}

fn number() -> impl Strategy<Value = Value> + Clone {
    (-5_i64..15).prop_map(Value::from)
}

fn letter() -> impl Strategy<Value = Value> + Clone {
    prop::sample::select(vec!["a", "ab", "b", "ba", "c", "é", "z"]).prop_map(Value::from)
}

fn moment() -> impl Strategy<Value = Value> + Clone {
    (0_i64..40).prop_map(|hours| Value::from(hours * DAY_MS / 4))
}

fn document() -> impl Strategy<Value = Value> {
    (
        field(number()),
        field(number()),
        field((-8_i32..8).prop_map(|halves| Value::from(f64::from(halves) / 2.0))),
        field(any::<bool>().prop_map(Value::from)),
        field(moment()),
        field(letter()),
        field(letter()),
        field(prop::sample::select(vec!["red fox", "fox", "blue fish", "red red"]).prop_map(Value::from)),
    )
        .prop_map(|(n, i, d, b, ts, k, c, t)| {
            let mut document = json!({});
            for (name, value) in [
                ("n", n),
                ("i", i),
                ("d", d),
                ("b", b),
                ("ts", ts),
                ("k", k),
                ("c", c),
                ("t", t),
            ] {
                if let Some(value) = value {
                    document[name] = value;
                }
            }
            document
        })
}

fn leaf() -> impl Strategy<Value = Value> {
    let range = |field: &'static str, value: BoxedStrategy<Value>| {
        (
            prop::option::of((any::<bool>(), value.clone())),
            prop::option::of((any::<bool>(), value)),
        )
            .prop_map(move |(low, high)| {
                let mut bounds = json!({});
                if let Some((included, value)) = low {
                    bounds[if included { "gte" } else { "gt" }] = value;
                }
                if let Some((included, value)) = high {
                    bounds[if included { "lte" } else { "lt" }] = value;
                }
                json!({"range": {field: bounds}})
            })
    };
    let half = (-20_i32..40).prop_map(|halves| Value::from(f64::from(halves) / 2.0));
    prop_oneof![
        (prop::sample::select(vec!["n", "i", "d"]), number())
            .prop_map(|(field, value)| json!({"term": {field: value}})),
        (prop::sample::select(vec!["k", "c"]), letter())
            .prop_map(|(field, value)| json!({"term": {field: value}})),
        (
            prop::sample::select(vec!["n", "i"]),
            prop::collection::vec(number(), 0..4)
        )
            .prop_map(|(field, list)| json!({"terms": {field: list}})),
        (
            prop::sample::select(vec!["k", "c"]),
            prop::collection::vec(letter(), 0..4)
        )
            .prop_map(|(field, list)| json!({"terms": {field: list}})),
        any::<bool>().prop_map(|value| json!({"term": {"b": value}})),
        moment().prop_map(|value| json!({"term": {"ts": value}})),
        range("n", half.clone().boxed()),
        range("i", number().boxed()),
        range("d", half.boxed()),
        range("k", letter().boxed()),
        range("c", letter().boxed()),
        range("ts", moment().boxed()),
        prop::sample::select(vec!["n", "i", "d", "b", "ts", "k", "c", "t", "nope"])
            .prop_map(|field| json!({"exists": {"field": field}})),
        prop::collection::vec(0_u8..80, 0..5).prop_map(|ids| json!({"ids": {"values": ids}})),
        prop::sample::select(vec!["red", "fox", "fish", "cow"])
            .prop_map(|word| json!({"match": {"t": word}})),
        Just(json!({"match_all": {}})),
        Just(json!({"match_none": {}})),
    ]
}

fn query() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(3, 20, 4, |inner| {
        let list = || prop::collection::vec(inner.clone(), 0..3);
        prop_oneof![
            (list(), list(), list(), list(), prop::option::of(0_i32..4)).prop_map(
                |(must, filter, should, must_not, minimum)| {
                    let mut query =
                        json!({"must": must, "filter": filter, "should": should, "must_not": must_not});
                    if let Some(minimum) = minimum {
                        query["minimum_should_match"] = minimum.into();
                    }
                    json!({ "bool": query })
                }
            ),
            inner.prop_map(|filter| json!({"constant_score": {"filter": filter}})),
        ]
    })
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// By the book, over the document as it was sent.
fn matches(query: &Value, id: &str, document: &Value) -> bool {
    let (name, body) = query.as_object().unwrap().iter().next().unwrap();
    let first = || body.as_object().unwrap().iter().next().unwrap();
    let same = |left: &Value, right: &Value| match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => (left - right).abs() < 1e-9,
        _ => left == right,
    };
    match name.as_str() {
        "match_all" => true,
        "match_none" => false,
        "term" => {
            let (field, value) = first();
            values(document, field).iter().any(|found| same(found, value))
        }
        "terms" => {
            let (field, wanted) = first();
            values(document, field)
                .iter()
                .any(|found| list(wanted).iter().any(|value| same(found, value)))
        }
        "match" => {
            let (field, value) = first();
            values(document, field).iter().any(|found| {
                found
                    .as_str()
                    .unwrap()
                    .split(' ')
                    .any(|word| Some(word) == value.as_str())
            })
        }
        "exists" => !values(document, body["field"].as_str().unwrap()).is_empty(),
        "ids" => list(&body["values"]).iter().any(|value| id == format!("{value}")),
        "range" => {
            let (field, bounds) = first();
            let holds = |found: &Value| {
                bounds.as_object().unwrap().iter().all(|(operator, bound)| {
                    let order = match (found.as_f64(), bound.as_f64()) {
                        (Some(found), Some(bound)) => found.partial_cmp(&bound).unwrap(),
                        _ => found
                            .as_str()
                            .unwrap()
                            .as_bytes()
                            .cmp(bound.as_str().unwrap().as_bytes()),
                    };
                    match operator.as_str() {
                        "gte" => order.is_ge(),
                        "gt" => order.is_gt(),
                        "lte" => order.is_le(),
                        _ => order.is_lt(),
                    }
                })
            };
            values(document, field).into_iter().any(holds)
        }
        "constant_score" => matches(&body["filter"], id, document),
        "bool" => {
            let [must, filter, should, must_not] =
                ["must", "filter", "should", "must_not"].map(|name| list(&body[name]));
            let required = must
                .iter()
                .chain(&filter)
                .all(|query| matches(query, id, document));
            let excluded = must_not.iter().any(|query| matches(query, id, document));
            let optional = should.iter().filter(|query| matches(query, id, document)).count();
            let written = body["minimum_should_match"]
                .as_u64()
                .map_or(0, |minimum| usize::try_from(minimum).unwrap());
            let implied = usize::from(!should.is_empty() && must.is_empty() && filter.is_empty());
            required && !excluded && optional >= written.max(implied)
        }
        other => panic!("{other}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_query_matches_what_it_says(
        batches in prop::collection::vec((prop::collection::vec((0_u8..80, document()), 1..50), prop::collection::vec(0_u8..80, 0..8)), 1..4),
        merge in any::<bool>(),
        queries in prop::collection::vec(query(), 40),
    ) {
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
        if merge {
            shard.merge();
        }
        for query in queries {
            let mut expected: Vec<String> =
                shard.documents.iter().filter(|(id, document)| matches(&query, id, document)).map(|(id, _)| id.clone()).collect();
            expected.sort();
            prop_assert_eq!(shard.ids(&query), expected.clone(), "{}", query);
            let request = crate::support::parse(&json!({ "query": query }));
            prop_assert_eq!(shard.engine.count(&request.query, request.now_ms).unwrap(), expected.len() as u64, "{}", query);
            // The same in a filter, where nothing is scored.
            let filtered = json!({"bool": {"filter": query}});
            prop_assert_eq!(shard.ids(&filtered), expected, "{}", filtered);
        }
    }
}

fn sample() -> Shard {
    let mut shard = Shard::new(json!({"properties": {
        "t": {"type": "text"}, "en": {"type": "text", "analyzer": "english"}, "k": {"type": "keyword"}, "ts": {"type": "date"},
        "day": {"type": "date", "format": "yyyy-MM-dd"}, "n": {"type": "long"}, "f": {"type": "integer", "index": true, "doc_values": false},
        "o": {"properties": {"x": {"type": "long"}, "y": {"type": "text"}}},
    }}));
    shard.index("1", json!({"t": "The quick brown fox", "en": "running foxes", "k": "A", "ts": "2024-03-31T10:00:00Z", "day": "2024-03-31", "n": 1, "f": 10}));
    shard.index("2", json!({"t": "quick fox jumps", "en": "he ran", "k": "B", "ts": "2024-03-30T23:00:00Z", "day": "2024-03-30", "n": 2, "f": 20, "o": {"x": 1}}));
    shard.index(
        "3",
        json!({"t": "brown dog", "ts": "2024-02-29", "n": 3, "f": 30, "o": {"y": "here"}}),
    );
    shard.refresh();
    shard
}

#[test]
fn text_is_analysed_as_its_field_says() {
    let shard = sample();
    for (query, expected) in [
        (json!({"match": {"t": "QUICK dog"}}), vec!["1", "2", "3"]),
        (
            json!({"match": {"t": {"query": "quick fox", "operator": "and"}}}),
            vec!["1", "2"],
        ),
        (
            json!({"match": {"t": {"query": "quick brown fox", "minimum_should_match": 3}}}),
            vec!["1"],
        ),
        (
            json!({"match": {"t": {"query": "QUICK", "analyzer": "whitespace"}}}),
            vec![],
        ),
        (json!({"match": {"en": "the run"}}), vec!["1"]),
        (json!({"match": {"en": "the"}}), vec![]),
        (
            json!({"match": {"en": {"query": "the", "zero_terms_query": "all"}}}),
            vec!["1", "2", "3"],
        ),
        (json!({"match_phrase": {"t": "quick fox"}}), vec!["2"]),
        (
            json!({"match_phrase": {"t": {"query": "quick fox", "slop": 1}}}),
            vec!["1", "2"],
        ),
        (json!({"match_phrase": {"t": "fox"}}), vec!["1", "2"]),
        (json!({"term": {"t": "quick"}}), vec!["1", "2"]),
        (json!({"term": {"t": "Quick"}}), vec![]),
        (json!({"match": {"n": "2"}}), vec!["2"]),
        (json!({"match": {"n": {"query": "x", "lenient": true}}}), vec![]),
        (json!({"match": {"k": "A"}}), vec!["1"]),
        (
            json!({"range": {"t": {"gte": "jumps", "lt": "the"}}}),
            vec!["1", "2"],
        ),
    ] {
        assert_eq!(shard.ids(&query), expected, "{query}");
    }
}

#[test]
fn dates_mean_their_whole_precision() {
    let shard = sample();
    for (query, expected) in [
        (json!({"term": {"ts": "2024-03-31"}}), vec!["1"]),
        (json!({"term": {"ts": "2024-03"}}), vec!["1", "2"]),
        (
            json!({"terms": {"ts": ["2024-02-29", "2024-03-31T10:00:00Z"]}}),
            vec!["1", "3"],
        ),
        (json!({"range": {"ts": {"gte": "now/d"}}}), vec!["1"]),
        (
            json!({"range": {"ts": {"gte": "now-1d/d", "lt": "now/d"}}}),
            vec!["2"],
        ),
        (json!({"range": {"ts": {"lte": "2024-03-30"}}}), vec!["2", "3"]),
        (json!({"range": {"ts": {"gt": "2024-03-30"}}}), vec!["1"]),
        (
            json!({"range": {"ts": {"gte": "2024-03-31", "time_zone": "+02:00"}}}),
            vec!["1", "2"],
        ),
        (
            json!({"range": {"ts": {"gte": "31", "lte": "2024", "format": "strict_date_optional_time||epoch_second"}}}),
            vec!["1", "2", "3"],
        ),
        (json!({"range": {"day": {"gt": "2024-03-30"}}}), vec!["1"]),
        (json!({"term": {"day": "2024-03-30"}}), vec!["2"]),
    ] {
        assert_eq!(shard.ids(&query), expected, "{query}");
    }
}

#[test]
fn objects_exist_where_a_leaf_does_and_fields_without_a_column_are_found() {
    let shard = sample();
    for (query, expected) in [
        (json!({"exists": {"field": "o"}}), vec!["2", "3"]),
        (json!({"exists": {"field": "o.y"}}), vec!["3"]),
        (json!({"exists": {"field": "f"}}), vec!["1", "2", "3"]),
        (json!({"term": {"f": 20}}), vec!["2"]),
        (json!({"terms": {"f": [10, 30]}}), vec!["1", "3"]),
        (json!({"range": {"f": {"gt": 10, "lte": 30}}}), vec!["2", "3"]),
        (json!({"range": {"f": {}}}), vec!["1", "2", "3"]),
        (json!({"term": {"_id": "2"}}), vec!["2"]),
        (json!({"terms": {"_id": ["1", "3", "9"]}}), vec!["1", "3"]),
        (json!({"range": {"_seq_no": {"gte": 1}}}), vec!["2", "3"]),
        (json!({"range": {"_seq_no": {"lt": -1}}}), vec![]),
        (json!({"term": {"_seq_no": 0}}), vec!["1"]),
        (json!({"term": {"n": 2.5}}), vec![]),
        (json!({"term": {"n": "9999999999999999999999"}}), vec![]),
        (json!({"range": {"n": {"gt": 1.5, "lt": 1e30}}}), vec!["2", "3"]),
        (
            json!({"range": {"n": {"gte": -1e30, "lte": "2"}}}),
            vec!["1", "2"],
        ),
        (json!({"range": {"n": {"lt": -1e30}}}), vec![]),
    ] {
        assert_eq!(shard.ids(&query), expected, "{query}");
    }
}

#[test]
fn values_that_a_field_cannot_hold_are_refused() {
    let shard = sample();
    for (query, kind, reason) in [
        (
            json!({"term": {"n": "x"}}),
            "query_shard_exception",
            "failed to create query: For input string: \"x\"",
        ),
        (
            json!({"match": {"n": "x y"}}),
            "query_shard_exception",
            "failed to create query: For input string: \"x y\"",
        ),
        (
            json!({"range": {"ts": {"gte": "soon"}}}),
            "parse_exception",
            "failed to parse date field [soon] with format [strict_date_optional_time||epoch_millis]",
        ),
        (
            json!({"term": {"_index": "i"}}),
            "illegal_argument_exception",
            "a query on field [_index] is not supported",
        ),
    ] {
        assert_eq!(
            shard.refusal(json!({ "query": query })),
            (kind, reason.to_owned()),
            "{query}"
        );
    }
}

#[test]
fn hits_carry_what_was_asked_for() {
    let shard = sample();
    let body = |more: Value| {
        let mut body = json!({"query": {"term": {"_id": "2"}}});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let hits = shard
            .search(body)
            .hits_json(|shard| if shard == 0 { "books" } else { "other" })
            .unwrap();
        String::from_utf8(hits).unwrap()
    };
    assert_eq!(
        body(json!({"_source": ["t", "o.*"], "version": true, "seq_no_primary_term": true})),
        r#"{"total":{"value":1,"relation":"eq"},"max_score":1.0,"hits":[{"_index":"books","_id":"2","_version":1,"_seq_no":1,"_primary_term":1,"_score":1.0,"_source":{"t":"quick fox jumps","o":{"x":1}}}]}"#
    );
    assert_eq!(
        body(json!({"_source": false, "sort": [{"n": "desc"}, "k"], "track_total_hits": false})),
        r#"{"max_score":null,"hits":[{"_index":"books","_id":"2","_score":null,"sort":[2,"B"]}]}"#
    );
    assert!(
        body(json!({})).contains(r#""_source":{"t":"quick fox jumps","en":"he ran""#),
        "the source goes out as it came"
    );
}

#[test]
fn total_hits_are_counted_as_far_as_wanted() {
    let mut shard = Shard::new(json!({}));
    for id in 0..25 {
        shard.index(&id.to_string(), json!({"n": id}));
    }
    shard.refresh();
    let total = |tracked: Value, query: Value| {
        shard
            .search(json!({"query": query, "size": 2, "track_total_hits": tracked}))
            .total
            .map(|total| (total.value, total.exact))
    };
    for query in [json!({"match_all": {}}), json!({"range": {"n": {"gte": 0}}})] {
        assert_eq!(total(json!(true), query.clone()), Some((25, true)));
        assert_eq!(total(json!(10), query.clone()), Some((10, false)));
        assert_eq!(total(json!(25), query.clone()), Some((25, true)));
        assert_eq!(total(json!(false), query), None);
    }
}
