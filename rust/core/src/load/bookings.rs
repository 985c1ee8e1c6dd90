//! The entries of bookings: a slab with a list per worker, in the order of their last sign of life.
//!
//! An entry is free once its booking is closed and its payload needed no more.

use super::booking::{Booking, NONE, Payload, Phase, Work};
use super::loads::Loads;
use super::queue::Queues;
use crate::error::{Error, Result};
use crate::ids::{BookingId, Millis, WorkerId};

/// Bookings that one call of [`Bookings::silent_since`] looks at.
const SWEPT_PER_CALL: usize = 2;

/// An open booking.
#[derive(Debug, Clone, Copy)]
pub struct Open<'a, T> {
    /// Its id.
    pub id: BookingId,
    /// Its worker.
    pub worker: WorkerId,
    /// Remaining work.
    pub work: Work,
    /// Its phase.
    pub phase: Phase,
    /// State of the owner of the book.
    pub payload: &'a T,
}

/// The requests in flight.
#[derive(Debug, Default)]
pub struct Bookings<T = ()> {
    entries: Vec<Booking<T>>,
    free: Vec<u32>,
    open: usize,
    sweep_at: usize,
    queues: Queues,
}

impl<T: Payload> Bookings<T> {
    /// Open bookings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open
    }

    /// Whether there is no open booking.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The worker of an open booking.
    #[must_use]
    pub fn worker(&self, id: BookingId) -> Option<WorkerId> {
        self.get(id).map(|booking| booking.worker)
    }

    /// Uncached prompt tokens of a booking without a first token, `None` for others.
    #[must_use]
    pub fn pending_tokens(&self, id: BookingId) -> Option<u64> {
        let booking = self.get(id)?;
        (booking.phase == Some(Phase::Booked)).then_some(booking.prefill.tokens)
    }

    /// Phase of a booking, `None` once closed.
    #[must_use]
    pub fn phase(&self, id: BookingId) -> Option<Phase> {
        self.get(id)?.phase
    }

    /// State of the owner of the book, until it is released.
    #[must_use]
    pub fn payload(&self, id: BookingId) -> Option<&T> {
        let booking = self.entries.get(id.entry as usize);
        let booking = booking.filter(|booking| booking.generation == id.generation);
        booking.map(|booking| &booking.payload)
    }

    /// As [`Self::payload`], to change it.
    pub fn payload_mut(&mut self, id: BookingId) -> Option<&mut T> {
        self.held_mut(id).map(|(_, payload)| payload)
    }

    /// As [`Self::payload_mut`], with the worker.
    pub fn held_mut(&mut self, id: BookingId) -> Option<(WorkerId, &mut T)> {
        let booking = self.entries.get_mut(id.entry as usize);
        let booking = booking.filter(|booking| booking.generation == id.generation)?;
        Some((booking.worker, &mut booking.payload))
    }

    /// Takes the state out of an open booking, with its worker and, while it has no first token, its uncached prompt tokens.
    pub fn take(&mut self, id: BookingId) -> Option<(WorkerId, Option<u64>, T)> {
        let booking = self.get_mut(id)?;
        let waits = booking.phase == Some(Phase::Booked);
        let pending = waits.then_some(booking.prefill.tokens);
        let payload = std::mem::take(&mut booking.payload);
        Some((booking.worker, pending, payload))
    }

    /// Puts back the state of an open booking.
    pub fn put(&mut self, id: BookingId, payload: T) {
        if let Some(booking) = self.get_mut(id) {
            booking.payload = payload;
        }
    }

    /// Worker and state of an open booking.
    #[must_use]
    pub fn find(&self, id: BookingId) -> Option<(WorkerId, &T)> {
        self.get(id)
            .map(|booking| (booking.worker, &booking.payload))
    }

    /// As [`Self::find`], to change the state.
    pub fn find_mut(&mut self, id: BookingId) -> Option<(WorkerId, &mut T)> {
        let booking = self.get_mut(id)?;
        Some((booking.worker, &mut booking.payload))
    }

    /// States of the owner of the book, of open bookings and of closed ones that linger.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().map(|booking| &mut booking.payload)
    }

    /// Open bookings.
    pub fn open(&self) -> impl Iterator<Item = Open<'_, T>> {
        self.iter().filter_map(|(id, b)| {
            let work = Work {
                prompt_tokens: b.tokens,
                prefill_tokens: b.prefill.tokens,
                estimate_ms: b.estimate_ms,
                block_size: b.block_size as u32,
            };
            Some(Open {
                id,
                worker: b.worker,
                work,
                phase: b.phase?,
                payload: &b.payload,
            })
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (BookingId, &Booking<T>)> {
        let open = (0..).zip(&self.entries).filter(|(_, b)| b.phase.is_some());
        open.map(|(entry, b)| (self.id(entry), b))
    }

    fn id(&self, entry: u32) -> BookingId {
        let generation = self.entries[entry as usize].generation;
        BookingId { entry, generation }
    }

    fn get(&self, id: BookingId) -> Option<&Booking<T>> {
        let booking = self.entries.get(id.entry as usize)?;
        (booking.generation == id.generation && booking.phase.is_some()).then_some(booking)
    }

    /// An open booking, to change it.
    pub(super) fn get_mut(&mut self, id: BookingId) -> Option<&mut Booking<T>> {
        let booking = self.entries.get_mut(id.entry as usize)?;
        (booking.generation == id.generation && booking.phase.is_some()).then_some(booking)
    }

    /// A booking without a first token.
    pub(super) fn waiting(&self, id: BookingId) -> Option<&Booking<T>> {
        self.get(id)
            .filter(|booking| booking.phase == Some(Phase::Booked))
    }

    /// A booking without a first token, to change it.
    pub(super) fn waiting_mut(&mut self, id: BookingId) -> Option<&mut Booking<T>> {
        self.get_mut(id)
            .filter(|booking| booking.phase == Some(Phase::Booked))
    }

    /// Begins an empty list for a worker in `slot`.
    pub(super) fn open_list(&mut self, slot: u32) {
        self.queues.open(slot);
    }

    /// Opens a booking of a registered worker, at the end of its list.
    pub(super) fn push(&mut self, mut booking: Booking<T>) -> BookingId {
        let entry = if let Some(entry) = self.free.pop() {
            let old = &mut self.entries[entry as usize];
            booking.generation = old.generation;
            *old = booking;
            entry
        } else {
            self.entries.push(booking);
            (self.entries.len() - 1) as u32
        };
        self.open += 1;
        self.queues.push(&mut self.entries, entry);
        self.id(entry)
    }

    /// A sign of life of an open booking of a registered worker.
    pub(super) fn refresh(&mut self, id: BookingId) {
        self.queues.refresh(&mut self.entries, id.entry);
    }

    /// Closes an open booking, and frees its entry unless the payload lingers. Returns the booking without it.
    pub(super) fn close(&mut self, id: BookingId) -> Option<Booking<T>> {
        let booking = self.get_mut(id)?;
        let closed = Booking {
            payload: T::default(),
            ..*booking
        };
        booking.phase = None;
        let lingers = booking.payload.lingers();
        self.open -= 1;
        self.queues.remove(&mut self.entries, id.entry);
        if !lingers {
            self.release(id);
        }
        Some(closed)
    }

    /// Frees the entry of a closed booking whose payload is needed no more.
    pub fn release(&mut self, id: BookingId) {
        let booking = self.entries.get_mut(id.entry as usize);
        if let Some(booking) =
            booking.filter(|b| b.generation == id.generation && b.phase.is_none())
        {
            booking.payload = T::default();
            booking.generation = booking.generation.wrapping_add(1);
            self.free.push(id.entry);
        }
    }

    /// At most `limit` bookings without a sign of life after `since`, longest silent first.
    pub(super) fn longest_silent(
        &self,
        ranks: &[WorkerId],
        since: Millis,
        limit: u64,
    ) -> Vec<BookingId> {
        let oldest = ranks.iter().map(|rank| self.queues.oldest(rank.slot));
        let mut next: Vec<u32> = oldest.collect();
        let mut found = Vec::new();
        while (found.len() as u64) < limit {
            let heads = next.iter_mut().filter_map(|entry| {
                let booking = self.entries.get(*entry as usize)?;
                (booking.touched <= since).then_some((booking, entry))
            });
            let Some((booking, entry)) = heads.min_by_key(|(booking, _)| booking.touched) else {
                break;
            };
            found.push(self.id(*entry));
            *entry = booking.neighbours.newer;
        }
        found
    }

    /// Looks at the next two bookings and names those without a sign of life since `oldest`.
    pub(super) fn silent_since(&mut self, oldest: Millis) -> Vec<BookingId> {
        let mut silent = Vec::new();
        for _ in 0..SWEPT_PER_CALL.min(self.entries.len()) {
            self.sweep_at = (self.sweep_at + 1) % self.entries.len();
            let booking = &self.entries[self.sweep_at];
            if booking.phase.is_some() && booking.touched < oldest {
                silent.push(self.id(self.sweep_at as u32));
            }
        }
        silent
    }

    /// Every open booking of a registered worker is in its list once.
    pub(super) fn validate(&self, loads: &Loads) -> Result<()> {
        let open = self.iter().count();
        let closed = self.entries.iter().filter(|b| b.phase.is_none());
        let lingering = closed.filter(|b| b.payload.lingers()).count();
        let used = self.entries.len() - self.free.len();
        if open != self.open || open + lingering != used {
            let text = format!("{open} and {lingering} bookings, {used} entries in use");
            return Err(Error::Invariant(text));
        }
        let mut listed = 0;
        for (slot, ends) in self.queues.iter().enumerate() {
            let (mut before, mut at) = (NONE, ends.oldest);
            while at != NONE {
                let booking = self.entries.get(at as usize);
                let fits = booking.is_some_and(|booking| {
                    booking.phase.is_some()
                        && booking.worker.slot as usize == slot
                        && loads.get(booking.worker).is_some()
                        && booking.neighbours.older == before
                });
                if !fits || listed > self.entries.len() {
                    let text = format!("booking {at} is not where the list of slot {slot} has it");
                    return Err(Error::Invariant(text));
                }
                listed += 1;
                before = at;
                at = self.entries[at as usize].neighbours.newer;
            }
            if ends.newest != before {
                let text = format!("the list of slot {slot} ends at {before}, not at its end");
                return Err(Error::Invariant(text));
            }
        }
        let open = self.iter().filter(|(_, b)| loads.get(b.worker).is_some());
        let open = open.count();
        if open != listed {
            let text = format!("{open} open bookings of workers, {listed} in their lists");
            return Err(Error::Invariant(text));
        }
        Ok(())
    }
}
