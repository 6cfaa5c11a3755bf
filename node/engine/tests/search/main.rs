//! Searching: what is found, in which order, and what is computed of it, against plain computations over the same documents.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod aggregations;
mod growth;
mod queries;
mod sorting;
mod support;
mod top_k;
