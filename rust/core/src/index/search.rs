//! Longest known prefix of a chain of hashes.
//!
//! Block existence is prefix-closed: a block is in the table only if all blocks before it are. So the deepest known
//! block is found by any search over depths, and holder sets are read once, from there up (see `overlap`). Searches
//! compare 32-bit fingerprints only; the full hash of the answer is checked, and a mismatch falls back to the exact
//! scan.

use super::hints::prefetch;
use super::table::Key;
use super::{BlockIndex, Matcher, NONE};
use crate::ids::SequenceHash;

/// Probes per round of the k-ary search. 8 and 16 are equal within noise, 32 is worse.
const K: u32 = 8;

impl BlockIndex {
    /// Hints that a run's node will be read.
    #[inline]
    fn prefetch_run(&self, run: u32) {
        if run != NONE {
            prefetch(&self.held.nodes[run]);
        }
    }

    /// How many leading hashes are known, and the block of the last of them.
    pub(super) fn search(&self, hashes: &[SequenceHash]) -> (u32, u32) {
        if hashes.is_empty() || self.held.shape.table.len() == 0 {
            return (0, NONE);
        }
        let (known, block) = match self.held.shape.matcher {
            Matcher::Kary => self.search_kary(hashes),
            Matcher::Binary => self.search_binary(hashes),
            Matcher::Linear => return self.search_linear(hashes),
        };
        if known == 0 {
            return (0, NONE);
        }
        self.prefetch_run(self.held.shape.blocks.run(block));
        if self.held.shape.blocks.hash(block) == hashes[known as usize - 1]
            && self.depth(block) == known - 1
        {
            (known, block)
        } else {
            self.search_linear(hashes)
        }
    }

    /// Block by block with full comparison of hash and position: right for any input.
    pub(super) fn search_linear(&self, hashes: &[SequenceHash]) -> (u32, u32) {
        let mut last = NONE;
        for (i, &hash) in hashes.iter().enumerate() {
            match self.held.shape.table.find(hash, &self.held.shape.blocks) {
                Some(block) if self.block_before(block) == last => last = block,
                _ => return (i as u32, last),
            }
        }
        (hashes.len() as u32, last)
    }

    fn search_binary(&self, hashes: &[SequenceHash]) -> (u32, u32) {
        let (mut low, mut high) = (0, hashes.len() as u32 + 1);
        let mut last = NONE;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let key = self.held.shape.table.key(hashes[middle as usize - 1]);
            match self.held.shape.table.probe(key) {
                Some(block) => (low, last) = (middle, block),
                None => high = middle,
            }
        }
        (low, last)
    }

    fn search_kary(&self, hashes: &[SequenceHash]) -> (u32, u32) {
        // `low` leading hashes are known, `high` are not all.
        let (mut low, mut high) = (0, hashes.len() as u32 + 1);
        let mut last = NONE;
        let mut first = true;
        while high - low > 1 {
            let gap = high - low - 1;
            let probes = gap.min(K);
            // The first round asks for both ends: whole prompts and unknown ones are the common cases.
            let depth = |j: u32| {
                if first && gap > 1 {
                    1 + (u64::from(gap - 1) * u64::from(j) / u64::from(probes - 1)) as u32
                } else {
                    low + (u64::from(gap + 1) * u64::from(j + 1) / u64::from(probes + 1)) as u32
                }
            };
            let mut depths = [0; K as usize];
            let mut keys = [Key::NONE; K as usize];
            for j in 0..probes {
                depths[j as usize] = depth(j);
                keys[j as usize] = self
                    .held
                    .shape
                    .table
                    .key(hashes[depths[j as usize] as usize - 1]);
                self.held.shape.table.prefetch(keys[j as usize]);
            }
            if last != NONE {
                // The answer is likely in the run of the deepest block so far; its node arrives while the table does.
                self.prefetch_run(self.held.shape.blocks.run(last));
            }
            for j in 0..probes as usize {
                let Some(block) = self.held.shape.table.probe(keys[j]) else {
                    high = depths[j];
                    break;
                };
                (low, last) = (depths[j], block);
            }
            first = false;
        }
        (low, last)
    }
}
