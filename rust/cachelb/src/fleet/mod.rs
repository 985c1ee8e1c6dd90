//! Who the workers are: names, members by slot, how long ago each was last offered, and until when any is passed over.

pub(crate) mod about;
pub(crate) mod block_sizes;
pub(crate) mod cache_size;
pub(crate) mod contradictions;
pub(crate) mod failing_prompts;
pub(crate) mod health;
pub(crate) mod membership;
pub(crate) mod model_name;
pub(crate) mod names;
pub(crate) mod offers;
pub(crate) mod roster;
pub(crate) mod worker;

use std::sync::Arc;

use cachelb_core::collections::slot_mut;
use cachelb_core::ids::{Millis, WorkerId};
use cachelb_core::registry::WorkerRegistry;

use crate::fleet::block_sizes::{Disagreement, Facts};
use crate::fleet::health::{Health, News, Sleep};
use crate::fleet::offers::Offer;
use crate::fleet::worker::{Announced, FeedStatus, Member, Profile};
use crate::request::Request;

/// Calls between two sweeps for workers that are no longer offered.
const FORGET_EVERY: u64 = 64;
/// Calls a worker must have been absent from, give or take those between two sweeps. Two lists routed by one policy in
/// turn never forget each other.
const FORGET_AFTER: u64 = 1024;

/// Changes that are kept for a report, if none is made.
const MOST_NEWS: usize = 256;

/// Begins the names of shared caches in the registry, and no name of a worker.
pub(crate) const APART: char = '\0';

/// Whether a worker may have the name.
#[must_use]
pub fn may_be_worker(name: &str) -> bool {
    !name.starts_with(APART)
}

/// Known workers by slot.
#[derive(Debug, Default)]
pub struct Fleet {
    registry: WorkerRegistry,
    members: Vec<Member>,
    pub(crate) next_order: u64,
    pub(crate) version: u64,
    /// Lists of offers that were looked through.
    call: u64,
    /// No worker is passed over for its failures from then on.
    out_until: Millis,
    /// Whether any engine sleeps.
    pub(crate) has_sleepers: bool,
    /// Whether any worker ever had events: as long as none had, none is asked.
    pub(crate) has_events: bool,
    /// Findings that were not reported yet.
    news: Vec<(WorkerId, News)>,
}

impl Fleet {
    /// The id of a known worker. No name that a caller or another router gives leads to a shared cache.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<WorkerId> {
        self.registry.get(name).filter(|_| may_be_worker(name))
    }

    /// The id of a known shared cache, by the name it is registered under.
    pub(crate) fn find_shared(&self, registered: &str) -> Option<WorkerId> {
        self.registry.get(registered)
    }

    /// Names and ids, by slot.
    #[must_use]
    pub fn ids(&self) -> Vec<(Arc<str>, WorkerId)> {
        let mut ids = self.registry.ids();
        let is_worker = |id: WorkerId| {
            let member = self.member(id);
            member.is_none_or(|member| !member.profile.is_shared_cache)
        };
        ids.retain(|(_, id)| is_worker(*id));
        ids
    }

    /// Trust in the events of a worker, `None` for one without.
    #[must_use]
    pub fn feed(&self, worker: WorkerId) -> Option<FeedStatus> {
        self.member(worker)?.feed
    }

    /// The name of a current worker.
    #[must_use]
    pub fn name(&self, id: WorkerId) -> Option<Arc<str>> {
        self.registry
            .name(id.slot)
            .filter(|_| self.member(id).is_some())
    }

    /// The member behind the id of a current worker.
    pub(crate) fn member(&self, id: WorkerId) -> Option<&Member> {
        self.members
            .get(id.slot as usize)
            .filter(|m| m.generation == Some(id.generation))
    }

    /// The workers by slot.
    pub(crate) fn current(&self) -> impl Iterator<Item = (WorkerId, &Member)> {
        let slots = (0..).zip(&self.members);
        let members = slots.filter_map(|(slot, member)| {
            let generation = member.generation?;
            Some((WorkerId { slot, generation }, member))
        });
        members.filter(|(_, member)| !member.profile.is_shared_cache)
    }

    /// As [`Self::member`], to change it.
    pub(crate) fn member_mut(&mut self, id: WorkerId) -> Option<&mut Member> {
        self.version += 1;
        self.current_mut(id)
    }

    /// As [`Self::member`], to change fields that rows do not show.
    pub(crate) fn current_mut(&mut self, id: WorkerId) -> Option<&mut Member> {
        self.members
            .get_mut(id.slot as usize)
            .filter(|m| m.generation == Some(id.generation))
    }

    /// The member in `slot`, if there is one.
    pub(crate) fn at(&self, slot: u32) -> Option<&Member> {
        let member = self.members.get(slot as usize);
        member.filter(|member| member.generation.is_some())
    }

    /// The current id of an offered worker, `None` if it is not known.
    pub(crate) fn resolve(&self, offer: &Offer) -> Option<WorkerId> {
        let known = offer.id.filter(|&id| self.member(id).is_some());
        known.or_else(|| self.find(&offer.name))
    }

    /// Registers a new name.
    pub(crate) fn add(&mut self, name: &str, profile: Profile, now: Millis) -> WorkerId {
        let (id, _) = self.registry.get_or_add(name);
        self.version += 1;
        let member = Member::new(id.generation, self.next_order, profile, self.call, now);
        *slot_mut(&mut self.members, id.slot) = member;
        self.next_order += 1;
        id
    }

    /// Forgets a name; returns its id and registration order.
    pub(crate) fn remove(&mut self, name: &str) -> Option<(WorkerId, u64)> {
        let id = self.registry.remove(name)?;
        self.version += 1;
        let member = self.members.get_mut(id.slot as usize)?;
        let order = member.order;
        *member = Member::default();
        Some((id, order))
    }

    /// Another list of offers is looked through.
    pub(crate) fn next_call(&mut self) {
        self.call += 1;
    }

    #[cfg(test)]
    pub(crate) fn calls(&self) -> u64 {
        self.call
    }

    /// Marks a current worker as offered in this call. Returns whether that is the first time.
    pub(crate) fn see(&mut self, id: WorkerId) -> bool {
        let call = self.call;
        self.current_mut(id).is_some_and(|member| member.see(call))
    }

    /// Whether the call after `more` of them sweeps for workers that are no longer offered.
    pub(crate) fn sweeps(&self, more: u64) -> bool {
        (self.call + more).is_multiple_of(FORGET_EVERY)
    }

    /// Names that were not offered for long, longest ago first, while there are many more than the `offered` ones.
    pub(crate) fn absent(&self, offered: usize) -> Vec<Arc<str>> {
        let kept = 2 * offered + 64;
        if !self.sweeps(0) || self.call <= FORGET_AFTER || self.registry.len() <= kept {
            return Vec::new();
        }
        let ids = self.registry.ids().into_iter();
        let seen = ids.filter_map(|(name, id)| Some((self.member(id)?.last_seen, name)));
        let absent = seen.filter(|(seen, _)| *seen < self.call - FORGET_AFTER);
        let mut absent: Vec<(u64, Arc<str>)> = absent.collect();
        absent.sort();
        absent.truncate(self.registry.len() - kept);
        absent.into_iter().map(|(_, name)| name).collect()
    }

    /// Whether workers may be passed over for their failures.
    pub(crate) fn has_failures(&self, now: Millis) -> bool {
        now < self.out_until
    }

    /// Changes how well the worker is; one that is gone is no more.
    pub(crate) fn change_health(&mut self, id: WorkerId, change: impl FnOnce(&mut Health)) {
        let Some(member) = self.current_mut(id) else {
            return;
        };
        let health = &mut member.health;
        let before = health.silence();
        change(health);
        let (silence, until) = (health.silence(), health.out_until);
        self.out_until = until.max(self.out_until);
        if silence.is_some() != before.is_some() {
            let all = self.current().map(|(_, member)| member.health.out_until);
            self.out_until = all.max().unwrap_or_default();
            self.publish(id, News::Silence(silence));
        }
    }

    /// Has something reported about a worker.
    pub(crate) fn publish(&mut self, id: WorkerId, news: News) {
        self.news.truncate(MOST_NEWS - 1);
        self.news.push((id, news));
    }

    /// Whether anything was found out about a worker since that was last taken.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// That, with the keys of the workers, from the earliest on; of several ranks once.
    pub(crate) fn take_news(&mut self) -> Vec<(Arc<str>, News)> {
        let news = std::mem::take(&mut self.news).into_iter();
        let keys = news.filter_map(|(worker, news)| {
            let name = self.name(worker)?;
            let (key, _) = self.member(worker)?.profile.split(&name);
            Some((Arc::from(key), news))
        });
        let mut keys: Vec<_> = keys.collect();
        keys.dedup();
        keys
    }

    /// No request is known that tries a worker.
    pub(crate) fn forget_probes(&mut self) {
        for member in &mut self.members {
            member.health.forget_probe();
        }
    }

    /// An engine sleeps or wakes. Returns the state before, `None` for a worker that is gone.
    pub(crate) fn set_sleep(&mut self, id: WorkerId, sleep: Sleep) -> Option<Sleep> {
        let health = &mut self.current_mut(id)?.health;
        let before = std::mem::replace(&mut health.sleep, sleep);
        let mut healths = self.members.iter().map(|member| &member.health);
        self.has_sleepers =
            sleep != Sleep::Awake || healths.any(|health| health.sleep != Sleep::Awake);
        Some(before)
    }

    /// Adds cache properties that an engine reported, and the state of its events. Equal values are no change: every
    /// change discards the kept rows. Returns whether its blocks have another size or number, and whether events and
    /// metrics came to disagree about the size.
    pub(crate) fn learn(
        &mut self,
        id: WorkerId,
        facts: Facts,
        feed: Option<FeedStatus>,
    ) -> (bool, bool) {
        let Some(member) = self.current_mut(id) else {
            return (false, false);
        };
        let known = |member: &Member| (member.sizes(), member.resuming(member.profile.home()));
        let before = known(member);
        if !member.learn(facts, feed) {
            return (false, false);
        }
        let now = known(member);
        let found = now.0.disagreement();
        let found = found.filter(|_| found != before.0.disagreement());
        self.version += 1;
        self.has_events |= feed.is_some();
        if let Some(Disagreement { announced, stated }) = found {
            let (stated, announced) = (stated.into(), announced.into());
            self.publish(id, News::Contradiction("block_size", stated, announced));
        }
        (now != before, found.is_some())
    }

    /// Takes in how an engine resumes by its events. Returns its worker if that is news.
    pub(crate) fn announced(&mut self, id: WorkerId, announced: Announced) -> Option<&Member> {
        let member = self.current_mut(id)?;
        member.announce(announced).then_some(&*member)
    }

    /// State of the events about the blocks that the worker in `slot` holds for a request, `None` without.
    pub(crate) fn feed_in(&self, slot: u32, request: &Request<'_>) -> Option<FeedStatus> {
        self.at(slot)
            .filter(|_| self.has_events)?
            .feed_in(request.pool)
    }
}
