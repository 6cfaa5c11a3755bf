//! Aggregations: collected by segment, merged by shard, merged over shards, written as OpenSearch writes them.
//!
//! - `plan`: a request's aggregations resolved against the mapping;
//! - `reader`: values of blocks of documents; `segment`: blocks of documents → counts and sums, by codes and ordinals of one segment, no text;
//! - `partial`: what travels between shards; merging; what a shard leaves out;
//! - `render`: the JSON.
//!
//! Results are exact as long as a shard has no more than [`partial::SHARD_BUCKETS`] different terms (or the request's `shard_size`); beyond
//! it `doc_count_error_upper_bound` says by how much a count may be too low.

mod partial;
mod plan;
mod reader;
mod render;
mod segment;

pub use partial::{PartialAggregation, merge_into};
pub use plan::Shape;
pub use render::render;
pub use segment::SegmentAggregations;

use super::SearchError;
use crate::view::View;
use plan::Plan;
use segmentry_query::Aggregation;
use tantivy::SegmentReader;

/// All aggregations of a request over the segments of one shard.
pub struct ShardAggregations {
    plans: Vec<Plan>,
    merged: Vec<PartialAggregation>,
}

impl ShardAggregations {
    /// Resolves the aggregations of a request.
    pub fn new(view: &View, aggregations: &[Aggregation]) -> Result<Self, SearchError> {
        let plans = aggregations
            .iter()
            .map(|aggregation| Plan::new(view, aggregation))
            .collect::<Result<Vec<_>, _>>()?;
        let merged = aggregations.iter().map(PartialAggregation::empty).collect();
        Ok(Self { plans, merged })
    }

    /// Opens the columns of a segment.
    pub fn open(&self, segment: &SegmentReader) -> Result<SegmentAggregations, SearchError> {
        SegmentAggregations::open(segment, &self.plans)
    }

    /// Adds what a segment yielded.
    pub fn close(&mut self, segment: SegmentAggregations) -> Result<(), SearchError> {
        for (merged, partial) in self.merged.iter_mut().zip(segment.finish()?) {
            merge_into(merged, partial);
        }
        Ok(())
    }

    /// What the shard sends: its results, and what their values mean, in the order of the tree.
    pub fn finish(self, aggregations: &[Aggregation]) -> (Vec<PartialAggregation>, Vec<Shape>) {
        let mut merged = self.merged;
        for (partial, aggregation) in merged.iter_mut().zip(aggregations) {
            partial.truncate(aggregation);
        }
        let mut shapes = Vec::new();
        for plan in &self.plans {
            plan.shapes(&mut shapes);
        }
        (merged, shapes)
    }
}
