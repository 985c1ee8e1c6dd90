//! Workers whose engines say what they hold.
//!
//! A worker is fed once a message of its engine was applied; from then on its *home* pool holds what events said of it
//! and nothing else. The home pool is that of the first model the worker declared, or the first pool.

use crate::events::FeedState;
use crate::ids::{Medium, SequenceHash, WorkerId};

use super::fleet::Member;
use super::request::PoolId;
use super::selector::Selector;

/// What the events of a worker are worth now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fed {
    /// How far they can be believed.
    pub state: FeedState,
    /// Tokens per block of the engine, once it is known.
    pub engine_block_size: Option<u32>,
}

impl Member {
    /// The pool its events speak of.
    pub fn home(&self) -> PoolId {
        let declared = self.profile.pools.as_ref();
        declared
            .and_then(|pools| pools.first().copied())
            .unwrap_or_default()
    }
}

impl Selector {
    /// What the events of a worker are worth, `None` for one without.
    #[must_use]
    pub fn fed(&self, worker: WorkerId) -> Option<Fed> {
        self.fleet.member(worker)?.fed
    }

    /// The pool that the events of a worker speak of, `None` for a worker that is gone.
    #[must_use]
    pub fn home(&self, worker: WorkerId) -> Option<PoolId> {
        Some(self.fleet.member(worker)?.home())
    }

    /// Says what the events of a worker are worth. With the first, what was believed of it in its home pool is dropped.
    pub fn set_fed(&mut self, worker: WorkerId, fed: Fed) {
        let known = self.fed(worker);
        if known.is_none() {
            self.withdraw_all(worker);
        }
        if known != Some(fed)
            && let Some(member) = self.fleet.member_mut(worker)
        {
            member.fed = Some(fed);
        }
    }

    /// The worker has no events any more, and what they said is dropped.
    pub fn unfeed(&mut self, worker: WorkerId) {
        if self.fed(worker).is_none() {
            return;
        }
        self.withdraw_all(worker);
        if let Some(member) = self.fleet.member_mut(worker) {
            member.fed = None;
        }
    }

    /// The worker holds `hashes`, a chain behind `parent`, in `medium`. Returns how many it did not hold there before.
    pub fn announce(
        &mut self,
        worker: WorkerId,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
    ) -> u32 {
        let Some(home) = self.home(worker) else {
            return 0;
        };
        let (pools, at) = (&mut self.pools, home.0 as usize);
        self.budget
            .announce(pools, at, worker, parent, hashes, medium)
    }

    /// The worker no longer holds `hashes` in `medium`. Returns how many it held there.
    pub fn withdraw(&mut self, worker: WorkerId, hashes: &[SequenceHash], medium: Medium) -> u32 {
        let Some(home) = self.home(worker) else {
            return 0;
        };
        let pool = &mut self.pools[home.0 as usize];
        let removed = self.budget.change(pool, |pool| {
            let index = pool.index.as_mut();
            index.and_then(|index| index.remove(worker, hashes, Some(medium)).ok())
        });
        self.budget.fit(&mut self.pools);
        removed.unwrap_or(0)
    }

    /// The worker holds nothing in its home pool. Returns the blocks it held.
    pub fn withdraw_all(&mut self, worker: WorkerId) -> u64 {
        let Some(home) = self.home(worker) else {
            return 0;
        };
        let pool = &mut self.pools[home.0 as usize];
        let removed = self.budget.change(pool, |pool| pool.clear(worker));
        self.ledger.lost.cleared += removed;
        self.budget.fit(&mut self.pools);
        removed
    }
}
