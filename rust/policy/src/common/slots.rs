//! Per-worker state of a rule, indexed by the slot of the worker's columns.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::rule::view::Candidate;

/// State of a rule by the registration order of a worker.
pub(crate) type ByOrder<V> = HashMap<u64, V, BuildHasherDefault<Multiply>>;

/// A fast hash of registration orders, which no input chooses: rules look up every row.
#[derive(Debug, Default)]
pub(crate) struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, order: u64) {
        self.0 = (self.0 ^ order).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    order: u64,
    at: u32,
}

/// Indices by slot, each good for the worker it was set for and for no later one in the same slot.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slots(Vec<Option<Entry>>);

impl Slots {
    /// The index of `row`'s worker.
    pub fn find(&self, row: &Candidate) -> Option<usize> {
        let entry = self.0.get(row.slot as usize).copied().flatten();
        entry
            .filter(|entry| entry.order == row.order)
            .map(|entry| entry.at as usize)
    }

    /// Sets the index of the worker registered as `order`. One without a slot is not kept.
    pub fn set(&mut self, slot: u32, order: u64, at: usize) {
        if slot == Candidate::NO_SLOT {
            return;
        }
        let slot = slot as usize;
        if slot >= self.0.len() {
            self.0.resize(slot + 1, None);
        }
        self.0[slot] = Some(Entry {
            order,
            at: at as u32,
        });
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}
