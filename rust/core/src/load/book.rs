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

use std::collections::HashMap;

use super::columns::{Load, Report};
use super::halves::Half;
use super::named::{First, Named};
use super::pace::{MOST, Pace, Prefill};
use super::queue::{Ends, Neighbours};
use super::reconcile::Said;
use crate::error::{Error, Result};
use crate::ids::{Millis, SequenceHash, WorkerId};

/// Names one booking; an id of a closed booking names nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BookingId {
    /// Entry of the slab.
    pub entry: u32,
    /// Use count of the entry.
    pub generation: u32,
}

/// Where an open booking stands. A closed booking has no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Sent to the worker, no output yet.
    Booked,
    /// The first token arrived.
    Decoding,
}

#[derive(Debug, Clone)]
pub(super) struct Booking {
    pub generation: u32,
    /// Which part of its request it is for.
    pub half: Half,
    /// `None`: the entry is free.
    pub phase: Option<Phase>,
    pub worker: WorkerId,
    pub neighbours: Neighbours,
    /// Prompt plus output tokens so far.
    tokens: u64,
    prompt_tokens: u64,
    /// What is left to compute of its prompt.
    prefill: Prefill,
    /// All that its worker had to compute when it came, itself included.
    pub ahead: Prefill,
    estimate_ms: f64,
    block_size: u64,
    decode_blocks: u64,
    unnamed_blocks: u64,
    first: Option<First>,
    pub booked: Millis,
    /// When its first token arrived; until then, when it was booked.
    first_token: Millis,
    /// Its last sign of life.
    pub touched: Millis,
}

impl Booking {
    /// Blocks that its output filled.
    fn output_blocks(&self) -> u64 {
        // It holds none before its first token.
        let prompt_blocks = self.prompt_tokens / self.block_size;
        self.decode_blocks.saturating_sub(prompt_blocks)
    }
}

/// What one request adds to a worker's load.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    /// Length of the prompt.
    pub prompt_tokens: u64,
    /// How many of them the worker must compute.
    pub prefill_tokens: u64,
    /// How long that takes by the rule's estimate, 0 if it makes none.
    pub estimate_ms: f64,
    /// Tokens per block of the model.
    pub block_size: u32,
}

/// Weight of the newest observation in the average prefill speed.
const NEWEST: f64 = 0.1;

const SWEPT_PER_CALL: usize = 2;

impl Load {
    /// A booking of that much work got its first token or closed without one.
    fn leave_queue(&mut self, prefill: Prefill, prompt_blocks: u64, estimate_ms: f64) {
        self.pending -= 1;
        self.pending_prefill_tokens -= prefill.tokens;
        self.pending_pairs -= prefill.pairs;
        self.prompt_blocks -= prompt_blocks;
        // An empty queue is exactly 0: rounding errors of a sum must not add up over days.
        self.pending_ms = if self.pending == 0 {
            0.0
        } else {
            (self.pending_ms - estimate_ms).max(0.0)
        };
    }

    fn observe_prefill(&mut self, tps: f64) {
        let average = self.observed_prefill_tps.get();
        let tps = average.map_or(tps, |average| average + NEWEST * (tps - average));
        self.observed_prefill_tps = Some(tps).into();
    }
}

/// Loads and open bookings of a fleet.
#[derive(Debug, Default)]
pub struct LoadBook {
    loads: Vec<Load>,
    /// A bit per slot: its load may have changed since it was looked at last.
    changed: Vec<u64>,
    pub(super) bookings: Vec<Booking>,
    free: Vec<u32>,
    cold_clock: u64,
    sweep_at: usize,
    /// By worker slot.
    pub(super) queues: Vec<Ends>,
    /// By worker slot.
    pub(super) said: Vec<Option<Said>>,
    /// Prompts of open bookings that named their blocks.
    named: Named,
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
            self.changed.resize(slot / 64 + 1, 0);
            self.queues.resize(slot + 1, Ends::NOBODY);
            self.said.resize(slot + 1, None);
            self.apart.resize(slot + 1, 0);
        }
        self.loads[slot] = Load {
            generation: Some(worker.generation),
            ..Load::VACANT
        };
        self.queues[slot] = Ends::NOBODY;
        self.said[slot] = None;
        self.apart[slot] = 0;
        self.named.by_worker.forget(worker.slot);
        self.mark_changed(worker.slot);
    }

    /// Forgets a worker; its bookings count for nobody from now on.
    pub fn remove_worker(&mut self, worker: WorkerId) {
        if let Some(load) = self.load_mut(worker) {
            *load = Load::VACANT;
            self.queues[worker.slot as usize] = Ends::NOBODY;
            self.said[worker.slot as usize] = None;
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
        self.changed[worker.slot as usize / 64] |= 1 << (worker.slot % 64);
        Some(load)
    }

    /// Has a slot looked at by the next [`LoadBook::retain_changed`], whether or not its load changes until then.
    pub(crate) fn mark_changed(&mut self, slot: u32) {
        if let Some(word) = self.changed.get_mut(slot as usize / 64) {
            *word |= 1 << (slot % 64);
        }
    }

    /// Whether the next [`LoadBook::retain_changed`] looks at a slot.
    pub(crate) fn is_marked_changed(&self, slot: u32) -> bool {
        let word = self.changed.get(slot as usize / 64);
        word.is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// Calls `look` with every slot whose load may have changed since the last time; where it returns true, it looks
    /// again the next time.
    pub(crate) fn retain_changed(&mut self, mut look: impl FnMut(u32, &Load) -> bool) {
        for (at, word) in self.changed.iter_mut().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                let slot = at * 64 + rest.trailing_zeros() as usize;
                if !look(slot as u32, &self.loads[slot]) {
                    *word &= !(rest & rest.wrapping_neg());
                }
                rest &= rest - 1;
            }
        }
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

    /// Leading blocks of a prompt that prompts in flight on the worker in `slot` hold already. Blocks of different
    /// namespaces differ.
    #[must_use]
    pub fn shared_blocks(&self, slot: u32, namespace: u32, path: &[SequenceHash]) -> u64 {
        self.named.by_worker.common(slot, namespace, path) as u64
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
            + self.changed.capacity() * size_of::<u64>()
            + self.bookings.capacity() * size_of::<Booking>()
            + self.free.capacity() * size_of::<u32>()
            + self.queues.capacity() * size_of::<Ends>()
            + self.said.capacity() * size_of::<Option<Said>>()
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
        let ahead = Prefill {
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
            ahead,
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
        self.enqueue(entry);
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
        self.requeue(id.entry);
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
        let (worker, blocks) = (booking.worker, booking.decode_blocks);
        let (ahead, took_ms) = (booking.ahead, now.0.saturating_sub(booking.booked.0));
        self.leave_apart(worker, half);
        let mut pace = self.pace;
        if let Some(load) = self.load_mut(worker) {
            load.leave_queue(prefill, blocks, estimate_ms);
            pace.observe(&mut load.speed, ahead, took_ms);
            load.head_since = now;
            load.decode_blocks += blocks;
            if prefill.tokens > 0 && took_ms > 0 && ahead.tokens > 0 {
                load.observe_prefill(prefill.tokens as f64 * 1000.0 / took_ms as f64);
            }
        }
        self.pace = pace;
        true
    }

    /// Learns no speed from the first token of a booking: that of another router comes as late as its messages.
    pub fn learn_nothing(&mut self, id: BookingId) {
        if let Some(booking) = self.open(id) {
            booking.ahead = Prefill::default();
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
        self.dequeue(id.entry);
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

    /// Looks at the next two bookings and names those without a sign of life since `oldest`.
    pub fn silent_since(&mut self, oldest: Millis) -> Vec<BookingId> {
        let mut silent = Vec::new();
        for _ in 0..SWEPT_PER_CALL.min(self.bookings.len()) {
            self.sweep_at = (self.sweep_at + 1) % self.bookings.len();
            let booking = &self.bookings[self.sweep_at];
            if booking.phase.is_some() && booking.touched < oldest {
                silent.push(BookingId {
                    entry: self.sweep_at as u32,
                    generation: booking.generation,
                });
            }
        }
        silent
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

    /// Recounts every column from the open bookings.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first slot or entry that disagrees.
    pub fn validate(&self) -> Result<()> {
        let mut counted =
            vec![(0_u32, Prefill::default(), 0_u64, 0_u64, 0_u64, 0_u64, 0_u32); self.loads.len()];
        let mut open = 0;
        for booking in self.bookings.iter().filter(|b| b.phase.is_some()) {
            open += 1;
            if self.load(booking.worker).is_some() {
                let row = &mut counted[booking.worker.slot as usize];
                row.0 += 1;
                row.1 += booking.prefill;
                row.2 += booking.decode_blocks;
                row.3 += booking.unnamed_blocks;
                row.4 += booking.output_blocks();
                if booking.phase == Some(Phase::Booked) {
                    row.5 += booking.tokens / booking.block_size;
                    row.6 += 1;
                }
            }
        }
        if open != self.len() {
            return Err(Error::Invariant(format!(
                "{open} open bookings, {} entries in use",
                self.len()
            )));
        }
        self.validate_queues()?;
        self.validate_halves()?;
        self.named.by_worker.validate()?;
        let mut firsts = HashMap::default();
        for first in self.bookings.iter().filter_map(|b| b.first) {
            *firsts.entry(first).or_default() += 1;
        }
        if firsts != self.named.firsts {
            return Err(Error::Invariant("first blocks are miscounted".into()));
        }
        for (slot, (load, counted)) in self.loads.iter().zip(&counted).enumerate() {
            let held = (
                load.inflight,
                Prefill {
                    tokens: load.pending_prefill_tokens,
                    pairs: load.pending_pairs,
                },
                load.decode_blocks,
                load.active_blocks
                    .wrapping_sub(self.named.by_worker.distinct(slot as u32) as u64),
                load.output_blocks,
                load.prompt_blocks,
                load.pending,
            );
            if held != *counted {
                let text = format!("load of slot {slot} is {held:?}, its bookings say {counted:?}");
                return Err(Error::Invariant(text));
            }
        }
        Ok(())
    }
}
