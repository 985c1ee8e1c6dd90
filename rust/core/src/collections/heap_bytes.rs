//! Heap bytes of collections of the standard library, as near as they can be computed from outside.

use std::collections::{BTreeMap, HashMap};

/// Those of a hash table: a power of two of buckets with a byte each, at most 7 in 8 of them used.
#[must_use]
pub fn table<K, V, S>(map: &HashMap<K, V, S>) -> usize {
    match map.capacity() {
        0 => 0,
        capacity => (capacity * 8 / 7).next_power_of_two() * (size_of::<(K, V)>() + 1) + 16,
    }
}

/// Those of a tree whose keys came in rising order, which leaves nodes little more than half full.
#[must_use]
pub fn tree<K, V>(map: &BTreeMap<K, V>) -> usize {
    map.len() * size_of::<(K, V)>() * 2
}
