//! Which worker holds which block, by brute force: maps of sets, paths walked from tail to root, victims found by
//! looking at everything.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use cachelb_core::ids::{Medium, WorkerId};
use cachelb_core::index::{IndexStats, Resumes};

/// State of a block that a worker holds, or that lies above one it holds.
#[derive(Debug, Clone)]
struct Pair {
    held: bool,
    depth: usize,
    last: u64,
    /// `u64::MAX`: never.
    deadline: u64,
}

impl Pair {
    /// State of a block that is not held.
    fn at(depth: usize) -> Self {
        Self {
            held: false,
            depth,
            last: 0,
            deadline: 0,
        }
    }
}

/// One worker's blocks in one medium.
type Pairs = BTreeMap<u64, Pair>;

#[derive(Debug, Clone)]
struct Worker {
    capacity: usize,
    media: [Pairs; Medium::ALL.len()],
}

/// The naive index.
#[derive(Debug, Clone, Default)]
pub struct Naive {
    parents: BTreeMap<u64, Option<u64>>,
    workers: BTreeMap<WorkerId, Worker>,
    uses: u64,
    pub(super) resumes: BTreeMap<WorkerId, Resumes>,
    pub(super) marks: BTreeSet<(WorkerId, u64, Medium)>,
    pub stats: IndexStats,
}

/// Place of a medium in [`Worker::media`].
fn place(medium: Medium) -> usize {
    Medium::ALL
        .iter()
        .position(|&m| m == medium)
        .expect("every medium is listed")
}

impl Naive {
    pub fn add_worker(&mut self, id: WorkerId, capacity: u32) {
        let worker = Worker {
            capacity: capacity as usize,
            media: Default::default(),
        };
        assert!(
            self.workers.insert(id, worker).is_none(),
            "the driver adds a worker once"
        );
    }

    pub fn remove_worker(&mut self, id: WorkerId) -> Option<u64> {
        let (dropped, gone) = (self.block_count(id)?, self.all_of(id));
        self.workers.remove(&id);
        self.resumes.remove(&id);
        self.forget(&gone);
        Some(dropped)
    }

    pub fn record(&mut self, id: WorkerId, hashes: &[u64], deadline: Option<u64>) -> Option<u32> {
        let capacity = self.workers.get(&id)?.capacity;
        let kept = &hashes[..hashes.len().min(capacity)];
        self.store(id, None, kept, Medium::Gpu, deadline)
    }

    pub fn expect(
        &mut self,
        id: WorkerId,
        hashes: &[u64],
        from: usize,
        deadline: Option<u64>,
    ) -> Option<u32> {
        let capacity = self.workers.get(&id)?.capacity;
        let kept = &hashes[..hashes.len().min(capacity)];
        let from = from.min(self.in_place(kept));
        if from == kept.len() {
            return Some(0);
        }
        self.hold(id, None, kept, from, Medium::Speculative, deadline)
    }

    pub fn announce(
        &mut self,
        id: WorkerId,
        parent: Option<u64>,
        hashes: &[u64],
        medium: Medium,
    ) -> Option<u32> {
        let mut arrived = BTreeSet::new();
        if medium != Medium::Speculative {
            // A hash behind another parent is another block: the chain ends there.
            let known = parent.is_none_or(|p| self.parents.contains_key(&p));
            let capacity = self.workers.get(&id)?.capacity;
            let mut above = parent;
            for &hash in hashes.iter().take(capacity) {
                if !known || self.parents.get(&hash).is_some_and(|&p| p != above) {
                    break;
                }
                arrived.insert(hash);
                above = Some(hash);
            }
        }
        let held = self.store(id, parent, hashes, medium, None);
        let worker = self.workers.get_mut(&id)?;
        let speculative = &mut worker.media[place(Medium::Speculative)];
        for hash in arrived {
            if let Some(pair) = speculative.get_mut(&hash) {
                pair.held = false;
            }
        }
        self.forget_unneeded(id);
        held
    }

    pub fn spread(&mut self, id: WorkerId, hash: u64, medium: Medium) -> Option<bool> {
        self.workers.get(&id)?;
        if !Medium::ANNOUNCED
            .into_iter()
            .any(|m| self.holds(id, hash, m))
        {
            return Some(false);
        }
        let parent = self.parents[&hash];
        Some(self.announce(id, parent, &[hash], medium)? > 0)
    }

    pub fn store(
        &mut self,
        id: WorkerId,
        parent: Option<u64>,
        hashes: &[u64],
        medium: Medium,
        deadline: Option<u64>,
    ) -> Option<u32> {
        self.hold(id, parent, hashes, 0, medium, deadline)
    }

    /// Holds `hashes[from..]` behind `hashes[..from]` behind the parent.
    fn hold(
        &mut self,
        id: WorkerId,
        parent: Option<u64>,
        hashes: &[u64],
        from: usize,
        medium: Medium,
        deadline: Option<u64>,
    ) -> Option<u32> {
        let capacity = self.workers.get(&id)?.capacity;
        let hashes = &hashes[..hashes.len().min(capacity)];
        if parent.is_some_and(|p| !self.parents.contains_key(&p)) {
            self.stats.orphans += 1;
            return Some(0);
        }
        let mut chain = Vec::new();
        let mut above = parent;
        for &hash in hashes {
            let known_elsewhere = self.parents.get(&hash).is_some_and(|&p| p != above);
            if known_elsewhere || chain.contains(&hash) {
                self.stats.conflicts += 1;
                break;
            }
            chain.push(hash);
            above = Some(hash);
        }
        let Some(&tail) = chain.last() else {
            return Some(0);
        };
        let mut above = parent;
        for &hash in &chain {
            self.parents.insert(hash, above);
            above = Some(hash);
        }
        let path = self.path(tail);
        self.uses += 1;
        let before = self.held_in(id, medium);
        let worker = self.workers.get_mut(&id).expect("checked above");
        let pairs = &mut worker.media[place(medium)];
        for (depth, hash) in path.iter().enumerate() {
            let pair = pairs.entry(*hash).or_insert(Pair::at(depth));
            pair.last = self.uses;
            pair.deadline = pair.deadline.max(deadline.unwrap_or(u64::MAX));
        }
        let chain = &chain[from..];
        for hash in chain {
            pairs.get_mut(hash).expect("it lies on its own path").held = true;
        }
        self.forget_unneeded(id);
        self.evict(id, medium, capacity);
        Some(chain.iter().filter(|hash| !before.contains(hash)).count() as u32)
    }

    pub fn remove(&mut self, id: WorkerId, hashes: &[u64], medium: Option<Medium>) -> Option<u32> {
        let worker = self.workers.get_mut(&id)?;
        let mut removed = 0;
        for hash in hashes {
            let mut known = false;
            for m in Medium::ALL {
                // A block that leaves device memory is no longer on its way there either, which is not counted.
                let asked = medium.is_none_or(|only| only == m);
                let follows = medium == Some(Medium::Gpu) && m == Medium::Speculative;
                let pair = worker.media[place(m)].get_mut(hash);
                if let Some(pair) = pair.filter(|p| p.held && (asked || follows)) {
                    pair.held = false;
                    known = true;
                    removed += u32::from(m != Medium::Speculative || medium == Some(m));
                }
            }
            self.stats.unknown_removals += u64::from(!known);
        }
        self.forget_unneeded(id);
        Some(removed)
    }

    /// Blocks in device memory become speculative in the order of their use, the others go. A path moves at once when
    /// its end is due: a part of it that was used later, without its end, is not moved again.
    pub fn doubt(&mut self, id: WorkerId, deadline: Option<u64>) -> Option<u64> {
        let (gpu, mut gone) = (self.workers.get(&id)?.media[0].clone(), Vec::new());
        let tails = |used: &Pair| (used.last, used.depth);
        let mut held: Vec<_> = gpu.iter().filter(|(_, p)| p.held).collect();
        held.sort_by_key(|(_, pair)| tails(pair));
        let mut moved = BTreeSet::new();
        for &(&tail, _) in &held {
            if moved.contains(&tail) {
                continue;
            }
            let path = self.path(tail);
            moved.extend(path.iter().copied());
            self.uses += 1;
            let pairs = &mut self.workers.get_mut(&id)?.media[place(Medium::Speculative)];
            for (depth, hash) in path.into_iter().enumerate() {
                let pair = pairs.entry(hash).or_insert(Pair::at(depth));
                pair.last = self.uses;
                pair.deadline = pair.deadline.max(deadline.unwrap_or(u64::MAX));
                pair.held |= gpu.get(&hash).is_some_and(|p| p.held);
            }
        }
        self.doubt_marks(id);
        let doubted = held.len() as u64;
        for medium in Medium::ANNOUNCED {
            gone.extend(
                std::mem::take(&mut self.workers.get_mut(&id)?.media[place(medium)]).into_keys(),
            );
        }
        self.forget(&gone);
        Some(doubted)
    }

    pub fn clear(&mut self, id: WorkerId) -> Option<u64> {
        let (dropped, gone) = (self.block_count(id)?, self.all_of(id));
        self.workers.get_mut(&id)?.media = Default::default();
        self.forget(&gone);
        Some(dropped)
    }

    pub fn evict_worker(&mut self, id: WorkerId, max_blocks: u64) -> Option<u64> {
        self.workers.get(&id)?;
        let mut evicted = 0;
        for medium in Medium::ALL {
            let before = self.held_in(id, medium).len();
            self.evict(
                id,
                medium,
                usize::try_from(max_blocks).unwrap_or(usize::MAX),
            );
            evicted += before - self.held_in(id, medium).len();
        }
        Some(evicted as u64)
    }

    /// Returns the (worker, medium, block) triples dropped.
    pub fn expire(&mut self, now: u64) -> u64 {
        let mut dropped = 0;
        for pairs in self.workers.values_mut().flat_map(|w| &mut w.media) {
            for pair in pairs.values_mut().filter(|p| p.held && p.deadline <= now) {
                pair.held = false;
                dropped += 1;
            }
        }
        self.stats.expired += dropped;
        let ids: Vec<_> = self.ids().collect();
        for id in ids {
            self.forget_unneeded(id);
        }
        dropped
    }

    pub fn next_expiry(&self) -> Option<u64> {
        let pairs = self
            .workers
            .values()
            .flat_map(|w| &w.media)
            .flat_map(BTreeMap::values);
        pairs
            .filter(|p| p.held && p.deadline != u64::MAX)
            .map(|p| p.deadline)
            .min()
    }

    /// The depth up to which the worker holds the known path `hashes` in any of `media` from the depth `from` on: the
    /// definition.
    pub fn covered(&self, id: WorkerId, hashes: &[u64], media: &[Medium], from: u32) -> u32 {
        let Some(worker) = self.workers.get(&id) else {
            return from;
        };
        let holds = |hash: &&u64| {
            let mut pairs = media.iter().map(|m| worker.media[place(*m)].get(hash));
            pairs.any(|pair| pair.is_some_and(|p| p.held))
        };
        let behind = hashes.iter().skip(from as usize);
        from + behind.take_while(holds).count() as u32
    }

    /// How many leading blocks are known as one path. A block that is known behind another parent is another block.
    pub fn in_place(&self, hashes: &[u64]) -> usize {
        let mut above = None;
        let known = |hash: &&u64| self.parents.get(hash) == Some(&above.replace(**hash));
        hashes.iter().take_while(known).count()
    }

    pub fn ids(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.workers.keys().copied()
    }

    pub fn capacity(&self, id: WorkerId) -> Option<u32> {
        self.workers.get(&id).map(|worker| worker.capacity as u32)
    }

    pub fn block_count(&self, id: WorkerId) -> Option<u64> {
        self.workers.get(&id)?;
        let held: BTreeSet<u64> = Medium::ALL
            .into_iter()
            .flat_map(|m| self.held_in(id, m))
            .collect();
        Some(held.len() as u64)
    }

    pub(super) fn parent(&self, hash: u64) -> Option<u64> {
        self.parents.get(&hash).copied().flatten()
    }

    pub fn holds(&self, id: WorkerId, hash: u64, medium: Medium) -> bool {
        let worker = self.workers.get(&id);
        let pair = worker.and_then(|w| w.media[place(medium)].get(&hash));
        pair.is_some_and(|p| p.held)
    }

    pub fn held_in(&self, id: WorkerId, medium: Medium) -> BTreeSet<u64> {
        let pairs = self.workers.get(&id).map(|w| &w.media[place(medium)]);
        pairs
            .into_iter()
            .flatten()
            .filter(|(_, p)| p.held)
            .map(|(&hash, _)| hash)
            .collect()
    }

    /// Whether the worker holds no gpu block without the block before it.
    pub fn is_prefix_closed(&self, id: WorkerId) -> bool {
        let held = self.held_in(id, Medium::Gpu);
        held.iter()
            .all(|hash| self.parents[hash].is_none_or(|above| held.contains(&above)))
    }

    /// Every block that a worker holds or needs for its place in the chain.
    pub fn known(&self) -> impl Iterator<Item = u64> + '_ {
        self.parents.keys().copied()
    }

    /// Root first.
    fn path(&self, tail: u64) -> Vec<u64> {
        let mut path = vec![tail];
        while let Some(above) = self.parents[path.last().expect("never empty")] {
            path.push(above);
        }
        path.reverse();
        path
    }

    /// A block above a held one was used no earlier and is no deeper, so taking the least `(last, -depth)` takes
    /// leaves.
    fn evict(&mut self, id: WorkerId, medium: Medium, limit: usize) {
        let pairs = &mut self.workers.get_mut(&id).expect("present").media[place(medium)];
        let mut order: Vec<_> = pairs
            .iter()
            .filter(|(_, p)| p.held)
            .map(|(&hash, p)| (p.last, Reverse(p.depth), hash))
            .collect();
        let excess = order.len().saturating_sub(limit);
        if excess == 0 {
            return;
        }
        self.stats.evicted += excess as u64;
        order.sort_unstable();
        for (.., hash) in &order[..excess] {
            pairs.get_mut(hash).expect("present").held = false;
        }
        for (.., hash) in &order[excess..] {
            let above = self.parents[hash].and_then(|above| pairs.get(&above));
            assert!(above.is_none_or(|p| {
                p.held
                    || order[..excess]
                        .iter()
                        .all(|v| Some(v.2) != self.parents[hash])
            }));
        }
        self.forget_unneeded(id);
    }

    /// Keeps those of the worker's pairs that are held or above a held one; a block in no pair is unknown.
    fn forget_unneeded(&mut self, id: WorkerId) {
        let mut gone = Vec::new();
        if let Some(worker) = self.workers.get_mut(&id) {
            for pairs in &mut worker.media {
                let mut needed = BTreeSet::new();
                for (&hash, _) in pairs.iter().filter(|(_, p)| p.held) {
                    let mut at = Some(hash);
                    while let Some(block) = at.filter(|block| needed.insert(*block)) {
                        at = self.parents[&block];
                    }
                }
                gone.extend(pairs.keys().filter(|hash| !needed.contains(hash)));
                pairs.retain(|hash, _| needed.contains(hash));
            }
        }
        self.forget(&gone);
    }

    fn forget(&mut self, gone: &[u64]) {
        for hash in gone {
            if !self
                .workers
                .values()
                .flat_map(|w| &w.media)
                .any(|pairs| pairs.contains_key(hash))
            {
                self.parents.remove(hash);
            }
        }
    }

    /// Every block the worker holds or needs.
    fn all_of(&self, id: WorkerId) -> Vec<u64> {
        self.workers[&id]
            .media
            .iter()
            .flat_map(|pairs| pairs.keys().copied())
            .collect()
    }
}
