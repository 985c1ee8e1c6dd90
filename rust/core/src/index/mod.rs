//! Block index: which worker holds which leading blocks.

use crate::error::Result;
use crate::ids::{Medium, Millis, SequenceHash, WorkerId};

/// How the longest existing prefix is searched. All give the same answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Matcher {
    /// 8-ary search, probes of one round loaded together.
    #[default]
    Kary,
    /// Binary search.
    Binary,
    /// Block by block from the root; the definition the others are compared with.
    Linear,
}

/// Answer buffer of [`BlockIndex::overlaps`], reused between calls so that a lookup allocates nothing.
#[derive(Debug, Default)]
pub struct Overlaps {}

impl Overlaps {
    /// Leading blocks held by the worker in `slot`.
    #[must_use]
    pub fn depth(&self, slot: u32) -> u32 {
        let _ = slot;
        todo!()
    }

    /// Every worker slot that holds at least one leading block, with its depth, in ascending slot order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        std::iter::empty()
    }

    /// The deepest depth in the answer, 0 if nobody holds block 0.
    #[must_use]
    pub fn best(&self) -> u32 {
        todo!()
    }
}

/// The index of one model and one block size.
#[derive(Debug)]
pub struct BlockIndex {}

impl BlockIndex {
    /// An empty index.
    #[must_use]
    pub fn new(matcher: Matcher) -> Self {
        let _ = matcher;
        todo!()
    }

    /// Registers a worker incarnation that may hold up to `capacity` blocks per medium.
    pub fn add_worker(&mut self, worker: WorkerId, capacity: u32) {
        let _ = (worker, capacity);
        todo!()
    }

    /// Forgets the worker and all it holds; returns the blocks dropped. Its id is refused from now on.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`] for an id that is not registered.
    pub fn remove_worker(&mut self, worker: WorkerId) -> Result<u64> {
        let _ = worker;
        todo!()
    }

    /// Fills `out` with the leading blocks of `hashes` that every worker holds. Pure: nothing in the index changes.
    pub fn overlaps(&self, hashes: &[SequenceHash], out: &mut Overlaps) {
        let _ = (hashes, out);
        todo!()
    }

    /// Records that `worker` holds the path `hashes` from the root (at most its capacity of them) on the GPU, makes it
    /// the worker's most recent use, and evicts what no longer fits. `expires`: time to live end, `None` for never.
    /// Returns the blocks newly held. `hint` is the answer of an [`Self::overlaps`] call for the same hashes on the
    /// unchanged index, which saves the search.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn record(
        &mut self,
        worker: WorkerId,
        hashes: &[SequenceHash],
        hint: Option<&Overlaps>,
        expires: Option<Millis>,
    ) -> Result<u32> {
        let _ = (worker, hashes, hint, expires);
        todo!()
    }

    /// Stores `hashes`, a chain behind `parent` (`None`: from the root), as engine events do. Returns the blocks newly
    /// held. An unknown parent stores nothing and counts an orphan.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn store(
        &mut self,
        worker: WorkerId,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
        expires: Option<Millis>,
    ) -> Result<u32> {
        let _ = (worker, parent, hashes, medium, expires);
        todo!()
    }

    /// Removes single blocks, from one medium or from all. Returns the blocks that left the worker's medium.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn remove(
        &mut self,
        worker: WorkerId,
        hashes: &[SequenceHash],
        medium: Option<Medium>,
    ) -> Result<u32> {
        let _ = (worker, hashes, medium);
        todo!()
    }

    /// Drops every block of the worker, which stays registered.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn clear(&mut self, worker: WorkerId) -> Result<u64> {
        let _ = worker;
        todo!()
    }

    /// Evicts least recently used leaves until the worker holds at most `max_blocks`.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn evict_worker(&mut self, worker: WorkerId, max_blocks: u64) -> Result<u64> {
        let _ = (worker, max_blocks);
        todo!()
    }

    /// When the next entry with a time to live is due, if any.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Millis> {
        todo!()
    }

    /// Drops entries whose time to live ended at or before `now`.
    pub fn expire(&mut self, now: Millis) -> u64 {
        let _ = now;
        todo!()
    }

    /// Distinct blocks held by the worker.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn block_count(&self, worker: WorkerId) -> Result<u64> {
        let _ = worker;
        todo!()
    }

    /// Distinct blocks known to the index.
    #[must_use]
    pub fn len(&self) -> u64 {
        todo!()
    }

    /// Whether no block is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Heap bytes of the index.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        todo!()
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// [`crate::Error::Invariant`] naming the first broken invariant.
    pub fn validate(&self) -> Result<()> {
        todo!()
    }
}
