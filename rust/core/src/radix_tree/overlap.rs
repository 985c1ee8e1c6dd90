//! Leading units of every worker at once.

use super::RadixTree;
use super::labels::Label;
use super::shape::Labelled;
use super::unit::{Key, Unit};
use crate::prefix_tree::leading::Leading;
use crate::prefix_tree::nodes::Node;
use crate::prefix_tree::sets::LaneSets;
use crate::prefix_tree::{Held, NONE};

/// Answer buffer, reused between calls so that a lookup allocates nothing.
#[derive(Debug, Default, Clone)]
pub struct PrefixOverlaps {
    held: Leading,
    /// The deepest depth of all workers.
    pub matched: u32,
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

    /// Begins the answer to a key. Returns the deepest node of it, and the depth up to which it is asked for.
    fn begin<'a, U: Unit, K: Key<U> + ?Sized>(
        &mut self,
        tree: &'a Held<Labelled<U>>,
        key: &K,
    ) -> Option<(&'a Node<Label<U>>, u32)> {
        let (children, nodes) = (&tree.shape.children, &tree.nodes);
        let spot = children.walk(nodes, key, children.whole(key));
        self.matched = spot.depth(nodes);
        let slots = tree.lanes.workers.len();
        self.held.reset(slots, tree.sets.words());
        (spot.node != NONE).then(|| (&nodes[spot.node], self.matched))
    }

    #[inline]
    fn climb<U>(&mut self, sets: &LaneSets, node: &Node<Label<U>>, end: u32) {
        if sets.several_media() {
            self.held.climb_lanes(sets, node, end, |_, _| {});
        } else {
            self.held.climb_device(sets, node, end);
        }
    }
}

impl<U: Unit> RadixTree<U> {
    /// Fills `out` with the leading units of `key` that every worker holds, in whole pages. Changes nothing.
    pub fn overlaps<K: Key<U> + ?Sized>(&self, key: &K, out: &mut PrefixOverlaps) {
        let Held { nodes, sets, .. } = &self.held;
        if let Some((node, end)) = out.begin(&self.held, key) {
            nodes.climb(node, end, |node, end| out.climb(sets, node, end));
        }
    }

    /// [`Self::overlaps`] for the workers with the longest match.
    pub fn match_prefix<K: Key<U> + ?Sized>(&self, key: &K, out: &mut PrefixOverlaps) {
        if let Some((node, end)) = out.begin(&self.held, key) {
            out.climb(&self.held.sets, node, end);
            out.held.keep(end);
        }
    }
}
