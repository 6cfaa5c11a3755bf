//! One document's source → field values, in one pass over the bytes and without a value tree.
//!
//! [`Parser`] is a mapping turned into a tree of names; make one for each mapping version and keep it. [`Parser::parse`] is a pure
//! function of (mapping, limits, id, source). A document that brings new fields comes back with the mapping that it needs
//! ([`Parsed::grown`]); the caller has that mapping accepted, and parses again if another document was faster.
//!
//! Arrays are flattened, nulls are skipped, dotted names are nested objects. A name may not come twice in one object.

mod document;

use crate::{
    ErrorKind, Field, FieldType, FieldValue, Mapping, MappingError, ParsedDocument,
    convert::{self, Scalar, formats_of},
    date::{self, Formats},
    json,
};
use std::{collections::HashMap, sync::Arc};

/// Longest document id, in bytes.
pub const MAX_ID_BYTES: usize = 512;
/// `ignore_above` of the `.keyword` that a new string field gets.
const DYNAMIC_KEYWORD_LIMIT: u32 = 256;
const ROOT: u32 = 0;

/// Bounds of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `index.mapping.total_fields.limit`.
    pub total_fields: u64,
    /// `index.mapping.depth.limit`: objects within objects, fields of the root count as 1.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            total_fields: 1_000,
            depth: json::DEPTH_LIMIT,
        }
    }
}

/// A parsed document.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// Values, by positions in `grown`, or in the parser's mapping where nothing grew.
    pub document: ParsedDocument,
    /// The mapping with the new fields, its version one higher; none if nothing is new.
    pub grown: Option<Arc<Mapping>>,
}

/// Refuses an id that is empty or longer than [`MAX_ID_BYTES`].
pub fn validate_id(id: &str) -> Result<(), MappingError> {
    let refuse = |reason| {
        Err(MappingError {
            kind: ErrorKind::RequestValidation,
            reason,
            caused_by: None,
        })
    };
    if id.is_empty() {
        return refuse("Validation Failed: 1: if _id is specified it must not be empty;".to_owned());
    }
    if id.len() > MAX_ID_BYTES {
        return refuse(format!(
            "Validation Failed: 1: id [{id}] is too long, must be no longer than {MAX_ID_BYTES} bytes but was: {};",
            id.len()
        ));
    }
    Ok(())
}

/// A name in the tree.
#[derive(Debug)]
enum Node {
    /// Inner node. Depth of the root is 0.
    Object {
        path: String,
        depth: usize,
        children: HashMap<String, u32>,
    },
    /// Position of the field, and of its multi-fields.
    Leaf { position: u32, subs: Vec<u32> },
}

/// A mapping made ready for documents.
#[derive(Debug)]
pub struct Parser {
    mapping: Arc<Mapping>,
    limits: Limits,
    nodes: Vec<Node>,
    /// By position; set for dates.
    formats: Vec<Option<Formats>>,
}

/// Ids of fields and nodes are `u32`; a mapping is bounded far below.
fn index(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl Parser {
    /// Prepares a mapping.
    pub fn new(mapping: Arc<Mapping>, limits: Limits) -> Self {
        let mut parser = Self {
            nodes: vec![Node::Object {
                path: String::new(),
                depth: 0,
                children: HashMap::new(),
            }],
            formats: mapping
                .fields
                .iter()
                .map(|field| (field.kind == FieldType::Date).then(|| formats_of(field)))
                .collect(),
            limits,
            mapping: Arc::clone(&mapping),
        };
        for object in &mapping.objects {
            parser.object(object);
        }
        let mut leaves = HashMap::new();
        for (position, field) in mapping
            .fields
            .iter()
            .enumerate()
            .filter(|(_, field)| field.parent.is_none())
        {
            let (parent, name) = match field.name.rsplit_once('.') {
                Some((parent, name)) => (parser.object(parent), name),
                None => (ROOT, field.name.as_str()),
            };
            let node = parser.attach(
                parent,
                name,
                Node::Leaf {
                    position: index(position),
                    subs: Vec::new(),
                },
            );
            leaves.insert(field.name.as_str(), node);
        }
        for (position, field) in mapping.fields.iter().enumerate() {
            let Some(node) = field.parent.as_deref().and_then(|parent| leaves.get(parent)) else {
                continue;
            };
            if let Some(Node::Leaf { subs, .. }) = parser.nodes.get_mut(*node as usize) {
                subs.push(index(position));
            }
        }
        parser
    }

    /// The mapping that it was made from.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    fn attach(&mut self, parent: u32, name: &str, node: Node) -> u32 {
        let id = index(self.nodes.len());
        self.nodes.push(node);
        if let Some(Node::Object { children, .. }) = self.nodes.get_mut(parent as usize) {
            children.insert(name.to_owned(), id);
        }
        id
    }

    fn object(&mut self, path: &str) -> u32 {
        let mut at = ROOT;
        for (number, part) in path.split('.').enumerate() {
            let known = match self.nodes.get(at as usize) {
                Some(Node::Object { children, .. }) => children.get(part).copied(),
                _ => None,
            };
            at = known.unwrap_or_else(|| {
                let whole = path.split('.').take(number + 1).collect::<Vec<_>>().join(".");
                self.attach(
                    at,
                    part,
                    Node::Object {
                        path: whole,
                        depth: number + 1,
                        children: HashMap::new(),
                    },
                )
            });
        }
        at
    }

    /// Parses one document. `id` is used in texts of errors only ([`validate_id`] judges it).
    pub fn parse(&self, id: &str, source: &[u8]) -> Result<Parsed, MappingError> {
        document::parse(self, id, source)
    }
}

/// What a name in a document leads to.
#[derive(Clone, Copy)]
enum Target<'k> {
    Object(u32),
    Leaf(u32),
    /// Not mapped: below this object, by this (maybe dotted) rest of its name.
    New(u32, &'k str),
    /// Not mapped, `dynamic` is false.
    Ignore,
}

/// State of one parse: the parser's tree, and what the document adds to it.
struct Growth<'p> {
    parser: &'p Parser,
    id: &'p str,
    values: Vec<(u32, FieldValue)>,
    fields: Vec<Field>,
    objects: Vec<String>,
    /// Ids go on after the parser's.
    nodes: Vec<Node>,
    /// New children of any object.
    added: HashMap<(u32, String), u32>,
}

impl<'p> Growth<'p> {
    fn new(parser: &'p Parser, id: &'p str) -> Self {
        Self {
            parser,
            id,
            values: Vec::new(),
            fields: Vec::new(),
            objects: Vec::new(),
            nodes: Vec::new(),
            added: HashMap::new(),
        }
    }

    fn finish(self) -> Parsed {
        let grown = (!self.fields.is_empty() || !self.objects.is_empty()).then(|| {
            let mut mapping = Mapping::clone(&self.parser.mapping);
            mapping.fields.extend(self.fields);
            mapping.objects.extend(self.objects);
            mapping.version += 1;
            Arc::new(mapping)
        });
        Parsed {
            document: ParsedDocument { values: self.values },
            grown,
        }
    }

    fn node(&self, id: u32) -> Option<&Node> {
        let known = self.parser.nodes.len();
        let id = id as usize;
        if id < known {
            self.parser.nodes.get(id)
        } else {
            self.nodes.get(id - known)
        }
    }

    fn object_at(&self, id: u32) -> (&str, usize) {
        match self.node(id) {
            Some(Node::Object { path, depth, .. }) => (path, *depth),
            _ => ("", 0),
        }
    }

    fn field(&self, position: u32) -> Option<&Field> {
        let known = self.parser.mapping.fields.len();
        let position = position as usize;
        if position < known {
            self.parser.mapping.fields.get(position)
        } else {
            self.fields.get(position - known)
        }
    }

    fn child(&self, parent: u32, name: &str) -> Option<u32> {
        if let Some(Node::Object { children, .. }) = self.node(parent)
            && let Some(child) = children.get(name)
        {
            return Some(*child);
        }
        if self.added.is_empty() {
            None
        } else {
            self.added.get(&(parent, name.to_owned())).copied()
        }
    }

    fn path_of(&self, parent: u32, name: &str) -> String {
        let (path, _) = self.object_at(parent);
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        }
    }

    /// Follows a name of a document, below an object.
    fn resolve<'k>(&self, parent: u32, key: &'k str) -> Result<Target<'k>, MappingError> {
        let (mut at, mut rest) = (parent, key);
        loop {
            let (head, tail) = match rest.split_once('.') {
                Some((head, tail)) => (head, Some(tail)),
                None => (rest, None),
            };
            if at == ROOT && head.starts_with('_') && json::is_metadata(head) {
                return Err(MappingError::parsing(format!(
                    "Field [{head}] is a metadata field and cannot be added inside a document. Use the index API request parameters."
                )));
            }
            let Some(child) = self.child(at, head) else {
                return self.unknown(at, rest);
            };
            match (self.node(child), tail) {
                (Some(Node::Object { .. }), None) => return Ok(Target::Object(child)),
                (_, None) => return Ok(Target::Leaf(child)),
                (Some(Node::Leaf { position, .. }), Some(_)) => {
                    let (name, kind) = self
                        .field(*position)
                        .map_or(("", ""), |field| (field.name.as_str(), field.kind.name()));
                    return Err(MappingError::parsing(format!(
                        "Could not dynamically add mapping for field [{}]. Existing mapping for [{name}] must be of type object but found [{kind}].",
                        self.path_of(at, rest)
                    )));
                }
                (_, Some(tail)) => (at, rest) = (child, tail),
            }
        }
    }

    fn unknown<'k>(&self, parent: u32, rest: &'k str) -> Result<Target<'k>, MappingError> {
        match self.parser.mapping.dynamic {
            crate::Dynamic::False => Ok(Target::Ignore),
            crate::Dynamic::True => Ok(Target::New(parent, rest)),
            crate::Dynamic::Strict => {
                let name = rest.split('.').next().unwrap_or(rest);
                let (path, _) = self.object_at(parent);
                let within = if path.is_empty() { "_doc" } else { path };
                Err(MappingError {
                    kind: ErrorKind::StrictDynamicMapping,
                    reason: format!(
                        "mapping set to strict, dynamic introduction of [{name}] within [{within}] is not allowed"
                    ),
                    caused_by: None,
                })
            }
        }
    }

    fn attach(&mut self, parent: u32, name: &str, node: Node) -> u32 {
        let id = index(self.parser.nodes.len() + self.nodes.len());
        self.nodes.push(node);
        self.added.insert((parent, name.to_owned()), id);
        id
    }

    fn check_limit(&self) -> Result<(), MappingError> {
        let total = self.parser.mapping.total_fields() + self.fields.len() + self.objects.len();
        let limit = self.parser.limits.total_fields;
        if total as u64 > limit {
            return Err(MappingError::illegal(format!(
                "Limit of total fields [{limit}] has been exceeded"
            )));
        }
        Ok(())
    }

    /// Adds one object below another.
    fn add_object(&mut self, parent: u32, name: &str) -> Result<u32, MappingError> {
        let path = self.path_of(parent, name);
        json::check_name(name, &path)?;
        let depth = self.object_at(parent).1 + 1;
        let limit = self.parser.limits.depth;
        if depth >= limit {
            return Err(MappingError::illegal(format!(
                "Limit of mapping depth [{limit}] has been exceeded due to object field [{path}]"
            )));
        }
        self.objects.push(path.clone());
        self.check_limit()?;
        Ok(self.attach(
            parent,
            name,
            Node::Object {
                path,
                depth,
                children: HashMap::new(),
            },
        ))
    }

    /// Adds the objects that lead to the last part of a new name; returns the innermost one and that part.
    fn add_parents<'k>(&mut self, parent: u32, rest: &'k str) -> Result<(u32, &'k str), MappingError> {
        let (mut at, mut rest) = (parent, rest);
        while let Some((head, tail)) = rest.split_once('.') {
            at = match self.child(at, head) {
                Some(child) => child,
                None => self.add_object(at, head)?,
            };
            rest = tail;
        }
        Ok((at, rest))
    }

    /// Adds a leaf whose type fits its first value.
    fn add_leaf(&mut self, parent: u32, rest: &str, scalar: Scalar<'_>) -> Result<u32, MappingError> {
        let (parent, name) = self.add_parents(parent, rest)?;
        let path = self.path_of(parent, name);
        json::check_name(name, &path)?;
        let position = index(self.parser.mapping.fields.len() + self.fields.len());
        let mut subs = Vec::new();
        match scalar {
            Scalar::Bool(_) => self.fields.push(Field::new(path, FieldType::Boolean)),
            Scalar::I64(_) | Scalar::U64(_) => self.fields.push(Field::new(path, FieldType::Long)),
            // As OpenSearch: a new decimal field is a float.
            Scalar::F64(_) => self.fields.push(Field::new(path, FieldType::Float)),
            Scalar::Str(text) => {
                let detected = if self.parser.mapping.date_detection == Some(false) {
                    None
                } else {
                    date::detect(text)
                };
                if let Some(format) = detected {
                    let mut field = Field::new(path, FieldType::Date);
                    if let Some(format) = format {
                        field.format = Some(format.to_owned());
                        field.explicit.insert("format".to_owned(), format.into());
                    }
                    self.fields.push(field);
                } else {
                    let mut keyword = Field::new(format!("{path}.keyword"), FieldType::Keyword);
                    keyword.parent = Some(path.clone());
                    keyword.ignore_above = Some(DYNAMIC_KEYWORD_LIMIT);
                    keyword
                        .explicit
                        .insert("ignore_above".to_owned(), DYNAMIC_KEYWORD_LIMIT.into());
                    self.fields.push(Field::new(path, FieldType::Text));
                    self.fields.push(keyword);
                    subs.push(position + 1);
                }
            }
        }
        self.check_limit()?;
        Ok(self.attach(parent, name, Node::Leaf { position, subs }))
    }

    /// Adds one scalar to a leaf and its multi-fields.
    fn add_value(&mut self, leaf: u32, scalar: Scalar<'_>) -> Result<(), MappingError> {
        let Some(Node::Leaf { position, subs }) = self.node(leaf) else {
            return Ok(());
        };
        let own = self.value(*position, scalar)?.map(|value| (*position, value));
        let mut others = Vec::new();
        for sub in subs {
            if let Some(value) = self.value(*sub, scalar)? {
                others.push((*sub, value));
            }
        }
        self.values.extend(own);
        self.values.extend(others);
        Ok(())
    }

    fn value(&self, position: u32, scalar: Scalar<'_>) -> Result<Option<FieldValue>, MappingError> {
        let Some(field) = self.field(position) else {
            return Ok(None);
        };
        let formats = self
            .parser
            .formats
            .get(position as usize)
            .and_then(Option::as_ref);
        convert::convert(field, formats, scalar)
            .map_err(|cause| self.bad_value(position, &scalar.text()).because(cause))
    }

    fn bad_value(&self, position: u32, preview: &str) -> MappingError {
        let (name, kind) = self
            .field(position)
            .map_or(("", ""), |field| (field.name.as_str(), field.kind.name()));
        let preview: String = preview.chars().take(256).collect();
        MappingError::parsing(format!(
            "failed to parse field [{name}] of type [{kind}] in document with id '{}'. Preview of field's value: '{preview}'",
            self.id
        ))
    }
}
