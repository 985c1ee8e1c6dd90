//! What happens to a booking after the selection: first token, output, end.

use crate::ids::{Millis, WorkerId};
use crate::load::{BookingId, Phase};
use crate::policy::Ended;

use super::ledger::{Ending, Usage};
use super::selector::Selector;

impl Selector {
    /// The first token of a booking arrived: its placement is real.
    pub fn first_token(&mut self, id: BookingId, now: Millis) -> bool {
        self.prove(id, Some(now), now);
        self.book.first_token(id, now)
    }

    /// `n` more output tokens arrived.
    pub fn tokens(&mut self, id: BookingId, n: u64, now: Millis) -> bool {
        self.prove(id, Some(now), now);
        self.book.tokens(id, n, now)
    }

    fn prove(&mut self, id: BookingId, first_token: Option<Millis>, now: Millis) {
        if self.book.phase(id) != Some(Phase::Booked) {
            return;
        }
        let (Some(worker), Some(open)) =
            (self.book.worker(id), self.open.get_mut(id.entry as usize))
        else {
            return;
        };
        if let Some(record) = &mut open.record {
            record.first_token = Some(now);
        }
        let (own, at) = (!open.remote, open.pool);
        if own && let Some(sharing) = &mut self.sharing {
            sharing.first_token(id);
            self.say_routes(id, at, now);
        }
        let pool = &mut self.pools[at.0 as usize];
        if pool.leases.is_empty() {
            pool.proven(worker, id, first_token, now);
        } else {
            self.budget
                .change(pool, |pool| pool.proven(worker, id, first_token, now));
        }
        if own && let Some(health) = self.fleet.health_mut(worker) {
            health.answered();
        }
    }

    /// The request ended. Returns whether the booking was still open.
    pub fn close(&mut self, id: BookingId, ending: Ending, usage: Usage, now: Millis) -> bool {
        let Some(worker) = self.book.worker(id) else {
            return false;
        };
        if ending == Ending::Completed {
            self.prove(id, None, now);
            self.book.prefilled(id, now);
            if let Some(open) = self.open.get(id.entry as usize) {
                let output = usage.output_tokens;
                self.pools[open.pool.0 as usize].each_rule(|rule| rule.served(id, output, now));
            }
        }
        if let Some(output) = usage.output_tokens {
            self.book.counted(id, output, now);
        }
        let Some(phase) = self.book.close(id) else {
            return false;
        };
        let mut open = std::mem::take(&mut self.open[id.entry as usize]);
        if open.remote {
            self.close_remote(id, worker, open.pool, ending, phase);
            return true;
        }
        self.say_closed(id, ending.ended() == Ended::Failed);
        if ending.ended() == Ended::Served {
            self.say_routes(id, open.pool, now);
        }
        match usage.cached_tokens.filter(|_| ending == Ending::Completed) {
            Some(found) => {
                let told = (found, usage.prompt_tokens);
                self.checks.completed(worker, id, told, now);
            }
            None => self.checks.ended(worker, id),
        }
        if let Some(health) = self.fleet.health_mut(worker) {
            if let Some(breaker) = self.settings.breaker.filter(|_| phase == Phase::Booked) {
                match ending {
                    Ending::Failed => health.failed(breaker, now),
                    Ending::Backpressure => health.pushed_back(breaker.backpressure_ms, now),
                    Ending::Client => health.is_there(breaker),
                    _ => {}
                }
                self.out_until = self.out_until.max(health.out_until());
            }
            let unproven = phase == Phase::Booked;
            let pool = &mut self.pools[open.pool.0 as usize];
            self.ledger.lost.failed += self.budget.change(pool, |pool| {
                pool.ended(worker, id, ending.ended(), unproven)
            });
            self.budget.fit(&mut self.pools);
        }
        if let Some(record) = &mut open.record {
            record.ended = Some((now, ending));
            record.usage = usage;
        }
        self.ledger.ended(ending, open.record);
        self.leave_if_drained(worker);
        true
    }

    /// The worker of a booking asked to be left alone for a while, which counts no failure.
    pub fn rest(&mut self, id: BookingId, rest_ms: u64, now: Millis) {
        let worker = self.book.worker(id);
        if let Some(health) = worker.and_then(|worker| self.fleet.health_mut(worker)) {
            health.pushed_back(rest_ms, now);
            self.out_until = self.out_until.max(health.out_until());
        }
    }

    /// An engine stated `counts` counts that cannot be believed or read.
    pub fn count_unread_usage(&mut self, counts: u64) {
        self.ledger.unread_usage += counts;
    }

    /// Takes in what the engine counted for a decision that was ended without it, as that of a prefill worker is when the
    /// first token comes. Returns whether it was wanting and is still known.
    pub fn late_usage(&mut self, number: u64, usage: Usage) -> bool {
        self.ledger.late(number, usage)
    }

    pub(super) fn leave_if_drained(&mut self, worker: WorkerId) {
        let draining = self.fleet.member(worker).is_some_and(|m| m.draining);
        if draining
            && self.book.inflight(worker) == 0
            && let Some(name) = self.fleet.name(worker)
        {
            self.remove_worker(&name);
        }
    }
}
