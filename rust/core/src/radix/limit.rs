//! Keeping within a number of bytes, for one memory budget over several indexes.
//!
//! An insert that there is no room for ends early and says how much is lacking; it goes on where it stopped when the caller
//! has evicted something and inserts the key again. One insert may take a little more than there is, for which the caller
//! evicts afterwards.

use super::insert::Insert;
use super::unit::Unit;
use super::{EDGE, RadixTree};

impl<U: Unit> RadixTree<U> {
    /// Lets the tree grow up to about `bytes` of [`Self::memory_bytes`], beyond which inserts end early; see [`Self::cut`].
    /// `tick` is the time of uses from now on, which makes the ages of several indexes comparable.
    pub fn set_limit(&mut self, bytes: usize, tick: u64) {
        self.limit.set(bytes);
        self.held.records.tick = tick;
    }
}

impl<U: Unit> Insert<'_, U> {
    /// How many of the `rest` stored units may be added; `None` if there is not even room for holding the path before them.
    pub(super) fn admit(&mut self, rest: usize) -> Option<usize> {
        let Insert { tree, lane, .. } = self;
        if !tree.limit.is_set() {
            return Some(rest);
        }
        let page = tree.held.shape.children.page;
        let nodes = rest.div_ceil(EDGE - page.max(4)) + 1;
        let slots = tree.held.slots(nodes, *lane) + tree.held.shape.children.growth(nodes);
        let room = tree.limit.room(tree.memory_bytes(), slots);
        let mut admitted = room.map_or(0, |room| (room / size_of::<U>()).min(rest));
        admitted -= admitted % page;
        if room.is_none() || admitted < rest {
            tree.limit.cut = Some(rest - admitted);
        }
        room.map(|_| admitted)
    }
}
