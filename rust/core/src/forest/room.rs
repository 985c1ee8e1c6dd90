//! How far a forest may grow.

use super::lanes::medium_of;
use super::{Held, Shape};
use crate::ids::Medium;

/// Sets and splits of nodes that one change may take beside the nodes it adds. A change that takes more uses the reserve.
const BESIDE: usize = 4;

/// Up to what a forest may grow.
#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) bytes: usize,
    /// Bytes beyond that for what is small.
    pub(crate) reserve: usize,
    /// Units that the latest record had no room for, if it ended early.
    pub(crate) cut: Option<usize>,
}

impl Default for Limit {
    fn default() -> Self {
        Self {
            bytes: usize::MAX,
            reserve: 0,
            cut: None,
        }
    }
}

impl Limit {
    /// `bytes`, of which a part is the reserve.
    pub(crate) fn set(&mut self, bytes: usize) {
        self.reserve = bytes / 16;
        self.bytes = (bytes - self.reserve).min(usize::MAX - 1);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.bytes != usize::MAX
    }

    /// Bytes by which tables may grow beside a change that adds `slots` bytes of slots to the `used` ones, `None` if there is
    /// no room for the change. What is free already is used before anything grows.
    pub(crate) fn room(&self, used: usize, slots: usize) -> Option<usize> {
        let reserve = if slots == 0 { self.reserve } else { 0 };
        let bytes = used + slots;
        (bytes <= self.bytes + reserve).then(|| self.bytes.saturating_sub(bytes))
    }
}

impl<S: Shape> Held<S> {
    /// Bytes of slots that a change of a lane adds which makes `nodes` nodes.
    pub(crate) fn slots(&self, nodes: usize, lane: u32) -> usize {
        let medium = Medium::ALL[medium_of(lane)];
        let media = self.lanes.media().max(medium as usize + 1);
        self.nodes.growth(nodes + BESIDE)
            + self.records.growth(nodes + BESIDE)
            + self.sets.growth(BESIDE)
            + self.lanes.growth(medium)
            + self.sets.growth_by_media(media)
    }
}
