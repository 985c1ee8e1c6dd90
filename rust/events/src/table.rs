//! Compact map from hashes to small values: entries in the order they came, and buckets that say where each one is.
//!
//! The entries of one store lie beside each other and never move, so that storing and removing a chain touches one random
//! cache line per key, the bucket's. Chunks of entries are never copied; the buckets, 5 bytes per place, double in one
//! pass over the entries. A value that means "none" marks free entries, which are reused last in first out: what
//! went from the end of a chain to its beginning is taken in the order of the next one.
//! Mixing is keyed per process: senders choose the names of their blocks, and could aim them all at one place otherwise.

mod buckets;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use cachelb_core::error::{Error, Result};
use cachelb_core::index::hints::prefetch;

use self::buckets::{Buckets, Found};

/// Entries per chunk.
const CHUNK: usize = 256;
const MIN_BUCKETS: usize = 2;
/// Keys mixed ahead of the one at work when buckets are made anew.
const AHEAD: usize = 32;
/// Keys that a map has room for.
pub(super) const MOST: u64 = 1 << buckets::PLACE_BITS;
/// No entry.
const NONE: u32 = u32::MAX;

/// What may be a key.
pub(super) trait Key: Copy + Eq + Default {
    /// Spreads the key over 64 bits.
    fn mix(self, seeds: [u64; 2]) -> u64;

    /// A key that says which free entry comes next.
    fn link(place: u32) -> Self;

    /// The place that a link says.
    fn linked(self) -> u32;
}

impl Key for u64 {
    #[inline]
    fn mix(self, [add, multiply]: [u64; 2]) -> u64 {
        let product = u128::from(self ^ add) * u128::from(multiply);
        (product >> 64) as u64 ^ product as u64
    }

    #[inline]
    fn link(place: u32) -> Self {
        Self::from(place)
    }

    #[inline]
    fn linked(self) -> u32 {
        self as u32
    }
}

impl Key for u128 {
    #[inline]
    fn mix(self, seeds: [u64; 2]) -> u64 {
        (self as u64 ^ ((self >> 64) as u64).mix(seeds)).mix(seeds)
    }

    #[inline]
    fn link(place: u32) -> Self {
        Self::from(place)
    }

    #[inline]
    fn linked(self) -> u32 {
        self as u32
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

/// Packed: two 8-byte fields and a byte make 17 bytes.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Entry<K, V> {
    key: K,
    value: V,
}

/// What is known of a key: its value, and where it is if it is anywhere.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot<V> {
    mix: u64,
    found: Option<Found>,
    pub(super) value: V,
}

/// The map.
pub(super) struct Table<K, V> {
    chunks: Vec<Box<[Entry<K, V>; CHUNK]>>,
    buckets: Buckets,
    /// Entries for which there are buckets enough.
    room: usize,
    /// Entries in use, and free ones that were in use.
    used: usize,
    /// The free one that is taken next.
    free: u32,
    len: usize,
    seeds: [u64; 2],
}

impl<K, V> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("len", &self.len)
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}

impl<K: Key, V: Value> Default for Table<K, V> {
    fn default() -> Self {
        // Which keys collide depends on these, and nothing that can be observed.
        let random = RandomState::new();
        Self {
            chunks: Vec::new(),
            buckets: Buckets::default(),
            room: 0,
            used: 0,
            free: NONE,
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
        self.chunks.len() * CHUNK * size_of::<Entry<K, V>>()
            + self.chunks.capacity() * size_of::<Box<[Entry<K, V>; CHUNK]>>()
            + self.buckets.memory_bytes()
    }

    #[inline]
    fn entry(&self, place: u32) -> &Entry<K, V> {
        &self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }

    #[inline]
    fn entry_mut(&mut self, place: u32) -> &mut Entry<K, V> {
        &mut self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }

    /// Hints that the key will be looked for.
    #[inline]
    pub(super) fn prefetch(&self, key: K) {
        self.buckets.prefetch(key.mix(self.seeds));
    }

    /// Hints that the value of a key will be read; its bucket was fetched.
    #[inline]
    pub(super) fn prefetch_value(&self, key: K) {
        if let Some(found) = self.buckets.find(key.mix(self.seeds), |_| true) {
            prefetch(self.entry(found.place));
        }
    }

    #[inline]
    fn find(&self, key: K, mix: u64) -> Option<Found> {
        self.buckets.find(mix, |place| {
            let other = self.entry(place).key;
            other == key
        })
    }

    #[inline]
    pub(super) fn get(&self, key: K) -> Option<V> {
        let found = self.find(key, key.mix(self.seeds))?;
        Some(self.entry(found.place).value)
    }

    /// Looks for a key that is to be changed.
    #[expect(clippy::inline_always, reason = "as with `put_in`")]
    #[inline(always)]
    pub(super) fn look(&self, key: K) -> Spot<V> {
        let mix = key.mix(self.seeds);
        let found = self.find(key, mix);
        let value = found.map_or(V::VACANT, |found| self.entry(found.place).value);
        Spot { mix, found, value }
    }

    /// Gives `key` another value than it has at its spot. Absent and vacant are the same, before and after.
    #[expect(clippy::inline_always, reason = "as with `put_in`")]
    #[inline(always)]
    pub(super) fn settle(&mut self, key: K, spot: Spot<V>, value: V) {
        if let Some(found) = spot.found {
            self.entry_mut(found.place).value = value;
            if value.is_vacant() {
                self.buckets.take(spot.mix, found);
                self.release(found.place);
            }
        } else if !value.is_vacant() {
            self.reserve(1);
            let place = self.put_in(Entry { key, value });
            self.buckets.insert(spot.mix, place);
        }
    }

    /// Adds a key that is new by the tags alone, as 19 of 20 new ones are, and for which there is room; false, and nothing
    /// done, for any other.
    #[expect(clippy::inline_always, reason = "as with `put_in`")]
    #[inline(always)]
    pub(super) fn insert_new(&mut self, key: K, value: V) -> bool {
        let mix = key.mix(self.seeds);
        if self.len >= self.room || self.buckets.may_hold(mix) {
            return false;
        }
        let place = self.put_in(Entry { key, value });
        self.buckets.insert(mix, place);
        true
    }

    /// Takes a key out whose value is `wanted`; `None`, and nothing done, for any other.
    #[expect(clippy::inline_always, reason = "as with `put_in`")]
    #[inline(always)]
    pub(super) fn take_if(&mut self, key: K, wanted: impl Fn(V) -> bool) -> Option<V> {
        let mix = key.mix(self.seeds);
        let (found, free) = (self.find(key, mix)?, self.free);
        let entry = self.entry_mut(found.place);
        let value = entry.value;
        if !wanted(value) {
            return None;
        }
        *entry = Entry {
            key: K::link(free),
            value: V::VACANT,
        };
        self.buckets.take(mix, found);
        self.freed(found.place);
        Some(value)
    }

    /// Replaces the value of `key` by what `change` makes of it.
    #[inline]
    pub(super) fn change(&mut self, key: K, change: impl FnOnce(V) -> V) {
        let spot = self.look(key);
        self.settle(key, spot, change(spot.value));
    }

    /// Makes room for `more` keys.
    #[inline]
    pub(super) fn reserve(&mut self, more: usize) {
        if self.len + more > self.room {
            self.grow(more);
        }
    }

    #[cold]
    fn grow(&mut self, more: usize) {
        let needed = Buckets::needed(self.len + more);
        self.rebuild(needed.max(2 * self.buckets.len()).max(MIN_BUCKETS));
    }

    /// Puts an entry into a free place.
    #[expect(
        clippy::inline_always,
        reason = "a call costs as much as what it does where names are new"
    )]
    #[inline(always)]
    fn put_in(&mut self, entry: Entry<K, V>) -> u32 {
        self.len += 1;
        if self.free != NONE {
            let place = self.free;
            let slot = self.entry_mut(place);
            let key = std::mem::replace(slot, entry).key;
            self.free = key.linked();
            return place;
        }
        let place = self.used;
        if place == self.chunks.len() * CHUNK {
            self.add_chunk();
        }
        self.used += 1;
        *self.entry_mut(place as u32) = entry;
        place as u32
    }

    #[cold]
    fn add_chunk(&mut self) {
        let vacant = Entry {
            key: K::default(),
            value: V::VACANT,
        };
        self.chunks.push(Box::new([vacant; CHUNK]));
    }

    /// Frees an entry whose value is vacant already.
    #[inline]
    fn release(&mut self, place: u32) {
        self.entry_mut(place).key = K::link(self.free);
        self.freed(place);
    }

    /// Counts an entry that was linked to the free ones.
    #[inline]
    fn freed(&mut self, place: u32) {
        self.free = place;
        self.len -= 1;
        if self.used > CHUNK && self.len * 4 < self.used {
            self.compact();
        }
    }

    /// Moves the entries together.
    #[cold]
    fn compact(&mut self) {
        let old = std::mem::take(&mut self.chunks);
        (self.used, self.free, self.len) = (0, NONE, 0);
        for entry in old.iter().flat_map(|chunk| chunk.iter()) {
            let value = entry.value;
            if !value.is_vacant() {
                self.put_in(*entry);
            }
        }
        self.rebuild(Buckets::needed(self.len * 5 / 4).max(MIN_BUCKETS));
    }

    /// Makes the buckets anew.
    fn rebuild(&mut self, buckets: usize) {
        self.buckets = Buckets::default();
        let mut buckets = Buckets::new(buckets);
        let mix = |entry: &Entry<K, V>| {
            let key = entry.key;
            key.mix(self.seeds)
        };
        for (at, chunk) in self.chunks.iter().enumerate() {
            for (i, entry) in chunk.iter().enumerate() {
                let behind = || self.chunks.get(at + 1)?.get(i + AHEAD - CHUNK);
                if let Some(ahead) = chunk.get(i + AHEAD).or_else(behind) {
                    buckets.prefetch(mix(ahead));
                }
                let value = entry.value;
                if !value.is_vacant() {
                    buckets.insert(mix(entry), (at * CHUNK + i) as u32);
                }
            }
        }
        self.room = buckets.room();
        self.buckets = buckets;
    }

    pub(super) fn clear(&mut self) {
        *self = Self {
            seeds: self.seeds,
            ..Self::default()
        };
    }

    /// Every key with its value.
    pub(super) fn iter(&self) -> impl Iterator<Item = (K, V)> {
        let entries = self.chunks.iter().flat_map(|chunk| chunk.iter());
        entries
            .map(|entry| (entry.key, entry.value))
            .filter(|(_, value)| !value.is_vacant())
    }

    /// Recounts everything.
    pub(super) fn validate(&self) -> Result<()> {
        let (mut count, mut passed) = (0, 0);
        for (place, entry) in (0..).zip(self.chunks.iter().flat_map(|chunk| chunk.iter())) {
            let (key, value) = (entry.key, entry.value);
            if value.is_vacant() {
                continue;
            }
            let mix = key.mix(self.seeds);
            let Some(steps) = self.buckets.passed(mix, place) else {
                return Err(Error::Invariant(format!("entry {place} is not found")));
            };
            if self.find(key, mix).map(|found| found.place) != Some(place) {
                return Err(Error::Invariant(format!("entry {place} is there twice")));
            }
            count += 1;
            passed += steps;
        }
        let mut free = 0;
        let mut next = self.free;
        while next != NONE && free <= self.used {
            next = {
                let key = self.entry(next).key;
                key.linked()
            };
            free += 1;
        }
        let found = (count, self.used, self.buckets.count());
        if found == (self.len, count + free, (count, passed)) {
            return Ok(());
        }
        Err(Error::Invariant(format!(
            "{found:?} entries, used places and places in buckets where {} and {free} free ones are counted",
            self.len
        )))
    }
}
