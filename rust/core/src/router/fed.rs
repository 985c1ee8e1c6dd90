//! Workers whose engines say what they hold.
//!
//! A worker is fed once a message of its engine was applied; from then on its *home* pool holds what events said of it
//! and nothing else. Once a message is lost, what it may concern is doubtful: such blocks are believed as placements are,
//! and new placements as on a worker without events, until events settle it. The home pool is that of the first model the worker declared, or the first pool.

use crate::events::{Fault, FeedState, Heard, Worth};
use crate::ids::{Medium, Millis, SequenceHash, WorkerId};
use crate::policy::Reason;
use crate::tracker::Origin;

use super::fleet::{Member, Profile};
use super::request::{PoolId, Request};
use super::selector::Selector;

/// How long blocks are believed that a lost message may have removed, at most.
const DOUBT_MS: u64 = 1_800_000;

/// What the events of a worker are worth now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fed {
    /// How far they can be believed.
    pub state: FeedState,
    /// Tokens per block of the engine, once it is known.
    pub engine_block_size: Option<u32>,
}

impl Fed {
    /// Whether no message is known to be missing.
    pub(super) fn is_caught_up(self) -> bool {
        matches!(self.state, FeedState::Live | FeedState::Degraded)
    }

    /// Whether messages are lost for good, so that not all of what the engine holds is known.
    pub(super) fn has_lost(self) -> bool {
        self.state == FeedState::Degraded
    }
}

impl Member {
    /// The pool its events speak of.
    pub fn home(&self) -> PoolId {
        self.profile.home()
    }

    /// What its events are worth in `pool`, `None` if they do not speak of it or there are none.
    pub fn fed_in(&self, pool: PoolId) -> Option<Fed> {
        self.fed.filter(|_| self.home() == pool)
    }
}

impl Profile {
    /// The pool its events speak of.
    #[must_use]
    pub fn home(&self) -> PoolId {
        let first = self.pools.as_ref().and_then(|pools| pools.first());
        first.copied().unwrap_or_default()
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

    /// The reason of a pick by a rule that goes by events: another one where they tell, and had no say in it.
    pub(super) fn without_events(&self, by: Reason, slot: u32, request: &Request<'_>) -> Reason {
        let member = self.fleet.at(slot);
        let fed = member.and_then(|member| member.fed_in(request.pool));
        match (by, request.blocks, fed) {
            (Reason::Prefix | Reason::Cold, Some((_, Origin::Text)), Some(_)) => Reason::TextOnly,
            (Reason::Prefix | Reason::Cold, _, Some(fed)) if fed.state == FeedState::Suspect => {
                Reason::StaleEvents
            }
            _ => by,
        }
    }

    /// Says what the events of a worker are worth. With the first of any worth, what was believed of it in its home pool is
    /// dropped, unless messages before it are lost; once they are worth nothing, what they said is.
    pub fn set_worth(&mut self, worker: WorkerId, worth: Worth) {
        let fed = match worth {
            Worth::Refused => None,
            Worth::Believed {
                state,
                engine_block_size,
            } => Some(Fed {
                state,
                engine_block_size,
            }),
        };
        // What lost messages may have told of stays in doubt.
        let begins_lossy = fed.is_some_and(Fed::has_lost);
        if self.fed(worker).is_some() != fed.is_some() && !begins_lossy {
            self.withdraw_all(worker);
        }
        if !fed.is_some_and(Fed::is_caught_up) {
            self.checks.lose_sight(worker);
        }
        let behind = fed.is_some_and(|fed| fed.state == FeedState::Suspect);
        if let Some(home) = self.home(worker) {
            let leases = &mut self.pools[home.0 as usize].leases;
            leases.set_behind(worker.slot, behind);
        }
        self.ever_fed |= fed.is_some();
        self.resize(worker, |member| member.fed = fed);
    }

    /// Messages of the worker's engine are lost for good: what it holds in its home pool is believed for a time, if it is
    /// in device memory. Returns the blocks that events had confirmed.
    pub fn doubt(&mut self, worker: WorkerId, now: Millis) -> u64 {
        let Some(home) = self.home(worker) else {
            return 0;
        };
        self.checks.lose_sight(worker);
        let pool = &mut self.pools[home.0 as usize];
        let ttl_ms = pool.placements.ttl_ms.unwrap_or(DOUBT_MS).min(DOUBT_MS);
        let until = Some(Millis(now.0.saturating_add(ttl_ms)));
        let doubted = self.budget.change(pool, |pool| pool.doubt(worker, until));
        self.budget.fit(&mut self.pools);
        doubted
    }

    /// The path up to a block, as far as the home pool of the worker knows it.
    #[must_use]
    pub fn path_to(&self, worker: WorkerId, hash: SequenceHash) -> Vec<SequenceHash> {
        let home = self.home(worker);
        let index = home.and_then(|home| self.pools[home.0 as usize].index.as_ref());
        index
            .and_then(|index| index.path_to(hash))
            .unwrap_or_default()
    }

    /// Nobody has events any more, and what they said is dropped.
    pub fn unfeed_all(&mut self) {
        for (_, worker) in self.fleet.ids() {
            self.set_worth(worker, Worth::Refused);
        }
    }

    /// The worker holds `hashes`, a chain behind `parent`, in `medium`; what was on its way has arrived. Returns how many it
    /// did not hold there before.
    pub fn announce(
        &mut self,
        worker: WorkerId,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
        now: Millis,
    ) -> u32 {
        let Some(home) = self.home(worker) else {
            return 0;
        };
        let (pools, at) = (&mut self.pools, home.0 as usize);
        let new = self
            .budget
            .announce(pools, at, worker, parent, hashes, medium);
        let pool = &mut self.pools[at];
        if let Some(&last) = hashes.last()
            && !pool.leases.is_empty()
        {
            self.budget
                .change(pool, |pool| pool.confirmed(worker, last, now));
        }
        self.fit_doubts(worker, home);
        new
    }

    /// Where messages are lost, what is doubtful makes room for what is known: both together fit the worker's memory.
    pub(super) fn fit_doubts(&mut self, worker: WorkerId, home: PoolId) {
        let pool = &mut self.pools[home.0 as usize];
        if !pool.doubts {
            return;
        }
        let fed = self.fleet.member(worker).and_then(|m| m.fed_in(home));
        if fed.is_some_and(Fed::has_lost) {
            self.budget.change(pool, |pool| {
                let index = pool.index.as_mut();
                // A worker that is not in the index holds nothing there.
                index.and_then(|index| index.fit_speculative(worker).ok())
            });
        }
    }

    /// The worker no longer holds `hashes` in `medium`, nor is anything of them on its way if that is device memory. Returns
    /// how many it held there.
    pub fn withdraw(&mut self, worker: WorkerId, hashes: &[SequenceHash], medium: Medium) -> u32 {
        let Some(home) = self.home(worker) else {
            return 0;
        };
        let (pool, checks) = (&mut self.pools[home.0 as usize], &mut self.checks);
        let removed = self.budget.change(pool, |pool| {
            if medium == Medium::Gpu {
                pool.given_up(worker, hashes, checks);
            }
            let index = pool.index.as_mut()?;
            index.remove(worker, hashes, Some(medium)).ok()
        });
        self.budget.fit(&mut self.pools);
        removed.unwrap_or(0)
    }

    /// The worker holds nothing in its home pool. Returns the blocks it held.
    pub fn withdraw_all(&mut self, worker: WorkerId) -> u64 {
        let Some(home) = self.home(worker) else {
            return 0;
        };
        self.checks.start_over(worker);
        let pool = &mut self.pools[home.0 as usize];
        let removed = self.budget.change(pool, |pool| pool.clear(worker));
        self.ledger.lost.cleared += removed;
        self.budget.fit(&mut self.pools);
        removed
    }

    /// The worker holds `hash`, a block it holds in another medium, in `medium` too. Returns whether that is new.
    pub fn spread(&mut self, worker: WorkerId, hash: SequenceHash, medium: Medium) -> bool {
        let Some(home) = self.home(worker) else {
            return false;
        };
        let (pools, at) = (&mut self.pools, home.0 as usize);
        self.budget.spread(pools, at, worker, hash, medium)
    }

    /// A message of a worker's engine was applied. Returns why what it announced cannot be true, if so.
    pub fn heard(&mut self, worker: WorkerId, heard: Heard) -> Option<Fault> {
        let member = self.fleet.member(worker)?;
        let block_size = self.pools[member.home().0 as usize].block_size;
        let too_many = member.fed.and(member.too_many_tokens(block_size));
        if too_many.is_some_and(|too_many| heard.device_tokens >= too_many) {
            return Some(Fault::Capacity);
        }
        if !heard.reuses_all {
            self.checks.lose_sight(worker);
            return None;
        }
        let suspicious = self.checks.heard(worker, heard.until);
        suspicious.then_some(Fault::CachedTokens)
    }

    /// Requests of a worker for which what its engine found cached was compared with what events promised, and those
    /// that found less.
    #[must_use]
    pub fn checked(&self, worker: WorkerId) -> (u64, u64) {
        self.checks.totals(worker)
    }

    /// Hints that [`Self::announce`] and [`Self::withdraw`] are about to be told of `blocks` of the worker, or of what follows
    /// them.
    pub fn prefetch(&self, worker: WorkerId, blocks: &[SequenceHash]) {
        let home = self.home(worker);
        if let Some(index) = home.and_then(|home| self.pools[home.0 as usize].index.as_ref()) {
            index.prefetch(blocks);
        }
    }

    /// Whether the worker holds a block in a medium of its home pool.
    #[must_use]
    pub fn holds(&self, worker: WorkerId, hash: SequenceHash, medium: Medium) -> bool {
        let index = self
            .home(worker)
            .and_then(|home| self.pools[home.0 as usize].index.as_ref());
        index.is_some_and(|index| index.holds(worker, hash, medium))
    }
}
