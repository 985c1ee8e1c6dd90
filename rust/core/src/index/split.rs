//! Splitting runs where paths branch or coverage breaks, and joining them again when the reason is gone.

use super::runs::Entry;
use super::{BlockIndex, NONE};

impl BlockIndex {
    /// Splits a run after its first `at` blocks (`0 < at < len`). The lower part keeps the id, so its children and the
    /// lower records stay as they are; returns the id of the upper part.
    pub(super) fn split(&mut self, run: u32, at: u32) -> u32 {
        let (base, len, start, parent) = {
            let r = &self.runs[run];
            (r.base, r.len, r.start, r.parent)
        };
        debug_assert!(at > 0 && at < len, "a split leaves two parts");
        let upper = self.runs.add(base, at, start, parent);
        if parent != NONE {
            // The upper part replaces the run among the parent's children.
            self.runs[parent].children -= 1;
        }
        self.blocks.set_run(base, at, upper);
        self.runs[upper].claimed = self.runs[run].claimed;
        let holders = self.runs.take_holders(run);
        let mut full = self.sets.share(self.runs[run].full);
        let (mut above, mut below) = (Vec::new(), Vec::new());
        let (mut partial_above, mut partial_below) = (0, 0);
        for &entry in holders.as_slice() {
            let Entry {
                lane,
                record,
                count,
            } = entry;
            if count == 0 || count > at {
                let linked = self.records.add(upper, lane, self.records[record].parent);
                self.records[linked].kids = 1;
                self.records[linked].held_kids = u32::from(count > 0);
                self.records[record].parent = linked;
                let rest = count.saturating_sub(at);
                above.push(Entry {
                    lane,
                    record: linked,
                    count: count.min(at),
                });
                below.push(Entry {
                    lane,
                    record,
                    count: rest,
                });
                partial_below += u32::from(rest > 0 && rest < len - at);
            } else {
                self.records[record].run = upper;
                above.push(entry);
                partial_above += u32::from(count < at);
            }
            if count >= at && count < len {
                full = self.sets.toggle(full, lane);
            }
        }
        let u = &mut self.runs[upper];
        u.full = full;
        u.partial = partial_above;
        u.children = 1;
        let lower = &mut self.runs[run];
        lower.base = base + at;
        lower.len = len - at;
        lower.start = start + at;
        lower.parent = upper;
        lower.partial = partial_below;
        self.runs.give_holders(upper, above);
        self.runs.give_holders(run, below);
        upper
    }

    /// Joins runs that lost the branch between them; called at the end of every change.
    pub(super) fn join_runs(&mut self) {
        while let Some(run) = self.merges.pop() {
            if self.runs.is_live(run) && self.runs[run].children == 1 {
                self.join(run);
            }
        }
    }

    /// Joins a run with its only child, where the child's blocks follow it and one record per lane can stand for both.
    fn join(&mut self, upper: u32) {
        let next = self.runs[upper].base + self.runs[upper].len;
        if (next as usize).is_multiple_of(super::blocks::CHUNK) || !self.blocks.is_live(next) {
            return;
        }
        let lower = self.blocks.run(next);
        let child = &self.runs[lower];
        if child.parent != upper || child.base != next {
            return;
        }
        let joinable = self.runs[upper]
            .holders
            .as_slice()
            .iter()
            .all(|entry| self.joinable(*entry, lower));
        if !joinable {
            return;
        }
        let (base, len, start, parent, set) = {
            let u = &self.runs[upper];
            (u.base, u.len, u.start, u.parent, u.full)
        };
        self.runs[lower].claimed |= self.runs[upper].claimed;
        let holders = self.runs.take_holders(upper);
        let whole = len + self.runs[lower].len;
        let mut entries = Vec::with_capacity(holders.as_slice().len());
        let mut partial = 0;
        for &entry in holders.as_slice() {
            let count = if let Some(below) = self.entry(lower, entry.lane) {
                let above = self.records[entry.record].clone();
                if above.listed() {
                    self.records
                        .unlink(&mut self.lanes[entry.lane], entry.record);
                }
                self.disarm(entry.record);
                self.records.forget(entry.record);
                let kept = &mut self.records[below.record];
                kept.parent = above.parent;
                kept.expires = kept.expires.max(above.expires);
                let count = if below.count > 0 {
                    len + below.count
                } else {
                    0
                };
                entries.push(Entry { count, ..below });
                count
            } else {
                self.records[entry.record].run = lower;
                entries.push(entry);
                entry.count
            };
            partial += u32::from(count > 0 && count < whole);
        }
        self.blocks.set_run(base, len, lower);
        let l = &mut self.runs[lower];
        l.base = base;
        l.len = whole;
        l.start = start;
        l.parent = parent;
        l.partial = partial;
        self.runs.give_holders(lower, entries);
        // The lower part replaces the upper one among the parent's children: their number stays.
        self.sets.release(set);
        self.runs.forget(upper);
    }

    /// Whether one record can stand for a lane's records of a run and its only child.
    fn joinable(&self, entry: Entry, lower: u32) -> bool {
        let above = &self.records[entry.record];
        let Some(below) = self.entry(lower, entry.lane) else {
            return entry.count > 0;
        };
        let record = &self.records[below.record];
        // Two ghosts are one; a hole is where one of the two is none.
        (entry.count > 0) == (below.count > 0)
            && (!above.listed() || (record.listed() && above.epoch <= record.epoch))
            && (!self.expiry.used() || above.expires <= record.expires)
    }
}
