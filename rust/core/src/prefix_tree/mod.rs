//! Prefix trees: what the block index and the radix tree have in common.
//!
//! A node is a stretch of units, blocks or characters, without a branch inside, at the end of its parent. A lane holds
//! a leading part of a node. Who holds all of it is one interned set (`sets`) and, where coverage ends inside the node,
//! a short list (`nodes`). Recency is one record per (node, lane) in per-lane lists (`epoch_lru`). They are one state
//! (`held`): all changes of coverage pass through `cover`; nodes are split and joined in `split`; removals pass through
//! `evict`.
//!
//! A [`Shape`] defines the units, and how a node is found.

mod cover;
mod evict;
mod held;
pub(crate) mod leading;
pub(crate) mod nodes;
pub(crate) mod sets;
mod snapshot;
mod split;
pub(crate) mod validate;

use std::fmt::Debug;
use std::ops::Range;

pub(crate) use crate::collections::slab::NONE;
use crate::collections::slab::Slot;
use crate::epoch_lru::lanes::Worker;
use crate::epoch_lru::oldest::Ages;
use crate::error::Result;
use crate::ids::{Medium, WorkerId};
pub use held::Held;
use nodes::{Node, Nodes};
use validate::Recount;

crate::counted! {
    /// Counters since an index was made.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct IndexStats {
        /// Blocks evicted to keep within a capacity, or on request.
        pub evicted: u64,
        /// Blocks evicted to keep within a number of bytes.
        pub displaced: u64,
        /// Blocks whose time to live ended.
        pub expired: u64,
        /// Stores dropped because their parent is unknown.
        pub orphans: u64,
        /// Chains cut short at a hash that is already stored behind another parent.
        pub conflicts: u64,
        /// Removals of blocks the worker did not hold.
        pub unknown_removals: u64,
    }
}

/// The units of a tree, their storage, and how nodes are found.
pub trait Shape: Debug + Sized {
    /// Data of a node that only this shape has.
    type Own: Debug + Slot;

    /// Whether a lane may hold units without those before them, or connect them to the root without holding any.
    const HOLES: bool;
    /// Leaves that one expiry looks at, at most.
    const EXPIRED_AT_ONCE: usize;

    /// Heap bytes beside nodes and holders, about.
    fn memory_bytes(&self) -> usize;

    /// Ends the units of a node behind its first `count`.
    fn truncate(&mut self, nodes: &mut Nodes<Self::Own>, node: u32, count: u32);

    /// Frees a node without holders and children, and its units; returns its parent.
    fn remove(&mut self, nodes: &mut Nodes<Self::Own>, node: u32) -> u32;

    /// Makes the first `at` units of a node one of their own, without holders, which has the rest as its only child and
    /// takes its place; returns it.
    fn divide(&mut self, nodes: &mut Nodes<Self::Own>, node: u32, at: u32) -> u32;

    /// The only child of a node, if its units may continue those of the node in one node.
    fn sequel(&self, nodes: &Nodes<Self::Own>, node: u32) -> Option<u32>;

    /// Puts the units of `upper`, without holders, in front of those of its only child, which takes its place; frees
    /// it.
    fn unite(&mut self, nodes: &mut Nodes<Self::Own>, upper: u32, lower: u32);

    /// Evicts the worker's units beyond a new capacity.
    fn fit(tree: &mut PrefixTree<Self>, worker: WorkerId);

    /// Units of a node that make those of a lane worthless: leaves that are no longer go with them.
    fn beside(_held: &Held<Self>, _node: u32, _lane: u32) -> u32 {
        0
    }

    /// `units`, or as few more as can be taken away at once.
    fn step(&self, units: u64) -> u64 {
        units
    }

    /// Which lanes are evicted first where one number of bytes is kept for all: those of rank 0.
    fn rank(_lane: u32) -> usize {
        0
    }

    /// A lane holds the units `gone` of a node no longer; they may be freed already.
    fn uncover(&mut self, _node: &Node<Self::Own>, _lane: u32, _gone: Range<u32>) {}

    /// Something changed.
    fn changed(&mut self) {}

    /// Nothing is held any more.
    fn emptied(&mut self) {}

    /// The worker in a slot is gone.
    fn forget_worker(&mut self, _slot: u32) {}

    /// Recounts a node's data of its shape.
    ///
    /// # Errors
    /// [`crate::Error::Invariant`].
    fn validate_node(held: &Held<Self>, node: u32) -> Result<()>;

    /// Recounts the shape's sums over all nodes, which have so many units.
    ///
    /// # Errors
    /// [`crate::Error::Invariant`].
    fn validate_sums(held: &Held<Self>, units: u64) -> Result<()>;
}

/// Nodes, their holders, and the order in which they go.
#[derive(Debug)]
pub struct PrefixTree<S: Shape> {
    pub(crate) held: Held<S>,
    /// Lanes by the age of their next leaf to evict, by rank.
    pub(crate) ages: [Ages; 2],
    pub(crate) stats: IndexStats,
}

impl<S: Shape> PrefixTree<S> {
    pub(crate) fn of(shape: S) -> Self {
        Self {
            held: Held::of(shape),
            ages: Default::default(),
            stats: IndexStats::default(),
        }
    }

    /// Registers a worker incarnation that may hold up to `capacity` units (of an index, per medium). An incarnation
    /// still in the slot is removed first; registering the same one again only changes its capacity.
    pub fn add_worker(&mut self, worker: WorkerId, capacity: u32) {
        let slot = worker.slot as usize;
        if let Some(Some(present)) = self.held.lanes.workers.get_mut(slot) {
            let generation = present.generation;
            if generation == worker.generation {
                present.capacity = capacity;
                S::fit(self, worker);
                return;
            }
            // It is registered, so nothing refuses.
            let _ = self.remove_worker(WorkerId {
                slot: worker.slot,
                generation,
            });
        }
        self.held.lanes.reserve(slot + 1);
        self.held.lanes.workers[slot] = Some(Worker {
            generation: worker.generation,
            capacity,
            distinct: 0,
        });
        self.held.lanes.open(Medium::Gpu);
        self.held.sets.reserve(&self.held.lanes);
        self.held.shape.changed();
    }

    /// Forgets the worker and all it holds; returns the distinct units dropped. Its id is refused from now on.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`] for an id that is not registered.
    pub fn remove_worker(&mut self, worker: WorkerId) -> Result<u64> {
        let dropped = self.clear(worker)?;
        self.held.shape.forget_worker(worker.slot);
        if self.held.lanes.forget(worker.slot) {
            self.ages.iter_mut().for_each(Ages::clear);
        }
        Ok(dropped)
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.nodes.len() == 0
    }

    /// Counters since it was made.
    #[must_use]
    pub fn stats(&self) -> IndexStats {
        self.stats
    }

    /// Heap bytes, about: those of what is held, with the mean of what tables and slots take for it.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.held.memory_bytes()
    }

    pub(crate) fn worker(&self, worker: WorkerId) -> Result<&Worker> {
        self.held.lanes.registered(worker)
    }

    /// Recounts everything. For tests, fuzzing and diagnosis: O(units).
    ///
    /// # Errors
    /// [`crate::Error::Invariant`] naming the first broken invariant.
    pub fn validate(&self) -> Result<()> {
        Recount::default().compare(&self.held)
    }
}
