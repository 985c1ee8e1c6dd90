//! Engine pages smaller than an own block: a block is held only while all its pages are.
//!
//! The pages of one own block form a tree, since prompts may part within a block and share its first pages.
//! A page is known by its own chained hash, in blocks of page size. Pages that are not held stay as long as pages behind
//! them in the same block do, so that the block is there again when the page is. A change costs as many steps as there
//! are pages behind it in its block, over all branches.

use std::collections::HashMap;

#[cfg(test)]
use cachelb_core::error::{Error, Result};
use cachelb_core::hashing::{Hasher, MmObject, Namespace};
use cachelb_core::ids::SequenceHash;

use crate::names::table::Table;

const NONE: u32 = u32::MAX;

/// Predecessor of a page.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Before {
    /// An own block, or nothing: the page begins a block.
    Block(Option<SequenceHash>),
    /// A page of the same block.
    Page(u64),
}

/// A page that is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Page<'a> {
    pub(crate) hash: u64,
    pub(crate) before: Before,
    pub(crate) tokens: &'a [u32],
    pub(crate) objects: &'a [u64],
}

/// A block that became complete, or is no longer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// All its pages are held now; `before` is the block before it.
    Gained {
        /// The block before it.
        before: Option<SequenceHash>,
        /// The block.
        block: SequenceHash,
    },
    /// One of its pages went.
    Lost {
        /// The block.
        block: SequenceHash,
        /// Whether all its pages were held for sure: after a lost message it may have been doubtful.
        was_sure: bool,
    },
}

#[derive(Debug, Clone, Copy)]
struct Node {
    /// Its key.
    page: u64,
    /// The block before it if it begins a block (0 if there is none, see `rooted`), the own block if it ends one.
    hash: u64,
    parent: u32,
    first: u32,
    next: u32,
    previous: u32,
    /// Names that refer to it.
    names: u32,
    /// Those of them that are there for sure.
    sure: u32,
    /// Position in its block.
    place: u16,
    /// Pages from the beginning of the block to here that are not held for sure.
    missing: u16,
    rooted: bool,
}

/// All pages of one space.
#[derive(Debug)]
pub(crate) struct Pages {
    /// Hashes own blocks.
    hasher: Hasher,
    /// Hashes pages.
    page_hasher: Hasher,
    per_block: u16,
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// Page -> node + 1.
    by_page: Table<u64, u32>,
    /// Tokens of the nodes, one page each.
    tokens: Vec<u32>,
    /// Objects of the nodes that have some.
    objects: HashMap<u32, Vec<u64>>,
    changes: Vec<Change>,
    stack: Vec<u32>,
    /// Whether a message was lost since there were no pages.
    doubted: bool,
}

impl Pages {
    /// Pages that `page_hasher` hashes, gathered into the blocks of `hasher`, a multiple of them.
    pub(crate) fn new(hasher: Hasher, page_hasher: Hasher) -> Self {
        Self {
            hasher,
            page_hasher,
            per_block: (hasher.block_size() / page_hasher.block_size()) as u16,
            nodes: Vec::new(),
            free: Vec::new(),
            by_page: Table::default(),
            tokens: Vec::new(),
            objects: HashMap::new(),
            changes: Vec::new(),
            stack: Vec::new(),
            doubted: false,
        }
    }

    /// Pages remembered, held or not.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    fn find(&self, page: u64) -> Option<u32> {
        self.by_page.get(page).map(|at| at - 1)
    }

    /// The own block that ends with a page; `None` for an unknown page or one within a block.
    pub(crate) fn block_ending(&self, page: u64) -> Option<SequenceHash> {
        let node = &self.nodes[self.find(page)? as usize];
        (node.place + 1 == self.per_block).then_some(SequenceHash(node.hash))
    }

    /// One name more refers to a page.
    pub(crate) fn acquire(&mut self, page: &Page<'_>, namespace: Namespace) {
        let known = self.find(page.hash);
        let Some(at) = known.or_else(|| self.create(page, namespace)) else {
            return;
        };
        self.nodes[at as usize].names += 1;
        self.confirm(at);
    }

    /// A doubtful name of a page is there for sure.
    pub(crate) fn settle(&mut self, page: u64) {
        if let Some(at) = self.find(page) {
            self.confirm(at);
        }
    }

    fn confirm(&mut self, at: u32) {
        let node = &mut self.nodes[at as usize];
        node.sure += 1;
        if node.sure == 1 {
            self.shift(at, -1);
        }
    }

    /// No name is there for sure any more.
    pub(crate) fn doubt(&mut self) {
        self.doubted = true;
        for node in &mut self.nodes {
            (node.sure, node.missing) = (0, node.place + 1);
        }
    }

    /// One name less refers to a page, one that was there for sure or a doubtful one.
    pub(crate) fn release(&mut self, page: u64, was_sure: bool) {
        let Some(at) = self.find(page) else {
            return;
        };
        let node = &mut self.nodes[at as usize];
        debug_assert!(node.names > 0, "a page without names is not referred to");
        node.names = node.names.saturating_sub(1);
        node.sure -= u32::from(was_sure && node.sure > 0);
        if node.sure == 0 {
            self.shift(at, i16::from(was_sure));
        }
        if self.nodes[at as usize].names == 0 {
            self.prune(at);
        }
    }

    /// The blocks that became complete or incomplete since the last call, in that order.
    pub(crate) fn take_changes(&mut self, out: &mut Vec<Change>) {
        out.clear();
        out.append(&mut self.changes);
    }

    /// `None` if the page before it is unknown.
    fn create(&mut self, page: &Page<'_>, namespace: Namespace) -> Option<u32> {
        let (parent, hash, rooted) = match page.before {
            Before::Block(block) => (NONE, block.map_or(0, |b| b.0), block.is_none()),
            Before::Page(page) => (self.find(page)?, 0, false),
        };
        let (place, missing) = match self.nodes.get(parent as usize) {
            None => (0, 1),
            Some(above) => (above.place + 1, above.missing + 1),
        };
        let node = Node {
            page: page.hash,
            hash,
            parent,
            first: NONE,
            next: NONE,
            previous: NONE,
            names: 0,
            sure: 0,
            place,
            missing,
            rooted,
        };
        let at = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(node);
            self.nodes.len() as u32 - 1
        });
        self.nodes[at as usize] = node;
        let size = self.page_hasher.block_size();
        let from = at as usize * size;
        self.tokens.resize(self.tokens.len().max(from + size), 0);
        self.tokens[from..from + size].copy_from_slice(page.tokens);
        if !page.objects.is_empty() {
            self.objects.insert(at, page.objects.to_vec());
        }
        self.by_page.change(page.hash, |_| at + 1);
        self.link(at, parent);
        if place + 1 == self.per_block {
            let block = self.hash_block(at, namespace);
            self.nodes[at as usize].hash = block.0;
        }
        Some(at)
    }

    fn link(&mut self, at: u32, parent: u32) {
        let Some(above) = self.nodes.get_mut(parent as usize) else {
            return;
        };
        let next = std::mem::replace(&mut above.first, at);
        self.nodes[at as usize].next = next;
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.previous = at;
        }
    }

    /// The hash of the own block that ends with a page.
    fn hash_block(&self, end: u32, namespace: Namespace) -> SequenceHash {
        let size = self.page_hasher.block_size();
        let (mut tokens, mut mm) = (vec![0; self.hasher.block_size()], Vec::new());
        for at in self.path(end) {
            let (from, to) = (
                at as usize * size,
                self.nodes[at as usize].place as usize * size,
            );
            tokens[to..to + size].copy_from_slice(&self.tokens[from..from + size]);
            let objects = self.objects.get(&at).into_iter().flatten();
            mm.extend(objects.map(|&hash| MmObject {
                hash,
                start: to,
                len: size,
            }));
        }
        // An object that reaches over several pages is one object of the block.
        mm.sort_by_key(|each| each.hash);
        mm.dedup_by_key(|object| object.hash);
        let mut out = Vec::new();
        self.hasher
            .hash_after(self.before(end), &tokens, namespace, &mm, &mut out);
        out.first().copied().unwrap_or(SequenceHash(0))
    }

    /// The pages of a block from `at` back to its first.
    fn path(&self, at: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(at), |at| {
            let parent = self.nodes[*at as usize].parent;
            (parent != NONE).then_some(parent)
        })
    }

    /// The block before the one a page is in.
    fn before(&self, at: u32) -> Option<SequenceHash> {
        let first = self
            .path(at)
            .last()
            .map(|first| &self.nodes[first as usize])?;
        (!first.rooted).then_some(SequenceHash(first.hash))
    }

    /// Everything behind a page in its block misses `more` pages for sure. A block that loses a page is no longer doubtful
    /// either.
    fn shift(&mut self, at: u32, more: i16) {
        let before = self.before(at);
        self.stack.clear();
        self.stack.push(at);
        while let Some(at) = self.stack.pop() {
            let node = &mut self.nodes[at as usize];
            let missed = node.missing;
            node.missing = missed.wrapping_add_signed(more);
            if node.place + 1 == self.per_block {
                let block = SequenceHash(node.hash);
                let was_sure = missed == 0;
                if more < 0 && missed == 1 {
                    self.changes.push(Change::Gained { before, block });
                } else if more >= 0 && (was_sure || self.doubted) {
                    self.changes.push(Change::Lost { block, was_sure });
                }
            }
            let mut child = node.first;
            while let Some(node) = self.nodes.get(child as usize) {
                self.stack.push(child);
                child = node.next;
            }
        }
    }

    /// Forgets a page that is not held and has nothing behind it, and those before it that it kept.
    fn prune(&mut self, at: u32) {
        let mut at = at;
        while let Some(&node) = self.nodes.get(at as usize)
            && node.names == 0
            && node.first == NONE
        {
            if let Some(previous) = self.nodes.get_mut(node.previous as usize) {
                previous.next = node.next;
            } else if let Some(above) = self.nodes.get_mut(node.parent as usize) {
                above.first = node.next;
            }
            if let Some(next) = self.nodes.get_mut(node.next as usize) {
                next.previous = node.previous;
            }
            self.by_page.change(node.page, |_| 0);
            self.objects.remove(&at);
            self.free.push(at);
            at = node.parent;
        }
        if self.free.len() == self.nodes.len() {
            self.clear();
        }
    }

    /// Forgets everything; changes that were not taken are lost too.
    pub(crate) fn clear(&mut self) {
        *self = Self {
            changes: std::mem::take(&mut self.changes),
            ..Self::new(self.hasher, self.page_hasher)
        };
    }

    /// Own blocks all of whose pages are held.
    pub(crate) fn complete(&self) -> impl Iterator<Item = u64> {
        self.by_page.iter().filter_map(|(_, at)| {
            let node = &self.nodes[at as usize - 1];
            (node.place + 1 == self.per_block && node.missing == 0).then_some(node.hash)
        })
    }

    /// Checks the tree against `names`, the number of names per page.
    #[cfg(test)]
    pub(crate) fn validate(&self, names: &HashMap<u64, u32>) -> Result<()> {
        let broken =
            |page: u64, what: &str| Err(Error::Invariant(format!("page {page:#x}: {what}")));
        for (page, at) in self.by_page.iter() {
            let node = &self.nodes[at as usize - 1];
            if node.page != page || node.names != names.get(&page).copied().unwrap_or(0) {
                return broken(page, "its names are miscounted");
            }
            if node.names == 0 && node.first == NONE {
                return broken(page, "nothing keeps it");
            }
            let above = self.nodes.get(node.parent as usize);
            let missing = above.map_or(0, |a| a.missing) + u16::from(node.sure == 0);
            if node.sure > node.names
                || node.missing != missing
                || node.place != above.map_or(0, |a| a.place + 1)
            {
                return broken(page, "it misses another number of pages");
            }
        }
        if self.by_page.len() != self.len() || names.keys().any(|page| self.find(*page).is_none()) {
            return Err(Error::Invariant("pages leak or are lost".to_owned()));
        }
        if self.objects.keys().any(|at| self.free.contains(at)) {
            return Err(Error::Invariant("objects of pages leak".to_owned()));
        }
        Ok(())
    }
}
