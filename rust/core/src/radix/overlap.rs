//! Leading units of every worker at once.

use super::RadixTree;
use super::labels::Label;
use super::unit::{Key, Unit};
use crate::forest::NONE;
use crate::forest::leading::Leading;
use crate::forest::nodes::Node;

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
        let Some((node, end)) = self.deepest(key, out) else {
            return;
        };
        self.held
            .nodes
            .climb(node, end, |node, end| self.climb_node(node, end, out));
    }

    /// [`Self::overlaps`] for the workers that hold all that anybody holds: the longest match.
    pub fn match_prefix<K: Key<U> + ?Sized>(&self, key: &K, out: &mut PrefixOverlaps) {
        let Some((node, end)) = self.deepest(key, out) else {
            return;
        };
        self.climb_node(node, end, out);
        out.held.keep(end);
    }

    fn deepest<K: Key<U> + ?Sized>(
        &self,
        key: &K,
        out: &mut PrefixOverlaps,
    ) -> Option<(&Node<Label<U>>, u32)> {
        let spot = self.walk(key, self.whole(key));
        out.matched = self.depth(spot);
        out.held
            .reset(self.held.lanes.workers.len(), self.held.sets.words());
        (spot.node != NONE).then(|| (&self.held.nodes[spot.node], out.matched))
    }

    #[inline]
    fn climb_node(&self, node: &Node<Label<U>>, end: u32, out: &mut PrefixOverlaps) {
        if self.held.sets.several_media() {
            let sets = &self.held.sets;
            out.held.climb_lanes(sets, node, end, |_, _| {});
        } else {
            out.held.climb_device(&self.held.sets, node, end);
        }
    }
}
