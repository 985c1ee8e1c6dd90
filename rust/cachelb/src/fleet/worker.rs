//! One worker: its profile, the state of its events, and whether it takes requests now.

use std::sync::Arc;

use cachelb_core::groups::Resuming;
use cachelb_core::ids::{Medium, Millis};
use cachelb_core::index::Resumes;
use cachelb_events::FeedState;

use crate::fleet::block_sizes::{EngineSizes, Facts};
use crate::fleet::contradictions::Run;
use crate::fleet::health::Health;
use crate::request::{PoolId, Wanted};

cachelb_core::named! {
    /// Whether a worker takes part in one request; its name is for the error that lists them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    Eligibility {
        /// It may be picked.
        #[default]
        Candidate = "available",
        /// The worker reports itself unhealthy.
        Unhealthy = "unhealthy",
        /// Outside the subset asked for.
        NotAmong = "not in `among`",
        /// Ruled out for this request.
        Excluded = "excluded",
        /// Marked not ready, or it fails its health check. This and what follows is set by the selector.
        NotReady = "not ready",
        /// Finishing its requests.
        Draining = "draining",
        /// Does not serve the model.
        OtherModel = "not serving the model",
        /// Serves the other half of a pair only.
        OtherRole = "not in the role",
        /// Failed lately, and others did not.
        Failing = "failing",
        /// Its engine sleeps, and others do not.
        Asleep = "asleep",
        /// Shows no sign of life, and others do.
        Unreachable = "unreachable",
        /// Answered 429 or 503 lately, and others did not.
        PushingBack = "pushing back",
        /// Reports more load than the veto allows, and others do not.
        Vetoed = "overloaded",
        /// Has as much to do as admission allows, as have all others.
        Full = "full",
    }
}

cachelb_core::named! {
    /// Which half of a pair a worker serves.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    Role {
        /// Whole requests and either half.
        #[default]
        Both = "both",
        /// Prefill only.
        Prefill = "prefill",
        /// Decode, and whole requests.
        Decode = "decode",
    }
}

impl Role {
    fn serves(self, wanted: Wanted) -> bool {
        match self {
            Self::Both => true,
            Self::Prefill => wanted == Wanted::Prefill,
            Self::Decode => wanted != Wanted::Prefill,
        }
    }
}

/// Properties of a registered worker.
#[derive(Debug, Clone, PartialEq, Default)]
#[repr(C)]
pub struct Profile {
    /// Which half of a pair it serves.
    pub role: Role,
    /// Whether it is one of several ranks of its worker.
    pub ranked: bool,
    /// How long its weight takes to rise from a quarter to full.
    pub slow_start_ms: u64,
    /// The models it serves; `None` serves all.
    pub pools: Option<Box<[PoolId]>>,
    /// Cache properties reported by its engine.
    pub engine: Facts,
    /// Name of its device's model.
    pub gpu: Option<Arc<str>>,
    /// It is a cache that workers read, and serves nothing.
    pub is_shared_cache: bool,
}

impl Profile {
    /// Key and rank of the candidate called `name` that has this profile, as [`crate::selector::Offer::rank`] made it of them.
    #[must_use]
    pub fn split<'a>(&self, name: &'a str) -> (&'a str, Option<u32>) {
        let parts = name.rsplit_once('#').filter(|_| self.ranked);
        parts.map_or((name, None), |(key, rank)| (key, rank.parse().ok()))
    }

    /// The pool that events of the worker are about: that of the first model it declares, or the first pool.
    #[must_use]
    pub fn home(&self) -> PoolId {
        let first = self.pools.as_ref().and_then(|pools| pools.first());
        first.copied().unwrap_or_default()
    }
}

/// State of the KV events of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedStatus {
    /// Trust in the events.
    pub state: FeedState,
    /// Tokens per block of the engine, once it is known.
    pub engine_block_size: Option<u32>,
}

impl FeedStatus {
    /// Whether no message is known to be missing.
    pub(crate) fn is_caught_up(self) -> bool {
        matches!(self.state, FeedState::Live | FeedState::Degraded)
    }

    /// Whether messages are lost for good, so that some of the engine's blocks are not known.
    pub(crate) fn has_lost(self) -> bool {
        self.state == FeedState::Degraded
    }
}

/// How an engine resumes, by its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Announced {
    /// Only where all its cache groups can, as its events report.
    pub marked_only: bool,
    /// Tokens that must be held beyond the place.
    pub above_tokens: u32,
    /// The rule of its cache groups; `None` if any leading blocks will do, or while it is not known.
    pub rule: Option<Resuming>,
}

/// A new worker begins at this share of its weight.
const SLOW_START_FROM: f64 = 0.25;

/// A registered worker; by default none. Fields that every selection reads lie in the first cache line.
#[derive(Debug, Clone, Default)]
#[repr(C, align(64))]
pub(crate) struct Member {
    pub generation: Option<u32>,
    /// Registration order.
    pub order: u64,
    /// The call that offered it last.
    pub last_seen: u64,
    /// When its slow start began.
    started: Millis,
    /// Marks it ready or not.
    pub ready: bool,
    /// Whether it passed its latest health check.
    pub healthy: bool,
    /// Whether it finishes its requests, and leaves.
    pub draining: bool,
    /// The state of its events, if they count.
    pub feed: Option<FeedStatus>,
    announced: Announced,
    /// Its facts.
    pub profile: Profile,
    /// Its latest failures.
    pub health: Health,
    /// Reports that contradict the size of its cache.
    pub size_run: Run,
    /// Looks at its speed that contradict its device.
    pub speed_run: Run,
    /// First tokens since the latest.
    pub first_tokens: u32,
    /// How many times as fast it is as most others of its device, if that is another speed.
    pub times_as_fast: Option<f64>,
}

impl Member {
    /// The worker of a generation, registered as `order` in `call`.
    pub fn new(generation: u32, order: u64, profile: Profile, call: u64, now: Millis) -> Self {
        Self {
            generation: Some(generation),
            order,
            last_seen: call,
            started: now,
            ready: true,
            healthy: true,
            profile,
            ..Self::default()
        }
    }

    /// Changes its profile. One that was draining is ready and healthy again.
    pub fn set_profile(&mut self, mut profile: Profile) {
        profile.engine.learned = self.profile.engine.updated(profile.engine).learned;
        let is_same = profile.gpu == self.profile.gpu;
        self.times_as_fast = self.times_as_fast.filter(|_| is_same);
        self.profile = profile;
        let returns = std::mem::take(&mut self.draining);
        self.ready |= returns;
        self.healthy |= returns;
    }

    /// Adds cache properties that its engine reported, and the state of its events. Returns whether anything changed.
    pub fn learn(&mut self, facts: Facts, feed: Option<FeedStatus>) -> bool {
        let before = (self.profile.engine, self.feed);
        self.profile.engine = self.profile.engine.updated(facts);
        self.feed = feed;
        before != (self.profile.engine, self.feed)
    }

    /// Marks it as offered in `call`. Returns whether that is the first time.
    pub fn see(&mut self, call: u64) -> bool {
        std::mem::replace(&mut self.last_seen, call) != call
    }

    /// The reason why it is passed over, if it is for its failures.
    pub fn kept_out(&self) -> Eligibility {
        if self.health.silence().is_some() {
            Eligibility::Unreachable
        } else if self.health.rests {
            Eligibility::PushingBack
        } else {
            Eligibility::Failing
        }
    }

    /// As [`Self::feed`], for blocks of `pool`: `None` too if events are about another one.
    pub fn feed_in(&self, pool: PoolId) -> Option<FeedStatus> {
        self.feed.filter(|_| self.profile.home() == pool)
    }

    /// Block sizes of its engine.
    pub fn sizes(&self) -> EngineSizes {
        EngineSizes {
            announced: self.feed.and_then(|feed| feed.engine_block_size),
            engine: self.profile.engine,
        }
    }

    /// How its engine resumes prompts of `pool`, `None` if any leading blocks will do.
    pub fn resuming(&self, pool: PoolId) -> Option<Resuming> {
        let engine = self.profile.engine;
        let rule = self
            .full_feed_in(pool)
            .map_or(engine.resuming, |_| self.announced.rule);
        rule.map(|rule| engine.retained(rule))
    }

    /// The media by which placements in `pool` mark blocks: the first that a block is in.
    pub fn marks(&self, pool: PoolId) -> &'static [Medium] {
        match self.feed_in(pool) {
            None => &[Medium::Gpu],
            // Events mark the blocks they confirm, if they describe all groups.
            Some(_) if self.hides_groups() => &[Medium::Gpu, Medium::Speculative],
            Some(_) => &[Medium::Speculative],
        }
    }

    /// Whether events of its engine leave out cache groups that resuming depends on.
    pub fn hides_groups(&self) -> bool {
        let rule = self.profile.engine.resuming;
        rule.is_some_and(|rule| rule.is_hidden)
    }

    /// Its events in `pool`, if they describe all cache groups.
    fn full_feed_in(&self, pool: PoolId) -> Option<FeedStatus> {
        self.feed_in(pool).filter(|_| !self.hides_groups())
    }

    /// How the index is to answer for it in `pool`, of blocks of `block_size` tokens.
    pub fn resumes(&self, pool: PoolId, block_size: u32) -> Resumes {
        let (marked_only, above_tokens) = match self.full_feed_in(pool) {
            Some(_) => (self.announced.marked_only, self.announced.above_tokens),
            None => self
                .resuming(pool)
                .map_or((false, 0), |rule| (rule.needs_marks(), rule.above)),
        };
        Resumes {
            marked_only,
            above: above_tokens.div_ceil(block_size.max(1)),
        }
    }

    /// Takes in how its engine resumes by its events. Returns whether that is news.
    pub fn announce(&mut self, announced: Announced) -> bool {
        std::mem::replace(&mut self.announced, announced) != announced
    }

    /// Equal for workers of one kind of GPU, 0 if it is not known. Those that are faster or slower than most are others.
    pub fn kind(&self) -> u32 {
        let gpu = self.profile.gpu.as_ref();
        let apart = self.times_as_fast;
        let apart = apart.map_or(0, |times| 1 + u32::from(times > 1.0));
        gpu.map_or(0, |gpu| {
            xxhash_rust::xxh3::xxh3_64(gpu.as_bytes()) as u32 ^ apart
        })
    }

    /// Whether it takes part in a request, as far as that is its own matter.
    pub fn eligibility(&self, pool: PoolId, wanted: Wanted) -> Eligibility {
        match self.condition() {
            Eligibility::Candidate if !self.serves(pool) => Eligibility::OtherModel,
            Eligibility::Candidate if !self.profile.role.serves(wanted) => Eligibility::OtherRole,
            condition => condition,
        }
    }

    /// Whether it may be picked now, whatever the request.
    pub fn condition(&self) -> Eligibility {
        if self.draining {
            Eligibility::Draining
        } else if !(self.ready && self.healthy) {
            Eligibility::NotReady
        } else {
            Eligibility::Candidate
        }
    }

    /// Whether it serves the model of `pool`.
    pub fn serves(&self, pool: PoolId) -> bool {
        let pools = self.profile.pools.as_ref();
        pools.is_none_or(|pools| pools.contains(&pool))
    }

    /// Whether its share of its weight still changes at `now`.
    pub fn is_ramping(&self, now: Millis) -> bool {
        now.0.saturating_sub(self.started.0) < self.profile.slow_start_ms
    }

    /// Share of its weight that counts at `now`.
    pub fn ramp(&self, now: Millis) -> f64 {
        let (age, length) = (
            now.0.saturating_sub(self.started.0),
            self.profile.slow_start_ms,
        );
        if age >= length {
            return 1.0;
        }
        SLOW_START_FROM + (1.0 - SLOW_START_FROM) * age as f64 / length as f64
    }

    /// Begins its slow start again.
    pub fn restart(&mut self, now: Millis) {
        self.started = now;
    }
}
