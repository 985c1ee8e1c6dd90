//! Everything that takes blocks away: eviction, single removals, clear.

use super::{BlockIndex, NONE};
use crate::error::Result;
use crate::forest::lanes::{MEDIA, lane_of};
use crate::ids::{Medium, SequenceHash, WorkerId};

impl BlockIndex {
    /// Evicts up to `blocks` least recently used leaves of a lane, whole stretches at a time; returns how many went.
    pub(super) fn evict(&mut self, lane: u32, blocks: u64) -> u64 {
        let mut left = blocks;
        while left > 0 {
            let Some(gone) = self.held.evict_step(lane, left) else {
                break;
            };
            left -= gone;
        }
        let evicted = blocks - left;
        self.stats.evicted += evicted;
        evicted
    }

    /// Removes blocks, from one medium or from all. What leaves device memory is no longer on its way there either, which
    /// is not counted. Returns the blocks that left a medium; a block the worker does not hold changes nothing and is
    /// counted in the statistics.
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
        // Deepest first, for taking leaves away needs no split: a path told from its root is taken from its end.
        let mut end = hashes.len();
        while end > 0 {
            let Some(block) = self
                .held
                .shape
                .table
                .find(hashes[end - 1], &self.held.shape.blocks)
            else {
                self.stats.unknown_removals += 1;
                end -= 1;
                continue;
            };
            let (last, blocks) = self.stretch(&hashes[..end], block);
            removed += self.remove_stretch(worker.slot, last, blocks, medium);
            end -= blocks as usize;
        }
        self.held.finish();
        Ok(removed)
    }

    /// How many of the last of `hashes`, of which the very last is `block`, are blocks of one run beside each other, told
    /// from its root or towards it as an engine evicts; and the deepest of them.
    fn stretch(&self, hashes: &[SequenceHash], block: u32) -> (u32, u32) {
        let run = &self.held.nodes[self.held.shape.blocks.run(block)];
        let told = |most: u32| hashes.iter().rev().take(most as usize);
        let above = block - run.own.base + 1;
        let stored = self
            .held
            .shape
            .blocks
            .hashes(run.own.base, above)
            .iter()
            .rev();
        let up = stored.zip(told(above)).take_while(|(a, b)| **a == b.0);
        let up = up.count() as u32;
        if up > 1 {
            return (block, up);
        }
        let below = run.own.base + run.len - block;
        let stored = self.held.shape.blocks.hashes(block, below).iter();
        let down = stored.zip(told(below)).take_while(|(a, b)| **a == b.0);
        let down = down.count() as u32;
        (block + down - 1, down)
    }

    /// Removes the `blocks` of one run that end with `last`.
    fn remove_stretch(&mut self, slot: u32, last: u32, blocks: u32, medium: Option<Medium>) -> u32 {
        let run = &self.held.nodes[self.held.shape.blocks.run(last)];
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
            let blocks_held = held[m as usize];
            self.withdraw(lane_of(slot, m), last + 1 - blocks, blocks_held);
            if m != Medium::Speculative || medium == Some(m) {
                removed += blocks_held;
            }
        }
        removed
    }

    /// Takes `blocks` from `first` on from a lane that holds them all; their ids are contiguous.
    pub(super) fn withdraw(&mut self, lane: u32, first: u32, blocks: u32) {
        let mut end = first + blocks;
        while end > first {
            let mut run = self.held.shape.blocks.run(end - 1);
            let r = &self.held.nodes[run];
            let (base, upto) = (r.own.base, end - r.own.base);
            let at = first.saturating_sub(base);
            end = base + at;
            let Some(entry) = self.held.nodes.entry(run, lane) else {
                return;
            };
            if self.held.records[entry.record].kids == 0 && entry.count == upto {
                if at > 0 {
                    self.held.shorten(run, lane, at);
                } else {
                    self.held.reap(entry.record);
                }
                continue;
            }
            // A hole: the blocks become a run of their own that the lane holds as a ghost.
            if upto < self.held.nodes[run].len {
                run = self.held.split(run, upto);
            }
            if at > 0 {
                self.held.split(run, at);
            }
            self.held.set_count(run, lane, 0);
            let above = self.held.nodes[run].parent;
            self.held.merges.push(run);
            if above != NONE {
                self.held.merges.push(above);
            }
        }
    }

    /// Evicts least recently used leaves until the worker holds at most `max_blocks` in every medium.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn evict_worker(&mut self, worker: WorkerId, max_blocks: u64) -> Result<u64> {
        self.worker(worker)?;
        let mut evicted = 0;
        for medium in Medium::ALL {
            let count = self.held.lanes.count(worker.slot, medium);
            if count > max_blocks {
                evicted += self.evict(lane_of(worker.slot, medium), count - max_blocks);
            }
        }
        self.held.finish();
        Ok(evicted)
    }
}
