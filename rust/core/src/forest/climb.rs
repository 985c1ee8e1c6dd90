//! Leading units of every worker at once.
//!
//! From the deepest known node the path is climbed to the root. A node says in one comparison of set ids whether anything
//! changes there.

use super::lanes::{is_device, slot_of};
use super::leading::Leading;
use super::nodes::Node;
use super::{Forest, NONE, Shape};

impl<S: Shape> Forest<S> {
    /// Calls `enter` for every node from the deepest up where it matters, with the depth up to which it is asked for.
    #[inline]
    pub(crate) fn climb(
        &self,
        deepest: &Node<S::Own>,
        end: u32,
        mut enter: impl FnMut(&Node<S::Own>, u32),
    ) {
        let mut node = deepest;
        enter(node, end);
        while node.parent != NONE {
            let above = &self.nodes[node.parent];
            if above.full != node.full || above.partial > 0 || node.partial > 0 {
                enter(above, above.end());
            }
            node = above;
        }
    }

    /// Extends an answer for what lies below `node` by the node itself, of which the query covers the depths up to `end`:
    /// held means held in any lane. Calls `device` with what is held of a part of it in device memory.
    #[inline]
    pub(crate) fn climb_lanes(
        &self,
        node: &Node<S::Own>,
        end: u32,
        held: &mut Leading,
        mut device: impl FnMut(u32, u32),
    ) {
        let (full, words) = (self.sets.members(node.full), self.sets.words());
        let in_any = |at| full[at..].iter().step_by(words).fold(0, |all, w| all | w);
        held.climb((0..words).map(in_any), end);
        if node.partial == 0 {
            return;
        }
        let mut longest = NONE;
        for entry in node.partials() {
            let slot = slot_of(entry.lane);
            let depth = end.min(node.start + entry.count);
            if is_device(entry.lane) {
                device(slot, depth);
            }
            if slot == longest {
                // Lanes of a worker are neighbours.
                held.raise(slot, depth);
            } else if !held.has(slot) {
                // Another of its lanes holds the whole node if the bit is set.
                held.set(slot, depth);
                longest = slot;
            }
        }
    }

    /// The same where all is in device memory.
    #[inline]
    pub(crate) fn climb_device(&self, node: &Node<S::Own>, end: u32, held: &mut Leading) {
        let full = self.sets.members(node.full);
        held.climb(full.iter().copied(), end);
        if node.partial > 0 {
            for entry in node.partials() {
                let depth = end.min(node.start + entry.count);
                held.set(slot_of(entry.lane), depth);
            }
        }
    }
}
