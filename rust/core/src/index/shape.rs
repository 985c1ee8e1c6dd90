//! Blocks as the units of a tree: numbered, found by their hashes.
//!
//! A node of the tree is called a run here.

use std::ops::Range;

use super::Matcher;
use super::marks::Marks;
use super::table::Table;
use super::table::blocks::{Blocks, CHUNK};
use crate::collections::slab::Slot;
use crate::epoch_lru::lanes::{medium_of, slot_of};
use crate::error::Result;
use crate::ids::{Medium, SequenceHash, WorkerId};
use crate::prefix_tree::nodes::{Node, Nodes};
use crate::prefix_tree::validate::ensure;
use crate::prefix_tree::{Held, NONE, PrefixTree, Shape};

/// Data of a run: blocks with the contiguous ids `base..base + len`.
#[derive(Debug, Clone)]
pub struct Ids {
    pub(super) base: u32,
    /// Its hashes were stored as given, not computed from tokens: whether they follow from each other is a claim.
    pub(super) claimed: bool,
}

impl Slot for Ids {
    fn vacant() -> Self {
        Self {
            base: 0,
            claimed: false,
        }
    }
}

/// Mean heap bytes of a block: 12 in its columns, of which one in twelve may be free, and a slot of a table that is between
/// two and four fifths full.
pub(super) const BLOCK: usize = 30;

/// Blocks, and the table that finds them.
#[derive(Debug)]
pub struct Hashed {
    pub(super) table: Table,
    pub(super) blocks: Blocks,
    pub(super) matcher: Matcher,
    /// Where workers can resume.
    pub(super) marks: Marks,
    /// Changes so far; an [`super::Overlaps`] answer names the one it was made at.
    pub(super) version: u64,
    /// Whether any hash may be stored as given since the index was last empty.
    pub(super) claims: bool,
    /// How many times as many blocks as in device memory a worker may hold in each other medium.
    pub(super) tiers: u32,
}

impl Hashed {
    pub(super) fn new(matcher: Matcher) -> Self {
        Self {
            table: Table::new(),
            blocks: Blocks::default(),
            matcher,
            marks: Marks::default(),
            version: 1,
            claims: false,
            tiers: 1,
        }
    }

    /// Blocks that a worker of this capacity may hold in a medium.
    pub(super) fn room(&self, capacity: u64, medium: Medium) -> u64 {
        let is_device = matches!(medium, Medium::Gpu | Medium::Speculative);
        capacity.saturating_mul(if is_device { 1 } else { self.tiers.into() })
    }

    /// Fills the columns of the fresh ids from `base` on and adds them to the table, up to a hash that is already stored:
    /// only claims can be. Returns how many were added; the other ids are given back.
    pub(super) fn fill(&mut self, base: u32, hashes: &[SequenceHash], run: u32) -> u32 {
        let Self { table, blocks, .. } = self;
        blocks.set_hashes(base, hashes);
        blocks.set_run(base, hashes.len() as u32, run);
        if !self.claims {
            table.insert_all(hashes, base, blocks);
            return hashes.len() as u32;
        }
        let added = table.insert_new(hashes, base, blocks);
        if (added as usize) < hashes.len() {
            blocks.free(base + added, hashes.len() as u32 - added);
        }
        added
    }

    fn free(&mut self, base: u32, len: u32) {
        let removed = self.table.remove_all(base, len, &self.blocks);
        debug_assert_eq!(removed, len, "live blocks are in the table");
        self.blocks.free(base, len);
    }
}

impl Shape for Hashed {
    type Own = Ids;

    const HOLES: bool = true;
    const EXPIRED_AT_ONCE: usize = usize::MAX;

    fn memory_bytes(&self) -> usize {
        self.table.len() * BLOCK + self.marks.memory_bytes()
    }

    fn truncate(&mut self, runs: &mut Nodes<Ids>, run: u32, count: u32) {
        let r = &mut runs[run];
        let len = std::mem::replace(&mut r.len, count);
        self.free(r.own.base + count, len - count);
    }

    fn remove(&mut self, runs: &mut Nodes<Ids>, run: u32) -> u32 {
        let r = &runs[run];
        let parent = r.parent;
        self.free(r.own.base, r.len);
        runs.forget(run);
        if parent != NONE {
            runs[parent].children -= 1;
        }
        parent
    }

    fn divide(&mut self, runs: &mut Nodes<Ids>, run: u32, at: u32) -> u32 {
        let lower = &mut runs[run];
        let own = lower.own.clone();
        let (base, start, parent) = (own.base, lower.start, lower.parent);
        lower.own.base += at;
        lower.len -= at;
        lower.start += at;
        // The upper part replaces the run among the parent's children.
        let upper = runs.add(Node::new(at, start, parent, own));
        runs[upper].children = 1;
        runs[run].parent = upper;
        self.blocks.set_run(base, at, upper);
        upper
    }

    fn sequel(&self, runs: &Nodes<Ids>, run: u32) -> Option<u32> {
        let r = &runs[run];
        let next = r.own.base + r.len;
        if r.children != 1 || (next as usize).is_multiple_of(CHUNK) || !self.blocks.is_live(next) {
            return None;
        }
        let lower = self.blocks.run(next);
        let child = &runs[lower];
        (child.parent == run && child.own.base == next).then_some(lower)
    }

    fn unite(&mut self, runs: &mut Nodes<Ids>, upper: u32, lower: u32) {
        let u = &runs[upper];
        let (base, len, start, parent) = (u.own.base, u.len, u.start, u.parent);
        let claimed = u.own.claimed;
        self.blocks.set_run(base, len, lower);
        // The lower part replaces the upper one among the parent's children: their number stays.
        runs.forget(upper);
        let l = &mut runs[lower];
        l.own.base = base;
        l.own.claimed |= claimed;
        l.len += len;
        l.start = start;
        l.parent = parent;
    }

    fn fit(tree: &mut PrefixTree<Self>, worker: WorkerId) {
        let capacity = tree.worker(worker).map_or(0, |present| present.capacity);
        let _ = tree.evict_worker(worker, u64::from(capacity));
    }

    #[inline]
    fn uncover(&mut self, run: &Node<Ids>, lane: u32, gone: Range<u32>) {
        if !self.marks.is_empty() {
            self.marks.uncover(run, lane, gone);
        }
    }

    fn forget_worker(&mut self, slot: u32) {
        self.marks.forget_worker(slot);
    }

    fn changed(&mut self) {
        self.version += 1;
    }

    fn emptied(&mut self) {
        self.table.reset();
        self.claims = false;
    }

    fn validate_node(held: &Held<Self>, id: u32) -> Result<()> {
        let run = &held.nodes[id];
        let base = run.own.base;
        for block in base..base + run.len {
            let named = held.shape.blocks.run(block);
            ensure!(named == id, "block {block} names run {named}, not {id}");
            let hash = held.shape.blocks.hash(block);
            let found = held.shape.table.find(hash, &held.shape.blocks);
            ensure!(
                found == Some(block),
                "hash {hash:?} of block {block} finds {found:?}"
            );
        }
        Ok(())
    }

    fn validate_sums(held: &Held<Self>, blocks: u64) -> Result<()> {
        ensure!(
            blocks == held.shape.table.len() as u64,
            "the table counts {} blocks, runs {blocks}",
            held.shape.table.len() as u64
        );
        for (lane, l) in held.lanes.iter() {
            let slot = slot_of(lane);
            let medium = Medium::ALL[medium_of(lane)];
            let room = |capacity: u32| held.shape.room(capacity.into(), medium);
            ensure!(
                held.lanes
                    .worker(slot)
                    .is_none_or(|worker| l.count <= room(worker.capacity)),
                "worker {slot} is over its capacity"
            );
        }
        Marks::validate(held)
    }
}
