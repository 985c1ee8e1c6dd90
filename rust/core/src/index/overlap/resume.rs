//! The depths that workers can resume at, where holding the blocks is not enough.
//!
//! The matched runs are climbed once for all workers, from mark to mark, until all are answered. Workers that resume
//! from any held block keep the depth that the search found. A worker that needs blocks above the depth it resumes at
//! has its marks on the last of those, since they have to be blocks of the prompt too.

use super::Overlaps;
use crate::epoch_lru::lanes::lane_of;
use crate::ids::Medium;
use crate::index::marks::{Key, Marks};
use crate::index::{BlockIndex, NONE};
use crate::prefix_tree::leading::Leading;

/// An answer before it was refined, and scratch.
#[derive(Debug, Default, Clone)]
pub(super) struct Unrefined {
    /// Whether workers that cannot resume from any block were looked at since the search.
    pub is_used: bool,
    pub held: Leading,
    /// Unused where all is in device memory.
    confirmed: Leading,
    /// Slots that still need a mark, for their blocks in any medium and for those in device memory.
    held_left: Vec<u64>,
    confirmed_left: Vec<u64>,
}

/// Depths that are looked for.
struct Wanted<'a> {
    held: &'a Leading,
    depths: &'a mut Leading,
    /// Slots without an answer, and how many words of them are not empty.
    left: &'a mut Vec<u64>,
    open: usize,
    most: u32,
}

impl Wanted<'_> {
    /// Workers that resume only behind marks have no depth until one is found, those that need blocks above less.
    fn begin(&mut self, marks: &Marks) {
        self.depths.split(self.held, &marks.marked, self.left);
        self.open = self.left.iter().filter(|slots| **slots != 0).count();
        for (slot, above) in (0..).zip(&marks.above) {
            if *above > 0 && self.depths.has(slot) {
                let depth = self.held.get(slot).saturating_sub(*above);
                self.depths.cut(slot, depth.min(self.most));
            }
        }
    }

    /// There are marks of some slots, of the word `at`, at a depth.
    #[inline]
    fn find(&mut self, marks: &Marks, at: usize, slots: u64, depth: u32) {
        let Some(left) = self.left.get_mut(at) else {
            return;
        };
        let wanted = slots & *left;
        if wanted != 0 {
            let is_one = wanted.is_power_of_two();
            let found = if is_one && marks.above.is_empty() {
                self.depths.set_one(at, wanted, depth, self.held)
            } else {
                Self::find_some(
                    self.depths,
                    self.held,
                    marks,
                    (at, wanted),
                    depth,
                    self.most,
                )
            };
            *left ^= found;
            self.open -= usize::from(*left == 0);
        }
    }

    #[inline(never)]
    fn find_some(
        depths: &mut Leading,
        held: &Leading,
        marks: &Marks,
        (at, wanted): (usize, u64),
        depth: u32,
        most: u32,
    ) -> u64 {
        let (held, above) = (held.word(at), &marks.above);
        if above.is_empty() && depths.set_all(at, wanted, depth, held) {
            return wanted;
        }
        depths.set_some(at, wanted, |bit| {
            let above = above.get(at * 64 + bit).copied().unwrap_or(0);
            let resumed = depth
                .checked_sub(above)
                .filter(|at| (1..=most).contains(at));
            resumed.filter(|_| held.get(bit).is_some_and(|held| depth <= *held))
        })
    }
}

/// A climb along the matched runs.
struct Climb<'a> {
    index: &'a BlockIndex,
    any: Wanted<'a>,
    confirmed: Wanted<'a>,
    /// Whether the confirmed depths are other ones. As long as everything lies in device memory they are not.
    separate: bool,
}

impl Climb<'_> {
    #[inline]
    fn find(&mut self, key: Key, slots: u64, depth: u32) {
        let (marks, at) = (&self.index.held.shape.marks, key.slots() as usize);
        let is_confirmed = key.rank() == Medium::Gpu;
        if !is_confirmed && !self.separate {
            self.separate = true;
            self.confirmed.depths.copy(self.any.depths);
            self.confirmed.left.clone_from(self.any.left);
            self.confirmed.open = self.any.open;
        }
        self.any.find(marks, at, slots, depth);
        if is_confirmed && self.separate {
            self.confirmed.find(marks, at, slots, depth);
        }
    }

    fn begin(&mut self) {
        let marks = &self.index.held.shape.marks;
        self.any.begin(marks);
        if self.separate {
            self.confirmed.begin(marks);
        }
    }

    fn is_done(&self) -> bool {
        self.any.open == 0 && (!self.separate || self.confirmed.open == 0)
    }

    /// Finds the marks up to the depth `end` of the path that ends with `block`.
    fn from(&mut self, block: u32, end: u32) {
        let (nodes, shape) = (&self.index.held.nodes, &self.index.held.shape);
        let mut run = shape.blocks.run(block);
        while run != NONE && !self.is_done() {
            let r = &nodes[run];
            if end > r.start {
                let base = r.own.base;
                let blocks = base..base + r.end().min(end) - r.start;
                for (block, key, slots) in shape.marks.climb(blocks) {
                    self.find(key, slots, r.start + block - base + 1);
                    if self.is_done() {
                        return;
                    }
                }
            }
            run = r.parent;
        }
    }
}

impl Overlaps {
    fn refine(&mut self, index: &BlockIndex, most: u32) {
        let marks = &index.held.shape.marks;
        let unrefined = &mut self.unrefined;
        if !unrefined.is_used {
            std::mem::swap(&mut self.usable, &mut unrefined.held);
            if self.several_media {
                std::mem::swap(&mut self.confirmed, &mut unrefined.confirmed);
            }
            unrefined.is_used = true;
        }
        self.separate = self.several_media;
        let held = &unrefined.held;
        let mut climb = Climb {
            index,
            any: Wanted {
                held,
                depths: &mut self.usable,
                left: &mut unrefined.held_left,
                open: 0,
                most,
            },
            confirmed: Wanted {
                held: if self.separate {
                    &unrefined.confirmed
                } else {
                    held
                },
                depths: &mut self.confirmed,
                left: &mut unrefined.confirmed_left,
                open: 0,
                most,
            },
            separate: self.separate,
        };
        climb.begin();
        if self.known > 0 && self.version == index.held.shape.version && !marks.is_empty() {
            let above = marks.above.iter().max().copied().unwrap_or(0);
            climb.from(self.block, self.known.min(most.saturating_add(above)));
        }
        self.separate = climb.separate;
    }
}

impl BlockIndex {
    /// Refines an answer of [`Self::overlaps`] where workers resume only behind marks, or need blocks beyond: their depth
    /// becomes the deepest one that they can resume at, at most `most`, and the confirmed one the deepest that they can
    /// resume at from device memory alone. Other workers do not change. An answer from before the latest change finds
    /// no marks.
    #[inline]
    pub fn resume(&self, most: u32, answer: &mut Overlaps) {
        if self.held.shape.marks.refine() {
            answer.refine(self, most);
        }
    }

    /// Whether the worker in `slot` holds a block behind the first `depth` of the path that `answer` found.
    #[must_use]
    pub fn goes_on(&self, answer: &Overlaps, slot: u32, depth: u32) -> bool {
        let (known, block) = answer.known();
        let (nodes, shape) = (&self.held.nodes, &self.held.shape);
        if depth == 0 || depth > known || !answer.is_of(shape.version) {
            return false;
        }
        let mut run = shape.blocks.run(block);
        while nodes[run].start >= depth {
            run = nodes[run].parent;
        }
        let r = &nodes[run];
        let entries = Medium::ALL.iter();
        let mut entries = entries.filter_map(|m| r.holders.get(lane_of(slot, *m)));
        entries.any(|entry| {
            let held_kids = self.held.records[entry.record].held_kids;
            r.start + entry.count > depth || depth == r.end() && held_kids > 0
        })
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
        let end = known.min(within);
        let mut run = shape.blocks.run(block);
        while run != NONE {
            let r = &nodes[run];
            if end > r.start {
                let base = r.own.base;
                let blocks = base..base + r.end().min(end) - r.start;
                if let Some(found) = shape.marks.last(blocks, slot, upto) {
                    return r.start + found - base + 1;
                }
            }
            run = r.parent;
        }
        0
    }
}
