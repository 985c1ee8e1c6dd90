//! Queries of marks.

use std::ops::Range;

use super::{Entry, Key, Marks, WORD};
use crate::ids::Medium;
use crate::index::table::blocks::CHUNK;

/// How many entries are on blocks before `end`. The search begins where it would end if all blocks up to the last
/// marked one had as many.
#[inline]
fn before(entries: &[Entry], end: u32) -> usize {
    let span = entries.last().map_or(1, |e| e.key.block() + 1);
    let guess = entries.len() * end.min(span) as usize / span as usize;
    let is_before = |at: usize| entries[at].key.block() < end;
    let (mut low, mut high, mut step) = (guess, guess, 1);
    if guess < entries.len() && is_before(guess) {
        while high < entries.len() && is_before(high) {
            (low, high, step) = (high + 1, high + step, step * 2);
        }
        high = high.min(entries.len());
    } else {
        while low > 0 && !is_before(low - 1) {
            (high, low, step) = (low - 1, low.saturating_sub(step), step * 2);
        }
    }
    low + entries[low..high].partition_point(|e| e.key.block() < end)
}

impl Marks {
    /// The places of the entries of blocks of one run in their chunk.
    pub(super) fn place(&self, blocks: Range<u32>) -> Range<usize> {
        let entries = self.chunks.get(blocks.start as usize / CHUNK);
        let entries = entries.map_or(&[][..], Vec::as_slice);
        let first = blocks.start % CHUNK as u32;
        let end = first + (blocks.end - blocks.start);
        before(entries, first)..before(entries, end)
    }

    /// The entries of blocks of one run.
    pub(super) fn of(&self, blocks: Range<u32>) -> &[Entry] {
        let chunk = self.chunks.get(blocks.start as usize / CHUNK);
        chunk.map_or(&[], |entries| &entries[self.place(blocks)])
    }

    /// The lowest rank of a mark of the worker's on a block, among some.
    pub fn rank(&self, block: u32, slot: u32, among: &[Medium]) -> Option<Medium> {
        let ranks = self.of(block..block + 1).iter();
        let mut ranks = ranks.filter(|e| e.is_of(slot)).map(|e| e.key.rank());
        ranks.find(|rank| among.contains(rank))
    }

    /// The bitmaps on blocks of one run from the deepest up: id of the block, key, slots.
    #[inline]
    pub fn climb(&self, blocks: Range<u32>) -> impl Iterator<Item = (u32, Key, u64)> {
        let chunk = self.chunks.get(blocks.start as usize / CHUNK);
        let entries = chunk.map_or(&[][..], Vec::as_slice);
        let base = blocks.start / CHUNK as u32 * CHUNK as u32;
        let upto = before(entries, blocks.end - base);
        let entries = entries[..upto].iter().rev();
        let entries = entries.map(move |e| (base + e.key.block(), e.key, e.bits()));
        entries.take_while(move |(block, ..)| *block >= blocks.start)
    }

    /// The last of some blocks of one run that the worker has a mark on, of a rank up to `upto`.
    pub fn last(&self, blocks: Range<u32>, slot: u32, upto: Medium) -> Option<u32> {
        let chunk = blocks.start / CHUNK as u32 * CHUNK as u32;
        let mut entries = self.of(blocks).iter().rev();
        let found = entries.find(|e| e.key.rank() <= upto && e.is_of(slot));
        found.map(|e| chunk + e.key.block())
    }

    /// All marks: block, slot, rank.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32, Medium)> {
        (0..).zip(&self.chunks).flat_map(|(chunk, entries)| {
            entries.iter().flat_map(move |entry| {
                let (block, key) = (chunk * CHUNK as u32 + entry.key.block(), entry.key);
                entry.slots().map(move |slot| (block, slot, key.rank()))
            })
        })
    }
}

impl Entry {
    pub(super) fn is_of(&self, slot: u32) -> bool {
        self.key.slots() == slot / WORD && self.bits() >> (slot % WORD) & 1 == 1
    }

    /// The slots, ascending.
    pub(super) fn slots(self) -> impl Iterator<Item = u32> {
        let bits = self.bits();
        let first = self.key.slots() * WORD;
        (first..first + WORD).filter(move |slot| bits >> (slot - first) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_guess_changes_no_place(
            blocks in proptest::collection::btree_set(0..CHUNK as u32, 0..300),
            thinned in 1..200_u32,
            end in 0..=CHUNK as u32,
        ) {
            let blocks = blocks.iter().map(|block| block / thinned);
            let entries: Vec<Entry> = blocks.map(|block| Entry::new(Key::new(block, 0, Medium::Gpu), 1)).collect();
            let place = entries.partition_point(|e| e.key.block() < end);
            prop_assert_eq!(before(&entries, end), place);
        }
    }
}
