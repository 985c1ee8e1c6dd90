//! Keeping within a number of bytes, for one memory budget over several indexes.
//!
//! An insert that there is no room for ends early and says how much is lacking; it goes on where it stopped when the caller
//! has evicted something and inserts the key again. One insert may take a little more than there is, for which the caller
//! evicts afterwards.

use super::RadixTree;
use super::insert::Insert;
use super::unit::Unit;

impl<U: Unit> RadixTree<U> {
    /// Lets the tree grow up to about `bytes` of [`Self::memory_bytes`], beyond which inserts end early; see [`Self::cut`].
    /// `tick` is the time of uses from now on, which makes the ages of several indexes comparable.
    pub fn set_limit(&mut self, bytes: usize, tick: u64) {
        self.limit.bytes = bytes.min(usize::MAX - 1);
        self.held.records.tick = tick;
    }
}

impl<U: Unit> Insert<'_, U> {
    /// How many of the `rest` stored units may be added; `None` if there is not even room for holding the path before them.
    pub(super) fn admit(&mut self, rest: usize) -> Option<usize> {
        let tree = &mut *self.tree;
        if !tree.limit.is_set() {
            return Some(rest);
        }
        let room = tree.room(size_of::<U>());
        let mut admitted = room.map_or(0, |room| room.min(rest));
        admitted -= admitted % tree.held.shape.children.page;
        if room.is_none() || admitted < rest {
            tree.limit.cut = Some(rest - admitted);
        }
        room.map(|_| admitted)
    }
}
