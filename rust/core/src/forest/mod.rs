//! Forests of prefixes: what the block index and the radix tree have in common.
//!
//! A node is a stretch of units, blocks or characters, without a branch inside, at the end of its parent. A lane holds a
//! leading part of a node. Who holds all of it is one interned set (`sets`) and, where coverage ends inside the node, a
//! short list (`nodes`). Recency is one record per (node, lane) in per-lane lists (`recency`). All changes of coverage pass
//! through `cover`; nodes are split and joined in `split`; what goes, goes through `evict`.
//!
//! What units are, and how a node is found, is up to a [`Shape`].

pub(crate) mod ages;
mod climb;
mod cover;
mod evict;
pub(crate) mod expiry;
pub(crate) mod lanes;
pub(crate) mod leading;
pub(crate) mod nodes;
pub(crate) mod recency;
pub(crate) mod room;
pub(crate) mod sets;
pub(crate) mod slab;
mod snapshot;
mod split;
pub(crate) mod validate;

use std::fmt::Debug;

use crate::error::{Error, Result};
use crate::ids::{Medium, WorkerId};
use ages::Ages;
use expiry::Expiry;
use lanes::{Lanes, Worker, medium_of};
use nodes::Nodes;
use recency::Records;
use room::Limit;
use sets::LaneSets;
use slab::Slot;

/// Absent id.
pub(crate) const NONE: u32 = u32::MAX;
/// Items of scratch space kept between changes.
const SCRATCH: usize = 256;

/// What happened since an index was made.
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

/// What the units of a forest are, where they are kept, and how nodes are found.
pub trait Shape: Debug + Sized {
    /// What a node has of its own.
    type Own: Debug + Slot;

    /// Whether a lane may hold units without those before them, or connect them to the root without holding any.
    const HOLES: bool;
    /// Leaves that one expiry looks at, at most.
    const EXPIRED_AT_ONCE: usize;

    /// Heap bytes beside nodes and holders.
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

    /// Puts the units of `upper`, without holders, in front of those of its only child, which takes its place; frees it.
    fn unite(&mut self, nodes: &mut Nodes<Self::Own>, upper: u32, lower: u32);

    /// Evicts what the worker holds beyond a new capacity.
    fn fit(forest: &mut Forest<Self>, worker: WorkerId);

    /// Units of a node that make those of a lane worthless: leaves that are no longer go with them.
    fn beside(_forest: &Forest<Self>, _node: u32, _lane: u32) -> u32 {
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

    /// Something changed.
    fn changed(&mut self) {}

    /// Nothing is held any more.
    fn emptied(&mut self) {}

    /// The worker in a slot is gone.
    fn forget_worker(&mut self, _slot: u32) {}

    /// Recounts what a node has of its shape.
    ///
    /// # Errors
    /// [`Error::Invariant`].
    fn validate_node(forest: &Forest<Self>, node: u32) -> Result<()>;

    /// Recounts what all nodes, of so many units, have of their shape.
    ///
    /// # Errors
    /// [`Error::Invariant`].
    fn validate_sums(forest: &Forest<Self>, units: u64) -> Result<()>;
}

/// Nodes, their holders and the order of their use.
#[derive(Debug)]
pub struct Forest<S: Shape> {
    pub(crate) shape: S,
    pub(crate) nodes: Nodes<S::Own>,
    pub(crate) sets: LaneSets,
    pub(crate) records: Records,
    pub(crate) lanes: Lanes,
    pub(crate) expiry: Expiry,
    pub(crate) limit: Limit,
    /// Lanes by the age of what goes next, by their rank.
    pub(crate) ages: [Ages; 2],
    /// (worker, unit) pairs held.
    pub(crate) total: u64,
    pub(crate) stats: IndexStats,
    /// Nodes that may be joined with their only child at the end of the change.
    pub(crate) merges: Vec<u32>,
    /// Scratch of `hold_path`.
    pub(crate) steps: Vec<(u32, u32)>,
}

impl<S: Shape> Forest<S> {
    pub(crate) fn of(shape: S) -> Self {
        Self {
            shape,
            nodes: Nodes::default(),
            sets: LaneSets::new(),
            records: Records::default(),
            lanes: Lanes::default(),
            expiry: Expiry::default(),
            limit: Limit::default(),
            ages: Default::default(),
            total: 0,
            stats: IndexStats::default(),
            merges: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// Registers a worker incarnation that may hold up to `capacity` units (of an index, per medium). An incarnation still
    /// in the slot is removed first; registering the same one again only changes its capacity.
    pub fn add_worker(&mut self, worker: WorkerId, capacity: u32) {
        let slot = worker.slot as usize;
        if let Some(Some(present)) = self.lanes.workers.get_mut(slot) {
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
        self.lanes.reserve(slot + 1);
        self.lanes.workers[slot] = Some(Worker {
            generation: worker.generation,
            capacity,
            distinct: 0,
        });
        self.lanes.open(Medium::Gpu);
        self.reserve_sets();
        self.shape.changed();
    }

    /// Forgets the worker and all it holds; returns the distinct units dropped. Its id is refused from now on.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`] for an id that is not registered.
    pub fn remove_worker(&mut self, worker: WorkerId) -> Result<u64> {
        let dropped = self.clear(worker)?;
        self.shape.forget_worker(worker.slot);
        if self.lanes.forget(worker.slot) {
            self.ages.iter_mut().for_each(Ages::clear);
        }
        Ok(dropped)
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 0
    }

    /// Counters since it was made.
    #[must_use]
    pub fn stats(&self) -> IndexStats {
        self.stats
    }

    /// Heap bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.shape.memory_bytes()
            + self.nodes.memory_bytes()
            + self.sets.memory_bytes()
            + self.records.memory_bytes()
            + self.lanes.memory_bytes()
            + self.expiry.memory_bytes()
            + self.ages.iter().map(Ages::memory_bytes).sum::<usize>()
            + self.merges.capacity() * size_of::<u32>()
            + self.steps.capacity() * size_of::<(u32, u32)>()
    }

    pub(crate) fn worker(&self, worker: WorkerId) -> Result<&Worker> {
        match self.lanes.worker(worker.slot) {
            Some(present) if present.generation == worker.generation => Ok(present),
            _ => Err(Error::UnknownWorker(worker)),
        }
    }

    /// Makes the lanes of a lane's medium on its first use.
    #[inline]
    pub(crate) fn open(&mut self, lane: u32) {
        let medium = Medium::ALL[medium_of(lane)];
        if !self.lanes.is_open(medium) {
            self.lanes.open(medium);
            self.reserve_sets();
        }
    }

    pub(crate) fn reserve_sets(&mut self) {
        let (slots, media) = (self.lanes.workers.len(), self.lanes.media());
        self.sets.reserve(slots, media);
    }

    /// Ends every change.
    pub(crate) fn finish(&mut self) {
        self.shape.changed();
        self.join_nodes();
        if self.merges.capacity() > SCRATCH {
            self.merges = Vec::new();
        }
        if self.steps.capacity() > SCRATCH {
            self.steps = Vec::new();
        }
        if self.is_empty() && self.sets.len() > 1 {
            self.shape.emptied();
            // The slabs gave their memory back when their last item went; this does the same for what named them.
            self.sets = LaneSets::new();
            self.reserve_sets();
            self.merges = Vec::new();
            self.steps = Vec::new();
            self.expiry.reset();
        }
    }
}
