//! Block columns (sequence hash, run) and the allocator of their ids.
//!
//! A run owns a contiguous range of ids, so that splitting it rewrites one `u32` range and no table slot. Ids come in
//! chunks; a range never crosses a chunk, a chunk without a live id gives its memory back.

use super::prefetch::prefetch;
use crate::ids::SequenceHash;

/// Ids per chunk, hence the longest run.
pub(in crate::index) const CHUNK: usize = 4096;
const MAP_WORDS: usize = CHUNK / 64;
/// Free ids beyond 1/12 of all are used up, however scattered, before a new chunk is made.
const SLACK: u64 = 12;
/// Chunks looked at for a long enough range before the choice falls back to the best seen.
const TRIES: usize = 8;
/// Chunks with fewer free ids are not looked at.
const LEAST: u16 = (CHUNK / 16) as u16;
/// A free range of this length is taken without looking further.
const GOOD: u32 = 64;
/// Ids that a shorter run gets for itself, as long as there are some to spare: one that an engine extends block by block
/// would else be a run per block.
const GROWTH: u32 = 16;
/// So many ids may be free for that growth, and half as many as are in use.
const SPARE: u64 = 32_768;

#[derive(Debug)]
struct Chunk {
    hashes: Box<[u64; CHUNK]>,
    runs: Box<[u32; CHUNK]>,
    /// Bit set: id free.
    free: Box<[u64; MAP_WORDS]>,
}

fn boxed<T: Copy, const N: usize>(value: T) -> Box<[T; N]> {
    match vec![value; N].into_boxed_slice().try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("the vector has N items"),
    }
}

impl Chunk {
    fn new() -> Self {
        Self {
            hashes: boxed(0),
            runs: boxed(0),
            free: boxed(u64::MAX),
        }
    }

    /// Length of the free range that starts at `at`, at most `want`.
    fn free_from(&self, at: usize, want: u32) -> u32 {
        let mut length = 0;
        let mut at = at;
        while length < want && at < CHUNK {
            let ones = (self.free[at / 64] >> (at % 64)).trailing_ones();
            let room = 64 - (at % 64) as u32;
            length += ones;
            if ones < room {
                break;
            }
            at += room as usize;
        }
        length.min(want)
    }

    /// The longest free range, at most `want`; stops at the first of `enough` ids.
    fn longest(&self, want: u32, enough: u32) -> (usize, u32) {
        let mut best = (0, 0);
        let mut at = 0;
        while at < CHUNK {
            let word = self.free[at / 64] >> (at % 64);
            if word == 0 {
                at = (at / 64 + 1) * 64;
                continue;
            }
            at += word.trailing_zeros() as usize;
            let length = self.free_from(at, want);
            if length > best.1 {
                best = (at, length);
                if length >= enough {
                    break;
                }
            }
            at += length as usize + 1;
        }
        best
    }

    /// The first [`GROWTH`] free ids beside each other in one word.
    fn roomy(&self) -> Option<usize> {
        let room = |word: u64| {
            let pairs = word & word >> 1;
            let fours = pairs & pairs >> 2;
            let eights = fours & fours >> 4;
            eights & eights >> 8
        };
        let at = self.free.iter().position(|word| room(*word) != 0)?;
        Some(at * 64 + room(self.free[at]).trailing_zeros() as usize)
    }

    fn mark(&mut self, at: usize, length: usize, free: bool) {
        let (mut at, end) = (at, at + length);
        while at < end {
            let take = (64 - at % 64).min(end - at);
            let bits = (u64::MAX >> (64 - take)) << (at % 64);
            if free {
                self.free[at / 64] |= bits;
            } else {
                self.free[at / 64] &= !bits;
            }
            at += take;
        }
    }
}

/// Columns and id allocator.
#[derive(Debug, Default)]
pub(in crate::index) struct Blocks {
    chunks: Vec<Option<Chunk>>,
    /// Free ids per chunk, 0 for a missing one.
    free: Vec<u16>,
    /// Chunks without memory, to be refilled first.
    missing: Vec<u32>,
    /// Chunk that served last.
    cursor: usize,
    /// In the chunk made last, the first id that no run was given.
    fresh: u32,
    free_total: u64,
    /// Chunks without a live id.
    unused: usize,
}

impl Blocks {
    fn capacity(&self) -> u64 {
        ((self.chunks.len() - self.missing.len()) * CHUNK) as u64
    }

    pub(in crate::index) fn live(&self) -> u64 {
        self.capacity() - self.free_total
    }

    #[inline]
    fn chunk(&self, id: u32) -> &Chunk {
        self.chunks[id as usize / CHUNK]
            .as_ref()
            .expect("a live id has a chunk")
    }

    #[inline]
    fn chunk_mut(&mut self, id: u32) -> &mut Chunk {
        self.chunks[id as usize / CHUNK]
            .as_mut()
            .expect("a live id has a chunk")
    }

    #[inline]
    pub(in crate::index) fn hash(&self, id: u32) -> SequenceHash {
        SequenceHash(self.chunk(id).hashes[id as usize % CHUNK])
    }

    #[inline]
    pub(in crate::index) fn prefetch_hash(&self, id: u32) {
        prefetch(&self.chunk(id).hashes[id as usize % CHUNK]);
    }

    /// Fetches the columns of a block and of the end of its run.
    #[inline]
    pub(in crate::index) fn prefetch(&self, id: u32) {
        let (chunk, at) = (self.chunk(id), id as usize % CHUNK);
        prefetch(&chunk.hashes[at]);
        prefetch(&chunk.runs[at]);
        prefetch(&chunk.free[at / 64]);
    }

    #[inline]
    pub(in crate::index) fn run(&self, id: u32) -> u32 {
        self.chunk(id).runs[id as usize % CHUNK]
    }

    /// Hashes of the range `base..base + length`, which lies in one run.
    #[inline]
    pub(in crate::index) fn hashes(&self, base: u32, length: u32) -> &[u64] {
        let at = base as usize % CHUNK;
        &self.chunk(base).hashes[at..at + length as usize]
    }

    pub(in crate::index) fn set_hashes(&mut self, base: u32, hashes: &[SequenceHash]) {
        let at = base as usize % CHUNK;
        let column = &mut self.chunk_mut(base).hashes[at..at + hashes.len()];
        for (cell, hash) in column.iter_mut().zip(hashes) {
            *cell = hash.0;
        }
    }

    pub(in crate::index) fn set_run(&mut self, base: u32, length: u32, run: u32) {
        let at = base as usize % CHUNK;
        self.chunk_mut(base).runs[at..at + length as usize].fill(run);
    }

    /// Whether `id` is in use.
    pub(in crate::index) fn is_live(&self, id: u32) -> bool {
        let at = id as usize % CHUNK;
        self.chunks
            .get(id as usize / CHUNK)
            .and_then(Option::as_ref)
            .is_some_and(|chunk| chunk.free[at / 64] >> (at % 64) & 1 == 0)
    }

    /// Takes up to `want` contiguous ids; returns their first id and how many.
    pub(in crate::index) fn alloc(&mut self, want: u32) -> (u32, u32) {
        let want = want.min(CHUNK as u32);
        let found = self.roomy(want).or_else(|| self.choose(want));
        let (chunk, at, got) = found.unwrap_or_else(|| (self.new_chunk(), 0, want));
        self.cursor = chunk;
        self.take(chunk, at, got);
        let id = (chunk * CHUNK + at) as u32;
        if id == self.fresh || at == 0 {
            self.fresh = id + got.max(GROWTH);
        }
        (id, got)
    }

    /// Where `want` ids lie, with some to spare for growth where they are few; `None` if there are none to spare.
    fn roomy(&mut self, want: u32) -> Option<(usize, usize, u32)> {
        let (chunk, at) = (self.fresh as usize / CHUNK, self.fresh as usize % CHUNK);
        let place = want.max(GROWTH);
        if at > 0
            && let Some(Some(c)) = self.chunks.get(chunk)
            && c.free_from(at, place) == place
        {
            return Some((chunk, at, want));
        }
        if want >= GROWTH {
            return None;
        }
        let count = self.chunks.len();
        let others = (0..count.min(TRIES)).map(|step| (self.cursor + step) % count);
        for chunk in others.filter(|chunk| u32::from(self.free[*chunk]) >= GROWTH) {
            if let Some(at) = self.chunks[chunk].as_ref().and_then(Chunk::roomy) {
                return Some((chunk, at, want));
            }
        }
        let spare = SPARE.min(self.live() / 2 + CHUNK as u64);
        (self.free_total < spare).then(|| (self.new_chunk(), 0, want))
    }

    /// Takes exactly `want` contiguous ids, at most a chunk of them.
    pub(in crate::index) fn alloc_whole(&mut self, want: u32) -> u32 {
        let chunk = self.cursor.min(self.chunks.len().saturating_sub(1));
        let (at, got) = self
            .chunks
            .get(chunk)
            .and_then(Option::as_ref)
            .map_or((0, 0), |c| c.longest(want, want));
        let (chunk, at) = if got == want {
            (chunk, at)
        } else {
            (self.new_chunk(), 0)
        };
        self.cursor = chunk;
        self.take(chunk, at, want);
        (chunk * CHUNK + at) as u32
    }

    /// Takes up to `want` ids from exactly `id` on, if they are free and in the chunk of `id - 1`.
    pub(in crate::index) fn extend(&mut self, id: u32, want: u32) -> u32 {
        let at = id as usize % CHUNK;
        if at == 0 {
            return 0;
        }
        let got = self.chunk(id).free_from(at, want);
        self.take(id as usize / CHUNK, at, got);
        got
    }

    fn take(&mut self, chunk: usize, at: usize, got: u32) {
        if let Some(c) = &mut self.chunks[chunk] {
            c.mark(at, got as usize, false);
        }
        self.unused -= usize::from(self.free[chunk] == CHUNK as u16 && got > 0);
        self.free[chunk] -= got as u16;
        self.free_total -= u64::from(got);
    }

    /// Where to take up to `want` ids; `None` if a fresh chunk is better. Chunks with few free ids are passed
    /// over, but for the one that served last.
    fn choose(&self, want: u32) -> Option<(usize, usize, u32)> {
        let enough = want.min(GOOD);
        let mut best = (0, 0, 0);
        let count = self.chunks.len();
        let scarce = self.free_total * SLACK < self.capacity();
        let mut tries = 0;
        for step in 0..count {
            let index = (self.cursor + step) % count;
            let floor = if step == 0 { 1 } else { LEAST };
            if self.free[index] < floor {
                continue;
            }
            if let Some(chunk) = &self.chunks[index] {
                let (at, got) = chunk.longest(want, enough);
                if got > best.2 {
                    best = (index, at, got);
                }
                if got >= enough {
                    return Some(best);
                }
                tries += 1;
            }
            if tries >= TRIES || (scarce && step >= TRIES) {
                break;
            }
        }
        // Plenty free but scattered: use it up. Little free: a fresh chunk keeps runs long.
        (best.2 > 0 && !scarce).then_some(best)
    }

    fn new_chunk(&mut self) -> usize {
        self.free_total += CHUNK as u64;
        self.unused += 1;
        if let Some(index) = self.missing.pop() {
            self.chunks[index as usize] = Some(Chunk::new());
            self.free[index as usize] = CHUNK as u16;
            return index as usize;
        }
        self.chunks.push(Some(Chunk::new()));
        self.free.push(CHUNK as u16);
        self.chunks.len() - 1
    }

    /// Gives back the ids `base..base + length`.
    pub(in crate::index) fn free(&mut self, base: u32, length: u32) {
        let index = base as usize / CHUNK;
        if let Some(chunk) = &mut self.chunks[index] {
            chunk.mark(base as usize % CHUNK, length as usize, true);
        }
        self.free[index] += length as u16;
        self.free_total += u64::from(length);
        self.unused += usize::from(self.free[index] == CHUNK as u16);
        if self.live() == 0 {
            *self = Self::default();
        }
        // Twice the slack that makes a new chunk: a steady load does not make and drop chunks in turn.
        while self.unused > 0 && self.free_total * SLACK > 2 * self.capacity() {
            self.drop_unused();
        }
    }

    fn drop_unused(&mut self) {
        let unused = self.free.iter().rposition(|free| *free == CHUNK as u16);
        let Some(index) = unused else { return };
        self.chunks[index] = None;
        self.free[index] = 0;
        self.missing.push(index as u32);
        self.free_total -= CHUNK as u64;
        self.unused -= 1;
    }
}
