//! `_bulk`: lines in, one answer out.
//!
//! Action lines are read as what they are; sources are slices of the body, never parsed into a value tree here.
//!
//! Clients scan the answer as text: it is compact, in the order `took`, `errors`, `items`, with `errors` right before `items`.

use crate::{
    Context,
    documents::{write_options, written_object},
    reply::{Content, Reply, error_object},
    table::Route,
};
use bytes::Bytes;
use segmentry_coordinator::{
    ApiError,
    document::{WriteItem, WriteKind, WriteRequest},
};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor},
};
use serde_json::{Map, Value, json};
use std::{fmt, sync::Arc, time::Instant};

/// Bodies below this are split where they came in, bytes.
const INLINE_BYTES: usize = 64 << 10;

const PARAMS: &[&str] = &[
    "refresh",
    "routing",
    "timeout",
    "wait_for_active_shards",
    "pipeline",
    "require_alias",
    "_source",
    "_source_includes",
    "_source_excludes",
    "batch_size",
];

/// Endpoints.
pub const ROUTES: &[Route] = &[
    Route {
        methods: &["POST", "PUT"],
        path: "/_bulk",
        params: PARAMS,
        handler: handler!(bulk),
    },
    Route {
        methods: &["POST", "PUT"],
        path: "/{index}/_bulk",
        params: PARAMS,
        handler: handler!(bulk),
    },
];

async fn bulk(context: Context) -> Result<Reply, ApiError> {
    let begun = Instant::now();
    for name in ["_source", "_source_includes", "_source_excludes"] {
        context.params.only(name, &["false"])?;
    }
    context.params.only("batch_size", &[])?;
    let options = write_options(&context)?;
    let coordinator = context.shared.coordinator.clone();
    coordinator.formed()?;
    let _share = coordinator.admit_write(context.body.len())?;
    let routing = context
        .params
        .get("routing")
        .filter(|routing| !routing.is_empty())
        .map(Arc::from);
    let (body, index) = (context.body.clone(), context.index().map(str::to_owned));
    let requests = if body.len() < INLINE_BYTES {
        parse(&body, index.as_deref(), routing.as_ref())?
    } else {
        // Splitting a large body is computation: it does not run where other requests wait.
        tokio::task::spawn_blocking(move || parse(&body, index.as_deref(), routing.as_ref()))
            .await
            .map_err(|error| {
                ApiError::new(
                    500,
                    "internal_error",
                    format!("splitting ended abnormally: {error}"),
                )
            })??
    };
    let items = coordinator.bulk(requests, options).await;
    let took = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(Reply {
        status: 200,
        body: Content::Json(answer(took, &items)?),
        headers: Vec::new(),
    })
}

fn answer(took: u64, items: &[WriteItem]) -> Result<Vec<u8>, ApiError> {
    use std::io::Write;
    let broken = |error: &dyn fmt::Display| {
        ApiError::new(
            500,
            "internal_error",
            format!("answer cannot be encoded: {error}"),
        )
    };
    let errors = items.iter().any(|item| item.result.is_err());
    let mut out = Vec::with_capacity(64 + items.len() * 192);
    write!(out, r#"{{"took":{took},"errors":{errors},"items":["#).map_err(|error| broken(&error))?;
    for (position, item) in items.iter().enumerate() {
        if position > 0 {
            out.push(b',');
        }
        write!(out, r#"{{"{}":"#, item.kind.name()).map_err(|error| broken(&error))?;
        serde_json::to_writer(&mut out, &item_object(item)).map_err(|error| broken(&error))?;
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
    Ok(out)
}

fn item_object(item: &WriteItem) -> Map<String, Value> {
    match &item.result {
        Ok(written) => {
            let mut out = written_object(item, written);
            out.insert("status".into(), json!(written.outcome.status()));
            out
        }
        Err(error) => {
            let mut out = Map::new();
            out.insert("_index".into(), json!(&*item.index));
            out.insert("_id".into(), json!(item.id.as_deref()));
            out.insert("status".into(), json!(error.status));
            out.insert("error".into(), Value::Object(error_object(error)));
            out
        }
    }
}

/// The parameters of one action.
#[derive(Debug, Default, PartialEq)]
struct Meta {
    index: Option<String>,
    id: Option<String>,
    routing: Option<String>,
    if_seq_no: Option<u64>,
    if_primary_term: Option<u64>,
    op_type: Option<String>,
    unknown: Option<String>,
}

/// An action line: `{"index": {…}}`.
struct Action {
    name: String,
    meta: Meta,
}

impl<'de> Deserialize<'de> for Action {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Line;
        impl<'de> Visitor<'de> for Line {
            type Value = Action;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object with one action")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Action, A::Error> {
                let name: String = map
                    .next_key()?
                    .ok_or_else(|| de::Error::custom("expected FIELD_NAME but found END_OBJECT"))?;
                let meta = map.next_value()?;
                if map.next_key::<String>()?.is_some() {
                    return Err(de::Error::custom("expected END_OBJECT but found FIELD_NAME"));
                }
                Ok(Action { name, meta })
            }
        }
        deserializer.deserialize_map(Line)
    }
}

impl<'de> Deserialize<'de> for Meta {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Meta;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the parameters of an action")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Meta, A::Error> {
                let mut meta = Meta::default();
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "_index" => meta.index = map.next_value()?,
                        "_id" => meta.id = text(map.next_value()?),
                        "routing" | "_routing" => meta.routing = text(map.next_value()?),
                        "if_seq_no" => meta.if_seq_no = map.next_value()?,
                        "if_primary_term" => meta.if_primary_term = map.next_value()?,
                        "retry_on_conflict" | "_retry_on_conflict" => {
                            // Updates have no conflicts to retry, see `WriteKind::Update`.
                            map.next_value::<u32>()?;
                        }
                        "op_type" => meta.op_type = map.next_value()?,
                        _ => {
                            let value: Value = map.next_value()?;
                            let harmless = match name.as_str() {
                                "require_alias" => value == Value::Bool(false),
                                "version_type" => value == "internal",
                                "pipeline" => value == "_none",
                                _ => false,
                            };
                            if !harmless {
                                meta.unknown = Some(name);
                            }
                        }
                    }
                }
                Ok(meta)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// Ids and routings may be written as numbers.
fn text(value: Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    }
}

/// The writes of a body.
fn parse(
    body: &Bytes,
    default_index: Option<&str>,
    default_routing: Option<&Arc<str>>,
) -> Result<Vec<WriteRequest>, ApiError> {
    if body.is_empty() {
        return Err(ApiError::new(400, "parse_exception", "request body is required"));
    }
    if body.last() != Some(&b'\n') {
        return Err(ApiError::illegal(
            "The bulk request must be terminated by a newline [\\n]",
        ));
    }
    let mut requests = Vec::new();
    let mut lines = Lines {
        body,
        at: 0,
        number: 0,
    };
    // One Arc for each run of the same name: most bulks name one index.
    let mut last_index: Option<Arc<str>> = default_index.map(Arc::from);
    while let Some((line, number)) = lines.next() {
        if line.is_empty() {
            continue;
        }
        let malformed = |why: &dyn fmt::Display| {
            ApiError::illegal(format!("Malformed action/metadata line [{number}], {why}"))
        };
        let action: Action = serde_json::from_slice(line).map_err(|error| malformed(&error))?;
        let Action { name, meta } = action;
        let mut kind = match name.as_str() {
            "index" => WriteKind::Index,
            "create" => WriteKind::Create,
            "update" => WriteKind::Update,
            "delete" => WriteKind::Delete,
            other => {
                return Err(malformed(&format!(
                    "expected field [create], [delete], [index] or [update] but found [{other}]"
                )));
            }
        };
        if let Some(unknown) = meta.unknown {
            return Err(ApiError::illegal(format!(
                "Action/metadata line [{number}] contains an unknown parameter [{unknown}]"
            )));
        }
        match meta.op_type.as_deref() {
            None | Some("index") => {}
            Some("create") if kind == WriteKind::Index => kind = WriteKind::Create,
            Some(other) => return Err(malformed(&format!("unexpected op_type [{other}]"))),
        }
        let index = match meta.index {
            Some(name) => match &last_index {
                Some(last) if **last == *name => Arc::clone(last),
                _ => {
                    let name: Arc<str> = Arc::from(name);
                    last_index = Some(Arc::clone(&name));
                    name
                }
            },
            None => match default_index {
                Some(name) => match &last_index {
                    Some(last) if **last == *name => Arc::clone(last),
                    _ => Arc::from(name),
                },
                None => return Err(ApiError::validation("index is missing")),
            },
        };
        let source = if kind == WriteKind::Delete {
            Bytes::new()
        } else {
            let (line, _) = lines.next().ok_or_else(|| {
                ApiError::validation("no requests added: the source of the last action is missing")
            })?;
            body.slice_ref(line)
        };
        if meta.id.is_none() && matches!(kind, WriteKind::Update | WriteKind::Delete) {
            return Err(ApiError::validation("id is missing"));
        }
        requests.push(WriteRequest {
            index,
            kind,
            id: meta.id.map(Arc::from),
            routing: meta.routing.map(Arc::from).or_else(|| default_routing.cloned()),
            if_seq_no: meta.if_seq_no,
            if_primary_term: meta.if_primary_term,
            source,
        });
    }
    if requests.is_empty() {
        return Err(ApiError::validation("no requests added"));
    }
    Ok(requests)
}

/// Lines without their end, `\n` or `\r\n`.
struct Lines<'a> {
    body: &'a [u8],
    at: usize,
    number: usize,
}

impl<'a> Iterator for Lines<'a> {
    type Item = (&'a [u8], usize);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.body.get(self.at..).filter(|rest| !rest.is_empty())?;
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        self.at += end + 1;
        self.number += 1;
        let line = &rest[..end];
        Some((line.strip_suffix(b"\r").unwrap_or(line), self.number))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;

    fn read(body: &'static str) -> Result<Vec<WriteRequest>, String> {
        parse(&Bytes::from_static(body.as_bytes()), Some("d"), None).map_err(|error| error.reason)
    }

    #[test]
    fn lines_become_writes_and_sources_stay_bytes() {
        let body = "{\"index\":{\"_index\":\"a\",\"_id\":7,\"routing\":\"r\"}}\r\n{ \"x\" : 1 }\r\n\
                    {\"delete\":{\"_id\":\"b\",\"if_seq_no\":3,\"if_primary_term\":1}}\n\n\
                    {\"create\":{}}\n{}\n{\"update\":{\"_id\":\"u\",\"retry_on_conflict\":2}}\n{\"doc\":{}}\n";
        let writes = read(body).unwrap();
        assert_eq!(writes.len(), 4);
        assert_eq!(
            (
                &*writes[0].index,
                writes[0].id.as_deref(),
                writes[0].routing.as_deref()
            ),
            ("a", Some("7"), Some("r"))
        );
        assert_eq!(writes[0].source, "{ \"x\" : 1 }");
        assert_eq!(
            (writes[1].kind, &*writes[1].index, writes[1].if_seq_no),
            (WriteKind::Delete, "d", Some(3))
        );
        assert_eq!(
            (writes[2].kind, writes[2].id.as_deref()),
            (WriteKind::Create, None)
        );
        assert_eq!(writes[3].kind, WriteKind::Update);
    }

    #[test]
    fn malformed_bodies_are_refused_by_line_and_name() {
        for (body, text) in [
            (
                "{\"index\":{\"_type\":\"t\"}}\n{}\n",
                "Action/metadata line [1] contains an unknown parameter [_type]",
            ),
            (
                "{\"foo\":{}}\n{}\n",
                "Malformed action/metadata line [1], expected field [create]",
            ),
            (
                "{\"index\":{}}\n{}",
                "The bulk request must be terminated by a newline",
            ),
            (
                "{\"index\":{}}\n{}\n{\"index\":{}}\n",
                "no requests added: the source of the last action is missing",
            ),
            ("not json\n", "Malformed action/metadata line [1]"),
            ("{\"delete\":{}}\n", "id is missing"),
            ("\n", "no requests added"),
            (
                "{\"index\":{\"pipeline\":\"p\"}}\n{}\n",
                "unknown parameter [pipeline]",
            ),
        ] {
            let error = read(body).unwrap_err();
            assert!(error.contains(text), "{body:?}: {error}");
        }
        let error = parse(&Bytes::from_static(b"{\"index\":{}}\n{}\n"), None, None).unwrap_err();
        assert!(error.reason.contains("index is missing"));
    }
}
