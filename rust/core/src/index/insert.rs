//! One change that adds blocks to a lane.

use super::shape::Ids;
use super::{BlockIndex, NONE, Overlaps};
use crate::epoch_lru::lanes::{lane_of, medium_of, slot_of};
use crate::ids::{Medium, SequenceHash};
use crate::prefix_tree::nodes::{Entry, Holders, Node};

/// The end of the known part of a path: a run, and how many of its leading blocks belong to the path.
#[derive(Debug, Clone, Copy)]
struct End {
    run: u32,
    upto: u32,
}

/// An insert of blocks into one lane, with one deadline.
#[derive(Debug)]
pub(super) struct Insert<'a> {
    pub index: &'a mut BlockIndex,
    pub lane: u32,
    /// Most blocks of the lane.
    pub capacity: u32,
    /// End of the time to live, as records have it.
    pub expires: u64,
    /// Whether hashes are stored as given, not computed from tokens.
    pub claimed: bool,
}

impl Insert<'_> {
    /// Holds the path `hashes` from the root: its blocks from depth `from` on, and those that are new.
    pub fn path(mut self, hashes: &[SequenceHash], from: u32, hint: Option<&Overlaps>) -> u32 {
        let chains = self.index.chains();
        let (known, mut last) = match hint {
            Some(hint) if hint.fits(chains.0.shape.version, hashes.len()) => hint.known(),
            _ => chains.known(hashes, false),
        };
        let hashes = &hashes[..hashes.len().min(self.capacity as usize)];
        let known = (known as usize).min(hashes.len());
        let from = from.min(known as u32);
        if from as usize == hashes.len() {
            return 0;
        }
        if known > 0 {
            last = chains.ancestor(last, known as u32 - 1);
        }
        self.claimed = hint.is_some_and(Overlaps::unchained);
        let held = self.add(last, &hashes[known..], from);
        self.finish();
        held
    }

    /// Holds a chain behind `parent` (`None`: from the root).
    pub fn chain(mut self, parent: Option<SequenceHash>, hashes: &[SequenceHash]) -> u32 {
        let chains = self.index.chains();
        let first = &hashes[..hashes.len().min(1)];
        chains.0.shape.table.prefetch_all(first);
        let mut last = NONE;
        let mut from = 0;
        if let Some(parent) = parent {
            let Some(block) = chains.find(parent) else {
                self.index.stats.orphans += 1;
                return 0;
            };
            last = block;
            from = chains.depth(block) + 1;
        }
        let mut hashes = &hashes[..hashes.len().min(self.capacity as usize)];
        let mut known = 0;
        while known < hashes.len() {
            let beside = chains.beside(last, &hashes[known..]);
            if beside > 0 {
                known += beside as usize;
                last += beside;
                continue;
            }
            match chains.find(hashes[known]) {
                Some(block) if chains.before(block) == last => {
                    last = block;
                    known += 1;
                }
                Some(_) => {
                    self.index.stats.conflicts += 1;
                    hashes = &hashes[..known];
                    break;
                }
                None => break,
            }
        }
        if hashes.is_empty() {
            return 0;
        }
        let held = self.add(last, &hashes[known..], from);
        if !self.claimed && medium_of(self.lane) != Medium::Speculative as usize {
            self.confirm(last, known as u32);
        }
        // Ancestors may make the path longer than the capacity: then its own end is evicted too.
        self.finish();
        held
    }

    /// Ends the speculative entries of those of the `blocks` up to `last` that the lane holds.
    fn confirm(&mut self, last: u32, blocks: u32) {
        let (held, slot) = (&mut self.index.held, slot_of(self.lane));
        if held.lanes.count(slot, Medium::Speculative) == 0 {
            return;
        }
        let speculative = lane_of(slot, Medium::Speculative);
        let (mut last, mut left) = (last, blocks);
        while left > 0 {
            let run = held.shape.blocks.run(last);
            let base = held.nodes[run].own.base;
            let end = last - base + 1;
            let here = end.min(left);
            let first = last + 1 - here;
            let covered = |lane| held.nodes.covered(run, lane);
            debug_assert!(covered(self.lane) >= end, "the lane holds what arrived");
            let arrived = covered(speculative).min(end);
            let above = held.chains().before(first);
            held.withdraw(speculative, first, arrived.saturating_sub(first - base));
            left -= here;
            last = above;
        }
    }

    /// Holds the path that ends at the block `last` from depth `from` on, adds `new` behind it and makes this the lane's
    /// most recent use.
    pub fn add(&mut self, last: u32, new: &[SequenceHash], from: u32) -> u32 {
        self.index.held.open(self.lane);
        self.index.queue(self.lane);
        let (mut held, mut run) = (0, NONE);
        if last != NONE {
            let end = self.end_at(last, !new.is_empty());
            (held, run) = self.hold_path(end, from);
        }
        let end = self.entry(run);
        self.index.held.shape.claims |= self.claimed;
        if from == 0 && !self.index.held.shape.claims {
            // The path is made the most recent use and fits, so evicted blocks lie outside it, and their ids are warm
            // for reuse.
            if let Some(end) = end {
                self.touch(end.record, 0);
            }
            self.evict_for(new.len());
        }
        let added = self.attach(run, new);
        if let Some(end) = end
            && added == 0
        {
            self.touch(end.record, self.expires);
            let held = &mut self.index.held;
            if end.count == 0 && held.records[end.record].kids == 0 {
                // Only ancestors were known, and the blocks behind them cannot be stored.
                held.reap(end.record);
            }
        }
        held + added
    }

    /// Evicts blocks beyond the capacity once the lane holds `more` blocks.
    fn evict_for(&mut self, more: usize) {
        let medium = Medium::ALL[medium_of(self.lane)];
        let count = self.index.held.lanes.count(slot_of(self.lane), medium);
        let excess = (count + more as u64).saturating_sub(u64::from(self.capacity));
        self.index.evict(self.lane, excess, &mut { u32::MAX });
    }

    fn finish(&mut self) {
        self.evict_for(0);
        self.index.held.finish();
    }

    fn entry(&self, run: u32) -> Option<Entry> {
        let nodes = &self.index.held.nodes;
        (run != NONE).then(|| nodes.entry(run, self.lane))?
    }

    /// The path ends at `block`. Its run is split there where something must hang or end at exactly this block: new
    /// blocks (`grows`), or an access of a lane that covers more of the run and remembers when it used which part.
    fn end_at(&mut self, block: u32, grows: bool) -> End {
        let held = &mut self.index.held;
        let mut run = held.shape.blocks.run(block);
        let upto = block - held.nodes[run].own.base + 1;
        if upto < held.nodes[run].len {
            let entry = held.nodes.entry(run, self.lane);
            let deeper = entry.is_some_and(|e| e.count == 0 || e.count > upto);
            if grows || deeper {
                run = held.split(run, upto);
            }
        }
        End { run, upto }
    }

    /// Makes the lane hold the path's known blocks from depth `from` to its end, and connects them to the root with
    /// ghosts where it does not hold the blocks above. Returns the blocks newly held and the run of the end.
    fn hold_path(&mut self, end: End, from: u32) -> (u32, u32) {
        let held = &mut self.index.held;
        let mut steps = std::mem::take(&mut held.steps);
        let (mut run, mut want) = (end.run, end.upto);
        loop {
            let start = held.nodes[run].start;
            let entry = held.nodes.entry(run, self.lane);
            let count = entry.map_or(0, |e| e.count);
            let above = from.saturating_sub(start).min(want);
            if above > 0 && above < want && count < above {
                // Blocks of this run that are not stored lie before the ones that are.
                let upper = held.split(run, above);
                steps.push((run, want - above));
                (run, want) = (upper, above);
                continue;
            }
            if above == want {
                // Only ancestors here: an entry is enough, but a partial one cannot have kids.
                if let Some(entry) = entry {
                    if entry.count > 0 && entry.count < held.nodes[run].len {
                        held.split(run, entry.count);
                        steps.push((run, 0));
                    }
                    break;
                }
                steps.push((run, 0));
            } else {
                if count < want {
                    let longer = entry.is_some_and(|e| {
                        e.count > 0 && held.records[e.record].expires > self.expires
                    });
                    if longer {
                        // The held part lives longer than the added one: two records.
                        let upper = held.split(run, count);
                        steps.push((run, want - count));
                        (run, want) = (upper, count);
                        continue;
                    }
                    steps.push((run, want));
                }
                // Without holes, whatever is above a held block is held.
                if count > 0 && held.lanes[self.lane].holes == 0 {
                    break;
                }
            }
            let parent = held.nodes[run].parent;
            if parent == NONE {
                break;
            }
            run = parent;
            want = held.nodes[run].len;
        }
        let mut added = 0;
        while let Some((run, want)) = steps.pop() {
            added += held.cover(run, self.lane, want);
        }
        held.steps = steps;
        (added, end.run)
    }

    /// Adds new blocks behind the end of `run` (`NONE`: at the root), held by the lane, and touches the last of them.
    fn attach(&mut self, run: u32, new: &[SequenceHash]) -> u32 {
        let claimed = self.claimed;
        let parent = run;
        let mut run = run;
        let mut left = new;
        let mut added = 0;
        if run != NONE && !left.is_empty() {
            added = self.lengthen(run, left);
            self.index.held.nodes[run].own.claimed |= claimed && added > 0;
            left = &left[added as usize..];
        }
        while !left.is_empty() {
            if self.index.chains().find(left[0]).is_some() {
                self.index.stats.conflicts += 1;
                break;
            }
            let held = &mut self.index.held;
            let (base, got) = held.shape.blocks.alloc(left.len() as u32);
            let mut start = 0;
            if run != NONE {
                start = held.nodes[run].end();
                held.nodes[run].children += 1;
            }
            let next = held
                .nodes
                .add(Node::new(got, start, run, Ids { base, claimed }));
            let filled = held.shape.fill(base, &left[..got as usize], next);
            held.nodes[next].len = filled;
            held.cover(next, self.lane, filled);
            run = next;
            added += filled;
            left = &left[filled as usize..];
        }
        if added > 0
            && let Some(entry) = self.entry(run)
        {
            self.touch(entry.record, self.expires);
            let above = self.entry(parent).filter(|_| parent != run);
            let held = &mut self.index.held;
            if let Some(above) = above
                && held.records[above.record].listed()
            {
                // The new tail is a newer use of the same path.
                let lane = &mut held.lanes[self.lane];
                held.records.unlink(lane, above.record);
            }
        }
        added
    }

    /// Lengthens the run itself where it has no children, the lane is its only holder and the next ids are free.
    fn lengthen(&mut self, run: u32, new: &[SequenceHash]) -> u32 {
        let held = &self.index.held;
        let r = &held.nodes[run];
        let (base, len) = (r.own.base, r.len);
        let Holders::One(entry) = r.holders else {
            return 0;
        };
        let lasts = held.records[entry.record].expires > self.expires;
        if r.children > 0 || entry.count != len || lasts {
            return 0;
        }
        let held = &mut self.index.held;
        let got = held.shape.blocks.extend(base + len, new.len() as u32);
        if got == 0 {
            // The next id may lie in a chunk that does not exist.
            return 0;
        }
        let filled = held.shape.fill(base + len, &new[..got as usize], run);
        let r = &mut held.nodes[run];
        r.len = len + filled;
        if let Some(entry) = r.holders.get_mut(self.lane) {
            entry.count = len + filled;
        }
        held.count_change(run, self.lane, len, len + filled);
        filled
    }

    /// Touches a record and queues it for expiry if its time to live is finite.
    fn touch(&mut self, record: u32, expires: u64) {
        let held = &mut self.index.held;
        let lane = &mut held.lanes[self.lane];
        let time = (lane.clock + 1).max(held.tick);
        held.records.touch(lane, record, time, expires);
        held.expiry.arm(&mut held.records, record);
    }
}
