//! Keeping within a number of bytes.
//!
//! A record that there is no room for ends early and says how much is lacking; it goes on where it stopped when the caller
//! has evicted something. The tables that hold the bulk are asked before they grow, and leave a reserve to what is small:
//! holders of shared runs, sets, deadlines. One change may take more than that, for which the caller evicts afterwards.

use super::BlockIndex;
use super::insert::Insert;
use super::shape::Hashed;

impl BlockIndex {
    /// Lets the index grow up to about `bytes` of [`Self::memory_bytes`], beyond which records end early; see
    /// [`Self::cut`]. `tick` is the time of uses from now on, which makes the ages of several indexes comparable.
    pub fn set_limit(&mut self, bytes: usize, tick: u64) {
        if !self.limit.is_set() {
            let lanes: Vec<u32> = self.held.lanes.iter().map(|(lane, _)| lane).collect();
            for lane in lanes {
                self.queue(lane);
            }
        }
        self.limit.set(bytes);
        self.held.records.tick = tick;
        self.held.shape.table.spare = bytes.saturating_sub(self.memory_bytes());
    }

    /// Bytes by which tables may grow beside a change of a lane, `None` if there is no room for the change.
    pub(super) fn room(&self, lane: u32) -> Option<usize> {
        let slots = self.held.slots(1, lane);
        self.limit.room(self.memory_bytes(), slots)
    }
}

impl Insert<'_> {
    /// Whether there is room for holding a path and for a run behind it; `new` blocks are to follow.
    pub(super) fn may_hold(&mut self, new: usize) -> bool {
        let fits = self.index.room(self.lane).is_some();
        if fits {
            self.index.held.open(self.lane);
            self.index.queue(self.lane);
        } else {
            self.index.limit.cut = Some(new);
        }
        fits
    }

    /// How many of `new` blocks may be added in a run of their own, and whether in a chunk of their own; at least one
    /// unless there is no room.
    pub(super) fn admit(&mut self, new: usize) -> (usize, bool) {
        if !self.index.limit.is_set() {
            return (new, true);
        }
        let Some(room) = self.index.room(self.lane) else {
            return (0, false);
        };
        let Hashed { table, blocks, .. } = &self.index.held.shape;
        let (vacant, table, chunk) = (table.vacant(), table.growth(new), blocks.growth());
        if table <= room {
            (new, chunk <= room - table)
        } else {
            (vacant.min(new), chunk <= room)
        }
    }
}
