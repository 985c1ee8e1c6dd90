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
//! prompts in flight, [`LoadBook::active_blocks`] counts every block once.
//!
//! Every other operation is O(1); `silent_since` looks at two bookings per call, so a booking whose owner vanished is found within
//! half as many selects as there are open bookings.

use super::booking::{Booking, Half, Neighbours, Phase, Work};
use super::changed::Changed;
use super::columns::{Load, Report};
use super::named::Named;
use super::pace::{MOST, Pace, Prefill};
use super::queue::Queues;
use crate::error::{Error, Result};
use crate::ids::{BookingId, Millis, SequenceHash, WorkerId};

/// Requests that an engine had, by its latest report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reported {
    pub at: Millis,
    pub live: u64,
}

/// Loads and open bookings of a fleet.
#[derive(Debug, Default)]
pub struct LoadBook {
    pub(super) loads: Vec<Load>,
    changed: Changed,
    pub(super) bookings: Vec<Booking>,
    free: Vec<u32>,
    cold_clock: u64,
    pub(super) sweep_at: usize,
    pub(super) queues: Queues,
    /// By worker slot.
    pub(super) reported: Vec<Option<Reported>>,
    /// Prompts of open bookings that named their blocks.
    pub(super) named: Named,
    /// How prompts' time grows with their context.
    pub(super) pace: Pace,
    /// By worker slot: bookings without a first token whose prompt another worker computes.
    pub(super) apart: Vec<u32>,
}

impl LoadBook {
    /// How the time of prompts grows with their context.
    #[must_use]
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Opens the columns of a worker incarnation at zero load and weight 1.
    pub fn add_worker(&mut self, worker: WorkerId) {
        let slot = worker.slot as usize;
        if slot >= self.loads.len() {
            self.loads.resize(slot + 1, Load::VACANT);
            self.changed.reserve(slot + 1);
            self.reported.resize(slot + 1, None);
            self.apart.resize(slot + 1, 0);
        }
        self.loads[slot] = Load {
            generation: Some(worker.generation),
            ..Load::VACANT
        };
        self.queues.open(worker.slot);
        self.reported[slot] = None;
        self.apart[slot] = 0;
        self.named.by_worker.forget(worker.slot);
        self.mark_changed(worker.slot);
    }

    /// Forgets a worker; its bookings count for nobody from now on.
    pub fn remove_worker(&mut self, worker: WorkerId) {
        if let Some(load) = self.load_mut(worker) {
            *load = Load::VACANT;
            self.queues.open(worker.slot);
            self.reported[worker.slot as usize] = None;
            self.apart[worker.slot as usize] = 0;
            self.named.by_worker.forget(worker.slot);
        }
    }

    /// The load of a current worker, to change it.
    pub(super) fn load_mut(&mut self, worker: WorkerId) -> Option<&mut Load> {
        let load = self
            .loads
            .get_mut(worker.slot as usize)
            .filter(|load| load.generation == Some(worker.generation))?;
        self.changed.mark(worker.slot);
        Some(load)
    }

    /// Has a slot looked at by the next [`LoadBook::retain_changed`], whether or not its load changes until then.
    pub fn mark_changed(&mut self, slot: u32) {
        if (slot as usize) < self.loads.len() {
            self.changed.mark(slot);
        }
    }

    /// Whether the next [`LoadBook::retain_changed`] looks at a slot.
    #[must_use]
    pub fn is_marked_changed(&self, slot: u32) -> bool {
        self.changed.contains(slot)
    }

    /// Calls `look` with every slot whose load may have changed since the last time; where it returns true, it looks
    /// again the next time.
    pub fn retain_changed(&mut self, look: impl FnMut(u32, &Load) -> bool) {
        self.changed.retain(&self.loads, look);
    }

    /// The load of a current worker.
    #[must_use]
    pub fn load(&self, worker: WorkerId) -> Option<&Load> {
        self.loads
            .get(worker.slot as usize)
            .filter(|load| load.generation == Some(worker.generation))
    }

    /// Columns by slot; a vacant slot reads as an idle worker.
    #[must_use]
    pub fn loads(&self) -> &[Load] {
        &self.loads
    }

    /// Requests in flight on a worker; 0 for one that is not registered.
    #[must_use]
    pub fn inflight(&self, worker: WorkerId) -> u32 {
        self.load(worker).map_or(0, |load| load.inflight)
    }

    /// Uncached prompt tokens on a worker still waiting for a first token.
    #[must_use]
    pub fn pending_prefill_tokens(&self, worker: WorkerId) -> u64 {
        self.load(worker)
            .map_or(0, |load| load.pending_prefill_tokens)
    }

    /// Blocks of a worker held by requests past their first token.
    #[must_use]
    pub fn decode_blocks(&self, worker: WorkerId) -> u64 {
        self.load(worker).map_or(0, |load| load.decode_blocks)
    }

    /// Blocks that the prompts in flight hold on the worker in `slot`: those that bookings named once each, the others by
    /// their number.
    #[must_use]
    pub fn active_blocks(&self, slot: u32) -> u64 {
        let load = self.loads.get(slot as usize);
        load.map_or(0, |load| load.active_blocks)
    }

    /// Leading blocks of a prompt that at least `prompts` in flight on the worker in `slot` have too. Blocks of different
    /// namespaces differ.
    #[must_use]
    pub fn shared_blocks(
        &self,
        slot: u32,
        (namespace, path): (u32, &[SequenceHash]),
        prompts: u32,
    ) -> u64 {
        let owners = &self.named.by_worker;
        owners.common(slot, namespace, path, prompts) as u64
    }

    /// Whether prompts in flight, on whatever worker, hold any of the leading blocks of a prompt.
    #[must_use]
    pub fn shares_any(&self, namespace: u32, path: &[SequenceHash]) -> bool {
        let first = path.first().map(|first| (namespace, *first));
        first.is_some_and(|first| self.named.firsts.contains_key(&first))
    }

    /// Open bookings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bookings.len() - self.free.len()
    }

    /// Whether nothing is booked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Heap bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.loads.capacity() * size_of::<Load>()
            + self.changed.memory_bytes()
            + self.bookings.capacity() * size_of::<Booking>()
            + self.free.capacity() * size_of::<u32>()
            + self.queues.memory_bytes()
            + self.reported.capacity() * size_of::<Option<Reported>>()
            + self.apart.capacity() * size_of::<u32>()
            + self.named.memory_bytes()
    }

    /// Sets the relative capacity of a worker.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] unless `weight` is finite and above 0, [`Error::UnknownWorker`].
    pub fn set_weight(&mut self, worker: WorkerId, weight: f64) -> Result<()> {
        if !(weight.is_finite() && weight > 0.0) {
            let expected = "a finite number above 0";
            return Err(Error::InvalidSetting {
                name: "weight",
                expected,
                got: weight.to_string(),
            });
        }
        self.load_mut(worker)
            .ok_or(Error::UnknownWorker(worker))?
            .weight = weight;
        Ok(())
    }

    /// Replaces the engine report of a worker.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] from [`Report::check`], [`Error::UnknownWorker`].
    pub fn set_report(&mut self, worker: WorkerId, report: Report) -> Result<()> {
        report.check()?;
        let load = self.load_mut(worker).ok_or(Error::UnknownWorker(worker))?;
        load.report = report;
        load.dispatched_tokens = 0;
        load.others = 0;
        Ok(())
    }

    /// Moves a worker to the newest end of the cold order.
    pub fn mark_cold_pick(&mut self, worker: WorkerId) {
        self.cold_clock += 1;
        let clock = self.cold_clock;
        if let Some(load) = self.load_mut(worker) {
            load.last_cold_pick = clock;
        }
    }

    /// Books one request.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn book(&mut self, worker: WorkerId, work: Work, now: Millis) -> Result<BookingId> {
        let load = self.load_mut(worker).ok_or(Error::UnknownWorker(worker))?;
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
        let mut booking = Booking {
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
            first: None,
            booked: now,
            first_token: now,
            touched: now,
        };
        let entry = if let Some(entry) = self.free.pop() {
            let old = &mut self.bookings[entry as usize];
            booking.generation = old.generation;
            *old = booking;
            entry
        } else {
            self.bookings.push(booking);
            (self.bookings.len() - 1) as u32
        };
        self.queues.push(&mut self.bookings, entry);
        Ok(BookingId {
            entry,
            generation: self.bookings[entry as usize].generation,
        })
    }

    /// Names the full blocks of the prompt of an open booking: from now on those that it has in common with others of the
    /// worker count once.
    pub fn hold(&mut self, id: BookingId, namespace: u32, path: &[SequenceHash]) {
        let (Some(booking), Some(first)) = (self.open(id), path.first()) else {
            return;
        };
        let unnamed = std::mem::take(&mut booking.unnamed_blocks);
        let worker = booking.worker;
        let first = (namespace, *first);
        let earlier = booking.first.replace(first);
        let before = self.named.blocks(worker);
        if let Some(earlier) = earlier {
            self.named.close(id, earlier);
        }
        *self.named.firsts.entry(first).or_default() += 1;
        if self.load(worker).is_some() {
            let owners = &mut self.named.by_worker;
            owners.placed(worker, id, (namespace, path), 0);
        }
        let after = self.named.blocks(worker);
        if let Some(load) = self.load_mut(worker) {
            load.active_blocks = load.active_blocks + after - unnamed - before;
        }
    }

    pub(super) fn open(&mut self, id: BookingId) -> Option<&mut Booking> {
        self.bookings
            .get_mut(id.entry as usize)
            .filter(|b| b.generation == id.generation && b.phase.is_some())
    }

    /// The worker of an open booking.
    #[must_use]
    pub fn worker(&self, id: BookingId) -> Option<WorkerId> {
        self.phase(id)
            .map(|_| self.bookings[id.entry as usize].worker)
    }

    /// Where the booking stands, `None` once closed.
    #[must_use]
    pub fn phase(&self, id: BookingId) -> Option<Phase> {
        self.bookings
            .get(id.entry as usize)
            .filter(|b| b.generation == id.generation)?
            .phase
    }

    /// The first token arrived: prefill load ends, decode load begins. Returns whether this changed anything.
    pub fn first_token(&mut self, id: BookingId, now: Millis) -> bool {
        let Some(booking) = self.open(id) else {
            return false;
        };
        booking.touched = now;
        let worker = booking.worker;
        if self.load(worker).is_some() {
            self.queues.refresh(&mut self.bookings, id.entry);
        }
        let booking = &mut self.bookings[id.entry as usize];
        if booking.phase != Some(Phase::Booked) {
            return false;
        }
        booking.phase = Some(Phase::Decoding);
        booking.first_token = now;
        let half = booking.half;
        let prefill = std::mem::take(&mut booking.prefill);
        let estimate_ms = std::mem::take(&mut booking.estimate_ms);
        booking.decode_blocks = booking.tokens / booking.block_size;
        let blocks = booking.decode_blocks;
        let (backlog, took_ms) = (booking.backlog, now.0.saturating_sub(booking.booked.0));
        self.leave_apart(worker, half);
        let mut pace = self.pace;
        if let Some(load) = self.load_mut(worker) {
            load.leave_queue(prefill, blocks, estimate_ms);
            pace.observe(&mut load.speed, backlog, took_ms);
            load.head_since = now;
            load.decode_blocks += blocks;
            if prefill.tokens > 0 && took_ms > 0 && backlog.tokens > 0 {
                load.observe_prefill(prefill.tokens as f64 * 1000.0 / took_ms as f64);
            }
        }
        self.pace = pace;
        true
    }

    /// Learns no speed from the first token of a booking: that of another router comes as late as its messages.
    pub fn learn_nothing(&mut self, id: BookingId) {
        if let Some(booking) = self.open(id) {
            booking.backlog = Prefill::default();
        }
    }

    /// `n` more output tokens arrived; implies the first token. Returns whether the booking is open.
    pub fn tokens(&mut self, id: BookingId, n: u64, now: Millis) -> bool {
        self.first_token(id, now);
        let Some(booking) = self.open(id) else {
            return false;
        };
        booking.tokens = booking.tokens.saturating_add(n);
        let added = booking.tokens / booking.block_size - booking.decode_blocks;
        booking.decode_blocks += added;
        let worker = booking.worker;
        if let Some(load) = self.load_mut(worker) {
            load.decode_blocks += added;
            load.output_blocks += added;
        }
        true
    }

    /// The engine counted so many output tokens in all, of a booking that ends. Where no first token was
    /// reported, it is not taken to have come just now.
    pub fn counted(&mut self, id: BookingId, output: u64, now: Millis) {
        let Some(booking) = self.open(id) else { return };
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

    /// Releases all the booking still holds. Returns the phase it closed from, `None` if it was closed already.
    pub fn close(&mut self, id: BookingId) -> Option<Phase> {
        let booking = self.open(id)?;
        let phase = booking.phase.take()?;
        booking.generation = booking.generation.wrapping_add(1);
        let (worker, first, prefill, estimate_ms, blocks, output, unnamed) = (
            booking.worker,
            booking.first.take(),
            booking.prefill,
            booking.estimate_ms,
            booking.decode_blocks,
            booking.output_blocks(),
            booking.unnamed_blocks,
        );
        let prompt_blocks = booking.tokens / booking.block_size;
        let generated = booking.tokens - booking.prompt_tokens;
        let half = booking.half;
        let took_ms = booking.touched.0.saturating_sub(booking.first_token.0);
        if phase == Phase::Booked {
            self.leave_apart(worker, half);
        }
        if generated > 0 {
            self.pace.observe_output(generated);
        }
        self.queues.remove(&mut self.bookings, id.entry);
        self.free.push(id.entry);
        let before = self.named.blocks(worker);
        if let Some(first) = first {
            self.named.close(id, first);
        }
        let after = self.named.blocks(worker);
        if let Some(load) = self.load_mut(worker) {
            load.inflight -= 1;
            load.closed = load.closed.saturating_add(1);
            load.decode.observe_output(generated, took_ms);
            load.decode_blocks -= blocks;
            load.output_blocks -= output;
            load.active_blocks = load.active_blocks + after - unnamed - before;
            if phase == Phase::Booked {
                load.leave_queue(prefill, prompt_blocks, estimate_ms);
            }
        }
        Some(phase)
    }

    /// Open bookings: worker, the work that is left of them, and where they stand.
    pub fn open_bookings(&self) -> impl Iterator<Item = (BookingId, WorkerId, Work, Phase)> + '_ {
        self.bookings.iter().enumerate().filter_map(|(entry, b)| {
            let id = BookingId {
                entry: entry as u32,
                generation: b.generation,
            };
            let work = Work {
                prompt_tokens: b.tokens,
                prefill_tokens: b.prefill.tokens,
                estimate_ms: b.estimate_ms,
                block_size: b.block_size as u32,
            };
            Some((id, b.worker, work, b.phase?))
        })
    }

    /// Closes every booking. Returns how many were open.
    pub fn close_all(&mut self) -> usize {
        let open = self.len();
        for entry in 0..self.bookings.len() {
            let id = BookingId {
                entry: entry as u32,
                generation: self.bookings[entry].generation,
            };
            self.close(id);
        }
        open
    }
}
