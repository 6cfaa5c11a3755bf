//! Where operations are: runs of frames, not single operations.

use segmentry_vfs::VfsFile;
use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

/// A run grows by further frames until it has so many bytes.
const RUN_BYTES: u64 = 16 << 10;

/// Adjacent frames of one generation with contiguous operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub first: u64,
    /// Operations above it in these frames are void.
    pub last: u64,
    pub generation: u64,
    pub offset: u64,
    pub bytes: u64,
}

/// One generation's file.
#[derive(Clone)]
pub struct Generation {
    pub path: PathBuf,
    pub file: Arc<dyn VfsFile>,
    pub seed: u64,
    pub base: u64,
    pub bytes: u64,
    pub modified_ms: u64,
}

/// What the log holds.
#[derive(Default)]
pub struct Index {
    pub generations: BTreeMap<u64, Generation>,
    /// Ascending by `first`, without overlap.
    pub runs: Vec<Run>,
    /// Last operation of the log, also where its generation is gone.
    pub last: Option<u64>,
    pub term: u64,
    /// Runs before it end at a term start: frames after it begin a new run.
    pub barrier: bool,
    pub pins: BTreeMap<u64, usize>,
}

impl Index {
    pub fn next(&self) -> u64 {
        self.last.map_or(0, |last| last + 1)
    }

    /// A frame with the operations `first..=last`.
    pub fn add(&mut self, first: u64, last: u64, generation: u64, offset: u64, bytes: u64) {
        self.last = Some(last);
        if !self.barrier
            && let Some(run) = self.runs.last_mut()
            && run.generation == generation
            && run.offset + run.bytes == offset
            && run.last + 1 == first
            && run.bytes < RUN_BYTES
        {
            run.last = last;
            run.bytes += bytes;
            return;
        }
        self.barrier = false;
        self.runs.push(Run {
            first,
            last,
            generation,
            offset,
            bytes,
        });
    }

    /// A term start.
    pub fn cut(&mut self, term: u64, keep_to: Option<u64>) {
        self.term = term;
        self.barrier = true;
        while self.runs.last().is_some_and(|run| Some(run.first) > keep_to) {
            self.runs.pop();
        }
        if let (Some(run), Some(keep_to)) = (self.runs.last_mut(), keep_to) {
            run.last = run.last.min(keep_to);
        }
        self.last = keep_to;
    }

    /// The run that holds `seq_no`, and its place in the list.
    pub fn run_of(&self, seq_no: u64) -> Option<usize> {
        let after = self.runs.partition_point(|run| run.first <= seq_no);
        let at = after.checked_sub(1)?;
        self.runs
            .get(at)
            .is_some_and(|run| run.last >= seq_no)
            .then_some(at)
    }

    pub fn operations(&self) -> u64 {
        self.runs.iter().map(|run| run.last - run.first + 1).sum()
    }

    /// Lowest seq_no that a pin holds.
    pub fn pinned(&self) -> Option<u64> {
        self.pins.keys().next().copied()
    }

    /// Generations, oldest first, whose every operation is below `seq_no` and not pinned; never the newest.
    pub fn trimmable(&self, seq_no: u64) -> Vec<u64> {
        let limit = self.pinned().map_or(seq_no, |pinned| pinned.min(seq_no));
        let numbers: Vec<u64> = self.generations.keys().copied().collect();
        let bases = self
            .generations
            .values()
            .skip(1)
            .map(|generation| generation.base);
        numbers
            .into_iter()
            .zip(bases)
            .take_while(|(_, next_base)| *next_base <= limit)
            .map(|(number, _)| number)
            .collect()
    }

    /// Takes a generation out, with its operations.
    pub fn forget(&mut self, generation: u64) -> Option<Generation> {
        self.runs.retain(|run| run.generation != generation);
        self.generations.remove(&generation)
    }
}
