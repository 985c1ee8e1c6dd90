//! Keeping within a number of bytes.
//!
//! A record that there is no room for ends early and says how much is lacking; it goes on where it stopped when the caller
//! has evicted something. Bytes are the mean ones of what is held. One change may take a little more than there is, for
//! which the caller evicts afterwards.

use super::BlockIndex;
use super::insert::Insert;
use super::shape::BLOCK;

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
        self.limit.bytes = bytes.min(usize::MAX - 1);
        self.held.records.tick = tick;
    }
}

impl Insert<'_> {
    /// Whether there is room for holding a path and for a run behind it; `new` blocks are to follow.
    pub(super) fn may_hold(&mut self, new: usize) -> bool {
        let fits = self.index.room(BLOCK).is_some();
        if fits {
            self.index.held.open(self.lane);
            self.index.queue(self.lane);
        } else {
            self.index.limit.cut = Some(new);
        }
        fits
    }

    /// How many of `new` blocks may be added.
    pub(super) fn admit(&mut self, new: usize) -> usize {
        if !self.index.limit.is_set() {
            return new;
        }
        self.index.room(BLOCK).unwrap_or(0).min(new)
    }
}
