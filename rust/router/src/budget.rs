//! One limit on the bytes of the block indexes of all models.
//!
//! The indexes refuse growth beyond it (see `index::limit`). A placement that lacks room goes on after evictions of what
//! was used longest ago, whichever pool and worker it belongs to: a bounded number of blocks per placement. If that is not
//! enough, the placement is remembered in part or not at all, and counted. The limit holds after every call.

use cachelb_core::error::{Error, Result};
use cachelb_core::tracker::{Depths, Store};

use super::blocks::Blocks;
use super::pool::Pool;

/// Ticks between placements, more than one placement uses.
const TICK: u64 = 1 << 8;
/// Blocks that one placement may evict: so many for each of its own and some more, so many at once or what it lacks.
const EVICTED_PER_BLOCK: u64 = 4;
const EVICTED_BESIDE: u64 = 1024;
const EVICTED_AT_ONCE: u64 = 64;

/// Bytes allowed and taken.
#[derive(Debug, Default)]
pub(super) struct Budget {
    limit: Option<usize>,
    /// What the indexes take.
    used: usize,
    /// Time of the placement at work.
    tick: u64,
    /// Placements that were not remembered, or not to their end.
    pub without_room: u64,
}

impl Budget {
    /// `limit` is on the bytes of all block indexes, `None` for none.
    pub fn new(limit: Option<usize>) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// Counts the bytes of one more index.
    pub fn add(&mut self, pool: &Pool) {
        self.used += pool.index().map_or(0, Store::memory_bytes);
    }

    /// Changes the blocks of a pool, if it has any, and keeps the sum.
    pub fn meter<T>(
        &mut self,
        pool: &mut Pool,
        change: impl FnOnce(&mut Blocks) -> T,
    ) -> Option<T> {
        let blocks = pool.blocks_mut()?;
        let Some(limit) = self.limit else {
            return Some(change(blocks));
        };
        let others = self.used.saturating_sub(blocks.index().memory_bytes());
        let (index, _) = blocks.index_mut();
        index.set_limit(limit.saturating_sub(others), self.tick);
        let outcome = change(blocks);
        self.used = others + blocks.index().memory_bytes();
        Some(outcome)
    }

    /// Writes to the index of pool `at` until `write` says that it was complete, after what must go for that.
    pub fn grow(
        &mut self,
        pools: &mut [Pool],
        at: usize,
        blocks: usize,
        mut write: impl FnMut(&mut Store, &Depths) -> Result<bool>,
    ) -> Result<()> {
        let mut write = |blocks: &mut Blocks| {
            let (index, hint) = blocks.index_mut();
            write(index, hint)
        };
        self.tick += TICK;
        let mut left = EVICTED_BESIDE + EVICTED_PER_BLOCK * blocks as u64;
        loop {
            let written = self.meter(&mut pools[at], &mut write).transpose()?;
            if written != Some(false) || self.limit.is_none() {
                break;
            }
            if left == 0 {
                self.without_room += 1;
                break;
            }
            let lacking = pools[at].index().and_then(Store::cut).unwrap_or(0);
            let most = left.min(EVICTED_AT_ONCE.max(lacking as u64)) as u32;
            // Blocks that this placement itself used must stay.
            left = match self.evict(pools, most, self.tick) {
                0 => 0,
                gone => left.saturating_sub(gone),
            };
        }
        if self.evict_beyond(pools, self.tick) {
            self.without_room += 1;
            self.fit(pools);
        }
        Ok(())
    }

    /// Evicts until the sum fits: what a change made without asking was more than there was room for.
    pub fn fit(&mut self, pools: &mut [Pool]) {
        self.evict_beyond(pools, u64::MAX);
    }

    /// Evicts what was used before the tick `before` until the sum fits; returns whether it is still too much.
    fn evict_beyond(&mut self, pools: &mut [Pool], before: u64) -> bool {
        while self.limit.is_some_and(|limit| self.used > limit) {
            if self.evict(pools, EVICTED_AT_ONCE as u32, before) == 0 {
                return true;
            }
        }
        false
    }

    /// Evicts up to `blocks` of what was used longest ago, before the tick `before`; returns how many went.
    fn evict(&mut self, pools: &mut [Pool], blocks: u32, before: u64) -> u64 {
        let age = |pool: &mut Pool| pool.blocks_mut()?.index_mut().0.oldest();
        loop {
            let ages = pools.iter_mut().filter_map(|pool| Some((age(pool)?, pool)));
            let Some((_, victim)) = ages
                .min_by_key(|(age, _)| *age)
                .filter(|(age, _)| *age < before)
            else {
                return 0;
            };
            let evict = |held: &mut Blocks| held.index_mut().0.evict_oldest(blocks, before);
            let gone = self.meter(victim, evict).unwrap_or(0);
            if gone > 0 {
                return gone;
            }
            // What seemed oldest has a newer part: now that is known.
        }
    }

    /// Compares the bytes counted with those the indexes take, and with the limit, which only empty ones may pass.
    pub fn validate(&self, taken: usize, is_empty: bool) -> Result<()> {
        let used = self.used;
        match self.limit {
            Some(_) if used != taken => Err(Error::Invariant(format!(
                "the indexes take {taken} bytes, {used} are counted"
            ))),
            Some(limit) if used > limit && !is_empty => Err(Error::Invariant(format!(
                "the indexes take {used} bytes of {limit}"
            ))),
            _ => Ok(()),
        }
    }
}
