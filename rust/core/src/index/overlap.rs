//! Leading blocks of every worker at once.
//!
//! From the deepest known block the runs are climbed to the root. Within a run a lane covers a prefix, so a run says in
//! one comparison of set ids whether anything changes. Going up, a lane's answer is the shallowest place where its
//! coverage breaks, which is exact with holes too.

use super::runs::Run;
use super::sets::ones;
use super::{BlockIndex, NONE};
use crate::ids::SequenceHash;

/// Answer buffer of [`BlockIndex::overlaps`], reused between calls so that a lookup allocates nothing.
#[derive(Debug, Default, Clone)]
pub struct Overlaps {
    /// Leading blocks by worker slot; valid where the member bit is set.
    depth: Vec<u32>,
    members: Vec<u64>,
    /// The path from the deepest run up, used where a worker holds blocks in several media.
    path: Vec<u32>,
    version: u64,
    asked: usize,
    known: u32,
    block: u32,
    /// Whether the hashes came from a caller and may be no chain.
    unchained: bool,
}

impl Overlaps {
    /// Leading blocks held by the worker in `slot`.
    #[inline]
    #[must_use]
    pub fn depth(&self, slot: u32) -> u32 {
        let word = self.members.get(slot as usize / 64).copied().unwrap_or(0);
        if word >> (slot % 64) & 1 == 1 {
            self.depth[slot as usize]
        } else {
            0
        }
    }

    /// Every worker slot that holds at least one leading block, with its depth, in ascending slot order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        ones(&self.members).map(|slot| (slot, self.depth[slot as usize]))
    }

    /// The deepest depth in the answer, 0 if nobody holds block 0.
    #[must_use]
    pub fn best(&self) -> u32 {
        self.iter().map(|(_, depth)| depth).max().unwrap_or(0)
    }

    /// Whether this answers a query of `asked` hashes on the index at `version`.
    pub(super) fn fits(&self, version: u64, asked: usize) -> bool {
        self.version == version && self.asked == asked
    }

    pub(super) fn unchained(&self) -> bool {
        self.unchained
    }

    pub(super) fn known(&self) -> (u32, u32) {
        (self.known, self.block)
    }

    fn reset(&mut self, slots: usize, words: usize) {
        if self.depth.len() < slots {
            self.depth.resize(slots, 0);
        }
        self.members.clear();
        self.members.resize(words, 0);
    }

    fn set(&mut self, slot: u32, depth: u32) {
        self.depth[slot as usize] = depth;
        self.members[slot as usize / 64] |= 1 << (slot % 64);
    }
}

impl BlockIndex {
    /// Fills `out` with the leading blocks of `hashes` that every worker holds. Pure: nothing in the index changes.
    ///
    /// `hashes` must be a chain computed from tokens: the search relies on it. For hashes of unknown origin there is
    /// [`Self::overlaps_verified`].
    pub fn overlaps(&self, hashes: &[SequenceHash], out: &mut Overlaps) {
        let (known, block) = self.known_path(hashes, false);
        out.unchained = false;
        self.answer(hashes.len(), known, block, out);
    }

    /// [`Self::overlaps`] for hashes that may not be a chain at all: compares the whole known path, block by block.
    pub fn overlaps_verified(&self, hashes: &[SequenceHash], out: &mut Overlaps) {
        let (known, block) = self.known_path(hashes, true);
        out.unchained = true;
        self.answer(hashes.len(), known, block, out);
    }

    /// How many leading hashes are known as one path, and its last block. Hashes that were stored as given, and with
    /// `verify` all of them, are compared along the path: elsewhere the last hash vouches for those before it.
    pub(super) fn known_path(&self, hashes: &[SequenceHash], verify: bool) -> (u32, u32) {
        let (known, block) = self.search(hashes);
        let mut end = known as usize;
        let mut run = if end == 0 {
            NONE
        } else {
            self.blocks.run(block)
        };
        while run != NONE {
            let r = &self.runs[run];
            let start = r.start as usize;
            if verify || r.claimed {
                let stored = self.blocks.hashes(r.base, (end - start) as u32);
                if !stored
                    .iter()
                    .zip(&hashes[start..end])
                    .all(|(a, b)| *a == b.0)
                {
                    return self.search_linear(hashes);
                }
            }
            end = start;
            run = r.parent;
        }
        (known, block)
    }

    fn answer(&self, asked: usize, known: u32, block: u32, out: &mut Overlaps) {
        out.version = self.version;
        out.asked = asked;
        out.known = known;
        out.block = block;
        out.reset(
            self.lanes.items.len().max(self.lanes.workers.len()),
            self.sets.stride(),
        );
        if known == 0 {
            return;
        }
        self.climb(known, block, out);
        if self.lanes.moved > 0 || self.lanes.several > 0 {
            self.lanes_to_workers(known, block, out);
        }
    }

    /// Fills `out`, which is empty, by lane.
    fn climb(&self, known: u32, block: u32, out: &mut Overlaps) {
        let mut run = &self.runs[self.blocks.run(block)];
        self.climb_into(run, known, out);
        while run.parent != NONE {
            let above = &self.runs[run.parent];
            if above.full != run.full || above.partial > 0 || run.partial > 0 {
                self.climb_into(above, above.end(), out);
            }
            run = above;
        }
    }

    /// Extends an answer for what lies below `run` by the run itself, of which the query covers the depths up to `end`.
    #[inline]
    fn climb_into(&self, run: &Run, end: u32, out: &mut Overlaps) {
        let full = self.sets.members(run.full);
        for (at, &word) in full.iter().enumerate() {
            // These hold the run, but not the first block below it.
            let mut rest = word & !out.members[at];
            while rest != 0 {
                out.depth[at * 64 + rest.trailing_zeros() as usize] = end;
                rest &= rest - 1;
            }
        }
        out.members.copy_from_slice(full);
        if run.partial > 0 {
            let entries = run.holders.as_slice().iter();
            for entry in entries.filter(|e| e.count > 0 && e.count < run.len) {
                out.set(entry.lane, end.min(run.start + entry.count));
            }
        }
    }

    /// Turns an answer by lane into one by worker: held means held in any medium.
    fn lanes_to_workers(&self, known: u32, block: u32, out: &mut Overlaps) {
        let by_lane = std::mem::take(&mut out.depth);
        let lanes = std::mem::take(&mut out.members);
        let workers = self.lanes.workers.len();
        out.depth = vec![0; by_lane.len()];
        out.members = vec![0; workers.div_ceil(64)];
        for lane in ones(&lanes) {
            let slot = self.lanes[lane].slot;
            if self
                .lanes
                .worker(slot)
                .is_some_and(|w| w.only_lane().is_some())
            {
                out.set(slot, by_lane[lane as usize]);
            }
        }
        if self.lanes.several == 0 {
            return;
        }
        out.path.clear();
        let mut run = self.blocks.run(block);
        while run != NONE {
            out.path.push(run);
            run = self.runs[run].parent;
        }
        for slot in 0..workers as u32 {
            let Some(worker) = self.lanes.worker(slot).filter(|w| w.lanes().count() > 1) else {
                continue;
            };
            let mut depth = 0;
            for &run in out.path.iter().rev() {
                let r = &self.runs[run];
                let here = r.len.min(known - r.start);
                let held = worker
                    .lanes()
                    .filter_map(|l| r.holders.get(l))
                    .map(|e| e.count)
                    .max()
                    .unwrap_or(0);
                depth = r.start + held.min(here);
                if held < here {
                    break;
                }
            }
            if depth > 0 {
                out.set(slot, depth);
            }
        }
    }
}
