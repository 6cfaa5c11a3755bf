//! The search engine of one shard copy: the only room that sees tantivy.

pub mod analysis;
pub mod schema;
pub mod search;
mod view;

pub use view::View;
