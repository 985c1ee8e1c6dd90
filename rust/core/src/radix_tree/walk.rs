//! Following a key from the root.

use super::RadixTree;
use super::labels::{Child, Children, Labels, stored};
use super::unit::{Key, Unit};
use crate::collections::shared_slice::SharedSlice;
use crate::prefix_tree::{Held, NONE};

/// Where a key leaves the tree, or ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot {
    /// The last node reached, `NONE` for the root.
    pub(super) node: u32,
    /// Stored units of its label that belong to the key.
    pub(super) inside: usize,
    /// Counted units of its label that do.
    pub(super) upto: u32,
    /// Stored units of the key that were followed.
    pub(super) at: usize,
}

impl Spot {
    /// Counted units up to here.
    pub(super) fn depth<U: Unit>(self, nodes: &Labels<U>) -> u32 {
        if self.node == NONE {
            0
        } else {
            nodes[self.node].start + self.upto
        }
    }
}

impl Children {
    /// Stored units of the key in whole pages.
    pub(super) fn whole<U: Unit, K: Key<U> + ?Sized>(&self, key: &K) -> usize {
        if U::PLAIN {
            key.len() - key.len() % self.page
        } else {
            key.len()
        }
    }

    /// Follows the first `end` stored units of a key.
    pub(super) fn walk<U: Unit, K: Key<U> + ?Sized>(
        &self,
        nodes: &Labels<U>,
        key: &K,
        end: usize,
    ) -> Spot {
        let mut spot = Spot {
            node: NONE,
            inside: 0,
            upto: 0,
            at: 0,
        };
        while spot.at < end {
            let Some(child) = self.child(nodes, spot.node, key, spot.at, end) else {
                return spot;
            };
            let Child { id, node, label } = child;
            let most = label.len().min(end - spot.at);
            let same = key.common(spot.at, &label[..most]);
            let inside = U::floor(label, same, self.page);
            if inside == 0 {
                // A key in memory that other threads write to has changed since the child was found.
                return spot;
            }
            let whole = inside == label.len();
            spot = Spot {
                node: id,
                inside,
                upto: if whole {
                    node.len
                } else {
                    U::count(&label[..inside]) as u32
                },
                at: spot.at + inside,
            };
            if !whole {
                return spot;
            }
        }
        spot
    }

    /// Follows a key as far as it may be held, to a depth of `most`; also returns where the key ends, in stored units.
    pub(super) fn reach<U: Unit, K: Key<U> + ?Sized>(
        &self,
        nodes: &Labels<U>,
        key: &K,
        most: u32,
    ) -> (Spot, usize) {
        let mut end = self.whole(key);
        if U::PLAIN {
            end = end.min(most as usize);
        }
        let mut spot = self.walk(nodes, key, end);
        if spot.depth(nodes) < most {
            return (spot, end);
        }
        // Deep enough. The rest of the key does not matter, so neither does how long it is.
        while spot.node != NONE && nodes[spot.node].start >= most {
            spot.node = nodes[spot.node].parent;
        }
        if spot.node != NONE {
            spot.upto = most - nodes[spot.node].start;
            spot.inside = stored(&nodes[spot.node], spot.upto);
        }
        (spot, spot.at)
    }
}

impl<U: Unit> RadixTree<U> {
    /// The whole pages of `key` that any worker holds, in the stretches and the memory in which the tree keeps them. A
    /// stretch of which they are less than half is copied.
    #[must_use]
    pub fn pieces<K: Key<U> + ?Sized>(&self, key: &K) -> Vec<SharedSlice<U>> {
        let Held { shape, nodes, .. } = &self.held;
        let spot = shape.children.walk(nodes, key, shape.children.whole(key));
        let (mut node, mut inside) = (spot.node, spot.inside);
        let mut pieces = Vec::new();
        while node != NONE {
            let label = &nodes[node].own.units;
            pieces.push(label.part(0..inside.min(label.len())));
            (node, inside) = (nodes[node].parent, usize::MAX);
        }
        pieces.reverse();
        pieces
    }
}
