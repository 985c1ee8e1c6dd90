//! Splitting nodes where paths branch or coverage breaks, and joining them again when the reason is gone.

use super::nodes::Entry;
use super::{Held, Shape};
use crate::epoch_lru::records::Record;

impl<S: Shape> Held<S> {
    /// Splits a node after its first `at` units (`0 < at < len`). The lower part keeps the id, so its children and the
    /// lower records stay as they are; returns the id of the upper part.
    pub(crate) fn split(&mut self, node: u32, at: u32) -> u32 {
        let len = self.nodes[node].len;
        debug_assert!(at > 0 && at < len, "a split leaves two parts");
        let upper = self.shape.divide(&mut self.nodes, node, at);
        let holders = self.nodes.take_holders(node);
        let mut full = self.sets.share(self.nodes[node].full);
        let (mut above, mut below) = (Vec::new(), Vec::new());
        let (mut partial_above, mut partial_below) = (0, 0);
        for &entry in holders.as_slice() {
            let (lane, record, count) = (entry.lane, entry.record, entry.count);
            if count == 0 || count > at {
                let linked = Record::new(upper, lane, self.records[record].parent);
                let linked = self.records.add(linked);
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
                self.records[record].node = upper;
                above.push(entry);
                partial_above += u32::from(count < at);
            }
            if count >= at && count < len {
                full = self.sets.toggle(full, lane);
            }
        }
        let u = &mut self.nodes[upper];
        u.full = full;
        u.partial = partial_above;
        self.nodes[node].partial = partial_below;
        self.nodes.give_holders(upper, above);
        self.nodes.give_holders(node, below);
        upper
    }

    /// Joins nodes that lost the branch between them; called at the end of every change.
    pub(super) fn join_nodes(&mut self) {
        while let Some(upper) = self.merges.pop() {
            if !self.nodes.is_live(upper) {
                continue;
            }
            let Some(lower) = self.shape.sequel(&self.nodes, upper) else {
                continue;
            };
            let entries = self.nodes[upper].holders.as_slice();
            if entries.iter().all(|entry| self.joinable(*entry, lower)) {
                self.join(upper, lower);
            }
        }
    }

    fn join(&mut self, upper: u32, lower: u32) {
        let (len, set) = (self.nodes[upper].len, self.nodes[upper].full);
        let whole = len + self.nodes[lower].len;
        let holders = self.nodes.take_holders(upper);
        let mut entries = Vec::with_capacity(holders.as_slice().len());
        let mut partial = 0;
        for &entry in holders.as_slice() {
            let joined = if let Some(below) = self.nodes.entry(lower, entry.lane) {
                let above = self.records[entry.record].clone();
                if above.listed() {
                    let lane = &mut self.lanes[entry.lane];
                    self.records.unlink(lane, entry.record);
                }
                self.expiry.disarm(&mut self.records, entry.record);
                self.records.remove(entry.record);
                let kept = &mut self.records[below.record];
                kept.parent = above.parent;
                kept.expires = kept.expires.max(above.expires);
                let count = if below.count > 0 {
                    len + below.count
                } else {
                    0
                };
                Entry { count, ..below }
            } else {
                self.records[entry.record].node = lower;
                entry
            };
            partial += u32::from(joined.count > 0 && joined.count < whole);
            entries.push(joined);
        }
        self.shape.unite(&mut self.nodes, upper, lower);
        self.nodes[lower].partial = partial;
        self.nodes.give_holders(lower, entries);
        self.sets.release(set);
    }

    /// Whether one record can stand for a lane's records of a node and its only child.
    fn joinable(&self, entry: Entry, lower: u32) -> bool {
        let above = &self.records[entry.record];
        let Some(below) = self.nodes.entry(lower, entry.lane) else {
            return entry.count > 0;
        };
        let record = &self.records[below.record];
        // Two ghosts are one; a hole is where one of the two is none.
        (entry.count > 0) == (below.count > 0)
            && (!above.listed() || (record.listed() && above.epoch <= record.epoch))
            && (!self.expiry.used || above.expires <= record.expires)
    }
}
