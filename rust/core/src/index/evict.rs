//! Everything that takes blocks away: eviction, single removals, clear.

use super::shape::Hashed;
use super::{BlockIndex, NONE};
use crate::epoch_lru::lanes::{MEDIA, lane_of};
use crate::error::Result;
use crate::ids::{Medium, SequenceHash, WorkerId};
use crate::prefix_tree::Held;

impl BlockIndex {
    /// Removes blocks, from one medium or from all. A block that leaves device memory is no longer on its way there
    /// either, which is not counted. Returns the blocks that left a medium; a block the worker does not hold changes
    /// nothing and is counted in the statistics.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn remove(
        &mut self,
        worker: WorkerId,
        hashes: &[SequenceHash],
        medium: Option<Medium>,
    ) -> Result<u32> {
        self.worker(worker)?;
        let mut removed = 0;
        // Deepest first, for taking leaves away needs no split: a path listed from its root is removed from its end.
        let mut end = hashes.len();
        while end > 0 {
            let Some(block) = self.chains().find(hashes[end - 1]) else {
                self.stats.unknown_removals += 1;
                end -= 1;
                continue;
            };
            let (last, blocks) = self.chains().stretch(&hashes[..end], block);
            removed += self.remove_stretch(worker.slot, last, blocks, medium);
            end -= blocks as usize;
        }
        self.held.finish();
        Ok(removed)
    }

    /// Removes the `blocks` of one run that end with `last`.
    fn remove_stretch(&mut self, slot: u32, last: u32, blocks: u32, medium: Option<Medium>) -> u32 {
        let run = self.chains().run(last);
        let at = last + 1 - blocks - run.own.base;
        let mut held = [0; MEDIA];
        for m in Medium::ALL {
            let asked = medium.is_none_or(|wanted| {
                wanted == m || (wanted == Medium::Gpu && m == Medium::Speculative)
            });
            if asked && self.held.lanes.count(slot, m) > 0 {
                let entry = run.holders.get(lane_of(slot, m));
                held[m as usize] = entry.map_or(0, |e| e.count.saturating_sub(at).min(blocks));
            }
        }
        let known = held.into_iter().max().unwrap_or(0);
        self.stats.unknown_removals += u64::from(blocks - known);
        let mut removed = 0;
        for m in Medium::ALL {
            let (lane, count) = (lane_of(slot, m), held[m as usize]);
            self.held.withdraw(lane, last + 1 - blocks, count);
            if m != Medium::Speculative || medium == Some(m) {
                removed += count;
            }
        }
        removed
    }

    /// Evicts least recently used leaves until the worker holds at most `max_blocks`: of each medium, or of each on the device
    /// if it may hold more elsewhere.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn evict_worker(&mut self, worker: WorkerId, max_blocks: u64) -> Result<u64> {
        self.worker(worker)?;
        let mut evicted = 0;
        for medium in Medium::ALL {
            let count = self.held.lanes.count(worker.slot, medium);
            let max_blocks = self.held.shape.room(max_blocks, medium);
            if count > max_blocks {
                let lane = lane_of(worker.slot, medium);
                evicted += self.evict(lane, count - max_blocks, &mut { u32::MAX });
            }
        }
        self.held.finish();
        Ok(evicted)
    }
}

impl Held<Hashed> {
    /// Takes `blocks` from `first` on from a lane that holds them all; their ids are contiguous.
    pub(super) fn withdraw(&mut self, lane: u32, first: u32, blocks: u32) {
        let mut end = first + blocks;
        while end > first {
            let mut run = self.shape.blocks.run(end - 1);
            let r = &self.nodes[run];
            let (base, upto) = (r.own.base, end - r.own.base);
            let at = first.saturating_sub(base);
            end = base + at;
            let Some(entry) = self.nodes.entry(run, lane) else {
                return;
            };
            if self.records[entry.record].kids == 0 && entry.count == upto {
                if at > 0 {
                    self.shorten(run, lane, at);
                } else {
                    self.reap(entry.record);
                }
                continue;
            }
            // A hole: the blocks become a run of their own that the lane holds as a ghost.
            if upto < self.nodes[run].len {
                run = self.split(run, upto);
            }
            if at > 0 {
                self.split(run, at);
            }
            self.set_count(run, lane, 0);
            let above = self.nodes[run].parent;
            self.merges.push(run);
            if above != NONE {
                self.merges.push(above);
            }
        }
    }
}
