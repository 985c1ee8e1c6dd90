//! Block index: which worker holds which leading blocks.
//!
//! Blocks are grouped into *runs*, maximal unbranched stretches with contiguous ids (`runs`, `blocks`). A table maps a
//! sequence hash to its block id (`table`). Who holds a run is one interned set (`sets`) and, where coverage ends inside
//! the run, a short list. Recency is one record per (run, lane) in per-lane lists (`recency`). All changes of coverage
//! pass through `cover`; runs are split and joined in `split`.
//!
//! Costs, for L blocks, R runs on the path and W workers: lookup O(log L) table lines read 8 at a time, then O(R + W/64);
//! recording a known prompt O(1); storing or evicting a block O(1), a stretch at a time. Memory about 24 bytes per block
//! whoever holds it, plus about 120 per run and 60 per further (run, worker).
//!
//! Invariants, recounted by [`BlockIndex::validate`]: a block is in the table iff its run covers it; a run is as long as
//! its longest coverage unless it has children; an entry with kids covers all of its run or nothing; every record's
//! parent run has a record of the same lane; a record without kids is listed and covers something; epochs never decrease
//! towards the recent end; counts, holes, sets and references equal a recount.

pub(crate) mod ages;
mod ahead;
mod blocks;
mod cover;
mod doubt;
mod evict;
pub(crate) mod expiry;
pub(crate) mod hints;
mod insert;
pub(crate) mod lanes;
pub(crate) mod leading;
mod limit;
mod media;
mod overlap;
pub(crate) mod recency;
pub(crate) mod runs;
mod search;
pub(crate) mod sets;
pub(crate) mod slab;
mod snapshot;
mod split;
mod table;
#[cfg(test)]
mod tests;
mod told;
mod validate;

pub use media::Reach;
pub use overlap::Overlaps;
pub use told::Telling;

use crate::error::{Error, Result};
use crate::ids::{Medium, WorkerId};

/// Absent id.
pub(crate) const NONE: u32 = u32::MAX;
/// Items of scratch space kept between changes.
const SCRATCH: usize = 256;

/// How the longest known prefix is searched. All give the same answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Matcher {
    /// 8-ary search, probes of one round loaded together.
    #[default]
    Kary,
    /// Binary search.
    Binary,
    /// Block by block from the root; the definition the others are compared with.
    Linear,
}

impl Matcher {
    /// Every matcher.
    pub const ALL: [Self; 3] = [Self::Kary, Self::Binary, Self::Linear];

    /// Name as used in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kary => "kary",
            Self::Binary => "binary",
            Self::Linear => "linear",
        }
    }

    /// The matcher called `name`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for any other name.
    pub fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|matcher| matcher.name() == name);
        found.ok_or_else(|| Error::InvalidSetting {
            name: "matcher",
            expected: "\"kary\", \"binary\" or \"linear\"",
            got: format!("{name:?}"),
        })
    }
}

/// What happened to the index since it was made.
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

/// The index of one model and one block size.
#[derive(Debug)]
pub struct BlockIndex {
    table: table::Table,
    blocks: blocks::Blocks,
    runs: runs::Runs,
    sets: sets::LaneSets,
    records: recency::Records,
    lanes: lanes::Lanes,
    expiry: expiry::Expiry,
    limit: limit::Limit,
    matcher: Matcher,
    /// Changes so far; an [`Overlaps`] answer names the one it was made at.
    version: u64,
    stats: IndexStats,
    /// Whether any hash may be stored as given since the index was last empty.
    claims: bool,
    /// Runs that may be joined with their only child at the end of the change.
    merges: Vec<u32>,
    /// Scratch of `hold_path`.
    steps: Vec<(u32, u32)>,
}

impl BlockIndex {
    /// An empty index.
    #[must_use]
    pub fn new(matcher: Matcher) -> Self {
        Self {
            table: table::Table::new(),
            blocks: blocks::Blocks::default(),
            runs: runs::Runs::default(),
            sets: sets::LaneSets::new(),
            records: recency::Records::default(),
            lanes: lanes::Lanes::default(),
            expiry: expiry::Expiry::default(),
            limit: limit::Limit::default(),
            matcher,
            version: 1,
            stats: IndexStats::default(),
            claims: false,
            merges: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// Registers a worker incarnation that may hold up to `capacity` blocks per medium. An incarnation still in the slot
    /// is removed first; registering the same one again only changes its capacity.
    pub fn add_worker(&mut self, worker: WorkerId, capacity: u32) {
        let slot = worker.slot as usize;
        if let Some(Some(present)) = self.lanes.workers.get_mut(slot) {
            if present.generation == worker.generation {
                present.capacity = capacity;
                let _ = self.evict_worker(worker, u64::from(capacity));
                return;
            }
            let generation = present.generation;
            let _ = self.remove_worker(WorkerId {
                slot: worker.slot,
                generation,
            });
        }
        self.lanes.reserve(slot + 1);
        self.lanes.workers[slot] = Some(lanes::Worker {
            generation: worker.generation,
            capacity,
            distinct: 0,
        });
        self.lanes.open(Medium::Gpu);
        self.reserve_sets();
        self.version += 1;
    }

    /// Forgets the worker and all it holds; returns the distinct blocks dropped. Its id is refused from now on.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`] for an id that is not registered.
    pub fn remove_worker(&mut self, worker: WorkerId) -> Result<u64> {
        let dropped = self.clear(worker)?;
        if self.lanes.forget(worker.slot) {
            self.forget_ages();
        }
        Ok(dropped)
    }

    /// Distinct blocks held by the worker, in any medium.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn block_count(&self, worker: WorkerId) -> Result<u64> {
        Ok(self.worker(worker)?.distinct)
    }

    /// Blocks held by the worker by medium, indexed as [`Medium::ALL`].
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn blocks_by_medium(&self, worker: WorkerId) -> Result<[u64; Medium::ALL.len()]> {
        self.worker(worker)?;
        Ok(Medium::ALL.map(|medium| self.lanes.count(worker.slot, medium)))
    }

    /// Distinct blocks known to the index: those somebody holds, and those that connect them to the root.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.table.len() as u64
    }

    /// Whether no block is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counters since the index was made.
    #[must_use]
    pub fn stats(&self) -> IndexStats {
        self.stats
    }

    /// Heap bytes of the index.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
            + self.blocks.memory_bytes()
            + self.runs.memory_bytes()
            + self.sets.memory_bytes()
            + self.records.memory_bytes()
            + self.lanes.memory_bytes()
            + self.expiry.memory_bytes()
            + self.limit.memory_bytes()
            + self.merges.capacity() * size_of::<u32>()
            + self.steps.capacity() * size_of::<(u32, u32)>()
    }

    fn worker(&self, worker: WorkerId) -> Result<&lanes::Worker> {
        match self.lanes.worker(worker.slot) {
            Some(present) if present.generation == worker.generation => Ok(present),
            _ => Err(Error::UnknownWorker(worker)),
        }
    }

    /// Makes the lanes of a lane's medium on its first use.
    #[inline]
    fn open(&mut self, lane: u32) {
        let medium = Medium::ALL[lanes::medium_of(lane)];
        if !self.lanes.is_open(medium) {
            self.lanes.open(medium);
            self.reserve_sets();
        }
    }

    fn reserve_sets(&mut self) {
        let (slots, media) = (self.lanes.workers.len(), self.lanes.media());
        self.sets.reserve(slots, media);
    }

    /// Ends every change.
    fn finish(&mut self) {
        self.version += 1;
        self.join_runs();
        if self.merges.capacity() > SCRATCH {
            self.merges = Vec::new();
        }
        if self.steps.capacity() > SCRATCH {
            self.steps = Vec::new();
        }
        if self.is_empty() && self.sets.len() > 1 {
            self.table.reset();
            // The slabs gave their memory back when their last item went; this does the same for what named them.
            self.sets = sets::LaneSets::new();
            self.reserve_sets();
            self.merges = Vec::new();
            self.steps = Vec::new();
            self.expiry.reset();
            self.claims = false;
        }
    }
}
