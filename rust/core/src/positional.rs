//! Index over position hashes, for study only.
//!
//! A flat map of hash to holders, with the recency rules of the proposal it reproduces: a recording stamps all blocks
//! of the prompt with one epoch, the oldest stamps go first. Two flaws are kept on purpose, since showing them is what
//! it is for: a match says nothing about what came before it, and blocks of one epoch go in no useful order, so that a
//! prompt over the capacity loses its beginning. Capacity is enforced inline and counts are exact.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::ids::{SequenceHash, WorkerId};

#[derive(Debug)]
struct Holder {
    generation: u32,
    capacity: usize,
    /// Everything held, oldest epoch first.
    blocks: BTreeSet<(u64, SequenceHash)>,
}

/// Who holds which position hashes.
#[derive(Debug, Default)]
pub struct PositionalIndex {
    /// Epoch of the last use by worker slot.
    blocks: BTreeMap<SequenceHash, BTreeMap<u32, u64>>,
    workers: BTreeMap<u32, Holder>,
    epoch: u64,
    /// Most bytes, `None` for no limit.
    limit: Option<usize>,
    /// Blocks that the latest recording had no room for.
    cut: Option<usize>,
}

/// Bytes of a block that one worker holds.
const BLOCK_BYTES: usize = size_of::<(SequenceHash, BTreeMap<u32, u64>)>()
    + size_of::<(u32, u64)>()
    + size_of::<(u64, SequenceHash)>();

impl PositionalIndex {
    /// Registers a worker incarnation that may hold up to `capacity` blocks. An incarnation still in the slot is removed
    /// first; registering the same one again only changes its capacity.
    pub fn add_worker(&mut self, worker: WorkerId, capacity: u32) {
        if let Some(present) = self.workers.get_mut(&worker.slot) {
            let generation = present.generation;
            if generation == worker.generation {
                present.capacity = capacity as usize;
                // It is registered, so nothing refuses.
                let _ = self.evict_worker(worker, u64::from(capacity));
                return;
            }
            let _ = self.remove_worker(WorkerId {
                slot: worker.slot,
                generation,
            });
        }
        let holder = Holder {
            generation: worker.generation,
            capacity: capacity as usize,
            blocks: BTreeSet::new(),
        };
        self.workers.insert(worker.slot, holder);
    }

    /// Forgets the worker; returns the blocks dropped.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn remove_worker(&mut self, worker: WorkerId) -> Result<u64> {
        let dropped = self.clear(worker)?;
        self.workers.remove(&worker.slot);
        Ok(dropped)
    }

    /// Distinct blocks of all workers.
    #[must_use]
    pub fn distinct_blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Fills `out` with slot and leading blocks of every worker that holds at least one, in slot order. Linear.
    pub fn overlaps(&self, hashes: &[SequenceHash], out: &mut Vec<(u32, u32)>) {
        out.clear();
        for (depth, hash) in (0_u32..).zip(hashes) {
            let Some(holders) = self.blocks.get(hash) else {
                return;
            };
            if depth == 0 {
                out.extend(holders.keys().map(|slot| (*slot, 0)));
            }
            let mut alive = false;
            for (slot, blocks) in out.iter_mut() {
                if *blocks == depth && holders.contains_key(slot) {
                    *blocks += 1;
                    alive = true;
                }
            }
            if !alive {
                return;
            }
        }
    }

    /// Lets the index grow up to `bytes`; a recording without room changes nothing, see [`Self::cut`]. `tick` is the time
    /// of uses from now on.
    pub fn set_limit(&mut self, bytes: usize, tick: u64) {
        self.limit = Some(bytes);
        self.epoch = self.epoch.max(tick);
    }

    /// How many blocks the latest recording had no room for, `None` if it was complete.
    #[must_use]
    pub fn cut(&self) -> Option<usize> {
        self.cut
    }

    /// Whether there is room for what the latest recording lacked.
    #[must_use]
    pub fn fits(&self) -> bool {
        let bytes = self.memory_bytes() + self.cut.unwrap_or(0) * BLOCK_BYTES;
        self.limit.is_none_or(|limit| bytes <= limit)
    }

    fn oldest_of_all(&self) -> Option<(u32, (u64, SequenceHash))> {
        let oldest = |(slot, holder): (&u32, &Holder)| Some((*slot, *holder.blocks.first()?));
        let each = self.workers.iter().filter_map(oldest);
        each.min_by_key(|(_, block)| *block)
    }

    /// When what goes next was used; `None` if there is nothing to evict.
    #[must_use]
    pub fn oldest(&self) -> Option<u64> {
        self.oldest_of_all().map(|(_, (epoch, _))| epoch)
    }

    /// Drops the block unused for longest if its last use was before the tick `before`; returns how many went.
    pub fn evict_oldest(&mut self, before: u64) -> u64 {
        let oldest = self.oldest_of_all().filter(|(_, (age, _))| *age < before);
        let Some((slot, block)) = oldest else {
            return 0;
        };
        self.drop_block(slot, block);
        1
    }

    /// Records that `worker` holds `hashes`, all used now; returns the blocks newly held.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn record(&mut self, worker: WorkerId, hashes: &[SequenceHash]) -> Result<u32> {
        let capacity = self.holder(worker)?.capacity;
        self.cut = Some(hashes.len());
        if !self.fits() {
            return Ok(0);
        }
        self.cut = None;
        self.epoch += 1;
        let epoch = self.epoch;
        let mut new = 0;
        for &hash in hashes {
            let before = self
                .blocks
                .entry(hash)
                .or_default()
                .insert(worker.slot, epoch);
            let holder = self.holder(worker)?;
            match before {
                Some(before) => {
                    holder.blocks.remove(&(before, hash));
                }
                None => new += 1,
            }
            holder.blocks.insert((epoch, hash));
        }
        self.evict_worker(worker, capacity as u64)?;
        Ok(new)
    }

    /// Removes single blocks; returns how many were held.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn remove(&mut self, worker: WorkerId, hashes: &[SequenceHash]) -> Result<u32> {
        self.holder(worker)?;
        let mut removed = 0;
        for hash in hashes {
            let epoch = self
                .blocks
                .get(hash)
                .and_then(|holders| holders.get(&worker.slot));
            if let Some(&epoch) = epoch {
                self.drop_block(worker.slot, (epoch, *hash));
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Drops every block of the worker, which stays registered.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn clear(&mut self, worker: WorkerId) -> Result<u64> {
        self.evict_worker(worker, 0)
    }

    /// Drops the oldest blocks until the worker holds at most `max_blocks`; returns how many went.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn evict_worker(&mut self, worker: WorkerId, max_blocks: u64) -> Result<u64> {
        let mut evicted = 0;
        loop {
            let holder = self.holder(worker)?;
            let oldest = match holder.blocks.first() {
                Some(oldest) if holder.blocks.len() as u64 > max_blocks => *oldest,
                _ => return Ok(evicted),
            };
            self.drop_block(worker.slot, oldest);
            evicted += 1;
        }
    }

    /// Blocks held by the worker.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn block_count(&self, worker: WorkerId) -> Result<u64> {
        let holder = self.workers.get(&worker.slot);
        let holder = holder.filter(|holder| holder.generation == worker.generation);
        holder
            .map(|holder| holder.blocks.len() as u64)
            .ok_or(Error::UnknownWorker(worker))
    }

    /// Heap bytes, estimated from the entries.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let held: usize = self
            .workers
            .values()
            .map(|holder| holder.blocks.len())
            .sum();
        self.blocks.len() * size_of::<(SequenceHash, BTreeMap<u32, u64>)>()
            + self.workers.len() * size_of::<(u32, Holder)>()
            + held * (size_of::<(u32, u64)>() + size_of::<(u64, SequenceHash)>())
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first broken invariant.
    pub fn validate(&self) -> Result<()> {
        let mut pairs = 0;
        for (hash, holders) in &self.blocks {
            if holders.is_empty() {
                return Err(Error::Invariant(format!(
                    "block {:#x} has no holder",
                    hash.0
                )));
            }
            for (slot, epoch) in holders {
                let known = self
                    .workers
                    .get(slot)
                    .is_some_and(|holder| holder.blocks.contains(&(*epoch, *hash)));
                if !known {
                    return Err(Error::Invariant(format!(
                        "block {:#x} is not listed at slot {slot}",
                        hash.0
                    )));
                }
                pairs += 1;
            }
        }
        let listed: usize = self
            .workers
            .values()
            .map(|holder| holder.blocks.len())
            .sum();
        if pairs != listed {
            return Err(Error::Invariant(format!(
                "{listed} blocks are listed, {pairs} are held"
            )));
        }
        match self
            .workers
            .iter()
            .find(|(_, holder)| holder.blocks.len() > holder.capacity)
        {
            Some((slot, _)) => Err(Error::Invariant(format!(
                "slot {slot} holds more than its capacity"
            ))),
            None => Ok(()),
        }
    }

    fn holder(&mut self, worker: WorkerId) -> Result<&mut Holder> {
        let holder = self.workers.get_mut(&worker.slot);
        holder
            .filter(|holder| holder.generation == worker.generation)
            .ok_or(Error::UnknownWorker(worker))
    }

    fn drop_block(&mut self, slot: u32, block: (u64, SequenceHash)) {
        if let Some(holder) = self.workers.get_mut(&slot) {
            holder.blocks.remove(&block);
        }
        if let Some(holders) = self.blocks.get_mut(&block.1) {
            holders.remove(&slot);
            if holders.is_empty() {
                self.blocks.remove(&block.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashing::{Hasher, Namespace, Scheme};

    const W1: WorkerId = WorkerId {
        slot: 0,
        generation: 0,
    };
    const W2: WorkerId = WorkerId {
        slot: 3,
        generation: 1,
    };

    fn index(capacity: u32) -> PositionalIndex {
        let mut index = PositionalIndex::default();
        index.add_worker(W1, capacity);
        index.add_worker(W2, capacity);
        index
    }

    fn hashes(blocks: &[u32]) -> Vec<SequenceHash> {
        let mut out = Vec::new();
        Hasher::new(Scheme::Positional, 1, 0).unwrap().hash(
            blocks,
            Namespace::default(),
            &[],
            &mut out,
        );
        out
    }

    fn overlaps(index: &PositionalIndex, blocks: &[u32]) -> Vec<(u32, u32)> {
        let mut out = Vec::new();
        index.overlaps(&hashes(blocks), &mut out);
        index.validate().unwrap();
        out
    }

    #[test]
    fn position_hashes_credit_a_prefix_nobody_stored() {
        let mut index = index(1000);
        let document = 1000..1100;
        let stored: Vec<u32> = (0..4).chain([50]).chain(document.clone()).collect();
        let asked: Vec<u32> = (0..4).chain([51]).chain(document).collect();
        index.record(W1, &hashes(&stored)).unwrap();
        assert_eq!(overlaps(&index, &asked), [(0, 4)]);
        index.record(W1, &hashes(&[0, 1, 2, 3, 51])).unwrap();
        assert_eq!(overlaps(&index, &asked), [(0, 105)], "the truth is 5");
    }

    #[test]
    fn two_prompts_alias_into_a_third() {
        let mut index = index(100);
        index.record(W1, &hashes(&[1, 2, 2, 2])).unwrap();
        index.record(W1, &hashes(&[26, 3, 3, 4])).unwrap();
        assert_eq!(overlaps(&index, &[1, 3, 3, 4]), [(0, 4)], "the truth is 1");
    }

    #[test]
    fn every_worker_gets_its_own_depth() {
        let mut index = index(100);
        assert_eq!(index.record(W1, &hashes(&[1, 2, 3])), Ok(3));
        assert_eq!(index.record(W2, &hashes(&[1, 9, 3])), Ok(3));
        assert_eq!(index.record(W2, &hashes(&[1, 9, 4])), Ok(1));
        assert_eq!(overlaps(&index, &[1, 2, 3]), [(0, 3), (3, 1)]);
        assert_eq!(overlaps(&index, &[7]), []);
    }

    #[test]
    fn the_capacity_holds_after_every_call() {
        let mut index = index(3);
        index.record(W1, &hashes(&[1, 2])).unwrap();
        index.record(W1, &hashes(&[5, 6])).unwrap();
        assert_eq!(index.block_count(W1), Ok(3));
        index.record(W1, &hashes(&[1, 2, 3, 4, 5])).unwrap();
        assert_eq!(index.block_count(W1), Ok(3));
        index.validate().unwrap();
    }

    #[test]
    fn removed_blocks_and_workers_leave_nothing() {
        let mut index = index(100);
        index.record(W1, &hashes(&[1, 2, 3])).unwrap();
        index.record(W2, &hashes(&[1, 2])).unwrap();
        assert_eq!(index.remove(W1, &hashes(&[1, 2])[1..]), Ok(1));
        assert_eq!(overlaps(&index, &[1, 2, 3]), [(0, 1), (3, 2)]);
        assert_eq!(index.remove_worker(W2), Ok(2));
        assert_eq!(
            index.record(W2, &hashes(&[1])),
            Err(Error::UnknownWorker(W2))
        );
        assert_eq!(index.clear(W1), Ok(2));
        assert_eq!(overlaps(&index, &[1]), []);
        assert!(index.blocks.is_empty());
    }
}
