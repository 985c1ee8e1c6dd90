//! Where the entries of a map are: buckets of one cache line, each two tags and a place per entry. The first tag is
//! looked for in all entries at once; the second spares most looks at entries that share it by chance, 3 of 100 else.
//!
//! An entry lies in the home of its key or, where that is full, behind it. A bucket counts who passed it, so that a search
//! ends at the first bucket that nobody passed, and what is taken out leaves nothing behind.
//!
//! Tried: doubling bucket by bucket, by bits of the mix kept beside the places, without reading the entries (4 to 20 %
//! slower to fill than making the buckets anew in the order of the entries); looking for a key and for room in one pass,
//! or for room in the home of a new key in one look (both no difference beyond the noise).

use cachelb_core::index::hints::{huge_pages, prefetch};

/// Entries of a bucket.
const WIDTH: usize = 12;
/// Bits of a place.
pub(super) const PLACE_BITS: u32 = 24;
/// The lowest bit of every byte.
const ONES: u64 = u64::MAX / 0xff;

/// One cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    /// The tag of each entry, 0 where there is none.
    tags: [u8; WIDTH],
    /// How many entries lie behind whose home is here or before.
    passed: u32,
    /// The place of each entry, its second tag in the top byte.
    places: [u32; WIDTH],
}

/// The bytes of a word that equal `tag`: the lowest bit of each.
#[inline]
fn equal(word: u64, tag: u8) -> u64 {
    let other = word ^ (u64::from(tag) * ONES);
    let low = other & (ONES * 0x7f);
    !((low + ONES * 0x7f) | other) >> 7 & ONES
}

impl Bucket {
    const EMPTY: Self = Self {
        tags: [0; WIDTH],
        passed: 0,
        places: [0; WIDTH],
    };

    /// A bit for every entry with this tag; [`entry_of`] says which.
    #[inline]
    fn with(&self, tag: u8) -> u64 {
        let (first, rest) = (self.tags.first_chunk(), self.tags.last_chunk());
        let first = first.map_or(0, |tags| u64::from_le_bytes(*tags));
        let rest = rest.map_or(0, |tags| u64::from(u32::from_le_bytes(*tags)));
        equal(first, tag) | (equal(rest, tag) & ONES >> 32) << 4
    }

    /// The entries with this tag.
    #[inline]
    fn tagged(&self, tag: u8) -> impl Iterator<Item = usize> + use<> {
        let mut found = self.with(tag);
        std::iter::from_fn(move || {
            let entry = entry_of(found);
            (found != 0).then(|| {
                found &= found - 1;
                entry
            })
        })
    }

    #[inline]
    fn put(&mut self, at: usize, tag: u8, place: u32) {
        self.tags[at] = tag;
        self.places[at] = place;
    }
}

/// The entry of the lowest bit: the first eight have the lowest bits of the bytes, the others those half a byte higher.
#[inline]
fn entry_of(bits: u64) -> usize {
    let bit = bits.trailing_zeros() as usize;
    bit / 8 + (bit & 4) * 2
}

/// Never 0, which is the tag of nothing.
#[inline]
fn tag_of(mix: u64) -> u8 {
    (mix as u8).max(1)
}

/// The place of an entry with its second tag, or without if it has it.
#[inline]
fn marked(mix: u64, place: u32) -> u32 {
    place ^ (mix as u32) >> 8 << PLACE_BITS
}

/// Where an entry is: a bucket, one of its entries, and the place it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    at: usize,
    entry: usize,
    pub(super) place: u32,
}

/// The buckets. Keys come as their mixes: evenly spread 64-bit numbers.
#[derive(Debug, Default)]
pub(super) struct Buckets(Vec<Bucket>);

impl Buckets {
    pub(super) fn new(buckets: usize) -> Self {
        let mut all = Vec::with_capacity(buckets);
        huge_pages(all.spare_capacity_mut());
        all.resize(buckets, Bucket::EMPTY);
        Self(all)
    }

    /// Buckets that `entries` need: three quarters of their places are in use then. At four fifths every sixth home is
    /// full, and the bucket behind it was not fetched.
    pub(super) fn needed(entries: usize) -> usize {
        entries.div_ceil(WIDTH * 3 / 4)
    }

    /// How many entries fit well.
    pub(super) fn room(&self) -> usize {
        self.0.len() * (WIDTH * 3 / 4)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Bucket>()
    }

    #[inline]
    fn home(&self, mix: u64) -> usize {
        ((u128::from(mix) * self.0.len() as u128) >> 64) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.0.len() { 0 } else { at + 1 }
    }

    #[inline]
    pub(super) fn prefetch(&self, mix: u64) {
        if let Some(bucket) = self.0.get(self.home(mix)) {
            prefetch(bucket);
        }
    }

    /// Where the entry with this mix is that is `wanted`.
    #[expect(
        clippy::inline_always,
        reason = "a call costs as much as what it does, since the bucket was fetched"
    )]
    #[inline(always)]
    pub(super) fn find(&self, mix: u64, wanted: impl Fn(u32) -> bool) -> Option<Found> {
        let mut at = self.home(mix);
        for _ in 0..self.0.len() {
            let bucket = &self.0[at];
            let tagged = bucket.tagged(tag_of(mix));
            let mut found = tagged.map(|entry| Found {
                at,
                entry,
                place: marked(mix, bucket.places[entry]),
            });
            let is_wanted = |found: &Found| found.place >> PLACE_BITS == 0 && wanted(found.place);
            if let Some(found) = found.find(is_wanted) {
                return Some(found);
            }
            if bucket.passed == 0 {
                break;
            }
            at = self.after(at);
        }
        None
    }

    /// Whether an entry has the first tag of this mix where it would lie: false where it is certainly nowhere.
    #[inline]
    pub(super) fn may_hold(&self, mix: u64) -> bool {
        let mut at = self.home(mix);
        for _ in 0..self.0.len() {
            let bucket = &self.0[at];
            if bucket.with(tag_of(mix)) != 0 {
                return true;
            }
            if bucket.passed == 0 {
                break;
            }
            at = self.after(at);
        }
        false
    }

    /// Puts an entry in. The caller keeps some places vacant.
    #[inline]
    pub(super) fn insert(&mut self, mix: u64, place: u32) {
        let mut at = self.home(mix);
        loop {
            let bucket = &mut self.0[at];
            let vacant = bucket.with(0);
            if vacant != 0 {
                bucket.put(entry_of(vacant), tag_of(mix), marked(mix, place));
                return;
            }
            bucket.passed += 1;
            at = self.after(at);
        }
    }

    /// Takes out an entry that was found.
    #[inline]
    pub(super) fn take(&mut self, mix: u64, found: Found) {
        self.0[found.at].tags[found.entry] = 0;
        let mut at = self.home(mix);
        while at != found.at {
            self.0[at].passed -= 1;
            at = self.after(at);
        }
    }

    /// How many entries there are, and how many have passed a bucket, each as often as it has.
    pub(super) fn count(&self) -> (usize, u64) {
        let entries = |bucket: &Bucket| bucket.tags.iter().filter(|tag| **tag > 0).count();
        let passed = self.0.iter().map(|bucket| u64::from(bucket.passed));
        (self.0.iter().map(entries).sum(), passed.sum())
    }

    /// How many buckets an entry that is there has passed; `None` if it is not found.
    pub(super) fn passed(&self, mix: u64, place: u32) -> Option<u64> {
        let mut at = self.home(mix);
        for passed in 0..self.0.len() as u64 {
            let bucket = &self.0[at];
            let mut entries = bucket.tagged(tag_of(mix));
            if entries.any(|entry| bucket.places[entry] == marked(mix, place)) {
                return Some(passed);
            }
            if bucket.passed == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }
}
