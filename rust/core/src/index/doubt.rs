//! Blocks that may be gone unnoticed, since a message of their engine is lost.
//!
//! They count as placements do: moved to the speculative lane in the order of their use, with a time to live, and
//! evicted from there once that lane and the confirmed blocks exceed the worker's capacity. O(runs that the worker held
//! in device memory).

use std::collections::HashSet;

use super::shape::Hashed;
use super::{BlockIndex, NONE};
use crate::epoch_lru::lanes::lane_of;
use crate::error::Result;
use crate::ids::{Medium, Millis, WorkerId};
use crate::prefix_tree::Held;

/// Blocks of one path that a lane holds without a hole.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    /// Id of the last of them.
    last: u32,
    /// Depth of the first.
    from: u32,
}

impl Stretch {
    /// Everything a lane holds, least recently used paths first, of each path the blocks nearest to the root first.
    fn all(held: &Held<Hashed>, lane: u32) -> Vec<Self> {
        let mut seen = HashSet::new();
        let mut all = Vec::new();
        let mut listed = held.lanes[lane].oldest;
        while listed != NONE {
            let first = all.len();
            let mut below: Option<Self> = None;
            let mut record = listed;
            while record != NONE && seen.insert(record) {
                let run = &held.nodes[held.records[record].node];
                let count = run.holders.get(lane).map_or(0, |e| e.count);
                let whole = count == run.len;
                match &mut below {
                    Some(stretch) if whole => stretch.from = run.start,
                    _ => {
                        all.extend(below.take());
                        below = (count > 0).then(|| Self {
                            last: run.own.base + count - 1,
                            from: run.start,
                        });
                    }
                }
                record = held.records[record].parent;
            }
            all.extend(below);
            all[first..].reverse();
            listed = held.records[listed].next;
        }
        all
    }
}

impl BlockIndex {
    /// Makes the blocks in the worker's device memory speculative until `expires` (`None`: until they are evicted) and
    /// drops those in other media, which placements do not describe. Marks in device memory become speculative too.
    /// Returns the blocks that left device memory.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn doubt(&mut self, worker: WorkerId, expires: Option<Millis>) -> Result<u64> {
        self.worker(worker)?;
        for medium in [Medium::Cpu, Medium::Disk] {
            self.held.clear_lane(lane_of(worker.slot, medium));
        }
        let device = lane_of(worker.slot, Medium::Gpu);
        let doubted = self.held.lanes.count(worker.slot, Medium::Gpu);
        if doubted > 0 {
            let stretches = Stretch::all(&self.held, device);
            let mut insert = self.insert(worker, Medium::Speculative, expires)?;
            for &Stretch { last, from } in &stretches {
                insert.add(last, &[], from);
            }
            if self.held.shape.marks.count(worker.slot) > 0 {
                for &Stretch { last, from } in &stretches {
                    self.held.doubt_marks(worker.slot, last, from);
                }
            }
            self.held.clear_lane(device);
        }
        self.held.finish();
        self.fit_speculative(worker)?;
        Ok(doubted)
    }

    /// Evicts speculative blocks until the worker holds no more of them, with those in its device memory, than its
    /// capacity. Returns how many went.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn fit_speculative(&mut self, worker: WorkerId) -> Result<u64> {
        let capacity = u64::from(self.worker(worker)?.capacity);
        let count = |medium| self.held.lanes.count(worker.slot, medium);
        let speculative = count(Medium::Speculative);
        let excess = (count(Medium::Gpu) + speculative).saturating_sub(capacity);
        if excess == 0 || speculative == 0 {
            return Ok(0);
        }
        let lane = lane_of(worker.slot, Medium::Speculative);
        let evicted = self.evict(lane, excess.min(speculative), &mut { u32::MAX });
        self.held.finish();
        Ok(evicted)
    }
}
