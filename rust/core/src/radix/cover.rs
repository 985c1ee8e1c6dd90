//! The one place where coverage changes: entries, counts, holder sets, lengths of labels.

use super::unit::Unit;
use super::{RadixTree, Trust};
use crate::index::NONE;
use crate::index::lanes::{is_device, slot_of};
use crate::index::runs::{Entry, Holders};

impl<U: Unit> RadixTree<U> {
    pub(super) fn entry(&self, node: u32, lane: u32) -> Option<Entry> {
        self.nodes[node].holders.get(lane).copied()
    }

    /// Leading units of a node held in a lane.
    pub(super) fn covered(&self, node: u32, lane: u32) -> u32 {
        self.nodes[node].holders.get(lane).map_or(0, |e| e.count)
    }

    /// The lane of the same worker and the other trust, if anybody uses that.
    fn other(&self, lane: u32) -> Option<u32> {
        if !self.sets.several_media() {
            return None;
        }
        let trust = if is_device(lane) {
            Trust::Remote
        } else {
            Trust::Local
        };
        Some(trust.lane(slot_of(lane)))
    }

    /// Leading units of a node that the worker holds in its other lane.
    pub(super) fn covered_otherwise(&self, node: u32, lane: u32) -> u32 {
        let other = self.other(lane);
        other.map_or(0, |other| self.covered(node, other))
    }

    /// Gives a lane that covers all of the parent an entry in a node.
    fn add_entry(&mut self, node: u32, lane: u32) {
        let above = self.nodes[node].parent;
        let parent = if above == NONE {
            NONE
        } else {
            self.entry(above, lane).map_or(NONE, |e| e.record)
        };
        debug_assert!(above == NONE || parent != NONE, "held from the root on");
        let record = self.records.add(node, lane, parent);
        if parent != NONE {
            self.records[parent].kids += 1;
        }
        let entry = Entry {
            lane,
            record,
            count: 0,
        };
        self.nodes.hold(node, entry);
    }

    /// Makes a lane hold the first `count` units of a node, the parent of which it covers.
    pub(super) fn cover(&mut self, node: u32, lane: u32, count: u32) {
        if self.entry(node, lane).is_none() {
            self.add_entry(node, lane);
        }
        self.set_count(node, lane, count);
    }

    /// Sets how many leading units of a node the lane holds. The node keeps its length: see [`Self::trim`].
    pub(super) fn set_count(&mut self, node: u32, lane: u32, count: u32) {
        let n = &mut self.nodes[node];
        let len = n.len;
        let Some(entry) = n.holders.get_mut(lane) else {
            return;
        };
        let before = std::mem::replace(&mut entry.count, count);
        n.partial -= u32::from(before > 0 && before < len);
        n.partial += u32::from(count > 0 && count < len);
        if (before == len) != (count == len) {
            n.full = self.sets.toggle(n.full, lane);
        }
        self.recount(node, lane, before, count);
    }

    /// Counts of the lane, its worker and the tree after `before` units of the node became `count`.
    fn recount(&mut self, node: u32, lane: u32, before: u32, count: u32) {
        let l = &mut self.lanes[lane];
        l.count = l.count + u64::from(count) - u64::from(before);
        let others = self.covered_otherwise(node, lane);
        let (before, count) = (u64::from(before.max(others)), u64::from(count.max(others)));
        let slot = slot_of(lane) as usize;
        if let Some(Some(worker)) = self.lanes.workers.get_mut(slot) {
            worker.distinct = worker.distinct + count - before;
        }
        self.total = self.total + count - before;
    }

    /// Drops the end of a leaf's coverage, keeping `count > 0` units.
    pub(super) fn shorten(&mut self, node: u32, lane: u32, count: u32) {
        let n = &self.nodes[node];
        let before = n.len;
        if n.children > 0 || !matches!(n.holders, Holders::One(_)) {
            self.set_count(node, lane, count);
            self.trim(node);
            return;
        }
        // Nobody else is there: the label ends earlier and stays whole, no set changes.
        let stored = self.stored(node, count);
        self.nodes.truncate(node, stored, count);
        if let Some(entry) = self.nodes[node].holders.get_mut(lane) {
            entry.count = count;
        }
        self.recount(node, lane, before, count);
    }

    /// Takes out the entry of a lane that covers nothing and has no kids; its record is unlisted and uncounted.
    pub(super) fn remove_entry(&mut self, record: u32) {
        let (node, lane) = (self.records[record].run, self.records[record].lane);
        self.expiry.disarm(&mut self.records, record);
        self.records.forget(record);
        self.nodes.release(node, lane);
        self.trim(node);
    }

    /// Drops what no lane covers any more at the end of a childless node.
    pub(super) fn trim(&mut self, node: u32) {
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
                let parent = self.nodes.forget(node);
                if parent != NONE && self.nodes[parent].children == 1 {
                    self.merges.push(parent);
                }
            }
            return;
        }
        let stored = self.stored(node, longest);
        self.nodes.truncate(node, stored, longest);
        let n = &mut self.nodes[node];
        for entry in n.holders.as_slice() {
            if entry.count == longest {
                n.full = self.sets.toggle(n.full, entry.lane);
                n.partial -= 1;
            }
        }
    }

    /// Takes away a leaf's whole coverage of a node, and hands its place in the order of use to what is above it. What is
    /// then a leaf of the remote lane and no longer than the local one goes too.
    pub(super) fn reap(&mut self, record: u32) {
        let lane = self.records[record].lane;
        let mut record = record;
        loop {
            self.set_count(self.records[record].run, lane, 0);
            let parent = self.records.pass_to_parent(&mut self.lanes[lane], record);
            self.remove_entry(record);
            if parent == NONE {
                return;
            }
            self.expiry.arm(&mut self.records, parent);
            if !self.is_redundant(parent) {
                return;
            }
            record = parent;
        }
    }

    /// Whether a record is a leaf of the remote lane where the local one reaches as far.
    pub(super) fn is_redundant(&self, record: u32) -> bool {
        let r = &self.records[record];
        r.kids == 0
            && !is_device(r.lane)
            && self.covered(r.run, r.lane) <= self.covered_otherwise(r.run, r.lane)
    }
}
