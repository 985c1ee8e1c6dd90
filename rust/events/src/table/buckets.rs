//! Where the entries of a map are: buckets of one cache line, each two tags and a place per entry. The first tag is
//! looked for in all entries at once; the second spares most looks at entries that share it by chance, 3 of 100 else.
//!
//! An entry lies in the home of its key or, where that is full, behind it. A bucket counts who passed it, so that a search
//! ends at the first bucket that nobody passed, and what is taken out leaves nothing behind.
//!
//! Tried: doubling bucket by bucket, by bits of the mix kept beside the places, without reading the entries (4 to 20 %
//! slower to fill than making the buckets anew in the order of the entries); looking for a key and for room in one pass
//! (within 6 % either way).

use cachelb_core::index::hints::{huge_pages, prefetch};

/// Entries of a bucket.
const WIDTH: usize = 12;
/// Bits of a place.
pub(super) const PLACE_BITS: u32 = 24;
/// Bits of the tags in a bucket's word.
const TAGS: u32 = 8 * WIDTH as u32;
const ONES: u128 = (u128::MAX / 0xff) & ((1 << TAGS) - 1);
const HIGHS: u128 = ONES << 7;
/// In a bucket's word, one entry that passed.
const PASSED: u128 = 1 << TAGS;

/// One cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    /// The tag of each entry, a byte each, 0 where there is none; above them, how many entries lie behind whose home is
    /// here or before.
    word: u128,
    /// The place of each entry, its second tag in the top byte.
    places: [u32; WIDTH],
}

impl Bucket {
    const EMPTY: Self = Self {
        word: 0,
        places: [0; WIDTH],
    };

    /// Bit 8i + 7 set: entry i may have this tag. The lowest of them certainly has.
    #[inline]
    fn with(&self, tag: u8) -> u128 {
        let eight = u128::from(u64::from_ne_bytes([tag; 8]));
        let other = self.word ^ (eight | eight << 64);
        other.wrapping_sub(ONES) & !other & HIGHS
    }

    /// The entries with this tag.
    #[inline]
    fn tagged(&self, tag: u8) -> impl Iterator<Item = usize> + '_ {
        let mut found = self.with(tag);
        let next = move || {
            let at = found.trailing_zeros() as usize / 8;
            (found != 0).then(|| {
                found &= found - 1;
                at
            })
        };
        std::iter::from_fn(next).filter(move |at| self.tag(*at) == tag)
    }

    #[inline]
    fn tag(&self, at: usize) -> u8 {
        (self.word >> (8 * at)) as u8
    }

    /// The first entry that is none; [`WIDTH`] if there is none such.
    #[inline]
    fn vacant(&self) -> usize {
        ((self.with(0) | PASSED).trailing_zeros() / 8) as usize
    }

    #[inline]
    fn put(&mut self, at: usize, tag: u8, place: u32) {
        self.word |= u128::from(tag) << (8 * at);
        self.places[at] = place;
    }

    #[inline]
    fn take(&mut self, at: usize) {
        self.word &= !(0xff << (8 * at));
    }

    /// Entries whose home is here or before, and that lie behind.
    #[inline]
    fn passed(&self) -> u32 {
        (self.word >> TAGS) as u32
    }
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

    /// The place of the entry with this mix that is `wanted`.
    #[expect(
        clippy::inline_always,
        reason = "a call costs as much as what it does, since the bucket was fetched"
    )]
    #[inline(always)]
    pub(super) fn find(&self, mix: u64, wanted: impl Fn(u32) -> bool) -> Option<u32> {
        let mut at = self.home(mix);
        for _ in 0..self.0.len() {
            let bucket = &self.0[at];
            let tagged = bucket.tagged(tag_of(mix));
            let mut places = tagged.map(|entry| marked(mix, bucket.places[entry]));
            if let Some(place) = places.find(|place| place >> PLACE_BITS == 0 && wanted(*place)) {
                return Some(place);
            }
            if bucket.passed() == 0 {
                break;
            }
            at = self.after(at);
        }
        None
    }

    /// Puts an entry in. The caller keeps some places vacant.
    #[inline]
    pub(super) fn insert(&mut self, mix: u64, place: u32) {
        let mut at = self.home(mix);
        loop {
            let bucket = &mut self.0[at];
            let vacant = bucket.vacant();
            if vacant < WIDTH {
                bucket.put(vacant, tag_of(mix), marked(mix, place));
                return;
            }
            bucket.word += PASSED;
            at = self.after(at);
        }
    }

    /// Takes out an entry that is there.
    #[inline]
    pub(super) fn remove(&mut self, mix: u64, place: u32) {
        let mut at = self.home(mix);
        for _ in 0..self.0.len() {
            let bucket = &mut self.0[at];
            let mut entries = bucket.tagged(tag_of(mix));
            let found = entries.find(|entry| bucket.places[*entry] == marked(mix, place));
            drop(entries);
            if let Some(entry) = found {
                bucket.take(entry);
                return;
            }
            bucket.word -= PASSED;
            at = self.after(at);
        }
    }

    /// How many entries there are, and how many have passed a bucket, each as often as it has.
    pub(super) fn count(&self) -> (usize, u64) {
        let entries = |bucket: &Bucket| (0..WIDTH).filter(|at| bucket.tag(*at) > 0).count();
        let passed = self.0.iter().map(|bucket| u64::from(bucket.passed()));
        (self.0.iter().map(entries).sum(), passed.sum())
    }

    /// How many buckets an entry that is there has passed; `None` if it is not found.
    pub(super) fn passed(&self, mix: u64, place: u32) -> Option<u64> {
        let mut at = self.home(mix);
        for passed in 0..self.0.len() as u64 {
            let bucket = &self.0[at];
            let here = |entry: &usize| {
                bucket.tag(*entry) == tag_of(mix) && bucket.places[*entry] == marked(mix, place)
            };
            if bucket.tagged(tag_of(mix)).any(|entry| here(&entry)) {
                return Some(passed);
            }
            if bucket.passed() == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }
}
