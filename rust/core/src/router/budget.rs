//! One number of bytes for the block indexes of all pools.
//!
//! The indexes refuse growth beyond it (see `index::limit`), so it holds at every moment. What a placement lacks is made
//! by evicting what was used longest ago, whichever pool and worker it belongs to: as much as is lacking, a bounded number
//! of blocks per placement. If that is not enough, the placement is remembered in part or not at all, and counted.
//!
//! Workers have a fixed cost of some hundred bytes per pool, which is counted and cannot be evicted.

use crate::error::{Error, Result};
use crate::ids::{Medium, Millis, SequenceHash, WorkerId};
use crate::tracker::store::Store;

use super::pool::Pool;

/// Ticks between placements, more than one placement uses.
const TICK: u64 = 1 << 8;
/// Blocks that one placement may evict: so many for each of its own, and some more.
const EVICTED_PER_BLOCK: u64 = 4;
const EVICTED_BESIDE: u64 = 1024;
/// Times that one placement goes on after it lacked something.
const ROUNDS: u32 = 64;

/// Bytes allowed and taken.
#[derive(Debug, Default)]
pub(super) struct Budget {
    limit: Option<usize>,
    /// What the indexes take.
    used: usize,
    /// Time of the placement at work.
    tick: u64,
    /// Placements that were not remembered, or not to their end.
    without_room: u64,
}

impl Budget {
    /// A budget of so many bytes for these pools, `None` for no limit.
    pub fn new(limit: Option<usize>, pools: &[Pool]) -> Self {
        let mut budget = Self {
            limit,
            ..Self::default()
        };
        for pool in pools {
            budget.open(pool);
        }
        budget
    }

    /// Changes a pool and keeps the sum.
    pub fn change<T>(&mut self, pool: &mut Pool, change: impl FnOnce(&mut Pool) -> T) -> T {
        let Some(limit) = self.limit else {
            return change(pool);
        };
        let before = pool.index_bytes();
        let others = self.used.saturating_sub(before);
        if let Some(index) = &mut pool.index {
            index.set_limit(limit.saturating_sub(others), self.tick);
        }
        let outcome = change(pool);
        self.used = others + pool.index_bytes();
        outcome
    }

    /// Counts a pool in.
    pub fn open(&mut self, pool: &Pool) {
        self.used += pool.index_bytes();
    }

    /// Records that the worker will hold the blocks, after what must go for them.
    pub fn record(
        &mut self,
        pools: &mut [Pool],
        at: usize,
        worker: WorkerId,
        hashes: &[SequenceHash],
        now: Millis,
    ) -> Result<()> {
        self.grow(pools, at, hashes.len(), |pool| {
            pool.record(worker, hashes, now)
        })
    }

    /// Records that the worker is expected to hold the path from its depth `from` on until `until` (`None`: until it is
    /// evicted), after what must go for it.
    pub fn expect(
        &mut self,
        pools: &mut [Pool],
        at: usize,
        worker: WorkerId,
        path: &[SequenceHash],
        from: usize,
        until: Option<Millis>,
    ) -> Result<()> {
        self.grow(pools, at, path.len() - from, |pool| {
            pool.expect(worker, path, from, until)
        })
    }

    /// The worker holds what its engine announced, after what must go for it. Returns the blocks it did not hold before.
    pub fn announce(
        &mut self,
        pools: &mut [Pool],
        at: usize,
        worker: WorkerId,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
    ) -> u32 {
        let mut new = 0;
        let grown = self.grow(pools, at, hashes.len(), |pool| {
            let Some(index) = &mut pool.index else {
                return Ok(true);
            };
            new += index.announce(worker, parent, hashes, medium)?;
            Ok(index.cut().is_none())
        });
        // A worker that is not in the index holds nothing there.
        grown.map_or(0, |()| new)
    }

    /// The worker holds what another router says, until `expires`, likewise. Returns the blocks it did not hold before,
    /// `None` if the chain contradicts what is stored: nothing of it stays then.
    pub fn adopt(
        &mut self,
        pools: &mut [Pool],
        at: usize,
        (worker, medium): (WorkerId, Medium),
        anchor: Option<SequenceHash>,
        hashes: &[SequenceHash],
        expires: Option<Millis>,
    ) -> Option<u32> {
        let (mut new, mut refused) = (0, false);
        let grown = self.grow(pools, at, hashes.len(), |pool| {
            let Some(Store::Exact(index)) = &mut pool.index else {
                return Ok(true);
            };
            let conflicts = index.stats().conflicts;
            // Given by another router, not computed from tokens here.
            new += index.store(worker, anchor, hashes, medium, expires)?;
            refused = index.stats().conflicts > conflicts;
            Ok(refused || index.cut().is_none())
        });
        if refused {
            self.disown(&mut pools[at], (worker, medium), anchor, hashes, new);
            return None;
        }
        // A worker that is not in the index holds nothing there.
        Some(grown.map_or(0, |()| new))
    }

    /// Takes back what [`Self::adopt`] brought, the last `new` blocks of what is here of the chain.
    pub fn disown(
        &mut self,
        pool: &mut Pool,
        (worker, medium): (WorkerId, Medium),
        anchor: Option<SequenceHash>,
        hashes: &[SequenceHash],
        new: u32,
    ) {
        self.change(pool, |pool| {
            if let Some(Store::Exact(index)) = &mut pool.index {
                // A worker that is not in the index holds nothing there.
                let _ = index.undo(worker, anchor, hashes, new, medium);
            }
        });
    }

    /// The worker holds a block in one more medium, likewise. Returns whether that is new.
    pub fn spread(
        &mut self,
        pools: &mut [Pool],
        at: usize,
        worker: WorkerId,
        hash: SequenceHash,
        medium: Medium,
    ) -> bool {
        let mut new = false;
        let grown = self.grow(pools, at, 1, |pool| {
            let Some(index) = &mut pool.index else {
                return Ok(true);
            };
            new |= index.spread(worker, hash, medium)?;
            Ok(index.cut().is_none())
        });
        grown.is_ok() && new
    }

    /// Writes to pool `at` until `write` says that it was complete, after what must go for that.
    fn grow(
        &mut self,
        pools: &mut [Pool],
        at: usize,
        blocks: usize,
        mut write: impl FnMut(&mut Pool) -> Result<bool>,
    ) -> Result<()> {
        if self.limit.is_none() {
            return write(&mut pools[at]).map(drop);
        }
        self.tick += TICK;
        let mut left = EVICTED_BESIDE + EVICTED_PER_BLOCK * blocks as u64;
        for round in 0.. {
            if self.change(&mut pools[at], &mut write)? {
                break;
            }
            if left == 0 || round == ROUNDS {
                self.without_room += 1;
                break;
            }
            self.make_room(pools, at, &mut left);
        }
        self.fit(pools);
        Ok(())
    }

    /// Evicts for what pool `at` lacks; `left` becomes 0 if that is not possible.
    fn make_room(&mut self, pools: &mut [Pool], at: usize, left: &mut u64) {
        while !self.change(&mut pools[at], |pool| {
            pool.index.as_ref().is_none_or(Store::fits)
        }) {
            let lacking = pools[at].index.as_ref().and_then(Store::cut);
            let blocks = (lacking.unwrap_or(1).max(1) as u64).min(*left) as u32;
            // What this placement itself used must stay.
            *left = match self.evict(pools, blocks, self.tick) {
                0 => 0,
                gone => left.saturating_sub(gone),
            };
            if *left == 0 {
                return;
            }
        }
    }

    /// Evicts until the sum fits: what a change made without asking was more than the reserve.
    pub fn fit(&mut self, pools: &mut [Pool]) {
        while self.limit.is_some_and(|limit| self.used > limit) {
            if self.evict(pools, u32::MAX, u64::MAX) == 0 {
                return;
            }
        }
    }

    /// Evicts up to `blocks` of what was used longest ago, before the tick `before`; returns how many went.
    fn evict(&mut self, pools: &mut [Pool], blocks: u32, before: u64) -> u64 {
        while let Some((victim, _)) = oldest(pools).filter(|(_, age)| *age < before) {
            let gone = self.change(&mut pools[victim], |pool| {
                let index = pool.index.as_mut();
                index.map_or(0, |index| index.evict_oldest(blocks, before))
            });
            if gone > 0 {
                return gone;
            }
            // What seemed oldest has a newer part: now that is known.
        }
        0
    }

    /// Placements that were not remembered, or not to their end.
    pub fn without_room(&self) -> u64 {
        self.without_room
    }

    /// Compares the sum with a recount, and with the budget.
    pub fn validate(&self, pools: &[Pool]) -> Result<()> {
        let used = pools.iter().map(Pool::index_bytes).sum();
        let empty = pools.iter().all(|pool| {
            let index = pool.index.as_ref();
            index.is_none_or(|index| index.distinct_blocks() == 0)
        });
        match self.limit {
            Some(_) if self.used != used => Err(Error::Invariant(format!(
                "the indexes take {used} bytes, {} are counted",
                self.used
            ))),
            Some(limit) if used > limit && !empty => Err(Error::Invariant(format!(
                "the indexes take {used} bytes of {limit}"
            ))),
            _ => Ok(()),
        }
    }
}

/// The pool with what was used longest ago, and when.
fn oldest(pools: &mut [Pool]) -> Option<(usize, u64)> {
    let age = |pool: &mut Pool| pool.index.as_mut().and_then(Store::oldest);
    let ages = pools.iter_mut().enumerate();
    ages.filter_map(|(at, pool)| Some((at, age(pool)?)))
        .min_by_key(|(_, age)| *age)
}
