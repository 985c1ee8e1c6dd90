//! Where an engine can resume prompts: marks by block, worker and rank.
//!
//! A mark says that all side groups of the worker accept resuming behind a block with what they hold in media up to its
//! rank. A block id stays what it is when runs are split and joined, so marks are kept by id: for every 64 ids, worker and
//! rank one bitmap, sorted, per chunk of ids. A sparse mark takes 12 bytes, 64 marks beside each other take the same.
//!
//! Invariants, recounted by [`Marks::validate`]: a worker holds what it has marks on, in the lane of a speculative mark or
//! in one that engines announce; a block has at most one mark of a rank that engines announce, and one speculative mark.

mod snapshot;

use std::ops::Range;

use super::blocks::CHUNK;
use super::shape::{Hashed, Ids};
use crate::error::Result;
use crate::forest::Held;
use crate::forest::lanes::{lane_of, medium_of, slot_of};
use crate::forest::nodes::Node;
use crate::forest::validate::ensure;
use crate::ids::Medium;

/// Ids of one bitmap.
const WORD: u32 = u64::BITS;
const WORDS: u32 = CHUNK as u32 / WORD;
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
    /// Blocks that must be held beyond the point: EAGLE and MTP need one.
    pub above: u32,
}

/// Word within the chunk, slot, rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(pub u32);

impl Key {
    fn new(word: u32, slot: u32, rank: Medium) -> Self {
        Self(word % WORDS << 26 | slot << 2 | rank as u32)
    }

    pub(super) fn word(self) -> u32 {
        self.0 >> 26
    }

    #[inline]
    pub(super) fn slot(self) -> u32 {
        self.0 >> 2 & (SLOTS - 1)
    }

    #[inline]
    pub(super) fn rank(self) -> Medium {
        Medium::ALL[self.0 as usize & 3]
    }

    fn place(self) -> (u32, u32) {
        (self.word(), self.slot())
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

#[derive(Debug, Clone, Copy, Default)]
struct Worker {
    resumes: Resumes,
    marks: u64,
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
    /// By slot, up to the last worker with marks or another way to resume than from any block held.
    workers: Vec<Worker>,
    /// Workers with another way to resume.
    refined: u32,
}

/// The set bits, ascending.
fn ones(bits: u64) -> impl Iterator<Item = u32> {
    (0..WORD).filter(move |at| bits >> at & 1 == 1)
}

/// The words that blocks lie in, each with its bits of them.
fn words(blocks: Range<u32>) -> impl DoubleEndedIterator<Item = (u32, u64)> {
    let Range { start, end } = blocks;
    (start / WORD..end.div_ceil(WORD)).map(move |word| {
        let before = start.saturating_sub(word * WORD);
        let behind = WORD - (end - word * WORD).min(WORD);
        (word, u64::MAX << before & u64::MAX >> behind)
    })
}

impl Marks {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    pub fn count(&self, slot: u32) -> u64 {
        self.workers.get(slot as usize).map_or(0, |w| w.marks)
    }

    /// Whether some worker resumes in another way than from any block held.
    #[inline]
    pub fn refine(&self) -> bool {
        self.refined > 0
    }

    #[inline]
    pub fn resumes(&self, slot: u32) -> Resumes {
        self.workers
            .get(slot as usize)
            .map_or_else(Resumes::default, |w| w.resumes)
    }

    pub fn set_resumes(&mut self, slot: u32, resumes: Resumes) {
        let other = resumes != Resumes::default();
        if !other && self.workers.len() <= slot as usize {
            return;
        }
        let before = std::mem::replace(&mut self.worker(slot).resumes, resumes);
        self.refined += u32::from(other);
        self.refined -= u32::from(before != Resumes::default());
    }

    /// Forgets how the worker in a slot resumes; it has no marks.
    pub fn forget_worker(&mut self, slot: u32) {
        self.set_resumes(slot, Resumes::default());
        let vacant = |w: &Worker| w.marks == 0 && w.resumes == Resumes::default();
        while self.workers.last().is_some_and(vacant) {
            self.workers.pop();
        }
        if self.workers.is_empty() {
            self.workers = Vec::new();
        }
    }

    fn worker(&mut self, slot: u32) -> &mut Worker {
        let slot = slot as usize;
        if self.workers.len() <= slot {
            self.workers.resize(slot + 1, Worker::default());
        }
        &mut self.workers[slot]
    }

    fn chunk(&self, word: u32) -> &[Entry] {
        let chunk = self.chunks.get((word / WORDS) as usize);
        chunk.map_or(&[], Vec::as_slice)
    }

    /// The entries of a word and a worker.
    fn of(&self, word: u32, slot: u32) -> &[Entry] {
        let entries = self.chunk(word);
        let first = Key::new(word, slot, Medium::ALL[0]);
        let from = entries.partition_point(|e| e.key < first);
        let place = |e: &&Entry| e.key.place() == first.place();
        &entries[from..][..entries[from..].iter().take_while(place).count()]
    }

    /// The lowest rank of a mark of the worker's on a block, among some.
    pub fn rank(&self, block: u32, slot: u32, among: &[Medium]) -> Option<Medium> {
        let bit = 1 << (block % WORD);
        let mut marks = self.of(block / WORD, slot).iter();
        marks
            .find(|e| e.bits() & bit != 0 && among.contains(&e.key.rank()))
            .map(|e| e.key.rank())
    }

    /// Marks a block, which has no mark of a kindred rank.
    pub fn add(&mut self, block: u32, slot: u32, rank: Medium) {
        self.put(block / WORD, slot, rank, 1 << (block % WORD));
    }

    fn put(&mut self, word: u32, slot: u32, rank: Medium, bits: u64) {
        let at = (word / WORDS) as usize;
        if self.chunks.len() <= at {
            self.chunks.reserve_exact(at + 1 - self.chunks.len());
            self.chunks.resize_with(at + 1, Vec::new);
        }
        let (entries, key) = (&mut self.chunks[at], Key::new(word, slot, rank));
        let mut new = bits;
        match entries.binary_search_by_key(&key, |e| e.key) {
            Ok(found) => {
                let before = entries[found].bits();
                new &= !before;
                entries[found] = Entry::new(key, before | bits);
            }
            Err(found) => {
                let room = entries.capacity();
                if entries.len() == room {
                    entries.reserve_exact(Self::step(room));
                }
                entries.insert(found, Entry::new(key, bits));
                self.room = self.room - room + entries.capacity();
            }
        }
        let new = u64::from(new.count_ones());
        self.worker(slot).marks += new;
        self.total += new;
    }

    /// By how many entries a chunk grows: by little, for marks are to take 16 bytes at most.
    fn step(room: usize) -> usize {
        1 + room / 16
    }

    /// Bytes that one more mark may add at most.
    pub fn growth(&self, block: u32, slot: u32) -> usize {
        let entries = self.chunks.get(block as usize / CHUNK);
        let (used, room) = entries.map_or((0, 0), |e| (e.len(), e.capacity()));
        let more = if used < room { 0 } else { Self::step(room) };
        let chunks = (block as usize / CHUNK + 1).saturating_sub(self.chunks.capacity());
        let workers = (slot as usize + 1).saturating_sub(self.workers.capacity());
        let listed = if workers == 0 {
            0
        } else {
            workers.max(self.workers.capacity()).max(4)
        };
        more * size_of::<Entry>() + chunks * size_of::<Vec<Entry>>() + listed * size_of::<Worker>()
    }

    /// Takes the marks of some ranks off blocks. Returns how many.
    pub fn take(&mut self, blocks: Range<u32>, slot: u32, ranks: &[Medium]) -> u64 {
        if self.count(slot) == 0 {
            return 0;
        }
        let chunk = blocks.start as usize / CHUNK;
        let Some(entries) = self.chunks.get_mut(chunk) else {
            return 0;
        };
        let mut taken = 0;
        for (word, mask) in words(blocks) {
            let first = Key::new(word, slot, Medium::ALL[0]);
            let mut at = entries.partition_point(|e| e.key < first);
            while let Some(entry) = entries.get_mut(at) {
                if entry.key.place() != first.place() {
                    break;
                }
                let bits = entry.bits();
                if ranks.contains(&entry.key.rank()) {
                    taken += u64::from((bits & mask).count_ones());
                    *entry = Entry::new(entry.key, bits & !mask);
                }
                if entry.bits == [0; 2] {
                    entries.remove(at);
                } else {
                    at += 1;
                }
            }
        }
        self.worker(slot).marks -= taken;
        self.total -= taken;
        self.shrink(chunk);
        taken
    }

    fn shrink(&mut self, chunk: usize) {
        if self.total == 0 {
            (self.chunks, self.room) = (Vec::new(), 0);
            return;
        }
        let entries = &mut self.chunks[chunk];
        let (used, room) = (entries.len(), entries.capacity());
        if room > used + used / 8 + 4 || used == 0 {
            entries.shrink_to(used + used / 16);
            self.room = self.room - room + entries.capacity();
        }
        while self.chunks.last().is_some_and(Vec::is_empty) {
            self.chunks.pop();
        }
        if self.chunks.len() * 2 < self.chunks.capacity() {
            self.chunks.shrink_to_fit();
        }
    }

    /// Makes marks of the rank of device memory speculative as far as there is room; the others go.
    pub fn doubt(&mut self, blocks: Range<u32>, slot: u32, room: &mut usize) {
        for (word, mask) in words(blocks.clone()) {
            let entries = self.of(word, slot).iter();
            let marked = entries.filter(|e| e.key.rank() == Medium::Gpu);
            let bits = marked.fold(0, |all, e| all | e.bits()) & mask;
            if bits == 0 {
                continue;
            }
            let within = blocks.start.max(word * WORD)..blocks.end.min((word + 1) * WORD);
            self.take(within, slot, &[Medium::Gpu]);
            let more = self.growth(word * WORD, slot);
            if more <= *room {
                *room -= more;
                self.put(word, slot, Medium::Speculative, bits);
            }
        }
    }

    /// Calls `each` with the bitmaps on blocks of one run, of all workers, from the deepest word up: id of the first bit,
    /// key, bits. Ends where `each` returns false.
    #[inline]
    pub fn climb(&self, blocks: Range<u32>, mut each: impl FnMut(u32, Key, u64) -> bool) -> bool {
        let Range { start, end } = blocks;
        let (lowest, deepest) = (start / WORD, (end - 1) / WORD);
        let entries = self.chunk(lowest);
        let upto = entries.partition_point(|e| e.key.word() <= deepest % WORDS);
        let (base, floor) = (lowest / WORDS * WORDS, lowest % WORDS);
        for entry in entries[..upto].iter().rev() {
            let word = entry.key.word();
            if word < floor {
                break;
            }
            let first = (base + word) * WORD;
            let before = start.saturating_sub(first);
            let behind = WORD - (end - first).min(WORD);
            let bits = entry.bits() & (u64::MAX << before & u64::MAX >> behind);
            if !each(first, entry.key, bits) {
                return false;
            }
        }
        true
    }

    /// The last of the blocks that the worker has a mark on of a rank up to `upto`.
    pub fn last(&self, blocks: Range<u32>, slot: u32, upto: Medium) -> Option<u32> {
        if self.chunk(blocks.start / WORD).is_empty() {
            return None;
        }
        words(blocks).rev().find_map(|(word, mask)| {
            let ranked = self.of(word, slot).iter().filter(|e| e.key.rank() <= upto);
            let bits = ranked.fold(0, |all, e| all | e.bits()) & mask;
            (bits != 0).then(|| word * WORD + bits.ilog2())
        })
    }

    /// A lane no longer holds the blocks `gone` of a run: they lose the marks that nothing else stands for.
    #[inline]
    pub fn uncover(&mut self, run: &Node<Ids>, lane: u32, gone: Range<u32>) {
        let slot = slot_of(lane);
        if self.count(slot) == 0 {
            return;
        }
        let kin = kin(Medium::ALL[medium_of(lane)]);
        let others = kin.iter().map(|m| lane_of(slot, *m)).filter(|l| *l != lane);
        let counts = others
            .filter_map(|other| run.holders.get(other))
            .map(|e| e.count);
        let kept = counts.max().unwrap_or(0).max(gone.start);
        if kept < gone.end {
            let base = run.own.base;
            self.take(base + kept..base + gone.end, slot, kin);
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.room * size_of::<Entry>()
            + self.chunks.capacity() * size_of::<Vec<Entry>>()
            + self.workers.capacity() * size_of::<Worker>()
    }

    /// All bitmaps: the id of the first bit, key, bits.
    fn iter(&self) -> impl Iterator<Item = (u32, Key, u64)> {
        (0..).zip(&self.chunks).flat_map(|(chunk, entries)| {
            let first = move |key: Key| (chunk * WORDS + key.word()) * WORD;
            entries.iter().map(move |e| (first(e.key), e.key, e.bits()))
        })
    }

    /// Recounts everything.
    pub fn validate(held: &Held<Hashed>) -> Result<()> {
        let marks = &held.shape.marks;
        let mut counts = vec![0; marks.workers.len()];
        for entries in &marks.chunks {
            let mut keys = entries.windows(2).map(|pair| pair[0].key < pair[1].key);
            ensure!(keys.all(|is| is), "marks are out of order");
        }
        for (first, key, bits) in marks.iter() {
            let (slot, rank) = (key.slot(), key.rank());
            ensure!(bits != 0, "an empty bitmap of worker {slot} is kept");
            for block in ones(bits).map(|at| first + at) {
                let is_live = held.shape.blocks.is_live(block);
                let is_held = is_live && held.may_mark(slot, block, rank);
                ensure!(
                    is_held,
                    "worker {slot} has a mark on block {block} without it"
                );
                let lowest = marks.rank(block, slot, kin(rank));
                ensure!(
                    lowest == Some(rank),
                    "worker {slot} has two marks on block {block}"
                );
                counts[slot as usize] += 1;
            }
        }
        for (slot, (worker, counted)) in marks.workers.iter().zip(&counts).enumerate() {
            let marks = worker.marks;
            ensure!(
                marks == *counted,
                "worker {slot} counts {marks} marks, has {counted}"
            );
        }
        let total: u64 = counts.iter().sum();
        ensure!(
            total == marks.total,
            "{} marks are counted, there are {total}",
            marks.total
        );
        let refined = marks
            .workers
            .iter()
            .filter(|w| w.resumes != Resumes::default());
        ensure!(
            refined.count() == marks.refined as usize,
            "{} workers are counted that resume in another way",
            marks.refined
        );
        let room: usize = marks.chunks.iter().map(Vec::capacity).sum();
        ensure!(
            room == marks.room,
            "marks count room for {}, have {room}",
            marks.room
        );
        Ok(())
    }
}
