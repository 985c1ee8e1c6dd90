//! Leading units of every worker at once.
//!
//! From the deepest node of the key the path is climbed to the root. A node says in one comparison of set ids whether
//! anything changes there.

use super::RadixTree;
use super::nodes::Node;
use super::unit::{Key, Unit};
use crate::index::NONE;
use crate::index::lanes::slot_of;
use crate::index::leading::Leading;

/// Answer buffer, reused between calls so that a lookup allocates nothing.
#[derive(Debug, Default, Clone)]
pub struct PrefixOverlaps {
    held: Leading,
    matched: u32,
}

impl PrefixOverlaps {
    /// Leading units held by the worker in `slot`.
    #[inline]
    #[must_use]
    pub fn depth(&self, slot: u32) -> u32 {
        self.held.get(slot)
    }

    /// Every slot in the answer with its depth, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.held.iter()
    }

    /// The deepest depth of all workers.
    #[must_use]
    pub fn matched(&self) -> u32 {
        self.matched
    }
}

impl<U: Unit> RadixTree<U> {
    /// Fills `out` with the leading units of `key` that every worker holds, in whole pages. Changes nothing.
    pub fn overlaps<K: Key<U> + ?Sized>(&self, key: &K, out: &mut PrefixOverlaps) {
        let Some((mut node, end)) = self.deepest(key, out) else {
            return;
        };
        self.climb(node, end, out);
        while node.parent != NONE {
            let above = &self.nodes[node.parent];
            if above.full != node.full || above.partial > 0 || node.partial > 0 {
                self.climb(above, above.end(), out);
            }
            node = above;
        }
    }

    /// [`Self::overlaps`] for the workers that hold all that anybody holds: the longest match.
    pub fn match_prefix<K: Key<U> + ?Sized>(&self, key: &K, out: &mut PrefixOverlaps) {
        let Some((node, end)) = self.deepest(key, out) else {
            return;
        };
        self.climb(node, end, out);
        out.held.keep(end);
    }

    fn deepest<K: Key<U> + ?Sized>(
        &self,
        key: &K,
        out: &mut PrefixOverlaps,
    ) -> Option<(&Node<U>, u32)> {
        let spot = self.walk(key, self.whole(key));
        out.matched = self.depth(spot);
        out.held.reset(self.lanes.workers.len(), self.sets.words());
        (spot.node != NONE).then(|| (&self.nodes[spot.node], out.matched))
    }

    /// Extends an answer for what lies below `node` by the node itself, of which the key covers the depths up to `end`.
    #[inline]
    fn climb(&self, node: &Node<U>, end: u32, out: &mut PrefixOverlaps) {
        let full = self.sets.members(node.full);
        if self.sets.several_media() {
            let words = self.sets.words();
            let in_any = |at| full[at..].iter().step_by(words).fold(0, |all, w| all | w);
            out.held.climb((0..words).map(in_any), end);
        } else {
            out.held.climb(full.iter().copied(), end);
        }
        if node.partial == 0 {
            return;
        }
        let mut longest = NONE;
        for entry in node.partials() {
            let slot = slot_of(entry.lane);
            let depth = end.min(node.start + entry.count);
            if slot == longest {
                // Lanes of a worker are neighbours.
                out.held.raise(slot, depth);
            } else if !out.held.has(slot) {
                // Its other lane holds the whole node if it is there.
                out.held.set(slot, depth);
                longest = slot;
            }
        }
    }
}
