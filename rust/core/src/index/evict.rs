//! Everything that takes blocks away: eviction, single removals, clear.

use super::{BlockIndex, NONE};
use crate::error::Result;
use crate::ids::{Medium, SequenceHash, WorkerId};

impl BlockIndex {
    /// Evicts up to `blocks` least recently used leaves of a lane, whole stretches at a time; returns how many went.
    pub(super) fn evict(&mut self, lane: u32, blocks: u64) -> u64 {
        let mut left = blocks;
        while left > 0 {
            let record = self.lanes[lane].oldest;
            if record == NONE {
                break;
            }
            if self.records[record].kids > 0 {
                // A newer descendant stands for it, and may now share its record.
                self.records.unlink(&mut self.lanes[lane], record);
                self.merges.push(self.records[record].run);
                continue;
            }
            let run = self.records[record].run;
            let count = self.entry(run, lane).map_or(0, |e| e.count);
            if u64::from(count) > left {
                self.shorten(run, lane, count - left as u32);
                left = 0;
            } else {
                left -= u64::from(count);
                self.set_count(run, lane, 0);
                self.reap(record);
            }
        }
        let evicted = blocks - left;
        self.stats.evicted += evicted;
        evicted
    }

    /// Takes out a listed record that covers nothing and has no kids, and every ghost above it that now has none.
    pub(super) fn reap(&mut self, record: u32) {
        let lane = self.records[record].lane;
        let mut record = record;
        loop {
            let parent = self.records.pass_to_parent(&mut self.lanes[lane], record);
            self.remove_entry(record);
            if parent == NONE {
                return;
            }
            self.arm(parent);
            let above = &self.records[parent];
            if above.kids > 0 || self.entry(above.run, lane).is_some_and(|e| e.count > 0) {
                return;
            }
            record = parent;
        }
    }

    /// Removes single blocks, from one medium or from all. Returns the blocks that left a medium; an unknown block
    /// changes nothing and is counted in the statistics.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn remove(
        &mut self,
        worker: WorkerId,
        hashes: &[SequenceHash],
        medium: Option<Medium>,
    ) -> Result<u32> {
        let lanes = self.worker(worker)?.lanes;
        let mut removed = 0;
        // Deepest first: engines list a path from its root, and taking leaves away needs no split.
        for &hash in hashes.iter().rev() {
            let before = removed;
            for m in Medium::ALL {
                let lane = lanes[m as usize];
                if lane != NONE && medium.is_none_or(|wanted| wanted == m) {
                    removed += u32::from(self.remove_block(lane, hash));
                }
            }
            self.stats.unknown_removals += u64::from(removed == before);
        }
        self.finish();
        Ok(removed)
    }

    fn remove_block(&mut self, lane: u32, hash: SequenceHash) -> bool {
        let Some(block) = self.table.find(hash, &self.blocks) else {
            return false;
        };
        let mut run = self.blocks.run(block);
        let at = block - self.runs[run].base;
        let Some(entry) = self.entry(run, lane).filter(|e| e.count > at) else {
            return false;
        };
        if self.records[entry.record].kids == 0 && entry.count == at + 1 {
            if at > 0 {
                self.shorten(run, lane, at);
            } else {
                self.set_count(run, lane, 0);
                self.reap(entry.record);
            }
            return true;
        }
        // A hole: the block becomes a run of its own that the lane holds as a ghost.
        if at + 1 < self.runs[run].len {
            run = self.split(run, at + 1);
        }
        if at > 0 {
            self.split(run, at);
        }
        self.set_count(run, lane, 0);
        true
    }

    /// Drops every block of the worker, which stays registered; returns the distinct blocks it held.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn clear(&mut self, worker: WorkerId) -> Result<u64> {
        let w = self.worker(worker)?;
        let (dropped, lanes) = (w.distinct, w.lanes());
        for lane in lanes {
            self.clear_lane(lane);
        }
        self.finish();
        Ok(dropped)
    }

    /// Every record is listed or an ancestor of a listed one, so climbing from the listed ones meets all.
    fn clear_lane(&mut self, lane: u32) {
        while self.lanes[lane].oldest != NONE {
            let mut record = self.lanes[lane].oldest;
            if self.records[record].kids > 0 {
                self.records.unlink(&mut self.lanes[lane], record);
                continue;
            }
            loop {
                self.set_count(self.records[record].run, lane, 0);
                if self.records[record].listed() {
                    self.records.unlink(&mut self.lanes[lane], record);
                }
                let parent = self.records[record].parent;
                self.remove_entry(record);
                if parent == NONE {
                    break;
                }
                self.records[parent].kids -= 1;
                if self.records[parent].kids > 0 {
                    break;
                }
                record = parent;
            }
        }
    }

    /// Evicts least recently used leaves until the worker holds at most `max_blocks` in every medium.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn evict_worker(&mut self, worker: WorkerId, max_blocks: u64) -> Result<u64> {
        let lanes = self.worker(worker)?.lanes();
        let mut evicted = 0;
        for lane in lanes {
            let excess = self.lanes[lane].count.saturating_sub(max_blocks);
            evicted += self.evict(lane, excess);
        }
        self.finish();
        Ok(evicted)
    }
}
