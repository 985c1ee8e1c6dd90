//! Bookings and their transitions.
//!
//! | event | inflight | pending prefill tokens | prompt blocks | decode blocks |
//! |---|---|---|---|---|
//! | `book` | +1 | + uncached tokens | + full blocks of the prompt | 0 |
//! | `first_token` | 0 | - the amount booked | - the same | + the same |
//! | `tokens(n)` | 0 | 0 | 0 | + blocks filled by the output, which count as output blocks too |
//! | `close` | -1 | - rest | - rest | - all of it |
//!
//! A booking that names its blocks ([`LoadBook::hold`]) shares those with the others of its worker until it closes: of the
//! prompts in flight, [`super::Load::active_blocks`] counts every block once.
//!
//! Every other operation is O(1); [`LoadBook::silent_since`] looks at two bookings per call, so a booking whose owner
//! vanished is found within half as many selects as there are open bookings.

use super::booking::{Booking, Half, Neighbours, Payload, Phase, Work};
use super::bookings::Bookings;
use super::loads::Loads;
use super::named::Named;
use super::pace::{FIRST_SPEED, MOST, MOST_SPEED, Pace, Prefill};
use super::reconcile::Reported;
use crate::error::{Error, Result};
use crate::ids::{BookingId, Millis, SequenceHash, WorkerId};

/// Loads and open bookings of a fleet, each with a payload.
#[derive(Debug, Default)]
pub struct LoadBook<T = ()> {
    /// Load of every worker.
    pub loads: Loads,
    /// The requests in flight.
    pub bookings: Bookings<T>,
    /// Blocks that bookings named.
    pub named: Named,
    /// How prompts' time grows with their context.
    pub pace: Pace,
}

impl<T: Payload> LoadBook<T> {
    /// Registers a worker incarnation with zero load and weight 1.
    pub fn add_worker(&mut self, worker: WorkerId) {
        self.loads.add(worker);
        self.forget(worker.slot);
    }

    /// Forgets a worker; its bookings no longer count.
    pub fn remove_worker(&mut self, worker: WorkerId) {
        if self.loads.remove(worker) {
            self.forget(worker.slot);
        }
    }

    /// Forgets the bookings and reports of earlier workers in a slot.
    fn forget(&mut self, slot: u32) {
        self.bookings.open_list(slot);
        self.named.forget(slot);
    }

    /// Books one request.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn book(&mut self, worker: WorkerId, work: Work, now: Millis) -> Result<BookingId> {
        let load = self
            .loads
            .get_mut(worker)
            .ok_or(Error::UnknownWorker(worker))?;
        if load.pending == 0 {
            load.head_since = now;
        }
        load.inflight += 1;
        load.pending += 1;
        let prefill = Prefill::of(work.prompt_tokens, work.prefill_tokens);
        load.pending_prefill_tokens += prefill.tokens;
        load.pending_pairs += prefill.pairs;
        let backlog = Prefill {
            tokens: load.pending_prefill_tokens,
            pairs: load.pending_pairs,
        };
        let block_size = u64::from(work.block_size.max(1));
        let blocks = work.prompt_tokens / block_size;
        load.prompt_blocks += blocks;
        load.active_blocks += blocks;
        load.pending_ms += work.estimate_ms;
        load.dispatched_tokens += work.prefill_tokens;
        Ok(self.bookings.push(Booking {
            generation: 0,
            half: Half::Whole,
            phase: Some(Phase::Booked),
            worker,
            neighbours: Neighbours::NONE,
            tokens: work.prompt_tokens,
            prompt_tokens: work.prompt_tokens,
            prefill,
            backlog,
            estimate_ms: work.estimate_ms,
            block_size,
            decode_blocks: 0,
            unnamed_blocks: blocks,
            named: None,
            partner: None,
            booked: now,
            first_token: now,
            touched: now,
            payload: T::default(),
        }))
    }

    /// Names the full blocks of the prompt of an open booking: from now on those that it has in common with others of the
    /// worker count once.
    pub fn hold(&mut self, id: BookingId, namespace: u32, path: &[SequenceHash]) {
        let (Some(booking), Some(first)) = (self.bookings.get_mut(id), path.first()) else {
            return;
        };
        let unnamed = std::mem::take(&mut booking.unnamed_blocks);
        let worker = booking.worker;
        let before = self.named.blocks(worker.slot);
        if let Some(earlier) = booking.named.take() {
            self.named.close(earlier);
        }
        let registered = self.loads.get(worker).map(|_| worker);
        let first = (namespace, *first);
        booking.named = Some(self.named.open(registered, first, path));
        let after = self.named.blocks(worker.slot);
        if let Some(load) = self.loads.get_mut(worker) {
            load.active_blocks = load.active_blocks + after - unnamed - before;
        }
    }

    /// The first token arrived: prefill load ends, decode load begins. Returns whether this changed anything.
    pub fn first_token(&mut self, id: BookingId, now: Millis) -> bool {
        let Some(booking) = self.bookings.get_mut(id) else {
            return false;
        };
        booking.touched = now;
        let worker = booking.worker;
        if self.loads.get(worker).is_some() {
            self.bookings.refresh(id);
        }
        let Some(booking) = self.bookings.waiting_mut(id) else {
            return false;
        };
        booking.phase = Some(Phase::Decoding);
        booking.first_token = now;
        let prefill = std::mem::take(&mut booking.prefill);
        let estimate_ms = std::mem::take(&mut booking.estimate_ms);
        booking.decode_blocks = booking.tokens / booking.block_size;
        let blocks = booking.decode_blocks;
        let (backlog, took_ms) = (booking.backlog, now.0.saturating_sub(booking.booked.0));
        if let Some(apart) = self.loads.apart_mut(worker, booking.half) {
            *apart -= 1;
        }
        if let Some(load) = self.loads.get_mut(worker) {
            load.leave_queue(prefill, blocks, estimate_ms);
            self.pace.observe(&mut load.speed, backlog, took_ms);
            load.head_since = now;
            load.decode_blocks += blocks;
            if prefill.tokens > 0 && took_ms > 0 && backlog.tokens > 0 {
                load.observe_prefill(prefill.tokens as f64 * 1000.0 / took_ms as f64);
            }
        }
        true
    }

    /// Learns no speed from the first token of a booking: that of another router comes as late as its messages.
    pub fn learn_nothing(&mut self, id: BookingId) {
        if let Some(booking) = self.bookings.get_mut(id) {
            booking.backlog = Prefill::default();
        }
    }

    /// `n` more output tokens arrived; implies the first token. Returns whether the booking is open.
    pub fn tokens(&mut self, id: BookingId, n: u64, now: Millis) -> bool {
        self.first_token(id, now);
        let Some(booking) = self.bookings.get_mut(id) else {
            return false;
        };
        booking.tokens = booking.tokens.saturating_add(n);
        let added = booking.tokens / booking.block_size - booking.decode_blocks;
        booking.decode_blocks += added;
        if let Some(load) = self.loads.get_mut(booking.worker) {
            load.decode_blocks += added;
            load.output_blocks += added;
        }
        true
    }

    /// The engine counted so many output tokens in all, of a booking that ends. Where no first token was
    /// reported, it is not assumed to have come just now.
    pub fn counted(&mut self, id: BookingId, output: u64, now: Millis) {
        let Some(booking) = self.bookings.get_mut(id) else {
            return;
        };
        let output = output.min(MOST);
        let more = output.saturating_sub(booking.tokens - booking.prompt_tokens);
        match booking.phase {
            Some(Phase::Decoding) if more > 0 => {
                self.tokens(id, more, now);
            }
            Some(Phase::Booked) if output > 0 => self.pace.observe_output(output),
            _ => {}
        }
    }

    /// How long a booking has waited for its first token, counted from `silent_since` at the earliest, and how long
    /// that should take, in milliseconds. `None` for others, and while another worker computes the prompt.
    #[must_use]
    pub fn overdue(
        &self,
        id: BookingId,
        silent_since: Millis,
        now: Millis,
        max_report_age_ms: u64,
    ) -> Option<(u64, f64)> {
        let booking = self.bookings.waiting(id)?;
        if booking.half == Half::Decode && booking.partner.is_some() {
            return None;
        }
        let waited_ms = now.0.saturating_sub(booking.booked.max(silent_since).0);
        let load = self.loads.get(booking.worker)?;
        // The slowest of the known speeds: a prompt that was cached against expectation looks fast.
        let work = booking.backlog.work(self.pace.per_context());
        let stated = load.report.prefill_tps.get().map(|tps| tps / 1000.0);
        let known = [
            load.speed
                .get()
                .map(|speed| (work + self.pace.fixed_work(), speed)),
            self.pace.speed().map(|speed| (work, speed)),
            stated.map(|speed| (work, speed)),
        ];
        let times = known.into_iter().flatten();
        let slowest = times
            .map(|(work, speed)| work / speed.min(MOST_SPEED))
            .reduce(f64::max);
        // Requests of other clients are assumed to be as long as the booked ones.
        let others = load.requests(now, max_report_age_ms) - load.inflight;
        let crowd = 1.0 + f64::from(others) / f64::from(load.pending.max(1));
        let prefill_ms = crowd * slowest.unwrap_or(work / FIRST_SPEED);
        Some((waited_ms, prefill_ms.max(self.pace.answer_ms / 2.0)))
    }

    /// Releases all the booking still holds. Returns the phase it closed from, `None` if it was closed already.
    pub fn close(&mut self, id: BookingId) -> Option<Phase> {
        let booking = self.bookings.close(id)?;
        let (worker, phase) = (booking.worker, booking.phase?);
        let generated = booking.tokens - booking.prompt_tokens;
        if generated > 0 {
            self.pace.observe_output(generated);
        }
        let before = self.named.blocks(worker.slot);
        if let Some(name) = booking.named {
            self.named.close(name);
        }
        let after = self.named.blocks(worker.slot);
        if phase == Phase::Booked
            && let Some(apart) = self.loads.apart_mut(worker, booking.half)
        {
            *apart -= 1;
        }
        if let Some(load) = self.loads.get_mut(worker) {
            let took_ms = booking.touched.0.saturating_sub(booking.first_token.0);
            load.inflight -= 1;
            load.closed = load.closed.saturating_add(1);
            load.decode.observe_output(generated, took_ms);
            load.decode_blocks -= booking.decode_blocks;
            load.output_blocks -= booking.output_blocks();
            load.active_blocks = load.active_blocks + after - booking.unnamed_blocks - before;
            if phase == Phase::Booked {
                let prompt_blocks = booking.tokens / booking.block_size;
                load.leave_queue(booking.prefill, prompt_blocks, booking.estimate_ms);
            }
        }
        Some(phase)
    }

    /// Closes every booking. Returns how many were open.
    pub fn close_all(&mut self) -> usize {
        let open: Vec<_> = self.bookings.iter().map(|(id, _)| id).collect();
        open.iter().filter_map(|&id| self.close(id)).count()
    }

    /// Takes in a report that the engine behind `ranks` had `live` requests at `at`. Returns the bookings that it has
    /// lost by this report and by the one before.
    pub fn lost(
        &mut self,
        ranks: &[WorkerId],
        live: u64,
        at: Millis,
        grace_ms: u64,
    ) -> Vec<BookingId> {
        let missing = self.loads.missing(ranks, Reported { at, live }, grace_ms);
        let found = missing.map(|(lost, since)| self.bookings.longest_silent(ranks, since, lost));
        found.unwrap_or_default()
    }

    /// Looks at the next two bookings and names those without a sign of life since `oldest`.
    pub fn silent_since(&mut self, oldest: Millis) -> Vec<BookingId> {
        self.bookings.silent_since(oldest)
    }
}
