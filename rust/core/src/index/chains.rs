//! Blocks by hash, and the paths they end.
//!
//! Block existence is prefix-closed: a block is in the table only if all blocks before it are. So the deepest known
//! block is found by any search over depths, and holder sets are read once, from there up (see `overlap`). Searches
//! compare 32-bit fingerprints only; the full hash of the answer is checked, and a mismatch falls back to the exact
//! scan.

use super::blocks::CHUNK;
use super::hints::prefetch;
use super::shape::{Hashed, Ids};
use super::table::Key;
use super::{Matcher, NONE};
use crate::forest::Held;
use crate::forest::lanes::lane_of;
use crate::forest::nodes::{Holders, Node};
use crate::ids::{Medium, SequenceHash, WorkerId};

/// Probes per round of the k-ary search. 8 and 16 are equal within noise, 32 is worse.
const K: u32 = 8;
/// So many blocks behind a known one are compared with the hashes beside it. 32 and 64 are equal, 160 and 320 are worse.
const NEAR: u32 = 64;
/// Hashes in a cache line.
const LINE: usize = 8;

/// Paths and depths of known hashes, on any worker.
#[derive(Debug, Clone, Copy)]
pub struct Chains<'a>(pub(super) &'a Held<Hashed>);

impl<'a> Chains<'a> {
    /// How many blocks come before a known one on its path, `None` for an unknown one.
    #[must_use]
    pub fn depth_of(self, hash: SequenceHash) -> Option<u32> {
        self.find(hash).map(|block| self.depth(block))
    }

    /// The path that ends with a known block, `None` for an unknown one.
    #[must_use]
    pub fn to(self, hash: SequenceHash) -> Option<Vec<SequenceHash>> {
        let mut block = self.find(hash)?;
        let mut path = Vec::with_capacity(self.depth(block) as usize + 1);
        while block != NONE {
            path.push(self.0.shape.blocks.hash(block));
            block = self.before(block);
        }
        path.reverse();
        Some(path)
    }

    /// Whether the worker holds a block in a medium.
    #[must_use]
    pub fn holds(self, worker: WorkerId, hash: SequenceHash, medium: Medium) -> bool {
        let lanes = &self.0.lanes;
        if lanes.registered(worker).is_err() || lanes.count(worker.slot, medium) == 0 {
            return false;
        }
        let Some(block) = self.find(hash) else {
            return false;
        };
        let run = self.run(block);
        let entry = run.holders.get(lane_of(worker.slot, medium));
        entry.is_some_and(|e| e.count > block - run.own.base)
    }

    #[inline]
    pub(super) fn find(self, hash: SequenceHash) -> Option<u32> {
        self.0.shape.table.find(hash, &self.0.shape.blocks)
    }

    /// The run of a block.
    #[inline]
    pub(super) fn run(self, block: u32) -> &'a Node<Ids> {
        &self.0.nodes[self.0.shape.blocks.run(block)]
    }

    pub(super) fn depth(self, block: u32) -> u32 {
        let run = self.run(block);
        run.start + block - run.own.base
    }

    /// The block before `block` on its path, `NONE` for a first block.
    pub(super) fn before(self, block: u32) -> u32 {
        let run = self.run(block);
        if block > run.own.base {
            block - 1
        } else if run.parent == NONE {
            NONE
        } else {
            let above = &self.0.nodes[run.parent];
            above.own.base + above.len - 1
        }
    }

    /// The block at `depth` on the path that ends at `block`.
    pub(super) fn ancestor(self, block: u32, depth: u32) -> u32 {
        let mut run = self.run(block);
        while run.start > depth {
            run = &self.0.nodes[run.parent];
        }
        run.own.base + depth - run.start
    }

    /// How many of the first of `hashes` are those of the blocks behind `last` in its run: found without the table.
    pub(super) fn beside(self, last: u32, hashes: &[SequenceHash]) -> u32 {
        if last == NONE {
            return 0;
        }
        let run = self.run(last);
        let below = run.own.base + run.len - last;
        let stored = &self.0.shape.blocks.hashes(last, below)[1..];
        let same = stored.iter().zip(hashes).take_while(|(a, b)| **a == b.0);
        same.count() as u32
    }

    /// How many of the last of `hashes`, of which the very last is `block`, are adjacent blocks of one run, listed from
    /// its root or towards it as an engine evicts; and the deepest of them.
    pub(super) fn stretch(self, hashes: &[SequenceHash], block: u32) -> (u32, u32) {
        let (run, blocks) = (self.run(block), &self.0.shape.blocks);
        let told = |most: u32| hashes.iter().rev().take(most as usize);
        let above = block - run.own.base + 1;
        let stored = blocks.hashes(run.own.base, above).iter().rev();
        let up = stored.zip(told(above)).take_while(|(a, b)| **a == b.0);
        let up = up.count() as u32;
        if up > 1 {
            return (block, up);
        }
        let below = run.own.base + run.len - block;
        let stored = blocks.hashes(block, below).iter();
        let down = stored.zip(told(below)).take_while(|(a, b)| **a == b.0);
        let down = down.count() as u32;
        (block + down - 1, down)
    }

    /// How many leading hashes are known as one path, and its last block. Hashes that were stored as given, and with
    /// `verify` all of them, are compared along the path: elsewhere the last hash vouches for those before it.
    pub(super) fn known(self, hashes: &[SequenceHash], verify: bool) -> (u32, u32) {
        let (known, block) = self.search(hashes);
        let mut end = known as usize;
        let mut above = (end > 0).then(|| self.run(block));
        while let Some(run) = above {
            let start = run.start as usize;
            // The sets of the answer are loaded together with the parents.
            prefetch(&self.0.sets.members(run.full)[0]);
            if let Holders::Many(entries) = &run.holders
                && run.partial > 0
            {
                prefetch(entries.as_ref());
            }
            if verify || run.own.claimed {
                let blocks = &self.0.shape.blocks;
                let stored = blocks.hashes(run.own.base, (end - start) as u32);
                let mut pairs = stored.iter().zip(&hashes[start..end]);
                if !pairs.all(|(a, b)| *a == b.0) {
                    return self.search_linear(hashes);
                }
            }
            end = start;
            above = (run.parent != NONE).then(|| &self.0.nodes[run.parent]);
        }
        (known, block)
    }

    /// How many leading hashes are known, and the block of the last of them.
    fn search(self, hashes: &[SequenceHash]) -> (u32, u32) {
        if hashes.is_empty() || self.0.shape.table.len() == 0 {
            return (0, NONE);
        }
        let (known, block) = match self.0.shape.matcher {
            Matcher::Kary => self.search_kary(hashes),
            Matcher::Binary => self.search_binary(hashes),
            Matcher::Linear => return self.search_linear(hashes),
        };
        if known == 0 {
            return (0, NONE);
        }
        prefetch(self.run(block));
        if self.0.shape.blocks.hash(block) == hashes[known as usize - 1]
            && self.depth(block) == known - 1
        {
            (known, block)
        } else {
            self.search_linear(hashes)
        }
    }

    /// Block by block with full comparison of hash and position: right for any input.
    fn search_linear(self, hashes: &[SequenceHash]) -> (u32, u32) {
        let mut last = NONE;
        for (i, &hash) in hashes.iter().enumerate() {
            match self.find(hash) {
                Some(block) if self.before(block) == last => last = block,
                _ => return (i as u32, last),
            }
        }
        (hashes.len() as u32, last)
    }

    fn search_binary(self, hashes: &[SequenceHash]) -> (u32, u32) {
        let table = &self.0.shape.table;
        let (mut low, mut high) = (0, hashes.len() as u32 + 1);
        let mut last = NONE;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let key = table.key(hashes[middle as usize - 1]);
            match table.probe(key) {
                Some(block) => (low, last) = (middle, block),
                None => high = middle,
            }
        }
        (low, last)
    }

    /// Fetches the hashes of a block and of as many behind it, which may be another run's.
    fn prefetch_behind(self, block: u32, count: u32) {
        let here = CHUNK as u32 - block % CHUNK as u32;
        let hashes = self.0.shape.blocks.hashes(block, here.min(count + 1));
        hashes.iter().step_by(LINE).for_each(prefetch);
    }

    fn search_kary(self, hashes: &[SequenceHash]) -> (u32, u32) {
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
