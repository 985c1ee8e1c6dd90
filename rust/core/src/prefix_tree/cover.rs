//! The one place where coverage changes: entries, counts, holes, holder sets, lengths of nodes.

use super::nodes::Holders;
use super::{Held, NONE, Shape};
use crate::epoch_lru::lanes::slot_of;
use crate::epoch_lru::records::Record;

impl<S: Shape> Held<S> {
    /// Gives a lane an entry in a node, of which it holds nothing yet; its entry in the parent exists.
    fn add_entry(&mut self, node: u32, lane: u32) {
        let above = self.nodes[node].parent;
        let parent = if above == NONE {
            NONE
        } else {
            self.nodes.entry(above, lane).map_or(NONE, |e| e.record)
        };
        debug_assert!(
            above == NONE || parent != NONE,
            "the path above is connected first"
        );
        let record = self.records.add(Record::new(node, lane, parent));
        if parent != NONE {
            self.records[parent].kids += 1;
        }
        self.nodes.hold(node, lane, record, 0);
    }

    /// Sets how many leading units of a node the lane holds. The node keeps its length: see [`Self::trim`].
    pub(crate) fn set_count(&mut self, node: u32, lane: u32, count: u32) {
        let n = &mut self.nodes[node];
        let len = n.len;
        let Some(entry) = n.holders.get_mut(lane) else {
            return;
        };
        let (record, before) = (entry.record, entry.count);
        if before == count {
            return;
        }
        entry.count = count;
        n.partial -= u32::from(before > 0 && before < len);
        n.partial += u32::from(count > 0 && count < len);
        self.count_change(node, lane, before, count);
        if (before == len) != (count == len) {
            let full = self.nodes[node].full;
            self.nodes[node].full = self.sets.toggle(full, lane);
            if S::HOLES {
                // Only a whole node has kids, so partial to ghost changes nothing below.
                let below = u64::from(self.records[record].held_kids);
                if count == len {
                    self.lanes[lane].holes -= below;
                } else {
                    self.lanes[lane].holes += below;
                }
            }
        }
        if S::HOLES && (before == 0) != (count == 0) {
            self.first_unit_change(record, lane, count > 0);
        }
    }

    /// Counts of the lane, its worker and all after `before` units of the node became `count`.
    pub(crate) fn count_change(&mut self, node: u32, lane: u32, before: u32, count: u32) {
        if count < before {
            self.shape.uncover(&self.nodes[node], lane, count..before);
        }
        let l = &mut self.lanes[lane];
        l.count = l.count + u64::from(count) - u64::from(before);
        let slot = slot_of(lane);
        let others = if self.sets.several_media() {
            let holders = &self.nodes[node].holders;
            let lanes = self.lanes.holding(slot).filter(|other| *other != lane);
            let counts = lanes
                .filter_map(|other| holders.get(other))
                .map(|e| e.count);
            counts.max().unwrap_or(0)
        } else {
            0
        };
        let (before, count) = (u64::from(before.max(others)), u64::from(count.max(others)));
        if let Some(Some(worker)) = self.lanes.workers.get_mut(slot as usize) {
            worker.distinct = worker.distinct + count - before;
        }
        self.total = self.total + count - before;
    }

    /// The first unit of a record's node became held or not: the hole above it opens or closes.
    fn first_unit_change(&mut self, record: u32, lane: u32, held: bool) {
        let parent = self.records[record].parent;
        if parent == NONE {
            return;
        }
        let above = self.nodes[self.records[parent].node].full;
        let hole = u64::from(!self.sets.contains(above, lane));
        if held {
            self.records[parent].held_kids += 1;
            self.lanes[lane].holes += hole;
        } else {
            self.records[parent].held_kids -= 1;
            self.lanes[lane].holes -= hole;
        }
    }

    /// Makes a lane hold the first `count` units of a node, if it holds fewer, and connects it to them if it holds none; its
    /// entry in the parent exists. Returns how many are new.
    pub(crate) fn cover(&mut self, node: u32, lane: u32, count: u32) -> u32 {
        let before = if let Some(entry) = self.nodes.entry(node, lane) {
            entry.count
        } else {
            self.add_entry(node, lane);
            0
        };
        let new = count.saturating_sub(before);
        if new > 0 {
            self.set_count(node, lane, count);
        }
        new
    }

    /// Drops the end of a leaf's coverage, keeping `count > 0` units.
    pub(crate) fn shorten(&mut self, node: u32, lane: u32, count: u32) {
        let n = &self.nodes[node];
        let before = n.len;
        if n.children > 0 || !matches!(n.holders, Holders::One(_)) {
            self.set_count(node, lane, count);
            self.trim(node);
            return;
        }
        // The only holder: the node ends earlier and stays whole, no set changes.
        self.shape.truncate(&mut self.nodes, node, count);
        if let Some(entry) = self.nodes[node].holders.get_mut(lane) {
            entry.count = count;
        }
        self.count_change(node, lane, before, count);
    }

    /// Takes out the entry of a lane that covers nothing and has no kids; its record is unlisted and uncounted.
    pub(crate) fn remove_entry(&mut self, record: u32) {
        let (node, lane) = (self.records[record].node, self.records[record].lane);
        self.expiry.disarm(&mut self.records, record);
        self.records.remove(record);
        self.nodes.release(node, lane);
        self.trim(node);
    }

    /// Drops units that no lane covers any more at the end of a childless node.
    pub(crate) fn trim(&mut self, node: u32) {
        let n = &self.nodes[node];
        if n.children > 0 {
            return;
        }
        let entries = n.holders.as_slice();
        let longest = entries.iter().map(|e| e.count).max().unwrap_or(0);
        if longest == n.len {
            return;
        }
        if longest == 0 {
            if entries.is_empty() {
                self.sets.release(n.full);
                let parent = self.shape.remove(&mut self.nodes, node);
                if parent != NONE && self.nodes[parent].children == 1 {
                    self.merges.push(parent);
                }
            }
            return;
        }
        self.shape.truncate(&mut self.nodes, node, longest);
        let n = &mut self.nodes[node];
        for entry in n.holders.as_slice() {
            if entry.count == longest {
                n.full = self.sets.toggle(n.full, entry.lane);
                n.partial -= 1;
            }
        }
    }
}
