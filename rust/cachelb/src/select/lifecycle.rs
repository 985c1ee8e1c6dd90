//! Lifecycle of a booking after the selection: first token, output, end.

use cachelb_core::ids::{Millis, WorkerId};
use cachelb_core::load::BookingId;

use crate::bookings::Booking;
use crate::bookings::ledger::{Ending, Usage};
use crate::fleet::failing_prompts::Verdict;
use crate::fleet::health::{Blame, Health, is_overdue};
use crate::request::FamilyName;
use crate::{LocalChange, Selector};

impl Selector {
    /// The first token of a booking arrived: its placement is real.
    pub fn first_token(&mut self, id: BookingId, now: Millis) -> bool {
        self.answer(id, now);
        self.bookings.book.first_token(id, now)
    }

    /// `n` more output tokens arrived.
    pub fn tokens(&mut self, id: BookingId, n: u64, now: Millis) -> bool {
        self.answer(id, now);
        let Some((worker, booking)) = self.bookings.book.bookings.find_mut(id) else {
            return false;
        };
        if let Some(charged) = &mut booking.charged {
            self.gates.generated(charged, n);
        }
        if !booking.is_remote {
            self.fleet.change_health(worker, |h| h.answered(now));
        }
        self.bookings.book.tokens(id, n, now)
    }

    /// A sign that the worker of a booking answered it.
    fn answer(&mut self, id: BookingId, now: Millis) {
        let bookings = &mut self.bookings.book.bookings;
        if let Some(pending) = bookings.pending_tokens(id)
            && let Some((worker, _, mut booking)) = bookings.take(id)
        {
            self.prove((worker, id, pending), &mut booking, Some(now), now);
            self.bookings.book.bookings.put(id, booking);
        }
    }

    /// The worker of a booking with so many uncached tokens answered it; `first_token` unless only its end was reported.
    fn prove(
        &mut self,
        (worker, id, pending): (WorkerId, BookingId, u64),
        booking: &mut Booking,
        first_token: Option<Millis>,
        now: Millis,
    ) {
        self.gates.first_token(worker, pending, now);
        if let Some(record) = &mut booking.record {
            record.first_token = Some(now);
        }
        #[cfg(feature = "peers")]
        self.copied((worker, id), booking, first_token.is_some(), now);
        if !booking.is_remote {
            self.fleet.change_health(worker, |h| h.answered(now));
            self.acquit(booking.mark, now);
            first_token.and_then(|_| self.check_speed(worker));
            self.publish(LocalChange::Answered(id, booking, now));
        }
        booking.answered(worker, now, &mut self.pools.renewing());
        let pool = &mut self.pools[booking.pool];
        if let Some(blocks) = pool.blocks.as_mut() {
            blocks.proven(booking.placed);
        }
        pool.rules.each_memo(&mut booking.memos, |own, memory| {
            own.proven(memory, first_token);
        });
    }

    /// The engine's counts of a request came after its end, as those of a prefill worker do that ended with the first token.
    #[cfg_attr(not(feature = "peers"), expect(unused_variables, reason = "of copies"))]
    pub fn late_usage(&mut self, number: u64, usage: Usage, now: Millis) {
        let record = self.bookings.ledger.late_usage(number, usage);
        let copied = record.and_then(|record| Some((record.source?, record.pool)));
        #[cfg(feature = "peers")]
        if let Some((source, pool)) = copied {
            self.judge_copy(source, pool, usage, now);
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
        let (book, since) = (&self.bookings.book, member.health.since);
        let waited = book.overdue(id, since, now, self.settings.max_report_age_ms);
        waited.is_some_and(is_overdue)
    }

    /// Counts a failure against a worker, unless it counts against the prompt.
    fn blame(&mut self, worker: WorkerId, mark: u64, blame: Blame, now: Millis) {
        let Some(breaker) = self.settings.breaker.filter(|_| blame != Blame::default()) else {
            return;
        };
        let member = self.fleet.member(worker);
        let since = member.map_or(Millis(0), |member| member.health.since);
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
                        if health.since <= each.at {
                            health.excuse(each.blame, breaker);
                        }
                    });
                }
            }
        }
    }

    /// The prompt of that mark was answered: where it failed before, it was not the reason.
    fn acquit(&mut self, mark: u64, now: Millis) {
        let Some(breaker) = self
            .settings
            .breaker
            .filter(|_| !self.failing_prompts.is_empty())
        else {
            return;
        };
        for each in self.failing_prompts.answered(mark) {
            self.fleet.change_health(each.worker, |health| {
                if health.since <= each.at {
                    health.blame(each.blame, breaker, now);
                }
            });
        }
    }

    /// The worker of a booking refused the connection, or closed it unanswered: its process seems to be gone. With the
    /// failure that [`Self::end`] then counts, this is half of the breaker's limit.
    pub fn disconnected(&mut self, id: BookingId, now: Millis) {
        let bookings = &self.bookings.book.bookings;
        let waiting = bookings.pending_tokens(id).and_then(|_| bookings.find(id));
        let booked = waiting.filter(|(_, booking)| !booking.is_remote);
        if let (Some(breaker), Some((worker, booking))) = (self.settings.breaker, booked) {
            let failures = breaker.failures.div_ceil(2).saturating_sub(1);
            let (mark, give_ups) = (booking.mark, 0);
            self.blame(worker, mark, Blame { failures, give_ups }, now);
        }
    }

    /// The worker of a booking made a response called `name`, which it will be asked to continue. Returns whether the
    /// booking is open.
    pub fn responded(&mut self, id: BookingId, name: FamilyName, now: Millis) -> bool {
        let booked = self.bookings.book.bookings.find(id);
        if let Some((worker, booking)) = booked {
            self.affinity.made(booking.pool, name, worker, now);
        }
        booked.is_some()
    }

    /// The request of a booking is the last of the conversation called `name`.
    pub fn finish(&mut self, id: BookingId, name: FamilyName) {
        if let Some((_, booking)) = self.bookings.book.bookings.find(id) {
            self.affinity.finish(booking.pool, name);
            self.workers_mut().finish_session(&name);
        }
    }

    /// The request ended. Returns whether the booking was still open.
    pub fn end(&mut self, id: BookingId, ending: Ending, usage: Usage, now: Millis) -> bool {
        let Some((worker, pending, mut booking)) = self.bookings.book.bookings.take(id) else {
            return false;
        };
        let (pool, output, ended) = (booking.pool, usage.output_tokens, ending.ended());
        if ending == Ending::Completed {
            if let Some(pending) = pending {
                self.prove((worker, id, pending), &mut booking, None, now);
            }
            self.bookings.book.prefilled(id, now);
            let rules = &mut self.pools[pool].rules;
            rules.each_memo(&mut booking.memos, |own, memory| {
                own.served(memory, output, now);
            });
        }
        if let Some(output) = output {
            self.bookings.book.counted(id, output, now);
        }
        if let Some(charged) = booking.charged.take() {
            self.gates.ended(charged, output.unwrap_or(0));
        }
        if !booking.is_remote {
            self.publish(LocalChange::Ended(id, &booking, ended, now));
            self.compare(worker, &mut booking, (ending, usage), now);
            if pending.is_some() {
                self.blame_for((worker, id), &booking, ending, now);
            }
            #[cfg(feature = "peers")]
            self.copy_ended((worker, id), &mut booking, (ending, usage), now);
        }
        let rules = &mut self.pools[pool].rules;
        rules.each_memo(&mut booking.memos, |own, memory| own.ended(memory, ended));
        // One that completed was proven above, and its lease goes on.
        let is_unanswered = pending.is_some() && ending != Ending::Completed;
        if is_unanswered && (booking.is_remote || self.fleet.member(worker).is_some()) {
            let expected = self.bookings.take_lease(worker, &mut booking);
            let booked = (worker, booking.placed);
            self.pools
                .change(pool, |blocks| blocks.ended(booked, ended, &expected));
        }
        let (record, is_remote) = (booking.record.take(), booking.is_remote);
        self.bookings.close(worker, id, booking);
        if !is_remote {
            self.bookings.ended(ending, record, usage, now);
        }
        self.workers_mut().leave_if_drained(worker);
        true
    }

    /// Compares the cached tokens that the engine reports with those that were predicted and promised.
    fn compare(
        &mut self,
        worker: WorkerId,
        booking: &mut Booking,
        (ending, usage): (Ending, Usage),
        now: Millis,
    ) {
        let prediction = booking.prediction.take();
        let found = usage.cached_tokens;
        let Some(found) = found.filter(|_| ending == Ending::Completed) else {
            return self.bookings.checks.unpromise(worker, &mut booking.promise);
        };
        let counts = (found, usage.prompt_tokens);
        if let Some(prediction) = prediction {
            let predicted = (&prediction, &*booking.path);
            self.bound((worker, booking.pool), predicted, counts);
        }
        let checks = &mut self.bookings.checks;
        checks.completed(worker, &mut booking.promise, counts, now);
    }

    /// Counts an end before the first token against the worker, if it is a failure or comes later than it should.
    fn blame_for(
        &mut self,
        (worker, id): (WorkerId, BookingId),
        booking: &Booking,
        ending: Ending,
        now: Millis,
    ) {
        let Some(breaker) = self.settings.breaker else {
            return;
        };
        let is_given_up = match ending {
            Ending::Cancelled | Ending::Failed => true,
            // Where no answer is ever reported, this shows nothing.
            Ending::Abandoned => {
                self.bookings.ledger.counters.endings[Ending::Completed as usize] > 0
            }
            _ => false,
        };
        // A copy that does not come is the fault of its source.
        #[cfg(feature = "peers")]
        let is_given_up = is_given_up && booking.copying.is_none();
        let gave_up = is_given_up && self.is_overdue(id, worker, now);
        let blame = Blame {
            failures: u32::from(ending == Ending::Failed),
            give_ups: u8::from(gave_up),
        };
        self.blame(worker, booking.mark, blame, now);
        let ended = |h: &mut Health| h.ended(id, (ending, gave_up), breaker, now);
        self.fleet.change_health(worker, ended);
    }
}
