//! The chains that a worker holds, for a receiver that knows none: all at once, or in steps between which the
//! index may change.

use std::collections::HashSet;

use super::{BlockIndex, NONE};
use crate::epoch_lru::lanes::lane_of;
use crate::ids::{Medium, SequenceHash, WorkerId};

/// Blocks of one chain: a long run is listed in pieces, which the receiver applies one at a time.
const PIECE: usize = 1024;

/// How far a listing has come.
///
/// Runs may be split, joined and freed meanwhile, and what was not listed yet may be used again, which moves it to the end.
/// So nothing is remembered by number alone: what is held throughout is listed, whatever happens beside it.
#[derive(Debug)]
pub struct Listing {
    worker: WorkerId,
    lane: u32,
    /// Last blocks of chains that were listed with all before them.
    listed: HashSet<SequenceHash>,
    /// The record listed last, and its epoch then.
    last: Option<(u32, u64)>,
    /// Scratch.
    steps: Vec<(u32, u32)>,
    chain: Vec<SequenceHash>,
}

impl Listing {
    /// Begins with the holdings of a worker in a medium.
    #[must_use]
    pub fn of(worker: WorkerId, medium: Medium) -> Self {
        Self {
            worker,
            lane: lane_of(worker.slot, medium),
            listed: HashSet::new(),
            last: None,
            steps: Vec::new(),
            chain: Vec::new(),
        }
    }

    /// When what comes next was used, `None` if all is listed. Comparable as far as `BlockIndex::set_tick` makes it.
    #[must_use]
    pub fn age(&self, index: &BlockIndex) -> Option<u64> {
        let record = self.next(index);
        (record != NONE).then(|| index.held.records[record].epoch)
    }

    /// Calls `each` with chains of blocks that the worker holds, and the block before each: parents first, and else in
    /// the order of use, the least recent first. A receiver that stores them in this order holds the same blocks and
    /// evicts them in the same order. Goes on to uses up to the age `until`, about `enough` blocks. Returns how many,
    /// or a little more: paths that bring none count too.
    pub fn go_on(
        &mut self,
        index: &BlockIndex,
        until: u64,
        enough: usize,
        mut each: impl FnMut(Option<SequenceHash>, &[SequenceHash]),
    ) -> usize {
        let records = &index.held.records;
        let mut record = self.next(index);
        let mut done = 0;
        while record != NONE && done < enough && records[record].epoch <= until {
            done += 1 + self.path(index, records[record].node, &mut each);
            self.last = Some((record, records[record].epoch));
            record = records[record].next;
        }
        done
    }

    /// The record to go on with.
    fn next(&self, index: &BlockIndex) -> u32 {
        let (lanes, records) = (&index.held.lanes, &index.held.records);
        let is_registered = lanes.registered(self.worker).is_ok();
        let Some(lane) = lanes.get(self.lane).filter(|_| is_registered) else {
            return NONE;
        };
        let Some((last, epoch)) = self.last else {
            return lane.oldest;
        };
        let live = records.is_live(last).then(|| &records[last]);
        if let Some(record) = live
            && (record.lane, record.epoch, record.listed()) == (self.lane, epoch, true)
        {
            return record.next;
        }
        // It is gone or was used again. One of the same age may take its place and is listed once more.
        let mut record = lane.oldest;
        while record != NONE && records[record].epoch < epoch {
            record = records[record].next;
        }
        record
    }

    /// Lists the path that ends with a run, as far as it was not listed. Returns the blocks.
    fn path(
        &mut self,
        index: &BlockIndex,
        run: u32,
        each: &mut impl FnMut(Option<SequenceHash>, &[SequenceHash]),
    ) -> usize {
        let (nodes, blocks) = (&index.held.nodes, &index.held.shape.blocks);
        let mut above = run;
        while above != NONE {
            let (base, held) = (nodes[above].own.base, nodes.covered(above, self.lane));
            if held > 0 && !self.listed.insert(blocks.hash(base + held - 1)) {
                break;
            }
            self.steps.push((base, held));
            above = nodes[above].parent;
        }
        if self.steps.is_empty() {
            // All of it was listed with a path through it: it is only used.
            let last = nodes[run].own.base + nodes.covered(run, self.lane) - 1;
            self.steps.push((last, 1));
        }
        let mut done = 0;
        while let Some((base, held)) = self.steps.pop() {
            done += held as usize;
            if held == 0 {
                continue;
            }
            let before = index.chains().before(base);
            let mut anchor = (before != NONE).then(|| blocks.hash(before));
            for hashes in blocks.hashes(base, held).chunks(PIECE) {
                self.chain.clear();
                self.chain
                    .extend(hashes.iter().map(|&hash| SequenceHash(hash)));
                each(anchor, &self.chain);
                anchor = self.chain.last().copied();
            }
        }
        done
    }
}
