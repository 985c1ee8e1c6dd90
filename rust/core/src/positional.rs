//! Index over position hashes, for study only.
//!
//! Each worker has a flat set of hashes, with the recency rules of the proposal it reproduces: a recording stamps all
//! blocks of the prompt with one epoch, the oldest stamps go first. Two flaws are kept on purpose, since showing them is
//! the purpose of the index: a match proves nothing about the blocks before it, and blocks of one epoch are evicted in
//! no useful order, so that a prompt over the capacity loses its beginning. Capacity is enforced inline and counts are
//! exact.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::error::{Error, Result};
use crate::ids::{SequenceHash, WorkerId};

#[derive(Debug)]
struct Holder {
    generation: u32,
    capacity: usize,
    /// Epoch of the last use.
    used: HashMap<SequenceHash, u64>,
    /// The blocks again, oldest epoch first.
    blocks: BTreeSet<(u64, SequenceHash)>,
}

/// The holders of position hashes.
#[derive(Debug, Default)]
pub struct PositionalIndex {
    /// By slot.
    workers: BTreeMap<u32, Holder>,
    epoch: u64,
}

impl PositionalIndex {
    /// Registers a worker incarnation that may hold up to `capacity` blocks. Another incarnation in the slot is removed
    /// first; registering the one there again only changes its capacity.
    pub fn add_worker(&mut self, worker: WorkerId, capacity: u32) {
        let holder = self.workers.entry(worker.slot).or_insert_with(|| Holder {
            generation: worker.generation,
            capacity: 0,
            used: HashMap::new(),
            blocks: BTreeSet::new(),
        });
        if holder.generation != worker.generation {
            holder.generation = worker.generation;
            holder.evict(0);
        }
        holder.capacity = capacity as usize;
        holder.evict(holder.capacity);
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

    /// Distinct blocks of all workers. Linear.
    #[must_use]
    pub fn distinct_blocks(&self) -> u64 {
        let each = self.workers.values().flat_map(|holder| holder.used.keys());
        each.collect::<HashSet<_>>().len() as u64
    }

    /// Fills `out` with slot and leading blocks of every worker that holds at least one, in slot order. Linear.
    pub fn overlaps(&self, hashes: &[SequenceHash], out: &mut Vec<(u32, u32)>) {
        let leading = |holder: &Holder| {
            let held = |hash: &&SequenceHash| holder.used.contains_key(hash);
            hashes.iter().take_while(held).count() as u32
        };
        let each = self.workers.iter();
        out.clear();
        out.extend(each.map(|(slot, holder)| (*slot, leading(holder))));
        out.retain(|(_, blocks)| *blocks > 0);
    }

    /// Records that `worker` holds `hashes`, all used now; returns the blocks newly held.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn record(&mut self, worker: WorkerId, hashes: &[SequenceHash]) -> Result<u32> {
        self.epoch += 1;
        let epoch = self.epoch;
        let holder = self.holder(worker)?;
        let mut new = 0;
        for &hash in hashes {
            match holder.used.insert(hash, epoch) {
                Some(before) => drop(holder.blocks.remove(&(before, hash))),
                None => new += 1,
            }
            holder.blocks.insert((epoch, hash));
        }
        holder.evict(holder.capacity);
        Ok(new)
    }

    /// Removes single blocks; returns how many were held.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn remove(&mut self, worker: WorkerId, hashes: &[SequenceHash]) -> Result<u32> {
        let holder = self.holder(worker)?;
        let mut removed = 0;
        for hash in hashes {
            if let Some(epoch) = holder.used.remove(hash) {
                holder.blocks.remove(&(epoch, *hash));
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
        let most = usize::try_from(max_blocks).unwrap_or(usize::MAX);
        Ok(self.holder(worker)?.evict(most))
    }

    /// Blocks held by the worker.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn block_count(&self, worker: WorkerId) -> Result<u64> {
        let holder = self.workers.get(&worker.slot);
        let holder = holder.filter(|holder| holder.generation == worker.generation);
        holder
            .map(|holder| holder.used.len() as u64)
            .ok_or(Error::UnknownWorker(worker))
    }

    /// Heap bytes, estimated from the entries.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let held: usize = self.workers.values().map(|holder| holder.used.len()).sum();
        self.workers.len() * size_of::<(u32, Holder)>()
            + 2 * held * size_of::<(u64, SequenceHash)>()
    }

    fn holder(&mut self, worker: WorkerId) -> Result<&mut Holder> {
        let holder = self.workers.get_mut(&worker.slot);
        holder
            .filter(|holder| holder.generation == worker.generation)
            .ok_or(Error::UnknownWorker(worker))
    }
}

impl Holder {
    /// Drops the oldest blocks beyond `most`; returns how many.
    fn evict(&mut self, most: usize) -> u64 {
        let excess = self.blocks.len().saturating_sub(most);
        for _ in 0..excess {
            if let Some((_, hash)) = self.blocks.pop_first() {
                self.used.remove(&hash);
            }
        }
        excess as u64
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
        out
    }

    #[test]
    fn position_hashes_credit_a_prefix_that_was_not_stored() {
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
        assert_eq!(index.distinct_blocks(), 0);
    }
}
