//! The index behind a tracker: the exact one, a tree of tokens, or the positional one kept for study.

use crate::error::{Error, Result};
use crate::ids::{Medium, Millis, SequenceHash, WorkerId};
use crate::index::{BlockIndex, IndexStats, Overlaps, Reach, Resumes};
use crate::positional::PositionalIndex;
use crate::radix_tree::{PrefixOverlaps, RadixTree};

/// The source of the hashes of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Hashed here from tokens: a chain by construction.
    Tokens,
    /// Hashed here from text: a chain that no event of an engine names, since engines name blocks of tokens.
    Text,
    /// Given by the caller: may be anything.
    Caller,
}

/// The index of one model or tracker.
#[derive(Debug)]
pub enum Store {
    /// Every block, with evictions, media and times to live.
    Exact(Box<BlockIndex>),
    /// Blocks by position.
    Positional(PositionalIndex),
    /// A tree, whose lookups take tokens, not hashes.
    Tree(Box<RadixTree<u32>>),
}

/// Runs an expression for every kind of index.
macro_rules! each {
    ($store:expr, $index:ident => $work:expr) => {
        match $store {
            Store::Exact($index) => $work,
            Store::Positional($index) => $work,
            Store::Tree($index) => $work,
        }
    };
    // `$none` for blocks by position, which have no order of use and do not expire.
    ($store:expr, $none:expr, $index:ident => $work:expr) => {
        match $store {
            Store::Exact($index) => $work,
            Store::Positional(_) => $none,
            Store::Tree($index) => $work,
        }
    };
}

/// Answer buffers, one pair per caller.
#[derive(Debug, Default)]
pub struct Depths {
    exact: Overlaps,
    positional: Vec<(u32, u32)>,
    tree: PrefixOverlaps,
}

impl Depths {
    /// The answer of an exact index.
    #[must_use]
    pub fn exact(&self) -> &Overlaps {
        &self.exact
    }
}

/// Result of a lookup: the answer that a store wrote last.
#[derive(Debug, Clone, Copy)]
pub struct Lookup<'a> {
    /// The store.
    pub store: &'a Store,
    /// Its answer.
    pub depths: &'a Depths,
}

impl Lookup<'_> {
    /// Leading blocks of the worker in `slot`.
    #[inline]
    #[must_use]
    pub fn overlap(self, slot: u32) -> u32 {
        match self.store {
            Store::Exact(_) => self.depths.exact.depth(slot),
            Store::Positional(_) => {
                let found = &self.depths.positional;
                let at = found.binary_search_by_key(&slot, |(slot, _)| *slot);
                at.map_or(0, |at| found[at].1)
            }
            Store::Tree(_) => self.depths.tree.depth(slot),
        }
    }

    /// Leading blocks that the worker in `slot` holds for its layers that attend to the whole prefix, whether it can
    /// resume behind them or not.
    #[inline]
    #[must_use]
    pub fn held(self, slot: u32) -> u32 {
        match self.store {
            Store::Exact(_) => self.depths.exact.held(slot),
            Store::Positional(_) | Store::Tree(_) => self.overlap(slot),
        }
    }

    /// Calls `each` with slot and overlap of every holder.
    pub fn for_each(self, each: impl FnMut((u32, u32))) {
        match self.store {
            Store::Exact(_) => self.depths.exact.iter().for_each(each),
            Store::Positional(_) => self.depths.positional.iter().copied().for_each(each),
            Store::Tree(_) => self.depths.tree.iter().for_each(each),
        }
    }

    /// Leading blocks in device memory that events confirmed.
    #[must_use]
    pub fn confirmed(self, slot: u32) -> u32 {
        match self.store {
            Store::Exact(_) => self.depths.exact.confirmed(slot),
            Store::Positional(_) | Store::Tree(_) => self.overlap(slot),
        }
    }

    /// The deepest mark of the worker in `slot` in the first `within` blocks, 0 for none.
    #[must_use]
    pub fn mark(self, slot: u32, within: u32) -> u32 {
        let deepest =
            |index: &BlockIndex| index.deepest_mark(&self.depths.exact, slot, within, Medium::Disk);
        self.store.exact().map_or(0, deepest)
    }

    /// Whether the worker in `slot` holds blocks behind the first `depth` ones, which are not the prompt's.
    #[must_use]
    pub fn goes_on(self, slot: u32, depth: u32) -> bool {
        let goes_on = |index: &BlockIndex| index.goes_on(&self.depths.exact, slot, depth);
        self.store.exact().is_some_and(goes_on)
    }

    /// Where the worker in `slot` holds the prompt; speculative blocks count as if they were in device memory.
    #[must_use]
    pub fn reach(self, slot: u32) -> Reach {
        match self.store {
            Store::Exact(index) => index.media(&self.depths.exact, slot),
            Store::Positional(_) | Store::Tree(_) => Reach::on_device(self.overlap(slot)),
        }
    }

    /// As [`Self::reach`], of the blocks that it holds for its layers that attend to the whole prefix.
    #[must_use]
    pub fn held_media(self, slot: u32) -> Reach {
        let held = |index: &BlockIndex| index.held_media(&self.depths.exact, slot);
        self.store.exact().map_or_else(|| self.reach(slot), held)
    }

    /// How the worker in `slot` resumes prompts.
    #[must_use]
    pub fn resumes(self, slot: u32) -> Resumes {
        let index = self.store.exact();
        index.map_or_else(Resumes::default, |index| index.resumes(slot))
    }

    /// Where the worker in `slot` holds the prompt, in any medium: rising segments, those behind gaps too.
    #[must_use]
    pub fn segments(self, slot: u32) -> Vec<(u32, u32)> {
        match self.store {
            Store::Exact(index) => index.segments(&self.depths.exact, slot),
            Store::Positional(_) | Store::Tree(_) => match self.overlap(slot) {
                0 => Vec::new(),
                held => vec![(0, held)],
            },
        }
    }
}

impl Store {
    /// The exact index, if it is one.
    #[must_use]
    #[inline]
    pub fn exact(&self) -> Option<&BlockIndex> {
        match self {
            Self::Exact(index) => Some(index),
            _ => None,
        }
    }

    /// The exact index, for changes that the others do not have.
    ///
    /// # Errors
    /// [`Error::Unsupported`] from an index without media.
    #[inline]
    pub fn exact_mut(&mut self) -> Result<&mut BlockIndex> {
        match self {
            Self::Exact(index) => Ok(index),
            _ => Err(Error::Unsupported("KV events")),
        }
    }

    /// Writes how many leading blocks each worker holds into `out`.
    pub fn overlaps(&self, hashes: &[SequenceHash], origin: Origin, out: &mut Depths) {
        match (self, origin) {
            (Self::Exact(index), Origin::Tokens | Origin::Text) => {
                index.overlaps(hashes, &mut out.exact);
            }
            (Self::Exact(index), Origin::Caller) => index.overlaps_verified(hashes, &mut out.exact),
            (Self::Positional(index), _) => index.overlaps(hashes, &mut out.positional),
            (Self::Tree(tree), _) => tree.overlaps(hashes, &mut out.tree),
        }
    }

    /// Refines an answer where workers cannot resume from any block held: see `BlockIndex::resume`.
    #[inline]
    pub fn resume(&self, most: u32, out: &mut Depths) {
        if let Self::Exact(index) = self {
            index.resume(most, &mut out.exact);
        }
    }

    /// Adds a worker of at most `capacity` blocks.
    pub fn add_worker(&mut self, worker: WorkerId, capacity: u32) {
        each!(self, index => index.add_worker(worker, capacity));
    }

    /// Removes a worker; returns how many blocks it held.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn remove_worker(&mut self, worker: WorkerId) -> Result<u64> {
        each!(self, index => index.remove_worker(worker))
    }

    /// Records that a worker holds the whole path; returns how many blocks are new to it.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`], and [`Error::Unsupported`] for a time to live in an index without one.
    pub fn record(
        &mut self,
        worker: WorkerId,
        hashes: &[SequenceHash],
        hint: Option<&Depths>,
        expires: Option<Millis>,
    ) -> Result<u32> {
        match self {
            Self::Exact(index) => {
                index.record(worker, hashes, hint.map(|hint| &hint.exact), expires)
            }
            Self::Positional(_) if expires.is_some() => Err(Error::Unsupported("a time to live")),
            Self::Positional(index) => index.record(worker, hashes),
            Self::Tree(tree) => tree.record(worker, hashes, expires),
        }
    }

    pub(crate) fn store(
        &mut self,
        worker: WorkerId,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
    ) -> Result<u32> {
        match self {
            Self::Exact(index) => index.store(worker, parent, hashes, medium, None),
            Self::Positional(index) => index.record(worker, hashes),
            Self::Tree(_) => Err(Error::Unsupported("hashes")),
        }
    }

    /// Removes blocks of a worker, of one medium or of all; returns how many.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`], and [`Error::Unsupported`] from a tree.
    pub fn remove(
        &mut self,
        worker: WorkerId,
        hashes: &[SequenceHash],
        medium: Option<Medium>,
    ) -> Result<u32> {
        match self {
            Self::Exact(index) => index.remove(worker, hashes, medium),
            Self::Positional(index) => index.remove(worker, hashes),
            Self::Tree(_) => Err(Error::Unsupported("hashes")),
        }
    }

    /// Takes back a placement along `path` beyond its first `keep` blocks.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`], and the errors of the index.
    pub fn take_back(
        &mut self,
        worker: WorkerId,
        path: &[SequenceHash],
        keep: usize,
    ) -> Result<u32> {
        if let Self::Tree(tree) = self {
            let dropped = tree.truncate(worker, path, keep as u32)?;
            return Ok(u32::try_from(dropped).unwrap_or(u32::MAX));
        }
        let deepest_first: Vec<SequenceHash> = path[keep..].iter().rev().copied().collect();
        self.remove(worker, &deepest_first, None)
    }

    /// Removes all blocks of a worker; returns how many.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn clear(&mut self, worker: WorkerId) -> Result<u64> {
        each!(self, index => index.clear(worker))
    }

    /// Makes what is held in device memory speculative; the other indexes do not tell media apart and keep nothing.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn doubt(&mut self, worker: WorkerId, expires: Option<Millis>) -> Result<u64> {
        match self {
            Self::Exact(index) => index.doubt(worker, expires),
            _ => self.clear(worker),
        }
    }

    pub(crate) fn evict_worker(&mut self, worker: WorkerId, max_blocks: u64) -> Result<u64> {
        each!(self, index => index.evict_worker(worker, max_blocks))
    }

    /// When the next block expires.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Millis> {
        each!(self, None, index => index.next_expiry())
    }

    /// Drops blocks that expire by `now`; returns how many.
    pub fn expire(&mut self, now: Millis) -> u64 {
        each!(self, 0, index => index.expire(now))
    }

    /// Distinct blocks of all workers.
    #[must_use]
    pub fn distinct_blocks(&self) -> u64 {
        match self {
            Self::Exact(index) => index.len(),
            Self::Positional(index) => index.distinct_blocks(),
            Self::Tree(tree) => tree.len(),
        }
    }

    /// Blocks of a worker.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn block_count(&self, worker: WorkerId) -> Result<u64> {
        match self {
            Self::Exact(index) => index.block_count(worker),
            Self::Positional(index) => index.block_count(worker),
            Self::Tree(tree) => tree.count(worker),
        }
    }

    /// [`Self::block_count`] by medium, in the order of [`Medium::ALL`].
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn blocks_by_medium(&self, worker: WorkerId) -> Result<[u64; Medium::ALL.len()]> {
        match self {
            Self::Exact(index) => index.blocks_by_medium(worker),
            _ => self.block_count(worker).map(|count| [count, 0, 0, 0]),
        }
    }

    /// Counters of the index; the positional one keeps none.
    #[must_use]
    pub fn stats(&self) -> IndexStats {
        each!(self, IndexStats::default(), index => index.stats())
    }

    /// Heap bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        each!(self, index => index.memory_bytes())
    }

    /// Uses from now on have the age `tick`.
    pub fn set_tick(&mut self, tick: u64) {
        each!(self, {}, index => index.set_tick(tick));
    }

    /// Age of what goes next.
    #[must_use]
    pub fn oldest(&mut self) -> Option<u64> {
        each!(self, None, index => index.oldest())
    }

    /// Evicts up to `blocks` of what was used longest ago, before the tick `before`; returns how many went.
    pub fn evict_oldest(&mut self, blocks: u32, before: u64) -> u64 {
        each!(self, 0, index => index.evict_oldest(blocks, before))
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first disagreement.
    pub fn validate(&self) -> Result<()> {
        each!(self, Ok(()), index => index.validate())
    }
}
