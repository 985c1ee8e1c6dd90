//! The depths that workers can resume at, where all that is held is not enough.
//!
//! The matched runs are climbed once for all workers, as holders are, and what was looked up stays as it is for workers
//! that resume from any block held. O(words of 64 blocks with marks on the path, for every worker that has some), less
//! where all workers are answered before the root.

use super::Overlaps;
use crate::forest::leading::Leading;
use crate::ids::Medium;
use crate::index::marks::Key;
use crate::index::{BlockIndex, NONE, Resumes};

/// How deep a worker may resume, by what it holds in any medium and in device memory; 0 for no mark wanted.
#[derive(Debug, Clone, Copy, Default)]
struct Within {
    held: u32,
    confirmed: u32,
}

/// What an answer was before it was refined, and scratch.
#[derive(Debug, Default, Clone)]
pub(super) struct Unrefined {
    pub held: Leading,
    confirmed: Leading,
    /// By slot.
    within: Vec<Within>,
}

/// The deepest mark that a bitmap gives up to a depth, where the block of its first bit ends at the depth `first`, which
/// may lie before the root.
#[inline]
fn deepest(bits: u64, first: i64, within: u32) -> u32 {
    let last = i64::from(within) - first;
    if last < 0 {
        return 0;
    }
    let bits = bits & u64::MAX >> (63 - last.min(63));
    if bits == 0 {
        return 0;
    }
    (first + i64::from(bits.ilog2())) as u32
}

/// What the climb has to find.
struct Wanted<'a> {
    within: &'a [Within],
    usable: &'a mut Leading,
    confirmed: &'a mut Leading,
    /// Answers that are missing.
    left: usize,
}

impl Wanted<'_> {
    #[inline]
    fn look(&mut self, key: Key, bits: u64, first: i64) {
        let slot = key.slot();
        let Some(within) = self.within.get(slot as usize) else {
            return;
        };
        if within.held == 0 {
            return;
        }
        self.left -= self.usable.find(slot, deepest(bits, first, within.held));
        if key.rank() == Medium::Gpu {
            let depth = deepest(bits, first, within.confirmed);
            self.left -= self.confirmed.find(slot, depth);
        }
    }
}

impl Overlaps {
    /// Brings back what the search found.
    fn unrefine(&mut self) {
        let unrefined = &mut self.unrefined;
        if self.refined {
            self.usable.copy(&unrefined.held);
        } else {
            unrefined.held.copy(&self.usable);
            if self.several_media {
                unrefined.confirmed.copy(&self.confirmed);
            }
        }
        self.confirmed.copy(if self.several_media {
            &unrefined.confirmed
        } else {
            &unrefined.held
        });
    }

    fn refine(&mut self, index: &BlockIndex, most: u32) {
        self.unrefine();
        self.refined = true;
        let marks = &index.held.shape.marks;
        let is_current = self.is_of(index.held.shape.version);
        let Unrefined { held, within, .. } = &mut self.unrefined;
        within.clear();
        within.resize(index.held.lanes.workers.len(), Within::default());
        let (mut left, mut end) = (0, 0);
        for (slot, depth) in held.iter() {
            let resumes = marks.resumes(slot);
            if resumes == Resumes::default() {
                continue;
            }
            let upto = |held: u32| held.saturating_sub(resumes.above).min(most);
            let limits = Within {
                held: upto(depth),
                confirmed: upto(self.confirmed.get(slot)),
            };
            if !resumes.marked_only {
                self.usable.cut(slot, limits.held);
                self.confirmed.cut(slot, limits.confirmed);
                continue;
            }
            self.usable.cut(slot, 0);
            self.confirmed.cut(slot, 0);
            if is_current && marks.count(slot) > 0 && limits.held > 0 {
                within[slot as usize] = limits;
                left += 1 + usize::from(limits.confirmed > 0);
                end = limits.held.max(end);
            }
        }
        if left > 0 {
            let wanted = Wanted {
                within,
                usable: &mut self.usable,
                confirmed: &mut self.confirmed,
                left,
            };
            Self::climb_marks(index, self.block, end, wanted);
        }
    }

    /// Climbs the path that ends with `block`, from the depth `end` on.
    fn climb_marks(index: &BlockIndex, block: u32, end: u32, mut wanted: Wanted<'_>) {
        let (nodes, shape) = (&index.held.nodes, &index.held.shape);
        let mut run = shape.blocks.run(block);
        while run != NONE {
            let r = &nodes[run];
            let (base, start) = (r.own.base, r.start);
            if end > start {
                let blocks = base..base + r.end().min(end) - start;
                let mut word = NONE;
                let is_going = shape.marks.climb(blocks, |first, key, bits| {
                    // A mark of another rank in the same word may be deeper.
                    if first != word && wanted.left == 0 {
                        return false;
                    }
                    word = first;
                    let depth = i64::from(start) + i64::from(first) - i64::from(base) + 1;
                    wanted.look(key, bits, depth);
                    true
                });
                if !is_going {
                    return;
                }
            }
            run = r.parent;
        }
    }
}

impl BlockIndex {
    /// Refines an answer of [`Self::overlaps`] where workers resume only behind marks, or need blocks beyond: their depth
    /// becomes the deepest one that they can resume at, at most `most`, and the confirmed one what they can resume at from
    /// device memory alone. Other workers are left alone. An answer from before the latest change knows no marks.
    #[inline]
    pub fn resume(&self, most: u32, answer: &mut Overlaps) {
        if self.held.shape.marks.refine() {
            answer.refine(self, most);
        }
    }

    /// The deepest mark of the worker in `slot`, of a rank up to `upto`, at a depth of at most `within` on the path that
    /// `answer` found; 0 for none.
    #[must_use]
    pub fn deepest_mark(&self, answer: &Overlaps, slot: u32, within: u32, upto: Medium) -> u32 {
        let (known, block) = answer.known();
        let (nodes, shape) = (&self.held.nodes, &self.held.shape);
        if known == 0 || !answer.is_of(shape.version) || shape.marks.count(slot) == 0 {
            return 0;
        }
        let mut end = known.min(within);
        let mut run = shape.blocks.run(block);
        while run != NONE {
            let r = &nodes[run];
            let base = r.own.base;
            if end > r.start {
                let blocks = base..base + end - r.start;
                if let Some(found) = shape.marks.last(blocks, slot, upto) {
                    return r.start + found - base + 1;
                }
                end = r.start;
            }
            run = r.parent;
        }
        0
    }
}
