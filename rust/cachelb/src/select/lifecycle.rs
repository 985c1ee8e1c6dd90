//! Lifecycle of a booking after the selection: first token, output, end.

use cachelb_core::ids::{Millis, WorkerId};
use cachelb_core::load::{BookingId, Phase};
use cachelb_policy::Ended;

use crate::Selector;
use crate::bookings::ledger::{Ending, Usage};
use crate::fleet::failing_prompts::Verdict;
use crate::fleet::health::{Blame, Health, is_overdue};
use crate::request::FamilyName;

impl Selector {
    /// The first token of a booking arrived: its placement is real.
    pub fn first_token(&mut self, id: BookingId, now: Millis) -> bool {
        self.prove(id, Some(now), now);
        self.bookings.book.first_token(id, now)
    }

    /// `n` more output tokens arrived.
    pub fn tokens(&mut self, id: BookingId, n: u64, now: Millis) -> bool {
        self.prove(id, Some(now), now);
        if let Some((worker, _, false)) = self.bookings.get(id) {
            self.fleet.change_health(worker, |h| h.answered(now));
        }
        let booking = self.bookings.book.bookings.payload_mut(id);
        if let Some(charged) = booking.and_then(|booking| booking.charged.as_mut()) {
            self.gates.generated(charged, n);
        }
        self.bookings.book.tokens(id, n, now)
    }

    fn prove(&mut self, id: BookingId, first_token: Option<Millis>, now: Millis) {
        let Some(pending) = self.bookings.book.bookings.pending_tokens(id) else {
            return;
        };
        let Some((worker, pool, is_remote)) = self.bookings.get(id) else {
            return;
        };
        self.gates.first_token(worker, pending, now);
        self.bookings.answered(id, now);
        if !is_remote {
            self.fleet.change_health(worker, |h| h.answered(now));
            self.acquit(id, now);
            first_token.and_then(|_| self.check_speed(worker));
            if let Some(sharing) = &mut self.sharing {
                sharing.first_token(id);
                let booking = self.bookings.book.bookings.payload(id);
                let memos = booking.map_or(&[][..], |booking| &booking.memos);
                sharing.routes(&self.fleet, &self.pools, (memos, pool), now);
            }
        }
        self.bookings
            .lease_answered(id, now, &mut self.pools.renewing());
        if let Some(blocks) = self.pools[pool].blocks_mut() {
            blocks.proven(id);
        }
        if let Some(booking) = self.bookings.book.bookings.payload_mut(id) {
            let rules = &mut self.pools[pool].rules;
            rules.each_memo(&mut booking.memos, |own, memory| {
                own.proven(memory, first_token);
            });
        }
    }

    /// Moves the deadlines of blocks that are waited for, and drops those whose time to live is over.
    pub(crate) fn expire_blocks(&mut self, now: Millis) {
        self.bookings.lapse(now, &mut self.pools.renewing());
        self.pools.expire(now);
    }

    /// Whether the worker of a booking owes it a first token for too long.
    fn is_overdue(&self, id: BookingId, worker: WorkerId, now: Millis) -> bool {
        let Some(member) = self.fleet.member(worker) else {
            return false;
        };
        let (book, since) = (&self.bookings.book, member.health.since());
        let waited = book.overdue(id, since, now, self.settings.max_report_age_ms);
        waited.is_some_and(is_overdue)
    }

    /// Counts a failure against a worker, unless it counts against the prompt.
    fn blame(&mut self, worker: WorkerId, mark: u64, blame: Blame, now: Millis) {
        let Some(breaker) = self.settings.breaker.filter(|_| blame != Blame::default()) else {
            return;
        };
        let member = self.fleet.member(worker);
        let since = member.map_or(Millis(0), |member| member.health.since());
        match self
            .failing_prompts
            .failed(mark, (worker, since), blame, now)
        {
            Verdict::Counts => {
                let add = |health: &mut Health| health.blame(blame, breaker, now);
                self.fleet.change_health(worker, add);
            }
            Verdict::Excused(blamed) => {
                for each in blamed {
                    self.fleet.change_health(each.worker, |health| {
                        if health.since() <= each.at {
                            health.excuse(each.blame, breaker);
                        }
                    });
                }
            }
        }
    }

    /// The prompt of a booking was answered: where it failed before, it was not the reason.
    fn acquit(&mut self, id: BookingId, now: Millis) {
        let Some(breaker) = self
            .settings
            .breaker
            .filter(|_| !self.failing_prompts.is_empty())
        else {
            return;
        };
        for each in self.failing_prompts.answered(self.bookings.mark(id)) {
            self.fleet.change_health(each.worker, |health| {
                if health.since() <= each.at {
                    health.blame(each.blame, breaker, now);
                }
            });
        }
    }

    /// The worker of a booking refused the connection, or closed it unanswered: its process seems to be gone. With the
    /// failure that [`Self::close`] then counts, this is half of the breaker's limit.
    pub fn disconnected(&mut self, id: BookingId, now: Millis) {
        let waiting = self.bookings.book.bookings.pending_tokens(id);
        let booked = waiting.and_then(|_| self.bookings.get(id));
        if let (Some(breaker), Some((worker, _, false))) = (self.settings.breaker, booked) {
            let failures = breaker.failures.div_ceil(2).saturating_sub(1);
            let (mark, give_ups) = (self.bookings.mark(id), 0);
            self.blame(worker, mark, Blame { failures, give_ups }, now);
        }
    }

    /// The worker of a booking made a response called `name`, which it will be asked to continue. Returns whether the
    /// booking is open.
    pub fn responded(&mut self, id: BookingId, name: FamilyName, now: Millis) -> bool {
        let booked = self.bookings.get(id);
        if let Some((worker, pool, _)) = booked {
            self.affinity.made(pool, name, worker, now);
        }
        booked.is_some()
    }

    /// The request of a booking is the last of the conversation called `name`.
    pub fn finish(&mut self, id: BookingId, name: FamilyName) {
        if let Some((_, pool, _)) = self.bookings.get(id) {
            self.affinity.finish(pool, name);
            self.workers_mut().finish_session(&name);
        }
    }

    /// The request ended. Returns whether the booking was still open.
    pub fn close(&mut self, id: BookingId, ending: Ending, usage: Usage, now: Millis) -> bool {
        let output = usage.output_tokens;
        let Some((worker, pool, is_remote)) = self.bookings.get(id) else {
            return false;
        };
        if ending == Ending::Completed {
            self.prove(id, None, now);
            self.bookings.book.prefilled(id, now);
            if let Some(booking) = self.bookings.book.bookings.payload_mut(id) {
                let rules = &mut self.pools[pool].rules;
                rules.each_memo(&mut booking.memos, |own, memory| {
                    own.served(memory, output, now);
                });
            }
        }
        if let Some(output) = output {
            self.bookings.book.counted(id, output, now);
        }
        let mark = self.bookings.mark(id);
        let is_given_up = match ending {
            Ending::Cancelled | Ending::Failed => true,
            // Where no answer is ever reported, this shows nothing.
            Ending::Abandoned => {
                self.bookings.ledger.counters.endings[Ending::Completed as usize] > 0
            }
            _ => false,
        };
        let gave_up = is_given_up && self.is_overdue(id, worker, now);
        let Some(mut closed) = self.bookings.close(id) else {
            return false;
        };
        if let Some(charged) = closed.charged {
            self.gates.ended(charged, output.unwrap_or(0));
        }
        let is_proven = closed.phase != Phase::Booked;
        if !is_remote {
            if let Some(sharing) = &mut self.sharing {
                sharing.closed(id, ending.ended() == Ended::Failed);
                if ending.ended() == Ended::Served {
                    sharing.routes(&self.fleet, &self.pools, (&closed.memos, pool), now);
                }
            }
            let found = usage
                .cached_tokens
                .filter(|_| ending == Ending::Completed)
                .map(|found| (found, usage.prompt_tokens));
            match found {
                Some(counts) => {
                    if let Some(prediction) = closed.prediction {
                        self.bound((worker, pool), prediction, counts);
                    }
                    self.bookings.completed(worker, id, counts, now);
                }
                None => self.bookings.unpromise(worker, id, None),
            }
            if let Some(breaker) = self.settings.breaker.filter(|_| !is_proven) {
                let blame = Blame {
                    failures: u32::from(ending == Ending::Failed),
                    give_ups: u8::from(gave_up),
                };
                self.blame(worker, mark, blame, now);
                let ended = |h: &mut Health| h.ended(id, (ending, gave_up), breaker, now);
                self.fleet.change_health(worker, ended);
            }
        }
        let rules = &mut self.pools[pool].rules;
        rules.each_memo(&mut closed.memos, |own, memory| {
            own.ended(memory, ending.ended());
        });
        if !is_proven && (is_remote || self.fleet.member(worker).is_some()) {
            let expected = self.bookings.take_lease(worker, id);
            self.pools.change(pool, |blocks| {
                blocks.ended((worker, id), ending.ended(), &expected);
            });
        }
        if !is_remote {
            self.bookings.ended(ending, closed.record, usage, now);
        }
        self.workers_mut().leave_if_drained(worker);
        true
    }
}
