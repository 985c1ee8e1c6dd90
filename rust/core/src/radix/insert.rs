//! Recording that a worker holds a key.

use super::labels::stored;
use super::unit::{Key, Unit};
use super::walk::Spot;
use super::{EDGE, RadixTree, STEPS, Trust, Use};
use crate::error::Result;
use crate::forest::NONE;
use crate::ids::{Millis, WorkerId};

impl<U: Unit> RadixTree<U> {
    /// Records that `worker` holds the whole of `key`, used now and by what this process saw; see [`Self::insert`].
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
    /// makes that the latest use of the whole path, and evicts what no longer fits, at most [`STEPS`] leaves: what is left
    /// over is owed, see [`Self::settle`]. Returns the units the worker did not hold before: fewer than there are if
    /// [`Self::set_limit`] leaves no room.
    ///
    /// What others said ([`Trust::Remote`]) is not kept where the worker holds all of it by what this process saw.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn insert<K: Key<U> + ?Sized>(
        &mut self,
        worker: WorkerId,
        key: &K,
        how: Use,
    ) -> Result<u32> {
        let present = self.worker(worker)?;
        let (before, capacity) = (present.distinct, u64::from(present.capacity));
        self.start_limited();
        let whole_pages = |units: u64| units - units % self.held.shape.children.page as u64;
        let most = whole_pages(capacity.min(self.held.shape.max_units)) as u32;
        let (spot, end) = self.reach(key, most);
        let rest = end - spot.at;
        let lane = how.trust.lane(worker.slot);
        if spot.node == NONE && rest == 0 {
            return Ok(0);
        }
        if how.trust == Trust::Remote
            && rest == 0
            && self
                .held
                .nodes
                .covered(spot.node, Trust::Local.lane(worker.slot))
                >= spot.upto
        {
            return Ok(0);
        }
        let Some(admitted) = self.admit(lane, spot, rest) else {
            return Ok(0);
        };
        let room = most - self.depth(spot);
        self.held.open(lane);
        let expires = self.held.expiry.deadline(how.expires);
        let known = self.end_at(spot, lane, admitted > 0);
        if known != NONE {
            self.hold_path(known, spot.upto, lane, expires);
        }
        let last = self.extend(known, lane, key, spot.at..spot.at + admitted, room);
        if last != NONE {
            self.touch(last, lane, how, expires);
            if how.trust == Trust::Local {
                self.drop_redundant(worker.slot, last);
            }
        }
        let held = self.worker(worker)?.distinct - before;
        let mut steps = STEPS;
        self.pay(worker.slot, &mut steps);
        self.pay_total(&mut steps);
        self.held.finish();
        Ok(held as u32)
    }

    /// Follows a key as far as it may be held, to a depth of `most`; also returns where the key ends, in stored units.
    fn reach<K: Key<U> + ?Sized>(&self, key: &K, most: u32) -> (Spot, usize) {
        let mut end = self.whole(key);
        if U::PLAIN {
            end = end.min(most as usize);
        }
        let mut spot = self.walk(key, end);
        if self.depth(spot) < most {
            return (spot, end);
        }
        // Deep enough. The rest of the key does not matter, so neither does how long it is.
        while spot.node != NONE && self.held.nodes[spot.node].start >= most {
            spot.node = self.held.nodes[spot.node].parent;
        }
        if spot.node != NONE {
            spot.upto = most - self.held.nodes[spot.node].start;
            spot.inside = stored(&self.held.nodes[spot.node], spot.upto);
        }
        (spot, spot.at)
    }

    /// The node that ends where the known part of the key does. It is split there if something must hang or end at exactly
    /// this place: a new node (`grows`), or a use by a lane that covers more of it and remembers when it used which part.
    fn end_at(&mut self, spot: Spot, lane: u32, grows: bool) -> u32 {
        let Spot { node, upto, .. } = spot;
        if node == NONE || upto == self.held.nodes[node].len {
            return node;
        }
        if grows || self.held.nodes.covered(node, lane) > upto {
            return self.held.split(node, upto);
        }
        node
    }

    /// Makes the lane hold the path down to the first `upto` units of `node`.
    fn hold_path(&mut self, node: u32, upto: u32, lane: u32, expires: u64) {
        let mut steps = std::mem::take(&mut self.held.steps);
        let (mut node, mut want) = (node, upto);
        loop {
            let entry = self.held.nodes.entry(node, lane);
            let count = entry.map_or(0, |e| e.count);
            if count < want {
                let longer = entry.is_some_and(|e| self.held.records[e.record].expires > expires);
                if longer {
                    // What is held lives longer than what is added: two records.
                    self.held.split(node, count);
                    want -= count;
                }
                steps.push((node, want));
            }
            // Whatever is above a held unit is held.
            if count > 0 || self.held.nodes[node].parent == NONE {
                break;
            }
            node = self.held.nodes[node].parent;
            want = self.held.nodes[node].len;
        }
        while let Some((node, want)) = steps.pop() {
            self.held.cover(node, lane, want);
        }
        self.held.steps = steps;
    }

    /// Adds a stretch of the key behind `node` (`NONE`: the root), at most `room` counted units of it, held by the lane;
    /// returns the last node of the path.
    fn extend<K: Key<U> + ?Sized>(
        &mut self,
        node: u32,
        lane: u32,
        key: &K,
        stretch: std::ops::Range<usize>,
        room: u32,
    ) -> u32 {
        let (mut node, mut at, mut room) = (node, stretch.start, room);
        while at < stretch.end && room > 0 {
            let most = (stretch.end - at).min(EDGE);
            let mut label = Vec::with_capacity(most);
            key.copy_to(at..at + most, &mut label);
            label.truncate(U::whole(&label, self.held.shape.children.page));
            label.truncate(U::prefix(&label, room as usize));
            if label.is_empty() {
                break;
            }
            if label.capacity() > label.len() {
                label.shrink_to_fit();
            }
            let space = if node == NONE { key.namespace() } else { 0 };
            // A key in memory that others write to may not be what was looked up: two children that begin alike would be
            // one too many.
            if at == stretch.start
                && self
                    .held
                    .shape
                    .children
                    .begins(&self.held.nodes, node, space, &label)
            {
                break;
            }
            at += label.len();
            node = self
                .held
                .shape
                .children
                .add(&mut self.held.nodes, node, space, label);
            let len = self.held.nodes[node].len;
            room -= len;
            self.held.cover(node, lane, len);
        }
        node
    }

    /// Makes the lane's record of a node its latest use.
    fn touch(&mut self, node: u32, lane: u32, how: Use, expires: u64) {
        let Some(entry) = self.held.nodes.entry(node, lane) else {
            return;
        };
        let l = &mut self.held.lanes[lane];
        let time = match how.time {
            Some(time) => time.0.max(l.clock),
            None => (self.held.shape.clock + 1).max(self.held.records.tick),
        };
        self.held.shape.clock = self.held.shape.clock.max(time);
        self.held.records.touch_at(l, entry.record, time, expires);
        self.queue(lane);
        self.held.expiry.arm(&mut self.held.records, entry.record);
    }

    /// What others said about the path to `node` and what this process saw there now.
    fn drop_redundant(&mut self, slot: u32, node: u32) {
        if self.held.lanes.count(slot, Trust::Remote.medium()) == 0 {
            return;
        }
        let lane = Trust::Remote.lane(slot);
        let mut node = node;
        while node != NONE {
            if let Some(entry) = self.held.nodes.entry(node, lane) {
                if self.held.is_worthless(entry.record) {
                    self.held.reap(entry.record);
                }
                return;
            }
            node = self.held.nodes[node].parent;
        }
    }
}
