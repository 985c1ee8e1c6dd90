//! An engine's paged KV cache: reference counts, prefix cache, and the queue of blocks to reuse.
//!
//! Blocks without a reference are free, cached or not. They wait in one queue: those without content at its front,
//! cached blocks behind, each request's released in reverse, so that a prompt loses its tail first. Equal blocks
//! computed side by side are two copies; the second takes room until it is reused, and is found once the first was.
//! Cache groups share the blocks; a content belongs to one of them.

use std::collections::HashMap;

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::{AsIs, SequenceHash};

/// In place of a block that a request gave up.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Nothing that could be used again.
    Empty,
    /// Full, of tokens the workload does not name.
    Anonymous,
    /// Full, with a hash, and its group can find it by that.
    Cached(u8, SequenceHash),
}

#[derive(Debug, Clone, Copy)]
struct Block {
    content: Content,
    references: u32,
    /// Neighbours in the queue of free blocks.
    before: u32,
    after: u32,
    /// The next copy of the same content.
    copy: u32,
}

/// Copies of one content, in the order in which they came: the first is the one that is found.
#[derive(Debug, Clone, Copy)]
struct Copies {
    first: u32,
    last: u32,
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

/// A change of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvChange {
    /// The block called so can be found now; `parent` is the block before it.
    Stored {
        /// Its group.
        group: u8,
        /// Its number in its prompt.
        number: u32,
        /// Its hash.
        hash: SequenceHash,
        /// Hash of the group's block before it, `None` for a first one.
        parent: Option<SequenceHash>,
    },
    /// It cannot be found any more.
    Removed {
        /// Its group.
        group: u8,
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
    /// By group.
    found: Box<[HashMap<SequenceHash, Copies, AsIs>]>,
    first: u32,
    last: u32,
    /// Blocks without a reference.
    pub free: u32,
    /// Changes since they were last taken.
    changes: Vec<KvChange>,
    announced: Announced,
    /// Cached blocks that were given up for others.
    pub evicted: u64,
    /// Rises whenever a request that did not fit might fit.
    pub version: u64,
}

impl KvPool {
    /// A cache of `blocks` blocks that so many groups share.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if there is none, or more than 2^31.
    pub fn of_groups(blocks: u32, groups: u8, announced: Announced) -> Result<Self> {
        if blocks == 0 || blocks > 1 << 31 {
            return Err(Error::setting("kv_blocks", "from 1 to 2^31", blocks));
        }
        let mut pool = Self {
            blocks: Vec::new(),
            found: (0..groups).map(|_| HashMap::default()).collect(),
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
        for found in &mut self.found {
            found.clear();
        }
        (self.first, self.last, self.free) = (0, blocks - 1, blocks);
    }

    /// Blocks it has.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks that can be found, copies of a content counted once.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.found.iter().map(HashMap::len).sum()
    }

    /// The blocks of the first group that can be found, in no order, copies of a content once.
    pub fn hashes(&self) -> impl Iterator<Item = SequenceHash> {
        self.found[0].keys().copied()
    }

    /// The block of a group that is found by its hash.
    #[must_use]
    pub fn find(&self, group: u8, hash: SequenceHash) -> Option<u32> {
        let copies = self.found[usize::from(group)].get(&hash);
        copies.map(|copies| copies.first)
    }

    /// Whether a block waits to be reused: referencing it takes from what is free.
    #[must_use]
    pub fn is_free(&self, block: u32) -> bool {
        self.blocks[block as usize].references == 0
    }

    /// References a block that was found.
    #[inline]
    pub fn reference(&mut self, block: u32) {
        if self.is_free(block) {
            self.unlink(block);
        }
        self.blocks[block as usize].references += 1;
    }

    /// Appends the blocks of leading `hashes` that a group can find.
    pub fn leading<'a>(
        &self,
        group: u8,
        hashes: impl Iterator<Item = &'a SequenceHash>,
        into: &mut Vec<u32>,
    ) {
        let found = &self.found[usize::from(group)];
        into.extend(hashes.map_while(|hash| Some(found.get(hash)?.first)));
    }

    /// How many leading `hashes` the first group can find.
    #[must_use]
    pub fn prefix(&self, hashes: &[SequenceHash]) -> usize {
        let found = |hash: &&SequenceHash| self.find(0, **hash).is_some();
        hashes.iter().take_while(found).count()
    }

    /// References the blocks called `hashes`, which [`Self::prefix`] found.
    pub fn share(&mut self, hashes: &[SequenceHash], into: &mut Vec<u32>) {
        let first = into.len();
        self.leading(0, hashes.iter(), into);
        for &block in &into[first..] {
            self.reference(block);
        }
    }

    /// References `n` blocks without content, giving up what waited longest. Returns whether there were enough; if not,
    /// nothing changed.
    pub fn take(&mut self, n: u32, into: &mut Vec<u32>) -> bool {
        if n > self.free {
            return false;
        }
        for _ in 0..n {
            let block = self.pop_front();
            if let Content::Cached(group, hash) = self.blocks[block as usize].content {
                self.evicted += 1;
                self.forget(block, group, hash);
            }
            let b = &mut self.blocks[block as usize];
            b.content = Content::Empty;
            b.references = 1;
            into.push(block);
        }
        true
    }

    /// A referenced block is full now; the first group finds it by `hash` if the workload names its content.
    pub fn commit(&mut self, block: u32, hash: Option<SequenceHash>, parent: Option<SequenceHash>) {
        self.commit_in(0, block, 0, hash, parent);
    }

    /// As `commit`, for a group and the number of the block in its prompt.
    pub fn commit_in(
        &mut self,
        group: u8,
        block: u32,
        number: u32,
        hash: Option<SequenceHash>,
        parent: Option<SequenceHash>,
    ) {
        let b = &mut self.blocks[block as usize];
        if b.content != Content::Empty {
            return;
        }
        let Some(hash) = hash else {
            b.content = Content::Anonymous;
            return;
        };
        b.content = Content::Cached(group, hash);
        let is_first = match self.found[usize::from(group)].entry(hash) {
            std::collections::hash_map::Entry::Occupied(mut copies) => {
                let last = std::mem::replace(&mut copies.get_mut().last, block);
                self.blocks[last as usize].copy = block;
                false
            }
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(Copies {
                    first: block,
                    last: block,
                });
                self.version += 1;
                true
            }
        };
        if self.announces(is_first) {
            self.changes.push(KvChange::Stored {
                group,
                number,
                hash,
                parent,
            });
        }
    }

    /// Gives up references, the last first. Blocks that were given up before are passed over.
    pub fn release(&mut self, blocks: &[u32]) {
        self.version += 1;
        for &block in blocks.iter().rev() {
            if block == NONE {
                continue;
            }
            let b = &mut self.blocks[block as usize];
            b.references -= 1;
            if b.references > 0 {
                continue;
            }
            match b.content {
                Content::Empty => self.push_front(block),
                Content::Anonymous | Content::Cached(..) => self.push_back(block),
            }
        }
    }

    /// The worker lost its memory: nothing is cached or referenced any more.
    pub fn reset(&mut self) {
        self.fill(self.capacity());
        self.version += 1;
        if self.announced != Announced::Nothing {
            self.changes.push(KvChange::Cleared);
        }
    }

    /// Nothing can be found any more, while references stay.
    pub fn forget_all(&mut self) {
        for block in &mut self.blocks {
            if matches!(block.content, Content::Cached(..)) {
                block.content = Content::Empty;
            }
            block.copy = NONE;
        }
        for found in &mut self.found {
            found.clear();
        }
        self.version += 1;
        if self.announced != Announced::Nothing {
            self.changes.push(KvChange::Cleared);
        }
    }

    /// The changes since the last call, in order.
    pub fn changes(&mut self) -> std::vec::Drain<'_, KvChange> {
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
    fn forget(&mut self, block: u32, group: u8, hash: SequenceHash) {
        let copy = std::mem::replace(&mut self.blocks[block as usize].copy, NONE);
        let all = &mut self.found[usize::from(group)];
        let Some(copies) = all.get_mut(&hash) else {
            return;
        };
        let is_last = copies.first == copies.last;
        if is_last {
            all.remove(&hash);
        } else if copies.first == block {
            copies.first = copy;
        } else {
            let mut before = copies.first;
            while self.blocks[before as usize].copy != block {
                before = self.blocks[before as usize].copy;
            }
            self.blocks[before as usize].copy = copy;
            if copies.last == block {
                copies.last = before;
            }
        }
        if self.announces(is_last) {
            self.changes.push(KvChange::Removed { group, hash });
        }
    }

    /// Takes the first block out of the queue, which is not empty.
    fn pop_front(&mut self) -> u32 {
        let first = self.first;
        self.first = self.blocks[first as usize].after;
        match self.first {
            NONE => self.last = NONE,
            after => self.blocks[after as usize].before = NONE,
        }
        self.free -= 1;
        first
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

    /// Recounts everything, given the blocks that each request references.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first disagreement.
    pub fn validate<'a>(&self, references: impl Iterator<Item = &'a [u32]>) -> Result<()> {
        let broken = |text: String| Err(Error::Invariant(text));
        let mut counted = vec![0_u32; self.blocks.len()];
        for block in references.flatten().filter(|block| **block != NONE) {
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
        for (group, found) in (0..).zip(&self.found) {
            for (&hash, of) in found {
                let (mut at, mut last) = (of.first, NONE);
                while at != NONE {
                    if self.blocks[at as usize].content != Content::Cached(group, hash) {
                        return broken(format!(
                            "block {at} is found by {hash:?} in group {group} and does not hold it"
                        ));
                    }
                    copies += 1;
                    (last, at) = (at, self.blocks[at as usize].copy);
                }
                if last != of.last {
                    return broken(format!("the last copy of {hash:?} is {last}: {of:?}"));
                }
            }
        }
        let cached = self
            .blocks
            .iter()
            .filter(|b| matches!(b.content, Content::Cached(..)))
            .count();
        if copies != cached {
            return broken(format!("{cached} blocks are cached, {copies} can be found"));
        }
        Ok(())
    }
}
