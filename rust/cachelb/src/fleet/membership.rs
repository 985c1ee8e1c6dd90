//! Workers come, change and go.

use std::sync::Arc;

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::{Millis, WorkerId};
use cachelb_core::load::{BookingId, Report};
use cachelb_events::sizes_fit;

use crate::bookings::ledger::{Ending, Usage};
use crate::fleet::block_sizes::Facts;
use crate::fleet::health::Sleep;
use crate::fleet::worker::{Member, Profile};
use crate::{LocalChange, Selector};

/// The workers of a selector, to change them.
#[derive(Debug)]
pub struct Workers<'a>(pub(crate) &'a mut Selector);

impl Workers<'_> {
    /// Registers a worker, or changes the profile of one; its cache, load and readiness stay.
    pub fn add(&mut self, name: &str, profile: Profile, now: Millis) -> WorkerId {
        let s = &mut *self.0;
        if let Some(id) = s.fleet.find(name) {
            let home = s.fleet.member(id).map(|member| member.profile.home());
            if home != Some(profile.home())
                && let Some(mut feed) = s.feed(id)
            {
                feed.refuse();
            }
            if let Some(member) = s.fleet.member_mut(id) {
                member.set_profile(profile);
                s.pools.add_worker(id, member);
            }
            self.seat_reader(name, id);
            return id;
        }
        let id = s.fleet.add(name, profile, now);
        s.bookings.book.add_worker(id);
        if let Some(member) = s.fleet.member(id) {
            s.pools.add_worker(id, member);
        }
        s.publish(LocalChange::Added(now));
        self.seat_reader(name, id);
        id
    }

    /// Stops trusting the events of all workers.
    pub fn refuse_events(&mut self) {
        for (_, id) in self.0.fleet.ids() {
            if let Some(mut feed) = self.0.feed(id) {
                feed.refuse();
            }
        }
    }

    fn find_or_add(&mut self, name: &str) -> WorkerId {
        let known = self.0.fleet.find(name);
        known.unwrap_or_else(|| self.add(name, Profile::default(), Millis(0)))
    }

    /// Marks a worker ready or not; its blocks are kept.
    pub fn set_ready(&mut self, name: &str, ready: bool) {
        let id = self.find_or_add(name);
        if let Some(member) = self.0.fleet.member_mut(id) {
            member.ready = ready;
        }
    }

    /// Marks a registered worker that fails its health check, or passes it again. Its readiness is apart from that.
    pub fn set_healthy(&mut self, name: &str, healthy: bool) {
        if let Some(id) = self.0.fleet.find(name)
            && let Some(member) = self.0.fleet.member_mut(id)
        {
            member.healthy = healthy;
        }
    }

    /// Sets the relative capacity of a worker.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`].
    pub fn set_weight(&mut self, name: &str, weight: f64) -> Result<()> {
        let id = self.find_or_add(name);
        let book = &mut self.0.bookings.book;
        book.loads.set_weight(id, weight)
    }

    /// Replaces the engine report of the worker that the candidates `names` are the ranks of; they share its counts.
    /// Bookings that a fresh report shows to be lost are closed. Returns how many. One older than the last changes nothing.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`].
    pub fn set_report(
        &mut self,
        names: &[Arc<str>],
        report: &Report,
        now: Millis,
    ) -> Result<usize> {
        report.check()?;
        let ranks: Vec<WorkerId> = names.iter().map(|name| self.find_or_add(name)).collect();
        if self.is_overtaken(&ranks, report.at) {
            return Ok(0);
        }
        let s = &mut *self.0;
        let book = &mut s.bookings.book;
        let share = report.share(ranks.len());
        for &rank in &ranks {
            book.loads.set_report(rank, share)?;
        }
        let age = now.0.saturating_sub(report.at.0);
        let is_counted = s.settings.registered && age <= s.settings.max_report_age_ms;
        let Some(live) = report.live().filter(|_| is_counted) else {
            return Ok(0);
        };
        book.loads.credit_others(&ranks, live);
        s.check_size(&ranks, report);
        let Some(grace) = s.settings.reconcile_grace_ms else {
            return Ok(0);
        };
        let lost = s.bookings.book.lost(&ranks, live, report.at, grace);
        for &booking in &lost {
            s.end(booking, Ending::Reconciled, Usage::default(), now);
        }
        Ok(lost.len())
    }

    /// Whether a report taken `at` a time came later than a newer one.
    fn is_overtaken(&self, ranks: &[WorkerId], at: Millis) -> bool {
        let loads = &self.0.book().loads;
        let known = ranks.iter().filter_map(|&rank| loads.get(rank));
        known.map(|load| load.report.at).max() > Some(at)
    }

    /// Engines sleep or wake, by a report taken `at` a time, those of the candidates `names` with a state. One that falls
    /// asleep so that its cache is gone loses its blocks. Returns how many did.
    pub fn set_sleep(
        &mut self,
        names: &[Arc<str>],
        states: &[Option<Sleep>],
        at: Millis,
        now: Millis,
    ) -> usize {
        let mut lost = 0;
        for (name, state) in names.iter().zip(states) {
            let id = self.find_or_add(name);
            let Some(state) = state.filter(|_| !self.is_overtaken(&[id], at)) else {
                continue;
            };
            let before = self.0.fleet.set_sleep(id, state);
            if state == Sleep::Asleep && before != Some(state) {
                lost += usize::from(self.reset_cache(name, now));
            }
        }
        lost
    }

    /// Adds cache properties that the engine of the worker called `key` reported; the candidates `names` are its ranks.
    ///
    /// # Errors
    /// [`Error::EngineBlockSize`] if blocks of that size cannot be mapped to any of its pools'; nothing is changed then.
    pub fn learn(&mut self, key: &str, names: &[Arc<str>], facts: Facts) -> Result<()> {
        let known = names.iter().filter_map(|name| self.0.fleet.find(name));
        let ids: Vec<WorkerId> = known.collect();
        if let (Some(engine), Some(&first)) = (facts.block_size, ids.first()) {
            self.check_size(key, first, engine)?;
        }
        for id in ids {
            if let Some(mut feed) = self.0.feed(id) {
                feed.learn(facts);
            }
        }
        Ok(())
    }

    fn check_size(&self, key: &str, worker: WorkerId, engine: u32) -> Result<()> {
        let Some(member) = self.0.fleet.member(worker) else {
            return Ok(());
        };
        let served = self.0.pools.iter().filter(|(id, _)| member.serves(*id));
        let mut sizes: Vec<u32> = served.map(|(_, pool)| pool.block_size).collect();
        if sizes.iter().any(|&ours| sizes_fit(engine, ours)) {
            return Ok(());
        }
        sizes.sort_unstable();
        sizes.dedup();
        let ours: Vec<String> = sizes.iter().map(u32::to_string).collect();
        Err(Error::EngineBlockSize {
            worker: key.to_owned(),
            engine,
            ours: ours.join(" or "),
        })
    }

    /// The worker of a booking asked to be left alone for a while, which counts no failure.
    pub fn rest(&mut self, id: BookingId, rest_ms: u64, now: Millis) {
        if let Some(worker) = self.0.bookings.book.bookings.worker(id) {
            let fleet = &mut self.0.fleet;
            fleet.change_health(worker, |health| health.pushed_back(rest_ms, now));
        }
    }

    /// The metrics page of the worker that the candidates `names` are the ranks of was asked for: it was answered after so
    /// many milliseconds, or not at all.
    pub fn page(&mut self, names: &[Arc<str>], answered: Option<u64>, now: Millis) {
        let Some(breaker) = self.0.settings.breaker else {
            return;
        };
        let fleet = &mut self.0.fleet;
        for id in names
            .iter()
            .filter_map(|name| fleet.find(name))
            .collect::<Vec<_>>()
        {
            fleet.change_health(id, |health| match answered {
                Some(took_ms) => health.page_answered(took_ms, now),
                None => health.page_failed(breaker, now),
            });
        }
    }

    /// The engine of a worker is a new process: nothing that failed before counts.
    pub fn restarted(&mut self, name: &str, now: Millis) {
        if let Some(id) = self.0.fleet.find(name) {
            self.0
                .fleet
                .change_health(id, |health| health.restarted(now));
        }
    }

    /// A worker restarted: its blocks are gone, its bookings stay, its slow start begins again.
    pub fn reset_cache(&mut self, name: &str, now: Millis) -> bool {
        let s = &mut *self.0;
        let Some(id) = s.fleet.find(name) else {
            return false;
        };
        s.publish(LocalChange::CacheLost(id));
        self.lose_cache(id, false);
        if let Some(member) = self.0.fleet.member_mut(id) {
            member.restart(now);
        }
        true
    }

    /// The cache of a worker is empty. Its blocks are dropped unless its own events report that.
    pub(crate) fn lose_cache(&mut self, id: WorkerId, has_feed: bool) {
        let s = &mut *self.0;
        if let Some(member) = s.fleet.member(id) {
            let order = member.order;
            s.pools.each_rule(|own| own.cache_lost(order));
        }
        if !has_feed {
            s.bookings.start_over(id);
            s.pools.change_all(|_| true, |blocks| blocks.clear(id));
        }
    }

    /// Lets a worker finish its requests; it leaves with its last booking. Returns whether it was known.
    pub fn drain(&mut self, name: &str) -> bool {
        let Some(id) = self.0.fleet.find(name) else {
            return false;
        };
        if let Some(member) = self.0.fleet.member_mut(id) {
            member.draining = true;
        }
        self.leave_if_drained(id);
        true
    }

    /// Removes a worker that drains and has no booking left.
    pub(crate) fn leave_if_drained(&mut self, worker: WorkerId) {
        let s = &mut *self.0;
        let draining = s.fleet.member(worker).is_some_and(|member| member.draining);
        if draining
            && s.bookings.book.loads.inflight(worker) == 0
            && let Some(name) = s.fleet.name(worker)
        {
            self.remove(&name);
        }
    }

    /// Forgets at once what drains of the worker called `key`, whatever its ranks. Returns how many candidates it had.
    pub fn remove_draining(&mut self, key: &str) -> usize {
        let mut leaving = self.0.fleet.ids();
        leaving.retain(|(name, id)| {
            let own = |m: &Member| m.draining && m.profile.split(name).0 == key;
            self.0.fleet.member(*id).is_some_and(own)
        });
        for (name, _) in &leaving {
            self.remove(name);
        }
        leaving.len()
    }

    /// The session called `key` is over. Returns whether any rule had bound it to a worker.
    pub fn finish_session(&mut self, key: &[u8]) -> bool {
        let mut known = false;
        let pools = &mut self.0.pools;
        pools.each_rule(|own| known |= own.finish_session(key));
        known
    }

    /// Forgets a worker, its blocks and its bookings. Returns whether it was known.
    pub fn remove(&mut self, name: &str) -> bool {
        let s = &mut *self.0;
        let Some((id, order)) = s.fleet.remove(name) else {
            return false;
        };
        s.publish(LocalChange::Removed(id));
        s.bookings.remove_worker(id);
        for booking in s.bookings.book.bookings.payloads_mut() {
            let rules = &mut s.pools[booking.pool].rules;
            rules.worker_gone(&mut booking.memos, order);
        }
        s.pools.each_rule(|own| own.forget(order));
        s.pools
            .change_all(|_| true, |blocks| blocks.remove_worker(id));
        true
    }
}
