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
    #[inline]
    pub(crate) fn listed(&self) -> bool {
        self.prev != UNLISTED
    }
}

impl Slot for Record {
    fn vacant() -> Self {
        Self {
            node: NONE,
            lane: NONE,
            parent: NONE,
            prev: UNLISTED,
            next: NONE,
            kids: 0,
            held_kids: 0,
            epoch: 0,
            expires: 0,
            armed: 0,
        }
    }
}

/// All records.
#[derive(Debug, Default)]
pub(crate) struct Records {
    items: Slab<Record>,
    /// No access from now on counts as older than this, so that the times of lanes and of indexes are comparable.
    pub(crate) tick: u64,
}

impl std::ops::Index<u32> for Records {
    type Output = Record;
    #[inline]
    fn index(&self, record: u32) -> &Record {
        &self.items[record]
    }
}

impl std::ops::IndexMut<u32> for Records {
    #[inline]
    fn index_mut(&mut self, record: u32) -> &mut Record {
        &mut self.items[record]
    }
}

impl Records {
    /// An unlisted record; the caller counts it with its parent.
    pub(crate) fn add(&mut self, node: u32, lane: u32, parent: u32) -> u32 {
        self.items.add(Record {
            node,
            lane,
            parent,
            ..Record::vacant()
        })
    }

    /// Frees an unlisted record.
    pub(crate) fn forget(&mut self, record: u32) {
        self.items.remove(record);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Record)> {
        self.items.iter()
    }

    /// The record of a number, if there is one now.
    pub(crate) fn find(&self, record: u32) -> Option<&Record> {
        self.items.is_live(record).then(|| &self.items[record])
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len() as usize
    }

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

    /// Makes the record the lane's most recent use.
    pub(crate) fn touch(&mut self, lane: &mut Lane, record: u32, expires: u64) {
        let time = (lane.clock + 1).max(self.tick);
        self.touch_at(lane, record, time, expires);
    }

    /// Makes the record the lane's most recent use, at a time that is not before the one of any other.
    pub(crate) fn touch_at(&mut self, lane: &mut Lane, record: u32, time: u64, expires: u64) {
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
