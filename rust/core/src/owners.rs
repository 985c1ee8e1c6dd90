//! Owners of the placements that no worker has confirmed yet.
//!
//! A placement is recorded when the request is routed, so that the very next request sees it. Until the first token its
//! blocks are speculative: they belong to every request that waits for them. The first of these that is answered proves
//! them for all. One that fails only gives up its share; the blocks that were held for it go with their last owner.
//!
//! The paths of requests that wait on a worker form a tree with a count of requests per stretch, so the common part of
//! many requests is kept once, and stretches that a radix tree holds are not copied. Every call costs the length of its
//! path. A worker has at most as many units in its tree as it may hold: beyond that the oldest placements count as
//! proven.

mod paths;

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use crate::collections::slot_mut;
use crate::ids::WorkerId;
use paths::Paths;
pub use paths::Stretch;

/// A placement that waits for an answer; the default is none. It matches nothing once the placement waits no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ticket {
    entry: u32,
    number: u64,
}

/// Where the path of a waiting request ends.
#[derive(Debug, Clone, Copy)]
struct End {
    worker: WorkerId,
    node: u32,
    /// Rises from request to request, and is above 0.
    number: u64,
}

/// A path that lost its last owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphaned<U> {
    /// The worker that held it.
    pub worker: WorkerId,
    /// Namespace of the path.
    pub namespace: u32,
    /// The whole path.
    pub path: Vec<U>,
    /// Leading units of it that stay.
    pub keep: usize,
}

/// Waiting requests by ticket, and their paths by worker slot.
#[derive(Debug)]
pub struct Owners<U> {
    slots: Vec<Paths<U>>,
    ends: Vec<Option<End>>,
    /// Entries of `ends` that are empty.
    free: Vec<u32>,
    /// Most units per worker.
    capacity: usize,
    number: u64,
}

impl<U: Copy + Eq + Hash> Owners<U> {
    /// Remembers at most `capacity` units per worker.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            slots: Vec::new(),
            ends: Vec::new(),
            free: Vec::new(),
            capacity: capacity.max(1),
            number: 0,
        }
    }

    /// A request was sent to the worker along stretches that join to its path, of which it held the first `held` units.
    /// New units of slices are copied. Shared ones are not, and take the place of those that earlier requests came along.
    pub fn placed<S: Stretch<U>>(
        &mut self,
        worker: WorkerId,
        (namespace, path): (u32, &[S]),
        held: usize,
    ) -> Ticket {
        let slot = worker.slot as usize;
        let length = path.iter().map(|stretch| stretch.len()).sum::<usize>();
        let length = length.min(self.capacity);
        if length == 0 {
            return Ticket::default();
        }
        if held >= length {
            let paths = self.slots.get(slot);
            if !paths.is_some_and(|paths| paths.is_speculative(namespace, path)) {
                return Ticket::default();
            }
        }
        if slot_mut(&mut self.slots, worker.slot).units + length > self.capacity {
            self.retire(worker.slot, length);
        }
        let node = self.slots[slot].add(namespace, path, length, held);
        self.number += 1;
        let number = self.number;
        let entry = self.free.pop().unwrap_or(self.ends.len() as u32);
        if entry as usize == self.ends.len() {
            self.ends.push(None);
        }
        self.ends[entry as usize] = Some(End {
            worker,
            node,
            number,
        });
        Ticket { entry, number }
    }

    /// The requests that wait on the worker in `slot`.
    fn tickets(&self, slot: u32) -> Vec<Ticket> {
        let ticket = |(entry, end): (u32, &Option<End>)| {
            let end = end.filter(|end| end.worker.slot == slot)?;
            let number = end.number;
            Some(Ticket { entry, number })
        };
        (0..).zip(&self.ends).filter_map(ticket).collect()
    }

    /// A request waits no more. `None` if it did not.
    fn take(&mut self, ticket: Ticket) -> Option<End> {
        let end = self.ends.get_mut(ticket.entry as usize)?;
        let end = end.take_if(|end| end.number == ticket.number)?;
        self.free.push(ticket.entry);
        Some(end)
    }

    /// Takes the oldest placements on a worker as proven, until `more` units and a quarter of all have room.
    fn retire(&mut self, slot: u32, more: usize) {
        let mut oldest = self.tickets(slot);
        oldest.sort_by_key(|ticket| ticket.number);
        let most = (self.capacity - self.capacity / 4).min(self.capacity - more);
        for ticket in oldest {
            if self.slots[slot as usize].units <= most {
                return;
            }
            self.proven(ticket);
        }
    }

    /// Units of all paths on a worker, those that several begin with counted once.
    #[must_use]
    pub fn distinct(&self, slot: u32) -> usize {
        self.slots.get(slot as usize).map_or(0, |paths| paths.units)
    }

    /// Leading units that a path has in common with at least `requests` of those on a worker.
    #[must_use]
    pub fn common(&self, slot: u32, namespace: u32, path: &[U], requests: u32) -> usize {
        let paths = self.slots.get(slot as usize);
        paths.map_or(0, |paths| {
            let path = [path];
            let along = paths.walk(namespace, &path);
            let many = along.take_while(|(node, _)| node.waiting >= requests);
            many.map(|(_, common)| common).sum()
        })
    }

    /// The worker of a request answered.
    pub fn proven(&mut self, ticket: Ticket) {
        if let Some(end) = self.take(ticket) {
            self.slots[end.worker.slot as usize].leave(end.node, true);
        }
    }

    /// A request failed before it was answered. Returns the blocks that were held for its sake only.
    pub fn failed(&mut self, ticket: Ticket) -> Option<Orphaned<U>> {
        let end = self.take(ticket)?;
        let paths = &mut self.slots[end.worker.slot as usize];
        let (namespace, path) = paths.path(end.node);
        let keep = paths.leave(end.node, false);
        (keep < path.len()).then_some(Orphaned {
            worker: end.worker,
            namespace,
            path,
            keep,
        })
    }

    /// The worker in `slot` is gone, or holds nothing any more.
    pub fn forget(&mut self, slot: u32) {
        if let Some(paths) = self.slots.get_mut(slot as usize)
            && !paths.is_empty()
        {
            *paths = Paths::default();
            for ticket in self.tickets(slot) {
                self.take(ticket);
            }
        }
    }

    /// Nothing waits any more.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.ends.clear();
        self.free.clear();
    }

    /// Heap bytes, without units that another structure keeps too.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let paths = self.slots.iter().map(Paths::memory_bytes);
        self.slots.capacity() * size_of::<Paths<U>>()
            + paths.sum::<usize>()
            + self.ends.capacity() * size_of::<Option<End>>()
            + self.free.capacity() * size_of::<u32>()
            + self.units_bytes()
    }

    /// Those of the allocations to which nothing else refers, however many stretches do.
    fn units_bytes(&self) -> usize {
        let mut references = HashMap::new();
        for units in self.slots.iter().flat_map(Paths::stretches) {
            if let Some(all) = units.allocation() {
                references.entry(all.as_ptr()).or_insert((0, units, all)).0 += 1;
            }
        }
        let own = references
            .values()
            .filter(|(count, _, all)| Arc::strong_count(all) == *count);
        own.map(|(_, units, _)| units.heap_bytes()).sum()
    }
}

#[cfg(test)]
mod tests;
