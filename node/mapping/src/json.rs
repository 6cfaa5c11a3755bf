//! OpenSearch's `mappings` JSON: reading with refusals by name, and writing.
//!
//! Supported: root `dynamic`, `date_detection`, `properties`; objects with `properties`; the types of [`FieldType`]; per field
//! `index`, `doc_values`, `analyzer`, `search_analyzer` (equal to `analyzer`), `ignore_above`, `format`, `fields`. A parameter
//! that is known to OpenSearch and not implemented is accepted only where it says what happens anyway ([`DEFAULTS`]);
//! everything else is refused by name, never ignored.

use crate::{Dynamic, Field, FieldType, Mapping, MappingError, date::Formats};
use serde_json::{Map, Value, json};

/// Deepest nesting of objects (`index.mapping.depth.limit`'s default), counted from the root's fields as 1.
pub const DEPTH_LIMIT: usize = 20;

/// Analyzers of text fields.
pub const ANALYZERS: [&str; 5] = ["standard", "simple", "whitespace", "keyword", "english"];

/// Parameters that may be written with exactly this value, because it is what happens: (name, type or empty for all, value).
const DEFAULTS: [(&str, &str, &str); 14] = [
    ("store", "", "false"),
    ("boost", "", "1.0"),
    ("eager_global_ordinals", "keyword", "false"),
    ("norms", "text", "true"),
    ("norms", "keyword", "false"),
    ("index_options", "text", "\"positions\""),
    ("index_options", "keyword", "\"docs\""),
    ("fielddata", "text", "false"),
    ("term_vector", "text", "\"no\""),
    ("index_phrases", "text", "false"),
    ("similarity", "", "\"BM25\""),
    ("coerce", "", "true"),
    ("ignore_malformed", "", "false"),
    ("null_value", "", "null"),
];

/// True for a name that only the engine and OpenSearch's metadata use.
pub fn is_metadata(name: &str) -> bool {
    matches!(
        name,
        "_id"
            | "_index"
            | "_source"
            | "_routing"
            | "_version"
            | "_seq_no"
            | "_primary_term"
            | "_field_names"
            | "_ignored"
            | "_type"
            | "_nested_path"
            | "_doc_count"
            | "_data_stream_timestamp"
    )
}

/// Refuses a field name that cannot be mapped; `path` is its full path, for the text.
pub fn check_name(name: &str, path: &str) -> Result<(), MappingError> {
    if name.is_empty() {
        let text = if path.is_empty() {
            "field name cannot be an empty string".to_owned()
        } else {
            format!("object field starting or ending with a [.] makes object resolution ambiguous: [{path}]")
        };
        return Err(MappingError::illegal(text));
    }
    if name.chars().all(char::is_whitespace) {
        return Err(MappingError::illegal(format!(
            "field name cannot contain only whitespace: [{path}]"
        )));
    }
    // Separators inside the index's column names.
    if name.chars().any(|character| character < ' ') {
        return Err(MappingError::illegal(format!(
            "field name [{}] contains a control character",
            path.escape_debug()
        )));
    }
    Ok(())
}

fn truth(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(value) => Some(*value),
        Value::String(text) if text == "true" => Some(true),
        Value::String(text) if text == "false" => Some(false),
        _ => None,
    }
}

fn wrapped(reason: impl std::fmt::Display) -> MappingError {
    MappingError::parsing(format!("Failed to parse mapping [_doc]: {reason}"))
}

impl Mapping {
    /// Reads `mappings` (the object that holds `properties`). The version is 1, or 0 if it says nothing at all.
    ///
    /// Errors: `mapper_parsing_exception`, or `illegal_argument_exception` for the limit of fields and bad names.
    pub fn from_json(value: &Value, total_fields_limit: u64) -> Result<Self, MappingError> {
        let mut mapping = Self::update_from_json(value)?;
        mapping.check_limit(total_fields_limit)?;
        mapping.version = u64::from(mapping != Self::default());
        Ok(mapping)
    }

    /// Reads the body of a mapping update, to be given to [`Mapping::merge`]. The version is 0.
    pub fn update_from_json(value: &Value) -> Result<Self, MappingError> {
        let mut mapping = Self::default();
        let root = match value {
            Value::Null => return Ok(mapping),
            Value::Object(root) => root,
            _ => return Err(wrapped("mappings must be an object")),
        };
        for (name, value) in root {
            match name.as_str() {
                "properties" => properties(&mut mapping, "", value, 1)?,
                "dynamic" => {
                    mapping.dynamic = match (truth(value), value.as_str()) {
                        (Some(true), _) => Dynamic::True,
                        (Some(false), _) => Dynamic::False,
                        (None, Some("strict")) => Dynamic::Strict,
                        _ => {
                            return Err(wrapped(format!(
                                "dynamic [{value}] is not one of true, false, strict"
                            )));
                        }
                    };
                    mapping.dynamic_explicit = true;
                }
                "date_detection" => {
                    let Some(on) = truth(value) else {
                        return Err(wrapped(format!(
                            "date_detection [{value}] is neither true nor false"
                        )));
                    };
                    mapping.date_detection = Some(on);
                }
                "numeric_detection" if truth(value) == Some(false) => {}
                _ => {
                    return Err(MappingError::parsing(format!(
                        "Root mapping definition has unsupported parameters:  [{name} : {value}]"
                    )));
                }
            }
        }
        Ok(mapping)
    }

    /// OpenSearch's `mappings` JSON.
    pub fn to_json(&self) -> Value {
        let mut root = Map::new();
        if self.dynamic_written() {
            let word = match self.dynamic {
                Dynamic::True => "true",
                Dynamic::False => "false",
                Dynamic::Strict => "strict",
            };
            root.insert("dynamic".to_owned(), json!(word));
        }
        if let Some(on) = self.date_detection {
            root.insert("date_detection".to_owned(), json!(on));
        }
        for field in self.fields.iter().filter(|field| field.parent.is_none()) {
            if let Some(place) = slot(&mut root, &field.name) {
                *place = Value::Object(field_json(field));
            }
        }
        for field in &self.fields {
            let Some(parent) = &field.parent else { continue };
            let sub = field
                .name
                .strip_prefix(parent.as_str())
                .and_then(|rest| rest.strip_prefix('.'))
                .unwrap_or(&field.name);
            let fields = slot(&mut root, parent)
                .and_then(Value::as_object_mut)
                .and_then(|parent| {
                    parent
                        .entry("fields")
                        .or_insert_with(|| json!({}))
                        .as_object_mut()
                });
            if let Some(fields) = fields {
                fields.insert(sub.to_owned(), Value::Object(field_json(field)));
            }
        }
        for object in &self.objects {
            if let Some(place) = slot(&mut root, object)
                && place.is_null()
            {
                *place = json!({"type": "object"});
            }
        }
        Value::Object(root)
    }

    /// True if `dynamic` has to be answered: it was written, or it is not the default.
    pub(crate) fn dynamic_written(&self) -> bool {
        self.dynamic_explicit || self.dynamic != Dynamic::True
    }
}

/// The place of a path under `properties`, made (as null) if it is not there yet.
fn slot<'a>(root: &'a mut Map<String, Value>, path: &str) -> Option<&'a mut Value> {
    let mut level = root;
    let mut parts = path.split('.').peekable();
    while let Some(part) = parts.next() {
        let place = level
            .entry("properties")
            .or_insert_with(|| json!({}))
            .as_object_mut()?
            .entry(part)
            .or_insert(Value::Null);
        if parts.peek().is_none() {
            return Some(place);
        }
        if place.is_null() {
            *place = json!({});
        }
        level = place.as_object_mut()?;
        level.remove("type");
    }
    None
}

fn field_json(field: &Field) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("type".to_owned(), json!(field.kind.name()));
    for (name, value) in &field.explicit {
        out.insert(name.clone(), value.clone());
    }
    out
}

fn properties(mapping: &mut Mapping, parent: &str, value: &Value, depth: usize) -> Result<(), MappingError> {
    let Value::Object(properties) = value else {
        return Err(wrapped("Expected map for property [properties]"));
    };
    for (name, definition) in properties {
        let path = if parent.is_empty() {
            name.clone()
        } else {
            format!("{parent}.{name}")
        };
        if parent.is_empty() && is_metadata(name) {
            return Err(wrapped(format!(
                "Field [{name}] is defined more than once or is a metadata field"
            )));
        }
        let Value::Object(definition) = definition else {
            return Err(wrapped(format!(
                "Expected map for property [fields] on field [{path}] but got {definition}"
            )));
        };
        // A dotted name stands for nested objects.
        let mut at = String::new();
        let parts: Vec<&str> = path.split('.').collect();
        let own = name.split('.').count();
        for (number, part) in parts.iter().enumerate() {
            check_name(part, &path)?;
            if number + 1 == parts.len() {
                break;
            }
            if !at.is_empty() {
                at.push('.');
            }
            at.push_str(part);
            if number >= parts.len() - own {
                add_object(mapping, &at, number + 1)?;
            }
        }
        property(mapping, &path, definition, depth + own - 1)?;
    }
    Ok(())
}

fn add_object(mapping: &mut Mapping, path: &str, depth: usize) -> Result<(), MappingError> {
    check_depth(path, depth)?;
    if mapping.field(path).is_some() {
        return Err(wrapped(format!(
            "can't merge a non object mapping [{path}] with an object mapping"
        )));
    }
    if !mapping.is_object(path) {
        mapping.objects.push(path.to_owned());
    }
    Ok(())
}

/// Refuses an object that lies deeper than [`DEPTH_LIMIT`].
pub fn check_depth(path: &str, depth: usize) -> Result<(), MappingError> {
    if depth >= DEPTH_LIMIT {
        return Err(MappingError::illegal(format!(
            "Limit of mapping depth [{DEPTH_LIMIT}] has been exceeded due to object field [{path}]"
        )));
    }
    Ok(())
}

fn property(
    mapping: &mut Mapping,
    path: &str,
    definition: &Map<String, Value>,
    depth: usize,
) -> Result<(), MappingError> {
    let kind = match definition.get("type") {
        None => None,
        Some(Value::String(kind)) => Some(kind.as_str()),
        Some(other) => {
            return Err(wrapped(format!(
                "No handler for type [{other}] declared on field [{path}]"
            )));
        }
    };
    match kind {
        Some("object") => object(mapping, path, definition, depth),
        None if definition.contains_key("properties") || definition.is_empty() => {
            object(mapping, path, definition, depth)
        }
        None => Err(wrapped(format!("No type specified for field [{path}]"))),
        Some(kind) => {
            let Some(kind) = FieldType::of_name(kind) else {
                return Err(wrapped(format!(
                    "No handler for type [{kind}] declared on field [{path}]"
                )));
            };
            if mapping.is_object(path) || mapping.field(path).is_some() {
                return Err(wrapped(format!("Field [{path}] is defined more than once")));
            }
            let field = leaf(path, None, kind, definition)?;
            mapping.fields.push(field);
            if let Some(fields) = definition.get("fields") {
                multi_fields(mapping, path, fields)?;
            }
            Ok(())
        }
    }
}

fn object(
    mapping: &mut Mapping,
    path: &str,
    definition: &Map<String, Value>,
    depth: usize,
) -> Result<(), MappingError> {
    add_object(mapping, path, depth)?;
    for (name, value) in definition {
        match name.as_str() {
            "type" => {}
            "properties" => properties(mapping, path, value, depth + 1)?,
            "enabled" if truth(value) == Some(true) => {}
            _ => {
                return Err(wrapped(format!(
                    "Mapping definition for [{path}] has unsupported parameters:  [{name} : {value}]"
                )));
            }
        }
    }
    Ok(())
}

fn multi_fields(mapping: &mut Mapping, parent: &str, value: &Value) -> Result<(), MappingError> {
    let Value::Object(fields) = value else {
        return Err(wrapped(format!(
            "expected map for property [fields] on field [{parent}]"
        )));
    };
    for (name, definition) in fields {
        let path = format!("{parent}.{name}");
        check_name(name, &path)?;
        if name.contains('.') {
            return Err(wrapped(format!(
                "Field name [{name}] which is a multi field of [{parent}] cannot contain '.'"
            )));
        }
        let kind = definition.get("type").and_then(Value::as_str);
        let (Some(definition), Some(kind)) = (definition.as_object(), kind) else {
            return Err(wrapped(format!("No type specified for field [{name}]")));
        };
        let Some(kind) = FieldType::of_name(kind) else {
            return Err(wrapped(format!(
                "No handler for type [{kind}] declared on field [{name}]"
            )));
        };
        if definition.contains_key("fields") {
            return Err(wrapped(format!(
                "multi field [{path}] cannot have fields of its own"
            )));
        }
        let field = leaf(&path, Some(parent), kind, definition)?;
        mapping.fields.push(field);
    }
    Ok(())
}

fn leaf(
    path: &str,
    parent: Option<&str>,
    kind: FieldType,
    definition: &Map<String, Value>,
) -> Result<Field, MappingError> {
    let mut field = Field {
        parent: parent.map(str::to_owned),
        ..Field::new(path, kind)
    };
    for (name, value) in definition {
        let bad = || {
            wrapped(format!(
                "Failed to parse value [{value}] of parameter [{name}] on field [{path}] of type [{}]",
                kind.name()
            ))
        };
        match (name.as_str(), kind) {
            ("type" | "fields", _) => continue,
            ("index", _) => field.indexed = truth(value).ok_or_else(bad)?,
            ("doc_values", kind) if kind != FieldType::Text => {
                field.doc_values = truth(value).ok_or_else(bad)?;
            }
            ("analyzer", FieldType::Text) => field.analyzer = Some(analyzer(path, value)?),
            ("search_analyzer", FieldType::Text) => {
                let wanted = analyzer(path, value)?;
                let index_time = match definition.get("analyzer") {
                    Some(value) => analyzer(path, value)?,
                    None => ANALYZERS[0].to_owned(),
                };
                if wanted != index_time {
                    return Err(wrapped(format!(
                        "parameter [search_analyzer] on mapper [{path}] of type [text] is supported only where it equals [analyzer]"
                    )));
                }
            }
            ("ignore_above", FieldType::Keyword) => {
                let limit = value
                    .as_u64()
                    .or_else(|| value.as_str().and_then(|text| text.parse().ok()))
                    .ok_or_else(bad)?;
                field.ignore_above = Some(u32::try_from(limit).map_err(|_| bad())?);
            }
            ("format", FieldType::Date) => {
                let format = value.as_str().ok_or_else(bad)?;
                Formats::parse(format).map_err(|part| {
                    wrapped(format!("Invalid format: [{part}]: not a supported date format"))
                })?;
                field.format = Some(format.to_owned());
            }
            _ => {
                let known = DEFAULTS
                    .iter()
                    .filter(|(known, on, _)| known == name && (on.is_empty() || *on == kind.name()));
                let mut found = false;
                let mut same = false;
                for (_, _, default) in known {
                    found = true;
                    same |=
                        serde_json::from_str::<Value>(default).is_ok_and(|default| equal(&default, value));
                }
                if !found {
                    return Err(wrapped(format!(
                        "unknown parameter [{name}] on mapper [{path}] of type [{}]",
                        kind.name()
                    )));
                }
                if !same {
                    return Err(wrapped(format!(
                        "parameter [{name}] with value [{value}] is not supported on mapper [{path}] of type [{}]",
                        kind.name()
                    )));
                }
            }
        }
        field.explicit.insert(name.clone(), value.clone());
    }
    Ok(field)
}

fn equal(default: &Value, value: &Value) -> bool {
    default == value
        || truth(default).is_some_and(|wanted| truth(value) == Some(wanted))
        || default.as_f64().is_some_and(|wanted| {
            value
                .as_f64()
                .is_some_and(|value| (value - wanted).abs() < f64::EPSILON)
        })
}

fn analyzer(path: &str, value: &Value) -> Result<String, MappingError> {
    match value.as_str() {
        Some(name) if ANALYZERS.contains(&name) => Ok(name.to_owned()),
        _ => Err(wrapped(format!(
            "analyzer [{}] has not been configured in mappings of field [{path}]",
            value.as_str().map_or_else(|| value.to_string(), str::to_owned)
        ))),
    }
}
