//! Who owns the placements that no worker has confirmed yet.
//!
//! A placement is recorded when the request is routed, so that the very next request sees it. Until the first token its
//! blocks are speculative: they belong to every request that waits for them. The first of these that is answered proves
//! them for all. One that fails only gives up its share; with the last owner go the blocks that were held for its sake.
//!
//! Per worker, the paths of waiting requests form a tree with a count of requests per stretch, so what many requests have
//! in common is kept once. Every call costs the length of its path. A worker has at most as many units in its tree as it
//! may hold: beyond that the oldest placements count as proven.

use std::collections::HashMap;
use std::hash::Hash;

use crate::error::{Error, Result};
use crate::heap;
use crate::ids::{BookingId, WorkerId};
use crate::mixing::Mix;
use crate::sorting::sort_rarely;

const NONE: u32 = u32::MAX;

/// What hangs below a node, or begins a namespace, by its first unit.
type Below<U> = (u64, U);

/// What is above a first node.
fn root(namespace: u32) -> u64 {
    (1 << 32) | u64::from(namespace)
}

/// A stretch of paths without a branch or an end inside.
#[derive(Debug)]
struct Node<U> {
    units: Vec<U>,
    /// Another node or a [`root`].
    above: u64,
    /// Requests whose path leads through here.
    waiting: u32,
    /// Leading units that need no owner: they were there before, or were proven.
    proven: usize,
}

/// The paths on one worker.
#[derive(Debug)]
struct Paths<U> {
    nodes: Vec<Node<U>>,
    free: Vec<u32>,
    below: HashMap<Below<U>, u32, Mix>,
    /// In all nodes.
    units: usize,
}

/// Where the path of a waiting request ends.
#[derive(Debug, Clone, Copy)]
struct End {
    worker: WorkerId,
    node: u32,
    /// Rises from request to request.
    number: u64,
}

/// What went with its last owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphaned<U> {
    /// Where.
    pub worker: WorkerId,
    /// That of the path.
    pub namespace: u32,
    /// The whole path.
    pub path: Vec<U>,
    /// Leading units of it that stay.
    pub keep: usize,
}

/// Waiting requests by booking, and their paths by worker slot.
#[derive(Debug)]
pub struct Owners<U> {
    slots: Vec<Paths<U>>,
    ends: HashMap<BookingId, End, Mix>,
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
            ends: HashMap::default(),
            capacity: capacity.max(1),
            number: 0,
        }
    }

    /// A request was sent to the worker along `path`, of which it held the first `held` units.
    pub fn placed(
        &mut self,
        worker: WorkerId,
        booking: BookingId,
        (namespace, path): (u32, &[U]),
        held: usize,
    ) {
        let slot = worker.slot as usize;
        let path = &path[..path.len().min(self.capacity)];
        if path.is_empty() {
            return;
        }
        if held >= path.len() {
            let paths = self.slots.get(slot);
            if !paths.is_some_and(|paths| paths.is_speculative(namespace, path)) {
                return;
            }
        }
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, Paths::default);
        }
        if self.slots[slot].units + path.len() > self.capacity {
            self.retire(worker.slot, path.len());
        }
        let node = self.slots[slot].add(namespace, path, held);
        self.number += 1;
        let number = self.number;
        let end = End {
            worker,
            node,
            number,
        };
        if let Some(earlier) = self.ends.insert(booking, end) {
            // Of one request, the latest placement is the one that waits.
            self.slots[earlier.worker.slot as usize].leave(earlier.node, true);
        }
    }

    /// Takes the oldest placements on a worker for proven, until `more` units and a quarter of all have room.
    fn retire(&mut self, slot: u32, more: usize) {
        let ends = self.ends.iter().filter(|(_, end)| end.worker.slot == slot);
        let mut oldest: Vec<(u64, BookingId)> = ends.map(|(id, end)| (end.number, *id)).collect();
        sort_rarely(&mut oldest, |a, b| a.0.cmp(&b.0));
        let most = (self.capacity - self.capacity / 4).min(self.capacity - more);
        for (_, booking) in oldest {
            if self.slots[slot as usize].units <= most {
                return;
            }
            self.proven(booking);
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
            let along = paths.walk(namespace, path);
            let many = along.take_while(|(node, _)| node.waiting >= requests);
            many.map(|(_, common)| common).sum()
        })
    }

    /// The worker of a request answered.
    pub fn proven(&mut self, booking: BookingId) {
        if self.ends.is_empty() {
            return;
        }
        if let Some(end) = self.ends.remove(&booking) {
            self.slots[end.worker.slot as usize].leave(end.node, true);
        }
    }

    /// A request failed before it was answered. Returns what was held for its sake only.
    pub fn failed(&mut self, booking: BookingId) -> Option<Orphaned<U>> {
        let end = self.ends.remove(&booking)?;
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
            && !paths.below.is_empty()
        {
            *paths = Paths::default();
            self.ends.retain(|_, end| end.worker.slot != slot);
        }
    }

    /// Nothing waits any more.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.ends.clear();
    }

    /// Heap bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let paths = self.slots.iter().map(Paths::memory_bytes);
        self.slots.capacity() * size_of::<Paths<U>>()
            + paths.sum::<usize>()
            + heap::table(&self.ends)
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the slot that is miscounted.
    pub fn validate(&self) -> Result<()> {
        let mut ends = vec![Vec::new(); self.slots.len()];
        for end in self.ends.values() {
            ends[end.worker.slot as usize].push(end.node);
        }
        for (slot, (paths, ends)) in self.slots.iter().zip(&ends).enumerate() {
            if !paths.agrees(ends) || paths.units > self.capacity {
                let text = format!("the placements that wait in slot {slot} are miscounted");
                return Err(Error::Invariant(text));
            }
        }
        Ok(())
    }
}

// === impl Paths ===

impl<U> Default for Paths<U> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            below: HashMap::default(),
            units: 0,
        }
    }
}

impl<U> Paths<U> {
    fn memory_bytes(&self) -> usize {
        let units = self.nodes.iter().map(|node| node.units.capacity());
        units.sum::<usize>() * size_of::<U>()
            + self.nodes.capacity() * size_of::<Node<U>>()
            + self.free.capacity() * size_of::<u32>()
            + heap::table(&self.below)
    }
}

/// Leading units that both begin with.
fn shared<U: Eq>(a: &[U], b: &[U]) -> usize {
    let most = a.len().min(b.len());
    if a[..most] == b[..most] {
        return most;
    }
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl<U: Copy + Eq + Hash> Paths<U> {
    /// The nodes along a path, and how many of their leading units are part of it.
    fn walk(&self, namespace: u32, path: &[U]) -> impl Iterator<Item = (&Node<U>, usize)> {
        let (mut above, mut rest) = (root(namespace), path);
        std::iter::from_fn(move || {
            let at = *self.below.get(&(above, *rest.first()?))?;
            let node = &self.nodes[at as usize];
            let common = shared(&node.units, rest);
            let whole = common == node.units.len();
            (above, rest) = (u64::from(at), if whole { &rest[common..] } else { &[] });
            Some((node, common))
        })
    }

    /// Whether a request waits for anything of a path that the worker already holds.
    fn is_speculative(&self, namespace: u32, path: &[U]) -> bool {
        let mut along = self.walk(namespace, path);
        along.any(|(node, common)| node.proven < common)
    }

    /// Adds a request with its path; returns the node where that ends.
    fn add(&mut self, namespace: u32, path: &[U], held: usize) -> u32 {
        let (mut above, mut depth, mut last) = (root(namespace), 0, NONE);
        while let Some(first) = path.get(depth) {
            let rest = &path[depth..];
            // What the worker lacks is speculative, even if it once was proven.
            let held = held.saturating_sub(depth);
            last = if let Some(&known) = self.below.get(&(above, *first)) {
                let common = shared(&self.nodes[known as usize].units, rest);
                let at = self.split(known, common);
                let node = &mut self.nodes[at as usize];
                node.waiting += 1;
                node.proven = node.proven.min(held);
                at
            } else {
                self.units += rest.len();
                self.open(Node {
                    units: rest.to_vec(),
                    above,
                    waiting: 1,
                    proven: held.min(rest.len()),
                })
            };
            depth += self.nodes[last as usize].units.len();
            above = u64::from(last);
        }
        last
    }

    /// Adds a node.
    fn open(&mut self, node: Node<U>) -> u32 {
        let key = (node.above, node.units[0]);
        let at = if let Some(at) = self.free.pop() {
            self.nodes[at as usize] = node;
            at
        } else {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        };
        self.below.insert(key, at);
        at
    }

    /// Splits a node behind its first `length` units; returns the node that ends there. What hung below `at` still does.
    fn split(&mut self, at: u32, length: usize) -> u32 {
        let node = &mut self.nodes[at as usize];
        if length == node.units.len() {
            return at;
        }
        let rest = node.units.split_off(length);
        let upper = Node {
            units: std::mem::replace(&mut node.units, rest),
            above: node.above,
            waiting: node.waiting,
            proven: node.proven.min(length),
        };
        node.proven = node.proven.saturating_sub(length);
        let first = node.units[0];
        let upper = self.open(upper);
        self.nodes[at as usize].above = u64::from(upper);
        self.below.insert((u64::from(upper), first), at);
        upper
    }

    /// The path that ends with a node.
    fn path(&self, end: u32) -> (u32, Vec<U>) {
        let mut stretches = Vec::new();
        let mut above = u64::from(end);
        while let Ok(at) = u32::try_from(above) {
            let node = &self.nodes[at as usize];
            stretches.push(&*node.units);
            above = node.above;
        }
        stretches.reverse();
        (above as u32, stretches.concat())
    }

    /// A request whose path ends with a node waits no more; `proven` says whether for good reason. Returns how many leading
    /// units of its path are still held.
    fn leave(&mut self, end: u32, proven: bool) -> usize {
        let (mut above, mut keep) = (u64::from(end), 0);
        while let Ok(at) = u32::try_from(above) {
            let node = &mut self.nodes[at as usize];
            let length = node.units.len();
            above = node.above;
            node.waiting -= 1;
            if proven {
                node.proven = length;
            }
            let gone = node.waiting == 0;
            // Where an earlier stretch is cut off, so are those behind it.
            keep = if gone && node.proven < length {
                node.proven
            } else {
                length + keep
            };
            if gone {
                let key = (above, node.units[0]);
                node.units = Vec::new();
                self.units -= length;
                self.below.remove(&key);
                self.free.push(at);
            }
        }
        if self.below.is_empty() {
            self.nodes.clear();
            self.free.clear();
        }
        keep
    }

    /// Whether everything counted is what it is with paths that end with `ends`.
    fn agrees(&self, ends: &[u32]) -> bool {
        let mut waiting = vec![0; self.nodes.len()];
        for end in ends {
            let mut above = u64::from(*end);
            while let Ok(at) = u32::try_from(above) {
                waiting[at as usize] += 1;
                above = self.nodes[at as usize].above;
            }
        }
        let nodes = self.nodes.iter().zip(&waiting);
        let live = nodes.filter(|(node, _)| !node.units.is_empty());
        let count = live.clone().count();
        let units: usize = live.clone().map(|(node, _)| node.units.len()).sum();
        let mut both = live.clone();
        units == self.units
            && count == self.below.len()
            && count + self.free.len() == self.nodes.len()
            && both.all(|(node, waiting)| {
                let known = self.below.get(&(node.above, node.units[0]));
                node.waiting == *waiting
                    && *waiting > 0
                    && node.proven <= node.units.len()
                    && known
                        .is_some_and(|at| std::ptr::eq(&raw const self.nodes[*at as usize], node))
            })
    }
}

#[cfg(test)]
mod tests;
