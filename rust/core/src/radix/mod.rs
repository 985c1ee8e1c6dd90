//! Radix tree: which worker holds which prefix, to the unit.
//!
//! One tree for text (UTF-8, counted in characters) and for tokens (in whole pages); see [`Unit`]. An edge and the node at
//! its end are one `Node`. A worker's coverage of an edge is a prefix of it, and what it holds is closed
//! under prefixes: whoever holds a part of an edge holds everything before it. So eviction goes from the leaves and may
//! stop inside an edge, and the deepest holder of a path is found by comparing labels alone.
//!
//! Shared with the block index: lanes, interned holder sets, recency records, ages, deadlines. A worker has two lanes,
//! one per [`Trust`]: what this process saw, and what others said. Each is closed under prefixes by itself; a worker holds
//! what either does. What others said goes first when room is needed, so it is never kept where the own lane covers it:
//! every leaf of the [`Trust::Remote`] lane reaches beyond the [`Trust::Local`] one.
//!
//! Costs, for a key of L units over N nodes: a match O(L) comparisons in vectors and O(N) nodes; an insert the same, and
//! O(1) for the recency of the whole path. Evictions are done in steps of one leaf; no call does more than [`STEPS`] of
//! them, what is left over is owed and paid by [`RadixTree::settle`].

mod cover;
mod evict;
mod insert;
mod limit;
mod named;
mod nodes;
mod overlap;
mod snapshot;
mod split;
#[cfg(test)]
mod tests;
mod unit;
mod validate;
mod walk;

pub use evict::Progress;
pub use named::{NamedTree, PrefixAnswer, Prompt, TreeEdit, TreeView};
pub use overlap::PrefixOverlaps;
pub use unit::{Key, MAX_PAGE_SIZE, Unit};

use crate::error::{Error, Result};
use crate::ids::{Medium, Millis, WorkerId};
use crate::index::IndexStats;
use crate::index::ages::Ages;
use crate::index::expiry::Expiry;
use crate::index::lanes::{Lanes, Worker, lane_of};
use crate::index::recency::Records;
use crate::index::sets::LaneSets;
use nodes::Nodes;

/// Leaves that one call evicts at most: under half a millisecond, if none of them is in the cache.
pub const STEPS: u32 = 512;
/// Stored units of an edge at most, so that splitting one takes microseconds; a longer key becomes several.
const EDGE: usize = 1 << 14;
/// Items of scratch space kept between changes.
const SCRATCH: usize = 256;

/// Who says that a worker holds something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// This process.
    #[default]
    Local,
    /// Somebody else: evicted first, and never in the way of what is local.
    Remote,
}

impl Trust {
    /// Every rank, the one that is evicted first in front.
    const BY_WORTH: [Self; 2] = [Self::Remote, Self::Local];

    /// The lane of a worker's slot.
    #[inline]
    fn lane(self, slot: u32) -> u32 {
        let medium = match self {
            Self::Local => Medium::Gpu,
            Self::Remote => Medium::Speculative,
        };
        lane_of(slot, medium)
    }

    fn medium(self) -> Medium {
        match self {
            Self::Local => Medium::Gpu,
            Self::Remote => Medium::Speculative,
        }
    }
}

/// Time of a use, for callers that have their own: only the order and the equality of times count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(u64);

impl Time {
    /// The time that a finite number of seconds stands for, after every time that the tree gave itself.
    #[must_use]
    pub fn from_seconds(seconds: f64) -> Self {
        // Bits of floats are ordered as the floats are, but for the sign.
        let bits = (seconds + 0.0).to_bits();
        Self(if bits >> 63 == 0 {
            bits | 1 << 63
        } else {
            !bits
        })
    }
}

/// How something is inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Use {
    /// Who says so.
    pub trust: Trust,
    /// End of the time to live, `None` for never.
    pub expires: Option<Millis>,
    /// When it was used; a time before an earlier one of the same worker counts as that one. `None`: after all others.
    pub time: Option<Time>,
}

/// The tree of one model.
#[derive(Debug)]
pub struct RadixTree<U> {
    nodes: Nodes<U>,
    sets: LaneSets,
    records: Records,
    lanes: Lanes,
    expiry: Expiry,
    limit: limit::Limit,
    /// Lanes by the age of what goes next, what others said apart.
    ages: [Ages; 2],
    page: usize,
    max_units: u64,
    /// (worker, unit) pairs held.
    total: u64,
    /// Time of the latest use.
    clock: u64,
    stats: IndexStats,
    /// Slots over their capacity.
    owing: Vec<u32>,
    /// Nodes that may be joined with their only child at the end of the change.
    merges: Vec<u32>,
    /// Scratch of `hold_path`.
    steps: Vec<(u32, u32)>,
}

impl<U: Unit> RadixTree<U> {
    /// An empty tree of whole pages of `page_size` tokens (1 for text), which keeps within `max_units` (worker, unit)
    /// pairs, `None` for no limit.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a page size outside 1..=[`MAX_PAGE_SIZE`], or other than 1 for text, and for a budget
    /// below one page.
    pub fn new(page_size: usize, max_units: Option<u64>) -> Result<Self> {
        let most = if U::PLAIN { MAX_PAGE_SIZE } else { 1 };
        if !(1..=most).contains(&page_size) {
            return Err(Error::InvalidSetting {
                name: "page_size",
                expected: if U::PLAIN {
                    "from 1 to 4096"
                } else {
                    "1 for a tree of text"
                },
                got: page_size.to_string(),
            });
        }
        if max_units.is_some_and(|units| units < page_size as u64) {
            return Err(Error::InvalidSetting {
                name: "max_units",
                expected: "at least page_size",
                got: max_units.unwrap_or(0).to_string(),
            });
        }
        Ok(Self {
            nodes: Nodes::default(),
            sets: LaneSets::new(),
            records: Records::default(),
            lanes: Lanes::default(),
            expiry: Expiry::default(),
            limit: limit::Limit::default(),
            ages: Default::default(),
            page: page_size,
            max_units: max_units.unwrap_or(u64::MAX),
            total: 0,
            clock: 0,
            stats: IndexStats::default(),
            owing: Vec::new(),
            merges: Vec::new(),
            steps: Vec::new(),
        })
    }

    /// Tokens per page.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.page
    }

    /// Most (worker, unit) pairs, `None` for no limit.
    #[must_use]
    pub fn max_units(&self) -> Option<u64> {
        (self.max_units < u64::MAX).then_some(self.max_units)
    }

    /// Registers a worker incarnation that may hold up to `capacity` units. An incarnation still in the slot is removed
    /// first; registering the same one again only changes its capacity.
    pub fn add_worker(&mut self, worker: WorkerId, capacity: u32) {
        let slot = worker.slot as usize;
        if let Some(Some(present)) = self.lanes.workers.get_mut(slot) {
            let generation = present.generation;
            if generation == worker.generation {
                present.capacity = capacity;
                // It is registered, so nothing refuses.
                let _ = self.evict_worker(worker, u64::from(capacity));
                return;
            }
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
    }

    /// Forgets the worker and all it holds; returns the units dropped. Its id is refused from now on.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`] for an id that is not registered.
    pub fn remove_worker(&mut self, worker: WorkerId) -> Result<u64> {
        let dropped = self.clear(worker)?;
        self.owing.retain(|slot| *slot != worker.slot);
        if self.lanes.forget(worker.slot) {
            for ages in &mut self.ages {
                ages.clear();
            }
        }
        Ok(dropped)
    }

    /// Units held by the worker.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn count(&self, worker: WorkerId) -> Result<u64> {
        Ok(self.worker(worker)?.distinct)
    }

    /// (worker, unit) pairs held.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Distinct units, whoever holds them.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.nodes.units
    }

    /// Whether nobody holds anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.units == 0
    }

    /// Nodes of the tree, without its root.
    #[must_use]
    pub fn node_count(&self) -> u32 {
        self.nodes.len()
    }

    /// Counters since the tree was made: evicted, displaced and expired units.
    #[must_use]
    pub fn stats(&self) -> IndexStats {
        self.stats
    }

    /// Heap bytes of the tree.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.nodes.memory_bytes()
            + self.sets.memory_bytes()
            + self.records.memory_bytes()
            + self.lanes.memory_bytes()
            + self.expiry.memory_bytes()
            + self.ages.iter().map(Ages::memory_bytes).sum::<usize>()
            + (self.owing.capacity() + self.merges.capacity()) * size_of::<u32>()
            + self.steps.capacity() * size_of::<(u32, u32)>()
    }

    /// The worker in a slot.
    #[must_use]
    pub fn worker_in(&self, slot: u32) -> Option<WorkerId> {
        let generation = self.lanes.worker(slot)?.generation;
        Some(WorkerId { slot, generation })
    }

    fn worker(&self, worker: WorkerId) -> Result<&Worker> {
        match self.lanes.worker(worker.slot) {
            Some(present) if present.generation == worker.generation => Ok(present),
            _ => Err(Error::UnknownWorker(worker)),
        }
    }

    fn reserve_sets(&mut self) {
        let (slots, media) = (self.lanes.workers.len(), self.lanes.media());
        self.sets.reserve(slots, media);
    }

    /// Ends every change.
    fn finish(&mut self) {
        self.join_nodes();
        if self.merges.capacity() > SCRATCH {
            self.merges = Vec::new();
        }
        if self.steps.capacity() > SCRATCH {
            self.steps = Vec::new();
        }
        if self.is_empty() && self.sets.len() > 1 {
            self.sets = LaneSets::new();
            self.reserve_sets();
            self.expiry.reset();
        }
    }
}
