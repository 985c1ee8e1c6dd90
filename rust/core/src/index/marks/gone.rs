//! Removal of marks whose blocks are gone or whose rank changes.

use std::ops::Range;

use super::{Entry, Marks, WORD, kin};
use crate::epoch_lru::lanes::{lane_of, medium_of, slot_of};
use crate::ids::Medium;
use crate::index::shape::Ids;
use crate::index::table::blocks::CHUNK;
use crate::prefix_tree::nodes::Node;

impl Marks {
    /// Takes the marks of some ranks off blocks of one run. Returns how many.
    pub fn take(&mut self, blocks: Range<u32>, slot: u32, ranks: &[Medium]) -> u64 {
        if self.count(slot) == 0 {
            return 0;
        }
        let chunk = blocks.start as usize / CHUNK;
        let (Range { start, end }, bit) = (self.place(blocks), 1 << (slot % WORD));
        let (mut taken, mut kept) = (0, start);
        for at in start..end {
            let mut entry = self.chunks[chunk][at];
            if entry.is_of(slot) && ranks.contains(&entry.key.rank()) {
                taken += 1;
                entry = Entry::new(entry.key, entry.bits() & !bit);
            }
            if entry.bits() != 0 {
                self.chunks[chunk][kept] = entry;
                kept += 1;
            }
        }
        if taken > 0 {
            self.chunks[chunk].drain(kept..end);
            *self.count_mut(slot) -= taken;
            self.total -= taken;
            self.shrink(chunk);
        }
        taken
    }

    fn shrink(&mut self, chunk: usize) {
        if self.total == 0 {
            (self.chunks, self.room) = (Vec::new(), 0);
            return;
        }
        let entries = &mut self.chunks[chunk];
        let (used, room) = (entries.len(), entries.capacity());
        if room > used + used / 8 + 4 || used == 0 {
            entries.shrink_to(used + used / 16);
            self.room = self.room - room + entries.capacity();
        }
        while self.chunks.last().is_some_and(Vec::is_empty) {
            self.chunks.pop();
        }
        if self.chunks.len() * 2 < self.chunks.capacity() {
            self.chunks.shrink_to_fit();
        }
    }

    /// Makes marks of the rank of device memory speculative.
    pub fn doubt(&mut self, blocks: Range<u32>, slot: u32) {
        for block in blocks {
            if self.take(block..block + 1, slot, &[Medium::Gpu]) == 0 {
                continue;
            }
            let is_marked = self.rank(block, slot, kin(Medium::Speculative)).is_some();
            if !is_marked {
                self.add(block, slot, Medium::Speculative);
            }
        }
    }

    /// A lane no longer holds the blocks `gone` of a run: they lose the marks that no other lane supports.
    #[inline]
    pub fn uncover(&mut self, run: &Node<Ids>, lane: u32, gone: Range<u32>) {
        let slot = slot_of(lane);
        if self.count(slot) == 0 {
            return;
        }
        let kin = kin(Medium::ALL[medium_of(lane)]);
        let others = kin.iter().map(|m| lane_of(slot, *m)).filter(|l| *l != lane);
        let counts = others
            .filter_map(|other| run.holders.get(other))
            .map(|e| e.count);
        let kept = counts.max().unwrap_or(0).max(gone.start);
        if kept < gone.end {
            let base = run.own.base;
            self.take(base + kept..base + gone.end, slot, kin);
        }
    }
}
