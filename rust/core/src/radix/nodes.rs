//! Nodes and the table that finds the child a key goes on with.
//!
//! A child is found by its parent and its first step (a character, or a page): one table for the whole tree, so a node
//! with a hundred thousand children costs no more than others. The table is a linear hash table: it grows and shrinks by
//! one bucket per change and never stops to rehash.

use super::unit::{Key, Unit};
use crate::index::NONE;
use crate::index::runs::{Entry, Holders};
use crate::index::sets::EMPTY;
use crate::index::slab::{Slab, Slot};
use crate::mixing::Mix;

/// Heads per segment of the table.
const SEGMENT: usize = 1024;
/// What an allocation costs beside its content.
const ALLOCATION: usize = 16;

/// An edge and the node at its end.
#[derive(Debug, Clone)]
pub(super) struct Node<U> {
    pub(super) label: Vec<U>,
    pub(super) holders: Holders,
    pub(super) parent: u32,
    /// Next node of the same bucket.
    next: u32,
    /// Hash of parent, namespace and first step.
    hash: u32,
    /// Namespace of a first node, 0 below.
    space: u32,
    /// Counted units before the label.
    pub(super) start: u32,
    /// Counted units of the label.
    pub(super) len: u32,
    pub(super) children: u32,
    /// Exclusive or of their ids, which is the id of an only child.
    only: u32,
    /// Interned set of the lanes that hold all of it.
    pub(super) full: u32,
    /// Entries with `0 < count < len`.
    pub(super) partial: u32,
}

impl<U> Node<U> {
    pub(super) fn end(&self) -> u32 {
        self.start + self.len
    }

    /// Namespace of a first node.
    pub(super) fn space(&self) -> u32 {
        self.space
    }

    /// Entries that cover some of the label and not all.
    #[inline]
    pub(super) fn partials(&self) -> impl Iterator<Item = &Entry> {
        let entries = self.holders.as_slice().iter();
        entries.filter(|e| e.count < self.len)
    }

    /// The child, if there is exactly one.
    pub(super) fn only_child(&self) -> Option<u32> {
        (self.children == 1).then_some(self.only)
    }
}

impl<U> Slot for Node<U> {
    fn vacant() -> Self {
        Self {
            label: Vec::new(),
            holders: Holders::None,
            parent: NONE,
            next: NONE,
            hash: 0,
            space: 0,
            start: 0,
            len: 0,
            children: 0,
            only: 0,
            full: EMPTY,
            partial: 0,
        }
    }
}

/// All nodes.
#[derive(Debug)]
pub(super) struct Nodes<U> {
    items: Slab<Node<U>>,
    mix: Mix,
    segments: Vec<Box<[u32; SEGMENT]>>,
    buckets: u32,
    live: u32,
    /// Heap bytes of labels and holders.
    heap: usize,
    /// Counted units of all labels.
    pub(super) units: u64,
}

impl<U> Default for Nodes<U> {
    fn default() -> Self {
        Self {
            items: Slab::default(),
            mix: Mix::default(),
            segments: Vec::new(),
            buckets: 0,
            live: 0,
            heap: 0,
            units: 0,
        }
    }
}

impl<U> std::ops::Index<u32> for Nodes<U> {
    type Output = Node<U>;
    #[inline]
    fn index(&self, node: u32) -> &Node<U> {
        &self.items[node]
    }
}

impl<U> std::ops::IndexMut<u32> for Nodes<U> {
    #[inline]
    fn index_mut(&mut self, node: u32) -> &mut Node<U> {
        &mut self.items[node]
    }
}

fn bytes<U>(label: &Vec<U>) -> usize {
    match label.capacity() {
        0 => 0,
        units => units * size_of::<U>() + ALLOCATION,
    }
}

#[inline]
fn hash_of(mix: Mix, parent: u32, space: u32, step: impl Iterator<Item = u32>) -> u32 {
    let first = mix.all(u64::from(parent) << 32 | u64::from(space));
    let hash = step.fold(first, |hash, word| mix.all(hash ^ u64::from(word)));
    (hash ^ hash >> 32) as u32
}

impl<U: Unit> Nodes<U> {
    /// The child of `parent` (`NONE`: the root) with which `key` goes on at `at`, if a whole step fits before `end`.
    #[inline]
    pub(super) fn child<K: Key<U> + ?Sized>(
        &self,
        parent: u32,
        key: &K,
        at: usize,
        end: usize,
        page: usize,
    ) -> Option<u32> {
        let step = key.unit(at).step(page);
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
        let mut node = self.head(self.bucket(hash));
        while node != NONE {
            let n = &self.items[node];
            if n.hash == hash
                && n.parent == parent
                && n.space == space
                && n.label.len() >= step
                && key.common(at, &n.label[..step]) == step
            {
                return Some(node);
            }
            node = n.next;
        }
        None
    }

    /// Whether a child of `parent` begins as `label` does.
    pub(super) fn begins(&self, parent: u32, space: u32, label: &[U], page: usize) -> bool {
        if self.live == 0 {
            return false;
        }
        let first = &label[..label[0].step(page)];
        let hash = hash_of(self.mix, parent, space, first.iter().map(|u| u.word()));
        let live = |node: u32| (node != NONE).then_some(node);
        let next = |node: &u32| live(self.items[*node].next);
        std::iter::successors(live(self.head(self.bucket(hash))), next).any(|node| {
            let n = &self.items[node];
            n.hash == hash && n.parent == parent && n.space == space && n.label.starts_with(first)
        })
    }

    /// Adds a node that nobody holds yet.
    pub(super) fn add(&mut self, parent: u32, space: u32, label: Vec<U>, page: usize) -> u32 {
        let len = U::count(&label) as u32;
        let start = if parent == NONE {
            0
        } else {
            self.items[parent].end()
        };
        let node = self.items.add(Node {
            parent,
            space,
            start,
            len,
            ..Node::vacant()
        });
        self.units += u64::from(len);
        self.heap += bytes(&label);
        self.items[node].label = label;
        self.attach(node, page);
        node
    }

    /// Frees a node without holders and children, whose set was given back; returns its parent.
    pub(super) fn forget(&mut self, node: u32) -> u32 {
        self.detach(node);
        let n = &mut self.items[node];
        debug_assert!(n.holders.as_slice().is_empty(), "nobody holds it");
        self.units -= u64::from(n.len);
        self.heap -= bytes(&n.label);
        let parent = n.parent;
        self.items.remove(node);
        parent
    }

    /// Ends a label after its first `stored` units, which are `counted`.
    pub(super) fn truncate(&mut self, node: u32, stored: usize, counted: u32) {
        let n = &mut self.items[node];
        self.units -= u64::from(n.len - counted);
        self.heap -= bytes(&n.label);
        n.len = counted;
        n.label.truncate(stored);
        if n.label.capacity() > 2 * stored {
            n.label.shrink_to_fit();
        }
        self.heap += bytes(&n.label);
    }

    /// Makes the first `stored` units, `counted` of them, a node of their own, which takes the place of `node` and has it
    /// as its only child; returns its id. Nobody holds it yet.
    pub(super) fn divide(&mut self, node: u32, stored: usize, counted: u32, page: usize) -> u32 {
        self.detach(node);
        let n = &mut self.items[node];
        let (parent, space) = (n.parent, n.space);
        self.heap -= bytes(&n.label);
        let upper = n.label[..stored].to_vec();
        n.label = n.label[stored..].to_vec();
        self.heap += bytes(&n.label);
        n.len -= counted;
        n.start += counted;
        n.space = 0;
        self.units -= u64::from(counted);
        let upper = self.add(parent, space, upper, page);
        self.items[node].parent = upper;
        self.attach(node, page);
        upper
    }

    /// Puts the label of `upper` before that of `lower`, its only child, which takes its place. `upper` has no holders
    /// any more and is gone afterwards.
    pub(super) fn unite(&mut self, upper: u32, lower: u32, page: usize) {
        self.detach(lower);
        let u = &mut self.items[upper];
        let (space, start, len) = (u.space, u.start, u.len);
        let mut label = std::mem::take(&mut u.label);
        self.heap -= bytes(&label);
        u.len = 0;
        let l = &mut self.items[lower];
        self.heap -= bytes(&l.label);
        label.reserve_exact(l.label.len());
        label.extend_from_slice(&l.label);
        self.heap += bytes(&label);
        l.label = label;
        l.space = space;
        l.start = start;
        l.len += len;
        // The first step is still that of `upper`, so it goes out of the table before its label does.
        self.detach(upper);
        let parent = self.items[upper].parent;
        self.items.remove(upper);
        self.items[lower].parent = parent;
        self.attach(lower, page);
    }

    // --- holders

    /// Adds the entry of a lane that has none.
    pub(super) fn hold(&mut self, node: u32, entry: Entry) {
        let holders = &mut self.items[node].holders;
        self.heap -= holders.memory_bytes();
        holders.insert(entry);
        self.heap += holders.memory_bytes();
    }

    /// Takes out the entry of a lane.
    pub(super) fn release(&mut self, node: u32, lane: u32) {
        let holders = &mut self.items[node].holders;
        self.heap -= holders.memory_bytes();
        holders.remove(lane);
        self.heap += holders.memory_bytes();
    }

    /// Takes all entries out.
    pub(super) fn take_holders(&mut self, node: u32) -> Holders {
        let holders = std::mem::take(&mut self.items[node].holders);
        self.heap -= holders.memory_bytes();
        holders
    }

    /// Sets the entries of a node that has none, ascending by lane.
    pub(super) fn give_holders(&mut self, node: u32, entries: Vec<Entry>) {
        let holders = match entries.len() {
            0 => Holders::None,
            1 => Holders::One(entries[0]),
            _ => Holders::Many(Box::new(entries)),
        };
        self.heap += holders.memory_bytes();
        self.items[node].holders = holders;
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
    fn attach(&mut self, node: u32, page: usize) {
        let n = &self.items[node];
        let parent = n.parent;
        let step = n.label[0].step(page);
        let hash = hash_of(
            self.mix,
            parent,
            n.space,
            n.label[..step].iter().map(|u| u.word()),
        );
        if self.buckets == 0 {
            self.grow();
        }
        let bucket = self.bucket(hash);
        let head = self.head(bucket);
        let n = &mut self.items[node];
        n.hash = hash;
        n.next = head;
        self.set_head(bucket, node);
        self.live += 1;
        if self.live > self.buckets {
            self.grow();
        }
        if parent != NONE {
            let above = &mut self.items[parent];
            above.children += 1;
            above.only ^= node;
        }
    }

    fn detach(&mut self, node: u32) {
        let Node {
            hash, next, parent, ..
        } = self.items[node];
        let bucket = self.bucket(hash);
        let mut at = self.head(bucket);
        if at == node {
            self.set_head(bucket, next);
        } else {
            while self.items[at].next != node {
                at = self.items[at].next;
            }
            self.items[at].next = next;
        }
        self.live -= 1;
        if self.live < self.buckets / 4 || self.live == 0 {
            self.shrink();
        }
        if parent != NONE {
            let above = &mut self.items[parent];
            above.children -= 1;
            above.only ^= node;
        }
    }

    /// One bucket more, which takes its share from one that is there.
    fn grow(&mut self) {
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
            let next = self.items[node].next;
            let chain = if self.bucket(self.items[node].hash) == new {
                &mut go
            } else {
                &mut stay
            };
            self.items[node].next = *chain;
            *chain = node;
            node = next;
        }
        self.set_head(from, stay);
        self.set_head(new, go);
    }

    /// One bucket less.
    fn shrink(&mut self) {
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
            let next = self.items[node].next;
            let bucket = self.bucket(self.items[node].hash);
            let head = self.head(bucket);
            self.items[node].next = head;
            self.set_head(bucket, node);
            node = next;
        }
        if (self.segments.len() - 1) * SEGMENT >= last as usize {
            self.segments.pop();
        }
    }

    // --- sizes

    /// Live nodes with their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Node<U>)> {
        self.items.iter()
    }

    pub(super) fn is_live(&self, node: u32) -> bool {
        self.items.is_live(node)
    }

    /// Nodes in the fullest bucket.
    #[cfg(test)]
    pub(super) fn longest_bucket(&self) -> usize {
        let live = |node: u32| (node != NONE).then_some(node);
        let next = |node: &u32| live(self.items[*node].next);
        let chain = |bucket| std::iter::successors(live(self.head(bucket)), next).count();
        (0..self.buckets).map(chain).max().unwrap_or(0)
    }

    pub(super) fn len(&self) -> u32 {
        self.live
    }

    /// Bytes that `more` nodes with `units` stored units in all may add at most.
    pub(super) fn growth(&self, more: usize, units: usize) -> usize {
        let heads = (self.live as usize + more).saturating_sub(self.segments.len() * SEGMENT);
        let list = if heads == 0 {
            0
        } else {
            (self.segments.capacity().max(4) + heads / SEGMENT) * size_of::<usize>()
        };
        self.items.growth(more)
            + heads.div_ceil(SEGMENT) * SEGMENT * size_of::<u32>()
            + list
            + more * ALLOCATION
            + units * size_of::<U>()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.items.memory_bytes()
            + self.segments.len() * SEGMENT * size_of::<u32>()
            + self.segments.capacity() * size_of::<usize>()
            + self.heap
    }

    /// Whether the table leads to a node, and to it alone.
    pub(super) fn finds(&self, node: u32, page: usize) -> bool {
        let n = &self.items[node];
        let step = &n.label[..n.label[0].step(page)];
        let mut at = self.head(self.bucket(n.hash));
        let mut found = 0;
        while at != NONE {
            let a = &self.items[at];
            let twin = a.parent == n.parent && a.space == n.space && a.label.starts_with(step);
            found += u32::from(twin);
            at = a.next;
        }
        found == 1
    }

    /// Heap bytes as counted, and by recount.
    pub(super) fn heap_bytes(&self) -> (usize, usize) {
        let each = self
            .iter()
            .map(|(_, n)| bytes(&n.label) + n.holders.memory_bytes());
        (self.heap, each.sum())
    }
}
