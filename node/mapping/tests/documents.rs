//! Documents: values, growth, and the words of refusals.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use segmentry_mapping::{
    ErrorKind, FieldType, FieldValue, Limits, Mapping, MappingError, Parsed, Parser, validate_id,
};
use serde_json::{Value, json};
use std::sync::Arc;

fn parser(mapping: &Value) -> Parser {
    Parser::new(
        Arc::new(Mapping::from_json(mapping, 1_000).unwrap()),
        Limits::default(),
    )
}

fn parse(parser: &Parser, source: &str) -> Parsed {
    parser.parse("1", source.as_bytes()).unwrap()
}

fn refusal(parser: &Parser, source: &str) -> MappingError {
    parser.parse("1", source.as_bytes()).unwrap_err()
}

/// (path, value) in order.
fn values(parser: &Parser, parsed: &Parsed) -> Vec<(String, FieldValue)> {
    let mapping = parsed.grown.as_ref().unwrap_or(parser.mapping());
    parsed
        .document
        .values
        .iter()
        .map(|(position, value)| (mapping.fields[*position as usize].name.clone(), value.clone()))
        .collect()
}

fn named(items: Vec<(&str, FieldValue)>) -> Vec<(String, FieldValue)> {
    items
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn text(text: &str) -> FieldValue {
    FieldValue::Text(text.to_owned())
}

#[test]
fn values_take_the_type_of_their_field() {
    let parser = parser(&json!({"properties": {
        "t": {"type": "text", "fields": {"raw": {"type": "keyword"}}}, "k": {"type": "keyword", "ignore_above": 3},
        "n": {"type": "integer"}, "f": {"type": "double"}, "d": {"type": "date"}, "b": {"type": "boolean"},
        "o": {"properties": {"x": {"type": "byte"}}}, "s": {"type": "date", "format": "epoch_second"}
    }}));
    let parsed = parse(
        &parser,
        r#"{"t":"Hello","k":["abc","abcd",12,true],"n":[1,"2",3.9,"4.2",null,""],"f":[1,2.5,"3e2"],"d":["2020-01-02",1577923200001,"1577923200002"],
           "b":[true,"false",""],"o":{"x":-128},"o.x":7,"s":"10"}"#,
    );
    assert!(parsed.grown.is_none());
    assert_eq!(
        values(&parser, &parsed),
        named(vec![
            ("t", text("Hello")),
            ("t.raw", text("Hello")),
            ("k", text("abc")),
            ("k", text("12")),
            ("n", FieldValue::Long(1)),
            ("n", FieldValue::Long(2)),
            ("n", FieldValue::Long(3)),
            ("n", FieldValue::Long(4)),
            ("f", FieldValue::Double(1.0)),
            ("f", FieldValue::Double(2.5)),
            ("f", FieldValue::Double(300.0)),
            ("d", FieldValue::Date(1_577_923_200_000)),
            ("d", FieldValue::Date(1_577_923_200_001)),
            ("d", FieldValue::Date(1_577_923_200_002)),
            ("b", FieldValue::Boolean(true)),
            ("b", FieldValue::Boolean(false)),
            ("b", FieldValue::Boolean(false)),
            ("o.x", FieldValue::Long(-128)),
            ("o.x", FieldValue::Long(7)),
            ("s", FieldValue::Date(10_000)),
        ])
    );
}

#[test]
fn new_fields_get_opensearchs_types() {
    let parser = parser(&json!({"properties": {"known": {"type": "long"}}}));
    let parsed = parse(
        &parser,
        r#"{"known":1,"s":"word","l":5,"f":1.5,"b":false,"d":"2020-01-02T03:04:05Z","e":"2020/01/02","o":{"p":{"q":["a","b"]},"empty":{}},"x.y":1,"n":null,"none":[],"mixed":[1,2.7]}"#,
    );
    let grown = parsed.grown.clone().unwrap();
    assert_eq!(grown.version, parser.mapping().version + 1);
    assert_eq!(
        grown.to_json(),
        json!({"properties": {
            "known": {"type": "long"},
            "s": {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}},
            "l": {"type": "long"}, "f": {"type": "float"}, "b": {"type": "boolean"},
            "d": {"type": "date"}, "e": {"type": "date", "format": "yyyy/MM/dd HH:mm:ss||yyyy/MM/dd||epoch_millis"},
            "o": {"properties": {"p": {"properties": {"q": {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}}}, "empty": {"type": "object"}}},
            "x": {"properties": {"y": {"type": "long"}}},
            "mixed": {"type": "long"}
        }})
    );
    assert_eq!(grown.fields[0], parser.mapping().fields[0]);
    let got = values(&parser, &parsed);
    let of = |name: &str| {
        got.iter()
            .filter(|(path, _)| path == name)
            .map(|(_, value)| value.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(of("o.p.q"), [text("a"), text("b")]);
    assert_eq!(of("o.p.q.keyword"), [text("a"), text("b")]);
    assert_eq!(of("mixed"), [FieldValue::Long(1), FieldValue::Long(2)]);
    assert_eq!(of("d"), [FieldValue::Date(1_577_934_245_000)]);

    // The same document grows the grown mapping no further, and the values are where they were said to be.
    let again = Parser::new(grown, Limits::default());
    let second = parse(
        &again,
        r#"{"known":1,"s":"word","o":{"p":{"q":"a"},"empty":{}},"x":{"y":2},"mixed":3}"#,
    );
    assert!(second.grown.is_none());
    assert_eq!(
        values(&again, &second)[1..3],
        named(vec![("s", text("word")), ("s.keyword", text("word"))])[..]
    );
}

#[test]
fn date_detection_can_be_switched_off() {
    let parsed = parse(
        &parser(&json!({"date_detection": false})),
        r#"{"d":"2020-01-02"}"#,
    );
    assert_eq!(parsed.grown.unwrap().field("d").unwrap().kind, FieldType::Text);
}

#[test]
fn unknown_fields_are_left_alone_where_dynamic_is_false() {
    let parser =
        parser(&json!({"dynamic": false, "properties": {"a": {"properties": {"k": {"type": "keyword"}}}}}));
    let parsed = parse(
        &parser,
        r#"{"x":{"deep":[1,{"y":2}]},"a":{"k":"v","other":"w"},"a.b.c":1}"#,
    );
    assert!(parsed.grown.is_none());
    assert_eq!(values(&parser, &parsed), named(vec![("a.k", text("v"))]));
}

#[test]
fn unknown_fields_are_refused_where_dynamic_is_strict() {
    let parser = parser(
        &json!({"dynamic": "strict", "properties": {"a": {"properties": {"k": {"type": "keyword"}}}}}),
    );
    assert!(parse(&parser, r#"{"a":{"k":"v"}}"#).grown.is_none());
    for (source, words) in [
        (
            r#"{"x":1}"#,
            "mapping set to strict, dynamic introduction of [x] within [_doc] is not allowed",
        ),
        (
            r#"{"a":{"x":null}}"#,
            "mapping set to strict, dynamic introduction of [x] within [a] is not allowed",
        ),
        (
            r#"{"a.b.c":1}"#,
            "mapping set to strict, dynamic introduction of [b] within [a] is not allowed",
        ),
    ] {
        let error = refusal(&parser, source);
        assert_eq!(
            (error.kind, error.reason.as_str()),
            (ErrorKind::StrictDynamicMapping, words)
        );
    }
}

#[test]
fn values_that_do_not_fit_are_refused_with_opensearchs_words() {
    let parser = parser(&json!({"properties": {
        "n": {"type": "long"}, "i": {"type": "integer"}, "by": {"type": "byte"}, "f": {"type": "float"}, "d": {"type": "date"}, "b": {"type": "boolean"},
        "k": {"type": "keyword"}, "o": {"properties": {"x": {"type": "long"}}}, "m": {"type": "text", "fields": {"n": {"type": "long"}}}
    }}));
    let long = "x".repeat(40_000);
    for (source, reason, cause) in [
        (
            r#"{"n":"abc"}"#.to_owned(),
            "failed to parse field [n] of type [long] in document with id '1'. Preview of field's value: 'abc'",
            "For input string: \"abc\"",
        ),
        (
            r#"{"n":"inf"}"#.to_owned(),
            "failed to parse field [n] of type [long]",
            "For input string: \"inf\"",
        ),
        (
            r#"{"n":9223372036854775808}"#.to_owned(),
            "Preview of field's value: '9223372036854775808'",
            "Value [9223372036854775808] is out of range for a long",
        ),
        (
            r#"{"n":1e30}"#.to_owned(),
            "failed to parse field [n]",
            "is out of range for a long",
        ),
        (
            r#"{"i":2147483648}"#.to_owned(),
            "failed to parse field [i] of type [integer]",
            "Value [2147483648] is out of range for an integer",
        ),
        (
            r#"{"by":[1,-129]}"#.to_owned(),
            "failed to parse field [by] of type [byte]",
            "Value [-129] is out of range for a byte",
        ),
        (
            r#"{"n":true}"#.to_owned(),
            "failed to parse field [n] of type [long]",
            "Current token (VALUE_TRUE) not numeric",
        ),
        (
            r#"{"f":1e39}"#.to_owned(),
            "failed to parse field [f] of type [float]",
            "[float] supports only finite values",
        ),
        (
            r#"{"d":"soon"}"#.to_owned(),
            "failed to parse field [d] of type [date] in document with id '1'. Preview of field's value: 'soon'",
            "failed to parse date field [soon] with format [strict_date_optional_time||epoch_millis]",
        ),
        (
            r#"{"d":true}"#.to_owned(),
            "failed to parse field [d] of type [date]",
            "failed to parse date field [true]",
        ),
        (
            r#"{"b":"yes"}"#.to_owned(),
            "failed to parse field [b] of type [boolean]",
            "Failed to parse value [yes] as only [true] or [false] are allowed.",
        ),
        (
            r#"{"b":1}"#.to_owned(),
            "failed to parse field [b] of type [boolean]",
            "Failed to parse value [1]",
        ),
        (
            r#"{"k":{"a":1,"b":["c"]}}"#.to_owned(),
            "failed to parse field [k] of type [keyword] in document with id '1'. Preview of field's value: '{a=1, b=[c]}'",
            "Can't get text on a START_OBJECT",
        ),
        (
            format!(r#"{{"k":"{long}"}}"#),
            "failed to parse field [k]",
            "Document contains at least one immense term in field=\"k\"",
        ),
        (
            r#"{"m":"abc"}"#.to_owned(),
            "failed to parse field [m.n] of type [long]",
            "For input string: \"abc\"",
        ),
        (r#"{"n":1"#.to_owned(), "failed to parse", "EOF"),
        (r#"{"n":1} {}"#.to_owned(), "failed to parse", "trailing"),
        (
            r#"{"n":1,"n":2}"#.to_owned(),
            "failed to parse",
            "Duplicate field 'n'",
        ),
        (
            r#"{"o":{"y":1,"y":2}}"#.to_owned(),
            "failed to parse",
            "Duplicate field 'y'",
        ),
        ("[1]".to_owned(), "failed to parse", "must start with an object"),
        (String::new(), "failed to parse", "EOF"),
    ] {
        let error = refusal(&parser, &source);
        assert_eq!(error.kind, ErrorKind::MapperParsing, "{source}");
        assert!(error.reason.contains(reason), "{source}: {}", error.reason);
        let caused = error.caused_by.unwrap_or_else(|| panic!("no cause for {source}"));
        assert!(caused.reason.contains(cause), "{source}: {}", caused.reason);
    }
    for (source, reason) in [
        (
            r#"{"o":7}"#,
            "object mapping for [o] tried to parse field [o] as object, but found a concrete value",
        ),
        (
            r#"{"o":["a"]}"#,
            "object mapping for [o] tried to parse field [o] as object, but found a concrete value",
        ),
        (
            r#"{"n.x":7}"#,
            "Could not dynamically add mapping for field [n.x]. Existing mapping for [n] must be of type object but found [long].",
        ),
        (
            r#"{"m.n":7}"#,
            "Existing mapping for [m] must be of type object but found [text].",
        ),
        (
            r#"{"_id":"7"}"#,
            "Field [_id] is a metadata field and cannot be added inside a document. Use the index API request parameters.",
        ),
        (
            r#"{"new":[1,{"x":2}]}"#,
            "failed to parse field [new] of type [long]",
        ),
        (
            r#"{"new":[{"x":2},1]}"#,
            "object mapping for [new] tried to parse field [new] as object",
        ),
    ] {
        let error = refusal(&parser, source);
        assert_eq!(error.kind, ErrorKind::MapperParsing, "{source}");
        assert!(error.reason.contains(reason), "{source}: {}", error.reason);
    }
}

#[test]
fn invalid_utf8_is_refused_also_where_nothing_is_mapped() {
    let parser = parser(&json!({"dynamic": false}));
    assert_eq!(
        parser.parse("1", b"{\"a\":\"\xff\"}").unwrap_err().reason,
        "failed to parse"
    );
}

#[test]
fn many_names_in_one_object_still_find_the_duplicate() {
    let names: Vec<String> = (0..40).map(|number| format!("\"f{number}\":1")).collect();
    let parser = parser(&json!({}));
    assert_eq!(
        parse(&parser, &format!("{{{}}}", names.join(",")))
            .grown
            .unwrap()
            .fields
            .len(),
        40
    );
    let error = refusal(&parser, &format!("{{{},\"f3\":2}}", names.join(",")));
    assert_eq!(error.caused_by.unwrap().reason, "Duplicate field 'f3'");
}

#[test]
fn growth_is_bounded_in_number_and_depth() {
    let limits = Limits {
        total_fields: 3,
        depth: 3,
    };
    let parser = Parser::new(Arc::new(Mapping::default()), limits);
    assert_eq!(
        parser
            .parse("1", br#"{"o":{"s":"x"}}"#)
            .unwrap()
            .grown
            .unwrap()
            .total_fields(),
        3
    );
    let error = parser.parse("1", br#"{"o":{"s":"x"},"n":1}"#).unwrap_err();
    assert_eq!(
        (error.kind, error.reason.as_str()),
        (
            ErrorKind::IllegalArgument,
            "Limit of total fields [3] has been exceeded"
        )
    );
    assert!(parser.parse("1", br#"{"a":{"b":{"c":1}}}"#).is_ok());
    for deep in [
        r#"{"a":{"b":{"c":{}}}}"#,
        r#"{"a.b.c.d":1}"#,
        r#"{"a":[[{"b":{"c":{"d":1}}}]]}"#,
    ] {
        let error = parser.parse("1", deep.as_bytes()).unwrap_err();
        assert!(
            error
                .reason
                .starts_with("Limit of mapping depth [3] has been exceeded due to object field [a.b.c]"),
            "{deep}: {error}"
        );
    }
    // Deeper than the reader itself goes, and not mapped.
    let hole = format!("{{\"a\":{}1{}}}", "[".repeat(5_000), "]".repeat(5_000));
    assert!(
        Parser::new(Arc::new(Mapping::default()), Limits::default())
            .parse("1", hole.as_bytes())
            .is_err()
    );
}

#[test]
fn new_names_are_checked() {
    let parser = parser(&json!({}));
    for source in [
        r#"{"":1}"#,
        r#"{"a..b":1}"#,
        r#"{".a":1}"#,
        r#"{"a.":1}"#,
        r#"{" ":1}"#,
        r#"{"a\u0001":1}"#,
        r#"{"a":{"":1}}"#,
    ] {
        assert_eq!(
            refusal(&parser, source).kind,
            ErrorKind::IllegalArgument,
            "{source}"
        );
    }
    assert!(
        parse(&parser, r#"{"-a":1,"_mine":2,"Ünïcode name":3,"a\\b":4}"#)
            .grown
            .is_some()
    );
}

#[test]
fn ids_are_bounded_in_bytes() {
    assert!(validate_id(&"é".repeat(256)).is_ok());
    let error = validate_id(&"x".repeat(513)).unwrap_err();
    assert!(
        error
            .reason
            .ends_with("is too long, must be no longer than 512 bytes but was: 513;"),
        "{error}"
    );
    assert!(validate_id("").is_err());
}
