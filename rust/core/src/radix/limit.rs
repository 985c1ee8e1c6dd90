//! Keeping within a number of bytes, for one memory budget over several indexes.
//!
//! Nothing is inserted that there is no room for: an insert ends early instead, says how much is lacking, and goes on where
//! it stopped when the caller has evicted something and inserts the key again.

use super::unit::Unit;
use super::walk::Spot;
use super::{EDGE, RadixTree};
use crate::ids::Medium;
use crate::index::NONE;
use crate::index::expiry::Expiry;
use crate::index::lanes::{MEDIA, medium_of};
use crate::index::runs::{Entry, Holders};

#[derive(Debug)]
pub(super) struct Limit {
    bytes: usize,
    /// Stored units that the latest insert had no room for, if it ended early.
    cut: Option<usize>,
    /// Bytes that it takes to go on with at least a part of them.
    lacking: usize,
}

impl Default for Limit {
    fn default() -> Self {
        Self {
            bytes: usize::MAX,
            cut: None,
            lacking: 0,
        }
    }
}

/// What an insert takes beside labels.
#[derive(Debug, Default)]
struct Need {
    nodes: usize,
    records: usize,
    sets: usize,
    heap: usize,
}

impl Need {
    fn split(&mut self, holders: &Holders) {
        let entries = holders.as_slice().len();
        self.nodes += 1;
        self.records += entries;
        self.sets += 2;
        self.heap += 2 * holder_bytes(2 * entries.max(2));
    }
}

fn holder_bytes(entries: usize) -> usize {
    size_of::<Vec<Entry>>() + entries * size_of::<Entry>()
}

impl<U: Unit> RadixTree<U> {
    /// Lets the tree grow up to `bytes` of [`Self::memory_bytes`], beyond which inserts end early; see [`Self::cut`].
    /// `tick` is the time of uses from now on, which makes the ages of several indexes comparable.
    pub fn set_limit(&mut self, bytes: usize, tick: u64) {
        self.limit.bytes = bytes;
        self.records.tick = tick;
    }

    /// How many units the latest insert had no room for, `None` if it was complete.
    #[must_use]
    pub fn cut(&self) -> Option<usize> {
        self.limit.cut
    }

    /// Whether what the latest insert lacked is there now.
    #[must_use]
    pub fn fits(&self) -> bool {
        let units = self.limit.cut.unwrap_or(0) * size_of::<U>();
        self.memory_bytes() + self.limit.lacking + units <= self.limit.bytes
    }

    pub(super) fn start_limited(&mut self) {
        self.limit.cut = None;
        self.limit.lacking = 0;
    }

    /// How many of the `rest` stored units behind `spot` may be added; `None` if there is not even room for holding the
    /// path up to there.
    pub(super) fn admit(&mut self, lane: u32, spot: Spot, rest: usize) -> Option<usize> {
        if self.limit.bytes == usize::MAX {
            return Some(rest);
        }
        let (nodes, need) = self.structure(lane, spot, rest);
        let used = self.memory_bytes() + need;
        let room = self
            .limit
            .bytes
            .checked_sub(used + self.nodes.growth(nodes, 0));
        let Some(room) = room else {
            self.limit.cut = Some(rest);
            self.limit.lacking = need + self.nodes.growth(nodes, 0);
            return None;
        };
        let mut admitted = (room / size_of::<U>()).min(rest);
        admitted -= admitted % self.page;
        if admitted < rest {
            self.limit.cut = Some(rest - admitted);
            self.limit.lacking = need + self.nodes.growth(nodes, 0);
        }
        Some(admitted)
    }

    /// Nodes that an insert may add, and the bytes that it takes beside them and their labels.
    fn structure(&self, lane: u32, spot: Spot, rest: usize) -> (usize, usize) {
        let mut need = Need::default();
        need.nodes = rest.div_ceil(EDGE - self.page.max(4)) + 1;
        need.records = need.nodes;
        need.sets = 2;
        need.heap = Expiry::growth(2);
        let medium = Medium::ALL[medium_of(lane)];
        if !self.lanes.is_open(medium) {
            need.heap += self.lanes.growth(medium) + self.sets.growth_by_media(MEDIA);
        }
        let mut node = spot.node;
        if node != NONE && spot.upto < self.nodes[node].len {
            need.split(&self.nodes[node].holders);
        }
        while node != NONE {
            let n = &self.nodes[node];
            if self.covered(node, lane) > 0 {
                // It may be split because of deadlines.
                need.split(&n.holders);
                break;
            }
            need.records += 1;
            need.sets += 1;
            need.heap += match &n.holders {
                Holders::None => 0,
                Holders::One(_) => holder_bytes(4),
                Holders::Many(entries) if entries.len() < entries.capacity() => 0,
                Holders::Many(entries) => holder_bytes(entries.capacity()),
            };
            node = n.parent;
        }
        let slots = self.records.growth(need.records) + self.sets.growth(need.sets);
        (need.nodes, slots + need.heap)
    }
}
