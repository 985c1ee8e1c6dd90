//! Keeping within a number of bytes, for one memory budget over several indexes.
//!
//! Nothing is inserted that there is no room for: an insert ends early instead, says how much is lacking, and goes on where
//! it stopped when the caller has evicted something and inserts the key again.

use super::insert::Insert;
use super::unit::Unit;
use super::walk::Spot;
use super::{EDGE, RadixTree};
use crate::forest::NONE;
use crate::forest::expiry::Expiry;
use crate::forest::room::Need;

impl<U: Unit> RadixTree<U> {
    /// Lets the tree grow up to `bytes` of [`Self::memory_bytes`], beyond which inserts end early; see [`Self::cut`].
    /// `tick` is the time of uses from now on, which makes the ages of several indexes comparable.
    pub fn set_limit(&mut self, bytes: usize, tick: u64) {
        self.limit.bytes = bytes;
        self.held.records.tick = tick;
    }

    /// Whether what the latest insert lacked is there now.
    #[must_use]
    pub fn fits(&self) -> bool {
        let units = self.limit.cut.unwrap_or(0) * size_of::<U>();
        self.memory_bytes() + self.held.shape.lacking + units <= self.limit.bytes
    }
}

impl<U: Unit> Insert<'_, U> {
    /// How many of the `rest` stored units behind `spot` may be added; `None` if there is not even room for holding the
    /// path up to there.
    pub(super) fn admit(&mut self, spot: Spot, rest: usize) -> Option<usize> {
        if !self.tree.limit.is_set() {
            return Some(rest);
        }
        let need = self.structure(spot, rest);
        let used = self.tree.memory_bytes() + need;
        let room = self.tree.limit.bytes.checked_sub(used);
        let mut admitted = room.map_or(0, |room| (room / size_of::<U>()).min(rest));
        admitted -= admitted % self.tree.held.shape.children.page;
        if room.is_none() || admitted < rest {
            self.tree.limit.cut = Some(rest - admitted);
            self.tree.held.shape.lacking = need;
        }
        room.map(|_| admitted)
    }

    /// Bytes that an insert may take beside the units of its labels.
    fn structure(&self, spot: Spot, rest: usize) -> usize {
        let (held, lane) = (&self.tree.held, self.lane);
        let nodes = rest.div_ceil(EDGE - held.shape.children.page.max(4)) + 1;
        let mut need = Need {
            nodes,
            records: nodes,
            sets: 2,
            heap: Expiry::growth(2),
        };
        let mut node = spot.node;
        if node != NONE && spot.upto < held.nodes[node].len {
            need.split(&held.nodes[node].holders);
        }
        while node != NONE {
            let n = &held.nodes[node];
            if held.nodes.covered(node, lane) > 0 {
                // It may be split because of deadlines.
                need.split(&n.holders);
                break;
            }
            need.records += 1;
            need.cover(&n.holders);
            node = n.parent;
        }
        need.open(held, lane);
        need.slots(held) + held.shape.children.growth(need.nodes) + need.heap
    }
}
