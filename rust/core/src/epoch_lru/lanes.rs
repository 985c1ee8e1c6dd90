//! Workers and their lanes. A lane is one (worker, medium): it has its own holders, order of use and capacity.
//!
//! A lane's number encodes slot and medium, so the lanes of a worker are neighbours wherever lanes are sorted.

use crate::collections::slab::NONE;
use crate::error::{Error, Result};
use crate::ids::{Medium, WorkerId};

/// Media of a worker.
pub(crate) const MEDIA: usize = Medium::ALL.len();

/// The lane of a worker's slot and a medium.
#[inline]
pub(crate) fn lane_of(slot: u32, medium: Medium) -> u32 {
    slot * MEDIA as u32 + medium as u32
}

/// The slot of a lane's worker.
#[inline]
pub(crate) fn slot_of(lane: u32) -> u32 {
    lane / MEDIA as u32
}

/// The place of a lane's medium in [`Medium::ALL`].
#[inline]
pub(crate) fn medium_of(lane: u32) -> usize {
    lane as usize % MEDIA
}

/// Whether a lane is the first of its worker, of device memory.
#[inline]
pub(crate) fn is_device(lane: u32) -> bool {
    medium_of(lane) == Medium::Gpu as usize
}

/// Per (worker, medium).
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    /// Blocks held.
    pub(crate) count: u64,
    /// Held blocks whose parent block the lane does not hold.
    pub(crate) holes: u64,
    /// Time of the last access.
    pub(crate) clock: u64,
    pub(crate) oldest: u32,
    pub(crate) newest: u32,
    /// Whether the lane is in the queue of lanes by age.
    pub(crate) queued: bool,
}

impl Lane {
    fn empty() -> Self {
        Self {
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
pub(crate) struct Worker {
    pub(crate) generation: u32,
    /// Most blocks per medium.
    pub(crate) capacity: u32,
    /// Blocks held in any medium.
    pub(crate) distinct: u64,
}

/// All workers and lanes.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    /// By medium and slot; none of a medium that was not used yet.
    items: [Vec<Lane>; MEDIA],
    pub(crate) workers: Vec<Option<Worker>>,
}

impl std::ops::Index<u32> for Lanes {
    type Output = Lane;
    #[inline]
    fn index(&self, lane: u32) -> &Lane {
        &self.items[medium_of(lane)][slot_of(lane) as usize]
    }
}

impl std::ops::IndexMut<u32> for Lanes {
    #[inline]
    fn index_mut(&mut self, lane: u32) -> &mut Lane {
        &mut self.items[medium_of(lane)][slot_of(lane) as usize]
    }
}

impl Lanes {
    #[inline]
    pub(crate) fn worker(&self, slot: u32) -> Option<&Worker> {
        self.workers.get(slot as usize).and_then(Option::as_ref)
    }

    /// A registered worker.
    pub(crate) fn registered(&self, worker: WorkerId) -> Result<&Worker> {
        match self.worker(worker.slot) {
            Some(present) if present.generation == worker.generation => Ok(present),
            _ => Err(Error::UnknownWorker(worker)),
        }
    }

    /// Units over the capacity of the worker in a slot.
    pub(crate) fn excess(&self, slot: u32) -> u64 {
        let worker = self.worker(slot);
        worker.map_or(0, |w| w.distinct.saturating_sub(w.capacity.into()))
    }

    /// A lane, if its medium is in use.
    pub(crate) fn get(&self, lane: u32) -> Option<&Lane> {
        self.items[medium_of(lane)].get(slot_of(lane) as usize)
    }

    /// The record of a lane that was used longest ago.
    pub(crate) fn oldest(&self, lane: u32) -> Option<u32> {
        self.get(lane)
            .map(|lane| lane.oldest)
            .filter(|record| *record != NONE)
    }

    /// Slots with a worker, ascending.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        let workers = (0..).zip(&self.workers);
        workers.filter_map(|(slot, worker)| worker.is_some().then_some(slot))
    }

    /// Makes room for slots `0..slots`.
    pub(crate) fn reserve(&mut self, slots: usize) {
        if self.workers.len() >= slots {
            return;
        }
        self.workers.resize(slots, None);
        for lanes in self.items.iter_mut().filter(|lanes| !lanes.is_empty()) {
            lanes.resize(slots, Lane::empty());
        }
    }

    /// Makes the lanes of a medium that was not used before.
    pub(crate) fn open(&mut self, medium: Medium) {
        self.items[medium as usize].resize(self.workers.len(), Lane::empty());
    }

    /// Whether the medium has lanes.
    #[inline]
    pub(crate) fn is_open(&self, medium: Medium) -> bool {
        !self.items[medium as usize].is_empty()
    }

    /// How many of [`Medium::ALL`] there are up to the last that was used, at least one.
    pub(crate) fn media(&self) -> usize {
        let last = self.items.iter().rposition(|lanes| !lanes.is_empty());
        last.map_or(1, |last| last + 1)
    }

    /// Blocks of a lane, whether it exists or not.
    #[inline]
    pub(crate) fn count(&self, slot: u32, medium: Medium) -> u64 {
        let lane = self.items[medium as usize].get(slot as usize);
        lane.map_or(0, |lane| lane.count)
    }

    /// Lanes of a worker that hold any unit.
    #[inline]
    pub(crate) fn holding(&self, slot: u32) -> impl Iterator<Item = u32> + '_ {
        let held = move |medium: &Medium| self.count(slot, *medium) > 0;
        let media = Medium::ALL.into_iter().filter(held);
        media.map(move |medium| lane_of(slot, medium))
    }

    /// Every lane of every slot, in use or not.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Lane)> {
        let media = Medium::ALL.into_iter().zip(&self.items);
        media.flat_map(|(medium, lanes)| {
            let slots = (0..).zip(lanes);
            slots.map(move |(slot, lane)| (lane_of(slot, medium), lane))
        })
    }

    /// Forgets a worker, whose lanes are empty. True if it was the last one.
    pub(crate) fn forget(&mut self, slot: u32) -> bool {
        if let Some(worker) = self.workers.get_mut(slot as usize) {
            *worker = None;
        }
        for lane in self
            .items
            .iter_mut()
            .filter_map(|l| l.get_mut(slot as usize))
        {
            lane.clock = 0;
        }
        let last = self.workers.iter().all(Option::is_none);
        if last {
            *self = Self::default();
        }
        last
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let lanes: usize = self.items.iter().map(Vec::capacity).sum();
        lanes * size_of::<Lane>() + self.workers.capacity() * size_of::<Option<Worker>>()
    }
}
