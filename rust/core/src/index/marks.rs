//! Where an engine can resume prompts: marks by block, worker and rank.
//!
//! A mark means that all side groups of the worker accept resuming behind a block with their blocks in media up to its
//! rank. Block ids do not change when runs are split and joined, so marks are kept by id: for every marked block, rank
//! and 64 slots one bitmap of the slots, sorted, per chunk of ids. A mark takes 12 bytes and some slack, less where
//! workers share a path; an answer for all workers is found as their holders are, a bitmap at a time.
//!
//! Invariants, recounted by [`Marks::validate`]: a worker holds the blocks it has marks on, in the lane of a
//! speculative mark or in one that engines announce; a block has at most one mark of a rank that engines announce, and
//! one speculative mark.

mod gone;
mod mark;
mod queries;
mod snapshot;
mod validate;

use super::table::blocks::CHUNK;
use crate::ids::Medium;

/// Slots of one bitmap.
const WORD: u32 = u64::BITS;
/// Workers in higher slots get no marks: so many bits of a key are left for them.
pub(super) const SLOTS: u32 = 1 << 24;

/// The media of which one must hold a block that is marked with this rank, and the ranks of which a block has one.
pub(super) fn kin(rank: Medium) -> &'static [Medium] {
    match rank {
        Medium::Speculative => &[Medium::Speculative],
        _ => &Medium::ANNOUNCED,
    }
}

/// How an engine resumes prompts, beyond that all leading blocks are held.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Resumes {
    /// Only behind marked blocks.
    pub marked_only: bool,
    /// Blocks that must be held beyond the point: EAGLE and MTP need one. Marks are on the last of them.
    pub above: u32,
}

/// Block within the chunk, slots, rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(u32);

impl Key {
    fn new(block: u32, slots: u32, rank: Medium) -> Self {
        Self((block % CHUNK as u32) << 20 | slots << 2 | rank as u32)
    }

    #[inline]
    fn block(self) -> u32 {
        self.0 >> 20
    }

    /// The place of the bitmap among those of all slots.
    #[inline]
    pub(super) fn slots(self) -> u32 {
        self.0 >> 2 & (SLOTS / WORD - 1)
    }

    #[inline]
    pub(super) fn rank(self) -> Medium {
        Medium::ALL[self.0 as usize & 3]
    }
}

/// A bitmap, in halves so that an entry takes 12 bytes.
#[derive(Debug, Clone, Copy)]
struct Entry {
    key: Key,
    bits: [u32; 2],
}

impl Entry {
    fn new(key: Key, bits: u64) -> Self {
        let bits = [bits as u32, (bits >> 32) as u32];
        Self { key, bits }
    }

    #[inline]
    fn bits(&self) -> u64 {
        u64::from(self.bits[1]) << 32 | u64::from(self.bits[0])
    }
}

/// All marks, and how the workers resume.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// By chunk of block ids, ascending by key.
    chunks: Vec<Vec<Entry>>,
    /// Entries that the chunks have room for.
    room: usize,
    /// Marks of all workers.
    total: u64,
    /// Marks by slot.
    counts: Vec<u64>,
    /// Slots of workers that resume only behind marks, up to the last one.
    pub marked: Vec<u64>,
    /// Blocks needed above, by slot up to the last worker that needs some.
    pub above: Vec<u32>,
}

/// Sets an item of a column, which ends with the last that is not zero.
fn set<T: Copy + Default + PartialEq>(column: &mut Vec<T>, at: usize, item: T) {
    let zero = T::default();
    if at >= column.len() && item != zero {
        column.resize(at + 1, zero);
    }
    if let Some(present) = column.get_mut(at) {
        *present = item;
    }
    while column.last() == Some(&zero) {
        column.pop();
    }
    if column.is_empty() {
        *column = Vec::new();
    }
}

impl Marks {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    pub fn count(&self, slot: u32) -> u64 {
        self.counts.get(slot as usize).copied().unwrap_or(0)
    }

    /// Whether some worker resumes in another way than from any block held.
    #[inline]
    pub fn refine(&self) -> bool {
        !self.marked.is_empty() || !self.above.is_empty()
    }

    #[inline]
    pub fn resumes(&self, slot: u32) -> Resumes {
        let slot = slot as usize;
        let marked = self.marked.get(slot / 64).copied().unwrap_or(0);
        Resumes {
            marked_only: marked >> (slot % 64) & 1 == 1,
            above: self.above.get(slot).copied().unwrap_or(0),
        }
    }

    pub fn set_resumes(&mut self, slot: u32, resumes: Resumes) {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        let others = self.marked.get(word).copied().unwrap_or(0) & !bit;
        let marked = if resumes.marked_only { bit } else { 0 };
        set(&mut self.marked, word, others | marked);
        set(&mut self.above, slot as usize, resumes.above);
    }

    /// Forgets how the worker in a slot resumes; it has no marks.
    pub fn forget_worker(&mut self, slot: u32) {
        self.set_resumes(slot, Resumes::default());
        set(&mut self.counts, slot as usize, 0);
    }

    fn count_mut(&mut self, slot: u32) -> &mut u64 {
        let slot = slot as usize;
        if self.counts.len() <= slot {
            self.counts.resize(slot + 1, 0);
        }
        &mut self.counts[slot]
    }

    /// Marks a block, which has no mark of the rank.
    pub fn add(&mut self, block: u32, slot: u32, rank: Medium) {
        let at = block as usize / CHUNK;
        if self.chunks.len() <= at {
            self.chunks.reserve_exact(at + 1 - self.chunks.len());
            self.chunks.resize_with(at + 1, Vec::new);
        }
        let (entries, key) = (&mut self.chunks[at], Key::new(block, slot / WORD, rank));
        let bit = 1 << (slot % WORD);
        match entries.binary_search_by_key(&key, |e| e.key) {
            Ok(found) => entries[found] = Entry::new(key, entries[found].bits() | bit),
            Err(found) => {
                let room = entries.capacity();
                if entries.len() == room {
                    entries.reserve_exact(Self::step(room));
                }
                entries.insert(found, Entry::new(key, bit));
                self.room = self.room - room + entries.capacity();
            }
        }
        *self.count_mut(slot) += 1;
        self.total += 1;
    }

    /// By how many entries a chunk grows: by little, for marks are to take 16 bytes at most.
    fn step(room: usize) -> usize {
        1 + room / 16
    }

    pub fn memory_bytes(&self) -> usize {
        self.room * size_of::<Entry>()
            + self.chunks.capacity() * size_of::<Vec<Entry>>()
            + (self.counts.capacity() + self.marked.capacity()) * size_of::<u64>()
            + self.above.capacity() * size_of::<u32>()
    }
}
