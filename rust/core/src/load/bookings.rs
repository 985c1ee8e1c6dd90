//! The entries of bookings: a slab with a list per worker, in the order of their last sign of life.

use super::booking::{Booking, NONE, Phase, Work};
use super::loads::Loads;
use super::queue::Queues;
use crate::error::{Error, Result};
use crate::ids::{BookingId, Millis, WorkerId};

/// Bookings that one call of [`Bookings::silent_since`] looks at.
const SWEPT_PER_CALL: usize = 2;

/// The requests in flight.
#[derive(Debug, Default)]
pub struct Bookings {
    entries: Vec<Booking>,
    free: Vec<u32>,
    sweep_at: usize,
    queues: Queues,
}

impl Bookings {
    /// Open bookings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
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

    /// Open bookings: worker, remaining work, and phase.
    pub fn open(&self) -> impl Iterator<Item = (BookingId, WorkerId, Work, Phase)> + '_ {
        self.iter().filter_map(|(id, b)| {
            let work = Work {
                prompt_tokens: b.tokens,
                prefill_tokens: b.prefill.tokens,
                estimate_ms: b.estimate_ms,
                block_size: b.block_size as u32,
            };
            Some((id, b.worker, work, b.phase?))
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (BookingId, &Booking)> {
        let open = (0..).zip(&self.entries).filter(|(_, b)| b.phase.is_some());
        open.map(|(entry, b)| (self.id(entry), b))
    }

    fn id(&self, entry: u32) -> BookingId {
        let generation = self.entries[entry as usize].generation;
        BookingId { entry, generation }
    }

    fn get(&self, id: BookingId) -> Option<&Booking> {
        let booking = self.entries.get(id.entry as usize)?;
        (booking.generation == id.generation && booking.phase.is_some()).then_some(booking)
    }

    /// An open booking, to change it.
    pub(super) fn get_mut(&mut self, id: BookingId) -> Option<&mut Booking> {
        let booking = self.entries.get_mut(id.entry as usize)?;
        (booking.generation == id.generation && booking.phase.is_some()).then_some(booking)
    }

    /// A booking without a first token.
    pub(super) fn waiting(&self, id: BookingId) -> Option<&Booking> {
        self.get(id)
            .filter(|booking| booking.phase == Some(Phase::Booked))
    }

    /// A booking without a first token, to change it.
    pub(super) fn waiting_mut(&mut self, id: BookingId) -> Option<&mut Booking> {
        self.get_mut(id)
            .filter(|booking| booking.phase == Some(Phase::Booked))
    }

    /// Begins an empty list for a worker in `slot`.
    pub(super) fn open_list(&mut self, slot: u32) {
        self.queues.open(slot);
    }

    /// Opens a booking of a registered worker, at the end of its list.
    pub(super) fn push(&mut self, mut booking: Booking) -> BookingId {
        let entry = if let Some(entry) = self.free.pop() {
            let old = &mut self.entries[entry as usize];
            booking.generation = old.generation;
            *old = booking;
            entry
        } else {
            self.entries.push(booking);
            (self.entries.len() - 1) as u32
        };
        self.queues.push(&mut self.entries, entry);
        self.id(entry)
    }

    /// A sign of life of an open booking of a registered worker.
    pub(super) fn refresh(&mut self, id: BookingId) {
        self.queues.refresh(&mut self.entries, id.entry);
    }

    /// Frees the entry of an open booking. Returns the booking.
    pub(super) fn close(&mut self, id: BookingId) -> Option<Booking> {
        let booking = self.get_mut(id)?;
        let closed = booking.clone();
        booking.phase = None;
        booking.generation = booking.generation.wrapping_add(1);
        self.queues.remove(&mut self.entries, id.entry);
        self.free.push(id.entry);
        Some(closed)
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
        if open != self.len() {
            let text = format!("{open} open bookings, {} entries in use", self.len());
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
