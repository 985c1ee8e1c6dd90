//! The models of a fleet: rules and blocks of each, and one number of bytes for the block indexes of all.
//!
//! The indexes refuse growth beyond it (see `index::limit`), so it holds at every moment. What a placement lacks is made
//! by evicting what was used longest ago, whichever pool and worker it belongs to: as much as is lacking, a bounded number
//! of blocks per placement. If that is not enough, the placement is remembered in part or not at all, and counted.
//!
//! Workers have a fixed cost of some hundred bytes per pool, which is counted and cannot be evicted.

use std::ops::Index;

use crate::error::{Error, Result};
use crate::ids::{Medium, Millis, SequenceHash, WorkerId};
use crate::index::IndexStats;
use crate::learned::LearnedStats;
use crate::load::BookingId;
use crate::policy::{Ended, Rule};
use crate::sorting::sort_rarely;
use crate::tracker::store::{Depths, Store};

use super::blocks::Blocks;
use super::member::Member;
use super::pool::Pool;
use super::request::{PoolId, Request};
use super::rules::Rules;
use super::settings::PoolSettings;

/// Ticks between placements, more than one placement uses.
const TICK: u64 = 1 << 8;
/// Blocks that one placement may evict: so many for each of its own, and some more.
const EVICTED_PER_BLOCK: u64 = 4;
const EVICTED_BESIDE: u64 = 1024;
/// Times that one placement goes on after it lacked something.
const ROUNDS: u32 = 64;

/// Bytes allowed and taken.
#[derive(Debug, Default)]
struct Budget {
    limit: Option<usize>,
    /// What the indexes take.
    used: usize,
    /// Time of the placement at work.
    tick: u64,
    /// Placements that were not remembered, or not to their end.
    without_room: u64,
}

impl Budget {
    /// Changes the blocks of a pool and keeps the sum.
    fn change<T>(&mut self, blocks: &mut Blocks, change: impl FnOnce(&mut Blocks) -> T) -> T {
        let Some(limit) = self.limit else {
            return change(blocks);
        };
        let before = blocks.index_bytes();
        let others = self.used.saturating_sub(before);
        if let Some((index, _)) = blocks.index_mut() {
            index.set_limit(limit.saturating_sub(others), self.tick);
        }
        let outcome = change(blocks);
        self.used = others + blocks.index_bytes();
        outcome
    }
}

/// All models.
#[derive(Debug)]
pub struct Pools {
    list: Vec<Pool>,
    budget: Budget,
    /// Blocks that left the indexes for reasons they do not know.
    lost: Lost,
    /// Seed of the shadows' generators.
    seed: u64,
}

/// Blocks that left the index, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lost {
    /// The worker's capacity was reached.
    pub capacity: u64,
    /// They were believed long enough.
    pub ttl: u64,
    /// The memory limit of all indexes was reached.
    pub memory: u64,
    /// Their worker was removed.
    pub removed: u64,
    /// Their worker's cache was reset.
    pub cleared: u64,
    /// The request that was to bring them failed before its first token.
    pub failed: u64,
}

impl Index<PoolId> for Pools {
    type Output = Pool;

    fn index(&self, id: PoolId) -> &Pool {
        &self.list[id.0 as usize]
    }
}

impl Pools {
    /// One model. `limit` is on the bytes of all block indexes, `None` for none.
    pub(super) fn new(first: PoolSettings, limit: Option<usize>, seed: u64) -> Self {
        let mut pools = Self::none(limit, seed);
        pools.open(first);
        pools
    }

    fn none(limit: Option<usize>, seed: u64) -> Self {
        Self {
            list: Vec::new(),
            budget: Budget {
                limit,
                ..Budget::default()
            },
            lost: Lost::default(),
            seed,
        }
    }

    /// Opens one more model.
    pub(super) fn open(&mut self, settings: PoolSettings) -> PoolId {
        self.push(Pool::new(settings, self.seed))
    }

    fn push(&mut self, pool: Pool) -> PoolId {
        let id = PoolId(self.list.len() as u32);
        self.budget.used += pool.blocks().index_bytes();
        self.list.push(pool);
        id
    }

    /// The same models without what is known.
    pub(super) fn fresh(&self) -> Self {
        let mut fresh = Self::none(self.budget.limit, self.seed);
        for pool in &self.list {
            fresh.push(pool.fresh(self.seed));
        }
        fresh
    }

    /// The models, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PoolId, &Pool)> {
        (0..).map(PoolId).zip(&self.list)
    }

    /// The model of a number, if there is one.
    pub(super) fn get(&self, id: PoolId) -> Option<&Pool> {
        self.list.get(id.0 as usize)
    }

    /// The rules of a model, to tell them what came of their choices.
    pub(super) fn rules_mut(&mut self, id: PoolId) -> &mut Rules {
        self.list[id.0 as usize].rules_mut()
    }

    /// Calls `each` with every rule of every model.
    pub(super) fn each_rule(&mut self, mut each: impl FnMut(&mut dyn Rule)) {
        for pool in &mut self.list {
            pool.rules_mut().each(&mut each);
        }
    }

    /// Asks an index how much of a prompt every worker holds.
    pub(super) fn look_up(&mut self, request: &Request<'_>) {
        self.blocks_mut(request.pool).look_up(request);
    }

    /// Changes what is held of a model, and evicts for it.
    pub(super) fn change<T>(&mut self, id: PoolId, change: impl FnOnce(&mut Blocks) -> T) -> T {
        let blocks = self.list[id.0 as usize].blocks_mut();
        let outcome = self.budget.change(blocks, change);
        self.fit();
        outcome
    }

    /// What is held of a model, for changes that leave the index as it is.
    pub(super) fn blocks_mut(&mut self, id: PoolId) -> &mut Blocks {
        self.list[id.0 as usize].blocks_mut()
    }

    /// Drops what a worker holds of a model. Returns the blocks.
    pub(super) fn clear_one(&mut self, id: PoolId, worker: WorkerId) -> u64 {
        let cleared = self.change(id, |blocks| blocks.clear(worker));
        self.lost.cleared += cleared;
        cleared
    }

    /// Drops what a worker holds.
    pub(super) fn clear(&mut self, worker: WorkerId) {
        self.lost.cleared += self.change_all(|blocks| blocks.clear(worker));
    }

    /// Forgets a worker registered as `order`.
    pub(super) fn remove_worker(&mut self, worker: WorkerId, order: u64) {
        self.each_rule(|rule| rule.forget(order));
        self.lost.removed += self.change_all(|blocks| blocks.remove_worker(worker));
    }

    /// Changes the blocks of every model. Returns the sum.
    fn change_all(&mut self, mut change: impl FnMut(&mut Blocks) -> u64) -> u64 {
        let budget = &mut self.budget;
        let each = |pool: &mut Pool| budget.change(pool.blocks_mut(), &mut change);
        let sum = self.list.iter_mut().map(each).sum();
        self.fit();
        sum
    }

    /// Registers a worker with the models that it serves, or changes how much it may hold there; the others forget it.
    pub(super) fn add_worker(&mut self, worker: WorkerId, member: &Member) {
        for id in (0..self.list.len() as u32).map(PoolId) {
            if !self.add_worker_to(id, worker, member) {
                let remove = |blocks: &mut Blocks| blocks.remove_worker(worker);
                self.lost.removed += self.change(id, remove);
            }
        }
    }

    /// The same of one model. Returns whether the worker serves it.
    pub(super) fn add_worker_to(&mut self, id: PoolId, worker: WorkerId, member: &Member) -> bool {
        if !member.serves(id) {
            return false;
        }
        self.change(id, |blocks| blocks.add_worker(worker, member));
        let gpu = member.profile().gpu.as_deref();
        let rules = self.rules_mut(id);
        rules.each(|rule| rule.describe(member.order(), gpu));
        true
    }

    /// Drops what was believed long enough.
    pub(super) fn expire(&mut self, now: Millis) {
        for pool in &mut self.list {
            if pool.blocks().is_due(now) {
                let expire = |blocks: &mut Blocks| blocks.expire(now);
                self.budget.change(pool.blocks_mut(), expire);
            }
        }
        self.fit();
    }

    /// The worker of a booking answered; `first_token` unless only its end was reported.
    pub(super) fn proven(
        &mut self,
        id: PoolId,
        (worker, booking): (WorkerId, BookingId),
        first_token: Option<Millis>,
        now: Millis,
    ) {
        let pool = &mut self.list[id.0 as usize];
        if pool.blocks().await_events() {
            self.change(id, |blocks| blocks.proven(worker, booking, now));
        } else {
            pool.blocks_mut().proven(worker, booking, now);
        }
        let rules = self.rules_mut(id);
        rules.each(|rule| rule.proven(booking, first_token));
    }

    /// A booking closed; `is_proven` if its worker answered.
    pub(super) fn ended(
        &mut self,
        id: PoolId,
        (worker, booking): (WorkerId, BookingId),
        ended: Ended,
        is_proven: bool,
    ) {
        self.rules_mut(id).each(|rule| rule.ended(booking, ended));
        if !is_proven {
            self.lost.failed += self.change(id, |blocks| blocks.ended(worker, booking, ended));
        }
    }

    /// All bookings are forgotten, and counts begin anew.
    pub(super) fn forget_bookings(&mut self) {
        self.lost = Lost::default();
        self.each_rule(|rule| rule.ended_all());
        for pool in &mut self.list {
            pool.blocks_mut().forget_bookings();
        }
    }

    /// Writes to an index until `write` says that it was complete, after what must go for that.
    pub(super) fn grow(
        &mut self,
        id: PoolId,
        blocks: usize,
        mut write: impl FnMut(&mut Store, &Depths) -> Result<bool>,
    ) -> Result<()> {
        let at = id.0 as usize;
        let mut write = |blocks: &mut Blocks| match blocks.index_mut() {
            Some((index, hint)) => write(index, hint),
            None => Ok(true),
        };
        if self.budget.limit.is_none() {
            return write(self.list[at].blocks_mut()).map(drop);
        }
        self.budget.tick += TICK;
        let mut left = EVICTED_BESIDE + EVICTED_PER_BLOCK * blocks as u64;
        for round in 0.. {
            let blocks = self.list[at].blocks_mut();
            if self.budget.change(blocks, &mut write)? {
                break;
            }
            if left == 0 || round == ROUNDS {
                self.budget.without_room += 1;
                break;
            }
            self.make_room(at, &mut left);
        }
        self.fit();
        Ok(())
    }

    /// The worker holds what another router placed, until `expires`, after what must go for it. Returns the blocks it did
    /// not hold before, `None` if the chain contradicts what is stored: nothing of it stays then.
    pub(super) fn adopt(
        &mut self,
        id: PoolId,
        (worker, medium): (WorkerId, Medium),
        anchor: Option<SequenceHash>,
        hashes: &[SequenceHash],
        expires: Option<Millis>,
    ) -> Option<u32> {
        self.blocks_mut(id).expect_remote();
        let (mut new, mut refused) = (0, false);
        let grown = self.grow(id, hashes.len(), |index, _| {
            let Store::Exact(index) = index else {
                return Ok(true);
            };
            let conflicts = index.stats().conflicts;
            // Given by another router, not computed from tokens here.
            new += index.store(worker, anchor, hashes, medium, expires)?;
            refused = index.stats().conflicts > conflicts;
            Ok(refused || index.cut().is_none())
        });
        if refused {
            self.disown(id, (worker, medium), anchor, hashes, new);
            return None;
        }
        // A worker that is not in the index holds nothing there.
        Some(grown.map_or(0, |()| new))
    }

    /// Takes back what [`Self::adopt`] brought, the last `new` blocks of what is here of the chain.
    pub(super) fn disown(
        &mut self,
        id: PoolId,
        (worker, medium): (WorkerId, Medium),
        anchor: Option<SequenceHash>,
        hashes: &[SequenceHash],
        new: u32,
    ) {
        self.change(id, |blocks| {
            if let Some((Store::Exact(index), _)) = blocks.index_mut() {
                // A worker that is not in the index holds nothing there.
                let _ = index.undo(worker, anchor, hashes, new, medium);
            }
        });
    }

    /// Evicts for what pool `at` lacks; `left` becomes 0 if that is not possible.
    fn make_room(&mut self, at: usize, left: &mut u64) {
        let fits = |blocks: &mut Blocks| blocks.index().is_none_or(Store::fits);
        while !self.budget.change(self.list[at].blocks_mut(), fits) {
            let lacking = self.list[at].blocks().index().and_then(Store::cut);
            let blocks = (lacking.unwrap_or(1).max(1) as u64).min(*left) as u32;
            // What this placement itself used must stay.
            *left = match self.evict(blocks, self.budget.tick) {
                0 => 0,
                gone => left.saturating_sub(gone),
            };
            if *left == 0 {
                return;
            }
        }
    }

    /// Evicts until the sum fits: what a change made without asking was more than the reserve.
    fn fit(&mut self) {
        while self
            .budget
            .limit
            .is_some_and(|limit| self.budget.used > limit)
        {
            if self.evict(u32::MAX, u64::MAX) == 0 {
                return;
            }
        }
    }

    /// Evicts up to `blocks` of what was used longest ago, before the tick `before`; returns how many went.
    fn evict(&mut self, blocks: u32, before: u64) -> u64 {
        while let Some((victim, _)) = self.oldest().filter(|(_, age)| *age < before) {
            let evict = |store: &mut Blocks| {
                let index = store.index_mut();
                index.map_or(0, |(index, _)| index.evict_oldest(blocks, before))
            };
            let gone = self.budget.change(self.list[victim].blocks_mut(), evict);
            if gone > 0 {
                return gone;
            }
            // What seemed oldest has a newer part: now that is known.
        }
        0
    }

    /// The pool with what was used longest ago, and when.
    fn oldest(&mut self) -> Option<(usize, u64)> {
        let age = |pool: &mut Pool| pool.blocks_mut().index_mut()?.0.oldest();
        let ages = self.list.iter_mut().enumerate();
        ages.filter_map(|(at, pool)| Some((at, age(pool)?)))
            .min_by_key(|(_, age)| *age)
    }

    fn indexes(&self) -> impl Iterator<Item = &Store> {
        self.list.iter().filter_map(|pool| pool.blocks().index())
    }

    /// Distinct blocks known, of one worker or of all.
    #[must_use]
    pub fn block_count(&self, worker: Option<WorkerId>) -> u64 {
        let count = |index: &Store| match worker {
            None => index.distinct_blocks(),
            Some(worker) => index.block_count(worker).unwrap_or(0),
        };
        self.indexes().map(count).sum()
    }

    /// Blocks known of a worker by medium, indexed as [`Medium::ALL`].
    #[must_use]
    pub fn blocks_by_medium(&self, worker: WorkerId) -> [u64; Medium::ALL.len()] {
        let mut sums = [0; Medium::ALL.len()];
        for index in self.indexes() {
            let counts = index.blocks_by_medium(worker).unwrap_or_default();
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        sums
    }

    /// What the block indexes counted, summed.
    #[must_use]
    pub fn index_stats(&self) -> IndexStats {
        self.indexes().fold(IndexStats::default(), |sum, index| {
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

    /// Every rule of every model.
    fn rules(&self) -> impl Iterator<Item = &dyn Rule> {
        self.list.iter().flat_map(|pool| pool.rules().iter())
    }

    /// Prefixes that the rules themselves remember.
    #[must_use]
    pub fn routes(&self) -> usize {
        self.rules().map(<dyn Rule>::routes).sum()
    }

    /// How many of them came from other routers.
    #[must_use]
    pub fn remote_routes(&self) -> usize {
        self.rules().map(<dyn Rule>::remote_routes).sum()
    }

    /// For which parts rules keep the prompts themselves, which other routers never receive.
    #[must_use]
    pub fn keeps_prompts(&self) -> Vec<&'static str> {
        let mut parts: Vec<_> = self.list.iter().flat_map(Pool::keeps_prompts).collect();
        sort_rarely(&mut parts, Ord::cmp);
        parts.dedup();
        parts
    }

    /// What the rules learned: of which model, for which part, and what.
    #[must_use]
    pub fn learned(&self) -> Vec<(PoolId, &'static str, LearnedStats)> {
        let of = |(id, pool): (PoolId, &Pool)| {
            let learned = |(_, part, rule): (_, _, &dyn Rule)| Some((id, part, rule.learned()?));
            pool.rules().parts().filter_map(learned).collect::<Vec<_>>()
        };
        self.iter().flat_map(of).collect()
    }

    /// The model that the rule of a pool learned for `part`, as it is saved.
    #[must_use]
    pub fn learned_model(&self, pool: PoolId, part: &str) -> Option<Vec<u8>> {
        let parts = self.get(pool)?.rules().parts();
        let mut named = parts.filter(|(_, name, _)| *name == part);
        named.find_map(|(.., rule)| rule.model())
    }

    /// Blocks that left the indexes, by cause.
    #[must_use]
    pub fn lost(&self) -> Lost {
        let stats = self.index_stats();
        Lost {
            capacity: stats.evicted,
            memory: stats.displaced,
            ttl: stats.expired,
            ..self.lost
        }
    }

    /// Placements that were not remembered, or not to their end, because the budget left no room.
    #[must_use]
    pub fn without_room(&self) -> u64 {
        self.budget.without_room
    }

    /// Bytes of the block indexes.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.indexes().map(Store::memory_bytes).sum()
    }

    /// Heap bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let rules: usize = self.rules().map(<dyn Rule>::memory_bytes).sum();
        let blocks = self.list.iter().map(|pool| pool.blocks().memory_bytes());
        rules + blocks.sum::<usize>()
    }

    /// Recounts every index and rule while `open` bookings are open, and compares the bytes with the budget.
    pub(super) fn validate(&self, open: usize) -> Result<()> {
        let fail = |text| Err(Error::Invariant(text));
        for pool in &self.list {
            pool.blocks().validate()?;
        }
        for rule in self.rules() {
            rule.validate()?;
            let pending = rule.learned().map_or(0, |stats| stats.pending);
            if pending > open {
                return fail(format!("{pending} rows wait for {open} bookings"));
            }
        }
        let (used, counted) = (self.index_bytes(), self.budget.used);
        match self.budget.limit {
            Some(_) if counted != used => fail(format!(
                "the indexes take {used} bytes, {counted} are counted"
            )),
            Some(limit) if used > limit && self.block_count(None) > 0 => {
                fail(format!("the indexes take {used} bytes of {limit}"))
            }
            _ => Ok(()),
        }
    }
}
