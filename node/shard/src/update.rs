//! OpenSearch's update body: merge of a partial document into the one that exists.

use crate::WriteError;
use bytes::Bytes;
use serde_json::{Map, Value};
use std::sync::Arc;

/// What an update leads to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Updated {
    /// This source is to be put.
    Put(Bytes),
    /// Nothing changes.
    Noop,
    /// There is no document, and no upsert.
    Missing,
}

struct Body {
    doc: Option<Map<String, Value>>,
    upsert: Option<Map<String, Value>>,
    doc_as_upsert: bool,
    detect_noop: bool,
}

fn illegal(reason: impl std::fmt::Display) -> WriteError {
    WriteError::Illegal(reason.to_string())
}

fn object(name: &str, value: Value) -> Result<Map<String, Value>, WriteError> {
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(illegal(format_args!("[UpdateRequest] [{name}] is not an object"))),
    }
}

fn boolean(name: &str, value: &Value) -> Result<bool, WriteError> {
    value
        .as_bool()
        .ok_or_else(|| illegal(format_args!("[UpdateRequest] [{name}] is not a boolean")))
}

fn read(source: &[u8]) -> Result<Body, WriteError> {
    let value: Value = serde_json::from_slice(source)
        .map_err(|error| illegal(format_args!("failed to parse the update: {error}")))?;
    let mut body = Body {
        doc: None,
        upsert: None,
        doc_as_upsert: false,
        detect_noop: true,
    };
    for (name, value) in object("body", value)? {
        match name.as_str() {
            "doc" => body.doc = Some(object(&name, value)?),
            "upsert" => body.upsert = Some(object(&name, value)?),
            "doc_as_upsert" => body.doc_as_upsert = boolean(&name, &value)?,
            "detect_noop" => body.detect_noop = boolean(&name, &value)?,
            "script" | "scripted_upsert" | "_source" => {
                return Err(illegal(format_args!(
                    "[{name}] of an update is not supported by Segmentry"
                )));
            }
            _ => return Err(illegal(format_args!("[UpdateRequest] unknown field [{name}]"))),
        }
    }
    if body.doc.is_none() {
        return Err(illegal("Validation Failed: 1: script or doc is missing;"));
    }
    Ok(body)
}

/// Applies an update body to the source of the document, if there is one.
pub(crate) fn apply(id: &Arc<str>, body: &[u8], existing: Option<&[u8]>) -> Result<Updated, WriteError> {
    let body = read(body)?;
    let Some(existing) = existing else {
        let put = match (body.doc_as_upsert, body.doc, body.upsert) {
            (true, Some(doc), _) => doc,
            (_, _, Some(upsert)) => upsert,
            _ => return Ok(Updated::Missing),
        };
        return encode(&put);
    };
    let mut document: Map<String, Value> = serde_json::from_slice(existing)
        .map_err(|error| WriteError::Unknown(format!("stored source of [{id}] cannot be read: {error}")))?;
    let changed = body.doc.is_some_and(|doc| merge(&mut document, doc));
    if !changed && body.detect_noop {
        return Ok(Updated::Noop);
    }
    encode(&document)
}

fn encode(document: &Map<String, Value>) -> Result<Updated, WriteError> {
    serde_json::to_vec(document)
        .map(|bytes| Updated::Put(Bytes::from(bytes)))
        .map_err(|error| illegal(format_args!("merged document cannot be written: {error}")))
}

/// Objects are merged, everything else is replaced. True if something is different afterwards.
fn merge(into: &mut Map<String, Value>, from: Map<String, Value>) -> bool {
    let mut changed = false;
    for (name, value) in from {
        match (into.get_mut(&name), value) {
            (Some(Value::Object(known)), Value::Object(value)) => changed |= merge(known, value),
            (Some(known), value) => {
                if *known != value {
                    *known = value;
                    changed = true;
                }
            }
            (None, value) => {
                into.insert(name, value);
                changed = true;
            }
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;

    fn run(body: &str, existing: Option<&str>) -> Result<String, WriteError> {
        match apply(&"1".into(), body.as_bytes(), existing.map(str::as_bytes))? {
            Updated::Put(bytes) => Ok(String::from_utf8(bytes.to_vec()).unwrap()),
            other => Ok(format!("{other:?}")),
        }
    }

    #[test]
    fn objects_are_merged_and_arrays_are_replaced() {
        let body = r#"{"doc":{"a":{"y":2},"l":[3]}}"#;
        assert_eq!(
            run(body, Some(r#"{"a":{"x":1},"l":[1,2],"k":0}"#)).unwrap(),
            r#"{"a":{"x":1,"y":2},"l":[3],"k":0}"#
        );
    }

    #[test]
    fn an_update_that_changes_nothing_is_a_noop_unless_it_is_not_to_be_detected() {
        assert_eq!(run(r#"{"doc":{"a":1}}"#, Some(r#"{"a":1}"#)).unwrap(), "Noop");
        assert_eq!(
            run(r#"{"doc":{"a":1},"detect_noop":false}"#, Some(r#"{"a":1}"#)).unwrap(),
            r#"{"a":1}"#
        );
    }

    #[test]
    fn without_a_document_only_an_upsert_puts_one() {
        assert_eq!(run(r#"{"doc":{"a":1}}"#, None).unwrap(), "Missing");
        assert_eq!(
            run(r#"{"doc":{"a":1},"doc_as_upsert":true}"#, None).unwrap(),
            r#"{"a":1}"#
        );
        assert_eq!(
            run(r#"{"doc":{"a":1},"upsert":{"b":2}}"#, None).unwrap(),
            r#"{"b":2}"#
        );
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for body in [
            r#"{"script":"x"}"#,
            r#"{"doc":{},"nonsense":1}"#,
            r#"{"doc":1}"#,
            "[]",
            r#"{"upsert":{}}"#,
        ] {
            assert!(matches!(run(body, None), Err(WriteError::Illegal(_))), "{body}");
        }
    }
}
