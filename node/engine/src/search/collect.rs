//! Runs a compiled query over the segments: counts, keeps the best, feeds the aggregations.
//!
//! Every match is scored, no block is skipped by its highest possible score: tantivy's bounds are computed with the average length of a
//! field in one segment, and are no bounds under that of the whole shard, nor where a field is young or sparse.

use super::{
    SearchError,
    aggs::{SegmentAggregations, ShardAggregations},
    sort::{SegmentKeys, SortPlan, SortValue},
};
use std::collections::BinaryHeap;
use tantivy::{DocAddress, DocId, Score, Searcher, SegmentReader, query::Weight};

/// Documents collected before the columns are read for all of them.
const BLOCK: usize = 2_048;

/// A hit, before its document is read.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Where it is.
    pub address: DocAddress,
    /// Its score; 0 where none is computed.
    pub score: Score,
    /// By what it is ordered.
    pub values: Vec<SortValue>,
}

/// What a pass over a shard yields.
pub struct Collected {
    /// Matches.
    pub total: u64,
    /// Highest score, where scores are computed and anything matched.
    pub max_score: Option<Score>,
    /// The best of each segment, each in its order.
    pub candidates: Vec<Candidate>,
}

/// What to do with the matches.
pub struct Pass<'a> {
    /// Searcher.
    pub searcher: &'a Searcher,
    /// Query.
    pub weight: &'a dyn Weight,
    /// Whether `weight` computes scores.
    pub scored: bool,
    /// Score of every match, where `weight` computes none.
    pub score: Score,
    /// Least score that matches.
    pub min_score: Option<f32>,
    /// Hits to keep.
    pub keep: usize,
    /// Their order.
    pub sort: &'a SortPlan,
}

impl Pass<'_> {
    /// Runs over all segments.
    pub fn run(&self, aggregations: &mut ShardAggregations) -> Result<Collected, SearchError> {
        let mut collected = Collected {
            total: 0,
            max_score: None,
            candidates: Vec::new(),
        };
        for (ord, segment) in (0..).zip(self.searcher.segment_readers()) {
            self.segment(segment, ord, aggregations, &mut collected)?;
        }
        Ok(collected)
    }

    fn segment(
        &self,
        segment: &SegmentReader,
        ord: u32,
        aggregations: &mut ShardAggregations,
        collected: &mut Collected,
    ) -> Result<(), SearchError> {
        let alive = segment.alive_bitset();
        let keys = if self.keep > 0 {
            Some(self.sort.open(segment, ord)?)
        } else {
            None
        };
        let mut leaf = Leaf {
            total: 0,
            max_score: None,
            docs: Vec::with_capacity(BLOCK),
            scores: Vec::new(),
            best: keys.map(|keys| Best {
                keys,
                score: self.score,
                keep: self.keep,
                heap: BinaryHeap::new(),
                first: Vec::new(),
            }),
            aggregations: aggregations.open(segment)?,
        };
        if self.scored {
            let min_score = self.min_score.unwrap_or(f32::NEG_INFINITY);
            self.weight.for_each(segment, &mut |doc, score| {
                if alive.is_none_or(|alive| alive.is_alive(doc)) && score >= min_score {
                    leaf.docs.push(doc);
                    leaf.scores.push(score);
                    if leaf.docs.len() == BLOCK {
                        leaf.flush();
                    }
                }
            })?;
        } else {
            self.weight.for_each_no_score(segment, &mut |docs| {
                match alive {
                    None => leaf.docs.extend_from_slice(docs),
                    Some(alive) => leaf
                        .docs
                        .extend(docs.iter().copied().filter(|&doc| alive.is_alive(doc))),
                }
                if leaf.docs.len() >= BLOCK {
                    leaf.flush();
                }
            })?;
        }
        leaf.flush();
        collected.total += leaf.total;
        if !self.scored && leaf.total > 0 {
            leaf.max_score = Some(self.score);
        }
        collected.max_score = match (collected.max_score, leaf.max_score) {
            (Some(left), Some(right)) => Some(left.max(right)),
            (left, right) => left.or(right),
        };
        if let Some(best) = leaf.best {
            best.finish(ord, &mut collected.candidates)?;
        }
        aggregations.close(leaf.aggregations)
    }
}

struct Leaf {
    total: u64,
    max_score: Option<Score>,
    docs: Vec<DocId>,
    scores: Vec<Score>,
    best: Option<Best>,
    aggregations: SegmentAggregations,
}

impl Leaf {
    fn flush(&mut self) {
        if self.docs.is_empty() {
            return;
        }
        self.total += self.docs.len() as u64;
        for &score in &self.scores {
            self.max_score = Some(self.max_score.map_or(score, |highest| highest.max(score)));
        }
        if let Some(best) = &mut self.best {
            best.collect(&self.docs, &self.scores);
        }
        self.aggregations.collect(&self.docs);
        self.docs.clear();
        self.scores.clear();
    }
}

/// The worst of the kept ones is on top. Of equal keys the later document is the worse.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Kept {
    first: u64,
    rest: Box<[u64]>,
    doc: DocId,
    score_bits: u32,
}

struct Best {
    keys: SegmentKeys,
    /// Of documents without a score of their own.
    score: Score,
    keep: usize,
    heap: BinaryHeap<Kept>,
    first: Vec<u64>,
}

impl Best {
    fn collect(&mut self, docs: &[DocId], scores: &[Score]) {
        let mut first = std::mem::take(&mut self.first);
        self.keys.first(docs, scores, self.score, &mut first);
        let single = self.keys.is_single();
        for (at, (&doc, &first)) in docs.iter().zip(&first).enumerate() {
            let full = self.heap.len() >= self.keep;
            // Documents come in ascending order, so a tie with the worst on all keys never displaces it.
            if full
                && self
                    .heap
                    .peek()
                    .is_some_and(|worst| first > worst.first || (single && first == worst.first))
            {
                continue;
            }
            let score = scores.get(at).copied().unwrap_or(self.score);
            let rest = self.keys.rest(doc, score);
            if !self.keys.is_after(first, &rest) {
                continue;
            }
            let kept = Kept {
                first,
                rest,
                doc,
                score_bits: score.to_bits(),
            };
            if !full {
                self.heap.push(kept);
            } else if let Some(mut worst) = self.heap.peek_mut()
                && kept < *worst
            {
                *worst = kept;
            }
        }
        self.first = first;
    }

    fn finish(self, segment_ord: u32, candidates: &mut Vec<Candidate>) -> Result<(), SearchError> {
        for kept in self.heap.into_sorted_vec() {
            candidates.push(Candidate {
                address: DocAddress::new(segment_ord, kept.doc),
                score: f32::from_bits(kept.score_bits),
                values: self.keys.values(kept.first, &kept.rest)?,
            });
        }
        Ok(())
    }
}
