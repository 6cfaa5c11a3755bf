//! The parser against a slow one that builds a value tree and walks it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use proptest::prelude::*;
use segmentry_mapping::{
    Field, FieldType, FieldValue, Limits, Mapping, Parser,
    convert::{Scalar, convert},
    date,
};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Values by path and the mapping in force at the end; an error is only an error here.
fn slow(mapping: &Mapping, source: &Value) -> Result<(Vec<(String, FieldValue)>, Mapping), ()> {
    let mut grown = mapping.clone();
    let mut out = Vec::new();
    object(&mut grown, &mut out, "", source.as_object().ok_or(())?)?;
    if grown != *mapping {
        grown.version += 1;
    }
    Ok((out, grown))
}

fn object(
    mapping: &mut Mapping,
    out: &mut Vec<(String, FieldValue)>,
    path: &str,
    map: &Map<String, Value>,
) -> Result<(), ()> {
    for (name, value) in map {
        let full = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        value_at(mapping, out, &full, value)?;
    }
    Ok(())
}

fn parents(mapping: &mut Mapping, path: &str) -> Result<(), ()> {
    let parts: Vec<&str> = path.split('.').collect();
    for count in 1..parts.len() {
        let parent = parts[..count].join(".");
        if mapping.field(&parent).is_some() {
            return Err(());
        }
        if !mapping.is_object(&parent) {
            mapping.objects.push(parent);
        }
    }
    Ok(())
}

fn value_at(
    mapping: &mut Mapping,
    out: &mut Vec<(String, FieldValue)>,
    path: &str,
    value: &Value,
) -> Result<(), ()> {
    let leaf_on_the_way = path
        .rmatch_indices('.')
        .any(|(at, _)| mapping.field(&path[..at]).is_some());
    if leaf_on_the_way {
        return Err(());
    }
    match value {
        Value::Null => Ok(()),
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| value_at(mapping, out, path, item)),
        Value::Object(map) => {
            if mapping.field(path).is_some() {
                return Err(());
            }
            parents(mapping, path)?;
            if !mapping.is_object(path) {
                mapping.objects.push(path.to_owned());
            }
            object(mapping, out, path, map)
        }
        scalar => {
            if mapping.is_object(path) {
                return Err(());
            }
            if mapping.field(path).is_none() {
                parents(mapping, path)?;
                add(mapping, path, scalar);
            }
            let fields: Vec<Field> = mapping
                .fields
                .iter()
                .filter(|field| field.name == path || field.parent.as_deref() == Some(path))
                .cloned()
                .collect();
            for field in fields {
                let scalar = match scalar {
                    Value::Bool(value) => Scalar::Bool(*value),
                    Value::String(text) => Scalar::Str(text),
                    Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                        (Some(value), _) => Scalar::I64(value),
                        (None, Some(value)) => Scalar::U64(value),
                        (None, None) => Scalar::F64(number.as_f64().unwrap()),
                    },
                    _ => unreachable!("scalars only"),
                };
                if let Some(value) = convert(&field, None, scalar).map_err(|_| ())? {
                    out.push((field.name.clone(), value));
                }
            }
            Ok(())
        }
    }
}

fn add(mapping: &mut Mapping, path: &str, value: &Value) {
    let kind = match value {
        Value::Bool(_) => FieldType::Boolean,
        Value::Number(number) if number.is_f64() => FieldType::Float,
        Value::Number(_) => FieldType::Long,
        Value::String(text) => {
            if let Some(format) = date::detect(text) {
                let mut field = Field::new(path, FieldType::Date);
                if let Some(format) = format {
                    field.format = Some(format.to_owned());
                    field.explicit.insert("format".to_owned(), json!(format));
                }
                mapping.fields.push(field);
                return;
            }
            mapping.fields.push(Field::new(path, FieldType::Text));
            let mut keyword = Field::new(format!("{path}.keyword"), FieldType::Keyword);
            keyword.parent = Some(path.to_owned());
            keyword.ignore_above = Some(256);
            keyword.explicit.insert("ignore_above".to_owned(), json!(256));
            mapping.fields.push(keyword);
            return;
        }
        _ => unreachable!("scalars only"),
    };
    mapping.fields.push(Field::new(path, kind));
}

fn scalars() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-300_i64..300).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e6..1e6_f64).prop_map(Value::from),
        prop::sample::select(vec![
            "",
            "word",
            "two words",
            "12",
            "-3.5",
            "true",
            "2020-01-02",
            "2020/01/02",
            "é\"\\\n",
            "1577923200000"
        ])
        .prop_map(Value::from),
    ]
}

fn names() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "a",
        "b",
        "c",
        "long",
        "date",
        "text",
        "obj",
        "obj.x",
        "a.b",
        "c.keyword",
        "keyword",
        "é",
    ])
    .prop_map(str::to_owned)
}

fn trees() -> impl Strategy<Value = Value> {
    let any = scalars().prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((names(), inner), 0..5)
                .prop_map(|items| Value::from(items.into_iter().collect::<Map<_, _>>())),
        ]
    });
    prop::collection::vec((names(), any), 0..6)
        .prop_map(|items| Value::from(items.into_iter().collect::<Map<_, _>>()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn the_parser_agrees_with_a_value_tree(source in trees(), second in trees()) {
        let base = Mapping::from_json(&json!({"properties": {
            "long": {"type": "long"}, "date": {"type": "date"}, "text": {"type": "text", "fields": {"n": {"type": "double"}}},
            "obj": {"properties": {"x": {"type": "keyword"}}}
        }}), 1_000).unwrap();
        let mut mapping = Arc::new(base);
        for source in [source, second] {
            let bytes = serde_json::to_vec(&source).unwrap();
            // As the reader sees it: its numbers may be one unit in the last place off.
            let source: Value = serde_json::from_slice(&bytes).unwrap();
            let parser = Parser::new(Arc::clone(&mapping), Limits::default());
            match (parser.parse("id", &bytes), slow(&mapping, &source)) {
                (Ok(parsed), Ok((values, grown))) => {
                    let now = parsed.grown.clone().unwrap_or_else(|| Arc::clone(&mapping));
                    prop_assert_eq!(&*now, &grown);
                    let got: Vec<(String, FieldValue)> = parsed.document.values.iter()
                        .map(|(position, value)| (now.fields[*position as usize].name.clone(), value.clone())).collect();
                    prop_assert_eq!(got, values);
                    mapping = now;
                }
                (Err(_), Err(())) => {}
                (fast, slow) => prop_assert!(false, "{source}: {fast:?} against {slow:?}"),
            }
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), text in "[\\[\\]{}\":,a-c0-9.\\\\ tnul]{0,40}") {
        let parser = Parser::new(Arc::new(Mapping::default()), Limits::default());
        let _ = parser.parse("id", &bytes);
        let _ = parser.parse("id", text.as_bytes());
    }
}
