//! Which workers read a shared cache, or are in a peer group.

use std::collections::HashSet;
use std::sync::Arc;

use cachelb_core::collections::slot_mut;
use cachelb_core::ids::WorkerId;

use crate::fleet::Fleet;
use crate::fleet::membership::Workers;

/// The workers that read a shared cache, by their keys: all of the model by default. One that comes back reads it again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Readers(Option<Arc<HashSet<String>>>);

impl Readers {
    /// Those with `keys`.
    #[must_use]
    pub fn of(keys: HashSet<String>) -> Self {
        Self(Some(Arc::new(keys)))
    }

    /// Whether the worker called `key` is one.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.0.as_ref().is_none_or(|keys| keys.contains(key))
    }
}

/// [`Readers`] by the slots of the current workers, for selections.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Seats {
    readers: Readers,
    slots: Vec<bool>,
}

impl Seats {
    /// Those of `readers` that are in `fleet`.
    pub fn new(readers: Readers, fleet: &Fleet) -> Self {
        let mut seats = Self {
            readers,
            slots: Vec::new(),
        };
        for (name, worker) in fleet.ids() {
            seats.seat(&name, worker, fleet);
        }
        seats
    }

    /// Whether the worker in `slot` is a reader.
    pub fn has(&self, slot: u32) -> bool {
        let listed = || self.slots.get(slot as usize).copied().unwrap_or(false);
        self.readers.0.is_none() || listed()
    }

    /// The candidate called `name` is registered as `worker`.
    fn seat(&mut self, name: &str, worker: WorkerId, fleet: &Fleet) {
        let Some(member) = fleet.member(worker).filter(|_| self.readers.0.is_some()) else {
            return;
        };
        let is_reader = self.readers.has(member.profile.split(name).0);
        *slot_mut(&mut self.slots, worker.slot) = is_reader;
    }
}

impl Workers<'_> {
    /// The candidate called `name` is registered as `worker`: it reads the shared caches, and is in the peer groups, that
    /// its key is listed for.
    pub(crate) fn seat_reader(&mut self, name: &str, worker: WorkerId) {
        let s = &mut *self.0;
        for seats in s.pools.seats_mut() {
            seats.seat(name, worker, &s.fleet);
        }
    }
}
