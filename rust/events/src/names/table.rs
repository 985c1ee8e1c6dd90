//! Map from names or hashes to small values. One of the values means that there is none.
//!
//! It is mixed by a random number of its own: senders choose the names of their blocks.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

use cachelb_core::collections::seeded_hash::SeededHash;

/// Room that is kept when keys go.
const KEPT: usize = 64;

/// A type of values.
pub(crate) trait Value: Copy + Default {
    /// Whether this is no value, as the default is.
    fn is_vacant(self) -> bool;
}

impl Value for u32 {
    #[inline]
    fn is_vacant(self) -> bool {
        self == 0
    }
}

/// The map.
#[derive(Debug)]
pub(crate) struct Table<K, V>(HashMap<K, V, SeededHash>);

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<K: Copy + Eq + Hash, V: Value> Table<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(crate) fn get(&self, key: K) -> Option<V> {
        self.0.get(&key).copied()
    }

    /// Replaces the value of `key` by what `change` makes of it.
    #[inline]
    pub(crate) fn change(&mut self, key: K, change: impl FnOnce(V) -> V) {
        match self.0.entry(key) {
            Entry::Occupied(mut entry) => {
                let value = change(*entry.get());
                if !value.is_vacant() {
                    *entry.get_mut() = value;
                    return;
                }
                entry.remove();
                if self.0.capacity() > KEPT && self.0.len() < self.0.capacity() / 8 {
                    self.0.shrink_to(self.0.len() * 2);
                }
            }
            Entry::Vacant(entry) => {
                let value = change(V::default());
                if !value.is_vacant() {
                    entry.insert(value);
                }
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Every key with its value, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, V)> {
        self.0.iter().map(|(key, value)| (*key, *value))
    }
}
