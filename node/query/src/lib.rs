//! Search requests: OpenSearch's query DSL, sorts, aggregations and URL parameters, read into an own syntax tree.
//!
//! Pure: no search library, no clock (`now` is passed in and travels with the request, so that all shards agree on it).
//! Nothing is looked up in a mapping here: values stay as they were written until the engine compiles them against a field.
//!
//! - [`tree`]: the syntax tree, all of it serialisable as JSON;
//! - [`parse`]: bodies and URL parameters → tree. Whatever is not supported is refused by its name, never ignored;
//! - [`date`]: date math (`now-1d/d`, `2015-01-01||+1M`), time zones, calendar units;
//! - [`source`]: the `_source` filter applied to a document;
//! - [`error`]: refusals with OpenSearch's types and texts.

pub mod date;
pub mod error;
pub mod parse;
pub mod source;
pub mod tree;

pub use error::{QueryError, QueryErrorKind};
pub use parse::{UrlParams, parse_count, parse_search};
pub use tree::*;
