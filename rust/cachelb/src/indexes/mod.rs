//! The models of a fleet: rules and blocks of each, and one number of bytes for the block indexes of all.
//!
//! Workers have a fixed cost of some hundred bytes per pool, which is counted and cannot be evicted.

pub(crate) mod blocks;
pub(crate) mod budget;
pub(crate) mod known_ends;
#[cfg(feature = "peers")]
pub(crate) mod naming;
pub(crate) mod peers;
pub(crate) mod pool;
pub(crate) mod reusable;
pub(crate) mod rules;
pub(crate) mod shared_cache;
pub(crate) mod shared_credit;
pub(crate) mod shared_readers;

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use cachelb_core::block_tracker::{Depths, Store};
use cachelb_core::error::Result;
use cachelb_core::ids::{Medium, Millis, SequenceHash, WorkerId};
#[cfg(feature = "learned")]
use cachelb_policy::LearnedStats;
use cachelb_policy::Rule;
use cachelb_policy::parts::State;

use crate::fleet::worker::Member;
use crate::indexes::blocks::{Blocks, Lost};
use crate::indexes::budget::Budget;
use crate::indexes::peers::{PeerGroup, Pulls};
use crate::indexes::pool::Pool;
use crate::indexes::shared_readers::Seats;
use crate::request::PoolId;

/// All models.
#[derive(Debug)]
pub struct Pools {
    list: Vec<Pool>,
    budget: Budget,
}

impl Index<PoolId> for Pools {
    type Output = Pool;

    fn index(&self, id: PoolId) -> &Pool {
        &self.list[id.0 as usize]
    }
}

impl IndexMut<PoolId> for Pools {
    fn index_mut(&mut self, id: PoolId) -> &mut Pool {
        &mut self.list[id.0 as usize]
    }
}

impl Pools {
    /// No models. `limit` is on the bytes of all block indexes, `None` for none.
    pub(crate) fn new(limit: Option<usize>) -> Self {
        Self {
            list: Vec::new(),
            budget: Budget::new(limit),
        }
    }

    /// Opens one more model.
    pub(crate) fn open(&mut self, pool: Pool) -> PoolId {
        self.list.push(pool);
        PoolId(self.list.len() as u32 - 1)
    }

    /// The models, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PoolId, &Pool)> {
        (0..).map(PoolId).zip(&self.list)
    }

    /// Calls `each` with the peer groups of every model.
    pub(crate) fn each_peers(&mut self, mut each: impl FnMut(&mut Vec<PeerGroup>)) {
        for pool in &mut self.list {
            each(&mut pool.peers);
        }
    }

    /// The peer groups, and what came of their copies.
    #[must_use]
    pub fn pulls(&self) -> BTreeMap<String, Pulls> {
        let groups = self.list.iter().flat_map(|pool| &pool.peers);
        let counted = groups.map(|group| (group.name.to_string(), group.pulls));
        counted.collect()
    }

    /// The readers of shared caches, and the members of peer groups, of all models.
    pub(crate) fn seats_mut(&mut self) -> impl Iterator<Item = &mut Seats> {
        self.list.iter_mut().flat_map(|pool| {
            let groups = pool.peers.iter_mut();
            let of_groups = groups.flat_map(|group| [&mut group.members, &mut group.sources]);
            let shared = pool.shared.iter_mut().map(|shared| &mut shared.seats);
            shared.chain(of_groups)
        })
    }

    /// Calls `each` with the states of every rule of every model.
    pub(crate) fn each_rule(&mut self, mut each: impl FnMut(&mut dyn State)) {
        for pool in &mut self.list {
            pool.rules.each(&mut each);
        }
    }

    /// Changes the blocks of a model, if they are recorded, and evicts for it.
    pub(crate) fn change<T: Default>(
        &mut self,
        id: PoolId,
        change: impl FnOnce(&mut Blocks) -> T,
    ) -> T {
        let blocks = self.budget.blocks_mut(&mut self.list[id.0 as usize]);
        let outcome = blocks.map(change);
        self.budget.fit(&mut self.list);
        outcome.unwrap_or_default()
    }

    /// As [`Self::change`], for every model for which `concerns`.
    pub(crate) fn change_all<T>(
        &mut self,
        concerns: impl Fn(&Blocks) -> bool,
        mut change: impl FnMut(&mut Blocks) -> T,
    ) {
        for pool in &mut self.list {
            if let Some(blocks) = self.budget.blocks_mut(pool)
                && concerns(blocks)
            {
                change(blocks);
            }
        }
        self.budget.fit(&mut self.list);
    }

    /// Registers a worker with the models that it serves, or changes how much it may hold there; the others forget it.
    pub(crate) fn add_worker(&mut self, worker: WorkerId, member: &Member) {
        for id in (0..self.list.len() as u32).map(PoolId) {
            if !self.add_worker_to(id, worker, member) {
                self.change(id, |blocks| blocks.remove_worker(worker));
            }
        }
    }

    /// As [`Self::add_worker`], for one model. Returns whether the worker serves it.
    pub(crate) fn add_worker_to(&mut self, id: PoolId, worker: WorkerId, member: &Member) -> bool {
        if !member.serves(id) {
            return false;
        }
        let capacity = self[id].expect_worker(member);
        let size = self[id].block_size;
        let resumes = member.resumes(id, size);
        self.change(id, |blocks| {
            let index = &mut blocks.index;
            index.add_worker(worker, capacity);
            if let Ok(index) = index.exact_mut() {
                // It was just added.
                let _ = index.set_resumes(worker, resumes);
            }
        });
        true
    }

    /// Drops blocks whose time to live is over.
    pub(crate) fn expire(&mut self, now: Millis) {
        self.change_all(|blocks| blocks.is_due(now), |blocks| blocks.expire(now));
    }

    /// Moves the deadlines of blocks that events should confirm. Those that an index has no room for keep theirs.
    pub(crate) fn renewing(
        &mut self,
    ) -> impl FnMut(WorkerId, PoolId, &[SequenceHash], usize, Millis) {
        |worker, id, path, confirmed, until| {
            self.change(id, |blocks| {
                // A worker that is not in the index is expected to hold nothing there.
                if let Ok(index) = blocks.index.exact_mut() {
                    let _ = index.expect(worker, path, confirmed as u32, None, Some(until));
                }
            });
        }
    }

    /// Records that a worker holds a path until `until` (`None`: until it is evicted).
    pub(crate) fn record(
        &mut self,
        id: PoolId,
        worker: WorkerId,
        path: &[SequenceHash],
        until: Option<Millis>,
    ) -> Result<()> {
        if until.is_some()
            && let Some(blocks) = self[id].blocks.as_mut()
        {
            blocks.expect_expiry();
        }
        self.grow(id, |index, hint| {
            index.record(worker, path, Some(hint), until)?;
            Ok(())
        })
    }

    /// Evicts older blocks and writes to an index, until `write` returns that it was complete.
    pub(crate) fn grow(
        &mut self,
        id: PoolId,
        write: impl FnOnce(&mut Store, &Depths) -> Result<()>,
    ) -> Result<()> {
        self.budget.grow(&mut self.list, id.0 as usize, write)
    }

    fn blocks(&self) -> impl Iterator<Item = &Blocks> {
        self.list.iter().filter_map(|pool| pool.blocks.as_ref())
    }

    fn indexes(&self) -> impl Iterator<Item = &Store> {
        self.list.iter().filter_map(Pool::index)
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

    /// Every rule: of which model, for which part.
    pub fn rules(&self) -> impl Iterator<Item = (PoolId, &'static str, &dyn Rule)> {
        self.iter().flat_map(|(id, pool)| {
            let parts = pool.rules.parts();
            parts.map(move |(_, part, rule)| (id, part, rule))
        })
    }

    /// For which parts rules keep the prompts themselves, which other routers never receive.
    #[must_use]
    pub fn keeps_prompts(&self) -> Vec<&'static str> {
        let mut parts: Vec<_> = self.list.iter().flat_map(Pool::keeps_prompts).collect();
        parts.sort_unstable();
        parts.dedup();
        parts
    }

    /// State learned by the rules: the model, the part, and the statistics.
    #[cfg(feature = "learned")]
    #[must_use]
    pub fn learned(&self) -> Vec<(PoolId, &'static str, LearnedStats)> {
        let learned = |(id, part, rule): (_, _, &dyn Rule)| Some((id, part, rule.learned()?));
        self.rules().filter_map(learned).collect()
    }

    /// Blocks that left the indexes, and news that they could not take, by cause.
    #[must_use]
    pub fn lost(&self) -> Lost {
        let mut sum = Lost::default();
        for lost in self.blocks().map(Blocks::lost) {
            sum.removed += lost.removed;
            sum.cleared += lost.cleared;
            sum.failed += lost.failed;
            sum.index.merge(&lost.index);
        }
        sum
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
    pub(crate) fn memory_bytes(&self) -> usize {
        let rules = self.rules().map(|(.., rule)| rule.memory_bytes());
        self.index_bytes() + rules.sum::<usize>()
    }

    /// Recounts every index and rule, and compares the bytes with the limit.
    pub(crate) fn validate(&self) -> Result<()> {
        self.indexes().try_for_each(Store::validate)?;
        self.rules().try_for_each(|(.., rule)| rule.validate())?;
        let is_empty = self.block_count(None) == 0;
        self.budget.validate(&self.list, is_empty)
    }
}
