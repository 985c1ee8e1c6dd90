//! The one place where coverage changes: entries, counts, holes, holder sets, run lengths.

use super::hints::prefetch;
use super::lanes::slot_of;
use super::runs::Entry;
use super::{BlockIndex, NONE};
use crate::ids::SequenceHash;

impl BlockIndex {
    pub(super) fn entry(&self, run: u32, lane: u32) -> Option<Entry> {
        self.runs[run].holders.get(lane).copied()
    }

    /// Gives a lane a (ghost) entry in a run; its entry in the parent run exists.
    pub(super) fn add_entry(&mut self, run: u32, lane: u32) -> u32 {
        let above = self.runs[run].parent;
        let parent = if above == NONE {
            NONE
        } else {
            self.entry(above, lane).map_or(NONE, |e| e.record)
        };
        debug_assert!(
            above == NONE || parent != NONE,
            "the path above is connected first"
        );
        let record = self.records.add(run, lane, parent);
        if parent != NONE {
            self.records[parent].kids += 1;
        }
        let entry = Entry {
            lane,
            record,
            count: 0,
        };
        self.runs.hold(run, entry);
        record
    }

    /// Sets how many leading blocks of a run the lane holds. The run keeps its length: see [`Self::trim`].
    pub(super) fn set_count(&mut self, run: u32, lane: u32, count: u32) {
        let r = &mut self.runs[run];
        let len = r.len;
        let Some(entry) = r.holders.get_mut(lane) else {
            return;
        };
        let Entry {
            record,
            count: before,
            ..
        } = *entry;
        if before == count {
            return;
        }
        entry.count = count;
        r.partial -= u32::from(before > 0 && before < len);
        r.partial += u32::from(count > 0 && count < len);
        self.count_change(run, lane, before, count);
        if (before == len) != (count == len) {
            let full = self.runs[run].full;
            self.runs[run].full = self.sets.toggle(full, lane);
            // Only a whole run has kids, so partial to ghost changes nothing below.
            let below = u64::from(self.records[record].held_kids);
            if count == len {
                self.lanes[lane].holes -= below;
            } else {
                self.lanes[lane].holes += below;
            }
        }
        if (before == 0) != (count == 0) {
            self.first_block_change(record, lane, count > 0);
        }
    }

    /// Counts of the lane and its worker after `before` blocks of the run became `count`.
    fn count_change(&mut self, run: u32, lane: u32, before: u32, count: u32) {
        let l = &mut self.lanes[lane];
        l.count = l.count + u64::from(count) - u64::from(before);
        let slot = slot_of(lane);
        let others = if self.sets.several_media() {
            let holders = &self.runs[run].holders;
            let lanes = self.lanes.holding(slot).filter(|other| *other != lane);
            let counts = lanes
                .filter_map(|other| holders.get(other))
                .map(|e| e.count);
            counts.max().unwrap_or(0)
        } else {
            0
        };
        if let Some(Some(worker)) = self.lanes.workers.get_mut(slot as usize) {
            worker.distinct =
                worker.distinct + u64::from(count.max(others)) - u64::from(before.max(others));
        }
    }

    /// The first block of a record's run became held or not: the hole above it opens or closes.
    fn first_block_change(&mut self, record: u32, lane: u32, held: bool) {
        let parent = self.records[record].parent;
        if parent == NONE {
            return;
        }
        let above = self.runs[self.records[parent].run].full;
        let hole = u64::from(!self.sets.contains(above, lane));
        if held {
            self.records[parent].held_kids += 1;
            self.lanes[lane].holes += hole;
        } else {
            self.records[parent].held_kids -= 1;
            self.lanes[lane].holes -= hole;
        }
    }

    /// Drops the tail of a leaf's coverage, keeping `count > 0` blocks.
    pub(super) fn shorten(&mut self, run: u32, lane: u32, count: u32) {
        let r = &self.runs[run];
        let (base, len) = (r.base, r.len);
        let sole = r.children == 0 && matches!(&r.holders, super::runs::Holders::One(_));
        if !sole {
            self.set_count(run, lane, count);
            self.trim(run);
            return;
        }
        // Nobody else is there: the run ends earlier and stays whole, no set changes.
        self.free_blocks(base + count, len - count);
        let r = &mut self.runs[run];
        r.len = count;
        if let Some(entry) = r.holders.get_mut(lane) {
            entry.count = count;
        }
        self.count_change(run, lane, len, count);
    }

    /// Takes out the entry of a lane that covers nothing and has no kids; its record is unlisted and uncounted.
    pub(super) fn remove_entry(&mut self, record: u32) {
        let (run, lane) = (self.records[record].run, self.records[record].lane);
        self.disarm(record);
        self.records.forget(record);
        self.runs.release(run, lane);
        self.trim(run);
    }

    /// Frees the blocks at the end of a childless run that no lane covers any more.
    pub(super) fn trim(&mut self, run: u32) {
        let r = &self.runs[run];
        if r.children > 0 {
            return;
        }
        let (base, len) = (r.base, r.len);
        let entries = r.holders.as_slice();
        let longest = entries.iter().map(|e| e.count).max().unwrap_or(0);
        if longest == 0 {
            if entries.is_empty() {
                self.free_blocks(base, len);
                self.forget_run(run);
            }
            return;
        }
        if longest == len {
            return;
        }
        self.free_blocks(base + longest, len - longest);
        let mut full = self.runs[run].full;
        let mut whole = 0;
        for at in 0..self.runs[run].holders.as_slice().len() {
            let entry = self.runs[run].holders.as_slice()[at];
            if entry.count == longest {
                full = self.sets.toggle(full, entry.lane);
                whole += 1;
            }
        }
        let r = &mut self.runs[run];
        r.full = full;
        r.partial -= whole;
        r.len = longest;
    }

    fn forget_run(&mut self, run: u32) {
        let (parent, full) = (self.runs[run].parent, self.runs[run].full);
        self.sets.release(full);
        self.runs.forget(run);
        if parent != NONE {
            self.runs[parent].children -= 1;
            if self.runs[parent].children == 1 {
                self.merges.push(parent);
            }
        }
    }

    fn free_blocks(&mut self, base: u32, len: u32) {
        let removed = self.table.remove_all(base, len, &self.blocks);
        debug_assert_eq!(removed, len, "live blocks are in the table");
        self.blocks.free(base, len);
    }

    /// Fills the columns of the fresh ids from `base` on and adds them to the table, up to a hash that is already stored:
    /// only claims can be. Returns how many were added; the other ids are given back.
    pub(super) fn fill(&mut self, base: u32, hashes: &[SequenceHash], run: u32) -> u32 {
        self.blocks.set_hashes(base, hashes);
        self.blocks.set_run(base, hashes.len() as u32, run);
        if !self.claims {
            self.table.insert_all(hashes, base, &self.blocks);
            return hashes.len() as u32;
        }
        let added = self.table.insert_new(hashes, base, &self.blocks);
        if (added as usize) < hashes.len() {
            self.blocks.free(base + added, hashes.len() as u32 - added);
        }
        added
    }

    /// Touches a record and, if its time to live is finite, sees that it will be looked at when that ends.
    pub(super) fn touch_record(&mut self, record: u32, expires: u64) {
        let lane = &mut self.lanes[self.records[record].lane];
        self.records.touch(lane, record, expires);
        self.arm(record);
    }

    /// Hints that a run's node will be read.
    #[inline]
    pub(super) fn prefetch_run(&self, run: u32) {
        if run != NONE {
            prefetch(&self.runs[run]);
        }
    }
}
