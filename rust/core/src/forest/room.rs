//! What a change takes of a limited number of bytes.

use super::lanes::medium_of;
use super::nodes::{Entry, Holders};
use super::{Held, Shape};
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

impl Limit {
    pub(crate) fn is_set(&self) -> bool {
        self.bytes != usize::MAX
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

    /// A lane is used, of whose medium it may be the first.
    pub(crate) fn open<S: Shape>(&mut self, held: &Held<S>, lane: u32) {
        let medium = Medium::ALL[medium_of(lane)];
        if !held.lanes.is_open(medium) {
            let media = held.lanes.media().max(medium as usize + 1);
            self.heap += held.lanes.growth(medium) + held.sets.growth_by_media(media);
        }
    }

    /// Bytes of slots that it adds at most.
    pub(crate) fn slots<S: Shape>(&self, held: &Held<S>) -> usize {
        held.nodes.growth(self.nodes)
            + held.records.growth(self.records)
            + held.sets.growth(self.sets)
    }
}

fn holder_bytes(entries: usize) -> usize {
    size_of::<Vec<Entry>>() + entries * size_of::<Entry>()
}
