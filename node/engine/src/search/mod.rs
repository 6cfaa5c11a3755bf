//! Compiles `query` syntax trees to tantivy, runs them, merges partial results.
