//! Fields that only some segments, or only some shards, have.

use crate::support::{Shard, ids, search};
use serde_json::{Value, json};

/// Two segments; the fields of the second one are unknown to the first.
fn grown() -> Shard {
    let mut shard = Shard::new(json!({}));
    for id in 0..5 {
        shard.index(&format!("old{id}"), json!({"old": id}));
    }
    shard.refresh();
    for id in 0..3 {
        shard.index(&format!("new{id}"), json!({"old": 10 + id, "long": id, "double": 0.5, "text": "young words", "flag": true, "day": "2024-01-02"}));
    }
    shard.refresh();
    assert_eq!(shard.segments(), 2, "the test is about two segments");
    shard
}

fn check(shard: &Shard) {
    let young = vec!["new0", "new1", "new2"];
    for query in [
        json!({"range": {"long": {"gte": 0}}}),
        json!({"terms": {"long": [0, 1, 2]}}),
        json!({"term": {"double": 0.5}}),
        json!({"match": {"text": "words"}}),
        json!({"match_phrase": {"text": "young words"}}),
        json!({"term": {"text.keyword": "young words"}}),
        json!({"range": {"text.keyword": {"gte": "young"}}}),
        json!({"term": {"flag": true}}),
        json!({"term": {"day": "2024-01-02"}}),
        json!({"exists": {"field": "text"}}),
        json!({"exists": {"field": "long"}}),
        json!({"bool": {"must_not": {"range": {"old": {"lt": 10}}}}}),
        json!({"bool": {"must": {"match": {"text": "young"}}, "should": {"range": {"long": {"gt": 0}}}}}),
    ] {
        assert_eq!(shard.ids(&query), young, "{query}");
    }
    assert_eq!(
        shard
            .ids(&json!({"bool": {"must_not": {"exists": {"field": "long"}}}}))
            .len(),
        5
    );
    for (sort, first) in [
        (json!([{"long": "desc"}]), "new2"),
        (
            json!([{"long": {"order": "asc", "missing": "_first"}}, "old"]),
            "old0",
        ),
        (json!([{"text.keyword": "asc"}, {"old": "desc"}]), "new2"),
        (
            json!([{"day": "asc"}, {"double": "asc"}, {"flag": "asc"}, {"old": "asc"}]),
            "new0",
        ),
    ] {
        let result = shard.search(json!({ "sort": sort }));
        assert_eq!(result.hits.len(), 8);
        assert_eq!(result.hits[0].id, first, "{sort}");
    }
    let aggregations = shard.search(json!({"size": 0, "aggs": {
        "words": {"terms": {"field": "text.keyword", "missing": "none"}, "aggs": {"sum": {"sum": {"field": "long"}}, "least": {"min": {"field": "double"}}}},
        "days": {"date_histogram": {"field": "day", "calendar_interval": "month"}},
        "all": {"stats": {"field": "long", "missing": 7}},
        "flags": {"terms": {"field": "flag"}},
    }}));
    assert_eq!(
        Value::Object(aggregations.aggregations.unwrap()),
        json!({
            "words": {"doc_count_error_upper_bound": 0, "sum_other_doc_count": 0, "buckets": [
                {"key": "none", "doc_count": 5, "sum": {"value": 0.0}, "least": {"value": null}},
                {"key": "young words", "doc_count": 3, "sum": {"value": 3.0}, "least": {"value": 0.5}},
            ]},
            "days": {"buckets": [{"key_as_string": "2024-01-01T00:00:00.000Z", "key": 1_704_067_200_000_i64, "doc_count": 3}]},
            "all": {"count": 8, "min": 0.0, "max": 7.0, "avg": 4.75, "sum": 38.0},
            "flags": {"doc_count_error_upper_bound": 0, "sum_other_doc_count": 0, "buckets": [{"key": 1, "key_as_string": "true", "doc_count": 3}]},
        })
    );
}

#[test]
fn a_field_that_only_some_segments_have_is_searched_sorted_and_aggregated() {
    let mut shard = grown();
    check(&shard);
    shard.merge();
    assert_eq!(shard.segments(), 1);
    check(&shard);
}

#[test]
fn a_mapped_field_that_no_document_has_matches_nothing() {
    let mut shard = Shard::new(
        json!({"properties": {"ghost": {"type": "long"}, "spirit": {"type": "text"}, "wraith": {"type": "date"}, "k": {"type": "keyword"}}}),
    );
    shard.index("1", json!({"n": 1}));
    shard.refresh();
    for query in [
        json!({"term": {"ghost": 1}}),
        json!({"range": {"ghost": {"gte": 0}}}),
        json!({"match": {"spirit": "x"}}),
        json!({"match_phrase": {"spirit": "x y"}}),
        json!({"range": {"wraith": {"gte": "2020"}}}),
        json!({"range": {"k": {"gte": "a"}}}),
        json!({"terms": {"k": ["a"]}}),
        json!({"exists": {"field": "ghost"}}),
        json!({"term": {"nowhere": 1}}),
    ] {
        assert_eq!(shard.ids(&query), Vec::<String>::new(), "{query}");
    }
    assert_eq!(
        shard.refusal(json!({"query": {"term": {"ghost": "x"}}})).0,
        "query_shard_exception"
    );
    assert_eq!(
        ids(&shard.search(json!({"sort": ["ghost", {"k": "desc"}]}))),
        ["1"]
    );
    let result = shard.search(json!({"size": 0, "aggs": {
        "t": {"terms": {"field": "k"}}, "h": {"date_histogram": {"field": "wraith", "fixed_interval": "1d"}},
        "a": {"avg": {"field": "ghost"}}, "c": {"value_count": {"field": "ghost"}}, "s": {"stats": {"field": "nowhere"}}, "u": {"terms": {"field": "nowhere"}},
    }}));
    let empty = json!({"doc_count_error_upper_bound": 0, "sum_other_doc_count": 0, "buckets": []});
    assert_eq!(
        Value::Object(result.aggregations.unwrap()),
        json!({"t": empty, "h": {"buckets": []}, "a": {"value": null}, "c": {"value": 0}, "s": {"count": 0, "min": null, "max": null, "avg": null, "sum": 0.0}, "u": empty})
    );
}

#[test]
fn an_empty_shard_answers_and_merges() {
    let (empty, full) = (Shard::new(json!({})), grown());
    let nothing = empty.search(json!({"aggs": {"a": {"terms": {"field": "old"}}}}));
    assert_eq!(
        (
            nothing.total.unwrap().value,
            nothing.max_score,
            nothing.hits.len()
        ),
        (0, None, 0)
    );
    let both = search(
        &[&empty, &full],
        json!({"sort": [{"old": {"order": "desc", "unmapped_type": "long"}}], "size": 1, "aggs": {"d": {"date_histogram": {"field": "day", "calendar_interval": "day"}}}}),
    );
    assert_eq!(both.total.unwrap().value, 8);
    assert_eq!((both.hits[0].id.as_str(), both.hits[0].shard), ("new2", 1));
    assert_eq!(
        both.aggregations.unwrap()["d"]["buckets"][0]["key_as_string"],
        "2024-01-02T00:00:00.000Z"
    );
}
