//! Open-addressing table: sequence hash -> block id.
//!
//! A bucket is one cache line: ten tags of 16 bits, ten block ids, and a count of the keys that passed this bucket because
//! it was full. A search stops at the first bucket that no key passed, so deletion leaves no tombstone and lookup cost never
//! degrades under churn. The full hash lives in the block columns, not here: an equal tag is a claim that the caller
//! verifies.
//!
//! Growing and shrinking are incremental: every mutation moves a few buckets, in their order in the old array, so that one
//! comparison of a key's home tells which array holds it. What is moved at once is a cluster: buckets up to one that
//! no key passed, so that all keys in them have their home there.

mod buckets;

pub(super) use self::buckets::Key;
use self::buckets::{Buckets, EMPTY, ids};
use super::blocks::Blocks;
use crate::ids::SequenceHash;
use crate::mixing::Mix;

const MIN_BUCKETS: usize = 8;
/// Buckets ahead of the one being moved whose hashes are fetched: they lie anywhere in the columns.
const FETCH: usize = 8;
/// Keys hashed ahead of the one at work: as many as a store of an engine's step has.
const AHEAD: usize = 64;

/// An array being emptied into the current one.
#[derive(Debug)]
struct Resize {
    old: Buckets,
    /// A bucket that no key passed into: the first to move.
    origin: usize,
    /// Buckets of the other array for each of this, in parts of 2^16.
    stride: usize,
    /// Buckets from the origin on that have moved.
    moved: usize,
    /// Buckets to move per change.
    pace: isize,
    /// Buckets that may move now; negative after a long cluster.
    credit: isize,
}

impl Resize {
    fn new(old: Buckets, larger: usize, pace: isize) -> Self {
        let first = (0..old.len).find(|b| old.passed(*b) == 0);
        Self {
            origin: first.map_or(0, |b| old.after(b)),
            stride: (larger << 16) / old.len,
            old,
            moved: 0,
            pace,
            credit: 0,
        }
    }

    /// The bucket so many behind the origin, once around or more.
    #[inline]
    fn place(&self, distance: usize) -> usize {
        let mut at = self.origin + distance;
        while at >= self.old.len {
            at -= self.old.len;
        }
        at
    }

    /// Buckets from the origin to a key's home.
    #[inline]
    fn distance(&self, key: Key) -> usize {
        let home = self.old.home(key);
        if home < self.origin {
            home + self.old.len - self.origin
        } else {
            home - self.origin
        }
    }

    #[inline]
    fn has_moved(&self, key: Key) -> bool {
        self.distance(key) < self.moved
    }

    /// Moves the next cluster into `current`.
    fn move_cluster(&mut self, current: &mut Buckets, blocks: &Blocks, mix: Mix) {
        let start = self.moved;
        let mut end = start;
        // The last cluster may reach around into buckets that were emptied before.
        while end < start + self.old.len {
            end += 1;
            if self.old.passed(self.place(end - 1)) == 0 {
                break;
            }
        }
        let mut strays = Vec::new();
        if start == 0 || self.old.passed(self.origin) > 0 {
            // From the end of the array, around it and past all that was emptied: their turn comes.
            for distance in start..end {
                let at = self.place(distance);
                for block in ids(*self.old.bucket(at)) {
                    let key = Key::new(blocks.hash(block), mix);
                    if self.distance(key) >= end {
                        self.old.remove(key, block);
                        strays.push((key, block));
                    }
                }
            }
        }
        for distance in start..end {
            let at = self.place(distance);
            self.touch(at, current);
            self.fetch(self.place(distance + FETCH), blocks);
            for block in ids(*self.old.bucket(at)) {
                current.insert(Key::new(blocks.hash(block), mix), block);
            }
            *self.old.bucket_mut(at) = EMPTY;
        }
        for (key, block) in strays {
            self.old.insert(key, block);
        }
        self.moved = end;
        self.credit -= (end - start).cast_signed();
    }

    /// Keys move in the order of the arrays, so pages of the larger one are met one after the other.
    #[inline]
    fn touch(&self, at: usize, larger: &mut Buckets) {
        let across = |at: usize| (at * self.stride) >> 16;
        larger.touch(across(at), across(at + 1), at == self.origin);
    }

    /// Hashes lie anywhere in the columns, so they are asked for early.
    fn fetch(&self, at: usize, blocks: &Blocks) {
        ids(*self.old.bucket(at)).for_each(|block| blocks.prefetch_hash(block));
    }
}

/// The table, with a second array while a resize is under way.
#[derive(Debug)]
pub(super) struct Table {
    current: Buckets,
    resize: Option<Resize>,
    mix: Mix,
    live: usize,
    /// Bytes that a smaller array may take while the larger one is emptied into it.
    pub(super) spare: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            current: Buckets::new(MIN_BUCKETS),
            resize: None,
            mix: Mix::default(),
            live: 0,
            spare: usize::MAX,
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
        (0..array.len).map(|b| array.passed(b)).sum()
    }

    /// Forgets the arrays of a table without keys.
    pub(super) fn reset(&mut self) {
        if self.live == 0 && (self.resize.is_some() || self.current.len > MIN_BUCKETS) {
            *self = Self {
                spare: self.spare,
                ..Self::new()
            };
        }
    }

    /// Keys that can be added before a larger array is needed.
    pub(super) fn vacant(&self) -> usize {
        Buckets::room(self.current.len).saturating_sub(self.live)
    }

    /// Bytes that `more` keys may add at most.
    pub(super) fn growth(&self, more: usize) -> usize {
        let (mut before, mut buckets) = (0, self.current.len);
        while self.live + more > Buckets::room(buckets) {
            (before, buckets) = (buckets, Buckets::larger(buckets));
        }
        match before {
            0 => 0,
            before if before == self.current.len => Buckets::bytes(buckets),
            before => Buckets::bytes(buckets) + Buckets::bytes(before),
        }
    }

    /// Bytes for the smaller array that would do, if the present one is far too large.
    pub(super) fn shrinkage(&self) -> Option<usize> {
        let small = self.resize.is_none()
            && self.current.len > MIN_BUCKETS
            && self.live * 6 < Buckets::room(self.current.len);
        small.then(|| Buckets::bytes((self.current.len / 4).max(MIN_BUCKETS)))
    }

    pub(super) fn len(&self) -> usize {
        self.live
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let words = self.current.words.capacity()
            + self.resize.as_ref().map_or(0, |r| r.old.words.capacity());
        words * size_of::<u64>()
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

    /// A block whose tag equals the key's: right but for one chance in 2^16 per slot looked at.
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
        } else if self.live + 1 > Buckets::room(self.current.len) {
            self.start_resize(Buckets::larger(self.current.len));
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
            if self.shrinkage().is_some_and(|bytes| bytes <= self.spare) {
                self.start_resize((self.current.len / 4).max(MIN_BUCKETS));
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
            let old = self.resize.as_ref().map_or(usize::MAX, |r| r.old.len);
            if self.current.len.min(old) < AHEAD {
                // A small array may be full before the slice ends.
                for (block, &hash) in (base..).zip(part) {
                    self.insert(self.key(hash), block, blocks);
                }
                continue;
            }
            let room = Buckets::room(self.current.len);
            if self.resize.is_none() && self.live + part.len() > room {
                self.start_resize(Buckets::larger(self.current.len));
            }
            self.advance(part.len(), blocks);
            self.live += part.len();
            for (block, &hash) in (base..).zip(part) {
                let key = self.key(hash);
                self.array_mut(key).insert(key, block);
            }
        }
    }

    /// The same up to a block whose hash is in the table, which may be that of another one of them. Returns how many were
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
    /// 18 % longer: columns are fetched early enough, and what is kept costs every insertion.
    fn start_resize(&mut self, buckets: usize) {
        let old = std::mem::replace(&mut self.current, Buckets::new(buckets));
        // Growing, one bucket is enough: while they are emptied one by one the old array gains less than one key in
        // each. Shrinking, they are nearly empty and memory waits.
        let pace = if buckets > old.len { 1 } else { 8 };
        self.resize = Some(Resize::new(old, buckets, pace));
    }

    /// Moves a few buckets of the old array for each of so many changes.
    fn advance(&mut self, changes: usize, blocks: &Blocks) {
        let Some(resize) = &mut self.resize else {
            return;
        };
        resize.credit += resize.pace * changes.cast_signed();
        while resize.credit > 0 && resize.moved < resize.old.len {
            resize.move_cluster(&mut self.current, blocks, self.mix);
        }
        if resize.moved >= resize.old.len {
            self.resize = None;
        }
    }

    fn arrays(&self) -> impl Iterator<Item = &Buckets> {
        let old = self.resize.as_ref().map(|resize| &resize.old);
        std::iter::once(&self.current).chain(old)
    }

    /// Every block in the table, for recounts.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.arrays()
            .flat_map(|array| (0..array.len).flat_map(move |at| ids(*array.bucket(at))))
    }

    /// See [`Buckets::is_sound`].
    pub(super) fn is_sound(&self, blocks: &Blocks) -> bool {
        let key = |block| self.key(blocks.hash(block));
        self.arrays().all(|array| array.is_sound(key))
    }
}
