//! Open-addressing table: sequence hash -> block id.
//!
//! A bucket is one cache line: seven 8-byte slots `{fingerprint 32, block id}` and a word that marks the slots in use
//! and counts the keys that passed this bucket because it was full. A search stops at the first bucket that no key
//! passed, so deletion leaves no tombstone and lookup cost never degrades under churn. The full hash lives in the block
//! columns, not here: a fingerprint match is a claim that the caller verifies where it matters.
//!
//! Growing and shrinking are incremental: every mutation moves a few buckets, in their order in the old array, so that
//! one comparison of a key's home shows which array holds it. Each step moves a cluster: buckets up to one that no key
//! passed, so that all keys in them have their home there.

pub(super) mod blocks;
pub(super) mod prefetch;

use self::blocks::Blocks;
use self::prefetch::{huge_pages, prefetch, touch};
use crate::collections::seeded_hash::SeededHash;
use crate::ids::SequenceHash;

const SLOTS: usize = 7;
const WORDS: usize = 8;
/// Bits of the last word that mark slots in use; the keys that passed are counted above them.
const IN_USE: u64 = (1 << SLOTS) - 1;
const PASSED: u64 = 1 << 8;
const MIN_BUCKETS: usize = 8;
/// Buckets ahead of the one being moved whose hashes are fetched: they lie anywhere in the columns.
const FETCH: usize = 8;
/// Keys hashed ahead of the one at work: as many as a store of an engine's step has.
const AHEAD: usize = 64;
/// Words of a page.
const PAGE: usize = 4096 / size_of::<u64>();

/// Where a key lives: its mixed hash, computed once per key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key(u64);

impl Key {
    /// No key of any hash in particular.
    pub(super) const NONE: Self = Self(0);

    #[inline]
    fn new(hash: SequenceHash, mix: SeededHash) -> Self {
        // The high bits pick the bucket.
        Self(mix.high(hash.0))
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

    /// [`Self::insert`], unless a block with the key's fingerprint `is_same`. Returns whether it was put.
    #[inline]
    fn insert_new(&mut self, key: Key, block: u32, is_same: impl FnMut(u32) -> bool) -> bool {
        let fingerprint = key.fingerprint() >> 32;
        let home = self.home(key);
        let bucket = self.bucket_mut(home);
        let free = (!bucket[SLOTS] & IN_USE).trailing_zeros() as usize;
        // Most are done in one look at one bucket.
        let alone = bucket[SLOTS] < PASSED && free < SLOTS;
        if alone && select(bucket, |slot| slot >> 32 == fingerprint) == 0 {
            bucket[free] = key.slot(block);
            bucket[SLOTS] |= 1 << free;
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

    /// The blocks in a bucket.
    #[cfg(test)]
    fn blocks(&self, index: usize) -> impl Iterator<Item = u32> {
        let bucket = *self.bucket(index);
        (0..SLOTS).filter_map(move |i| (bucket[SLOTS] >> i & 1 == 1).then_some(bucket[i] as u32))
    }
}

/// An array being emptied into the current one.
#[derive(Debug)]
struct Resize {
    old: Buckets,
    /// A bucket that no key passed into: the first to move.
    origin: usize,
    /// Buckets from the origin on that have moved.
    moved: usize,
    /// Buckets to move per change.
    pace: isize,
    /// Buckets that may move now; negative after a long cluster.
    credit: isize,
}

impl Resize {
    fn new(old: Buckets, pace: isize) -> Self {
        let first = (0..old.len()).find(|b| old.bucket(*b)[SLOTS] < PASSED);
        Self {
            origin: first.map_or(0, |b| (b + 1) & old.mask),
            old,
            moved: 0,
            pace,
            credit: 0,
        }
    }

    /// Buckets from the origin to a key's home.
    #[inline]
    fn distance(&self, key: Key) -> usize {
        self.old.home(key).wrapping_sub(self.origin) & self.old.mask
    }

    #[inline]
    fn has_moved(&self, key: Key) -> bool {
        self.distance(key) < self.moved
    }

    /// Moves the next cluster into `current`.
    fn move_cluster(&mut self, current: &mut Buckets, blocks: &Blocks, mix: SeededHash) {
        let start = self.moved;
        let mut end = start;
        // The last cluster may reach around into buckets that were emptied before.
        while end < start + self.old.len() {
            end += 1;
            if self.old.bucket((self.origin + end - 1) & self.old.mask)[SLOTS] < PASSED {
                break;
            }
        }
        let mut strays = Vec::new();
        for place in start..end {
            let at = (self.origin + place) & self.old.mask;
            self.touch(at, place == 0, current);
            // Hashes lie anywhere in the columns, so they are asked for early.
            let next = self.old.bucket((at + FETCH) & self.old.mask);
            let mut used = next[SLOTS] & IN_USE;
            while used != 0 {
                blocks.prefetch_hash(next[used.trailing_zeros() as usize] as u32);
                used &= used - 1;
            }
            let bucket = *self.old.bucket(at);
            let mut used = bucket[SLOTS] & IN_USE;
            while used != 0 {
                let block = bucket[used.trailing_zeros() as usize] as u32;
                used &= used - 1;
                let key = Key::new(blocks.hash(block), mix);
                if self.distance(key) < end {
                    current.insert(key, block);
                } else {
                    // From the end of the array, around it: its turn comes. Only buckets before the origin still count it.
                    let mut passed = self.old.home(key);
                    while passed != self.origin {
                        self.old.bucket_mut(passed)[SLOTS] -= PASSED;
                        passed = (passed + 1) & self.old.mask;
                    }
                    strays.push((key, block));
                }
            }
            *self.old.bucket_mut(at) = [0; WORDS];
        }
        for (key, block) in strays {
            self.old.insert(key, block);
        }
        self.moved = end;
        self.credit -= (end - start).cast_signed();
    }

    /// Keys move in the order of the arrays, so pages of the larger one are met one after the other.
    #[inline]
    fn touch(&self, at: usize, first: bool, larger: &mut Buckets) {
        let word = larger.offset + at * (larger.len() / self.old.len()) * WORDS;
        if first || word % PAGE < 2 * WORDS {
            for word in [word, word + PAGE] {
                if let Some(word) = larger.words.get_mut(word) {
                    touch(word);
                }
            }
        }
    }
}

/// The table, with a second array while a resize is under way.
#[derive(Debug)]
pub(super) struct Table {
    current: Buckets,
    resize: Option<Resize>,
    mix: SeededHash,
    live: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            current: Buckets::new(MIN_BUCKETS),
            resize: None,
            mix: SeededHash::default(),
            live: 0,
        }
    }

    /// Where a hash lives.
    #[inline]
    pub(super) fn key(&self, hash: SequenceHash) -> Key {
        Key::new(hash, self.mix)
    }

    /// The first hash from `start` on whose home is the last one of an array of 512 buckets and of any smaller one.
    #[cfg(test)]
    pub(super) fn hash_at_the_end(&self, start: u64) -> SequenceHash {
        let last = |hash: &u64| self.mix.high(*hash) >> 55 == 511;
        let mut hashes = start..start + (1 << 16);
        SequenceHash(hashes.find(last).expect("one of 512"))
    }

    /// How many buckets all keys together passed because they were full.
    #[cfg(test)]
    pub(super) fn passed(&self) -> u64 {
        let array = &self.current;
        (0..array.len())
            .map(|b| array.bucket(b)[SLOTS] / PASSED)
            .sum()
    }

    /// Forgets the arrays of a table without keys.
    pub(super) fn reset(&mut self) {
        if self.live == 0 && (self.resize.is_some() || self.current.len() > MIN_BUCKETS) {
            *self = Self::new();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.live
    }

    #[inline]
    fn array(&self, key: Key) -> &Buckets {
        match &self.resize {
            Some(resize) if !resize.has_moved(key) => &resize.old,
            _ => &self.current,
        }
    }

    #[inline]
    fn array_mut(&mut self, key: Key) -> &mut Buckets {
        match &mut self.resize {
            Some(resize) if !resize.has_moved(key) => &mut resize.old,
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
        let key = self.key(hash);
        self.array(key)
            .find(key, |block| blocks.hash(block) == hash)
    }

    /// Adds a block whose columns are filled and whose hash is not in the table.
    #[inline]
    pub(super) fn insert(&mut self, key: Key, block: u32, blocks: &Blocks) {
        self.make_room(blocks);
        self.live += 1;
        self.array_mut(key).insert(key, block);
    }

    /// Room for one more.
    #[inline]
    fn make_room(&mut self, blocks: &Blocks) {
        if self.resize.is_some() {
            self.advance(1, blocks);
        } else if (self.live + 1) * 5 > self.current.len() * SLOTS * 4 {
            self.start_resize(self.current.len() * 2);
        }
    }

    /// Takes out a block; `false` if it was not there.
    #[inline]
    pub(super) fn remove(&mut self, key: Key, block: u32, blocks: &Blocks) -> bool {
        if self.resize.is_some() {
            self.advance(1, blocks);
        }
        let removed = self.array_mut(key).remove(key, block);
        if removed {
            self.live -= 1;
            let small = self.live * 8 < self.current.len() * SLOTS;
            if small && self.resize.is_none() && self.current.len() > MIN_BUCKETS {
                self.start_resize((self.current.len() / 4).max(MIN_BUCKETS));
            }
        }
        removed
    }

    /// Hints that `hashes` are about to be looked for or added, the first of them if they are many.
    pub(super) fn prefetch_all(&self, hashes: &[SequenceHash]) {
        for &hash in &hashes[..hashes.len().min(AHEAD)] {
            self.prefetch(self.key(hash));
        }
    }

    /// [`Self::insert`] for the blocks `base..`, many at a time.
    pub(super) fn insert_all(&mut self, hashes: &[SequenceHash], base: u32, blocks: &Blocks) {
        for (part, base) in hashes.chunks(AHEAD).zip((base..).step_by(AHEAD)) {
            self.prefetch_all(part);
            let old = self.resize.as_ref().map_or(usize::MAX, |r| r.old.len());
            if self.current.len().min(old) < AHEAD {
                // A small array may be full before the slice ends.
                for (block, &hash) in (base..).zip(part) {
                    self.insert(self.key(hash), block, blocks);
                }
                continue;
            }
            let room = self.current.len() * SLOTS * 4;
            if self.resize.is_none() && (self.live + part.len()) * 5 > room {
                self.start_resize(self.current.len() * 2);
            }
            self.advance(part.len(), blocks);
            self.live += part.len();
            for (block, &hash) in (base..).zip(part) {
                let key = self.key(hash);
                self.array_mut(key).insert(key, block);
            }
        }
    }

    /// Inserts blocks up to one whose hash is in the table, maybe as that of another one of them. Returns how many were
    /// added.
    pub(super) fn insert_new(
        &mut self,
        hashes: &[SequenceHash],
        base: u32,
        blocks: &Blocks,
    ) -> u32 {
        let mut added = 0;
        for part in hashes.chunks(AHEAD) {
            self.prefetch_all(part);
            for &hash in part {
                self.make_room(blocks);
                let key = self.key(hash);
                let is_same = |other| blocks.hash(other) == hash;
                if !self.array_mut(key).insert_new(key, base + added, is_same) {
                    return added;
                }
                self.live += 1;
                added += 1;
            }
        }
        added
    }

    /// [`Self::remove`] for the blocks `base..`, fetching ahead. Returns how many were there.
    pub(super) fn remove_all(&mut self, base: u32, len: u32, blocks: &Blocks) -> u32 {
        let hashes = blocks.hashes(base, len);
        let mix = self.mix;
        let key = |i: usize| Key::new(SequenceHash(hashes[i]), mix);
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

    /// Tried: the next bits of each hash kept in the bucket, so that growing reads the columns of few. Filling took 13 to
    /// 18 % longer: columns are fetched early enough, and the kept bits cost every insertion.
    fn start_resize(&mut self, buckets: usize) {
        let old = std::mem::replace(&mut self.current, Buckets::new(buckets));
        // Growing, one bucket is enough: while they are emptied one by one the old array gains less than one key in
        // each. Shrinking, they are nearly empty and memory waits.
        let pace = if buckets > old.len() { 1 } else { 8 };
        self.resize = Some(Resize::new(old, pace));
    }

    /// Moves a few buckets of the old array for each of so many changes.
    fn advance(&mut self, changes: usize, blocks: &Blocks) {
        let Some(resize) = &mut self.resize else {
            return;
        };
        resize.credit += resize.pace * changes.cast_signed();
        while resize.credit > 0 && resize.moved < resize.old.len() {
            resize.move_cluster(&mut self.current, blocks, self.mix);
        }
        if resize.moved >= resize.old.len() {
            self.resize = None;
        }
    }

    #[cfg(test)]
    fn arrays(&self) -> impl Iterator<Item = &Buckets> {
        let old = self.resize.as_ref().map(|resize| &resize.old);
        std::iter::once(&self.current).chain(old)
    }

    /// Whether every bucket counts the keys that passed it.
    #[cfg(test)]
    pub(super) fn counts_right(&self, blocks: &Blocks) -> bool {
        self.arrays().all(|array| {
            let mut passed = vec![0; array.len()];
            for at in 0..array.len() {
                for block in array.blocks(at) {
                    let mut before = array.home(self.key(blocks.hash(block)));
                    while before != at {
                        passed[before] += PASSED;
                        before = (before + 1) & array.mask;
                    }
                }
            }
            (0..array.len()).all(|at| array.bucket(at)[SLOTS] & !IN_USE == passed[at])
        })
    }
}
