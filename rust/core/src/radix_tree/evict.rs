//! Everything that takes coverage away: eviction, deadlines, removal, failed placements.
//!
//! All of it removes leaf by leaf, the least recently used first, and may stop after any of them.

use super::unit::{Key, Unit};
use super::{RadixTree, Trust};
use crate::error::Result;
use crate::ids::WorkerId;
use crate::prefix_tree::{Held, NONE};

/// Progress of an eviction in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Units evicted in this part.
    pub units: u64,
    /// Whether nothing is left to do.
    pub done: bool,
}

impl Progress {
    /// There is nothing to do.
    pub(super) const NONE: Self = Self {
        units: 0,
        done: true,
    };
}

/// Lets the allocator merge the memory that a part freed. glibc leaves that to the next large request: after 100,000
/// leaves that one took 5 ms; after every part it takes 0.03.
fn put_away() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(1 << 12)));
}

/// An eviction in steps of one leaf.
pub(super) struct Eviction<'a, U: Unit> {
    tree: &'a mut RadixTree<U>,
    /// Steps left.
    steps: u32,
}

impl<U: Unit> Eviction<'_, U> {
    /// Evicts until the worker in `slot` lost `units`, remote state first; stops when the steps are used up.
    fn of_slot(&mut self, slot: u32, units: u64) -> u64 {
        let mut gone = 0;
        for trust in Trust::LEAST_FIRST {
            let left = units.saturating_sub(gone);
            gone += self.tree.evict(trust.lane(slot), left, &mut self.steps);
        }
        gone
    }

    /// Evicts until `units` pairs are gone, of any worker; stops when the steps are used up.
    fn of_any(&mut self, units: u64) -> u64 {
        let mut gone = 0;
        while gone < units && self.steps > 0 {
            let Some((_, lane)) = self.tree.oldest_lane() else {
                break;
            };
            // One step, after which another lane may have the oldest leaf.
            gone += self.tree.evict(lane, units - gone, &mut { 1 });
            self.steps -= 1;
        }
        gone
    }

    /// Brings a worker down to its capacity, and the tree to its budget.
    pub(super) fn pay(&mut self, slot: u32) {
        self.of_slot(slot, self.tree.held.lanes.excess(slot));
        let Held { total, shape, .. } = &self.tree.held;
        self.of_any(total.saturating_sub(shape.max_units));
    }

    /// Last use of the next leaf to evict in a lane.
    fn time(&self, lane: u32) -> Option<u64> {
        let Held { lanes, records, .. } = &self.tree.held;
        lanes.oldest(lane).map(|record| records[record].epoch)
    }

    fn end(self, units: u64, done: bool) -> Progress {
        self.tree.held.finish();
        put_away();
        Progress { units, done }
    }
}

impl<U: Unit> RadixTree<U> {
    pub(super) fn evicting(&mut self, steps: u32) -> Eviction<'_, U> {
        Eviction { tree: self, steps }
    }

    /// Evicts least recently used leaves until the worker holds at most `max_units`.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn evict_worker(&mut self, worker: WorkerId, max_units: u64) -> Result<u64> {
        self.evict_worker_part(worker, max_units, u32::MAX)
            .map(|part| part.units)
    }

    /// [`Self::evict_worker`] as far as `steps` leaves go.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn evict_worker_part(
        &mut self,
        worker: WorkerId,
        max_units: u64,
        steps: u32,
    ) -> Result<Progress> {
        let excess = self.worker(worker)?.distinct.saturating_sub(max_units);
        let mut evict = self.evicting(steps);
        let units = evict.of_slot(worker.slot, excess);
        Ok(evict.end(units, units >= excess))
    }

    /// Evicts least recently used leaves of all workers until at most `max_units` (worker, unit) pairs are held, as far as
    /// `steps` leaves go.
    pub fn evict_part(&mut self, max_units: u64, steps: u32) -> Progress {
        let excess = self.held.total.saturating_sub(max_units);
        let mut evict = self.evicting(steps);
        let units = evict.of_any(excess);
        evict.end(units, units >= excess)
    }

    /// Evicts whole edges of the worker, those used longest ago first and all that were used last at the same time
    /// together, until at least `min_units` are gone, as far as `steps` go. The rest takes another call for the missing
    /// units, at least 1 while this is not done.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn evict_oldest_uses(
        &mut self,
        worker: WorkerId,
        min_units: u64,
        steps: u32,
    ) -> Result<Progress> {
        self.worker(worker)?;
        let mut evict = self.evicting(steps);
        let mut units = 0;
        for trust in Trust::LEAST_FIRST {
            let lane = trust.lane(worker.slot);
            let mut group = None;
            while let Some(time) = evict.time(lane) {
                if units >= min_units && group != Some(time) {
                    return Ok(evict.end(units, true));
                }
                if evict.steps == 0 {
                    return Ok(evict.end(units, false));
                }
                group = Some(time);
                evict.steps -= 1;
                units += evict.tree.evict(lane, u64::MAX, &mut { 1 });
            }
        }
        Ok(evict.end(units, true))
    }

    /// Takes a placement back: the local state of `key` beyond its first `keep` units, unless other holdings of the
    /// worker continue it. Returns the units dropped.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn truncate<K: Key<U> + ?Sized>(
        &mut self,
        worker: WorkerId,
        key: &K,
        keep: u32,
    ) -> Result<u64> {
        let before = self.worker(worker)?.distinct;
        let keep = keep.next_multiple_of(self.held.shape.children.page as u32);
        let lane = Trust::Local.lane(worker.slot);
        let Held { shape, nodes, .. } = &self.held;
        let children = &shape.children;
        let spot = children.walk(nodes, key, children.whole(key));
        let (mut node, mut upto) = (spot.node, spot.upto);
        while node != NONE {
            let Some(entry) = self.held.nodes.entry(node, lane) else {
                node = self.held.nodes[node].parent;
                upto = u32::MAX;
                continue;
            };
            let start = self.held.nodes[node].start;
            let leaf = self.held.records[entry.record].kids == 0 && entry.count <= upto;
            if !leaf || start + entry.count <= keep {
                break;
            }
            if start < keep {
                self.held.shorten(node, lane, keep - start);
                break;
            }
            node = self.held.nodes[node].parent;
            upto = u32::MAX;
            self.held.reap(entry.record);
        }
        let dropped = before - self.worker(worker)?.distinct;
        self.held.finish();
        Ok(dropped)
    }
}
