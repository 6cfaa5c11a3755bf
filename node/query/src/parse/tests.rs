#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
use super::*;
use crate::{
    error::QueryErrorKind::{
        self, IllegalArgumentException as Illegal, ParsingException as Parsing,
        XContentParseException as Content,
    },
    tree::{
        AggregationKind, BoolQuery, BucketKey, Interval, MAX_CLAUSES, MinimumShouldMatch, Missing, Order,
        RangeBound, Scalar, SortMode, SortTarget,
    },
};
use serde_json::json;

fn search(body: Value) -> SearchRequest {
    let request = parse_search(&body, &UrlParams::new(), 7).unwrap_or_else(|error| panic!("{body}: {error}"));
    let text = serde_json::to_string(&request).unwrap();
    assert_eq!(
        serde_json::from_str::<SearchRequest>(&text).unwrap(),
        request,
        "a request travels as JSON"
    );
    request
}

fn query(body: Value) -> Query {
    search(json!({ "query": body })).query
}

fn refused(body: Value) -> QueryError {
    match parse_search(&body, &UrlParams::new(), 7) {
        Err(error) => error,
        Ok(request) => panic!("{body} was accepted as {request:?}"),
    }
}

fn url(pairs: &[(&str, &str)]) -> Result<SearchRequest, QueryError> {
    let params = pairs
        .iter()
        .map(|&(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    parse_search(&Value::Null, &params, 7)
}

#[test]
fn a_search_without_a_body_has_every_default() {
    let request = parse_search(&Value::Null, &UrlParams::new(), 7).unwrap();
    assert_eq!(request, SearchRequest::new(Query::MatchAll { boost: 1.0 }, 7));
    assert_eq!(
        (request.from, request.size, request.track_total_hits),
        (0, 10, TrackTotalHits::UpTo(10_000))
    );
    assert_eq!(search(json!({})), request);
}

#[test]
fn short_and_long_forms_of_a_query_mean_the_same() {
    for (short, long) in [
        (
            json!({"term": {"a": 1}}),
            json!({"term": {"a": {"value": 1, "boost": 1}}}),
        ),
        (
            json!({"match": {"a": "x y"}}),
            json!({"match": {"a": {"query": "x y", "operator": "OR"}}}),
        ),
        (
            json!({"match_phrase": {"a": "x y"}}),
            json!({"match_phrase": {"a": {"query": "x y", "slop": 0}}}),
        ),
        (
            json!({"bool": {"must": {"match_all": {}}}}),
            json!({"bool": {"must": [{"match_all": {"boost": 1.0}}]}}),
        ),
        (
            json!({"range": {"a": {"gte": 1, "lt": 2}}}),
            json!({"range": {"a": {"from": 1, "to": 2, "include_upper": false}}}),
        ),
        (json!({"ids": {"values": "1"}}), json!({"ids": {"values": ["1"]}})),
    ] {
        assert_eq!(query(short), query(long));
    }
}

#[test]
fn every_supported_query_is_read() {
    assert_eq!(query(json!({"match_none": {}})), Query::MatchNone);
    assert_eq!(
        query(json!({"terms": {"a": [1, "b", true, 1.5, 18_446_744_073_709_551_615_u64], "boost": 2}})),
        Query::Terms {
            field: "a".into(),
            values: vec![
                Scalar::Long(1),
                Scalar::Text("b".into()),
                Scalar::Bool(true),
                Scalar::Double(1.5),
                Scalar::Unsigned(u64::MAX)
            ],
            boost: 2.0
        }
    );
    let Query::Match(read) = query(
        json!({"match": {"t": {"query": "a b", "operator": "and", "minimum_should_match": "2", "analyzer": "simple", "zero_terms_query": "all", "boost": 0.5}}}),
    ) else {
        panic!("match")
    };
    assert!(read.all_words && read.zero_terms_all);
    assert_eq!(
        (read.minimum_should_match, read.analyzer.as_deref(), read.boost),
        (Some(MinimumShouldMatch::Count(2)), Some("simple"), 0.5)
    );
    let Query::MatchPhrase(read) = query(json!({"match_phrase": {"t": {"query": "a b", "slop": 2}}})) else {
        panic!("phrase")
    };
    assert_eq!(read.slop, 2);
    let Query::Range(read) = query(
        json!({"range": {"d": {"gt": "now-1d/d", "lte": null, "format": "yyyy-MM-dd", "time_zone": "+01:00", "boost": 3}}}),
    ) else {
        panic!("range")
    };
    assert_eq!(
        (read.lower, read.upper),
        (
            RangeBound::Excluded(Scalar::Text("now-1d/d".into())),
            RangeBound::Open
        )
    );
    assert_eq!(
        (read.time_zone_minutes, read.format.as_deref(), read.boost),
        (60, Some("yyyy-MM-dd"), 3.0)
    );
    assert_eq!(
        query(json!({"exists": {"field": "a.b"}})),
        Query::Exists {
            field: "a.b".into(),
            boost: 1.0
        }
    );
    assert_eq!(
        query(json!({"constant_score": {"filter": {"match_all": {}}, "boost": 4}})),
        Query::ConstantScore {
            filter: Box::new(Query::MatchAll { boost: 1.0 }),
            boost: 4.0
        }
    );
    assert_eq!(
        query(
            json!({"bool": {"filter": [{"match_all": {}}], "should": [{"match_none": {}}], "must_not": {"match_none": {}}, "minimum_should_match": -1, "boost": 2}})
        ),
        Query::Bool(BoolQuery {
            must: vec![],
            filter: vec![Query::MatchAll { boost: 1.0 }],
            should: vec![Query::MatchNone],
            must_not: vec![Query::MatchNone],
            minimum_should_match: Some(MinimumShouldMatch::Count(-1)),
            boost: 2.0
        })
    );
}

#[test]
fn refused_queries_are_named_in_opensearchs_words() {
    let cases: &[(Value, QueryErrorKind, &str)] = &[
        (json!({"foo": {}}), Parsing, "unknown query [foo]"),
        (
            json!({"foo": 1}),
            Parsing,
            "[foo] query malformed, no start_object after query name",
        ),
        (
            json!([]),
            Parsing,
            "[_na] query malformed, must start with start_object",
        ),
        (json!({}), Illegal, "query malformed, empty clause found"),
        (
            json!({"term": {"a": 1}, "match_all": {}}),
            Parsing,
            "[term] malformed query, expected [END_OBJECT] but found [FIELD_NAME]",
        ),
        (
            json!({"wildcard": {"a": "x*"}}),
            Illegal,
            "query [wildcard] is not supported",
        ),
        (
            json!({"term": {"a": {"value": 1, "foo": 2}}}),
            Parsing,
            "[term] query does not support [foo]",
        ),
        (
            json!({"term": {"a": {"value": 1, "case_insensitive": true}}}),
            Illegal,
            "[case_insensitive] of the [term] query is not supported",
        ),
        (
            json!({"term": {"a": 1, "b": 2}}),
            Parsing,
            "[term] query doesn't support multiple fields, found [a] and [b]",
        ),
        (
            json!({"term": {"a": [1]}}),
            Parsing,
            "[term] query does not support array of values",
        ),
        (json!({"term": {"a": null}}), Illegal, "value cannot be null"),
        (
            json!({"term": {"a": {"boost": 1}}}),
            Illegal,
            "value cannot be null",
        ),
        (
            json!({"terms": {"a": [1], "b": [2]}}),
            Parsing,
            "[terms] query does not support multiple fields",
        ),
        (
            json!({"terms": {"a": 1}}),
            Parsing,
            "[terms] query does not support [a]",
        ),
        (
            json!({"terms": {"a": {"index": "i", "id": "1", "path": "p"}}}),
            Illegal,
            "the terms lookup of the [terms] query is not supported",
        ),
        (
            json!({"match": {"a": {"query": "x", "fuzziness": "AUTO"}}}),
            Illegal,
            "[fuzziness] of the [match] query is not supported",
        ),
        (
            json!({"match": {"a": {"query": "x", "foo": 1}}}),
            Parsing,
            "[match] query does not support [foo]",
        ),
        (
            json!({"match": {"a": {"operator": "and"}}}),
            Parsing,
            "No text specified for text query",
        ),
        (
            json!({"match": {"a": {"query": "x", "operator": "xor"}}}),
            Illegal,
            "operator needs to be either AND or OR, but not [xor]",
        ),
        (
            json!({"match": {"a": {"query": "x", "minimum_should_match": "2<75%"}}}),
            Illegal,
            "[minimum_should_match] [2<75%], other than a number or a percentage, is not supported",
        ),
        (
            json!({"match": {"a": ["x"]}}),
            Parsing,
            "[match] unknown token [START_ARRAY] after [a]",
        ),
        (
            json!({"match_phrase": {"a": {"query": "x", "slop": -1}}}),
            Illegal,
            "No negative slop allowed.",
        ),
        (
            json!({"range": {"a": {"gte": 1, "relation": "within"}}}),
            Parsing,
            "[range] query does not support [relation]",
        ),
        (
            json!({"range": {"a": 1}}),
            Parsing,
            "[range] query does not support [a]",
        ),
        (
            json!({"range": {"a": {"gte": 1, "time_zone": "Europe/Berlin"}}}),
            Illegal,
            "time_zone [Europe/Berlin] is not supported, only UTC and offsets such as [+01:00] are",
        ),
        (
            json!({"bool": {"foo": []}}),
            Parsing,
            "[bool] query does not support [foo]",
        ),
        (
            json!({"bool": {"must": [{"foo": {}}]}}),
            Parsing,
            "unknown query [foo]",
        ),
        (
            json!({"exists": {}}),
            Parsing,
            "[exists] must be provided with a [field]",
        ),
        (
            json!({"exists": {"field": "a", "foo": 1}}),
            Parsing,
            "[exists] query does not support [foo]",
        ),
        (
            json!({"ids": {"values": ["1"], "foo": 1}}),
            Content,
            "[ids] unknown field [foo]",
        ),
        (
            json!({"match_all": {"foo": 1}}),
            Content,
            "[match_all] unknown field [foo]",
        ),
        (
            json!({"match_all": {"boost": -1}}),
            Illegal,
            "negative [boost] are not allowed in [match_all] query, use a value between 0 and 1 to deboost",
        ),
        (
            json!({"constant_score": {}}),
            Parsing,
            "[constant_score] requires a 'filter' element",
        ),
    ];
    for (body, kind, reason) in cases {
        let error = refused(json!({ "query": body }));
        assert_eq!((error.kind, error.reason.as_str()), (*kind, *reason), "{body}");
        assert_eq!(error.status(), 400);
    }
    let error = refused(json!({"query": {"match": {"a": {"query": "x", "analyzer": "klingon"}}}}));
    assert_eq!(
        (error.kind, error.reason.as_str()),
        (
            QueryErrorKind::QueryShardException,
            "[match] analyzer [klingon] not found"
        )
    );
}

#[test]
fn refused_parts_of_a_body_are_named() {
    let cases: &[(Value, QueryErrorKind, &str)] = &[
        (
            json!({"foo": {}}),
            Parsing,
            "Unknown key for a START_OBJECT in [foo].",
        ),
        (
            json!({"foo": "x"}),
            Parsing,
            "Unknown key for a VALUE_STRING in [foo].",
        ),
        (
            json!([]),
            Parsing,
            "Expected [START_OBJECT] but found [START_ARRAY]",
        ),
        (
            json!({"highlight": {}}),
            Illegal,
            "[highlight] in a search request is not supported",
        ),
        (
            json!({"timeout": "1s"}),
            Illegal,
            "[timeout] in a search request is not supported",
        ),
        (
            json!({"from": -1}),
            Illegal,
            "[from] parameter cannot be negative, found [-1]",
        ),
        (
            json!({"size": "x"}),
            Illegal,
            "Failed to parse int parameter [size] with value [x]",
        ),
        (
            json!({"track_total_hits": -2}),
            Illegal,
            "[track_total_hits] parameter must be positive or equals to -1, got -2",
        ),
        (
            json!({"_source": 1}),
            Parsing,
            "Expected one of [VALUE_BOOLEAN, VALUE_STRING, START_ARRAY, START_OBJECT] but found [VALUE_NUMBER]",
        ),
        (
            json!({"_source": {"foo": "a"}}),
            Parsing,
            "Unknown key for a VALUE_STRING in [foo].",
        ),
        (
            json!({"sort": [{"a": {"foo": 1}}]}),
            Content,
            "[field_sort] unknown field [foo]",
        ),
        (
            json!({"sort": [{"a": {"missing": 3}}]}),
            Illegal,
            "[missing] of a sort other than _first and _last, found [3], is not supported",
        ),
        (
            json!({"sort": [{"a": {"mode": "avg"}}]}),
            Illegal,
            "sort mode [avg] is not supported",
        ),
        (json!({"sort": [{"a": "up"}]}), Illegal, "Unknown SortOrder [up]"),
        (
            json!({"sort": [{"_score": {"missing": "_last"}}]}),
            Content,
            "[_score] unknown field [missing]",
        ),
        (
            json!({"search_after": [1]}),
            Illegal,
            "Sort must contain at least one field.",
        ),
        (
            json!({"search_after": [1, 2], "sort": ["a"]}),
            Illegal,
            "search_after has 2 value(s) but sort has 1.",
        ),
        (
            json!({"search_after": [1], "sort": ["a"], "from": 1}),
            Illegal,
            "`from` parameter must be set to 0 when `search_after` is used.",
        ),
    ];
    for (body, kind, reason) in cases {
        let error = refused(body.clone());
        assert_eq!((error.kind, error.reason.as_str()), (*kind, *reason), "{body}");
    }
    let window = search(json!({"from": 9_995, "size": 6}));
    let error = window.check_window(crate::tree::MAX_RESULT_WINDOW).unwrap_err();
    assert_eq!(error.kind, Illegal);
    assert!(
        error.reason.starts_with("Result window is too large, from + size must be less than or equal to: [10000] but was [10001]. See the scroll api"),
        "{error}"
    );
    window.check_window(10_001).unwrap();
}

#[test]
fn refused_aggregations_are_named() {
    let cases: &[(Value, QueryErrorKind, &str)] = &[
        (
            json!({"foo": {"field": "a"}}),
            Parsing,
            "Unknown aggregation type [foo]",
        ),
        (
            json!({"cardinality": {"field": "a"}}),
            Illegal,
            "aggregation type [cardinality] is not supported",
        ),
        (json!({}), Parsing, "Missing definition for aggregation [x]"),
        (
            json!({"terms": {"field": "a"}, "avg": {"field": "b"}}),
            Parsing,
            "Found two aggregation type definitions in [x]: [terms] and [avg]",
        ),
        (
            json!({"terms": {}}),
            Illegal,
            "Required one of fields [field, script], but none were specified. ",
        ),
        (
            json!({"avg": {}}),
            Illegal,
            "Required one of fields [field, script], but none were specified. ",
        ),
        (
            json!({"terms": {"field": "a", "foo": 1}}),
            Content,
            "[terms] unknown field [foo]",
        ),
        (
            json!({"terms": {"field": "a", "include": "x"}}),
            Illegal,
            "[include] of aggregation type [terms] is not supported",
        ),
        (
            json!({"terms": {"field": "a", "size": 0}}),
            Illegal,
            "[size] must be greater than 0. Found [0] in [x]",
        ),
        (
            json!({"terms": {"field": "a", "order": {"m": "asc"}}}),
            Illegal,
            "Invalid aggregator order path [m] of [x]. The provided aggregation [m] either does not exist, or is a pipeline aggregation and cannot be used to sort the buckets.",
        ),
        (
            json!({"terms": {"field": "a", "order": {"_count": "up"}}}),
            Parsing,
            "Unknown order direction [up]",
        ),
        (
            json!({"date_histogram": {"field": "a"}}),
            Illegal,
            "Invalid interval specified, must be non-null and non-empty",
        ),
        (
            json!({"date_histogram": {"field": "a", "calendar_interval": "2d"}}),
            Illegal,
            "The supplied interval [2d] could not be parsed as a calendar interval.",
        ),
        (
            json!({"date_histogram": {"field": "a", "interval": "day"}}),
            Illegal,
            "[interval] of aggregation type [date_histogram] is not supported",
        ),
        (
            json!({"avg": {"field": "a"}, "aggs": {"y": {"avg": {"field": "b"}}}}),
            Illegal,
            "Aggregator [x] of type [avg] cannot accept sub-aggregations",
        ),
    ];
    for (body, kind, reason) in cases {
        let error = refused(json!({"aggs": {"x": body}}));
        assert_eq!((error.kind, error.reason.as_str()), (*kind, *reason), "{body}");
    }
    assert_eq!(
        refused(json!({"aggs": {"a>b": {"avg": {"field": "a"}}}})).reason,
        "Invalid aggregation name [a>b]. Aggregation names can contain any character except '[', ']', and '>'"
    );
}

#[test]
fn aggregations_are_read_with_their_defaults_and_their_order() {
    let request = search(json!({"size": 0, "aggs": {
        "b": {"terms": {"field": "k", "order": [{"s.max": "desc"}, {"_key": "asc"}], "missing": "N/A"}, "meta": {"x": [1]}, "aggs": {"s": {"stats": {"field": "n"}}}},
        "a": {"date_histogram": {"field": "d", "calendar_interval": "1M", "time_zone": "-02:00"}},
        "c": {"date_histogram": {"field": "d", "fixed_interval": "12h", "min_doc_count": 1}},
    }}));
    let names: Vec<_> = request
        .aggregations
        .iter()
        .map(|aggregation| aggregation.name.as_str())
        .collect();
    assert_eq!(names, ["b", "a", "c"]);
    let AggregationKind::Terms(terms) = &request.aggregations[0].kind else {
        panic!("terms")
    };
    assert_eq!((terms.size, terms.min_doc_count, terms.order.len()), (10, 1, 2));
    assert_eq!(terms.order[1].by, BucketKey::Key);
    assert_eq!(request.aggregations[0].meta.as_ref().unwrap()["x"], json!([1]));
    assert_eq!(request.aggregations[0].sub.len(), 1);
    let AggregationKind::DateHistogram(months) = &request.aggregations[1].kind else {
        panic!("histogram")
    };
    assert_eq!(
        (months.interval, months.min_doc_count, months.time_zone_minutes),
        (Interval::Calendar(crate::date::CalendarUnit::Month), 0, -120)
    );
    let AggregationKind::DateHistogram(halves) = &request.aggregations[2].kind else {
        panic!("histogram")
    };
    assert_eq!(
        (halves.interval, halves.min_doc_count),
        (Interval::Fixed(43_200_000), 1)
    );
}

#[test]
fn sorts_are_read_and_the_plain_score_is_the_default() {
    let request = search(
        json!({"sort": ["a", {"b": "desc"}, {"c": {"order": "desc", "missing": "_first", "mode": "min", "unmapped_type": "long"}}, "_score", "_doc"]}),
    );
    let sorts: Vec<_> = request
        .sort
        .iter()
        .map(|sort| (sort.target.clone(), sort.order))
        .collect();
    let field = |name: &str| SortTarget::Field(name.to_owned());
    assert_eq!(
        sorts,
        [
            (field("a"), Order::Asc),
            (field("b"), Order::Desc),
            (field("c"), Order::Desc),
            (SortTarget::Score, Order::Desc),
            (SortTarget::Doc, Order::Asc)
        ]
    );
    assert_eq!(
        (request.sort[2].missing, request.sort[2].mode),
        (Missing::First, Some(SortMode::Min))
    );
    assert!(request.needs_scores());
    assert!(search(json!({"sort": "_score"})).sorts_by_score());
    assert!(search(json!({"sort": [{"_score": "desc"}]})).sorts_by_score());
    assert!(!search(json!({"sort": [{"_score": "asc"}]})).sorts_by_score());
    assert!(!search(json!({"sort": "a"})).needs_scores());
    assert!(!search(json!({"size": 0})).needs_scores());
    assert!(search(json!({"size": 0, "min_score": 1})).needs_scores());
    assert_eq!(
        search(json!({"sort": ["a"], "search_after": [null]})).search_after,
        Some(vec![Scalar::Null])
    );
}

#[test]
fn source_filters_are_read_in_every_form() {
    let source = |value: Value| search(json!({ "_source": value })).source;
    let paths = |includes: &[&str], excludes: &[&str]| SourceFilter::Paths {
        includes: includes.iter().map(|&path| path.to_owned()).collect(),
        excludes: excludes.iter().map(|&path| path.to_owned()).collect(),
    };
    assert_eq!(source(json!(true)), SourceFilter::All);
    assert_eq!(source(json!(false)), SourceFilter::None);
    assert_eq!(source(json!("a")), paths(&["a"], &[]));
    assert_eq!(source(json!(["a", "b.*"])), paths(&["a", "b.*"], &[]));
    assert_eq!(
        source(json!({"includes": ["a"], "excludes": "b"})),
        paths(&["a"], &["b"])
    );
    assert_eq!(source(json!({})), SourceFilter::All);
}

#[test]
fn url_parameters_are_read_and_unknown_ones_refused() {
    let request = url(&[
        ("size", "3"),
        ("from", "4"),
        ("sort", "a:desc,b"),
        ("_source", "x,y"),
        ("_source_excludes", "y.z"),
        ("track_total_hits", "true"),
        ("version", ""),
    ])
    .unwrap();
    assert_eq!(
        (
            request.size,
            request.from,
            request.track_total_hits,
            request.version
        ),
        (3, 4, TrackTotalHits::Exact, true)
    );
    assert_eq!(
        request.sort.iter().map(|sort| sort.order).collect::<Vec<_>>(),
        [Order::Desc, Order::Asc]
    );
    assert_eq!(
        request.source,
        SourceFilter::Paths {
            includes: vec!["x".into(), "y".into()],
            excludes: vec!["y.z".into()]
        }
    );
    for (name, value, reason) in [
        (
            "q",
            "a:b",
            "parameter [q] (the query string syntax) is not supported",
        ),
        ("scroll", "1m", "parameter [scroll] is not supported"),
        ("foo", "1", "request contains unrecognized parameter: [foo]"),
        ("size", "x", "Failed to parse int parameter [size] with value [x]"),
        ("size", "-1", "[size] parameter cannot be negative, found [-1]"),
    ] {
        assert_eq!(url(&[(name, value)]).unwrap_err().reason, reason, "{name}");
    }
}

#[test]
fn a_count_takes_a_query_and_nothing_else() {
    assert_eq!(
        parse_count(&Value::Null, &UrlParams::new()).unwrap(),
        Query::MatchAll { boost: 1.0 }
    );
    assert_eq!(
        parse_count(&json!({"query": {"match_none": {}}}), &UrlParams::new()).unwrap(),
        Query::MatchNone
    );
    assert_eq!(
        parse_count(&json!({"size": 1}), &UrlParams::new())
            .unwrap_err()
            .reason,
        "request does not support [size]"
    );
    assert!(parse_count(&Value::Null, &UrlParams::from([("q".to_owned(), "a".to_owned())])).is_err());
}

#[test]
fn depth_and_clauses_are_bounded() {
    let nested = |depth: usize| {
        (0..depth).fold(
            json!({"match_all": {}}),
            |query, _| json!({"bool": {"must": [query]}}),
        )
    };
    query(nested(crate::tree::MAX_DEPTH - 1));
    let deep = refused(json!({"query": nested(crate::tree::MAX_DEPTH)}));
    assert!(
        deep.reason.starts_with("The nested depth of the query exceeds"),
        "{deep}"
    );
    let wide = |count: usize| json!({"query": {"bool": {"should": vec![json!({"match_all": {}}); count]}}});
    search(wide(MAX_CLAUSES - 1));
    let error = refused(wide(MAX_CLAUSES));
    assert_eq!(
        (error.kind, error.reason.as_str()),
        (QueryErrorKind::TooManyClauses, "maxClauseCount is set to 1024")
    );
}

#[test]
fn minimum_should_match_counts_and_shares() {
    use MinimumShouldMatch::{Count, Percent};
    for (rule, clauses, wanted) in [
        (Count(2), 3, 2),
        (Count(5), 3, 5),
        (Count(-1), 3, 2),
        (Count(-5), 3, 0),
        (Percent(50), 3, 1),
        (Percent(-50), 3, 2),
        (Percent(100), 3, 3),
        (Percent(-100), 3, 0),
    ] {
        assert_eq!(rule.resolve(clauses), wanted, "{rule:?} of {clauses}");
    }
}

#[test]
fn doubles_travel_without_losing_a_bit() {
    let value = Scalar::Double(0.123_456_789_012_345_67);
    assert_eq!(
        serde_json::from_str::<Scalar>(&serde_json::to_string(&value).unwrap()).unwrap(),
        value
    );
}
