//! Compact map from hashes to small values: entries in the order of their mixed keys, in one array.
//!
//! An entry lies at the home of its key or, where others are in the way, behind it. The order makes a miss end early
//! and lets the array grow in one sequential pass; it grows by a third, so that between 60 % and 80 % of it is in use.
//! Mixing is keyed per process: senders choose the names of their blocks, and could aim them all at one place otherwise.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use crate::error::{Error, Result};
use crate::index::hints::prefetch;

/// Slots beyond the last home. One slot at the end is always vacant.
const OVERHANG: usize = 32;
const MIN_HOMES: usize = 16;

/// What may be a key.
pub(super) trait Key: Copy + Eq + Default {
    /// Spreads the key over 64 bits.
    fn mix(self, seeds: [u64; 2]) -> u64;
}

impl Key for u64 {
    #[inline]
    fn mix(self, [add, multiply]: [u64; 2]) -> u64 {
        let product = u128::from(self ^ add) * u128::from(multiply);
        (product >> 64) as u64 ^ product as u64
    }
}

impl Key for u128 {
    #[inline]
    fn mix(self, seeds: [u64; 2]) -> u64 {
        (self as u64 ^ ((self >> 64) as u64).mix(seeds)).mix(seeds)
    }
}

/// What may be a value. One of them means that there is none.
pub(super) trait Value: Copy {
    /// No value.
    const VACANT: Self;

    /// Whether this is no value.
    fn is_vacant(self) -> bool;
}

impl Value for u32 {
    const VACANT: Self = 0;

    #[inline]
    fn is_vacant(self) -> bool {
        self == 0
    }
}

/// Packed: two 8-byte fields and a 4-byte one make 20 bytes.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
struct Slot<K, V> {
    key: K,
    value: V,
}

/// The map.
pub(super) struct Table<K, V> {
    slots: Vec<Slot<K, V>>,
    homes: usize,
    len: usize,
    seeds: [u64; 2],
}

impl<K, V> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("len", &self.len)
            .field("homes", &self.homes)
            .finish_non_exhaustive()
    }
}

impl<K: Key, V: Value> Default for Table<K, V> {
    fn default() -> Self {
        // Which keys collide depends on these, and nothing that can be observed.
        let random = RandomState::new();
        Self {
            slots: Vec::new(),
            homes: 0,
            len: 0,
            seeds: [random.hash_one(0), random.hash_one(1) | 1],
        }
    }
}

impl<K: Key, V: Value> Table<K, V> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot<K, V>>()
    }

    #[inline]
    fn home(&self, mix: u64) -> usize {
        ((u128::from(mix) * self.homes as u128) >> 64) as usize
    }

    #[inline]
    pub(super) fn prefetch(&self, key: K) {
        let home = self.home(key.mix(self.seeds));
        if let Some(slots) = self.slots.get(home..home + 4) {
            // The place looked for often lies in the next cache line.
            prefetch(&slots[0]);
            prefetch(&slots[3]);
        }
    }

    /// Where the key is, or where it belongs.
    #[inline]
    fn find(&self, key: K) -> std::result::Result<usize, usize> {
        let mix = key.mix(self.seeds);
        let mut at = self.home(mix);
        while let Some(&slot) = self.slots.get(at) {
            let (other, value) = (slot.key, slot.value);
            if value.is_vacant() {
                break;
            }
            if other == key {
                return Ok(at);
            }
            if other.mix(self.seeds) > mix {
                break;
            }
            at += 1;
        }
        Err(at)
    }

    #[inline]
    pub(super) fn get(&self, key: K) -> Option<V> {
        self.find(key).ok().map(|at| self.slots[at].value)
    }

    /// Replaces the value of `key` by what `change` makes of it. Absent and vacant are the same, before and after.
    #[inline]
    pub(super) fn change(&mut self, key: K, change: impl FnOnce(V) -> V) {
        match self.find(key) {
            Ok(at) => {
                let value = change(self.slots[at].value);
                if value.is_vacant() {
                    self.take_out(at);
                } else {
                    self.slots[at].value = value;
                }
            }
            Err(mut at) => {
                let value = change(V::VACANT);
                if value.is_vacant() {
                    return;
                }
                if self.needs_room(1) {
                    self.reserve(1);
                    at = self.find(key).unwrap_or_else(|at| at);
                }
                self.put_in(at, Slot { key, value });
            }
        }
    }

    fn needs_room(&self, more: usize) -> bool {
        (self.len + more) * 5 > self.homes * 4
    }

    /// Makes room for `more` keys.
    pub(super) fn reserve(&mut self, more: usize) {
        if self.needs_room(more) {
            let enough = (self.len + more) * 5 / 4 + 1;
            self.rebuild(enough.max(self.homes + self.homes / 3).max(MIN_HOMES));
        }
    }

    fn put_in(&mut self, at: usize, slot: Slot<K, V>) {
        let free = self.first_vacant(at);
        if free + 1 == self.slots.len() {
            self.extend(free + 1 + OVERHANG);
        }
        self.slots.copy_within(at..free, at + 1);
        self.slots[at] = slot;
        self.len += 1;
    }

    fn first_vacant(&self, from: usize) -> usize {
        let vacant = |slot: &Slot<K, V>| {
            let value = slot.value;
            value.is_vacant()
        };
        let ahead = self.slots[from..].iter().position(vacant);
        from + ahead.unwrap_or(self.slots.len() - from)
    }

    fn take_out(&mut self, at: usize) {
        let mut end = at + 1;
        // Whoever is not at home moves one back.
        while let Some(&slot) = self.slots.get(end) {
            let (key, value) = (slot.key, slot.value);
            if value.is_vacant() || self.home(key.mix(self.seeds)) == end {
                break;
            }
            end += 1;
        }
        self.slots.copy_within(at + 1..end, at);
        self.slots[end - 1].value = V::VACANT;
        self.len -= 1;
        if self.homes > 4 * MIN_HOMES && self.len * 4 < self.homes {
            self.rebuild((self.len * 2).max(MIN_HOMES));
        }
    }

    fn extend(&mut self, len: usize) {
        let more = len.saturating_sub(self.slots.len());
        self.slots.reserve_exact(more);
        let vacant = Slot {
            key: K::default(),
            value: V::VACANT,
        };
        self.slots.resize(len.max(self.slots.len()), vacant);
    }

    fn rebuild(&mut self, homes: usize) {
        let old = std::mem::take(&mut self.slots);
        self.homes = homes;
        self.extend(homes + OVERHANG);
        let mut next = 0;
        for slot in old {
            let (key, value) = (slot.key, slot.value);
            if value.is_vacant() {
                continue;
            }
            let at = self.home(key.mix(self.seeds)).max(next);
            next = at + 1;
            if next == self.slots.len() {
                self.extend(next + OVERHANG);
            }
            self.slots[at] = slot;
        }
    }

    pub(super) fn clear(&mut self) {
        self.slots = Vec::new();
        self.homes = 0;
        self.len = 0;
    }

    /// Every key with its value.
    pub(super) fn iter(&self) -> impl Iterator<Item = (K, V)> {
        self.slots
            .iter()
            .map(|slot| (slot.key, slot.value))
            .filter(|(_, value)| !value.is_vacant())
    }

    /// Recounts everything.
    pub(super) fn validate(&self) -> Result<()> {
        let mut count = 0;
        let mut last = 0;
        for (at, &slot) in self.slots.iter().enumerate() {
            let (key, value) = (slot.key, slot.value);
            if value.is_vacant() {
                continue;
            }
            let mix = key.mix(self.seeds);
            let home = self.home(mix);
            let reachable = home <= at && self.first_vacant(home) > at;
            if !reachable || mix < last {
                return Err(Error::Invariant(format!("entry {at} is out of place")));
            }
            last = mix;
            count += 1;
        }
        let end = self.slots.last().is_none_or(|slot| {
            let value = slot.value;
            value.is_vacant()
        });
        if count != self.len || !end {
            return Err(Error::Invariant(format!(
                "{count} entries where {} are counted, end vacant: {end}",
                self.len
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::policy::Rng;

    /// Random changes, few keys and many, growing and shrinking, against the standard map.
    #[test]
    fn equals_the_standard_map() {
        let mut random = Rng::new(11);
        for keys in [3, 40, 5000_usize] {
            let (mut table, mut model) = (Table::<u64, u32>::default(), HashMap::new());
            for phase in 0..6_u64 {
                for step in 0..6000 {
                    let key = random.below(keys);
                    let value = if random.below(4) < 1 + usize::from(phase % 2 == 0) * 2 {
                        random.below(1000) as u32
                    } else {
                        0
                    };
                    let mut old = 0;
                    table.change(key as u64, |before| {
                        old = before;
                        value
                    });
                    let expected = if value == 0 {
                        model.remove(&key)
                    } else {
                        model.insert(key, value)
                    };
                    assert_eq!(old, expected.unwrap_or(0));
                    assert_eq!(table.len(), model.len());
                    if step % 500 == 0 {
                        table.validate().unwrap();
                    }
                }
                let found: HashMap<usize, u32> =
                    table.iter().map(|(k, v)| (k as usize, v)).collect();
                assert_eq!(found, model);
                for key in 0..keys {
                    assert_eq!(table.get(key as u64), model.get(&key).copied());
                }
            }
            table.clear();
            assert_eq!((table.len(), table.get(1)), (0, None));
            assert_eq!(table.memory_bytes(), 0);
        }
    }

    #[test]
    fn memory_follows_the_number_of_keys_both_ways() {
        let mut table = Table::<u64, u32>::default();
        for key in 0..100_000 {
            table.change(key, |_| 1);
        }
        let per_key = table.memory_bytes() as f64 / 100_000.0;
        assert!((14.9..19.0).contains(&per_key), "{per_key} bytes per key");
        for key in 0..100_000 {
            table.change(key, |_| 0);
        }
        assert!(table.memory_bytes() < 4096);
        table.validate().unwrap();
    }
}
