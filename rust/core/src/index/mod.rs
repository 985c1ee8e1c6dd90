//! Block index: which worker holds which leading blocks.
//!
//! Blocks are grouped into *runs*, maximal unbranched stretches with contiguous ids (`table::blocks`): the nodes of a tree, which
//! knows who holds them and in which order they were used (`prefix_tree`). A table maps a sequence hash to its block id
//! (`table`).
//!
//! Costs, for L blocks, R runs on the path and W workers: lookup O(log L) table lines read 8 at a time, then O(R + W/64);
//! recording a known prompt O(1); storing or evicting a block O(1), a stretch at a time. Memory about 24 bytes per
//! block for any number of holders, plus about 120 per run and 60 per further (run, worker).
//!
//! Invariants, recounted by `BlockIndex::validate`: a block is in the table iff its run covers it; a run is as long as
//! its longest coverage unless it has children; an entry with kids covers all of its run or nothing; every record's
//! parent run has a record of the same lane; a record without kids is listed and covers something; epochs never decrease
//! towards the recent end; counts, holes, sets and references equal a recount; a worker holds the blocks it has marks
//! on (`marks`).

mod add;
mod chains;
mod doubt;
mod evict;
mod insert;
mod listing;
mod marks;
mod matcher;
mod media;
mod overlap;
mod shape;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;

pub use crate::prefix_tree::IndexStats;
pub use chains::Chains;
pub use listing::Listing;
pub use marks::Resumes;
pub use matcher::Matcher;
pub use media::{Reach, Stretch};
pub use overlap::Overlaps;

use crate::error::Result;
use crate::ids::{Medium, WorkerId};
use crate::prefix_tree::{Held, NONE, PrefixTree};
use shape::Hashed;

/// The index of one model and one block size.
pub type BlockIndex = PrefixTree<Hashed>;

impl BlockIndex {
    /// An empty index.
    #[must_use]
    pub fn new(matcher: Matcher) -> Self {
        Self::of(Hashed::new(matcher))
    }

    /// It may hold so many times a worker's capacity in each medium but device memory.
    #[must_use]
    pub fn with_tiers(mut self, times: u32) -> Self {
        self.held.shape.tiers = times;
        self
    }

    /// Paths and depths of known hashes, on any worker.
    #[must_use]
    #[inline]
    pub fn chains(&self) -> Chains<'_> {
        self.held.chains()
    }

    /// Distinct blocks held by the worker, in any medium.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn block_count(&self, worker: WorkerId) -> Result<u64> {
        Ok(self.worker(worker)?.distinct)
    }

    /// Blocks held by the worker by medium, indexed as [`Medium::ALL`].
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn blocks_by_medium(&self, worker: WorkerId) -> Result<[u64; Medium::ALL.len()]> {
        self.worker(worker)?;
        Ok(Medium::ALL.map(|medium| self.held.lanes.count(worker.slot, medium)))
    }

    /// Distinct blocks known to the index: held ones, and those that connect them to the root.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.held.shape.table.len() as u64
    }
}

impl Held<Hashed> {
    #[inline]
    fn chains(&self) -> Chains<'_> {
        Chains(self)
    }
}
