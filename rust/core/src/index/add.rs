//! Everything that adds blocks: recording a routed prompt, storing the blocks that an engine announced.

use super::insert::Insert;
use super::{BlockIndex, NONE, Overlaps};
use crate::epoch_lru::lanes::lane_of;
use crate::error::Result;
use crate::ids::{Medium, Millis, SequenceHash, WorkerId};

impl BlockIndex {
    /// Records that `worker` holds the path `hashes` from the root (at most its capacity of them) on the GPU, makes it
    /// the worker's most recent use, and evicts blocks that no longer fit. `expires`: end of the time to live, `None`
    /// for never. Returns the blocks newly held. `hint` is the answer of an [`Self::overlaps`] call for the same
    /// hashes; it saves the search if the index has not changed since.
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
        Ok(self
            .insert(worker, Medium::Gpu, expires)?
            .path(hashes, 0, hint))
    }

    /// Records that the path `hashes` is on its way into the worker's device memory: as [`Self::record`], but in
    /// [`Medium::Speculative`], and only its blocks from depth `from` on and unknown ones. A block that is expected
    /// again stays until the later of its deadlines.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn expect(
        &mut self,
        worker: WorkerId,
        hashes: &[SequenceHash],
        from: u32,
        hint: Option<&Overlaps>,
        expires: Option<Millis>,
    ) -> Result<u32> {
        let insert = self.insert(worker, Medium::Speculative, expires)?;
        Ok(insert.path(hashes, from, hint))
    }

    /// Stores `hashes`, a chain behind `parent` (`None`: from the root), as given. Returns the blocks newly held. An
    /// unknown parent stores nothing and counts an orphan; a hash that is already stored behind another parent ends the
    /// chain there and counts a conflict.
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
        let mut insert = self.insert(worker, medium, expires)?;
        insert.claimed = true;
        Ok(insert.chain(parent, hashes))
    }

    /// Stores the blocks that an engine announced: as [`Self::store`], but `hashes` is a chain computed here, and
    /// speculative blocks have arrived: blocks held in `medium` are no longer held in [`Medium::Speculative`].
    /// `expires` is for senders that may never remove.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn announce(
        &mut self,
        worker: WorkerId,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
        expires: Option<Millis>,
    ) -> Result<u32> {
        Ok(self.insert(worker, medium, expires)?.chain(parent, hashes))
    }

    /// Stores `hash`, a block the worker holds in a medium that engines announce, in `medium` too, behind the block it is
    /// behind there. Returns whether it is newly held; false for a block that the worker holds nowhere.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn spread(&mut self, worker: WorkerId, hash: SequenceHash, medium: Medium) -> Result<bool> {
        self.worker(worker)?;
        let chains = self.chains();
        let mut media = Medium::ANNOUNCED.into_iter();
        let held = media.any(|medium| chains.holds(worker, hash, medium));
        let Some(block) = chains.find(hash).filter(|_| held) else {
            return Ok(false);
        };
        let before = chains.before(block);
        let parent = (before != NONE).then(|| self.held.shape.blocks.hash(before));
        Ok(self.announce(worker, parent, &[hash], medium, None)? > 0)
    }

    /// Undoes [`Self::store`] of a chain: removes the last `held` of its stored leading blocks, which were new to the
    /// worker.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn undo(
        &mut self,
        worker: WorkerId,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        held: u32,
        medium: Medium,
    ) -> Result<()> {
        self.worker(worker)?;
        let chains = self.chains();
        let find = |hash| chains.find(hash);
        let mut last = parent.and_then(find).unwrap_or(NONE);
        let mut stored = Vec::new();
        for block in hashes.iter().map_while(|hash| find(*hash)) {
            if chains.before(block) != last {
                break;
            }
            stored.push(block);
            last = block;
        }
        let new = stored.len().saturating_sub(held as usize);
        for block in stored.drain(new..).rev() {
            self.held.withdraw(lane_of(worker.slot, medium), block, 1);
        }
        self.held.finish();
        Ok(())
    }

    /// Begins a change that adds blocks.
    pub(super) fn insert(
        &mut self,
        worker: WorkerId,
        medium: Medium,
        expires: Option<Millis>,
    ) -> Result<Insert<'_>> {
        let capacity = (self.held.shape).room(self.worker(worker)?.capacity.into(), medium);
        Ok(Insert {
            lane: lane_of(worker.slot, medium),
            expires: self.held.expiry.deadline(expires),
            index: self,
            capacity: u32::try_from(capacity).unwrap_or(u32::MAX),
            claimed: false,
        })
    }
}
