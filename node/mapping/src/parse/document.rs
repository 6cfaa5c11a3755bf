//! The serde side of parsing: events of the JSON reader → [`Growth`].

use super::{Growth, Parsed, Parser, ROOT, Target};
use crate::{Cause, MappingError, convert::Scalar};
use serde::de::{
    DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
    value::MapAccessDeserializer,
};
use std::{borrow::Cow, collections::HashSet, fmt};

/// From here on names of one object are kept in a set.
const LINEAR_NAMES: usize = 16;

/// Parses one document.
pub(super) fn parse(parser: &Parser, id: &str, source: &[u8]) -> Result<Parsed, MappingError> {
    let malformed = |reason: String| {
        MappingError::parsing("failed to parse").because(Cause {
            kind: "json_parse_exception",
            reason,
        })
    };
    // Also what is not mapped is answered again from `_source`, so all of it has to be text.
    let text = std::str::from_utf8(source).map_err(|error| malformed(format!("Invalid UTF-8: {error}")))?;
    let mut state = State {
        growth: Growth::new(parser, id),
        refused: None,
    };
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = reader
        .deserialize_any(Root(&mut state))
        .and_then(|()| reader.end());
    match (state.refused, read) {
        (Some(refused), _) => Err(refused),
        (None, Err(error)) => Err(malformed(error.to_string())),
        (None, Ok(())) => Ok(state.growth.finish()),
    }
}

struct State<'p> {
    growth: Growth<'p>,
    /// Why the reader was stopped; serde's errors carry text only.
    refused: Option<MappingError>,
}

impl State<'_> {
    fn stop<E: Error>(&mut self, refused: MappingError) -> E {
        self.refused = Some(refused);
        E::custom("refused")
    }
}

struct Root<'s, 'p>(&'s mut State<'p>);

impl<'de> Visitor<'de> for Root<'_, '_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object: malformed content, must start with an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        object(self.0, ROOT, map)
    }
}

/// Names that were read in one object.
#[derive(Default)]
struct Names<'de> {
    few: Vec<Cow<'de, str>>,
    many: HashSet<Cow<'de, str>>,
}

impl<'de> Names<'de> {
    /// False if the name came before.
    fn add(&mut self, name: Cow<'de, str>) -> bool {
        if self.many.is_empty() && self.few.len() < LINEAR_NAMES {
            if self.few.contains(&name) {
                return false;
            }
            self.few.push(name);
            return true;
        }
        self.many.extend(self.few.drain(..));
        self.many.insert(name)
    }
}

fn object<'de, A: MapAccess<'de>>(state: &mut State<'_>, node: u32, mut map: A) -> Result<(), A::Error> {
    let mut names = Names::default();
    while let Some(key) = map.next_key_seed(Key)? {
        if !names.add(key.clone()) {
            return Err(
                state.stop(MappingError::parsing("failed to parse").because(Cause {
                    kind: "json_parse_exception",
                    reason: format!("Duplicate field '{key}'"),
                })),
            );
        }
        match state.growth.resolve(node, &key) {
            Ok(Target::Ignore) => {
                map.next_value::<IgnoredAny>()?;
            }
            Ok(target) => map.next_value_seed(Value {
                state: &mut *state,
                parent: node,
                key: &key,
                target,
            })?,
            Err(refused) => return Err(state.stop(refused)),
        }
    }
    Ok(())
}

/// A name, borrowed from the source where it holds no escapes.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

struct Value<'s, 'p, 'k> {
    state: &'s mut State<'p>,
    parent: u32,
    key: &'k str,
    target: Target<'k>,
}

impl Value<'_, '_, '_> {
    fn scalar<E: Error>(self, scalar: Scalar<'_>) -> Result<(), E> {
        let growth = &mut self.state.growth;
        let done = match self.target {
            Target::Ignore => Ok(()),
            Target::Leaf(leaf) => growth.add_value(leaf, scalar),
            Target::New(parent, rest) => growth
                .add_leaf(parent, rest, scalar)
                .and_then(|leaf| growth.add_value(leaf, scalar)),
            Target::Object(object) => {
                let (path, _) = growth.object_at(object);
                let name = path.rsplit('.').next().unwrap_or(path);
                Err(MappingError::parsing(format!(
                    "object mapping for [{path}] tried to parse field [{name}] as object, but found a concrete value"
                )))
            }
        };
        done.map_err(|refused| self.state.stop(refused))
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.scalar(Scalar::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.scalar(Scalar::I64(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.scalar(i64::try_from(value).map_or(Scalar::U64(value), Scalar::I64))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.scalar(Scalar::F64(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.scalar(Scalar::Str(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Self {
            state,
            parent,
            key,
            mut target,
        } = self;
        while items
            .next_element_seed(Value {
                state: &mut *state,
                parent,
                key,
                target,
            })?
            .is_some()
        {
            // The first element may have made the field.
            if let Target::New(..) = target {
                target = match state.growth.resolve(parent, key) {
                    Ok(target) => target,
                    Err(refused) => return Err(state.stop(refused)),
                };
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        let state = self.state;
        match self.target {
            Target::Ignore => {
                serde::Deserialize::deserialize(MapAccessDeserializer::new(map)).map(|IgnoredAny| ())
            }
            Target::Object(node) => object(state, node, map),
            Target::New(parent, rest) => {
                let growth = &mut state.growth;
                let made = growth
                    .add_parents(parent, rest)
                    .and_then(|(parent, name)| growth.add_object(parent, name));
                match made {
                    Ok(node) => object(state, node, map),
                    Err(refused) => Err(state.stop(refused)),
                }
            }
            Target::Leaf(leaf) => {
                let value: serde_json::Value =
                    serde::Deserialize::deserialize(MapAccessDeserializer::new(map))?;
                let position = match state.growth.node(leaf) {
                    Some(super::Node::Leaf { position, .. }) => *position,
                    _ => 0,
                };
                let refused = state.growth.bad_value(position, &preview(&value)).because(Cause {
                    kind: "illegal_state_exception",
                    reason: "Can't get text on a START_OBJECT".to_owned(),
                });
                Err(state.stop(refused))
            }
        }
    }
}

/// A value as OpenSearch's previews print it: `{a=1, b=[2, 3]}`.
fn preview(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Object(map) => {
            let parts: Vec<String> = map
                .iter()
                .map(|(name, value)| format!("{name}={}", preview(value)))
                .collect();
            format!("{{{}}}", parts.join(", "))
        }
        serde_json::Value::Array(items) => {
            let parts: Vec<String> = items.iter().map(preview).collect();
            format!("[{}]", parts.join(", "))
        }
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
