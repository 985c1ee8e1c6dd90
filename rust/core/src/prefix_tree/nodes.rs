//! Nodes: maximal unbranched stretches of units, and who holds how much of each.
//!
//! Children hang at the end of a node only; a branch inside one splits it. A lane's coverage of a node is a prefix, so a
//! further holder costs one [`Entry`] per node, not per unit.

use super::NONE;
use super::sets::EMPTY;
use crate::collections::slab::{Slab, Slot};

/// One lane's share of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub(crate) lane: u32,
    /// The lane's recency record of the node.
    pub(crate) record: u32,
    /// Leading units of the node held; 0 makes the entry a ghost that only connects descendants.
    pub(crate) count: u32,
}

/// The entries of a node, ascending by lane. Most runs have one.
#[derive(Debug, Default, Clone)]
pub enum Holders {
    #[default]
    None,
    One(Entry),
    // Boxed twice to keep a node of the block index at 48 bytes: nearly all have one holder.
    #[allow(clippy::box_collection)]
    Many(Box<Vec<Entry>>),
}

impl Holders {
    #[inline]
    pub(crate) fn as_slice(&self) -> &[Entry] {
        match self {
            Self::None => &[],
            Self::One(entry) => std::slice::from_ref(entry),
            Self::Many(entries) => entries,
        }
    }

    #[inline]
    pub(crate) fn get(&self, lane: u32) -> Option<&Entry> {
        match self {
            Self::None => None,
            Self::One(entry) => (entry.lane == lane).then_some(entry),
            Self::Many(entries) => entries
                .binary_search_by_key(&lane, |e| e.lane)
                .ok()
                .map(|i| &entries[i]),
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, lane: u32) -> Option<&mut Entry> {
        match self {
            Self::None => None,
            Self::One(entry) => (entry.lane == lane).then_some(entry),
            Self::Many(entries) => match entries.binary_search_by_key(&lane, |e| e.lane) {
                Ok(i) => Some(&mut entries[i]),
                Err(_) => None,
            },
        }
    }

    /// Adds the entry of a lane that has none.
    pub(crate) fn insert(&mut self, entry: Entry) {
        match self {
            Self::None => *self = Self::One(entry),
            Self::One(first) => {
                let mut entries = vec![*first, entry];
                entries.sort_unstable_by_key(|e| e.lane);
                *self = Self::Many(Box::new(entries));
            }
            Self::Many(entries) => {
                let at = entries.partition_point(|e| e.lane < entry.lane);
                entries.insert(at, entry);
            }
        }
    }

    pub(crate) fn remove(&mut self, lane: u32) {
        match self {
            Self::None => {}
            Self::One(entry) => {
                if entry.lane == lane {
                    *self = Self::None;
                }
            }
            Self::Many(entries) => {
                entries.retain(|e| e.lane != lane);
                match entries.len() {
                    0 => *self = Self::None,
                    1 => *self = Self::One(entries[0]),
                    n if n * 4 < entries.capacity() => entries.shrink_to(n * 2),
                    _ => {}
                }
            }
        }
    }
}

/// A stretch of `len` units at depths `start..start + len`.
#[derive(Debug, Clone)]
pub struct Node<X> {
    pub(crate) len: u32,
    pub(crate) start: u32,
    pub(crate) parent: u32,
    /// Nodes whose parent this is.
    pub(crate) children: u32,
    /// Interned set of the lanes that hold all of it.
    pub(crate) full: u32,
    /// Entries with `0 < count < len`.
    pub(crate) partial: u32,
    pub(crate) holders: Holders,
    /// Data of its shape.
    pub(crate) own: X,
}

impl<X> Node<X> {
    /// A node without holders, which is to be counted with its parent.
    pub(crate) fn new(len: u32, start: u32, parent: u32, own: X) -> Self {
        Self {
            len,
            start,
            parent,
            children: 0,
            full: EMPTY,
            partial: 0,
            holders: Holders::None,
            own,
        }
    }

    #[inline]
    pub(crate) fn end(&self) -> u32 {
        self.start + self.len
    }

    /// Entries that cover some of the node and not all.
    #[inline]
    pub(crate) fn partials(&self) -> impl Iterator<Item = &Entry> {
        let entries = self.holders.as_slice().iter();
        entries.filter(|e| e.count > 0 && e.count < self.len)
    }
}

impl<X: Slot> Slot for Node<X> {
    fn vacant() -> Self {
        Self::new(0, 0, NONE, X::vacant())
    }
}

/// All nodes.
pub type Nodes<X> = Slab<Node<X>>;

impl<X: Slot> Slab<Node<X>> {
    /// Frees the slot of a node without holders; the caller has dealt with parent, units and set.
    pub(crate) fn forget(&mut self, node: u32) {
        debug_assert!(self[node].holders.as_slice().is_empty(), "it is not held");
        self.remove(node);
    }

    /// Adds the entry of a lane that has none.
    pub(crate) fn hold(&mut self, node: u32, lane: u32, record: u32, count: u32) {
        self[node].holders.insert(Entry {
            lane,
            record,
            count,
        });
    }

    /// Takes out the entry of a lane.
    pub(crate) fn release(&mut self, node: u32, lane: u32) {
        self[node].holders.remove(lane);
    }

    /// Takes all entries out.
    pub(crate) fn take_holders(&mut self, node: u32) -> Holders {
        std::mem::take(&mut self[node].holders)
    }

    /// Sets the entries of a node, ascending by lane.
    pub(crate) fn give_holders(&mut self, node: u32, entries: Vec<Entry>) {
        self[node].holders = match entries.len() {
            0 => Holders::None,
            1 => Holders::One(entries[0]),
            _ => Holders::Many(Box::new(entries)),
        };
    }

    pub(crate) fn entry(&self, node: u32, lane: u32) -> Option<Entry> {
        self[node].holders.get(lane).copied()
    }

    /// Leading units of a node held in a lane.
    pub(crate) fn covered(&self, node: u32, lane: u32) -> u32 {
        self[node].holders.get(lane).map_or(0, |e| e.count)
    }

    /// Calls `enter` for every node from the deepest up to the root where the holders change, with the depth up to
    /// which it is asked for: one comparison of set ids shows a change.
    #[inline]
    pub(crate) fn climb(&self, deepest: &Node<X>, end: u32, mut enter: impl FnMut(&Node<X>, u32)) {
        let mut node = deepest;
        enter(node, end);
        while node.parent != NONE {
            let above = &self[node.parent];
            if above.full != node.full || above.partial > 0 || node.partial > 0 {
                enter(above, above.end());
            }
            node = above;
        }
    }
}
