//! Numbered slots in chunks of fixed size.
//!
//! The lowest free slot is taken first and a chunk without an item gives its memory back, so memory follows the number
//! of items down as well as up, one chunk at a time, and no growth ever copies items.

/// Absent id.
pub(crate) const NONE: u32 = u32::MAX;
/// Slots per chunk.
const CHUNK: usize = 128;
const WORDS: usize = CHUNK / 64;

/// An item of a slab.
pub trait Slot {
    /// The content of a free slot.
    fn vacant() -> Self;
}

#[derive(Debug)]
struct Chunk<T> {
    items: [T; CHUNK],
    /// Bit set: slot free.
    free: [u64; WORDS],
}

impl<T: Slot> Chunk<T> {
    fn boxed() -> Box<Self> {
        Box::new(Self {
            items: std::array::from_fn(|_| T::vacant()),
            free: [u64::MAX; WORDS],
        })
    }
}

/// A set of small numbers that knows its lowest member.
#[derive(Debug, Default)]
struct Lowest {
    words: Vec<u64>,
    /// Bit set: that word has a member.
    filled: Vec<u64>,
}

impl Lowest {
    fn add(&mut self, at: usize) {
        let word = at / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
            self.filled.resize(word / 64 + 1, 0);
        }
        self.words[word] |= 1 << (at % 64);
        self.filled[word / 64] |= 1 << (word % 64);
    }

    fn remove(&mut self, at: usize) {
        let word = at / 64;
        self.words[word] &= !(1 << (at % 64));
        if self.words[word] == 0 {
            self.filled[word / 64] &= !(1 << (word % 64));
        }
    }

    fn first(&self) -> Option<usize> {
        let at = self.filled.iter().position(|word| *word != 0)?;
        let word = at * 64 + self.filled[at].trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }
}

/// Items by number.
#[derive(Debug)]
pub struct Slab<T> {
    chunks: Vec<Option<Box<Chunk<T>>>>,
    /// Chunks with a free slot.
    open: Lowest,
    /// Chunks without memory.
    missing: Vec<u32>,
    /// Chunks with memory and without an item; one is kept, so that a steady load does not make and drop it in turn.
    unused: usize,
    live: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            open: Lowest::default(),
            missing: Vec::new(),
            unused: 0,
            live: 0,
        }
    }
}

impl<T: Slot> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, slot: u32) -> &T {
        let chunk = self.chunks[slot as usize / CHUNK].as_ref();
        &chunk.expect("an item has a chunk").items[slot as usize % CHUNK]
    }
}

impl<T: Slot> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut T {
        let chunk = self.chunks[slot as usize / CHUNK].as_mut();
        &mut chunk.expect("an item has a chunk").items[slot as usize % CHUNK]
    }
}

impl<T: Slot> Slab<T> {
    /// Puts an item into the lowest free slot.
    pub(crate) fn add(&mut self, item: T) -> u32 {
        let at = self.open.first().unwrap_or_else(|| self.new_chunk());
        let chunk = self.chunks[at].get_or_insert_with(Chunk::boxed);
        self.unused -= usize::from(chunk.free == [u64::MAX; WORDS]);
        let word = usize::from(chunk.free[0] == 0);
        let bit = chunk.free[word].trailing_zeros() as usize;
        chunk.free[word] &= chunk.free[word] - 1;
        let slot = word * 64 + bit;
        chunk.items[slot] = item;
        if chunk.free == [0; WORDS] {
            self.open.remove(at);
        }
        self.live += 1;
        (at * CHUNK + slot) as u32
    }

    fn new_chunk(&mut self) -> usize {
        let at = self
            .missing
            .pop()
            .map_or(self.chunks.len(), |at| at as usize);
        if at == self.chunks.len() {
            self.chunks.push(None);
        }
        self.chunks[at] = Some(Chunk::boxed());
        self.open.add(at);
        self.unused += 1;
        at
    }

    /// Frees a slot in use.
    pub(crate) fn remove(&mut self, slot: u32) {
        self.live -= 1;
        if self.live == 0 {
            *self = Self::default();
            return;
        }
        let (at, slot) = (slot as usize / CHUNK, slot as usize % CHUNK);
        let Some(chunk) = &mut self.chunks[at] else {
            return;
        };
        debug_assert!(chunk.free[slot / 64] >> (slot % 64) & 1 == 0, "in use");
        chunk.items[slot] = T::vacant();
        chunk.free[slot / 64] |= 1 << (slot % 64);
        self.open.add(at);
        if chunk.free == [u64::MAX; WORDS] {
            if self.unused == 0 {
                self.unused = 1;
            } else {
                self.chunks[at] = None;
                self.open.remove(at);
                self.missing.push(at as u32);
            }
        }
    }

    /// Items with their numbers, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let chunks = self.chunks.iter().enumerate();
        chunks
            .filter_map(|(at, chunk)| chunk.as_ref().map(|chunk| (at, chunk)))
            .flat_map(|(at, chunk)| {
                (0..CHUNK)
                    .filter(|slot| chunk.free[slot / 64] >> (slot % 64) & 1 == 0)
                    .map(move |slot| ((at * CHUNK + slot) as u32, &chunk.items[slot]))
            })
    }

    pub(crate) fn is_live(&self, slot: u32) -> bool {
        let (at, slot) = (slot as usize / CHUNK, slot as usize % CHUNK);
        self.chunks
            .get(at)
            .and_then(Option::as_ref)
            .is_some_and(|chunk| chunk.free[slot / 64] >> (slot % 64) & 1 == 0)
    }

    pub(crate) fn len(&self) -> u32 {
        self.live as u32
    }

    /// Every number is below it.
    pub(crate) fn slots(&self) -> usize {
        self.chunks.len() * CHUNK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Slot for u64 {
        fn vacant() -> Self {
            u64::MAX
        }
    }

    #[test]
    fn the_lowest_free_slot_is_taken_and_empty_chunks_are_given_back() {
        let mut slab = Slab::default();
        let slots: Vec<u32> = (0..100_000).map(|item: u64| slab.add(item)).collect();
        assert_eq!(slots, (0..100_000).collect::<Vec<u32>>());
        let chunks = |slab: &Slab<u64>| slab.chunks.iter().flatten().count();
        let full = chunks(&slab);
        for slot in (1000..100_000).rev() {
            slab.remove(slot);
        }
        assert!(chunks(&slab) < full / 20);
        slab.remove(700);
        slab.remove(30);
        assert_eq!((slab.add(1), slab.add(2), slab.add(3)), (30, 700, 1000));
        assert_eq!((slab[30], slab[700], slab[999]), (1, 2, 999));
        assert!(slab.is_live(1000) && !slab.is_live(1001) && !slab.is_live(90_000));
        assert_eq!(
            slab.iter().map(|(slot, _)| slot).collect::<Vec<_>>(),
            (0..=1000).collect::<Vec<_>>()
        );
        for slot in 0..=1000 {
            slab.remove(slot);
        }
        assert_eq!(chunks(&slab), 0);
    }
}
