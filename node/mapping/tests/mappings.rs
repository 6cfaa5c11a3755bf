//! Mappings as JSON: what comes back, what is refused and by which words, how one grows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use segmentry_mapping::{Dynamic, ErrorKind, FieldType, Mapping, MappingError};
use serde_json::{Value, json};

const LIMIT: u64 = 1_000;

fn read(value: &Value) -> Mapping {
    Mapping::from_json(value, LIMIT).unwrap()
}

fn refusal(value: &Value) -> MappingError {
    Mapping::from_json(value, LIMIT).unwrap_err()
}

#[test]
fn a_mapping_is_answered_as_it_was_written() {
    let written = json!({
        "dynamic": "strict",
        "date_detection": false,
        "properties": {
            "zulu": {"type": "keyword"},
            "title": {"type": "text", "analyzer": "english", "fields": {"raw": {"type": "keyword", "ignore_above": 10}, "plain": {"type": "text"}}},
            "author": {"properties": {"name": {"type": "text"}, "born": {"type": "date", "format": "yyyy-MM-dd||epoch_millis"}, "nothing": {"type": "object"}}},
            "count": {"type": "long", "index": true},
            "off": {"type": "keyword", "index": false, "doc_values": false},
            "flag": {"type": "boolean"},
            "ratio": {"type": "float"}
        }
    });
    let mapping = read(&written);
    assert_eq!(mapping.to_json(), written);
    assert_eq!(mapping.version, 1);
    assert_eq!(read(&mapping.to_json()), mapping);
    // The cluster state stores it in this form.
    let stored: Mapping = serde_json::from_value(serde_json::to_value(&mapping).unwrap()).unwrap();
    assert_eq!(stored, mapping);
}

#[test]
fn fields_get_the_defaults_of_their_type() {
    let mapping = read(&json!({"properties": {
        "t": {"type": "text"}, "k": {"type": "keyword"}, "n": {"type": "integer"}, "i": {"type": "integer", "index": true},
        "d": {"type": "date"}, "x": {"type": "keyword", "doc_values": "false"}
    }}));
    let of = |name: &str| {
        let field = mapping.field(name).unwrap();
        (field.indexed, field.doc_values)
    };
    assert_eq!(of("t"), (true, false));
    assert_eq!(of("k"), (true, true));
    assert_eq!(of("n"), (false, true));
    assert_eq!(of("i"), (true, true));
    assert_eq!(of("d"), (false, true));
    assert_eq!(of("x"), (true, false));
    assert_eq!(mapping.field("t.nothing"), None);
}

#[test]
fn dotted_names_are_nested_objects() {
    let mapping = read(&json!({"properties": {"a.b.c": {"type": "long"}, "a.d": {"type": "keyword"}}}));
    assert_eq!(mapping.objects, ["a", "a.b"]);
    assert_eq!(mapping.field("a.b.c").unwrap().kind, FieldType::Long);
    assert_eq!(
        mapping.to_json(),
        json!({"properties": {"a": {"properties": {"b": {"properties": {"c": {"type": "long"}}}, "d": {"type": "keyword"}}}}})
    );
}

#[test]
fn an_empty_mapping_has_version_zero() {
    for nothing in [json!({}), Value::Null] {
        assert_eq!(read(&nothing), Mapping::default());
    }
    assert_eq!(read(&json!({"dynamic": false})).dynamic, Dynamic::False);
    assert_eq!(
        read(&json!({"dynamic": true})).to_json(),
        json!({"dynamic": "true"})
    );
}

#[test]
fn whatever_is_not_supported_is_refused_by_its_name() {
    let field = |definition: Value| json!({"properties": {"f": definition}});
    for (written, words) in [
        (
            field(json!({"type": "geo_point"})),
            "No handler for type [geo_point] declared on field [f]",
        ),
        (
            field(json!({"type": "nested"})),
            "No handler for type [nested] declared on field [f]",
        ),
        (
            field(json!({"type": "alias", "path": "g"})),
            "No handler for type [alias] declared on field [f]",
        ),
        (field(json!({"index": true})), "No type specified for field [f]"),
        (
            field(json!({"type": "text", "foo": 1})),
            "unknown parameter [foo] on mapper [f] of type [text]",
        ),
        (
            field(json!({"type": "long", "analyzer": "standard"})),
            "unknown parameter [analyzer] on mapper [f] of type [long]",
        ),
        (
            field(json!({"type": "text", "doc_values": true})),
            "unknown parameter [doc_values] on mapper [f] of type [text]",
        ),
        (
            field(json!({"type": "keyword", "normalizer": "lowercase"})),
            "unknown parameter [normalizer]",
        ),
        (
            field(json!({"type": "keyword", "copy_to": "g"})),
            "unknown parameter [copy_to]",
        ),
        (
            field(json!({"type": "keyword", "null_value": "x"})),
            "parameter [null_value] with value [\"x\"] is not supported",
        ),
        (
            field(json!({"type": "keyword", "store": true})),
            "parameter [store] with value [true] is not supported",
        ),
        (
            field(json!({"type": "long", "coerce": false})),
            "parameter [coerce] with value [false] is not supported",
        ),
        (
            field(json!({"type": "text", "norms": false})),
            "parameter [norms] with value [false] is not supported",
        ),
        (
            field(json!({"type": "text", "analyzer": "german"})),
            "analyzer [german] has not been configured",
        ),
        (
            field(json!({"type": "text", "search_analyzer": "english"})),
            "[search_analyzer]",
        ),
        (
            field(json!({"type": "date", "format": "yyyy||basic_date"})),
            "Invalid format: [yyyy]",
        ),
        (
            field(json!({"type": "keyword", "ignore_above": -1})),
            "[ignore_above]",
        ),
        (field(json!({"type": "keyword", "index": "maybe"})), "[index]"),
        (field(json!({"type": 7})), "No handler for type [7]"),
        (field(json!([])), "Expected map"),
        (
            field(json!({"type": "object", "enabled": false})),
            "unsupported parameters:  [enabled : false]",
        ),
        (
            field(json!({"properties": {}, "dynamic": "strict"})),
            "unsupported parameters:  [dynamic : \"strict\"]",
        ),
        (
            field(json!({"type": "text", "fields": {"g": {"type": "ip"}}})),
            "No handler for type [ip] declared on field [g]",
        ),
        (
            field(json!({"type": "text", "fields": {"g": {"type": "text", "fields": {}}}})),
            "cannot have fields of its own",
        ),
        (
            json!({"dynamic_templates": []}),
            "Root mapping definition has unsupported parameters:  [dynamic_templates : []]",
        ),
        (
            json!({"_source": {"enabled": false}}),
            "unsupported parameters:  [_source",
        ),
        (json!({"dynamic": "runtime"}), "dynamic [\"runtime\"]"),
        (json!({"properties": []}), "Expected map"),
        (json!({"properties": {"_id": {"type": "keyword"}}}), "[_id]"),
        (json!([]), "must be an object"),
        (
            json!({"properties": {"a": {"type": "long"}, "a.b": {"type": "long"}}}),
            "can't merge a non object mapping [a]",
        ),
    ] {
        let error = refusal(&written);
        assert_eq!(error.kind, ErrorKind::MapperParsing, "{written}");
        assert!(error.reason.contains(words), "{written}: {}", error.reason);
    }
}

#[test]
fn parameters_that_say_what_happens_anyway_are_accepted_and_answered() {
    let written = json!({"properties": {
        "t": {"type": "text", "norms": true, "store": false, "index_options": "positions", "search_analyzer": "standard"},
        "n": {"type": "long", "coerce": true, "ignore_malformed": false, "null_value": null}
    }});
    assert_eq!(read(&written).to_json(), written);
}

#[test]
fn bad_names_are_refused() {
    for name in ["", " ", ".a", "a.", "a..b", "a\u{1}b"] {
        let error = refusal(&json!({"properties": {name: {"type": "long"}}}));
        assert_eq!(error.kind, ErrorKind::IllegalArgument, "{name:?}");
    }
}

#[test]
fn depth_and_number_of_fields_are_bounded() {
    let mut nested = json!({"type": "long"});
    for _ in 0..20 {
        nested = json!({"properties": {"o": nested}});
    }
    assert_eq!(read(&nested).fields.len(), 1);
    let error = refusal(&json!({"properties": {"o": nested}}));
    assert!(
        error
            .reason
            .starts_with("Limit of mapping depth [20] has been exceeded due to object field [o.o."),
        "{error}"
    );

    let three = json!({"properties": {"o": {"properties": {"t": {"type": "text", "fields": {"k": {"type": "keyword"}}}}}}});
    assert!(Mapping::from_json(&three, 3).is_ok());
    let error = Mapping::from_json(&three, 2).unwrap_err();
    assert_eq!(
        (error.kind, error.reason.as_str()),
        (
            ErrorKind::IllegalArgument,
            "Limit of total fields [2] has been exceeded"
        )
    );
}

fn update(value: &Value) -> Mapping {
    Mapping::update_from_json(value).unwrap()
}

#[test]
fn an_update_appends_and_keeps_what_is_there() {
    let base =
        read(&json!({"properties": {"a": {"type": "text"}, "o": {"properties": {"x": {"type": "long"}}}}}));
    let grown = base
        .merge(
            &update(&json!({"dynamic": "strict", "properties": {
                "o": {"properties": {"y": {"type": "keyword"}}},
                "a": {"type": "text", "fields": {"raw": {"type": "keyword"}}}
            }})),
            LIMIT,
        )
        .unwrap();
    assert_eq!(grown.version, base.version + 1);
    assert_eq!(grown.dynamic, Dynamic::Strict);
    assert_eq!(grown.fields[..base.fields.len()], base.fields[..]);
    let names: Vec<&str> = grown.fields.iter().map(|field| field.name.as_str()).collect();
    assert_eq!(names, ["a", "o.x", "o.y", "a.raw"]);
    assert_eq!(grown.field("a.raw").unwrap().parent.as_deref(), Some("a"));
}

#[test]
fn an_update_that_says_nothing_new_changes_nothing() {
    let base = read(
        &json!({"properties": {"a": {"type": "keyword"}, "o": {"properties": {"x": {"type": "long"}}}}}),
    );
    let same = base
        .merge(
            &update(&json!({"properties": {"o": {"properties": {"x": {"type": "long"}}}}})),
            LIMIT,
        )
        .unwrap();
    assert_eq!(same, base);
    // Also where the limit is lower than what is there.
    assert_eq!(base.merge(&update(&json!({})), 0).unwrap(), base);
}

#[test]
fn ignore_above_may_change_later() {
    let base = read(&json!({"properties": {"k": {"type": "keyword", "ignore_above": 10}}}));
    let grown = base
        .merge(
            &update(&json!({"properties": {"k": {"type": "keyword", "ignore_above": 20}}})),
            LIMIT,
        )
        .unwrap();
    assert_eq!(grown.field("k").unwrap().ignore_above, Some(20));
    assert_eq!(grown.version, base.version + 1);
}

#[test]
fn an_update_that_contradicts_is_refused_with_opensearchs_words() {
    let base = read(&json!({"properties": {
        "k": {"type": "keyword"}, "t": {"type": "text"}, "d": {"type": "date"}, "o": {"properties": {"x": {"type": "long"}}}
    }}));
    for (written, words) in [
        (
            json!({"k": {"type": "text"}}),
            "mapper [k] cannot be changed from type [keyword] to type [text]",
        ),
        (
            json!({"o": {"properties": {"x": {"type": "double"}}}}),
            "mapper [o.x] cannot be changed from type [long] to type [double]",
        ),
        (
            json!({"o": {"type": "keyword"}}),
            "can't merge a non object mapping [o] with an object mapping",
        ),
        (
            json!({"k": {"properties": {}}}),
            "can't merge a non object mapping [k] with an object mapping",
        ),
        (
            json!({"t": {"type": "text", "analyzer": "english"}}),
            "Mapper for [t] conflicts with existing mapper:\n\tCannot update parameter [analyzer] from [standard] to [english]",
        ),
        (
            json!({"k": {"type": "keyword", "doc_values": false}}),
            "Cannot update parameter [doc_values] from [true] to [false]",
        ),
        (
            json!({"k": {"type": "keyword", "index": false}}),
            "Cannot update parameter [index] from [true] to [false]",
        ),
        (
            json!({"d": {"type": "date", "format": "epoch_second"}}),
            "Cannot update parameter [format] from [strict_date_optional_time||epoch_millis] to [epoch_second]",
        ),
    ] {
        let error = base
            .merge(&update(&json!({"properties": written})), LIMIT)
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::IllegalArgument, "{written}");
        assert!(error.reason.contains(words), "{written}: {}", error.reason);
    }
    let error = base
        .merge(&update(&json!({"properties": {"new": {"type": "long"}}})), 5)
        .unwrap_err();
    assert_eq!(error.reason, "Limit of total fields [5] has been exceeded");
}
