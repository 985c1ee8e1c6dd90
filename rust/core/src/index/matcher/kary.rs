//! 8-ary search over depths: O(log length) probes, those of a round loaded together.

use crate::ids::SequenceHash;
use crate::index::NONE;
use crate::index::chains::Chains;
use crate::index::table::Key;
use crate::index::table::blocks::CHUNK;
use crate::index::table::prefetch::prefetch;

/// Probes per round of the k-ary search. 8 and 16 are equal within noise, 32 is worse.
const K: u32 = 8;
/// So many blocks behind a known one are compared with the hashes beside it. 32 and 64 are equal, 160 and 320 are worse.
const NEAR: u32 = 64;
/// Hashes in a cache line.
const LINE: usize = 8;

impl Chains<'_> {
    /// Fetches the hashes of a block and of as many behind it, which may be another run's.
    fn prefetch_behind(self, block: u32, count: u32) {
        let here = CHUNK as u32 - block % CHUNK as u32;
        let hashes = self.0.shape.blocks.hashes(block, here.min(count + 1));
        hashes.iter().step_by(LINE).for_each(prefetch);
    }

    pub(super) fn search_kary(self, hashes: &[SequenceHash]) -> (u32, u32) {
        // `low` leading hashes are known, `high` are not all.
        let (table, blocks) = (&self.0.shape.table, &self.0.shape.blocks);
        let (mut low, mut high) = (0, hashes.len() as u32 + 1);
        let mut last = NONE;
        // Blocks of the path: the runs that lead to the answer are likely theirs.
        let mut path = [NONE; K as usize];
        let mut first = true;
        loop {
            let mut gap = high - low - 1;
            if last != NONE && gap <= NEAR {
                // The answer is likely in the run of the deepest block so far.
                self.prefetch_behind(last, gap);
                for &block in path.iter().take_while(|block| **block != NONE) {
                    prefetch(self.run(block));
                }
                let same = self.beside(last, &hashes[low as usize..high as usize - 1]);
                (low, last, gap) = (low + same, last + same, gap - same);
                let run = self.run(last);
                if last + 1 < run.own.base + run.len {
                    break;
                }
            }
            if gap == 0 {
                break;
            }
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
                keys[j as usize] = table.key(hashes[depths[j as usize] as usize - 1]);
                table.prefetch(keys[j as usize]);
            }
            for j in 0..probes as usize {
                let Some(block) = table.probe(keys[j]) else {
                    high = depths[j];
                    break;
                };
                (low, last) = (depths[j], block);
                if first {
                    path[j] = block;
                    blocks.prefetch(block);
                }
            }
            first = false;
        }
        (low, last)
    }
}
