//! Recency records and the per-lane lists that order them.
//!
//! One record per (node, lane). The list holds tails and leaves only: a touch moves the record of the path's last node to
//! the recent end, and a record that loses its last descendant takes that descendant's place. The order of evictions
//! equals that of leaf-only LRU with every access refreshing its whole path.

use super::lanes::Lane;
use crate::collections::slab::NONE;
use crate::collections::slab::{Slab, Slot};

/// In `prev`: the record is in no list.
const UNLISTED: u32 = u32::MAX - 1;
/// In `Record::expires`: an access without time to live ended here.
pub(crate) const NEVER: u64 = u64::MAX;

/// Recency of one node in one lane.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) node: u32,
    pub(crate) lane: u32,
    /// The lane's record of the parent node.
    pub(crate) parent: u32,
    pub(crate) prev: u32,
    pub(crate) next: u32,
    /// Records of the same lane in child runs.
    pub(crate) kids: u32,
    /// Those of them that hold their first block.
    pub(crate) held_kids: u32,
    /// Last access that ended here, in the lane's own time.
    pub(crate) epoch: u64,
    /// Milliseconds at which the newest access that ended here stops counting; 0: none ended here.
    pub(crate) expires: u64,
    /// Milliseconds at which the record is looked at again, 0 if it is not queued.
    pub(crate) armed: u64,
}

impl Record {
    /// An unlisted record, which is to be counted with its parent.
    pub(crate) fn new(node: u32, lane: u32, parent: u32) -> Self {
        Self {
            node,
            lane,
            parent,
            prev: UNLISTED,
            next: NONE,
            kids: 0,
            held_kids: 0,
            epoch: 0,
            expires: 0,
            armed: 0,
        }
    }

    #[inline]
    pub(crate) fn listed(&self) -> bool {
        self.prev != UNLISTED
    }
}

impl Slot for Record {
    fn vacant() -> Self {
        Self::new(NONE, NONE, NONE)
    }
}

/// All records.
pub(crate) type Records = Slab<Record>;

impl Slab<Record> {
    /// Takes a listed record out of its lane's list.
    pub(crate) fn unlink(&mut self, lane: &mut Lane, record: u32) {
        let Record { prev, next, .. } = self[record];
        if prev == NONE {
            lane.oldest = next;
        } else {
            self[prev].next = next;
        }
        if next == NONE {
            lane.newest = prev;
        } else {
            self[next].prev = prev;
        }
        self[record].prev = UNLISTED;
        self[record].next = NONE;
    }

    /// Puts an unlisted record behind `place` (towards the recent end); `NONE` is the old end itself.
    pub(crate) fn link_after(&mut self, lane: &mut Lane, record: u32, place: u32) {
        let next = if place == NONE {
            lane.oldest
        } else {
            self[place].next
        };
        self[record].prev = place;
        self[record].next = next;
        if place == NONE {
            lane.oldest = record;
        } else {
            self[place].next = record;
        }
        if next == NONE {
            lane.newest = record;
        } else {
            self[next].prev = record;
        }
    }

    /// Makes the record the lane's most recent use, at a time that is not before the one of any other.
    pub(crate) fn touch(&mut self, lane: &mut Lane, record: u32, time: u64, expires: u64) {
        debug_assert!(
            time >= lane.clock,
            "epochs never decrease towards the recent end"
        );
        lane.clock = time;
        if lane.newest != record {
            if self[record].listed() {
                self.unlink(lane, record);
            }
            let newest = lane.newest;
            self.link_after(lane, record, newest);
        }
        let touched = &mut self[record];
        touched.epoch = time;
        touched.expires = touched.expires.max(expires);
    }

    /// Hands the place of a record that is about to be removed to its parent record, which ends the path from now on.
    pub(crate) fn pass_to_parent(&mut self, lane: &mut Lane, record: u32) -> u32 {
        let mut place = self[record].prev;
        let Record {
            epoch,
            expires,
            parent,
            ..
        } = self[record];
        self.unlink(lane, record);
        if parent == NONE {
            return NONE;
        }
        let above = &mut self[parent];
        above.kids -= 1;
        above.expires = above.expires.max(expires);
        if !above.listed() {
            above.epoch = epoch;
            self.link_after(lane, parent, place);
        } else if above.epoch < epoch {
            above.epoch = epoch;
            if place == parent {
                place = above.prev;
            }
            self.unlink(lane, parent);
            self.link_after(lane, parent, place);
        }
        parent
    }
}
