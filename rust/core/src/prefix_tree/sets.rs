//! Interned sets of lanes: a run stores four bytes, however many workers hold it.
//!
//! A set is a bitmap of slots per medium, for as many media as are in use: the workers that hold something in any medium
//! are the union of the bitmaps, word by word.
//!
//! Sets are found by a Zobrist hash (xor of one random word per member), so adding or taking out a lane costs one map
//! lookup; the members are compared before a set is shared.

use std::collections::HashMap;

use super::NONE;
use crate::epoch_lru::lanes::{Lanes, MEDIA, medium_of, slot_of};
use crate::ids::AsIs;

/// Id of the empty set, which is not counted.
pub(crate) const EMPTY: u32 = 0;

fn member_hash(lane: u32) -> u64 {
    // splitmix64 of the lane number
    let mut z = (u64::from(lane) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[derive(Debug, Clone, Copy)]
struct Head {
    hash: u64,
    references: u32,
    /// Next set with the same hash.
    next: u32,
}

/// The interner.
#[derive(Debug)]
pub(crate) struct LaneSets {
    /// Words per medium of every set.
    words: usize,
    /// Words per set.
    stride: usize,
    bits: Vec<u64>,
    heads: Vec<Head>,
    /// First of the forgotten sets, which `next` links.
    free: u32,
    /// How many are forgotten.
    vacant: usize,
    by_hash: HashMap<u64, u32, AsIs>,
}

impl LaneSets {
    pub(crate) fn new() -> Self {
        let empty = Head {
            hash: 0,
            references: 1,
            next: NONE,
        };
        Self {
            words: 1,
            stride: 1,
            bits: vec![0],
            heads: vec![empty],
            free: NONE,
            vacant: 0,
            by_hash: HashMap::from_iter([(0, EMPTY)]),
        }
    }

    /// Words of every bitmap of slots.
    #[inline]
    pub(crate) fn words(&self) -> usize {
        self.words
    }

    /// Whether sets distinguish media: with one there is only device memory.
    #[inline]
    pub(crate) fn several_media(&self) -> bool {
        self.stride > self.words
    }

    /// Word and bit of a lane within a set.
    #[inline]
    fn place(&self, lane: u32) -> (usize, u64) {
        let slot = slot_of(lane) as usize;
        (medium_of(lane) * self.words + slot / 64, 1 << (slot % 64))
    }

    /// Sets known, the empty one and forgotten ones included.
    pub(crate) fn len(&self) -> usize {
        self.heads.len()
    }

    /// Heap bytes, about: a map is two thirds full on average.
    pub(crate) fn memory_bytes(&self) -> usize {
        let set = size_of::<Head>() + size_of::<(u64, u32)>() * 3 / 2;
        (self.heads.len() - 1 - self.vacant) * (set + self.stride * size_of::<u64>())
    }

    /// Sets added at once when there is no room for another.
    fn step(sets: usize) -> usize {
        (sets / 8).max(8)
    }

    /// Makes room for all lanes.
    pub(crate) fn reserve(&mut self, lanes: &Lanes) {
        let (slots, media) = (lanes.workers.len(), lanes.media());
        let words = slots.div_ceil(64).next_power_of_two().max(self.words);
        let stride = words * media.max(self.stride / self.words);
        if stride == self.stride {
            return;
        }
        let mut bits = Vec::with_capacity(self.heads.capacity() * stride);
        bits.resize(self.heads.len() * stride, 0);
        for (to, from) in bits.chunks_mut(stride).zip(self.bits.chunks(self.stride)) {
            for (to, from) in to.chunks_mut(words).zip(from.chunks(self.words)) {
                to[..from.len()].copy_from_slice(from);
            }
        }
        self.bits = bits;
        self.words = words;
        self.stride = stride;
    }

    /// Bitmaps of a set, medium by medium.
    #[inline]
    pub(crate) fn members(&self, set: u32) -> &[u64] {
        let at = set as usize * self.stride;
        &self.bits[at..at + self.stride]
    }

    #[inline]
    pub(crate) fn contains(&self, set: u32, lane: u32) -> bool {
        let (word, bit) = self.place(lane);
        self.members(set)[word] & bit != 0
    }

    /// Members of a set, medium by medium.
    pub(crate) fn iter(&self, set: u32) -> impl Iterator<Item = u32> + '_ {
        let media = self.members(set).chunks(self.words).zip(0..);
        media.flat_map(|(slots, medium)| ones(slots).map(move |slot| slot * MEDIA as u32 + medium))
    }

    /// One more reference to a set.
    pub(crate) fn share(&mut self, set: u32) -> u32 {
        if set != EMPTY {
            self.heads[set as usize].references += 1;
        }
        set
    }

    /// One reference less; a set without one is forgotten.
    pub(crate) fn release(&mut self, set: u32) {
        if set == EMPTY {
            return;
        }
        let head = &mut self.heads[set as usize];
        head.references -= 1;
        if head.references > 0 {
            return;
        }
        let Head { hash, next, .. } = *head;
        let first = self.by_hash.get(&hash).copied();
        if first == Some(set) {
            if next == NONE {
                self.by_hash.remove(&hash);
            } else {
                self.by_hash.insert(hash, next);
            }
        } else if let Some(mut at) = first {
            while self.heads[at as usize].next != set {
                at = self.heads[at as usize].next;
            }
            self.heads[at as usize].next = next;
        }
        self.heads[set as usize].next = self.free;
        self.free = set;
        self.vacant += 1;
    }

    /// Turns a reference to `set` into one to the set with `lane` added or, if it is a member, taken out.
    pub(crate) fn toggle(&mut self, set: u32, lane: u32) -> u32 {
        let hash = self.heads[set as usize].hash ^ member_hash(lane);
        let (word, bit) = self.place(lane);
        let first = self.by_hash.get(&hash).copied().unwrap_or(NONE);
        let mut at = first;
        while at != NONE {
            let same = (0..self.stride).all(|i| {
                let flip = if i == word { bit } else { 0 };
                self.members(at)[i] == self.members(set)[i] ^ flip
            });
            if same {
                self.share(at);
                self.release(set);
                return at;
            }
            at = self.heads[at as usize].next;
        }
        let head = Head {
            hash,
            references: 1,
            next: first,
        };
        let new = if self.free == NONE {
            if self.heads.len() == self.heads.capacity() {
                // Bits are the bulk with many workers: they grow by less than a doubling.
                let more = Self::step(self.heads.len());
                self.heads.reserve_exact(more);
                self.bits.reserve_exact(more * self.stride);
            }
            self.heads.push(head);
            self.bits.resize(self.heads.len() * self.stride, 0);
            self.heads.len() as u32 - 1
        } else {
            let new = self.free;
            self.free = self.heads[new as usize].next;
            self.vacant -= 1;
            self.heads[new as usize] = head;
            new
        };
        let from = set as usize * self.stride;
        self.bits
            .copy_within(from..from + self.stride, new as usize * self.stride);
        self.bits[new as usize * self.stride + word] ^= bit;
        self.by_hash.insert(hash, new);
        self.release(set);
        new
    }
}

/// Positions of the set bits, ascending.
pub(crate) fn ones(words: &[u64]) -> impl Iterator<Item = u32> + '_ {
    words.iter().enumerate().flat_map(|(index, &word)| {
        let mut rest = word;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let bit = rest.trailing_zeros();
            rest &= rest - 1;
            Some(index as u32 * 64 + bit)
        })
    })
}
