//! Keeping within a number of bytes.
//!
//! Nothing is stored that there is no room for: a record ends early instead, says how much is lacking, and goes on where
//! it stopped when the caller has evicted something. So the number holds at every moment, and what is free already is
//! used before anything grows. The tables that hold the bulk leave a reserve to what is small and cannot be foreseen slot
//! by slot: holders of shared runs, sets, deadlines.

use super::blocks::CHUNK;
use super::insert::Insert;
use super::shape::Hashed;
use super::{BlockIndex, NONE};
use crate::forest::expiry::Expiry;
use crate::forest::lanes::{lane_of, slot_of};
use crate::forest::nodes::Entry;
use crate::forest::room::Need;
use crate::ids::Medium;

/// A new run with one holder.
fn new_run() -> Need {
    Need {
        nodes: 1,
        records: 1,
        sets: 1,
        heap: Expiry::growth(1),
    }
}

impl BlockIndex {
    /// Lets the index grow up to `bytes` of [`Self::memory_bytes`], beyond which records end early; see [`Self::cut`].
    /// `tick` is the time of uses from now on, which makes the ages of several indexes comparable.
    pub fn set_limit(&mut self, bytes: usize, tick: u64) {
        if !self.limit.is_set() {
            let lanes: Vec<u32> = self.held.lanes.iter().map(|(lane, _)| lane).collect();
            for lane in lanes {
                self.queue(lane);
            }
        }
        let (reserve, used) = (bytes / 16, self.memory_bytes());
        self.limit.bytes = (bytes - reserve).min(usize::MAX - 1);
        self.held.records.tick = tick;
        let shape = &mut self.held.shape;
        shape.room.reserve = reserve;
        shape.table.spare = (self.limit.bytes + reserve).saturating_sub(used);
    }

    /// Bytes by which tables may grow beside a change, `None` if there is no room for the change.
    pub(super) fn room(&self, need: Need) -> Option<usize> {
        let slots = need.slots(&self.held);
        let bytes = self.memory_bytes() + slots + need.heap;
        let reserve = if slots == 0 {
            self.held.shape.room.reserve
        } else {
            0
        };
        (bytes <= self.limit.bytes + reserve).then(|| self.limit.bytes.saturating_sub(bytes))
    }

    /// Whether what the latest record lacked is there now.
    #[must_use]
    pub fn fits(&self) -> bool {
        let blocks = self.limit.cut.unwrap_or(0);
        let shape = &self.held.shape;
        let Some(room) = self.room(shape.room.need) else {
            return false;
        };
        let is_vacant = blocks <= shape.blocks.vacant() as usize;
        let chunks = if is_vacant { 0 } else { blocks.div_ceil(CHUNK) };
        shape.table.growth(blocks) + shape.blocks.growth(chunks) <= room
    }
}

impl Insert<'_> {
    /// Whether there is room for holding the path that ends at the block `last` and for a run behind it; `new` blocks are
    /// to follow.
    pub(super) fn may_hold(&mut self, last: u32, new: usize, from: u32) -> bool {
        let mut need = self.structure(last, new > 0, from);
        self.confirmation(&mut need, last, from);
        need.open(&self.index.held, self.lane);
        let fits = self.index.room(need).is_some();
        if fits {
            self.index.held.open(self.lane);
            self.index.queue(self.lane);
        } else {
            self.index.limit.cut = Some(new);
            self.index.held.shape.room.need = need;
        }
        fits
    }

    fn structure(&self, last: u32, grows: bool, from: u32) -> Need {
        let (held, lane) = (&self.index.held, self.lane);
        let mut need = new_run();
        if last == NONE {
            return need;
        }
        let mut run = held.shape.blocks.run(last);
        let mut want = last - held.nodes[run].own.base + 1;
        let deeper = |e: Entry| e.count == 0 || e.count > want;
        if want < held.nodes[run].len && (grows || held.nodes.entry(run, lane).is_some_and(deeper))
        {
            need.split(&held.nodes[run].holders);
        }
        loop {
            let r = &held.nodes[run];
            let entry = held.nodes.entry(run, lane);
            let count = entry.map_or(0, |e| e.count);
            if count < want {
                let above = from > r.start && from - r.start < want;
                if above || entry.is_some_and(|e| held.records[e.record].expires > self.expires) {
                    need.split(&r.holders);
                }
                need.records += usize::from(entry.is_none());
                need.cover(&r.holders);
            }
            if (count > 0 && held.lanes[lane].holes == 0) || r.parent == NONE {
                return need;
            }
            run = r.parent;
            want = held.nodes[run].len;
        }
    }

    /// What it takes that blocks from depth `from` on are no longer speculative.
    fn confirmation(&self, need: &mut Need, last: u32, from: u32) {
        let (held, slot) = (&self.index.held, slot_of(self.lane));
        let speculative = lane_of(slot, Medium::Speculative);
        if last == NONE || held.lanes.count(slot, Medium::Speculative) == 0 {
            return;
        }
        let mut run = held.shape.blocks.run(last);
        let mut want = last - held.nodes[run].own.base + 1;
        loop {
            let r = &held.nodes[run];
            if r.holders.get(speculative).is_some_and(|e| e.count > 0) {
                need.sets += 1;
                if want < r.len {
                    need.split(&r.holders);
                }
                if from > r.start {
                    need.split(&r.holders);
                }
            }
            if from >= r.start || r.parent == NONE {
                return;
            }
            run = r.parent;
            want = held.nodes[run].len;
        }
    }

    /// How many of `new` blocks may be added in a run of their own, and whether in a chunk of their own; at least one
    /// unless there is no room.
    pub(super) fn admit(&mut self, new: usize) -> (usize, bool) {
        if !self.index.limit.is_set() {
            return (new, true);
        }
        let Some(room) = self.index.room(new_run()) else {
            return (0, false);
        };
        let Hashed { table, blocks, .. } = &self.index.held.shape;
        let (vacant, table, chunk) = (table.vacant(), table.growth(new), blocks.growth(1));
        if table <= room {
            (new, chunk <= room - table)
        } else {
            (vacant.min(new), chunk <= room)
        }
    }

    /// A record ends here for lack of room, `blocks` before its end.
    pub(super) fn end_early(&mut self, blocks: usize) {
        self.index.limit.cut = Some(blocks);
        self.index.held.shape.room.need = new_run();
    }
}
