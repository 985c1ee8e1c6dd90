//! Recording that a worker holds a key.

use std::sync::Arc;

use super::unit::{Key, Unit};
use super::walk::Spot;
use super::{EDGE, RadixTree, Time, Trust, Use};
use crate::collections::shared_slice::SharedSlice;
use crate::error::Result;
use crate::ids::{Millis, WorkerId};
use crate::prefix_tree::{Held, NONE};

impl<U: Unit> RadixTree<U> {
    /// Records that `worker` holds the whole of `key`, used now, as local state; see [`Self::insert`].
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn record<K: Key<U> + ?Sized>(
        &mut self,
        worker: WorkerId,
        key: &K,
        expires: Option<Millis>,
    ) -> Result<u32> {
        let how = Use {
            expires,
            ..Use::default()
        };
        self.insert(worker, key, how)
    }

    /// Records that `worker` holds `key` in whole pages, as many from its beginning as its capacity and the budget allow,
    /// makes that the latest use of the whole path, and evicts units that no longer fit. Returns the units the worker
    /// did not hold before.
    ///
    /// Remote state ([`Trust::Remote`]) is not kept where local state covers all of it.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    #[inline(never)] // its callers would hold 8 KB of code each, and a call is little beside its work
    pub fn insert<K: Key<U> + ?Sized>(
        &mut self,
        worker: WorkerId,
        key: &K,
        how: Use,
    ) -> Result<u32> {
        let present = self.worker(worker)?;
        let (before, capacity) = (present.distinct, u64::from(present.capacity));
        let Held { shape, nodes, .. } = &self.held;
        let most = capacity.min(shape.max_units);
        let most = (most - most % shape.children.page as u64) as u32;
        let (spot, end) = shape.children.reach(nodes, key, most);
        let rest = end - spot.at;
        if spot.node == NONE && rest == 0 {
            return Ok(0);
        }
        let local = Trust::Local.lane(worker.slot);
        if how.trust == Trust::Remote && rest == 0 && nodes.covered(spot.node, local) >= spot.upto {
            return Ok(0);
        }
        let room = most - spot.depth(nodes);
        let mut insert = Insert {
            tree: self,
            lane: how.trust.lane(worker.slot),
            expires: 0,
        };
        insert.tree.held.open(insert.lane);
        insert.expires = insert.tree.held.expiry.deadline(how.expires);
        let known = insert.end_at(spot, rest > 0);
        if known != NONE {
            insert.hold_path(known, spot.upto);
        }
        let last = insert.extend(known, key, spot.at..end, room);
        if last != NONE {
            insert.touch(last, how.time);
            if how.trust == Trust::Local {
                insert.drop_redundant(worker.slot, last);
            }
        }
        let held = self.worker(worker)?.distinct - before;
        self.evicting(u32::MAX).pay(worker.slot);
        self.held.finish();
        Ok(held as u32)
    }
}

/// An insert of a key into one lane, with one deadline.
pub(super) struct Insert<'a, U: Unit> {
    pub(super) tree: &'a mut RadixTree<U>,
    pub(super) lane: u32,
    /// End of the time to live, as records have it.
    expires: u64,
}

impl<U: Unit> Insert<'_, U> {
    /// The node that ends where the known part of the key does. It is split there if something must hang or end at exactly
    /// this place: a new node (`grows`), or a use by a lane that covers more of it and remembers when it used which part.
    fn end_at(&mut self, spot: Spot, grows: bool) -> u32 {
        let (held, Spot { node, upto, .. }) = (&mut self.tree.held, spot);
        if node == NONE || upto == held.nodes[node].len {
            return node;
        }
        if grows || held.nodes.covered(node, self.lane) > upto {
            return held.split(node, upto);
        }
        node
    }

    /// Makes the lane hold the path down to the first `upto` units of `node`.
    fn hold_path(&mut self, node: u32, upto: u32) {
        let (held, lane) = (&mut self.tree.held, self.lane);
        let mut steps = std::mem::take(&mut held.steps);
        let (mut node, mut want) = (node, upto);
        loop {
            let entry = held.nodes.entry(node, lane);
            let count = entry.map_or(0, |e| e.count);
            if count < want {
                let longer = entry.is_some_and(|e| held.records[e.record].expires > self.expires);
                if longer {
                    // The held part lives longer than the added one: two records.
                    held.split(node, count);
                    want -= count;
                }
                steps.push((node, want));
            }
            // Whatever is above a held unit is held.
            if count > 0 || held.nodes[node].parent == NONE {
                break;
            }
            node = held.nodes[node].parent;
            want = held.nodes[node].len;
        }
        while let Some((node, want)) = steps.pop() {
            held.cover(node, lane, want);
        }
        held.steps = steps;
    }

    /// Adds a stretch of the key behind `node` (`NONE`: the root), at most `room` counted units of it, held by the lane;
    /// returns the last node of the path.
    fn extend<K: Key<U> + ?Sized>(
        &mut self,
        node: u32,
        key: &K,
        stretch: std::ops::Range<usize>,
        room: u32,
    ) -> u32 {
        let held = &mut self.tree.held;
        let (mut node, mut at, mut room) = (node, stretch.start, room);
        while at < stretch.end && room > 0 {
            let page = held.shape.children.page;
            let most = (stretch.end - at).min(EDGE);
            let mut label = key.copy(at..at + (most - most % page));
            let whole = U::prefix(&label[..U::whole(&label, page)], room as usize);
            if whole == 0 {
                break;
            }
            if whole < label.len() {
                label = Arc::from(&label[..whole]);
            }
            let space = if node == NONE { key.namespace() } else { 0 };
            // A key in memory that other threads write to may have changed since the lookup: two children must not
            // begin alike.
            let children = &mut held.shape.children;
            if at == stretch.start && children.begins(&held.nodes, node, space, &label) {
                break;
            }
            at += label.len();
            node = children.add(&mut held.nodes, node, space, SharedSlice::new(label));
            let len = held.nodes[node].len;
            room -= len;
            held.cover(node, self.lane, len);
        }
        node
    }

    /// Makes the lane's record of a node its latest use.
    fn touch(&mut self, node: u32, time: Option<Time>) {
        let held = &mut self.tree.held;
        let Some(entry) = held.nodes.entry(node, self.lane) else {
            return;
        };
        let lane = &mut held.lanes[self.lane];
        let time = match time {
            Some(time) => time.0.max(lane.clock),
            None => (held.shape.clock + 1).max(held.tick),
        };
        held.shape.clock = held.shape.clock.max(time);
        held.records.touch(lane, entry.record, time, self.expires);
        held.expiry.arm(&mut held.records, entry.record);
        self.tree.queue(self.lane);
    }

    /// Drops remote state about the path to `node` that local state covers now.
    fn drop_redundant(&mut self, slot: u32, node: u32) {
        let held = &mut self.tree.held;
        if held.lanes.count(slot, Trust::Remote.medium()) == 0 {
            return;
        }
        let lane = Trust::Remote.lane(slot);
        let mut node = node;
        while node != NONE {
            if let Some(entry) = held.nodes.entry(node, lane) {
                if held.is_worthless(entry.record) {
                    held.reap(entry.record);
                }
                return;
            }
            node = held.nodes[node].parent;
        }
    }
}
