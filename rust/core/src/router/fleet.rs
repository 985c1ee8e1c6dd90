//! Who the workers are: names, what they serve, whether they take requests, how long ago each was last offered.

use std::sync::Arc;

use crate::ids::{Millis, WorkerId};
use crate::registry::WorkerRegistry;
use crate::sorting::sort_rarely;

use super::fed::Fed;
use super::health::Health;
use super::offers::Offer;
use super::request::{PoolId, Wanted};
use super::sizes::Facts;

/// Whether a worker takes part in one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Standing {
    /// It may be picked.
    #[default]
    Candidate,
    /// The worker says of itself that it is not healthy.
    Unhealthy,
    /// Outside the subset asked for.
    NotAmong,
    /// Ruled out for this request.
    Excluded,
    /// Marked not ready. This and what follows is set by the selector.
    NotReady,
    /// Finishing what it has.
    Draining,
    /// Does not serve the model.
    OtherModel,
    /// Serves the other half of a pair only.
    OtherRole,
    /// Failed lately, and others did not.
    Failing,
    /// Answered 429 or 503 lately, and others did not.
    PushingBack,
    /// Reports more load than the veto allows, and others do not.
    Vetoed,
}

impl Standing {
    /// In words, for the error that lists them.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Candidate => "available",
            Self::Unhealthy => "unhealthy",
            Self::NotAmong => "not in `among`",
            Self::Excluded => "excluded",
            Self::NotReady => "not ready",
            Self::Draining => "draining",
            Self::OtherModel => "not serving the model",
            Self::OtherRole => "not in the role",
            Self::Failing => "failing",
            Self::PushingBack => "pushing back",
            Self::Vetoed => "overloaded",
        }
    }
}

/// Which half of a pair a worker serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Whole requests and either half.
    #[default]
    Both,
    /// Prefill only.
    Prefill,
    /// Decode, and whole requests.
    Decode,
}

impl Role {
    fn serves(self, wanted: Wanted) -> bool {
        match self {
            Self::Both => true,
            Self::Prefill => wanted == Wanted::Prefill,
            Self::Decode => wanted != Wanted::Prefill,
        }
    }

    /// Name used in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// What a registered worker is.
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
    /// What its engine states of its cache.
    pub engine: Facts,
    /// Name of its device's model.
    pub gpu: Option<Arc<str>>,
}

impl Profile {
    /// Key and rank of the candidate called `name` that has this profile, as [`super::Offer::rank`] made it of them.
    #[must_use]
    pub fn split<'a>(&self, name: &'a str) -> (&'a str, Option<u32>) {
        let parts = name.rsplit_once('#').filter(|_| self.ranked);
        parts.map_or((name, None), |(key, rank)| (key, rank.parse().ok()))
    }
}

/// A new worker begins at this share of its weight.
const SLOW_START_FROM: f64 = 0.25;

/// What every selection reads lies in the first cache line.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(super) struct Member {
    generation: Option<u32>,
    pub order: u64,
    last_seen: u64,
    /// When its slow start began.
    started: Millis,
    pub health: Health,
    pub ready: bool,
    pub draining: bool,
    pub fed: Option<Fed>,
    pub profile: Profile,
}

impl Member {
    /// Equal for workers of one kind of GPU, 0 if it is not known.
    pub fn kind(&self) -> u32 {
        let gpu = self.profile.gpu.as_ref();
        gpu.map_or(0, |gpu| xxhash_rust::xxh3::xxh3_64(gpu.as_bytes()) as u32)
    }

    /// Whether it takes part in a request, as far as that is its own matter.
    pub fn standing(&self, pool: PoolId, wanted: Wanted) -> Standing {
        if self.draining {
            Standing::Draining
        } else if !self.ready {
            Standing::NotReady
        } else if !self.serves(pool) {
            Standing::OtherModel
        } else if !self.profile.role.serves(wanted) {
            Standing::OtherRole
        } else {
            Standing::Candidate
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

const VACANT: Member = Member {
    generation: None,
    order: 0,
    last_seen: 0,
    ready: true,
    draining: false,
    fed: None,
    profile: Profile {
        role: Role::Both,
        ranked: false,
        pools: None,
        engine: Facts {
            kv_blocks: None,
            block_size: None,
        },
        slow_start_ms: 0,
        gpu: None,
    },
    started: Millis(0),
    health: Health::NONE,
};

/// Known workers by slot.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    registry: WorkerRegistry,
    members: Vec<Member>,
    next_order: u64,
    version: u64,
}

impl Fleet {
    pub fn len(&self) -> usize {
        self.registry.len()
    }

    pub fn next_order(&self) -> u64 {
        self.next_order
    }

    /// Rises with every change to who is there and to what they are, but for their health and when they were offered.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn find(&self, name: &str) -> Option<WorkerId> {
        self.registry.get(name)
    }

    /// Names and ids, by slot.
    pub fn ids(&self) -> Vec<(Arc<str>, WorkerId)> {
        self.registry.ids()
    }

    /// The name of a current worker.
    pub fn name(&self, id: WorkerId) -> Option<Arc<str>> {
        self.registry.name(id.slot).filter(|_| self.is_current(id))
    }

    /// What is known of a current worker.
    pub fn member(&self, id: WorkerId) -> Option<&Member> {
        self.members
            .get(id.slot as usize)
            .filter(|m| m.generation == Some(id.generation))
    }

    /// The same, to change it.
    pub fn member_mut(&mut self, id: WorkerId) -> Option<&mut Member> {
        self.version += 1;
        self.current_mut(id)
    }

    /// What failed lately on a current worker, to change it.
    pub fn health_mut(&mut self, id: WorkerId) -> Option<&mut Health> {
        self.current_mut(id).map(|member| &mut member.health)
    }

    fn current_mut(&mut self, id: WorkerId) -> Option<&mut Member> {
        self.members
            .get_mut(id.slot as usize)
            .filter(|m| m.generation == Some(id.generation))
    }

    /// What is known of the worker in `slot`, if there is one.
    pub fn at(&self, slot: u32) -> Option<&Member> {
        let member = self.members.get(slot as usize);
        member.filter(|member| member.generation.is_some())
    }

    /// The current id of an offered worker, `None` if nobody knows it.
    pub fn resolve(&self, offer: &Offer) -> Option<WorkerId> {
        let known = offer.id.filter(|&id| self.is_current(id));
        known.or_else(|| self.find(&offer.name))
    }

    /// The worker registered as `order`, if it is still there.
    pub fn by_order(&self, order: u64) -> Option<WorkerId> {
        let here = |m: &Member| m.generation.is_some() && m.order == order;
        let slot = self.members.iter().position(here)?;
        let generation = self.members[slot].generation?;
        Some(WorkerId {
            slot: slot as u32,
            generation,
        })
    }

    pub fn is_current(&self, id: WorkerId) -> bool {
        self.member(id).is_some()
    }

    /// Marks a current worker as offered in `call`. Returns whether that is the first time.
    pub fn see(&mut self, id: WorkerId, call: u64) -> bool {
        self.current_mut(id).is_some_and(|member| {
            let first = member.last_seen != call;
            member.last_seen = call;
            first
        })
    }

    /// Registers a new name, seen in `call`.
    pub fn add(&mut self, name: &str, profile: Profile, call: u64, now: Millis) -> WorkerId {
        let (id, _) = self.registry.get_or_add(name);
        self.version += 1;
        let slot = id.slot as usize;
        if slot >= self.members.len() {
            self.members.resize(slot + 1, VACANT);
        }
        self.members[slot] = Member {
            generation: Some(id.generation),
            order: self.next_order,
            last_seen: call,
            profile,
            started: now,
            ..VACANT
        };
        self.next_order += 1;
        id
    }

    /// Forgets a name; returns its id and registration order.
    pub fn remove(&mut self, name: &str) -> Option<(WorkerId, u64)> {
        let id = self.registry.remove(name)?;
        self.version += 1;
        let member = std::mem::replace(self.members.get_mut(id.slot as usize)?, VACANT);
        Some((id, member.order))
    }

    /// Names last offered before `call`, longest ago first, at most `limit`.
    pub fn absent_since(&self, call: u64, limit: usize) -> Vec<Arc<str>> {
        let mut absent: Vec<(u64, Arc<str>)> = self
            .registry
            .ids()
            .into_iter()
            .filter_map(|(name, id)| Some((self.member(id)?.last_seen, name)))
            .filter(|(seen, _)| *seen < call)
            .collect();
        sort_rarely(&mut absent, Ord::cmp);
        absent.truncate(limit);
        absent.into_iter().map(|(_, name)| name).collect()
    }

    pub fn memory_bytes(&self) -> usize {
        let names: usize = self
            .registry
            .ids()
            .iter()
            .map(|(name, _)| name.len() + 64)
            .sum();
        self.members.capacity() * size_of::<Member>() + names
    }
}
