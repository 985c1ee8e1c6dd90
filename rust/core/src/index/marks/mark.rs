//! Marks from outside: where a worker can resume, by its events or expected from its placements.

use super::{Resumes, SLOTS, kin};
use crate::epoch_lru::lanes::lane_of;
use crate::error::Result;
use crate::ids::{Medium, SequenceHash, WorkerId};
use crate::index::BlockIndex;
use crate::index::shape::Hashed;
use crate::prefix_tree::Held;

impl BlockIndex {
    /// Sets how the worker resumes prompts, until it is removed.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn set_resumes(&mut self, worker: WorkerId, resumes: Resumes) -> Result<()> {
        self.worker(worker)?;
        self.held.shape.marks.set_resumes(worker.slot, resumes);
        Ok(())
    }

    /// Marks a block: the side groups of the worker accept resuming behind it with their blocks in media up to
    /// `medium`. The lowest of the ranks that engines announce stays; a speculative mark is one of its own. Returns
    /// whether the block is marked so: not if the worker does not hold it, in the speculative lane or else in a medium
    /// that engines announce. A mark is removed when that no longer holds.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn mark(&mut self, worker: WorkerId, hash: SequenceHash, medium: Medium) -> Result<bool> {
        self.worker(worker)?;
        let slot = worker.slot;
        let found = self.chains().find(hash);
        let Some(block) = found.filter(|block| self.held.may_mark(slot, *block, medium)) else {
            return Ok(false);
        };
        let marks = &self.held.shape.marks;
        let lowest = marks.rank(block, slot, kin(medium));
        if lowest.is_some_and(|rank| rank <= medium) {
            return Ok(true);
        }
        if slot >= SLOTS {
            return Ok(false);
        }
        let marks = &mut self.held.shape.marks;
        if lowest.is_some() {
            marks.take(block..block + 1, slot, kin(medium));
        }
        marks.add(block, slot, medium);
        Ok(true)
    }

    /// Takes the marks of the worker off a block, of any rank. Returns whether there was one.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn unmark(&mut self, worker: WorkerId, hash: SequenceHash) -> Result<bool> {
        self.worker(worker)?;
        let Some(block) = self.chains().find(hash) else {
            return Ok(false);
        };
        let marks = &mut self.held.shape.marks;
        Ok(marks.take(block..block + 1, worker.slot, &Medium::ALL) > 0)
    }

    /// Whether a block has a mark of the worker of one of some ranks.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn is_marked(
        &self,
        worker: WorkerId,
        hash: SequenceHash,
        among: &[Medium],
    ) -> Result<bool> {
        self.worker(worker)?;
        let (marks, block) = (&self.held.shape.marks, self.chains().find(hash));
        Ok(block.is_some_and(|block| marks.rank(block, worker.slot, among).is_some()))
    }

    /// Marks of the worker.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn marks(&self, worker: WorkerId) -> Result<u64> {
        self.worker(worker)?;
        Ok(self.held.shape.marks.count(worker.slot))
    }
}

impl Held<Hashed> {
    /// Whether the worker holds a block so that a mark of this rank may stand on it.
    pub(in crate::index) fn may_mark(&self, slot: u32, block: u32, rank: Medium) -> bool {
        let run = self.chains().run(block);
        let entries = kin(rank).iter().map(|m| run.holders.get(lane_of(slot, *m)));
        let covered = entries.flatten().map(|e| e.count).max();
        covered.is_some_and(|count| count > block - run.own.base)
    }

    /// Makes the marks in device memory speculative, as far as the blocks of the path that ends with `last` are, from the
    /// depth `from` on.
    pub(in crate::index) fn doubt_marks(&mut self, slot: u32, last: u32, from: u32) {
        let speculative = lane_of(slot, Medium::Speculative);
        let (mut run, mut end) = (self.shape.blocks.run(last), last + 1);
        loop {
            let r = &self.nodes[run];
            let first = r.own.base + from.saturating_sub(r.start);
            let upto = end.min(r.own.base + self.nodes.covered(run, speculative));
            if first < upto {
                self.shape.marks.doubt(first..upto, slot);
            }
            if r.start <= from || r.parent == crate::index::NONE {
                return;
            }
            run = r.parent;
            end = self.nodes[run].own.base + self.nodes[run].len;
        }
    }
}
