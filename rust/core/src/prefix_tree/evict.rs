//! Removal of coverage leaf by leaf: eviction, deadlines, clear.

use super::{Held, NONE, PrefixTree, Shape};
use crate::epoch_lru::lanes::{is_device, lane_of, medium_of};
use crate::epoch_lru::records::NEVER;
use crate::error::Result;
use crate::ids::{Medium, Millis, WorkerId};

impl<S: Shape> Held<S> {
    /// Evicts the lane's oldest record: a leaf, or `units` of a longer one; a record with newer leaves only leaves the
    /// list. Returns the evicted units that no other lane of the worker covers, `None` if the lane is empty.
    pub(crate) fn evict_step(&mut self, lane: u32, units: u64) -> Option<u64> {
        let record = self.lanes.oldest(lane)?;
        let node = self.records[record].node;
        if self.records[record].kids > 0 {
            self.records.unlink(&mut self.lanes[lane], record);
            // It may share a record with the node below it now.
            self.merges.push(node);
            return Some(0);
        }
        let count = self.nodes.covered(node, lane);
        let beyond = u64::from(count.saturating_sub(S::beside(self, node, lane)));
        let units = self.shape.step(units);
        if beyond > units {
            self.shorten(node, lane, count - units as u32);
            return Some(units);
        }
        self.reap(record);
        Some(beyond)
    }

    /// Takes away a leaf's whole coverage of a node, and hands its place in the order of use to its parent, which is
    /// removed too if it now is a worthless leaf.
    pub(crate) fn reap(&mut self, record: u32) {
        let lane = self.records[record].lane;
        let mut record = record;
        loop {
            let node = self.records[record].node;
            self.set_count(node, lane, 0);
            let parent = self.records.pass_to_parent(&mut self.lanes[lane], record);
            self.remove_entry(record);
            if S::HOLES && medium_of(lane) == Medium::Speculative as usize {
                // Gradual confirmation splits nodes and leaves ghosts; this may have been the last of them.
                self.merges.push(node);
            }
            if parent == NONE {
                return;
            }
            self.expiry.arm(&mut self.records, parent);
            if !self.is_worthless(parent) {
                return;
            }
            record = parent;
        }
    }

    /// Whether a record is a leaf that covers nothing, or, other than in device memory, nothing of its own.
    pub(crate) fn is_worthless(&self, record: u32) -> bool {
        let r = &self.records[record];
        if r.kids > 0 {
            return false;
        }
        let count = self.nodes.covered(r.node, r.lane);
        count == 0 || (!is_device(r.lane) && count <= S::beside(self, r.node, r.lane))
    }

    /// Every record is listed or an ancestor of a listed one, so climbing from the listed ones meets all.
    pub(crate) fn clear_lane(&mut self, lane: u32) {
        while let Some(mut record) = self.lanes.oldest(lane) {
            if self.records[record].kids > 0 {
                self.records.unlink(&mut self.lanes[lane], record);
                continue;
            }
            loop {
                self.set_count(self.records[record].node, lane, 0);
                if self.records[record].listed() {
                    self.records.unlink(&mut self.lanes[lane], record);
                }
                let parent = self.records[record].parent;
                self.remove_entry(record);
                if parent == NONE {
                    break;
                }
                self.records[parent].kids -= 1;
                if self.records[parent].kids > 0 {
                    break;
                }
                record = parent;
            }
        }
    }
}

impl<S: Shape> PrefixTree<S> {
    /// Evicts up to `units` of the lane in LRU order, whole stretches at a time and `steps` of them at most; returns
    /// the number of units.
    pub(crate) fn evict(&mut self, lane: u32, units: u64, steps: &mut u32) -> u64 {
        let mut gone = 0;
        while gone < units && *steps > 0 {
            let Some(more) = self.held.evict_step(lane, units - gone) else {
                break;
            };
            *steps -= 1;
            gone += more;
        }
        self.stats.evicted += gone;
        gone
    }

    /// Drops all that the worker holds, which stays registered; returns the distinct units it held.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn clear(&mut self, worker: WorkerId) -> Result<u64> {
        let dropped = self.worker(worker)?.distinct;
        for medium in Medium::ALL {
            self.held.clear_lane(lane_of(worker.slot, medium));
        }
        self.held.finish();
        Ok(dropped)
    }

    // --- deadlines

    /// When the next entry with a time to live is due, if any. May be early after a use, never late.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Millis> {
        self.held.expiry.next().map(Millis)
    }

    /// Drops entries whose time to live ended at or before `now`; returns the units dropped, of an index per medium. A
    /// tree looks at [`crate::radix_tree::STEPS`] leaves at most: call again while [`Self::next_expiry`] is due.
    pub fn expire(&mut self, now: Millis) -> u64 {
        let mut dropped = 0;
        for _ in 0..S::EXPIRED_AT_ONCE {
            let Some(record) = self.held.expiry.pop(now.0) else {
                break;
            };
            let r = &mut self.held.records[record];
            r.armed = 0;
            if r.kids > 0 || r.expires == NEVER {
                continue;
            }
            if r.expires > now.0 {
                self.held.expiry.arm(&mut self.held.records, record);
                continue;
            }
            let (node, lane) = (r.node, r.lane);
            let count = self.held.nodes.covered(node, lane);
            dropped += u64::from(count.saturating_sub(S::beside(&self.held, node, lane)));
            self.held.reap(record);
        }
        self.stats.expired += dropped;
        self.held.finish();
        dropped
    }

    // --- one memory budget over several indexes

    /// No use from now on counts as older than `tick`, which makes the ages of several indexes comparable.
    pub fn set_tick(&mut self, tick: u64) {
        self.held.tick = tick;
    }

    /// The lane is about to be used.
    pub(crate) fn queue(&mut self, lane: u32) {
        self.ages[S::rank(lane)].queue(&mut self.held.lanes[lane], lane);
    }

    /// Age and lane of the next leaf to evict.
    pub(crate) fn oldest_lane(&mut self) -> Option<(u64, u32)> {
        let Held { lanes, records, .. } = &mut self.held;
        let mut ages = self.ages.iter_mut();
        ages.find_map(|ages| ages.oldest(lanes, records))
    }

    /// When what goes next was used, by the tick of its use, or earlier; `None` if there is nothing to evict.
    pub fn oldest(&mut self) -> Option<u64> {
        self.oldest_lane().map(|(age, _)| age)
    }

    /// Evicts the leaf that goes next, at most `units` of it, if its last use was before the tick `before`; returns how
    /// many went.
    pub fn evict_oldest(&mut self, units: u32, before: u64) -> u64 {
        let mut gone = 0;
        while gone == 0 {
            let Some((_, lane)) = self.oldest_lane().filter(|(age, _)| *age < before) else {
                break;
            };
            let step = self.held.evict_step(lane, u64::from(units.max(1)));
            gone = step.unwrap_or(0);
        }
        self.stats.displaced += gone;
        self.held.finish();
        gone
    }
}
