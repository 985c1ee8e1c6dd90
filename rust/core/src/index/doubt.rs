//! Blocks that may be gone unnoticed, since a message of their engine is lost.
//!
//! They count as placements do: moved to the speculative lane in the order of their use, with a time to live, and
//! evicted from there once that lane and the confirmed blocks exceed the worker's capacity. O(blocks that the worker held
//! in device memory).

use super::BlockIndex;
use super::listing::Listing;
use crate::epoch_lru::lanes::lane_of;
use crate::error::Result;
use crate::ids::{Medium, Millis, WorkerId};

impl BlockIndex {
    /// Makes the blocks in the worker's device memory speculative until `expires` (`None`: until they are evicted) and
    /// drops those in other media, which placements do not describe, and the marks on all of them. Returns the blocks
    /// that left device memory.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn doubt(&mut self, worker: WorkerId, expires: Option<Millis>) -> Result<u64> {
        self.worker(worker)?;
        for medium in [Medium::Cpu, Medium::Disk] {
            self.held.clear_lane(lane_of(worker.slot, medium));
        }
        let doubted = self.held.lanes.count(worker.slot, Medium::Gpu);
        let mut chains = Vec::new();
        Listing::of(worker, Medium::Gpu).go_on(self, u64::MAX, usize::MAX, |before, blocks| {
            chains.push((before, blocks.to_vec()));
        });
        for (before, blocks) in &chains {
            let insert = self.insert(worker, Medium::Speculative, expires)?;
            insert.chain(*before, blocks);
        }
        self.held.clear_lane(lane_of(worker.slot, Medium::Gpu));
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
