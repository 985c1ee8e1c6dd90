//! Following a key from the root.

use super::RadixTree;
use super::unit::{Key, Unit};
use crate::forest::NONE;

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

impl<U: Unit> RadixTree<U> {
    /// Stored units of the key in whole pages.
    pub(super) fn whole<K: Key<U> + ?Sized>(&self, key: &K) -> usize {
        if U::PLAIN {
            key.len() - key.len() % self.held.shape.children.page
        } else {
            key.len()
        }
    }

    /// Follows the first `end` stored units of a key.
    pub(super) fn walk<K: Key<U> + ?Sized>(&self, key: &K, end: usize) -> Spot {
        let mut spot = Spot {
            node: NONE,
            inside: 0,
            upto: 0,
            at: 0,
        };
        while spot.at < end {
            let Some(child) =
                self.held
                    .shape
                    .children
                    .child(&self.held.nodes, spot.node, key, spot.at, end)
            else {
                return spot;
            };
            let node = &self.held.nodes[child];
            let label = &node.own.units;
            let most = label.len().min(end - spot.at);
            let same = key.common(spot.at, &label[..most]);
            let inside = U::floor(label, same, self.held.shape.children.page);
            if inside == 0 {
                // A key in memory that others write to is no longer what the child was found by.
                return spot;
            }
            let whole = inside == label.len();
            spot = Spot {
                node: child,
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

    /// Counted units up to a spot.
    pub(super) fn depth(&self, spot: Spot) -> u32 {
        if spot.node == NONE {
            0
        } else {
            self.held.nodes[spot.node].start + spot.upto
        }
    }
}
