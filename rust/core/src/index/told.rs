//! What a worker holds, as it would be told to somebody who knows nothing.

use std::collections::HashSet;

use super::lanes::lane_of;
use super::{BlockIndex, NONE};
use crate::ids::{Medium, SequenceHash, WorkerId};

impl BlockIndex {
    /// Calls `each` with chains of blocks the worker holds in a medium, and the block before each: parents first, and
    /// else in the order of use, what was used longest ago first. Whoever stores them in this order holds the same and
    /// evicts it in the same order.
    pub fn tell(
        &self,
        worker: WorkerId,
        medium: Medium,
        mut each: impl FnMut(Option<SequenceHash>, &[SequenceHash]),
    ) {
        if self.worker(worker).is_err() {
            return;
        }
        let number = lane_of(worker.slot, medium);
        let Some(lane) = self.lanes.get(number) else {
            return;
        };
        let (mut told, mut steps, mut chain) = (HashSet::new(), Vec::new(), Vec::new());
        let mut record = lane.oldest;
        while record != NONE {
            let mut run = self.records[record].run;
            while run != NONE && told.insert(run) {
                steps.push(run);
                run = self.runs[run].parent;
            }
            let end = steps.first().copied();
            while let Some(run) = steps.pop() {
                let count = self.entry(run, number).map_or(0, |entry| entry.count);
                self.tell_blocks(self.runs[run].base, count, &mut chain, &mut each);
            }
            if end.is_none() {
                // All of it was told with a path through it: it is only used.
                let run = self.records[record].run;
                let count = self.entry(run, number).map_or(0, |entry| entry.count);
                let last = self.runs[run].base + count.saturating_sub(1);
                self.tell_blocks(last, count.min(1), &mut chain, &mut each);
            }
            record = self.records[record].next;
        }
    }

    fn tell_blocks(
        &self,
        base: u32,
        count: u32,
        chain: &mut Vec<SequenceHash>,
        each: &mut impl FnMut(Option<SequenceHash>, &[SequenceHash]),
    ) {
        if count == 0 {
            return;
        }
        let before = self.block_before(base);
        let anchor = (before != NONE).then(|| self.blocks.hash(before));
        chain.clear();
        let hashes = self.blocks.hashes(base, count).iter();
        chain.extend(hashes.map(|&hash| SequenceHash(hash)));
        each(anchor, chain);
    }
}
