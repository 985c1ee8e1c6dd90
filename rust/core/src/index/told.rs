//! What a worker holds, as it would be told to somebody who knows nothing: all at once, or in steps between which the
//! index may change.

use std::collections::HashSet;

use super::{BlockIndex, NONE};
use crate::forest::lanes::lane_of;
use crate::ids::{Medium, SequenceHash, WorkerId};

/// Blocks of one chain: those of a long run are told in pieces, which somebody else applies one at a time.
const PIECE: usize = 1024;

/// How far telling has come.
///
/// Runs may be split, joined and freed meanwhile, and what was not told yet may be used again, which moves it to the end.
/// So nothing is remembered by number alone: what is held throughout is told, whatever happens beside it.
#[derive(Debug, Default)]
pub struct Telling {
    /// Last blocks of what was told together with all before them.
    told: HashSet<SequenceHash>,
    /// The record told last, and its epoch then.
    last: Option<(u32, u64)>,
    /// Scratch.
    steps: Vec<(u32, u32)>,
    chain: Vec<SequenceHash>,
}

impl BlockIndex {
    /// Calls `each` with chains of blocks the worker holds in a medium, and the block before each: parents first, and
    /// else in the order of use, what was used longest ago first. Whoever stores them in this order holds the same and
    /// evicts it in the same order.
    pub fn tell(
        &self,
        worker: WorkerId,
        medium: Medium,
        each: impl FnMut(Option<SequenceHash>, &[SequenceHash]),
    ) {
        let telling = &mut Telling::default();
        self.tell_on(worker, medium, telling, u64::MAX, usize::MAX, each);
    }

    /// When what [`Self::tell_on`] tells next was used, `None` if all is told. Comparable as far as [`Self::set_limit`]
    /// makes it.
    #[must_use]
    pub fn tell_age(&self, worker: WorkerId, medium: Medium, telling: &Telling) -> Option<u64> {
        let record = self.next_told(worker, medium, telling);
        (record != NONE).then(|| self.held.records[record].epoch)
    }

    /// Goes on with [`Self::tell`]: what was used up to the age `until`, about `enough` blocks of it. Returns how many, or
    /// a little more: paths that bring none count too.
    pub fn tell_on(
        &self,
        worker: WorkerId,
        medium: Medium,
        telling: &mut Telling,
        until: u64,
        enough: usize,
        mut each: impl FnMut(Option<SequenceHash>, &[SequenceHash]),
    ) -> usize {
        let lane = lane_of(worker.slot, medium);
        let mut record = self.next_told(worker, medium, telling);
        let mut done = 0;
        while record != NONE && done < enough && self.held.records[record].epoch <= until {
            done += 1 + self.tell_path(self.held.records[record].node, lane, telling, &mut each);
            telling.last = Some((record, self.held.records[record].epoch));
            record = self.held.records[record].next;
        }
        done
    }

    /// The record to go on with.
    fn next_told(&self, worker: WorkerId, medium: Medium, telling: &Telling) -> u32 {
        let number = lane_of(worker.slot, medium);
        let Some(lane) = self
            .held
            .lanes
            .get(number)
            .filter(|_| self.worker(worker).is_ok())
        else {
            return NONE;
        };
        let Some((last, epoch)) = telling.last else {
            return lane.oldest;
        };
        if let Some(record) = self.held.records.find(last)
            && (record.lane, record.epoch, record.listed()) == (number, epoch, true)
        {
            return record.next;
        }
        // It is gone or was used again. One of the same age may take its place and is told once more.
        let mut record = lane.oldest;
        while record != NONE && self.held.records[record].epoch < epoch {
            record = self.held.records[record].next;
        }
        record
    }

    /// Tells the path that ends with a run, as far as it was not told. Returns the blocks.
    fn tell_path(
        &self,
        run: u32,
        lane: u32,
        telling: &mut Telling,
        each: &mut impl FnMut(Option<SequenceHash>, &[SequenceHash]),
    ) -> usize {
        let count = |run| {
            self.held
                .nodes
                .entry(run, lane)
                .map_or(0, |entry| entry.count)
        };
        let Telling {
            told, steps, chain, ..
        } = telling;
        let mut above = run;
        while above != NONE {
            let held = count(above);
            if held > 0
                && !told.insert(
                    self.held
                        .shape
                        .blocks
                        .hash(self.held.nodes[above].own.base + held - 1),
                )
            {
                break;
            }
            steps.push((self.held.nodes[above].own.base, held));
            above = self.held.nodes[above].parent;
        }
        if steps.is_empty() {
            // All of it was told with a path through it: it is only used.
            steps.push((self.held.nodes[run].own.base + count(run) - 1, 1));
        }
        let mut blocks = 0;
        while let Some((base, held)) = steps.pop() {
            blocks += held as usize;
            self.tell_blocks(base, held, chain, each);
        }
        blocks
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
        let mut anchor = (before != NONE).then(|| self.held.shape.blocks.hash(before));
        for hashes in self.held.shape.blocks.hashes(base, count).chunks(PIECE) {
            chain.clear();
            chain.extend(hashes.iter().map(|&hash| SequenceHash(hash)));
            each(anchor, chain);
            anchor = chain.last().copied();
        }
    }
}
