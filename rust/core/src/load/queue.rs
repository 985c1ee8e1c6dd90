//! The bookings of every worker in the order of their last sign of life, longest silent first.
//!
//! A list through the entries of the book: every change is O(1). Bookings of a worker that was removed are in no list.

use crate::error::{Error, Result};

use super::book::LoadBook;

/// No entry.
const NONE: u32 = u32::MAX;

/// The entries beside one in its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Neighbours {
    older: u32,
    pub newer: u32,
}

impl Neighbours {
    /// Alone, or in no list.
    pub const NONE: Self = Self {
        older: NONE,
        newer: NONE,
    };
}

/// Both ends of one list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends {
    pub oldest: u32,
    newest: u32,
}

impl Ends {
    /// An empty list.
    pub const NOBODY: Self = Self {
        oldest: NONE,
        newest: NONE,
    };
}

impl LoadBook {
    /// Adds an entry that is in no list to the newest end of its worker's, if that is still registered.
    pub(super) fn enqueue(&mut self, entry: u32) {
        let worker = self.bookings[entry as usize].worker;
        if self.load(worker).is_none() {
            return;
        }
        let ends = &mut self.queues[worker.slot as usize];
        let older = std::mem::replace(&mut ends.newest, entry);
        if older == NONE {
            ends.oldest = entry;
        } else {
            self.bookings[older as usize].neighbours.newer = entry;
        }
        self.bookings[entry as usize].neighbours = Neighbours { older, newer: NONE };
    }

    /// Takes an entry out of the list it is in.
    pub(super) fn dequeue(&mut self, entry: u32) {
        let booking = &mut self.bookings[entry as usize];
        let slot = booking.worker.slot as usize;
        let Neighbours { older, newer } =
            std::mem::replace(&mut booking.neighbours, Neighbours::NONE);
        if older != NONE {
            self.bookings[older as usize].neighbours.newer = newer;
        }
        if newer != NONE {
            self.bookings[newer as usize].neighbours.older = older;
        }
        // An entry of an earlier incarnation is at no end of this list.
        let ends = &mut self.queues[slot];
        if ends.oldest == entry {
            ends.oldest = newer;
        }
        if ends.newest == entry {
            ends.newest = older;
        }
    }

    /// An entry showed a sign of life.
    pub(super) fn requeue(&mut self, entry: u32) {
        let slot = self.bookings[entry as usize].worker.slot as usize;
        if self.queues[slot].newest != entry {
            self.dequeue(entry);
            self.enqueue(entry);
        }
    }

    /// Every open booking of a registered worker is in its list once.
    pub(super) fn validate_queues(&self) -> Result<()> {
        let mut listed = 0;
        for (slot, ends) in self.queues.iter().enumerate() {
            let (mut before, mut at) = (NONE, ends.oldest);
            while at != NONE {
                let booking = self.bookings.get(at as usize);
                let fits = booking.is_some_and(|booking| {
                    booking.phase.is_some()
                        && booking.worker.slot as usize == slot
                        && self.load(booking.worker).is_some()
                        && booking.neighbours.older == before
                });
                if !fits || listed > self.bookings.len() {
                    let text = format!("booking {at} is not where the list of slot {slot} has it");
                    return Err(Error::Invariant(text));
                }
                listed += 1;
                before = at;
                at = self.bookings[at as usize].neighbours.newer;
            }
            if ends.newest != before {
                let text = format!("the list of slot {slot} ends at {before}, not at its end");
                return Err(Error::Invariant(text));
            }
        }
        let open = self
            .bookings
            .iter()
            .filter(|booking| booking.phase.is_some() && self.load(booking.worker).is_some());
        let open = open.count();
        if open != listed {
            let text = format!("{open} open bookings of workers, {listed} in their lists");
            return Err(Error::Invariant(text));
        }
        Ok(())
    }
}
