//! Keeping within a number of bytes.
//!
//! Nothing is stored that there is no room for: a record ends early instead, says how much is lacking, and goes on where
//! it stopped when the caller has evicted something. So the number holds at every moment, and what is free already is
//! used before anything grows. The tables that hold the bulk leave a reserve to what is small and cannot be foreseen slot
//! by slot: holders of shared runs, sets, deadlines.
//!
//! For the caller's choice of what goes, `ages` knows how old every lane's oldest record is.

use super::ages::Ages;
use super::expiry::Expiry;
use super::lanes::{lane_of, medium_of, slot_of};
use super::runs::Holders;
use super::{BlockIndex, NONE};
use crate::ids::Medium;

/// What a change takes.
#[derive(Debug, Default, Clone, Copy)]
struct Need {
    runs: usize,
    records: usize,
    sets: usize,
    /// Bytes of holders and deadlines.
    heap: usize,
}

impl Need {
    /// A new run with one holder.
    fn run() -> Self {
        Self {
            runs: 1,
            records: 1,
            sets: 1,
            heap: Expiry::growth(1),
        }
    }

    fn split(&mut self, holders: usize) {
        self.runs += 1;
        self.records += holders;
        self.sets += 2;
        self.heap += 2 * holder_bytes(2 * holders.max(2)) + Expiry::growth(1);
    }
}

fn holder_bytes(capacity: usize) -> usize {
    size_of::<Vec<super::runs::Entry>>() + capacity * size_of::<super::runs::Entry>()
}

#[derive(Debug)]
pub(super) struct Limit {
    /// Bytes up to which tables may grow.
    bytes: usize,
    /// Bytes beyond them for what is small.
    reserve: usize,
    /// Blocks that the latest record had no room for, if it ended early.
    cut: Option<usize>,
    need: Need,
    ages: Ages,
}

impl Default for Limit {
    fn default() -> Self {
        Self {
            bytes: usize::MAX,
            reserve: 0,
            cut: None,
            need: Need::default(),
            ages: Ages::default(),
        }
    }
}

impl Limit {
    pub(super) fn memory_bytes(&self) -> usize {
        self.ages.memory_bytes()
    }
}

impl BlockIndex {
    /// Lets the index grow up to `bytes` of [`Self::memory_bytes`], beyond which records end early; see [`Self::cut`].
    /// `tick` is the time of uses from now on, which makes the ages of several indexes comparable.
    pub fn set_limit(&mut self, bytes: usize, tick: u64) {
        if !self.is_limited() {
            let lanes: Vec<u32> = self.lanes.iter().map(|(lane, _)| lane).collect();
            for lane in lanes {
                self.queue(lane);
            }
        }
        self.limit.reserve = bytes / 16;
        self.limit.bytes = (bytes - self.limit.reserve).min(usize::MAX - 1);
        self.records.tick = tick;
        self.spare_for_shrinking();
    }

    pub(super) fn is_limited(&self) -> bool {
        self.limit.bytes != usize::MAX
    }

    /// How many blocks the latest record or store had no room for, `None` if it was complete.
    #[must_use]
    pub fn cut(&self) -> Option<usize> {
        self.limit.cut
    }

    pub(super) fn start_limited(&mut self) {
        self.limit.cut = None;
    }

    fn spare_for_shrinking(&mut self) {
        let most = self.limit.bytes + self.limit.reserve;
        self.table.spare = most.saturating_sub(self.memory_bytes());
    }

    /// Bytes by which tables may grow beside a change, `None` if there is no room for the change.
    fn room(&self, need: Need) -> Option<usize> {
        let slots = self.runs.growth(need.runs)
            + self.records.growth(need.records)
            + self.sets.growth(need.sets);
        let bytes = self.memory_bytes() + slots + need.heap;
        let most = self.limit.bytes + if slots == 0 { self.limit.reserve } else { 0 };
        (bytes <= most).then(|| self.limit.bytes.saturating_sub(bytes))
    }

    /// Whether what the latest record lacked is there now.
    #[must_use]
    pub fn fits(&self) -> bool {
        let blocks = self.limit.cut.unwrap_or(0);
        let Some(room) = self.room(self.limit.need) else {
            return false;
        };
        let table = self.table.growth(blocks);
        let lacking = blocks.saturating_sub(self.blocks.vacant() as usize);
        let chunks = if lacking == 0 {
            0
        } else {
            self.blocks.growth(blocks.div_ceil(super::blocks::CHUNK))
        };
        table + chunks <= room
    }

    /// Whether there is room for holding the path that ends at the block `last` and for a run behind it; `new` blocks are
    /// to follow.
    pub(super) fn may_hold(
        &mut self,
        lane: u32,
        last: u32,
        new: usize,
        from: u32,
        expires: u64,
    ) -> bool {
        let mut need = self.structure(lane, last, new > 0, from, expires);
        self.confirmation(&mut need, lane, last, from);
        let medium = Medium::ALL[medium_of(lane)];
        if !self.lanes.is_open(medium) {
            let media = self.lanes.media().max(medium as usize + 1);
            need.heap += self.lanes.growth(medium) + self.sets.growth_by_media(media);
        }
        let fits = self.room(need).is_some();
        if fits {
            self.open(lane);
            self.queue(lane);
        } else {
            self.limit.cut = Some(new);
            self.limit.need = need;
        }
        fits
    }

    fn structure(&self, lane: u32, last: u32, grows: bool, from: u32, expires: u64) -> Need {
        let mut need = Need::run();
        if last == NONE {
            return need;
        }
        let mut run = self.blocks.run(last);
        let mut want = last - self.runs[run].base + 1;
        let deeper = |e: super::runs::Entry| e.count == 0 || e.count > want;
        if want < self.runs[run].len && (grows || self.entry(run, lane).is_some_and(deeper)) {
            need.split(self.runs[run].holders.as_slice().len());
        }
        loop {
            let r = &self.runs[run];
            let entry = self.entry(run, lane);
            let count = entry.map_or(0, |e| e.count);
            if count < want {
                let above = from > r.start && from - r.start < want;
                if above || entry.is_some_and(|e| self.records[e.record].expires > expires) {
                    need.split(r.holders.as_slice().len());
                }
                need.records += usize::from(entry.is_none());
                need.sets += 1;
                need.heap += match &r.holders {
                    Holders::None => 0,
                    Holders::One(_) => holder_bytes(4),
                    Holders::Many(entries) if entries.len() < entries.capacity() => 0,
                    Holders::Many(entries) => holder_bytes(entries.capacity()),
                };
            }
            if (count > 0 && self.lanes[lane].holes == 0) || r.parent == NONE {
                return need;
            }
            run = r.parent;
            want = self.runs[run].len;
        }
    }

    /// What it takes that blocks from depth `from` on are no longer speculative.
    fn confirmation(&self, need: &mut Need, lane: u32, last: u32, from: u32) {
        let speculative = lane_of(slot_of(lane), Medium::Speculative);
        if last == NONE || self.lanes.count(slot_of(lane), Medium::Speculative) == 0 {
            return;
        }
        let mut run = self.blocks.run(last);
        let mut want = last - self.runs[run].base + 1;
        loop {
            let r = &self.runs[run];
            if r.holders.get(speculative).is_some_and(|e| e.count > 0) {
                need.sets += 1;
                if want < r.len {
                    need.split(r.holders.as_slice().len());
                }
                if from > r.start {
                    need.split(r.holders.as_slice().len());
                }
            }
            if from >= r.start || r.parent == NONE {
                return;
            }
            run = r.parent;
            want = self.runs[run].len;
        }
    }

    /// How many of `new` blocks may be added in a run of their own, and whether in a chunk of their own; at least one
    /// unless there is no room.
    pub(super) fn admit(&mut self, new: usize) -> (usize, bool) {
        if !self.is_limited() {
            return (new, true);
        }
        let (mut admitted, mut may_grow) = (0, false);
        if let Some(room) = self.room(Need::run()) {
            let table = self.table.growth(new);
            if table <= room {
                admitted = new;
                may_grow = self.blocks.growth(1) <= room - table;
            } else {
                admitted = self.table.vacant().min(new);
                may_grow = self.blocks.growth(1) <= room;
            }
        }
        (admitted, may_grow)
    }

    /// A record ends here for lack of room, `blocks` before its end.
    pub(super) fn end_early(&mut self, blocks: usize) {
        self.limit.cut = Some(blocks);
        self.limit.need = Need::run();
    }

    /// No lane is left.
    pub(super) fn forget_ages(&mut self) {
        self.limit.ages.clear();
    }

    fn queue(&mut self, lane: u32) {
        self.limit.ages.queue(&mut self.lanes[lane], lane);
    }

    /// When what goes next was used, by the tick of its use, or earlier; `None` if there is nothing to evict.
    pub fn oldest(&mut self) -> Option<u64> {
        self.oldest_lane().map(|(age, _)| age)
    }

    fn oldest_lane(&mut self) -> Option<(u64, u32)> {
        self.limit.ages.oldest(&mut self.lanes, &self.records)
    }

    /// Evicts the least recently used leaf of all workers, at most `blocks` of it, if its last use was before the tick
    /// `before`; returns how many blocks went.
    pub fn evict_oldest(&mut self, blocks: u32, before: u64) -> u64 {
        let (lane, record) = loop {
            let Some((_, lane)) = self.oldest_lane().filter(|(age, _)| *age < before) else {
                self.finish();
                return 0;
            };
            let record = self.lanes[lane].oldest;
            if self.records[record].kids == 0 {
                break (lane, record);
            }
            // A newer descendant stands for it, and may now share its record.
            self.records.unlink(&mut self.lanes[lane], record);
            self.merges.push(self.records[record].run);
        };
        let run = self.records[record].run;
        let count = self.entry(run, lane).map_or(0, |e| e.count);
        let gone = count.min(blocks);
        if gone < count {
            self.shorten(run, lane, count - gone);
        } else {
            self.set_count(run, lane, 0);
            self.reap(record);
        }
        self.stats.displaced += u64::from(gone);
        self.finish();
        u64::from(gone)
    }

    /// Bytes that the index needs in passing to give back a multiple of them, `None` if there is nothing to give back.
    #[must_use]
    pub fn shrinkage(&self) -> Option<usize> {
        self.table.shrinkage()
    }
}
