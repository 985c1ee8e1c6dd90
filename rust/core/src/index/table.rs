//! Open-addressing table: sequence hash -> block id.
//!
//! A bucket is one cache line: seven 8-byte slots `{fingerprint 32, block id}` and a word that says which slots are in
//! use and counts the keys that passed this bucket because it was full. A search stops at the first bucket nobody passed, so deletion leaves no
//! tombstone and lookup cost never degrades under churn. The full hash lives in the block columns, not here: a
//! fingerprint match is a claim that the caller verifies where it matters.
//!
//! Growing and shrinking are incremental: every mutation moves a few buckets, in the order of their home in the old
//! array, so that one comparison tells which array holds a key.

use super::blocks::Blocks;
use super::hints::{huge_pages, prefetch};
use crate::ids::SequenceHash;

const SLOTS: usize = 7;
const WORDS: usize = 8;
/// Bits of the last word that mark slots in use; the keys that passed are counted above them.
const IN_USE: u64 = (1 << SLOTS) - 1;
const PASSED: u64 = 1 << 8;
const MIN_BUCKETS: usize = 8;
/// Buckets moved by every mutation while a resize is under way.
const STEP: usize = 4;
/// Keys hashed ahead of the one at work.
const AHEAD: usize = 16;

/// Where a key lives: its mixed hash, computed once per key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key(u64);

impl Key {
    #[inline]
    pub(super) fn new(hash: SequenceHash) -> Self {
        // Callers may store small integers as hashes; the multiply spreads them over the high bits that pick the bucket.
        Self(hash.0.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    #[inline]
    fn fingerprint(self) -> u64 {
        (self.0 ^ (self.0 >> 32)) << 32
    }

    #[inline]
    fn slot(self, block: u32) -> u64 {
        self.fingerprint() | u64::from(block)
    }
}

/// The slots in use that `wanted` holds for, one bit each. No branch per slot: which one matches is unpredictable.
#[inline]
fn select(bucket: &[u64; WORDS], wanted: impl Fn(u64) -> bool) -> u64 {
    let mut found = 0;
    for (i, &slot) in bucket[..SLOTS].iter().enumerate() {
        found |= u64::from(wanted(slot)) << i;
    }
    found & bucket[SLOTS]
}

/// One bucket array, aligned to cache lines inside a zeroed (hence lazily touched) word vector.
#[derive(Debug)]
struct Buckets {
    words: Vec<u64>,
    offset: usize,
    mask: usize,
    shift: u32,
}

impl Buckets {
    fn new(buckets: usize) -> Self {
        let words = vec![0_u64; buckets * WORDS + WORDS];
        huge_pages(&words);
        let offset = words.as_ptr().align_offset(64).min(WORDS);
        Self {
            words,
            offset,
            mask: buckets - 1,
            shift: 64 - buckets.trailing_zeros(),
        }
    }

    fn len(&self) -> usize {
        self.mask + 1
    }

    #[inline]
    fn home(&self, key: Key) -> usize {
        (key.0 >> self.shift) as usize & self.mask
    }

    #[inline]
    fn bucket(&self, index: usize) -> &[u64; WORDS] {
        let at = self.offset + index * WORDS;
        self.words[at..]
            .first_chunk()
            .expect("bucket within the array")
    }

    #[inline]
    fn bucket_mut(&mut self, index: usize) -> &mut [u64; WORDS] {
        let at = self.offset + index * WORDS;
        self.words[at..]
            .first_chunk_mut()
            .expect("bucket within the array")
    }

    #[inline]
    fn prefetch(&self, key: Key) {
        prefetch(&self.words[self.offset + self.home(key) * WORDS]);
    }

    /// The block of the first slot with the key's fingerprint that `accept`s.
    #[inline]
    fn find(&self, key: Key, mut accept: impl FnMut(u32) -> bool) -> Option<u32> {
        let fingerprint = key.fingerprint() >> 32;
        let mut at = self.home(key);
        for _ in 0..=self.mask {
            let bucket = self.bucket(at);
            let mut found = select(bucket, |slot| slot >> 32 == fingerprint);
            while found != 0 {
                let block = bucket[found.trailing_zeros() as usize] as u32;
                if accept(block) {
                    return Some(block);
                }
                found &= found - 1;
            }
            if bucket[SLOTS] < PASSED {
                return None;
            }
            at = (at + 1) & self.mask;
        }
        None
    }

    /// Puts a key that is not there. The caller keeps the load below one.
    #[inline]
    fn insert(&mut self, key: Key, block: u32) {
        let mut at = self.home(key);
        loop {
            let bucket = self.bucket_mut(at);
            let free = (!bucket[SLOTS] & IN_USE).trailing_zeros() as usize;
            if free < SLOTS {
                bucket[free] = key.slot(block);
                bucket[SLOTS] |= 1 << free;
                return;
            }
            bucket[SLOTS] += PASSED;
            at = (at + 1) & self.mask;
        }
    }

    /// Takes out the slot of `key` and `block`; false if it is not here.
    #[inline]
    fn remove(&mut self, key: Key, block: u32) -> bool {
        let wanted = key.slot(block);
        let home = self.home(key);
        let mut at = home;
        for _ in 0..=self.mask {
            let bucket = self.bucket_mut(at);
            let found = select(bucket, |slot| slot == wanted);
            if found != 0 {
                bucket[SLOTS] &= !found;
                let mut passed = home;
                while passed != at {
                    self.bucket_mut(passed)[SLOTS] -= PASSED;
                    passed = (passed + 1) & self.mask;
                }
                return true;
            }
            if bucket[SLOTS] < PASSED {
                return false;
            }
            at = (at + 1) & self.mask;
        }
        false
    }
}

/// The table, with a second array while a resize is under way.
#[derive(Debug)]
pub(super) struct Table {
    current: Buckets,
    /// The array being emptied; homes below the cursor have moved.
    old: Option<(Buckets, usize)>,
    live: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            current: Buckets::new(MIN_BUCKETS),
            old: None,
            live: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.live
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let words = self.current.words.capacity()
            + self.old.as_ref().map_or(0, |(old, _)| old.words.capacity());
        words * size_of::<u64>()
    }

    /// Live keys per slot of the array that takes new keys.
    pub(super) fn load(&self) -> f64 {
        self.live as f64 / (self.current.len() * SLOTS) as f64
    }

    #[inline]
    fn array(&self, key: Key) -> &Buckets {
        match &self.old {
            Some((old, cursor)) if old.home(key) >= *cursor => old,
            _ => &self.current,
        }
    }

    #[inline]
    fn array_mut(&mut self, key: Key) -> &mut Buckets {
        match &mut self.old {
            Some((old, cursor)) if old.home(key) >= *cursor => old,
            _ => &mut self.current,
        }
    }

    #[inline]
    pub(super) fn prefetch(&self, key: Key) {
        self.array(key).prefetch(key);
    }

    /// A block whose fingerprint equals the key's: right but for one chance in 2^32 per slot looked at.
    #[inline]
    pub(super) fn probe(&self, key: Key) -> Option<u32> {
        self.array(key).find(key, |_| true)
    }

    /// The block with exactly this hash.
    #[inline]
    pub(super) fn find(&self, hash: SequenceHash, blocks: &Blocks) -> Option<u32> {
        let key = Key::new(hash);
        self.array(key)
            .find(key, |block| blocks.hash(block) == hash)
    }

    /// Adds a block whose columns are filled and whose hash is not in the table.
    #[inline]
    pub(super) fn insert(&mut self, key: Key, block: u32, blocks: &Blocks) {
        self.live += 1;
        if self.old.is_some() {
            self.advance(blocks);
        } else if self.live * 5 > self.current.len() * SLOTS * 4 {
            self.start_resize(self.current.len() * 2);
        }
        self.array_mut(key).insert(key, block);
    }

    /// Takes out a block; `false` if it was not there.
    #[inline]
    pub(super) fn remove(&mut self, key: Key, block: u32, blocks: &Blocks) -> bool {
        if self.old.is_some() {
            self.advance(blocks);
        }
        let removed = self.array_mut(key).remove(key, block);
        if removed {
            self.live -= 1;
            if self.old.is_none()
                && self.current.len() > MIN_BUCKETS
                && self.live * 8 < self.current.len() * SLOTS
            {
                self.start_resize((self.current.len() / 4).max(MIN_BUCKETS));
            }
        }
        removed
    }

    /// [`Self::insert`] for the blocks `base..`, fetching ahead.
    pub(super) fn insert_all(&mut self, hashes: &[SequenceHash], base: u32, blocks: &Blocks) {
        for &hash in &hashes[..hashes.len().min(AHEAD)] {
            self.prefetch(Key::new(hash));
        }
        let room = (self.live + hashes.len()) * 5 <= self.current.len() * SLOTS * 4;
        if self.old.is_none() && room {
            self.live += hashes.len();
            for (i, &hash) in hashes.iter().enumerate() {
                if let Some(&ahead) = hashes.get(i + AHEAD) {
                    self.current.prefetch(Key::new(ahead));
                }
                self.current.insert(Key::new(hash), base + i as u32);
            }
            return;
        }
        for (i, &hash) in hashes.iter().enumerate() {
            if let Some(&ahead) = hashes.get(i + AHEAD) {
                self.prefetch(Key::new(ahead));
            }
            self.insert(Key::new(hash), base + i as u32, blocks);
        }
    }

    /// [`Self::remove`] for the blocks `base..`, fetching ahead. Returns how many were there.
    pub(super) fn remove_all(&mut self, base: u32, len: u32, blocks: &Blocks) -> u32 {
        let hashes = blocks.hashes(base, len);
        let key = |i: usize| Key::new(SequenceHash(hashes[i]));
        for i in 0..hashes.len().min(AHEAD) {
            self.prefetch(key(i));
        }
        let mut removed = 0;
        for i in 0..hashes.len() {
            if i + AHEAD < hashes.len() {
                self.prefetch(key(i + AHEAD));
            }
            removed += u32::from(self.remove(key(i), base + i as u32, blocks));
        }
        removed
    }

    fn start_resize(&mut self, buckets: usize) {
        self.old = Some((
            std::mem::replace(&mut self.current, Buckets::new(buckets)),
            0,
        ));
    }

    /// Moves the keys of a few homes from the old array to the current one.
    fn advance(&mut self, blocks: &Blocks) {
        let Some((old, cursor)) = &mut self.old else {
            return;
        };
        let end = (*cursor + STEP).min(old.len());
        let mut moving = [0_u32; SLOTS * 4];
        while *cursor < end {
            let home = *cursor;
            loop {
                // Keys of this home lie in its bucket and, if keys passed it, in the ones behind.
                let mut found = 0;
                let mut at = home;
                loop {
                    let bucket = old.bucket(at);
                    let mut used = bucket[SLOTS] & IN_USE;
                    while used != 0 {
                        let block = bucket[used.trailing_zeros() as usize] as u32;
                        used &= used - 1;
                        if found < moving.len() && old.home(Key::new(blocks.hash(block))) == home {
                            moving[found] = block;
                            found += 1;
                        }
                    }
                    at = (at + 1) & old.mask;
                    if bucket[SLOTS] < PASSED || at == home {
                        break;
                    }
                }
                for &block in &moving[..found] {
                    let key = Key::new(blocks.hash(block));
                    old.remove(key, block);
                    self.current.insert(key, block);
                }
                if found < moving.len() {
                    break;
                }
            }
            *cursor += 1;
        }
        if *cursor == old.len() {
            self.old = None;
        }
    }

    /// Every block in the table, for recounts.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let arrays = [Some(&self.current), self.old.as_ref().map(|(old, _)| old)];
        arrays.into_iter().flatten().flat_map(|array| {
            (0..array.len())
                .flat_map(move |b| {
                    array.bucket(b)[..SLOTS]
                        .iter()
                        .enumerate()
                        .map(move |(i, slot)| (b, i, *slot))
                })
                .filter(|(b, i, _)| array.bucket(*b)[SLOTS] >> i & 1 == 1)
                .map(|(_, _, slot)| slot as u32)
        })
    }
}
