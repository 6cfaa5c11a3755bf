//! Collection over one segment. Hot path: no text, no allocation for a document.
//!
//! Buckets of one aggregation are numbered as they appear, over all its parent buckets. A block of documents goes down the tree as two
//! lists, documents and the number of the parent bucket of each; at the root all are in bucket 0. What a segment yields is built at its
//! end, when ordinals of keywords become texts in one pass over the dictionary.

use super::{
    partial::{Key, MetricState, PartialAggregation, PartialBucket},
    plan::{Plan, PlanKind},
    reader::{Fetched, Reader},
};
use crate::search::{
    SearchError,
    coding::{Coding, long},
};
use segmentry_query::{Interval, MetricKind, QueryError, QueryErrorKind, date::CalendarUnit};
use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};
use tantivy::{DocId, SegmentReader, u64_to_f64, u64_to_i64};

/// Buckets of one aggregation in one segment; a few dozen bytes each, and as much for every metric below.
const MAX_SEGMENT_BUCKETS: usize = 1_000_000;
/// Widest range of codes for which the numbers of buckets are kept in an array, at the root and for each parent bucket.
const DENSE_ROOT: u64 = 1 << 20;
const DENSE_NESTED: u64 = 1 << 12;
const NONE: u32 = u32::MAX;

/// Aggregations of one segment.
pub struct SegmentAggregations(Vec<Node>);

impl SegmentAggregations {
    /// Opens the columns.
    pub fn open(segment: &SegmentReader, plans: &[Plan]) -> Result<Self, SearchError> {
        Ok(Self(
            plans
                .iter()
                .map(|plan| Node::open(segment, plan, true))
                .collect::<Result<_, _>>()?,
        ))
    }

    /// Adds a block of documents, ascending.
    pub fn collect(&mut self, docs: &[DocId]) {
        for node in &mut self.0 {
            node.collect(docs, None);
        }
    }

    /// What was found.
    pub fn finish(self) -> Result<Vec<PartialAggregation>, SearchError> {
        self.0
            .into_iter()
            .map(|node| {
                Ok(node
                    .finish(1)?
                    .pop()
                    .unwrap_or(PartialAggregation::Metric(MetricState::default())))
            })
            .collect()
    }
}

enum Node {
    Buckets(Box<Buckets>),
    Metric(Box<Metric>),
}

impl Node {
    fn open(segment: &SegmentReader, plan: &Plan, root: bool) -> Result<Self, SearchError> {
        let reader = Reader::open(segment, plan)?;
        Ok(match plan.kind {
            PlanKind::Metric(kind) => Self::Metric(Box::new(Metric {
                reader,
                counts_only: kind == MetricKind::ValueCount,
                states: Vec::new(),
                fetched: Fetched::default(),
            })),
            PlanKind::Terms => {
                Self::Buckets(Box::new(Buckets::open(segment, plan, reader, Slots::Code, root)?))
            }
            PlanKind::Histogram {
                interval: Interval::Fixed(interval),
                zone_ms,
            } => Self::Buckets(Box::new(Buckets::open(
                segment,
                plan,
                reader,
                Slots::Fixed { interval, zone_ms },
                root,
            )?)),
            PlanKind::Histogram {
                interval: Interval::Calendar(unit),
                zone_ms,
            } => {
                let slots = Slots::Calendar {
                    unit,
                    zone_ms,
                    from: i64::MAX,
                    to: i64::MIN,
                    index: 0,
                };
                Self::Buckets(Box::new(Buckets::open(segment, plan, reader, slots, root)?))
            }
        })
    }

    fn collect(&mut self, docs: &[DocId], parents: Option<&[u32]>) {
        match self {
            Self::Buckets(node) => node.collect(docs, parents),
            Self::Metric(node) => node.collect(docs, parents),
        }
    }

    /// Results of the parent buckets 0..count.
    fn finish(self, count: usize) -> Result<Vec<PartialAggregation>, SearchError> {
        match self {
            Self::Buckets(node) => node.finish(count),
            Self::Metric(node) => {
                let mut states = node.states;
                states.resize(count, MetricState::default());
                Ok(states.into_iter().map(PartialAggregation::Metric).collect())
            }
        }
    }
}

struct Metric {
    reader: Reader,
    counts_only: bool,
    states: Vec<MetricState>,
    fetched: Fetched,
}

impl Metric {
    fn collect(&mut self, docs: &[DocId], parents: Option<&[u32]>) {
        self.reader.fetch(docs, &mut self.fetched);
        if let Some(&highest) = parents.map_or(Some(&0), |parents| parents.iter().max())
            && self.states.len() <= highest as usize
        {
            self.states.resize(highest as usize + 1, MetricState::default());
        }
        let coding = self.reader.coding.clone();
        match coding {
            _ if self.counts_only => self.add(parents, |_| 0.0),
            Coding::Long | Coding::Date(_) => self.add(parents, |code| u64_to_i64(code) as f64),
            Coding::Double => self.add(parents, u64_to_f64),
            Coding::Unsigned | Coding::Boolean | Coding::Keyword => self.add(parents, |code| code as f64),
        }
    }

    fn add(&mut self, parents: Option<&[u32]>, number: impl Fn(u64) -> f64) {
        for (index, &code) in self.fetched.codes.iter().enumerate() {
            let bucket = parents.map_or(0, |parents| parents[self.fetched.place(index)] as usize);
            self.states[bucket].add(number(code));
        }
    }
}

/// How a code becomes the number of a bucket within its parent.
enum Slots {
    Code,
    Fixed {
        interval: i64,
        zone_ms: i64,
    },
    /// With the bounds and the number of the unit that was hit last: neighbours in a segment are often neighbours in time.
    Calendar {
        unit: CalendarUnit,
        zone_ms: i64,
        from: i64,
        to: i64,
        index: i64,
    },
}

impl Slots {
    #[inline]
    fn of(&mut self, code: u64) -> u64 {
        match self {
            Self::Code => code,
            Self::Fixed { interval, zone_ms } => {
                long(u64_to_i64(code).saturating_add(*zone_ms).div_euclid(*interval))
            }
            Self::Calendar {
                unit,
                zone_ms,
                from,
                to,
                index,
            } => {
                let local = u64_to_i64(code).saturating_add(*zone_ms);
                if !(*from..*to).contains(&local) {
                    *index = unit.index_of(local);
                    (*from, *to) = (unit.start_of(*index), unit.start_of(*index + 1));
                }
                long(*index)
            }
        }
    }
}

/// Hasher of codes: one multiplication, high bits folded down.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// Bucket numbers of one parent bucket, by slot.
enum Table {
    Dense { base: u64, numbers: Vec<u32> },
    Sparse(HashMap<u64, u32, BuildHasherDefault<Mix>>),
}

struct Buckets {
    name: String,
    reader: Reader,
    slots: Slots,
    /// First slot and number of slots, where they are few enough for arrays.
    dense: Option<(u64, usize)>,
    tables: Vec<Table>,
    counts: Vec<u64>,
    overflow: bool,
    sub: Vec<Node>,
    fetched: Fetched,
    sub_docs: Vec<DocId>,
    sub_parents: Vec<u32>,
}

impl Buckets {
    fn open(
        segment: &SegmentReader,
        plan: &Plan,
        reader: Reader,
        mut slots: Slots,
        root: bool,
    ) -> Result<Self, SearchError> {
        let widest = if root { DENSE_ROOT } else { DENSE_NESTED };
        let dense = reader.bounds().and_then(|(low, high)| {
            let (low, high) = (slots.of(low), slots.of(high));
            let width = (high - low).checked_add(1).filter(|width| *width <= widest)?;
            Some((low, usize::try_from(width).ok()?))
        });
        let sub = plan
            .sub
            .iter()
            .map(|plan| Node::open(segment, plan, false))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            name: plan.name.clone(),
            reader,
            slots,
            dense,
            tables: Vec::new(),
            counts: Vec::new(),
            overflow: false,
            sub,
            fetched: Fetched::default(),
            sub_docs: Vec::new(),
            sub_parents: Vec::new(),
        })
    }

    fn collect(&mut self, docs: &[DocId], parents: Option<&[u32]>) {
        self.reader.fetch(docs, &mut self.fetched);
        self.sub_docs.clear();
        self.sub_parents.clear();
        let mut previous = (usize::MAX, 0);
        for index in 0..self.fetched.codes.len() {
            let at = self.fetched.place(index);
            let slot = self.slots.of(self.fetched.codes[index]);
            if previous == (at, slot) {
                continue; // two moments of one document in the same interval
            }
            previous = (at, slot);
            let parent = parents.map_or(0, |parents| parents[at] as usize);
            let Some(number) = self.number(parent, slot) else {
                continue;
            };
            self.counts[number as usize] += 1;
            if !self.sub.is_empty() {
                self.sub_docs.push(docs[at]);
                self.sub_parents.push(number);
            }
        }
        for node in &mut self.sub {
            node.collect(&self.sub_docs, Some(&self.sub_parents));
        }
    }

    #[inline]
    fn number(&mut self, parent: usize, slot: u64) -> Option<u32> {
        while self.tables.len() <= parent {
            self.tables.push(match self.dense {
                Some((base, _)) => Table::Dense {
                    base,
                    numbers: Vec::new(),
                },
                None => Table::Sparse(HashMap::default()),
            });
        }
        let next = u32::try_from(self.counts.len()).unwrap_or(NONE);
        let entry = match &mut self.tables[parent] {
            Table::Dense { base, numbers } => {
                if numbers.is_empty() {
                    numbers.resize(self.dense.map_or(0, |(_, width)| width), NONE);
                }
                let place = usize::try_from(slot - *base).ok()?;
                numbers.get_mut(place)?
            }
            Table::Sparse(numbers) => numbers.entry(slot).or_insert(NONE),
        };
        if *entry == NONE {
            if self.counts.len() >= MAX_SEGMENT_BUCKETS {
                self.overflow = true;
                return None;
            }
            *entry = next;
            self.counts.push(0);
        }
        Some(*entry)
    }

    fn finish(self, parents: usize) -> Result<Vec<PartialAggregation>, SearchError> {
        if self.overflow {
            return Err(QueryError::new(
                QueryErrorKind::CircuitBreakingException,
                format!("[request] Data too large: aggregation [{}] has more than [{MAX_SEGMENT_BUCKETS}] buckets in one segment", self.name),
            )
            .into());
        }
        let tables: Vec<Vec<(u64, u32)>> = self
            .tables
            .into_iter()
            .map(|table| match table {
                Table::Dense { base, numbers } => (base..)
                    .zip(numbers)
                    .filter(|(_, number)| *number != NONE)
                    .collect(),
                Table::Sparse(numbers) => {
                    let mut list: Vec<_> = numbers
                        .into_iter()
                        .filter(|(_, number)| *number != NONE)
                        .collect();
                    list.sort_unstable();
                    list
                }
            })
            .collect();
        let keys = Keys::resolve(&self.reader, &self.slots, &tables)?;
        let mut sub: Vec<Vec<Option<PartialAggregation>>> = Vec::with_capacity(self.sub.len());
        for node in self.sub {
            sub.push(node.finish(self.counts.len())?.into_iter().map(Some).collect());
        }
        let mut results = Vec::with_capacity(parents);
        for table in &tables {
            let mut buckets = Vec::with_capacity(table.len());
            for &(slot, number) in table {
                let below = sub
                    .iter_mut()
                    .filter_map(|list| list.get_mut(number as usize).and_then(Option::take))
                    .collect();
                buckets.push(PartialBucket {
                    key: keys.of(slot)?,
                    count: self.counts[number as usize],
                    sub: below,
                });
            }
            // Already so, but for the stand-in of a missing text.
            buckets.sort_by(|left, right| left.key.cmp(&right.key));
            results.push(PartialAggregation::Buckets {
                buckets,
                other: 0,
                error: 0,
            });
        }
        while results.len() < parents {
            results.push(PartialAggregation::Buckets {
                buckets: Vec::new(),
                other: 0,
                error: 0,
            });
        }
        Ok(results)
    }
}

/// Keys of slots.
enum Keys {
    Texts(Vec<(u64, String)>),
    Codes(Coding),
    Indices,
}

impl Keys {
    fn resolve(reader: &Reader, slots: &Slots, tables: &[Vec<(u64, u32)>]) -> Result<Self, SearchError> {
        if !matches!(slots, Slots::Code) {
            return Ok(Self::Indices);
        }
        if reader.coding != Coding::Keyword {
            return Ok(Self::Codes(reader.coding.clone()));
        }
        let mut ords: Vec<u64> = tables.iter().flatten().map(|(slot, _)| *slot).collect();
        ords.sort_unstable();
        ords.dedup();
        let mut texts = Vec::with_capacity(ords.len());
        let stand_in = reader.missing_text.as_ref();
        let known: Vec<u64> = ords
            .iter()
            .copied()
            .filter(|ord| stand_in.is_none_or(|(missing, _)| missing != ord))
            .collect();
        if let Some(terms) = reader.codes.as_ref().and_then(|codes| codes.terms.as_ref()) {
            let mut next = known.iter();
            terms
                .dictionary()
                .sorted_ords_to_term_cb(&known, |bytes| {
                    if let Some(&ord) = next.next() {
                        texts.push((ord, String::from_utf8_lossy(bytes).into_owned()));
                    }
                })
                .map_err(tantivy::TantivyError::from)?;
        }
        if let Some((ord, text)) = stand_in
            && ords.binary_search(ord).is_ok()
        {
            texts.push((*ord, text.clone()));
        }
        Ok(Self::Texts(texts))
    }

    fn of(&self, slot: u64) -> Result<Key, SearchError> {
        Ok(match self {
            Self::Texts(texts) => match texts.binary_search_by_key(&slot, |(ord, _)| *ord) {
                Ok(place) => Key::Text(texts[place].1.clone()),
                Err(_) => {
                    return Err(tantivy::TantivyError::InternalError(format!(
                        "ordinal {slot} is not in its dictionary"
                    ))
                    .into());
                }
            },
            Self::Codes(Coding::Double) => Key::Double(slot),
            Self::Codes(Coding::Boolean) => Key::Boolean(slot != 0),
            Self::Codes(Coding::Unsigned | Coding::Keyword) => {
                Key::Long(i64::try_from(slot).unwrap_or(i64::MAX))
            }
            Self::Codes(Coding::Long | Coding::Date(_)) | Self::Indices => Key::Long(u64_to_i64(slot)),
        })
    }
}
