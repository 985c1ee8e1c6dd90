//! Blocks by hash, and the paths they end.

use super::NONE;
use super::shape::{Hashed, Ids};
use crate::epoch_lru::lanes::lane_of;
use crate::ids::{Medium, SequenceHash, WorkerId};
use crate::prefix_tree::Held;
use crate::prefix_tree::nodes::Node;

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
}
