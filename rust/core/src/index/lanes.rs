//! Workers and their lanes. A lane is one (worker, medium): it has its own holders, order of use and capacity.

use super::NONE;
use super::recency::Records;
use crate::ids::Medium;

/// Per (worker, medium).
#[derive(Debug, Clone)]
pub(super) struct Lane {
    /// Owner; `NONE` marks a free lane.
    pub(super) slot: u32,
    /// Blocks held.
    pub(super) count: u64,
    /// Held blocks whose parent block the lane does not hold.
    pub(super) holes: u64,
    /// Time of the last access.
    pub(super) clock: u64,
    pub(super) oldest: u32,
    pub(super) newest: u32,
    /// Whether the lane is in the queue of lanes by age.
    pub(super) queued: bool,
}

impl Lane {
    /// A lane without owner.
    pub(super) fn free() -> Self {
        Self {
            slot: NONE,
            count: 0,
            holes: 0,
            clock: 0,
            oldest: NONE,
            newest: NONE,
            queued: false,
        }
    }
}

/// Per worker incarnation.
#[derive(Debug, Clone)]
pub(super) struct Worker {
    pub(super) generation: u32,
    /// Most blocks per medium.
    pub(super) capacity: u32,
    /// Lane per medium, `NONE` where nothing was ever stored.
    pub(super) lanes: [u32; 3],
    /// Blocks held in any medium.
    pub(super) distinct: u64,
}

impl Worker {
    /// The worker's only lane, or `None` if it has several or none.
    #[inline]
    pub(super) fn only_lane(&self) -> Option<u32> {
        match self.lanes {
            [lane, NONE, NONE] | [NONE, lane, NONE] | [NONE, NONE, lane] if lane != NONE => {
                Some(lane)
            }
            _ => None,
        }
    }

    pub(super) fn lanes(&self) -> impl Iterator<Item = u32> + use<> {
        self.lanes.into_iter().filter(|lane| *lane != NONE)
    }
}

/// All workers and lanes.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    pub(super) items: Vec<Lane>,
    pub(super) workers: Vec<Option<Worker>>,
    free: Vec<u32>,
    /// Live lanes whose number differs from their worker's slot; 0 lets answers be read per lane.
    pub(super) moved: u32,
    /// Workers with more than one lane.
    pub(super) several: u32,
}

impl std::ops::Index<u32> for Lanes {
    type Output = Lane;
    #[inline]
    fn index(&self, lane: u32) -> &Lane {
        &self.items[lane as usize]
    }
}

impl std::ops::IndexMut<u32> for Lanes {
    #[inline]
    fn index_mut(&mut self, lane: u32) -> &mut Lane {
        &mut self.items[lane as usize]
    }
}

impl Lanes {
    #[inline]
    pub(super) fn worker(&self, slot: u32) -> Option<&Worker> {
        self.workers.get(slot as usize).and_then(Option::as_ref)
    }

    /// A new lane for the worker in `slot`, numbered like the slot where that number is free.
    pub(super) fn add(&mut self, slot: u32, medium: Medium) -> u32 {
        let lane = Lane {
            slot,
            ..Lane::free()
        };
        let id = if let Some(at) = self.free.iter().position(|id| *id == slot) {
            self.free.swap_remove(at)
        } else if self.items.len() as u32 == slot {
            slot
        } else {
            self.free.pop().unwrap_or(self.items.len() as u32)
        };
        if id as usize == self.items.len() {
            self.items.push(lane);
        } else {
            let queued = self[id].queued;
            self[id] = Lane { queued, ..lane };
        }
        self.moved += u32::from(id != slot);
        if let Some(Some(worker)) = self.workers.get_mut(slot as usize) {
            worker.lanes[medium as usize] = id;
            self.several += u32::from(worker.lanes().count() == 2);
        }
        id
    }

    /// Frees the (empty) lanes of a worker and forgets it.
    pub(super) fn forget(&mut self, slot: u32) {
        let Some(worker) = self.workers.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        self.several -= u32::from(worker.lanes().count() > 1);
        for lane in worker.lanes() {
            self[lane].slot = NONE;
            self.moved -= u32::from(lane != slot);
            self.free.push(lane);
        }
        if self.free.len() == self.items.len() && self.workers.iter().all(Option::is_none) {
            *self = Self::default();
        }
    }

    /// Free lanes and counters, from owners.
    pub(super) fn recount(&mut self) {
        let lanes = 0..self.items.len() as u32;
        let (free, owned): (Vec<u32>, Vec<u32>) = lanes.partition(|lane| self[*lane].slot == NONE);
        self.moved = owned
            .iter()
            .filter(|lane| self[**lane].slot != **lane)
            .count() as u32;
        self.free = free;
        self.several = self
            .workers
            .iter()
            .flatten()
            .filter(|w| w.lanes().count() > 1)
            .count() as u32;
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.items.capacity() * size_of::<Lane>()
            + self.workers.capacity() * size_of::<Option<Worker>>()
            + self.free.capacity() * size_of::<u32>()
    }

    /// Lane and records borrowed together, for list work.
    #[inline]
    pub(super) fn touch(&mut self, records: &mut Records, record: u32, expires: u64) {
        let lane = records[record].lane;
        records.touch(&mut self.items[lane as usize], record, expires);
    }
}
