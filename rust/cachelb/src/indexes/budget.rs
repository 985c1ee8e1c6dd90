//! One limit on the bytes of the block indexes of all models, as far as their mean sizes tell.
//!
//! A change may take more for a moment: what was used longest ago goes for it afterwards, whichever pool and worker it
//! belongs to. A placement that does not fit beside itself loses its end, and is counted. The limit holds after every
//! call.

use cachelb_core::block_tracker::{Depths, Store};
use cachelb_core::error::{Error, Result};

use crate::indexes::blocks::Blocks;
use crate::indexes::pool::Pool;

/// Ticks between placements, more than one placement uses.
const TICK: u64 = 1 << 8;
/// Blocks evicted between two looks at the sum.
const EVICTED_AT_ONCE: u32 = 64;

/// The limit, and the order of uses over all indexes.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    limit: Option<usize>,
    /// Time of the latest placement.
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

    /// The blocks of a pool, if it has any, to be used now.
    pub fn blocks_mut<'p>(&self, pool: &'p mut Pool) -> Option<&'p mut Blocks> {
        let blocks = pool.blocks.as_mut()?;
        blocks.index.set_tick(self.tick);
        Some(blocks)
    }

    /// Adds to the index of pool `at`, as the latest use of all, and evicts for it.
    pub fn grow(
        &mut self,
        pools: &mut [Pool],
        at: usize,
        write: impl FnOnce(&mut Store, &Depths) -> Result<()>,
    ) -> Result<()> {
        self.tick += TICK;
        if let Some(blocks) = self.blocks_mut(&mut pools[at]) {
            let (index, hint) = (&mut blocks.index, &blocks.depths);
            write(index, hint)?;
        }
        if self.evict_beyond(pools, self.tick) {
            self.without_room += 1;
            self.fit(pools);
        }
        Ok(())
    }

    /// Bytes of the indexes of all pools.
    fn taken(pools: &[Pool]) -> usize {
        let indexes = pools.iter().filter_map(Pool::index);
        indexes.map(Store::memory_bytes).sum()
    }

    /// Evicts until the sum fits.
    pub fn fit(&mut self, pools: &mut [Pool]) {
        self.evict_beyond(pools, u64::MAX);
    }

    /// Evicts blocks used before the tick `before` until the sum fits; returns whether it is still too much.
    fn evict_beyond(&mut self, pools: &mut [Pool], before: u64) -> bool {
        while self.limit.is_some_and(|limit| Self::taken(pools) > limit) {
            if Self::evict(pools, before) == 0 {
                return true;
            }
        }
        false
    }

    /// Evicts some of what was used longest ago, before the tick `before`; returns how many went.
    fn evict(pools: &mut [Pool], before: u64) -> u64 {
        let age = |pool: &mut Pool| pool.blocks.as_mut()?.index.oldest();
        loop {
            let ages = pools.iter_mut().filter_map(|pool| Some((age(pool)?, pool)));
            let Some((_, victim)) = ages
                .min_by_key(|(age, _)| *age)
                .filter(|(age, _)| *age < before)
            else {
                return 0;
            };
            let index = victim.blocks.as_mut().map(|blocks| &mut blocks.index);
            let gone = index.map_or(0, |index| index.evict_oldest(EVICTED_AT_ONCE, before));
            if gone > 0 {
                return gone;
            }
            // The pool that seemed oldest has a newer part: now that is known.
        }
    }

    /// Compares the bytes with the limit, which only empty indexes may pass.
    pub fn validate(&self, pools: &[Pool], is_empty: bool) -> Result<()> {
        let taken = Self::taken(pools);
        match self.limit {
            Some(limit) if taken > limit && !is_empty => Err(Error::Invariant(format!(
                "the indexes take {taken} bytes of {limit}"
            ))),
            _ => Ok(()),
        }
    }
}
