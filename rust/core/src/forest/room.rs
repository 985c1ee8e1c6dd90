//! What a change takes of a limited number of bytes.

use super::lanes::medium_of;
use super::nodes::{Entry, Holders};
use super::{Forest, Shape};
use crate::ids::Medium;

/// Up to what a forest may grow.
#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) bytes: usize,
    /// Units that the latest record had no room for, if it ended early.
    pub(crate) cut: Option<usize>,
}

impl Default for Limit {
    fn default() -> Self {
        Self {
            bytes: usize::MAX,
            cut: None,
        }
    }
}

/// What a change takes, beside units.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Need {
    pub(crate) nodes: usize,
    pub(crate) records: usize,
    pub(crate) sets: usize,
    /// Bytes of holders and deadlines.
    pub(crate) heap: usize,
}

impl Need {
    /// A node is split.
    pub(crate) fn split(&mut self, holders: &Holders) {
        let entries = holders.as_slice().len();
        self.nodes += 1;
        self.records += entries;
        self.sets += 2;
        self.heap += 2 * holder_bytes(2 * entries.max(2)) + super::expiry::Expiry::growth(1);
    }

    /// A lane holds more of a node.
    pub(crate) fn cover(&mut self, holders: &Holders) {
        self.sets += 1;
        self.heap += match holders {
            Holders::None => 0,
            Holders::One(_) => holder_bytes(4),
            Holders::Many(entries) if entries.len() < entries.capacity() => 0,
            Holders::Many(entries) => holder_bytes(entries.capacity()),
        };
    }
}

fn holder_bytes(entries: usize) -> usize {
    size_of::<Vec<Entry>>() + entries * size_of::<Entry>()
}

impl<S: Shape> Forest<S> {
    /// How many units the latest record or store had no room for, `None` if it was complete.
    #[must_use]
    pub fn cut(&self) -> Option<usize> {
        self.limit.cut
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.limit.bytes != usize::MAX
    }

    /// Bytes of slots that a change may add at most.
    pub(crate) fn slots(&self, need: Need) -> usize {
        self.nodes.growth(need.nodes)
            + self.records.growth(need.records)
            + self.sets.growth(need.sets)
    }

    /// Bytes of the lanes that the first use of a lane's medium makes.
    pub(crate) fn opening(&self, lane: u32) -> usize {
        let medium = Medium::ALL[medium_of(lane)];
        if self.lanes.is_open(medium) {
            return 0;
        }
        let media = self.lanes.media().max(medium as usize + 1);
        self.lanes.growth(medium) + self.sets.growth_by_media(media)
    }
}
