//! The paths of the requests that wait on one worker, as a tree.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::{Deref, Range};

use crate::collections::heap_bytes;
use crate::collections::seeded_hash::SeededHash;
use crate::collections::shared_slice::SharedSlice;

const NONE: u32 = u32::MAX;

/// A child of a node, or of the root of a namespace, by its first unit.
type Below<U> = (u64, U);

/// The parent of a first node.
fn root(namespace: u32) -> u64 {
    (1 << 32) | u64::from(namespace)
}

/// A stretch of a path that is placed.
pub trait Stretch<U>: Deref<Target = [U]> {
    /// The units in `range` without a copy, if that can be.
    fn view(&self, range: Range<usize>) -> Option<SharedSlice<U>>;
}

impl<U> Stretch<U> for &[U] {
    fn view(&self, _range: Range<usize>) -> Option<SharedSlice<U>> {
        None
    }
}

impl<U: Copy> Stretch<U> for SharedSlice<U> {
    fn view(&self, range: Range<usize>) -> Option<SharedSlice<U>> {
        self.view(range)
    }
}

/// A stretch of paths without a branch or an end inside.
#[derive(Debug)]
pub(super) struct Node<U> {
    units: SharedSlice<U>,
    /// Another node or a [`root`].
    above: u64,
    /// Requests whose path leads through here.
    pub(super) waiting: u32,
    /// Leading units that need no owner: they were there before, or were proven.
    proven: usize,
}

/// The paths on one worker.
#[derive(Debug)]
pub(super) struct Paths<U> {
    nodes: Vec<Node<U>>,
    free: Vec<u32>,
    below: HashMap<Below<U>, u32, SeededHash>,
    /// Units in all nodes.
    pub(super) units: usize,
}

impl<U> Default for Paths<U> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            below: HashMap::default(),
            units: 0,
        }
    }
}

impl<U> Paths<U> {
    /// The units of all nodes.
    pub(super) fn stretches(&self) -> impl Iterator<Item = &SharedSlice<U>> {
        self.nodes.iter().map(|node| &node.units)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.below.is_empty()
    }

    /// Heap bytes beside those of units.
    pub(super) fn memory_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node<U>>()
            + self.free.capacity() * size_of::<u32>()
            + heap_bytes::table(&self.below)
    }
}

/// Leading units that both begin with.
fn common_prefix<U: Eq>(a: &[U], b: &[U]) -> usize {
    let most = a.len().min(b.len());
    if a[..most] == b[..most] {
        return most;
    }
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Leading units that a node and a path have in common from a place on, a stretch and a unit of it; moves that behind
/// them.
fn follow<U: Eq, S: Stretch<U>>(units: &[U], path: &[S], at: &mut (usize, usize)) -> usize {
    let mut common = 0;
    while let Some(stretch) = path.get(at.0) {
        let rest = &stretch[at.1..];
        let same = common_prefix(&units[common..], rest);
        common += same;
        if same < rest.len() {
            at.1 += same;
            break;
        }
        *at = (at.0 + 1, 0);
    }
    common
}

impl<U: Copy + Eq + Hash> Paths<U> {
    /// The nodes along a path, and how many of their leading units are part of it.
    pub(super) fn walk<S: Stretch<U>>(
        &self,
        namespace: u32,
        path: &[S],
    ) -> impl Iterator<Item = (&Node<U>, usize)> {
        let (mut above, mut at) = (root(namespace), (0, 0));
        std::iter::from_fn(move || {
            let first = path.get(at.0)?.get(at.1)?;
            let known = *self.below.get(&(above, *first))?;
            let node = &self.nodes[known as usize];
            let units = &*node.units;
            let common = follow(units, path, &mut at);
            if common < units.len() {
                at.0 = path.len();
            }
            above = u64::from(known);
            Some((node, common))
        })
    }

    /// Whether a request waits for anything of a path that the worker already holds.
    pub(super) fn is_speculative<S: Stretch<U>>(&self, namespace: u32, path: &[S]) -> bool {
        let mut along = self.walk(namespace, path);
        along.any(|(node, common)| node.proven < common)
    }

    /// Adds a request with the first `length` units of its path; returns the node where they end.
    pub(super) fn add<S: Stretch<U>>(
        &mut self,
        namespace: u32,
        path: &[S],
        length: usize,
        held: usize,
    ) -> u32 {
        let (mut above, mut depth, mut last) = (root(namespace), 0, NONE);
        for stretch in path {
            let (mut at, end) = (0, stretch.len().min(length - depth));
            while at < end {
                last = self.step(above, stretch, at..end, held.saturating_sub(depth));
                let length = self.nodes[last as usize].units.len();
                (at, depth, above) = (at + length, depth + length, u64::from(last));
            }
        }
        last
    }

    /// Adds a request with the units `at` of a stretch, below `above`, as far as one node covers them; returns it.
    fn step<S: Stretch<U>>(&mut self, above: u64, of: &S, at: Range<usize>, held: usize) -> u32 {
        let rest = &of[at.clone()];
        let Some(&known) = self.below.get(&(above, rest[0])) else {
            self.units += rest.len();
            return self.open(Node {
                proven: held.min(rest.len()),
                units: of.view(at).unwrap_or_else(|| SharedSlice::new(rest)),
                above,
                waiting: 1,
            });
        };
        let common = common_prefix(&self.nodes[known as usize].units, rest);
        let known = self.split(known, common);
        let node = &mut self.nodes[known as usize];
        node.waiting += 1;
        // Units that the worker lacks are speculative, even if they once were proven.
        node.proven = node.proven.min(held);
        // A tree may have let go of the units that it kept when the node was made.
        if let Some(units) = of.view(at.start..at.start + common) {
            node.units = units;
        }
        known
    }

    /// Adds a node.
    fn open(&mut self, node: Node<U>) -> u32 {
        let key = (node.above, node.units[0]);
        let at = if let Some(at) = self.free.pop() {
            self.nodes[at as usize] = node;
            at
        } else {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        };
        self.below.insert(key, at);
        at
    }

    /// Splits a node behind its first `length` units; returns the node that ends there. `at` keeps its children.
    fn split(&mut self, at: u32, length: usize) -> u32 {
        let node = &mut self.nodes[at as usize];
        let whole = node.units.len();
        if length == whole {
            return at;
        }
        let upper = Node {
            units: node.units.part(0..length),
            above: node.above,
            waiting: node.waiting,
            proven: node.proven.min(length),
        };
        node.units = node.units.part(length..whole);
        node.proven = node.proven.saturating_sub(length);
        let first = node.units[0];
        let upper = self.open(upper);
        self.nodes[at as usize].above = u64::from(upper);
        self.below.insert((u64::from(upper), first), at);
        upper
    }

    /// The path that ends with a node.
    pub(super) fn path(&self, end: u32) -> (u32, Vec<U>) {
        let mut stretches = Vec::new();
        let mut above = u64::from(end);
        while let Ok(at) = u32::try_from(above) {
            let node = &self.nodes[at as usize];
            stretches.push(&*node.units);
            above = node.above;
        }
        stretches.reverse();
        (above as u32, stretches.concat())
    }

    /// A request whose path ends with a node waits no more; `proven`: it was answered. Returns how many leading
    /// units of its path are still held.
    pub(super) fn leave(&mut self, end: u32, proven: bool) -> usize {
        let (mut above, mut keep) = (u64::from(end), 0);
        while let Ok(at) = u32::try_from(above) {
            let node = &mut self.nodes[at as usize];
            let length = node.units.len();
            above = node.above;
            node.waiting -= 1;
            if proven {
                node.proven = length;
            }
            let gone = node.waiting == 0;
            // Where an earlier stretch is cut off, so are those behind it.
            keep = if gone && node.proven < length {
                node.proven
            } else {
                length + keep
            };
            if gone {
                let key = (above, node.units[0]);
                node.units = SharedSlice::default();
                self.units -= length;
                self.below.remove(&key);
                self.free.push(at);
            }
        }
        if self.below.is_empty() {
            self.nodes.clear();
            self.free.clear();
        }
        keep
    }
}
