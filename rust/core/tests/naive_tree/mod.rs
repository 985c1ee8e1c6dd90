//! The obvious model of a radix tree: every prefix that a worker holds, with when it was used and until when it lives.
//!
//! An atom is never divided: a character, or a page of tokens.

use std::collections::{BTreeMap, BTreeSet};

pub const NEVER: u64 = u64::MAX;

/// The prefixes of one (worker, trust).
#[derive(Debug, Default, Clone)]
pub struct Lane {
    /// Time of the latest use of anything that starts with it, and the end of its time to live.
    held: BTreeMap<Vec<u32>, (u64, u64)>,
    clock: u64,
}

impl Lane {
    fn is_leaf(&self, path: &[u32]) -> bool {
        // Extensions of a path come right behind it.
        let mut next = self.held.range(path.to_vec()..).skip(1);
        next.next()
            .is_none_or(|(other, _)| !other.starts_with(path))
    }

    fn depth(&self, path: &[u32]) -> usize {
        let held = |depth: &usize| self.held.contains_key(&path[..*depth]);
        (1..=path.len()).take_while(held).count()
    }

    fn oldest(&self) -> Option<u64> {
        self.held.values().map(|(epoch, _)| *epoch).min()
    }
}

#[derive(Debug, Clone)]
pub struct Worker {
    pub capacity: u64,
    /// Remote and local state.
    lanes: [Lane; 2],
}

/// Index of a lane.
pub const REMOTE: usize = 0;
pub const LOCAL: usize = 1;

impl Worker {
    fn atoms(&self) -> BTreeSet<&Vec<u32>> {
        self.lanes
            .iter()
            .flat_map(|lane| lane.held.keys())
            .collect()
    }

    /// Drops the remote leaves that are held locally.
    fn prune(&mut self) {
        loop {
            let [remote, local] = &self.lanes;
            let redundant = remote
                .held
                .keys()
                .find(|path| local.held.contains_key(*path) && remote.is_leaf(path));
            let Some(path) = redundant.cloned() else {
                return;
            };
            self.lanes[REMOTE].held.remove(&path);
        }
    }
}

#[derive(Debug, Default)]
pub struct Tree {
    pub workers: BTreeMap<u32, Worker>,
    /// Units per atom.
    pub page: u64,
    pub max_units: u64,
    pub clock: u64,
}

impl Tree {
    pub fn add(&mut self, slot: u32, capacity: u64) {
        let worker = Worker {
            capacity,
            lanes: Default::default(),
        };
        self.workers.insert(slot, worker);
    }

    pub fn clear(&mut self, slot: u32) {
        if let Some(worker) = self.workers.get_mut(&slot) {
            for lane in &mut worker.lanes {
                lane.held.clear();
            }
        }
    }

    pub fn count(&self, slot: u32) -> u64 {
        self.workers[&slot].atoms().len() as u64 * self.page
    }

    pub fn total(&self) -> u64 {
        self.workers.keys().map(|slot| self.count(*slot)).sum()
    }

    pub fn len(&self) -> u64 {
        let each = self.workers.values().flat_map(Worker::atoms);
        each.collect::<BTreeSet<_>>().len() as u64 * self.page
    }

    /// Leading units of the path that the worker holds.
    pub fn overlap(&self, slot: u32, path: &[u32]) -> u32 {
        let lanes = self.workers[&slot].lanes.iter();
        lanes.map(|lane| lane.depth(path)).max().unwrap_or(0) as u32 * self.page as u32
    }

    pub fn insert(
        &mut self,
        slot: u32,
        path: &[u32],
        lane: usize,
        expires: u64,
        time: Option<u64>,
    ) -> u64 {
        let before = self.count(slot);
        let Some(worker) = self.workers.get_mut(&slot) else {
            return 0;
        };
        let most = (worker.capacity.min(self.max_units) / self.page) as usize;
        let path = &path[..path.len().min(most)];
        if path.is_empty() || (lane == REMOTE && worker.lanes[LOCAL].held.contains_key(path)) {
            return 0;
        }
        let into = &mut worker.lanes[lane];
        let time = time.map_or(self.clock + 1, |time| time.max(into.clock));
        into.clock = time;
        self.clock = self.clock.max(time);
        for depth in 1..=path.len() {
            let pair = into.held.entry(path[..depth].to_vec()).or_insert((0, 0));
            *pair = (time, expires.max(pair.1));
        }
        worker.prune();
        let capacity = worker.capacity;
        let new = self.count(slot) - before;
        self.evict_worker(slot, capacity);
        self.evict(self.max_units);
        new
    }

    /// Evicts the deepest of a lane's least recently used atoms.
    fn evict_atom(&mut self, slot: u32, lane: usize) {
        let Some(worker) = self.workers.get_mut(&slot) else {
            return;
        };
        let held = &mut worker.lanes[lane].held;
        let oldest = held
            .iter()
            .min_by_key(|(path, (epoch, _))| (*epoch, std::cmp::Reverse(path.len())));
        if let Some(path) = oldest.map(|(path, _)| path.clone()) {
            held.remove(&path);
        }
        worker.prune();
    }

    pub fn evict_worker(&mut self, slot: u32, max_units: u64) -> u64 {
        let before = self.count(slot);
        for lane in [REMOTE, LOCAL] {
            while self.count(slot) > max_units && !self.workers[&slot].lanes[lane].held.is_empty() {
                self.evict_atom(slot, lane);
            }
        }
        before - self.count(slot)
    }

    pub fn evict(&mut self, max_units: u64) -> u64 {
        let before = self.total();
        while self.total() > max_units {
            let oldest = [REMOTE, LOCAL].into_iter().find_map(|lane| {
                let ages = self.workers.iter();
                let ages = ages.filter_map(|(slot, w)| Some((w.lanes[lane].oldest()?, *slot)));
                ages.min().map(|(_, slot)| (slot, lane))
            });
            let Some((slot, lane)) = oldest else { break };
            self.evict_atom(slot, lane);
        }
        before - self.total()
    }

    /// Drops whole groups of atoms that were used last at the same time.
    pub fn evict_oldest_uses(&mut self, slot: u32, min_units: u64) -> u64 {
        let before = self.count(slot);
        for lane in [REMOTE, LOCAL] {
            while before - self.count(slot) < min_units {
                let Some(worker) = self.workers.get_mut(&slot) else {
                    return 0;
                };
                let Some(time) = worker.lanes[lane].oldest() else {
                    break;
                };
                let held = &mut worker.lanes[lane].held;
                held.retain(|_, (epoch, _)| *epoch != time);
                worker.prune();
            }
        }
        before - self.count(slot)
    }

    /// One deadline after another, since early removals decide later redundancy.
    pub fn expire(&mut self, now: u64) {
        for worker in self.workers.values_mut() {
            let held = worker.lanes.iter().flat_map(|lane| lane.held.values());
            let due = held.map(|(_, expires)| *expires).filter(|end| *end <= now);
            for end in due.collect::<BTreeSet<u64>>() {
                for lane in &mut worker.lanes {
                    lane.held.retain(|_, (_, expires)| *expires > end);
                }
                worker.prune();
            }
        }
    }

    pub fn truncate(&mut self, slot: u32, path: &[u32], keep: u64) -> u64 {
        let before = self.count(slot);
        let keep = keep.div_ceil(self.page) as usize;
        let Some(worker) = self.workers.get_mut(&slot) else {
            return 0;
        };
        let lane = &mut worker.lanes[LOCAL];
        for depth in (keep + 1..=lane.depth(path)).rev() {
            if !lane.is_leaf(&path[..depth]) {
                break;
            }
            lane.held.remove(&path[..depth]);
        }
        before - self.count(slot)
    }
}
