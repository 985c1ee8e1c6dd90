//! Nodes and the table that finds the child with which a key continues.
//!
//! A child is found by its parent and its first step (a character, or a page): one table for the whole tree, so a node
//! with a hundred thousand children costs no more than any other. The table is a linear hash table: it grows and
//! shrinks by one bucket per change and never stops to rehash.

use super::unit::{Key, Unit};
use crate::collections::seeded_hash::SeededHash;
use crate::collections::shared_slice::SharedSlice;
use crate::collections::slab::Slot;
use crate::prefix_tree::NONE;
use crate::prefix_tree::nodes::{Node, Nodes};

/// Heads per segment of the table.
const SEGMENT: usize = 1024;

/// Data of a node of the tree: the label of the edge it ends.
#[derive(Debug, Clone)]
pub struct Label<U> {
    pub(super) units: SharedSlice<U>,
    /// Next node of the same bucket.
    next: u32,
    /// Hash of parent, namespace and first step.
    hash: u32,
    /// Namespace of a first node, 0 below.
    pub(super) space: u32,
    /// Exclusive or of the ids of children, which is the id of an only child.
    only: u32,
}

impl<U> Slot for Label<U> {
    fn vacant() -> Self {
        Self {
            units: SharedSlice::default(),
            next: NONE,
            hash: 0,
            space: 0,
            only: 0,
        }
    }
}

/// Nodes with their labels.
pub(super) type Labels<U> = Nodes<Label<U>>;

/// A child with which a key continues.
pub(super) struct Child<'a, U> {
    pub(super) id: u32,
    pub(super) node: &'a Node<Label<U>>,
    pub(super) label: &'a [U],
}

/// The child of a node, if there is exactly one.
pub(super) fn only_child<U>(node: &Node<Label<U>>) -> Option<u32> {
    (node.children == 1).then_some(node.own.only)
}

/// The table of children, and counts of labels.
#[derive(Debug, Default)]
pub struct Children {
    /// Tokens per page, 1 for text.
    pub(super) page: usize,
    mix: SeededHash,
    segments: Vec<Box<[u32; SEGMENT]>>,
    buckets: u32,
    live: u32,
    /// Heap bytes of labels.
    heap: usize,
    /// Counted units of all labels.
    pub(super) units: u64,
}

#[inline]
fn hash_of(mix: SeededHash, parent: u32, space: u32, step: impl Iterator<Item = u32>) -> u32 {
    let first = mix.all(u64::from(parent) << 32 | u64::from(space));
    let hash = step.fold(first, |hash, word| mix.all(hash ^ u64::from(word)));
    (hash ^ hash >> 32) as u32
}

/// Stored units of a node's first `counted`.
pub(super) fn stored<U: Unit>(node: &Node<Label<U>>, counted: u32) -> usize {
    let label = &node.own.units;
    if label.len() == node.len as usize {
        counted as usize
    } else if counted == node.len {
        label.len()
    } else {
        U::prefix(label, counted as usize)
    }
}

impl Children {
    pub(super) fn new(page: usize) -> Self {
        Self {
            page,
            ..Self::default()
        }
    }

    /// The child of `parent` (`NONE`: the root) with which `key` continues at `at`, if a whole step fits before `end`.
    #[inline]
    pub(super) fn child<'a, U: Unit, K: Key<U> + ?Sized>(
        &self,
        nodes: &'a Labels<U>,
        parent: u32,
        key: &K,
        at: usize,
        end: usize,
    ) -> Option<Child<'a, U>> {
        let step = key.unit(at).step(self.page);
        if at + step > end || self.live == 0 {
            return None;
        }
        let space = if parent == NONE { key.namespace() } else { 0 };
        let hash = hash_of(
            self.mix,
            parent,
            space,
            (at..at + step).map(|i| key.unit(i).word()),
        );
        let mut id = self.head(self.bucket(hash));
        while id != NONE {
            let node = &nodes[id];
            if node.own.hash == hash && node.parent == parent && node.own.space == space {
                let label = &*node.own.units;
                let same = if step == 1 {
                    label[0] == key.unit(at)
                } else {
                    let first = label.get(..step);
                    first.is_some_and(|first| key.common(at, first) == step)
                };
                if same {
                    return Some(Child { id, node, label });
                }
            }
            id = node.own.next;
        }
        None
    }

    /// Whether a child of `parent` begins as `label` does.
    pub(super) fn begins<U: Unit>(
        &self,
        nodes: &Labels<U>,
        parent: u32,
        space: u32,
        label: &[U],
    ) -> bool {
        if self.live == 0 {
            return false;
        }
        let first = &label[..label[0].step(self.page)];
        let hash = hash_of(self.mix, parent, space, first.iter().map(|u| u.word()));
        let live = |node: u32| (node != NONE).then_some(node);
        let next = |node: &u32| live(nodes[*node].own.next);
        std::iter::successors(live(self.head(self.bucket(hash))), next).any(|node| {
            let n = &nodes[node];
            n.own.hash == hash
                && n.parent == parent
                && n.own.space == space
                && n.own.units.starts_with(first)
        })
    }

    /// Adds a node without holders.
    pub(super) fn add<U: Unit>(
        &mut self,
        nodes: &mut Labels<U>,
        parent: u32,
        space: u32,
        units: SharedSlice<U>,
    ) -> u32 {
        let len = U::count(&units) as u32;
        let start = if parent == NONE {
            0
        } else {
            nodes[parent].end()
        };
        self.units += u64::from(len);
        self.heap += units.heap_bytes();
        let own = Label {
            units,
            space,
            ..Label::vacant()
        };
        let node = nodes.add(Node::new(len, start, parent, own));
        self.attach(nodes, node);
        node
    }

    /// Frees a node without holders and children, whose set was given back; returns its parent.
    pub(super) fn forget<U: Unit>(&mut self, nodes: &mut Labels<U>, node: u32) -> u32 {
        self.detach(nodes, node);
        let n = &mut nodes[node];
        self.units -= u64::from(n.len);
        self.heap -= n.own.units.heap_bytes();
        let parent = n.parent;
        nodes.forget(node);
        parent
    }

    /// Ends a label after its first `counted` units.
    pub(super) fn truncate<U: Unit>(&mut self, nodes: &mut Labels<U>, node: u32, counted: u32) {
        let stored = stored(&nodes[node], counted);
        let n = &mut nodes[node];
        self.units -= u64::from(n.len - counted);
        self.heap -= n.own.units.heap_bytes();
        n.len = counted;
        n.own.units = n.own.units.part(0..stored);
        self.heap += n.own.units.heap_bytes();
    }

    /// Makes the first `counted` units a node of their own, which takes the place of `node` and has it as its only child;
    /// returns its id. It has no holders yet.
    pub(super) fn divide<U: Unit>(
        &mut self,
        nodes: &mut Labels<U>,
        node: u32,
        counted: u32,
    ) -> u32 {
        let stored = stored(&nodes[node], counted);
        self.detach(nodes, node);
        let n = &mut nodes[node];
        let (parent, space) = (n.parent, n.own.space);
        self.heap -= n.own.units.heap_bytes();
        let upper = SharedSlice::new(&n.own.units[..stored]);
        n.own.units = SharedSlice::new(&n.own.units[stored..]);
        self.heap += n.own.units.heap_bytes();
        n.len -= counted;
        n.start += counted;
        n.own.space = 0;
        self.units -= u64::from(counted);
        let upper = self.add(nodes, parent, space, upper);
        nodes[node].parent = upper;
        self.attach(nodes, node);
        upper
    }

    /// Puts the label of `upper` before that of `lower`, its only child, which takes its place. `upper` has no holders
    /// any more and is gone afterwards.
    pub(super) fn unite<U: Unit>(&mut self, nodes: &mut Labels<U>, upper: u32, lower: u32) {
        self.detach(nodes, lower);
        let u = &mut nodes[upper];
        let (space, start, len) = (u.own.space, u.start, u.len);
        let above = std::mem::take(&mut u.own.units);
        u.len = 0;
        let l = &mut nodes[lower];
        self.heap -= above.heap_bytes() + l.own.units.heap_bytes();
        l.own.units = SharedSlice::new([&*above, &*l.own.units].concat());
        self.heap += l.own.units.heap_bytes();
        l.own.space = space;
        l.start = start;
        l.len += len;
        // The first step is still that of `upper`, so it goes out of the table before its label does.
        self.detach(nodes, upper);
        let parent = nodes[upper].parent;
        nodes.forget(upper);
        nodes[lower].parent = parent;
        self.attach(nodes, lower);
    }

    // --- the table

    fn bucket(&self, hash: u32) -> u32 {
        let mask = self.buckets.next_power_of_two() - 1;
        let bucket = hash & mask;
        if bucket < self.buckets {
            bucket
        } else {
            hash & mask >> 1
        }
    }

    #[inline]
    fn head(&self, bucket: u32) -> u32 {
        self.segments[bucket as usize / SEGMENT][bucket as usize % SEGMENT]
    }

    fn set_head(&mut self, bucket: u32, node: u32) {
        self.segments[bucket as usize / SEGMENT][bucket as usize % SEGMENT] = node;
    }

    /// Makes a node findable and counts it with its parent.
    fn attach<U: Unit>(&mut self, nodes: &mut Labels<U>, node: u32) {
        let n = &nodes[node];
        let parent = n.parent;
        let step = n.own.units[0].step(self.page);
        let hash = hash_of(
            self.mix,
            parent,
            n.own.space,
            n.own.units[..step].iter().map(|u| u.word()),
        );
        if self.buckets == 0 {
            self.grow(nodes);
        }
        let bucket = self.bucket(hash);
        let head = self.head(bucket);
        let n = &mut nodes[node];
        n.own.hash = hash;
        n.own.next = head;
        self.set_head(bucket, node);
        self.live += 1;
        if self.live > self.buckets {
            self.grow(nodes);
        }
        if parent != NONE {
            let above = &mut nodes[parent];
            above.children += 1;
            above.own.only ^= node;
        }
    }

    fn detach<U: Unit>(&mut self, nodes: &mut Labels<U>, node: u32) {
        let n = &nodes[node];
        let (parent, hash, next) = (n.parent, n.own.hash, n.own.next);
        let bucket = self.bucket(hash);
        let mut at = self.head(bucket);
        if at == node {
            self.set_head(bucket, next);
        } else {
            while nodes[at].own.next != node {
                at = nodes[at].own.next;
            }
            nodes[at].own.next = next;
        }
        self.live -= 1;
        if self.live < self.buckets / 4 || self.live == 0 {
            self.shrink(nodes);
        }
        if parent != NONE {
            let above = &mut nodes[parent];
            above.children -= 1;
            above.own.only ^= node;
        }
    }

    /// One bucket more, which takes its share from one that is there.
    fn grow<U: Unit>(&mut self, nodes: &mut Labels<U>) {
        let new = self.buckets;
        if new as usize == self.segments.len() * SEGMENT {
            self.segments.push(Box::new([NONE; SEGMENT]));
        }
        self.buckets += 1;
        if new == 0 {
            return;
        }
        let half = 1 << new.ilog2();
        let from = new & (half - 1);
        let mut node = self.head(from);
        let (mut stay, mut go) = (NONE, NONE);
        while node != NONE {
            let next = nodes[node].own.next;
            let chain = if self.bucket(nodes[node].own.hash) == new {
                &mut go
            } else {
                &mut stay
            };
            nodes[node].own.next = *chain;
            *chain = node;
            node = next;
        }
        self.set_head(from, stay);
        self.set_head(new, go);
    }

    /// One bucket less.
    fn shrink<U: Unit>(&mut self, nodes: &mut Labels<U>) {
        if self.live == 0 {
            self.segments = Vec::new();
            self.buckets = 0;
            return;
        }
        let last = self.buckets - 1;
        let mut node = self.head(last);
        self.set_head(last, NONE);
        self.buckets = last;
        while node != NONE {
            let next = nodes[node].own.next;
            let bucket = self.bucket(nodes[node].own.hash);
            let head = self.head(bucket);
            nodes[node].own.next = head;
            self.set_head(bucket, node);
            node = next;
        }
        if (self.segments.len() - 1) * SEGMENT >= last as usize {
            self.segments.pop();
        }
    }

    // --- sizes

    /// Nodes in the fullest bucket.
    #[cfg(test)]
    pub(super) fn longest_bucket<U: Unit>(&self, nodes: &Labels<U>) -> usize {
        let live = |node: u32| (node != NONE).then_some(node);
        let next = |node: &u32| live(nodes[*node].own.next);
        let chain = |bucket| std::iter::successors(live(self.head(bucket)), next).count();
        (0..self.buckets).map(chain).max().unwrap_or(0)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.live as usize * 2 * size_of::<u32>() + self.heap
    }

    /// Whether the table leads to a node, and to it alone.
    pub(super) fn finds<U: Unit>(&self, nodes: &Labels<U>, node: u32) -> bool {
        let n = &nodes[node];
        let step = &n.own.units[..n.own.units[0].step(self.page)];
        let mut at = self.head(self.bucket(n.own.hash));
        let mut found = 0;
        while at != NONE {
            let a = &nodes[at];
            let twin =
                a.parent == n.parent && a.own.space == n.own.space && a.own.units.starts_with(step);
            found += u32::from(twin);
            at = a.own.next;
        }
        found == 1
    }
}
