//! Workers whose engines publish KV events.
//!
//! A worker has events once a message of its engine was applied; from then on its *home* pool holds the blocks that
//! events reported and nothing else. Once a message is lost, the blocks it may concern are doubtful: they count as
//! placements do, and new placements as on a worker without events, until events settle it.

pub(crate) mod rank;
pub(crate) mod streams;

use cachelb_core::groups::Resuming;
use cachelb_core::ids::{Medium, Millis, SequenceHash, WorkerId};
use cachelb_events::{Fault, FeedState, Finding, Heard, Worth};

use crate::Selector;
use crate::bookings::Bookings;
use crate::fleet::Fleet;
use crate::fleet::block_sizes::{Disagreement, Facts};
use crate::fleet::worker::{Announced, FeedStatus, Member};
use crate::indexes::Pools;
use crate::indexes::pool::Pool;
use crate::request::PoolId;
use crate::select::predictions;

/// How long doubtful blocks count, at most.
const DOUBT_MS: u64 = 1_800_000;

/// State that events of one worker's engine change.
#[derive(Debug)]
pub struct Feed<'a> {
    worker: WorkerId,
    /// The pool that they are about.
    home: PoolId,
    fleet: &'a mut Fleet,
    pools: &'a mut Pools,
    bookings: &'a mut Bookings,
}

impl Selector {
    /// The events of a worker, `None` for one that is gone.
    pub fn feed(&mut self, worker: WorkerId) -> Option<Feed<'_>> {
        let home = self.fleet.member(worker)?.profile.home();
        Some(Feed {
            worker,
            home,
            fleet: &mut self.fleet,
            pools: &mut self.pools,
            bookings: &mut self.bookings,
        })
    }
}

impl Feed<'_> {
    /// The home pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pools[self.home]
    }

    /// Sets the trust in the events. The first trusted event drops the blocks assumed in the home pool, unless messages
    /// before it are lost; once events are refused, the blocks that they announced are dropped.
    pub fn set_trust(&mut self, worth: Worth) {
        let feed = match worth {
            Worth::Refused => None,
            Worth::Believed {
                state,
                engine_block_size,
            } => Some(FeedStatus {
                state,
                engine_block_size,
            }),
        };
        // Blocks that lost messages may have announced stay doubtful.
        let begins_lossy = feed.is_some_and(FeedStatus::has_lost);
        if self.fleet.feed(self.worker).is_some() != feed.is_some() && !begins_lossy {
            self.withdraw_all();
        }
        if !feed.is_some_and(FeedStatus::is_caught_up) {
            self.bookings.lose_track(self.worker);
        }
        let behind = feed.is_some_and(|feed| feed.state == FeedState::Suspect);
        self.bookings.deadlines.set_behind(self.worker.slot, behind);
        self.set(Facts::default(), feed);
    }

    /// Refuses the events from now on.
    pub fn refuse(&mut self) {
        self.set_trust(Worth::Refused);
    }

    /// Adds cache properties that the engine reported.
    pub(crate) fn learn(&mut self, facts: Facts) {
        self.set(facts, self.fleet.feed(self.worker));
    }

    fn set(&mut self, facts: Facts, status: Option<FeedStatus>) {
        let (is_resized, disagrees) = self.fleet.learn(self.worker, facts, status);
        self.bookings.ledger.counters.size_disagreements += u64::from(disagrees);
        if let Some(member) = self.fleet.member(self.worker).filter(|_| is_resized) {
            self.pools.add_worker(self.worker, member);
        }
    }

    /// Messages of the engine are lost for good: the worker's blocks count for a limited time, if they are in device
    /// memory. Returns the blocks that events had confirmed.
    pub fn doubt(&mut self, now: Millis) -> u64 {
        self.bookings.lose_track(self.worker);
        let ttl_ms = self.pools[self.home].placements.ttl_ms;
        let ttl_ms = ttl_ms.unwrap_or(DOUBT_MS).min(DOUBT_MS);
        let until = Some(Millis(now.0.saturating_add(ttl_ms)));
        let worker = self.worker;
        let leases = self.bookings.leases(worker);
        self.pools
            .change(self.home, |blocks| blocks.doubt(worker, leases, until))
    }

    /// The worker holds `hashes`, a chain behind `parent`, in `medium`; expected blocks among them have arrived.
    /// Returns how many it did not hold there before.
    pub fn announce(
        &mut self,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
        now: Millis,
    ) -> u32 {
        let (worker, home, mut new) = (self.worker, self.home, 0);
        let shared = self.pools[home]
            .shared
            .as_ref()
            .filter(|shared| shared.holder == worker);
        let expires = shared.and_then(|shared| shared.expires(now));
        let member = self.fleet.member(worker);
        let awaited = if member.is_some_and(Member::hides_groups) {
            predictions::awaited(self.pools[home].exact(), worker, hashes)
        } else {
            Vec::new()
        };
        let grown = self.pools.grow(home, |index, _| {
            let exact = index.exact_mut()?;
            new = exact.announce(worker, parent, hashes, medium, expires)?;
            Ok(())
        });
        for hash in awaited {
            self.mark(hash, medium);
        }
        if let Some(&last) = hashes.last()
            && let Some(depth) = self.followed_depth(last)
        {
            let bookings = &mut *self.bookings;
            bookings.confirmed(worker, depth, last, now, &mut self.pools.renewing());
        }
        let member = self.fleet.member(worker);
        let feed = member.and_then(|member| member.feed);
        if feed.is_some_and(FeedStatus::has_lost) {
            self.pools
                .change(home, |blocks| blocks.fit_doubtful(worker));
        }
        // A worker that is not in the index holds nothing there.
        grown.map_or(0, |()| new)
    }

    /// The worker no longer holds `hashes` in `medium`, nor is anything of them on its way if that is device memory. Returns
    /// how many it held there.
    pub fn withdraw(&mut self, hashes: &[SequenceHash], medium: Medium) -> u32 {
        let worker = self.worker;
        if medium == Medium::Gpu {
            for &hash in hashes {
                self.give_up(hash, true);
            }
        }
        self.pools.change(self.home, |blocks| {
            let index = &mut blocks.index;
            index.remove(worker, hashes, Some(medium)).unwrap_or(0)
        })
    }

    /// How many blocks are before `hash` in its chain, if that is known and requests of the worker are followed.
    fn followed_depth(&self, hash: SequenceHash) -> Option<usize> {
        let mut followed = self.bookings.followed.of(self.worker.slot);
        followed.next()?;
        self.pools[self.home].blocks.as_ref()?.depth_of(hash)
    }

    /// The worker does not hold `hash`, or, unless `is_gone`, has no mark on it.
    fn give_up(&mut self, hash: SequenceHash, is_gone: bool) {
        if let Some(depth) = self.followed_depth(hash) {
            self.bookings.given_up(self.worker, depth, hash, is_gone);
        }
    }

    /// The worker holds nothing in its home pool. Returns the blocks it held.
    pub fn withdraw_all(&mut self) -> u64 {
        self.bookings.start_over(self.worker);
        let worker = self.worker;
        self.pools.change(self.home, |blocks| blocks.clear(worker))
    }

    /// The worker holds `hash`, a block it holds in another medium, in `medium` too. Returns whether that is new.
    pub fn spread(&mut self, hash: SequenceHash, medium: Medium) -> bool {
        let (worker, mut new) = (self.worker, false);
        let grown = self.pools.grow(self.home, |index, _| {
            new = index.exact_mut()?.spread(worker, hash, medium)?;
            Ok(())
        });
        grown.is_ok() && new
    }

    /// The engine resumes only where all its cache groups can, if `marked_only`, and only where so many tokens beyond the
    /// place are held; `rule`: where prompts leave what that takes, as far as it is known.
    pub fn set_resumes(&mut self, marked_only: bool, above_tokens: u32, rule: Option<Resuming>) {
        let announced = Announced {
            marked_only,
            above_tokens,
            rule,
        };
        if let Some(member) = self.fleet.announced(self.worker, announced) {
            self.pools.add_worker(self.worker, member);
        }
    }

    /// All groups of the engine can resume behind `hash`, with their blocks in media up to `medium`. Returns whether
    /// the worker holds the block.
    pub fn mark(&mut self, hash: SequenceHash, medium: Medium) -> bool {
        let worker = self.worker;
        self.pools
            .change(self.home, |blocks| blocks.mark(worker, hash, medium))
    }

    /// Not all of them can any more. Returns whether they could.
    pub fn unmark(&mut self, hash: SequenceHash) -> bool {
        self.give_up(hash, false);
        let worker = self.worker;
        self.pools
            .change(self.home, |blocks| blocks.unmark(worker, hash))
    }

    /// A message of the engine was applied. Returns the findings about the engine.
    pub fn applied(&mut self, message: Heard) -> Finding {
        Finding {
            fault: self.fault(message),
            eagle: self.drafts(),
        }
    }

    /// Whether the engine drafts with EAGLE or MTP, as it is said to or found to.
    #[must_use]
    pub fn drafts(&self) -> bool {
        let member = self.fleet.member(self.worker);
        let stated = member.is_some_and(|member| member.profile.engine.drafts());
        stated || self.bookings.checks.drafts(self.worker)
    }

    /// Why the engine's announcements cannot be true, if so.
    fn fault(&mut self, message: Heard) -> Option<Fault> {
        let member = self.fleet.member(self.worker)?;
        let block_size = self.pools[self.home].block_size;
        let too_many = member.feed.and(member.sizes().too_many_tokens(block_size));
        if too_many.is_some_and(|too_many| message.device_tokens >= too_many) {
            return Some(Fault::Capacity);
        }
        if !message.is_exact {
            self.bookings.lose_track(self.worker);
            return None;
        }
        let suspicious = self.bookings.caught_up(self.worker, message.until);
        suspicious.then_some(Fault::CachedTokens)
    }

    /// Requests whose cached tokens were compared with the promise of events, and those that found less.
    #[must_use]
    pub fn checked(&self) -> (u64, u64) {
        self.bookings.checks.totals(self.worker)
    }

    /// Why the block size of the engine is not sure, `None` if its sources agree.
    #[must_use]
    pub fn disagreement(&self) -> Option<Disagreement> {
        self.fleet.member(self.worker)?.sizes().disagreement()
    }
}
