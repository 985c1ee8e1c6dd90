//! Arrays of buckets. See [`super`].

use crate::ids::SequenceHash;
use crate::index::hints::{huge_pages, prefetch, touch};
use crate::mixing::Mix;

const SLOTS: usize = 10;
const WORDS: usize = 8;
/// Tags in a word.
const TAGS: usize = 4;
/// The word of the last two tags; above them a bit for every slot in use, and the number of keys that passed.
const LAST: usize = 2;
const USED: u32 = 32;
const IN_USE: u64 = (1 << SLOTS) - 1;
const PASSED: u64 = 1 << (USED as usize + SLOTS);
/// The first id, in halves of words.
const IDS: usize = 6;
/// Words of a page.
const PAGE: usize = 4096 / size_of::<u64>();
/// The lowest bit of every tag.
const ONES: u64 = u64::MAX / 0xffff;

type Bucket = [u64; WORDS];

pub(super) const EMPTY: Bucket = [0; WORDS];

/// Where a key lives: its mixed hash, computed once per key.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Key(u64);

impl Key {
    #[inline]
    pub(super) fn new(hash: SequenceHash, mix: Mix) -> Self {
        // The high bits pick the bucket.
        Self(mix.high(hash.0))
    }

    /// Never 0, which is the tag of nothing.
    #[inline]
    pub(super) fn tag(self) -> u64 {
        ((self.0 ^ self.0 >> 32) & 0xffff).max(1)
    }
}

/// The tags of a word that equal `tag`: the lowest bit of each.
#[inline]
fn equal(word: u64, tag: u64) -> u64 {
    let other = word ^ (tag * ONES);
    let low = other & (ONES * 0x7fff);
    !((low + ONES * 0x7fff) | other) >> 15 & ONES
}

/// A bit for every slot with this tag; [`slot_of`] says which. No branch per slot: which one matches is unpredictable.
#[inline]
fn with(bucket: &Bucket, tag: u64) -> u64 {
    let last = equal(bucket[LAST], tag) & (ONES & u64::from(u32::MAX));
    equal(bucket[0], tag) | equal(bucket[1], tag) << 1 | last << 2
}

/// The slot of the lowest bit.
#[inline]
fn slot_of(bits: u64) -> usize {
    let bit = bits.trailing_zeros() as usize;
    bit / 16 + bit % 16 * TAGS
}

/// The slots in use, a bit for each.
#[inline]
fn used(bucket: &Bucket) -> u64 {
    bucket[LAST] >> USED & IN_USE
}

/// The first free slot; [`SLOTS`] if there is none.
#[inline]
fn free(bucket: &Bucket) -> usize {
    used(bucket).trailing_ones() as usize
}

#[inline]
fn id(bucket: &Bucket, slot: usize) -> u32 {
    bytemuck::cast_ref::<Bucket, [u32; 2 * WORDS]>(bucket)[IDS + slot]
}

#[inline]
fn put(bucket: &mut Bucket, slot: usize, tag: u64, id: u32) {
    bucket[slot / TAGS] |= tag << (slot % TAGS * 16);
    bucket[LAST] |= 1 << (USED as usize + slot);
    bytemuck::cast_mut::<Bucket, [u32; 2 * WORDS]>(bucket)[IDS + slot] = id;
}

#[inline]
fn vacate(bucket: &mut Bucket, slot: usize) {
    bucket[slot / TAGS] &= !(0xffff << (slot % TAGS * 16));
    bucket[LAST] &= !(1 << (USED as usize + slot));
}

/// The ids in a bucket.
#[inline]
pub(super) fn ids(bucket: Bucket) -> impl Iterator<Item = u32> {
    let mut used = used(&bucket);
    std::iter::from_fn(move || {
        let slot = used.trailing_zeros() as usize;
        (used != 0).then(|| {
            used &= used - 1;
            id(&bucket, slot)
        })
    })
}

/// One bucket array, aligned to cache lines inside a zeroed (hence lazily touched) word vector.
#[derive(Debug)]
pub(super) struct Buckets {
    pub(super) words: Vec<u64>,
    offset: usize,
    pub(super) len: usize,
}

impl Buckets {
    pub(super) fn new(buckets: usize) -> Self {
        let words = vec![0_u64; buckets * WORDS + WORDS];
        huge_pages(&words);
        let offset = words.as_ptr().align_offset(64).min(WORDS);
        Self {
            words,
            offset,
            len: buckets,
        }
    }

    /// The next larger array: each has a half or a third more than the one before.
    pub(super) fn larger(buckets: usize) -> usize {
        buckets + buckets / if buckets.is_power_of_two() { 2 } else { 3 }
    }

    /// Keys that an array has room for.
    pub(super) fn room(buckets: usize) -> usize {
        buckets * SLOTS * 4 / 5
    }

    pub(super) fn bytes(buckets: usize) -> usize {
        (buckets * WORDS + WORDS) * size_of::<u64>()
    }

    #[inline]
    pub(super) fn home(&self, key: Key) -> usize {
        ((u128::from(key.0) * self.len as u128) >> 64) as usize
    }

    #[inline]
    pub(super) fn after(&self, at: usize) -> usize {
        if at + 1 == self.len { 0 } else { at + 1 }
    }

    #[inline]
    pub(super) fn bucket(&self, index: usize) -> &Bucket {
        let at = self.offset + index * WORDS;
        self.words[at..]
            .first_chunk()
            .expect("bucket within the array")
    }

    #[inline]
    pub(super) fn bucket_mut(&mut self, index: usize) -> &mut Bucket {
        let at = self.offset + index * WORDS;
        self.words[at..]
            .first_chunk_mut()
            .expect("bucket within the array")
    }

    /// Has the memory from one bucket to another where the system did not give it yet.
    #[inline]
    pub(super) fn touch(&mut self, from: usize, to: usize, first: bool) {
        let (here, next) = (self.offset + from * WORDS, self.offset + to * WORDS);
        if first || here / PAGE != next / PAGE {
            for word in [here, next, next + PAGE] {
                if let Some(word) = self.words.get_mut(word) {
                    touch(word);
                }
            }
        }
    }

    /// How many keys passed a bucket.
    #[inline]
    pub(super) fn passed(&self, index: usize) -> u64 {
        self.bucket(index)[LAST] / PASSED
    }

    #[inline]
    pub(super) fn prefetch(&self, key: Key) {
        prefetch(&self.words[self.offset + self.home(key) * WORDS]);
    }

    /// The block of the first slot with the key's tag that `accept`s.
    #[inline]
    pub(super) fn find(&self, key: Key, mut accept: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = self.home(key);
        for _ in 0..self.len {
            let bucket = self.bucket(at);
            let mut found = with(bucket, key.tag());
            while found != 0 {
                let block = id(bucket, slot_of(found));
                if accept(block) {
                    return Some(block);
                }
                found &= found - 1;
            }
            if bucket[LAST] < PASSED {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Puts a key that is not there. The caller keeps the load below one.
    #[inline]
    pub(super) fn insert(&mut self, key: Key, block: u32) {
        let mut at = self.home(key);
        loop {
            let bucket = self.bucket_mut(at);
            let free = free(bucket);
            if free < SLOTS {
                put(bucket, free, key.tag(), block);
                return;
            }
            bucket[LAST] += PASSED;
            at = self.after(at);
        }
    }

    /// [`Self::insert`], unless a block with the key's tag `is_same`. Returns whether it was put.
    #[inline]
    pub(super) fn insert_new(
        &mut self,
        key: Key,
        block: u32,
        is_same: impl FnMut(u32) -> bool,
    ) -> bool {
        let home = self.home(key);
        let bucket = self.bucket_mut(home);
        let free = free(bucket);
        // Most are done in one look at one bucket.
        if bucket[LAST] < PASSED && free < SLOTS && with(bucket, key.tag()) == 0 {
            put(bucket, free, key.tag(), block);
            return true;
        }
        let is_new = self.find(key, is_same).is_none();
        if is_new {
            self.insert(key, block);
        }
        is_new
    }

    /// Takes out the slot of `key` and `block`; false if it is not here.
    #[inline]
    pub(super) fn remove(&mut self, key: Key, block: u32) -> bool {
        let home = self.home(key);
        let mut at = home;
        for _ in 0..self.len {
            let bucket = self.bucket_mut(at);
            let mut found = with(bucket, key.tag());
            while found != 0 {
                let slot = slot_of(found);
                if id(bucket, slot) == block {
                    vacate(bucket, slot);
                    let mut passed = home;
                    while passed != at {
                        self.bucket_mut(passed)[LAST] -= PASSED;
                        passed = self.after(passed);
                    }
                    return true;
                }
                found &= found - 1;
            }
            if bucket[LAST] < PASSED {
                return false;
            }
            at = self.after(at);
        }
        false
    }

    /// Whether every key is found from its home, has its tag, and is counted where it passed.
    pub(super) fn is_sound(&self, key_of: impl Fn(u32) -> Key) -> bool {
        let mut passed = vec![0; self.len];
        let mut is_tagged = true;
        for at in 0..self.len {
            let bucket = self.bucket(at);
            is_tagged &= with(bucket, 0).count_ones() + used(bucket).count_ones() == SLOTS as u32;
            for block in ids(*bucket) {
                let key = key_of(block);
                let mut tagged = with(bucket, key.tag());
                let slots = std::iter::from_fn(|| {
                    let slot = slot_of(tagged);
                    (tagged != 0).then(|| tagged &= tagged - 1).map(|()| slot)
                });
                is_tagged &= slots.map(|slot| id(bucket, slot)).any(|id| id == block);
                let mut before = self.home(key);
                while before != at {
                    passed[before] += 1;
                    before = self.after(before);
                }
            }
        }
        is_tagged && (0..self.len).all(|at| passed[at] == self.passed(at))
    }
}
