//! Blocks that open bookings named.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::collections::seeded_hash::SeededHash;
use crate::error::{Error, Result};
use crate::ids::{SequenceHash, WorkerId};
use crate::owners::{Owners, Ticket};

/// Distinct named blocks per worker, as many as 64 million tokens; beyond that the oldest bookings count none.
const MOST_NAMED: usize = 1 << 22;

/// The first block of a prompt, with its namespace.
pub(super) type First = (u32, SequenceHash);

/// What a booking named: its first block, and all of them as far as its worker is registered.
pub(super) type Name = (First, Ticket);

/// Blocks that bookings named.
#[derive(Debug)]
pub struct Named {
    by_worker: Owners<SequenceHash>,
    /// Open bookings of the whole fleet by their first block: a prompt that begins otherwise shares nothing.
    firsts: HashMap<First, u32, SeededHash>,
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
    /// Leading blocks of a prompt that at least `prompts` in flight on the worker in `slot` have too. Blocks of different
    /// namespaces differ.
    #[must_use]
    #[inline]
    pub fn shared_blocks(
        &self,
        slot: u32,
        (namespace, path): (u32, &[SequenceHash]),
        prompts: u32,
    ) -> u64 {
        self.by_worker.common(slot, namespace, path, prompts) as u64
    }

    /// Whether prompts in flight, on any worker, hold any of the leading blocks of a prompt.
    #[must_use]
    #[inline]
    pub fn shares_any(&self, namespace: u32, path: &[SequenceHash]) -> bool {
        let first = path.first().map(|first| (namespace, *first));
        first.is_some_and(|first| self.firsts.contains_key(&first))
    }

    /// Blocks that the bookings of a slot named, each counted once.
    #[must_use]
    pub fn blocks(&self, slot: u32) -> u64 {
        self.by_worker.distinct(slot) as u64
    }

    /// A booking on a worker, `None` if it is not registered any more, names its blocks.
    pub(super) fn open(
        &mut self,
        worker: Option<WorkerId>,
        first: First,
        path: &[SequenceHash],
    ) -> Name {
        *self.firsts.entry(first).or_default() += 1;
        let place = |worker| self.by_worker.placed(worker, (first.0, &[path]), 0);
        (first, worker.map(place).unwrap_or_default())
    }

    /// A booking that had named its blocks is closed.
    pub(super) fn close(&mut self, (first, ticket): Name) {
        self.by_worker.proven(ticket);
        if let Entry::Occupied(mut bookings) = self.firsts.entry(first) {
            *bookings.get_mut() -= 1;
            if *bookings.get() == 0 {
                bookings.remove();
            }
        }
    }

    /// The worker in `slot` is gone.
    pub(super) fn forget(&mut self, slot: u32) {
        self.by_worker.forget(slot);
    }

    /// Compares first blocks with those of the open bookings.
    pub(super) fn validate(&self, firsts: impl Iterator<Item = First>) -> Result<()> {
        let mut counted = HashMap::default();
        for first in firsts {
            *counted.entry(first).or_default() += 1;
        }
        if counted == self.firsts {
            return Ok(());
        }
        Err(Error::Invariant("first blocks are miscounted".into()))
    }
}
