//! The bookings of every worker in the order of their last sign of life, longest silent first.
//!
//! A list through the entries of the book: every change is O(1). Bookings of a worker that was removed are in no list.

use super::booking::{Booking, NONE, Neighbours};

/// Both ends of one list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends {
    pub oldest: u32,
    pub newest: u32,
}

impl Ends {
    /// An empty list.
    const EMPTY: Self = Self {
        oldest: NONE,
        newest: NONE,
    };
}

/// The lists, by worker slot.
#[derive(Debug, Default)]
pub(super) struct Queues(Vec<Ends>);

impl Queues {
    /// Begins an empty list for a worker in `slot`.
    pub fn open(&mut self, slot: u32) {
        let slot = slot as usize;
        if slot >= self.0.len() {
            self.0.resize(slot + 1, Ends::EMPTY);
        }
        self.0[slot] = Ends::EMPTY;
    }

    /// The entry of a slot that has been silent for longest.
    pub fn oldest(&self, slot: u32) -> u32 {
        self.0[slot as usize].oldest
    }

    /// Adds an entry that is in no list to the newest end of that of its worker, which is registered.
    pub fn push<T>(&mut self, bookings: &mut [Booking<T>], entry: u32) {
        let ends = &mut self.0[bookings[entry as usize].worker.slot as usize];
        let older = std::mem::replace(&mut ends.newest, entry);
        if older == NONE {
            ends.oldest = entry;
        } else {
            bookings[older as usize].neighbours.newer = entry;
        }
        bookings[entry as usize].neighbours = Neighbours { older, newer: NONE };
    }

    /// Takes an entry out of the list it is in.
    pub fn remove<T>(&mut self, bookings: &mut [Booking<T>], entry: u32) {
        let booking = &mut bookings[entry as usize];
        // An entry of an earlier incarnation is at no end of this list.
        let ends = &mut self.0[booking.worker.slot as usize];
        let Neighbours { older, newer } =
            std::mem::replace(&mut booking.neighbours, Neighbours::NONE);
        if older != NONE {
            bookings[older as usize].neighbours.newer = newer;
        }
        if newer != NONE {
            bookings[newer as usize].neighbours.older = older;
        }
        if ends.oldest == entry {
            ends.oldest = newer;
        }
        if ends.newest == entry {
            ends.newest = older;
        }
    }

    /// An entry of a registered worker showed a sign of life.
    pub fn refresh<T>(&mut self, bookings: &mut [Booking<T>], entry: u32) {
        let slot = bookings[entry as usize].worker.slot as usize;
        if self.0[slot].newest != entry {
            self.remove(bookings, entry);
            self.push(bookings, entry);
        }
    }

    /// Ends of every list, for recounts.
    pub fn iter(&self) -> impl Iterator<Item = &Ends> {
        self.0.iter()
    }
}
