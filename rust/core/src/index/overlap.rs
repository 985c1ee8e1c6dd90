//! Leading blocks of every worker at once.
//!
//! From the deepest known block the runs are climbed to the root. Within a run a lane covers a prefix, so one
//! comparison of set ids shows whether anything changes in a run. Going up, a lane's answer is the shallowest place
//! where its coverage breaks, which is exact with holes too. This holds for a worker too, which covers as much of a run
//! as the longest of its lanes.

mod resume;

use super::BlockIndex;
use super::shape::{Hashed, Ids};
use crate::ids::SequenceHash;
use crate::prefix_tree::Held;
use crate::prefix_tree::leading::Leading;
use crate::prefix_tree::nodes::Node;
use resume::Unrefined;

/// Answer buffer of `BlockIndex::overlaps`, reused between calls so that a lookup allocates nothing.
#[derive(Debug, Default, Clone)]
pub struct Overlaps {
    /// In any medium, as far as a worker can resume.
    usable: Leading,
    /// In device memory alone; unused where that is the same.
    confirmed: Leading,
    separate: bool,
    several_media: bool,
    unrefined: Unrefined,
    version: u64,
    asked: usize,
    known: u32,
    block: u32,
    /// Whether the hashes came from a caller and may be no chain.
    unchained: bool,
}

impl Overlaps {
    /// Leading blocks held by the worker in `slot`, each in any medium; after `BlockIndex::resume` those it can resume
    /// behind.
    #[inline]
    #[must_use]
    pub fn depth(&self, slot: u32) -> u32 {
        self.usable.get(slot)
    }

    /// Leading blocks held by the worker in `slot`, each in any medium, wherever it can resume.
    #[inline]
    #[must_use]
    pub fn held(&self, slot: u32) -> u32 {
        if self.unrefined.is_used {
            self.unrefined.held.get(slot)
        } else {
            self.usable.get(slot)
        }
    }

    /// Leading blocks held by the worker in `slot` in device memory, announced by its engine or recorded as such;
    /// after `BlockIndex::resume` those it can resume behind.
    #[inline]
    #[must_use]
    pub fn confirmed(&self, slot: u32) -> u32 {
        if self.separate {
            self.confirmed.get(slot)
        } else {
            self.usable.get(slot)
        }
    }

    /// Every worker slot with a depth above 0, with its depth, in ascending slot order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.usable.iter()
    }

    /// Whether this answers a query of `asked` hashes on the index at `version`.
    pub(super) fn fits(&self, version: u64, asked: usize) -> bool {
        self.version == version && self.asked == asked
    }

    /// Whether this answers a query on the index at `version`.
    pub(super) fn is_of(&self, version: u64) -> bool {
        self.version == version
    }

    pub(super) fn unchained(&self) -> bool {
        self.unchained
    }

    pub(super) fn known(&self) -> (u32, u32) {
        (self.known, self.block)
    }

    /// Answers a query of `asked` hashes, of which `known` lead to `block`.
    fn fill(&mut self, index: &Held<Hashed>, asked: usize, (known, block): (u32, u32)) {
        let sets = &index.sets;
        self.version = index.shape.version;
        self.asked = asked;
        self.known = known;
        self.block = block;
        self.several_media = sets.several_media();
        self.separate = self.several_media;
        self.unrefined.is_used = false;
        let (slots, words) = (index.lanes.workers.len(), sets.words());
        let (held, confirmed) = (&mut self.usable, &mut self.confirmed);
        held.reset(slots, words);
        if self.several_media {
            confirmed.reset(slots, words);
        }
        if known == 0 {
            return;
        }
        let run = index.chains().run(block);
        if self.several_media {
            index.nodes.climb(run, known, |run, end| {
                let full = &sets.members(run.full)[..words];
                confirmed.climb(full.iter().copied(), end);
                held.climb_lanes(sets, run, end, |slot, depth| confirmed.set(slot, depth));
            });
        } else {
            let climb = |run: &Node<Ids>, end| held.climb_device(sets, run, end);
            index.nodes.climb(run, known, climb);
        }
    }
}

impl BlockIndex {
    /// Fills `out` with the leading blocks of `hashes` that every worker holds. Pure: nothing in the index changes.
    ///
    /// `hashes` must be a chain computed from tokens: the search relies on it. For hashes of unknown origin there is
    /// [`Self::overlaps_verified`].
    pub fn overlaps(&self, hashes: &[SequenceHash], out: &mut Overlaps) {
        out.unchained = false;
        out.fill(&self.held, hashes.len(), self.chains().known(hashes, false));
    }

    /// [`Self::overlaps`] for hashes that may not be a chain at all: compares the whole known path, block by block.
    pub fn overlaps_verified(&self, hashes: &[SequenceHash], out: &mut Overlaps) {
        out.unchained = true;
        out.fill(&self.held, hashes.len(), self.chains().known(hashes, true));
    }
}
