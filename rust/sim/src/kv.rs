//! An engine's paged KV cache: reference counts, prefix cache, and the queue of what is reused next.
//!
//! Free are blocks nobody references, cached or not. They wait in one queue: what carries no content at its front, cached
//! blocks behind, each request's released in reverse, so that a prompt loses its tail first. Equal blocks computed side by
//! side are two copies; the second takes room until it is released.

use std::collections::HashMap;

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::{AsIs, SequenceHash};

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Nothing that could be used again.
    Empty,
    /// Full, of tokens the workload does not name.
    Anonymous,
    /// Full, with a hash, and it can be found by it.
    Cached(SequenceHash),
}

#[derive(Debug, Clone, Copy)]
struct Block {
    content: Content,
    references: u32,
    /// Neighbours in the queue of free blocks.
    before: u32,
    after: u32,
    /// Another copy of the same content.
    copy: u32,
}

/// Which changes a cache keeps for a gateway that follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// None.
    Nothing,
    /// The first copy of a content stored, the last one removed, as engines with a radix tree announce.
    Contents,
    /// Every copy, as vLLM announces.
    Copies,
}

/// What changed for a gateway that follows the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The block called so can be found now; `parent` is the block before it.
    Stored {
        /// Its hash.
        hash: SequenceHash,
        /// Hash of the block before it, `None` for a first one.
        parent: Option<SequenceHash>,
    },
    /// It cannot be found any more.
    Removed {
        /// Its hash.
        hash: SequenceHash,
    },
    /// Nothing can be found any more.
    Cleared,
}

/// The cache of one worker.
#[derive(Debug)]
pub struct KvPool {
    blocks: Vec<Block>,
    found: HashMap<SequenceHash, u32, AsIs>,
    first: u32,
    last: u32,
    free: u32,
    /// Changes since they were last taken.
    changes: Vec<Change>,
    announced: Announced,
    evicted: u64,
    /// Rises whenever a request that did not fit might fit.
    version: u64,
}

impl KvPool {
    /// A cache of `blocks` blocks.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if there is none, or more than 2^31.
    pub fn new(blocks: u32, announced: Announced) -> Result<Self> {
        if blocks == 0 || blocks > 1 << 31 {
            return Err(Error::InvalidSetting {
                name: "kv_blocks",
                expected: "from 1 to 2^31",
                got: blocks.to_string(),
            });
        }
        let mut pool = Self {
            blocks: Vec::new(),
            found: HashMap::default(),
            first: NONE,
            last: NONE,
            free: 0,
            changes: Vec::new(),
            announced,
            evicted: 0,
            version: 0,
        };
        pool.fill(blocks);
        Ok(pool)
    }

    fn fill(&mut self, blocks: u32) {
        self.blocks.clear();
        self.blocks.extend((0..blocks).map(|i| Block {
            content: Content::Empty,
            references: 0,
            before: i.checked_sub(1).unwrap_or(NONE),
            after: if i + 1 < blocks { i + 1 } else { NONE },
            copy: NONE,
        }));
        self.found.clear();
        (self.first, self.last, self.free) = (0, blocks - 1, blocks);
    }

    /// Blocks it has.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks nobody references.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Blocks that can be found, copies of a content counted once.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.found.len()
    }

    /// Cached blocks that were given up for others.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Rises whenever a request that did not fit might fit.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The blocks that can be found, in no order, copies of a content once.
    pub fn hashes(&self) -> impl Iterator<Item = SequenceHash> {
        self.found.keys().copied()
    }

    /// How many leading `hashes` can be found.
    #[must_use]
    pub fn prefix(&self, hashes: &[SequenceHash]) -> usize {
        hashes
            .iter()
            .take_while(|hash| self.found.contains_key(hash))
            .count()
    }

    /// Of those that [`Self::prefix`] found, how many are free: referencing them takes from what is free.
    #[must_use]
    pub fn free_among(&self, hashes: &[SequenceHash]) -> u32 {
        let blocks = hashes.iter().filter_map(|hash| self.found.get(hash));
        blocks
            .filter(|block| self.blocks[**block as usize].references == 0)
            .count() as u32
    }

    /// References the blocks called `hashes`, which [`Self::prefix`] found.
    pub fn share(&mut self, hashes: &[SequenceHash], into: &mut Vec<u32>) {
        for hash in hashes {
            let Some(&block) = self.found.get(hash) else {
                return;
            };
            if self.blocks[block as usize].references == 0 {
                self.unlink(block);
            }
            self.blocks[block as usize].references += 1;
            into.push(block);
        }
    }

    /// References `n` blocks without content, giving up what waited longest. Returns whether there were enough; if not,
    /// nothing changed.
    pub fn take(&mut self, n: u32, into: &mut Vec<u32>) -> bool {
        if n > self.free {
            return false;
        }
        for _ in 0..n {
            let block = self.first;
            self.unlink(block);
            if let Content::Cached(hash) = self.blocks[block as usize].content {
                self.evicted += 1;
                self.forget(block, hash);
            }
            let b = &mut self.blocks[block as usize];
            b.content = Content::Empty;
            b.references = 1;
            into.push(block);
        }
        true
    }

    /// A referenced block is full now; it is found by `hash` if the workload names its content.
    pub fn commit(&mut self, block: u32, hash: Option<SequenceHash>, parent: Option<SequenceHash>) {
        let b = &mut self.blocks[block as usize];
        if b.content != Content::Empty {
            return;
        }
        let Some(hash) = hash else {
            b.content = Content::Anonymous;
            return;
        };
        b.content = Content::Cached(hash);
        let is_first = match self.found.entry(hash) {
            std::collections::hash_map::Entry::Occupied(first) => {
                let first = *first.get() as usize;
                self.blocks[block as usize].copy = self.blocks[first].copy;
                self.blocks[first].copy = block;
                false
            }
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(block);
                self.version += 1;
                true
            }
        };
        if self.announces(is_first) {
            self.changes.push(Change::Stored { hash, parent });
        }
    }

    /// Gives up references, the last first.
    pub fn release(&mut self, blocks: &[u32]) {
        self.version += 1;
        for &block in blocks.iter().rev() {
            let b = &mut self.blocks[block as usize];
            b.references -= 1;
            if b.references > 0 {
                continue;
            }
            match b.content {
                Content::Empty => self.push_front(block),
                Content::Anonymous | Content::Cached(_) => self.push_back(block),
            }
        }
    }

    /// The worker lost its memory: nothing is cached or referenced any more.
    pub fn reset(&mut self) {
        self.fill(self.capacity());
        self.version += 1;
        if self.announced != Announced::Nothing {
            self.changes.push(Change::Cleared);
        }
    }

    /// The changes since the last call, in order.
    pub fn changes(&mut self) -> std::vec::Drain<'_, Change> {
        self.changes.drain(..)
    }

    /// Whether anything changed since.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Whether a change of one copy is announced, of the first or last one if `is_whole`.
    fn announces(&self, is_whole: bool) -> bool {
        match self.announced {
            Announced::Nothing => false,
            Announced::Contents => is_whole,
            Announced::Copies => true,
        }
    }

    /// The block loses its content.
    fn forget(&mut self, block: u32, hash: SequenceHash) {
        let copy = std::mem::replace(&mut self.blocks[block as usize].copy, NONE);
        let Some(found) = self.found.get_mut(&hash) else {
            return;
        };
        let is_last = *found == block && copy == NONE;
        if *found != block {
            let mut at = *found as usize;
            while self.blocks[at].copy != block {
                at = self.blocks[at].copy as usize;
            }
            self.blocks[at].copy = copy;
        } else if is_last {
            self.found.remove(&hash);
        } else {
            *found = copy;
        }
        if self.announces(is_last) {
            self.changes.push(Change::Removed { hash });
        }
    }

    fn unlink(&mut self, block: u32) {
        let Block { before, after, .. } = self.blocks[block as usize];
        match before {
            NONE => self.first = after,
            before => self.blocks[before as usize].after = after,
        }
        match after {
            NONE => self.last = before,
            after => self.blocks[after as usize].before = before,
        }
        self.free -= 1;
    }

    fn push_front(&mut self, block: u32) {
        let first = std::mem::replace(&mut self.first, block);
        let b = &mut self.blocks[block as usize];
        (b.before, b.after) = (NONE, first);
        match first {
            NONE => self.last = block,
            first => self.blocks[first as usize].before = block,
        }
        self.free += 1;
    }

    fn push_back(&mut self, block: u32) {
        let last = std::mem::replace(&mut self.last, block);
        let b = &mut self.blocks[block as usize];
        (b.before, b.after) = (last, NONE);
        match last {
            NONE => self.first = block,
            last => self.blocks[last as usize].after = block,
        }
        self.free += 1;
    }

    /// Recounts everything, given who references which blocks.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first disagreement.
    pub fn validate<'a>(&self, references: impl Iterator<Item = &'a [u32]>) -> Result<()> {
        let broken = |text: String| Err(Error::Invariant(text));
        let mut counted = vec![0_u32; self.blocks.len()];
        for block in references.flatten() {
            counted[*block as usize] += 1;
        }
        for (i, (block, &count)) in self.blocks.iter().zip(&counted).enumerate() {
            if block.references != count {
                return broken(format!(
                    "block {i} has {} references, {count} counted",
                    block.references
                ));
            }
        }
        let (mut at, mut before, mut free) = (self.first, NONE, 0);
        while at != NONE {
            let block = &self.blocks[at as usize];
            if block.references > 0 || block.before != before {
                return broken(format!("block {at} is not properly queued"));
            }
            free += 1;
            (before, at) = (at, block.after);
        }
        let unreferenced = counted.iter().filter(|count| **count == 0).count() as u32;
        if free != self.free || free != unreferenced || before != self.last {
            return broken(format!(
                "{free} blocks queued, {} counted free, {unreferenced} unreferenced",
                self.free
            ));
        }
        let mut copies = 0;
        for (&hash, &first) in &self.found {
            let mut at = first;
            while at != NONE {
                if self.blocks[at as usize].content != Content::Cached(hash) {
                    return broken(format!(
                        "block {at} is found by {hash:?} and does not hold it"
                    ));
                }
                copies += 1;
                at = self.blocks[at as usize].copy;
            }
        }
        let cached = self
            .blocks
            .iter()
            .filter(|b| matches!(b.content, Content::Cached(_)))
            .count();
        if copies != cached {
            return broken(format!("{cached} blocks are cached, {copies} can be found"));
        }
        Ok(())
    }
}
