//! Blocks that open bookings named.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::heap;
use crate::ids::{BookingId, SequenceHash, WorkerId};
use crate::mixing::Mix;
use crate::owners::Owners;

/// Named blocks per worker that are told apart, as many as 64 million tokens; beyond that the oldest bookings count none.
const MOST_NAMED: usize = 1 << 22;

/// The first block of a prompt, with its namespace.
pub(super) type First = (u32, SequenceHash);

/// Blocks that bookings named.
#[derive(Debug)]
pub(super) struct Named {
    pub by_worker: Owners<SequenceHash>,
    /// Open bookings of the whole fleet by their first block: a prompt that begins otherwise shares nothing.
    pub firsts: HashMap<First, u32, Mix>,
}

impl Default for Named {
    fn default() -> Self {
        Self {
            by_worker: Owners::new(MOST_NAMED),
            firsts: HashMap::default(),
        }
    }
}

impl Named {
    /// Blocks that a worker's bookings named, each counted once.
    pub fn blocks(&self, worker: WorkerId) -> u64 {
        self.by_worker.distinct(worker.slot) as u64
    }

    /// A booking that had named its blocks is closed.
    pub fn close(&mut self, id: BookingId, first: First) {
        self.by_worker.proven(id);
        if let Entry::Occupied(mut bookings) = self.firsts.entry(first) {
            *bookings.get_mut() -= 1;
            if *bookings.get() == 0 {
                bookings.remove();
            }
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.by_worker.memory_bytes() + heap::table(&self.firsts)
    }
}
