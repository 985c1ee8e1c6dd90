//! Everything that takes coverage away: eviction, deadlines, removal, what failed.
//!
//! All of it goes leaf by leaf, the one used longest ago first, and may stop after any of them.

use super::unit::{Key, Unit};
use super::{RadixTree, STEPS, Trust};
use crate::error::Result;
use crate::forest::NONE;
use crate::ids::WorkerId;

/// How far an eviction in parts got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Units that went in this part.
    pub units: u64,
    /// Whether nothing is left to do.
    pub done: bool,
}

/// Lets the allocator put away what a part freed. glibc leaves that to the next large request: after 100,000 leaves that one
/// took 5 ms; after every part it takes 0.03.
fn put_away() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(1 << 12)));
}

impl<U: Unit> RadixTree<U> {
    /// Evicts until the worker in `slot` lost `units`, what others said first; stops when `steps` are used up.
    fn evict_slot(&mut self, slot: u32, units: u64, steps: &mut u32) -> u64 {
        let mut gone = 0;
        for trust in Trust::LEAST_FIRST {
            if self.held.lanes.count(slot, trust.medium()) == 0 {
                continue;
            }
            let lane = trust.lane(slot);
            while gone < units && *steps > 0 {
                let Some(more) = self.held.evict_step(lane, units - gone) else {
                    break;
                };
                *steps -= 1;
                gone += more;
            }
        }
        gone
    }

    /// Evicts until `units` pairs are gone, of whatever worker; stops when `steps` are used up.
    fn evict_any(&mut self, units: u64, steps: &mut u32) -> u64 {
        let mut gone = 0;
        while gone < units && *steps > 0 {
            let oldest = self.ages.oldest(&mut self.held.lanes, &self.held.records);
            let Some((_, lane)) = oldest else {
                break;
            };
            gone += self.held.evict_step(lane, units - gone).unwrap_or(0);
            *steps -= 1;
        }
        gone
    }

    fn over_capacity(&self, slot: u32) -> u64 {
        let worker = self.held.lanes.worker(slot);
        worker.map_or(0, |w| w.distinct.saturating_sub(w.capacity.into()))
    }

    fn over_budget(&self) -> u64 {
        self.held.total.saturating_sub(self.held.shape.max_units)
    }

    /// Brings a worker down to its capacity, as far as the steps go.
    pub(super) fn pay(&mut self, slot: u32, steps: &mut u32) {
        let excess = self.over_capacity(slot);
        if excess > 0 {
            self.stats.evicted += self.evict_slot(slot, excess, steps);
        }
        if self.over_capacity(slot) > 0 && !self.held.shape.owing.contains(&slot) {
            self.held.shape.owing.push(slot);
        }
    }

    /// Brings the tree down to its budget, as far as the steps go.
    pub(super) fn pay_total(&mut self, steps: &mut u32) {
        let excess = self.over_budget();
        if excess > 0 {
            self.stats.evicted += self.evict_any(excess, steps);
        }
    }

    /// Whether an insert had to leave evictions over.
    #[must_use]
    pub fn is_owing(&self) -> bool {
        !self.held.shape.owing.is_empty() || self.over_budget() > 0
    }

    /// Evicts what an insert left over, [`STEPS`] leaves at most; returns whether all is settled.
    pub fn settle(&mut self) -> bool {
        if !self.is_owing() {
            return true;
        }
        let mut steps = STEPS;
        for slot in std::mem::take(&mut self.held.shape.owing) {
            self.pay(slot, &mut steps);
        }
        self.pay_total(&mut steps);
        self.held.finish();
        put_away();
        !self.is_owing()
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
        let mut steps = steps;
        let units = self.evict_slot(worker.slot, excess, &mut steps);
        Ok(self.part(units, units >= excess))
    }

    /// Evicts least recently used leaves of all workers until at most `max_units` (worker, unit) pairs are held, as far as
    /// `steps` leaves go.
    pub fn evict_part(&mut self, max_units: u64, steps: u32) -> Progress {
        let excess = self.held.total.saturating_sub(max_units);
        let mut steps = steps;
        let units = self.evict_any(excess, &mut steps);
        self.part(units, units >= excess)
    }

    /// Evicts whole edges of the worker, those used longest ago first and all that were used last at the same time
    /// together, until at least `min_units` are gone, as far as `steps` go. What is left to do is done by another call for
    /// the units that are missing, at least 1 while this is not done.
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
        let (mut steps, mut units, mut done) = (steps, 0, min_units == 0);
        let lanes = Trust::LEAST_FIRST.map(|trust| (trust, trust.lane(worker.slot)));
        for (trust, lane) in lanes {
            if self.held.lanes.count(worker.slot, trust.medium()) == 0 {
                continue;
            }
            let mut group = None;
            while !done {
                let oldest = self.held.lanes[lane].oldest;
                if oldest == NONE {
                    break;
                }
                let time = self.held.records[oldest].epoch;
                if units >= min_units && group != Some(time) {
                    done = true;
                    break;
                }
                if steps == 0 {
                    return Ok(self.part(units, false));
                }
                group = Some(time);
                steps -= 1;
                units += self.held.evict_step(lane, u64::MAX).unwrap_or(0);
            }
        }
        Ok(self.part(units, true))
    }

    fn part(&mut self, units: u64, done: bool) -> Progress {
        self.stats.evicted += units;
        self.held.finish();
        put_away();
        Progress { units, done }
    }

    /// Takes a placement back: what this process saw of `key` beyond its first `keep` units, as far as nothing else that
    /// the worker holds hangs on it. Returns the units dropped.
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
        let spot = self.walk(key, self.whole(key));
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
