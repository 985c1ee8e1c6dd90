//! Workers come, change and go.

use std::sync::Arc;

use crate::error::Result;
use crate::events::Worth;
use crate::ids::{Millis, WorkerId};
use crate::load::{LoadBook, Report};
use crate::policy::Rng;

use super::budget::Budget;
use super::checks::Checks;
use super::fleet::{Fleet, Member, Profile};
use super::ledger::{Ending, Ledger, Usage};
use super::pool::Pool;
use super::request::PoolId;
use super::rows::Rows;
use super::selector::Selector;
use super::trail::Trail;

impl Selector {
    /// The id of a known worker.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<WorkerId> {
        self.fleet.find(name)
    }

    /// Registers a worker, or changes what is known of one; its cache, load and readiness stay.
    pub fn add_worker(&mut self, name: &str, profile: Profile, now: Millis) -> WorkerId {
        if let Some(id) = self.fleet.find(name) {
            if self.home(id) != Some(profile.home()) {
                self.set_worth(id, Worth::Refused);
            }
            if let Some(member) = self.fleet.member_mut(id) {
                member.profile = profile;
                if std::mem::take(&mut member.draining) {
                    member.ready = true;
                }
            }
            self.open_lanes(id);
            return id;
        }
        let id = self.fleet.add(name, profile, self.call, now);
        self.book.add_worker(id);
        self.open_lanes(id);
        self.book_waiting(now);
        id
    }

    /// Registers a worker with the pools that it serves, or changes how much it may hold there; the others forget it.
    pub(super) fn open_lanes(&mut self, worker: WorkerId) {
        let Some(member) = self.fleet.member(worker) else {
            return;
        };
        for (i, pool) in self.pools.iter_mut().enumerate() {
            if member.serves(PoolId(i as u32)) {
                self.budget
                    .change(pool, |pool| pool.add_worker(worker, member));
            } else {
                let removed = self.budget.change(pool, |pool| pool.withdraw(worker));
                self.ledger.lost.removed += removed;
            }
        }
        self.budget.fit(&mut self.pools);
    }

    pub(super) fn find_or_add(&mut self, name: &str) -> WorkerId {
        let known = self.fleet.find(name);
        known.unwrap_or_else(|| self.register(name, Millis(0)))
    }

    /// Marks a worker ready or not; what it holds stays known.
    pub fn set_ready(&mut self, name: &str, ready: bool) {
        let id = self.find_or_add(name);
        if let Some(member) = self.fleet.member_mut(id) {
            member.ready = ready;
        }
    }

    /// Sets the relative capacity of a worker.
    ///
    /// # Errors
    /// [`crate::Error::InvalidSetting`].
    pub fn set_weight(&mut self, name: &str, weight: f64) -> Result<()> {
        let id = self.find_or_add(name);
        self.book.set_weight(id, weight)
    }

    /// Replaces the engine report of the worker that the candidates `names` are the ranks of; they share what it counts.
    /// Bookings that a fresh report shows to be lost are closed. Returns how many. One older than the last changes nothing.
    ///
    /// # Errors
    /// [`crate::Error::InvalidSetting`].
    pub fn set_report(
        &mut self,
        names: &[Arc<str>],
        report: &Report,
        now: Millis,
    ) -> Result<usize> {
        report.check()?;
        let ranks: Vec<WorkerId> = names.iter().map(|name| self.find_or_add(name)).collect();
        let known = ranks.iter().filter_map(|&rank| self.book.load(rank));
        if known.map(|load| load.report.at).max() > Some(report.at) {
            // It was overtaken on its way.
            return Ok(0);
        }
        let share = report.share(ranks.len());
        for &rank in &ranks {
            self.book.set_report(rank, share)?;
        }
        let age = now.0.saturating_sub(report.at.0);
        let Some(live) = report
            .live()
            .filter(|_| self.settings.registered && age <= self.settings.max_report_age_ms)
        else {
            return Ok(0);
        };
        self.book.credit_others(&ranks, live);
        let Some(grace) = self.settings.reconcile_grace_ms else {
            return Ok(0);
        };
        let lost = self.book.lost(&ranks, live, report.at, grace);
        for &booking in &lost {
            self.close(booking, Ending::Reconciled, Usage::default(), now);
        }
        Ok(lost.len())
    }

    /// A worker restarted: what it held is gone, its bookings stay, its slow start begins again.
    pub fn reset_cache(&mut self, name: &str, now: Millis) -> bool {
        let Some(id) = self.fleet.find(name) else {
            return false;
        };
        self.say_cleared(id, name);
        self.clear_cache(id);
        if let Some(member) = self.fleet.member_mut(id) {
            member.restart(now);
        }
        true
    }

    /// Drops what a worker holds.
    pub(super) fn clear_cache(&mut self, id: WorkerId) {
        self.checks.start_over(id);
        self.rules_lose_cache(id);
        for pool in &mut self.pools {
            self.ledger.lost.cleared += self.budget.change(pool, |pool| pool.clear(id));
        }
        self.budget.fit(&mut self.pools);
    }

    /// Tells the rules that what a worker held is gone.
    pub(super) fn rules_lose_cache(&mut self, id: WorkerId) {
        let Some(member) = self.fleet.member(id) else {
            return;
        };
        for pool in &mut self.pools {
            pool.each_rule(|rule| rule.cache_lost(member.order));
        }
    }

    /// Lets a worker finish what it has; it leaves with its last booking. Returns whether it was known.
    pub fn drain_worker(&mut self, name: &str) -> bool {
        let Some(id) = self.fleet.find(name) else {
            return false;
        };
        if let Some(member) = self.fleet.member_mut(id) {
            member.draining = true;
        }
        self.leave_if_drained(id);
        true
    }

    /// Forgets at once what drains of the worker called `key`, whatever its ranks. Returns how many candidates it had.
    pub fn remove_draining(&mut self, key: &str) -> usize {
        let mut leaving = Vec::new();
        for (name, id) in self.fleet.ids() {
            let own = |m: &Member| m.draining && m.profile.split(&name).0 == key;
            if self.fleet.member(id).is_some_and(own) {
                leaving.push(name);
            }
        }
        for name in &leaving {
            self.remove_worker(name);
        }
        leaving.len()
    }

    /// Forgets a worker, its blocks and its bookings. Returns whether it was known.
    pub fn remove_worker(&mut self, name: &str) -> bool {
        let Some((id, order)) = self.fleet.remove(name) else {
            return false;
        };
        self.unbook(id);
        self.book.remove_worker(id);
        self.checks.remove(id.slot);
        for pool in &mut self.pools {
            let removed = self
                .budget
                .change(pool, |pool| pool.remove_worker(id, order));
            self.ledger.lost.removed += removed;
        }
        self.budget.fit(&mut self.pools);
        true
    }

    /// Starts over with an empty book and empty counters, as the child of a fork must. What workers hold stays known.
    pub fn forget_bookings(&mut self) -> usize {
        let open = self.book.close_all();
        self.open.clear();
        self.trail.clear();
        self.checks = Checks::default();
        self.ledger = Ledger::new(self.settings.records);
        self.sharing = None;
        for pool in &mut self.pools {
            pool.unproven.clear();
            pool.leases.clear();
            pool.each_rule(|rule| rule.ended_all());
        }
        open
    }

    /// The session called `key` is over. Returns whether any rule had bound it to a worker.
    pub fn finish_session(&mut self, key: &[u8]) -> bool {
        let mut known = false;
        for pool in &mut self.pools {
            pool.each_rule(|rule| known |= rule.finish_session(key));
        }
        known
    }

    /// A selector of the same settings that knows nobody.
    #[must_use]
    pub fn fresh(&self) -> Self {
        let seed = self.settings.seed;
        let pools: Vec<Pool> = self.pools.iter().map(|pool| pool.fresh(seed)).collect();
        Self {
            budget: Budget::new(self.settings.max_memory_bytes, &pools),
            pools,
            settings: self.settings.clone(),
            rng: Rng::new(seed),
            fleet: Fleet::default(),
            book: LoadBook::default(),
            rows: Rows::default(),
            rows_aside: Rows::default(),
            out_until: Millis(0),
            indexed: false,
            call: 0,
            open: Vec::new(),
            trail: Trail::default(),
            ledger: Ledger::new(self.settings.records),
            checks: Checks::default(),
            ever_fed: false,
            sharing: None,
        }
    }
}
