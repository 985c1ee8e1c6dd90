//! What a selector tells of itself: counts, bytes, the next pick, a recount of everything.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::{Medium, WorkerId};
use crate::index::IndexStats;
use crate::learned::LearnedStats;
use crate::load::LoadBook;
use crate::policy::Rule;
use crate::sorting::sort_rarely;
use crate::tracker::store::Store;

use super::ledger::{Ledger, Lost};
use super::offers::Offers;
use super::pool::Pool;
use super::request::{Pick, PoolId, Request};
use super::selector::{Open, Selector};
use super::settings::Settings;
use super::trail::Seen;

impl Selector {
    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The load book.
    #[must_use]
    pub fn book(&self) -> &LoadBook {
        &self.book
    }

    /// Counters and records.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Names and ids of the known workers, by slot.
    #[must_use]
    pub fn workers(&self) -> Vec<(Arc<str>, WorkerId)> {
        self.fleet.ids()
    }

    /// What decision `number` saw, `None` once it is no longer kept.
    #[must_use]
    pub fn seen_by(&self, number: u64) -> Option<Vec<Seen>> {
        self.trail.get(number)
    }

    /// What the next selection would pick and sees. Changes nothing.
    ///
    /// # Errors
    /// As [`Selector::select`].
    pub fn preview(
        &mut self,
        offers: &mut Offers,
        request: &Request<'_>,
    ) -> Result<(Pick, Vec<Seen>)> {
        let decided = self.decide(offers, request, true)?;
        let mut seen = Vec::with_capacity(offers.len());
        self.see(offers, &decided, request, usize::MAX, &mut seen);
        let name = |offer: u32| Arc::clone(&offers[offer as usize].name);
        let mut seen = Seen::named(&seen, name);
        self.take_apart(offers, request, &mut seen);
        Ok((decided.pick, seen))
    }

    /// Distinct blocks known, of one worker or of all; 0 for an unknown worker and for rules that keep no index.
    #[must_use]
    pub fn block_count(&self, name: Option<&str>) -> u64 {
        let id = name.map(|name| self.fleet.find(name));
        let indexes = self.pools.iter().filter_map(|pool| pool.index.as_ref());
        indexes
            .map(|index| match id {
                None => index.distinct_blocks(),
                Some(id) => id.and_then(|id| index.block_count(id).ok()).unwrap_or(0),
            })
            .sum()
    }

    /// Blocks known of a worker by medium, indexed as [`Medium::ALL`].
    #[must_use]
    pub fn blocks_by_medium(&self, id: WorkerId) -> [u64; Medium::ALL.len()] {
        let mut sums = [0; Medium::ALL.len()];
        for index in self.pools.iter().filter_map(|pool| pool.index.as_ref()) {
            let counts = index.blocks_by_medium(id).unwrap_or_default();
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        sums
    }

    /// What the block indexes counted, summed.
    #[must_use]
    pub fn index_stats(&self) -> IndexStats {
        let indexes = self.pools.iter().filter_map(|pool| pool.index.as_ref());
        indexes.fold(IndexStats::default(), |sum, index| {
            let stats = index.stats();
            IndexStats {
                evicted: sum.evicted + stats.evicted,
                displaced: sum.displaced + stats.displaced,
                expired: sum.expired + stats.expired,
                orphans: sum.orphans + stats.orphans,
                conflicts: sum.conflicts + stats.conflicts,
                unknown_removals: sum.unknown_removals + stats.unknown_removals,
            }
        })
    }

    /// Prefixes that the rules themselves remember.
    #[must_use]
    pub fn routes(&self) -> usize {
        let rules = self.pools.iter().flat_map(Pool::rules);
        rules.map(<dyn Rule>::routes).sum()
    }

    /// How many of them other routers told of.
    #[must_use]
    pub fn remote_routes(&self) -> usize {
        let rules = self.pools.iter().flat_map(Pool::rules);
        rules.map(<dyn Rule>::remote_routes).sum()
    }

    /// For which parts rules keep the prompts themselves, which others are never told.
    #[must_use]
    pub fn keeps_prompts(&self) -> Vec<&'static str> {
        let mut parts: Vec<_> = self.pools.iter().flat_map(Pool::keeps_prompts).collect();
        sort_rarely(&mut parts, Ord::cmp);
        parts.dedup();
        parts
    }

    /// What the rules learned: of which pool, for which part, and what.
    #[must_use]
    pub fn learned(&self) -> Vec<(PoolId, &'static str, LearnedStats)> {
        let mut all = Vec::new();
        for (at, pool) in self.pools.iter().enumerate() {
            let told = |(part, rule): (_, &dyn Rule)| Some((part, rule.learned()?));
            let told = pool.parts().filter_map(told);
            all.extend(told.map(|(part, stats)| (PoolId(at as u32), part, stats)));
        }
        all
    }

    /// The model that the rule of a pool learned for `part`, as it is saved.
    #[must_use]
    pub fn learned_model(&self, pool: PoolId, part: &str) -> Option<Vec<u8>> {
        let pool = self.pools.get(pool.0 as usize)?;
        let mut parts = pool.parts().filter(|(name, _)| *name == part);
        parts.find_map(|(_, rule)| rule.model())
    }

    /// Blocks that left the indexes, by cause.
    #[must_use]
    pub fn lost(&self) -> Lost {
        let stats = self.index_stats();
        Lost {
            capacity: stats.evicted,
            memory: stats.displaced,
            ttl: stats.expired,
            ..self.ledger.lost
        }
    }

    /// Placements that were not remembered, or not to their end, because the budget left no room.
    #[must_use]
    pub fn without_room(&self) -> u64 {
        self.budget.without_room()
    }

    /// Bytes of the block indexes.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        let indexes = self.pools.iter().filter_map(|pool| pool.index.as_ref());
        indexes.map(Store::memory_bytes).sum()
    }

    /// Heap bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.book.memory_bytes()
            + self.fleet.memory_bytes()
            + self.rows.memory_bytes()
            + self.rows_aside.memory_bytes()
            + self.open.capacity() * size_of::<Open>()
            + self.trail.memory_bytes()
            + self.ledger.memory_bytes()
            + self.checks.memory_bytes()
            + self.sharing.as_ref().map_or(0, |s| s.memory_bytes())
            + self.pools.iter().map(Pool::memory_bytes).sum::<usize>()
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first disagreement.
    pub fn validate(&self) -> Result<()> {
        self.book.validate()?;
        for (name, id) in self.fleet.ids() {
            if !self.fleet.is_current(id) || self.book.load(id).is_none() {
                return Err(Error::Invariant(format!("worker {name:?} has no columns")));
            }
        }
        for pool in &self.pools {
            pool.index.as_ref().map_or(Ok(()), Store::validate)?;
            pool.unproven.validate()?;
            pool.rules().try_for_each(<dyn Rule>::validate)?;
            for stats in pool.rules().filter_map(<dyn Rule>::learned) {
                let (pending, open) = (stats.pending, self.book.len());
                if pending > open {
                    let text = format!("{pending} rows wait for {open} bookings");
                    return Err(Error::Invariant(text));
                }
            }
        }
        self.check_sharing()?;
        self.rows
            .validate(&self.fleet, &self.book, self.settings.max_report_age_ms)?;
        self.budget.validate(&self.pools)
    }
}
