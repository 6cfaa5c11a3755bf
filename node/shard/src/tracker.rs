//! Positions of all copies, and the global checkpoint that follows from them.
//!
//! An operation that was taken in `request` mode counts on a copy once it is persisted there, one of `async` mode once it is
//! written. The global checkpoint is the last operation that, with all before it, counts on every awaited copy. It never goes
//! back. A write is acknowledged once the global checkpoint is at or past it (`AckedIsDurable`).
//!
//! Awaited are the in-sync copies, and those that are about to be: a copy is awaited *before* it is proposed for the in-sync set,
//! and until its removal is applied.

use crate::Positions;
use parking_lot::Mutex;
use segmentry_state::AllocationId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tokio::sync::watch;

#[derive(Debug, Clone, Copy, Default)]
struct Tracked {
    positions: Positions,
    awaited: bool,
}

#[derive(Debug, Default)]
struct Inner {
    copies: BTreeMap<AllocationId, Tracked>,
    /// Ranges of operations that must be persisted; ascending, not adjacent.
    needs_sync: VecDeque<(u64, u64)>,
    /// Last operation of `async` mode.
    last_async: Option<u64>,
}

impl Inner {
    fn least(&self, of: impl Fn(&Positions) -> Option<u64>) -> Option<u64> {
        self.copies
            .values()
            .filter(|copy| copy.awaited)
            .map(|copy| of(&copy.positions))
            .min()
            .flatten()
    }

    /// Last operation that, with all before it, counts on a copy with these positions.
    fn counts(&self, positions: Positions) -> Option<u64> {
        let Positions { written, persisted } = positions;
        let unsynced = self.needs_sync.iter().find(|(_, end)| Some(*end) > persisted);
        match unsynced {
            Some((start, _)) => {
                let first = persisted.map_or(*start, |persisted| (*start).max(persisted + 1));
                written.min(first.checked_sub(1))
            }
            None => written,
        }
    }

    /// Last operation that counts on every awaited copy.
    fn reach(&mut self) -> Option<u64> {
        let (written, persisted) = (self.least(|p| p.written), self.least(|p| p.persisted));
        while self
            .needs_sync
            .front()
            .is_some_and(|(_, end)| Some(*end) <= persisted)
        {
            self.needs_sync.pop_front();
        }
        match self.needs_sync.front() {
            Some((start, _)) => {
                let first_unsynced = persisted.map_or(*start, |persisted| (*start).max(persisted + 1));
                written.min(first_unsynced.checked_sub(1))
            }
            None => written,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Tracker {
    inner: Mutex<Inner>,
    checkpoint: watch::Sender<Option<u64>>,
}

impl Tracker {
    pub fn new(checkpoint: Option<u64>) -> Self {
        Self {
            inner: Mutex::default(),
            checkpoint: watch::Sender::new(checkpoint),
        }
    }

    pub fn checkpoint(&self) -> Option<u64> {
        *self.checkpoint.borrow()
    }

    pub fn watch(&self) -> watch::Receiver<Option<u64>> {
        self.checkpoint.subscribe()
    }

    /// Raises the checkpoint that a replica knows.
    pub fn raise(&self, to: Option<u64>) -> bool {
        self.checkpoint.send_if_modified(|known| {
            let higher = to > *known;
            if higher {
                *known = to;
            }
            higher
        })
    }

    /// An activation begins: `in_sync` are awaited, nothing is known of them but of `own`.
    pub fn activate(
        &self,
        in_sync: &BTreeSet<AllocationId>,
        own: AllocationId,
        positions: Positions,
        unsynced: Option<(u64, u64)>,
    ) {
        let mut inner = self.inner.lock();
        *inner = Inner::default();
        for allocation in in_sync.iter().copied().chain([own]) {
            inner.copies.insert(
                allocation,
                Tracked {
                    positions: Positions::default(),
                    awaited: true,
                },
            );
        }
        inner.copies.insert(
            own,
            Tracked {
                positions,
                awaited: true,
            },
        );
        inner.needs_sync.extend(unsynced);
        self.advance(&mut inner);
    }

    /// The activation is over.
    pub fn stop(&self) {
        *self.inner.lock() = Inner::default();
    }

    /// Operations were given their seq_no.
    pub fn assigned(&self, first: u64, last: u64, sync: bool) {
        let mut inner = self.inner.lock();
        if !sync {
            inner.last_async = Some(last);
            return;
        }
        match inner.needs_sync.back_mut() {
            Some((_, end)) if *end + 1 == first => *end = last,
            _ => inner.needs_sync.push_back((first, last)),
        }
    }

    /// A copy reported. False where it is not tracked.
    pub fn update(&self, allocation: AllocationId, positions: Positions) -> bool {
        let mut inner = self.inner.lock();
        let Some(copy) = inner.copies.get_mut(&allocation) else {
            return false;
        };
        copy.positions = Positions {
            written: copy.positions.written.max(positions.written),
            persisted: copy.positions.persisted.max(positions.persisted),
        };
        self.advance(&mut inner);
        true
    }

    /// Follows a copy that is not awaited yet.
    pub fn track(&self, allocation: AllocationId) {
        self.inner.lock().copies.entry(allocation).or_default();
    }

    /// From now on acknowledgements wait for this copy. False where it is behind the checkpoint, or not tracked: then nothing
    /// changes.
    pub fn await_copy(&self, allocation: AllocationId) -> bool {
        let mut inner = self.inner.lock();
        let checkpoint = self.checkpoint();
        let Some(copy) = inner.copies.get_mut(&allocation) else {
            return false;
        };
        // What the other copies have persisted this one has to have persisted too.
        if copy.positions.persisted < checkpoint {
            return false;
        }
        copy.awaited = true;
        true
    }

    /// What the cluster state says: copies that are not listed go, in-sync ones are awaited. A copy that is listed and not in sync
    /// stays as it is.
    pub fn listed(
        &self,
        listed: &BTreeSet<AllocationId>,
        in_sync: &BTreeSet<AllocationId>,
        own: AllocationId,
    ) {
        let mut inner = self.inner.lock();
        if inner.copies.is_empty() {
            return;
        }
        inner
            .copies
            .retain(|allocation, _| listed.contains(allocation) || *allocation == own);
        for allocation in in_sync {
            inner.copies.entry(*allocation).or_default().awaited = true;
        }
        self.advance(&mut inner);
    }

    /// A copy is followed no more.
    pub fn forget(&self, allocation: AllocationId) {
        let mut inner = self.inner.lock();
        inner.copies.remove(&allocation);
        self.advance(&mut inner);
    }

    /// Awaited copies.
    pub fn awaited(&self) -> BTreeSet<AllocationId> {
        self.inner
            .lock()
            .copies
            .iter()
            .filter(|(_, copy)| copy.awaited)
            .map(|(id, _)| *id)
            .collect()
    }

    /// Last operation that counts on a copy: the position that acknowledgements wait for.
    pub fn counts_on(&self, allocation: AllocationId) -> Option<u64> {
        let inner = self.inner.lock();
        let positions = inner.copies.get(&allocation)?.positions;
        inner.counts(positions)
    }

    /// True where the global checkpoint cannot move before this copy does.
    pub fn holds_up(&self, allocation: AllocationId) -> bool {
        let inner = self.inner.lock();
        inner
            .copies
            .get(&allocation)
            .is_some_and(|copy| copy.awaited && inner.counts(copy.positions) <= self.checkpoint())
    }

    /// Positions of a copy.
    pub fn positions(&self, allocation: AllocationId) -> Option<Positions> {
        self.inner
            .lock()
            .copies
            .get(&allocation)
            .map(|copy| copy.positions)
    }

    /// True once every awaited copy has persisted the last operation of `async` mode.
    pub fn async_is_synced(&self) -> bool {
        let inner = self.inner.lock();
        inner.least(|p| p.persisted) >= inner.last_async
    }

    fn advance(&self, inner: &mut Inner) {
        let reach = inner.reach();
        self.raise(reach);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use proptest::prelude::*;
    use uuid::Uuid;

    fn id(number: u128) -> AllocationId {
        Uuid::from_u128(number)
    }

    fn at(written: u64, persisted: Option<u64>) -> Positions {
        Positions {
            written: Some(written),
            persisted,
        }
    }

    #[test]
    fn a_request_write_waits_for_stable_storage_and_an_async_one_for_the_kernel() {
        let tracker = Tracker::new(None);
        tracker.activate(&[id(1), id(2)].into(), id(1), Positions::default(), None);
        tracker.assigned(0, 4, false);
        tracker.assigned(5, 9, true);
        tracker.update(id(1), at(9, Some(9)));
        assert_eq!(tracker.checkpoint(), None, "the other copy has nothing");
        tracker.update(id(2), at(9, Some(1)));
        assert_eq!(tracker.checkpoint(), Some(4), "async ones are written");
        assert!(!tracker.async_is_synced());
        tracker.update(id(2), at(9, Some(7)));
        assert_eq!(tracker.checkpoint(), Some(7));
        assert!(tracker.async_is_synced());
        tracker.assigned(10, 10, false);
        tracker.update(id(1), at(10, Some(9)));
        tracker.update(id(2), at(10, Some(9)));
        assert_eq!(tracker.checkpoint(), Some(10));
    }

    #[test]
    fn only_the_copy_that_is_behind_holds_up_the_checkpoint() {
        let tracker = Tracker::new(None);
        tracker.activate(&[id(1), id(2), id(3)].into(), id(1), Positions::default(), None);
        tracker.assigned(0, 4, true);
        for copy in 1..=2 {
            tracker.update(id(copy), at(4, Some(4)));
        }
        tracker.update(id(3), at(4, Some(1)));
        assert_eq!(tracker.counts_on(id(2)), Some(4));
        assert_eq!(
            tracker.counts_on(id(3)),
            Some(1),
            "written does not count in request mode"
        );
        assert!(tracker.holds_up(id(3)));
        assert!(!tracker.holds_up(id(2)));
        assert!(!tracker.holds_up(id(9)), "nobody waits for it");
    }

    #[test]
    fn a_copy_is_awaited_only_once_it_is_not_behind() {
        let tracker = Tracker::new(None);
        tracker.activate(&[id(1)].into(), id(1), at(5, Some(5)), None);
        assert_eq!(tracker.checkpoint(), Some(5));
        tracker.track(id(2));
        tracker.update(id(2), at(4, Some(4)));
        assert!(!tracker.await_copy(id(2)));
        tracker.update(id(2), at(5, Some(5)));
        assert!(tracker.await_copy(id(2)));
        tracker.assigned(6, 6, true);
        tracker.update(id(1), at(6, Some(6)));
        assert_eq!(tracker.checkpoint(), Some(5), "it is awaited");
        tracker.listed(&[id(1)].into(), &[id(1)].into(), id(1));
        assert_eq!(tracker.checkpoint(), Some(6), "it is gone");
    }

    proptest! {
        /// `AckedIsDurable`: no order of reports lets the checkpoint pass an operation that does not count everywhere.
        #[test]
        fn the_checkpoint_passes_only_what_counts_on_every_awaited_copy(
            modes in proptest::collection::vec(any::<bool>(), 1..20),
            reports in proptest::collection::vec((0_usize..3, 0_u64..20, 0_u64..20), 1..60),
        ) {
            let tracker = Tracker::new(None);
            let copies = [id(1), id(2), id(3)];
            tracker.activate(&copies.into(), id(1), Positions::default(), None);
            for (seq_no, sync) in modes.iter().enumerate() {
                tracker.assigned(seq_no as u64, seq_no as u64, *sync);
            }
            let last = modes.len() as u64 - 1;
            let mut known = [Positions::default(); 3];
            for (copy, a, b) in reports {
                let written = a.max(b).min(last);
                let persisted = a.min(b).min(last);
                let positions = at(written, persisted.checked_sub(1));
                tracker.update(copies[copy], positions);
                known[copy].written = known[copy].written.max(positions.written);
                known[copy].persisted = known[copy].persisted.max(positions.persisted);
                let mut expected = None;
                for (seq_no, sync) in modes.iter().enumerate() {
                    let counts = known.iter().all(|p| if *sync { p.persisted } else { p.written } >= Some(seq_no as u64));
                    if !counts { break }
                    expected = Some(seq_no as u64);
                }
                prop_assert_eq!(tracker.checkpoint(), expected);
            }
        }
    }
}
