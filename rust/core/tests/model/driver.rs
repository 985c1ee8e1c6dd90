//! Runs operations on the index and on the naive model, and compares everything observable.

use cachelb_core::Error;
use cachelb_core::ids::{Medium, Millis, SequenceHash, WorkerId};
use cachelb_core::index::{BlockIndex, IndexStats, Matcher, Overlaps, Resumes};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::naive::Naive;
use super::ops::{HashKind, Hasher, Op, Shape, What};

/// Both sides, the same history.
pub struct Driver {
    pub(super) index: BlockIndex,
    pub(super) naive: Naive,
    hasher: Hasher,
    /// Generation of every slot, and whether its worker is registered.
    slots: Vec<(u32, bool)>,
    now: u64,
    pub(super) out: Overlaps,
    pub(super) shape: Shape,
}

pub(super) type Outcome = Result<(), TestCaseError>;

fn wrap(hashes: &[u64]) -> Vec<SequenceHash> {
    hashes.iter().copied().map(SequenceHash).collect()
}

/// The index's answer as the model gives it: an unknown worker is `None`, any other error fails the case.
fn plain<T>(answer: Result<T, Error>) -> Result<Option<T>, TestCaseError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Error::UnknownWorker(_)) => Ok(None),
        Err(other) => Err(TestCaseError::fail(other.to_string())),
    }
}

impl Driver {
    pub fn new(matcher: Matcher, hashes: HashKind, shape: Shape, capacity: u32) -> Self {
        let mut driver = Self {
            index: BlockIndex::new(matcher),
            naive: Naive::default(),
            hasher: Hasher::new(hashes),
            slots: vec![(0, true); shape.workers as usize],
            now: 1000,
            out: Overlaps::default(),
            shape,
        };
        for slot in 0..shape.workers {
            driver.add(slot, capacity);
        }
        driver
    }

    pub(super) fn id(&self, slot: u32) -> WorkerId {
        WorkerId {
            slot,
            generation: self.slots[slot as usize].0,
        }
    }

    /// Applies `op` to both, compares its result and the answers for its own path, and returns how many operations
    /// (writes and searches) that made.
    pub fn step(&mut self, op: &Op) -> Result<u64, TestCaseError> {
        let hashes = self.hasher.chain(&op.tokens);
        self.apply(op, &hashes)?;
        self.naive.drop_marks();
        self.compare_overlaps(&hashes)?;
        self.compare_counts()?;
        Ok(2)
    }

    fn apply(&mut self, op: &Op, hashes: &[u64]) -> Outcome {
        let (id, wrapped) = (self.id(op.worker), wrap(hashes));
        let before = |at: usize| at.checked_sub(1).map(|at| hashes[at]);
        match &op.what {
            What::Add(capacity) => {
                let (generation, live) = &mut self.slots[op.worker as usize];
                if !*live {
                    (*generation, *live) = (*generation + 1, true);
                    self.add(op.worker, *capacity);
                }
            }
            What::RemoveWorker => {
                self.slots[op.worker as usize].1 = false;
                let got = plain(self.index.remove_worker(id))?;
                prop_assert_eq!(got, self.naive.remove_worker(id));
            }
            What::Record(hinted, ttl) => {
                self.search(&wrapped);
                let (hint, expires) = (hinted.then_some(&self.out), self.expires(*ttl));
                let got = plain(self.index.record(id, &wrapped, hint, expires.map(Millis)))?;
                prop_assert_eq!(got, self.naive.record(id, hashes, expires));
            }
            What::Store(from, medium, ttl) => {
                self.store(id, before(*from), &hashes[*from..], *medium, *ttl)?;
            }
            What::Expect(from, hinted, ttl) => {
                self.search(&wrapped);
                let (hint, expires) = (hinted.then_some(&self.out), self.expires(*ttl));
                let due = expires.map(Millis);
                let got = plain(self.index.expect(id, &wrapped, *from, hint, due))?;
                let expected = self.naive.expect(id, hashes, *from as usize, expires);
                prop_assert_eq!(got, expected);
            }
            What::Announce(part, medium) => {
                let parent = before(part.start);
                let (behind, some) = (parent.map(SequenceHash), &wrapped[part.clone()]);
                let got = plain(self.index.announce(id, behind, some, *medium, None))?;
                let some = &hashes[part.clone()];
                prop_assert_eq!(got, self.naive.announce(id, parent, some, *medium));
            }
            What::Spread(at, medium) => {
                let got = plain(self.index.spread(id, wrapped[*at], *medium))?;
                prop_assert_eq!(got, self.naive.spread(id, hashes[*at], *medium));
            }
            What::StoreTorn(behind) => {
                let (mut torn, parent) = (hashes.to_vec(), self.hasher.chain(behind));
                torn.extend(hashes.first().filter(|_| hashes.len() > 4));
                self.store(id, parent.last().copied(), &torn, Medium::Gpu, None)?;
            }
            What::Remove(part, medium) => {
                let got = plain(self.index.remove(id, &wrapped[part.clone()], *medium))?;
                prop_assert_eq!(got, self.naive.remove(id, &hashes[part.clone()], *medium));
            }
            What::Doubt(ttl) => self.doubt(id, *ttl)?,
            What::Resumes(resumes) => {
                let got = plain(self.index.set_resumes(id, *resumes))?;
                prop_assert_eq!(got, self.naive.set_resumes(id, *resumes));
            }
            What::Mark(part, every, medium) => {
                for at in part.clone().step_by(*every) {
                    let got = plain(self.index.mark(id, wrapped[at], *medium))?;
                    prop_assert_eq!(got, self.naive.mark(id, hashes[at], *medium));
                }
            }
            What::Unmark(at) => {
                let got = plain(self.index.unmark(id, wrapped[*at]))?;
                prop_assert_eq!(got, self.naive.unmark(id, hashes[*at]));
            }
            What::Clear => prop_assert_eq!(plain(self.index.clear(id))?, self.naive.clear(id)),
            What::Evict(max) => {
                let got = plain(self.index.evict_worker(id, *max))?;
                prop_assert_eq!(got, self.naive.evict_worker(id, *max));
            }
            What::Advance(millis) => self.advance(*millis)?,
            What::Restore => self.restore()?,
            What::Stale => self.refused(id, &wrapped)?,
        }
        Ok(())
    }

    /// Nothing is evicted: the first victim then depends on the order in which the parts of a path are moved.
    fn doubt(&mut self, id: WorkerId, ttl: Option<u64>) -> Outcome {
        let expires = self.expires(ttl);
        let most = u64::from(self.naive.capacity(id).unwrap_or(0) / 2);
        let got = plain(self.index.evict_worker(id, most))?;
        prop_assert_eq!(got, self.naive.evict_worker(id, most));
        self.naive.drop_marks();
        let got = plain(self.index.doubt(id, expires.map(Millis)))?;
        prop_assert_eq!(got, self.naive.doubt(id, expires));
        Ok(())
    }

    fn add(&mut self, slot: u32, capacity: u32) {
        let id = self.id(slot);
        self.index.add_worker(id, capacity);
        self.naive.add_worker(id, capacity);
    }

    fn expires(&self, ttl: Option<u64>) -> Option<u64> {
        ttl.map(|ttl| self.now + ttl)
    }

    fn advance(&mut self, millis: u64) -> Outcome {
        self.now += millis;
        prop_assert_eq!(
            self.index.expire(Millis(self.now)),
            self.naive.expire(self.now)
        );
        if let Some(due) = self.naive.next_expiry() {
            let said = self.index.next_expiry();
            prop_assert!(
                said.is_some_and(|at| at.0 <= due),
                "next expiry {said:?}, but {due} is due"
            );
        }
        Ok(())
    }

    /// Every write with the id before the worker's present one is refused.
    fn refused(&mut self, present: WorkerId, hashes: &[SequenceHash]) -> Outcome {
        let slot = present.slot;
        let Some(generation) = present.generation.checked_sub(1) else {
            return Ok(());
        };
        let id = WorkerId { slot, generation };
        prop_assert_eq!(plain(self.index.record(id, hashes, None, None))?, None);
        let stored = self.index.store(id, None, hashes, Medium::Cpu, None);
        prop_assert_eq!(plain(stored)?, None);
        let announced = self.index.announce(id, None, hashes, Medium::Gpu, None);
        prop_assert_eq!(plain(announced)?, None);
        let expected = self.index.expect(id, hashes, 0, None, Some(Millis(1)));
        prop_assert_eq!(plain(expected)?, None);
        let held = |hash: &SequenceHash| self.index.chains().holds(id, *hash, Medium::Gpu);
        prop_assert!(!hashes.iter().any(held));
        prop_assert_eq!(plain(self.index.remove(id, hashes, None))?, None);
        prop_assert_eq!(plain(self.index.clear(id))?, None);
        prop_assert_eq!(plain(self.index.doubt(id, None))?, None);
        for hash in hashes {
            prop_assert_eq!(plain(self.index.mark(id, *hash, Medium::Gpu))?, None);
            prop_assert_eq!(plain(self.index.unmark(id, *hash))?, None);
        }
        let resumes = Resumes::default();
        prop_assert_eq!(plain(self.index.set_resumes(id, resumes))?, None);
        prop_assert_eq!(plain(self.index.evict_worker(id, 0))?, None);
        prop_assert_eq!(plain(self.index.remove_worker(id))?, None);
        Ok(())
    }

    fn store(
        &mut self,
        id: WorkerId,
        parent: Option<u64>,
        hashes: &[u64],
        medium: Medium,
        ttl: Option<u64>,
    ) -> Outcome {
        let (expires, behind) = (self.expires(ttl), parent.map(SequenceHash));
        let (wrapped, due) = (wrap(hashes), expires.map(Millis));
        let got = plain(self.index.store(id, behind, &wrapped, medium, due))?;
        prop_assert_eq!(got, self.naive.store(id, parent, hashes, medium, expires));
        Ok(())
    }

    /// Carries on with a restored copy of a restored copy; both must give the same snapshot.
    fn restore(&mut self) -> Outcome {
        self.index = self.copy()?;
        let once = self.snapshot();
        self.index = self.copy()?;
        // Counters are no part of a snapshot.
        self.naive.stats = IndexStats::default();
        prop_assert_eq!(
            once,
            self.snapshot(),
            "a restored index gives another snapshot"
        );
        Ok(())
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.index.snapshot(Millis(self.now), &mut bytes);
        bytes
    }

    fn copy(&self) -> Result<BlockIndex, TestCaseError> {
        BlockIndex::restore(&self.snapshot(), Millis(self.now))
            .map_err(|e| TestCaseError::fail(e.to_string()))
    }

    /// Both searches must agree, also where torn chains are stored.
    fn search(&mut self, hashes: &[SequenceHash]) {
        self.index.overlaps_verified(hashes, &mut self.out);
        let verified: Vec<_> = self.out.iter().collect();
        self.index.overlaps(hashes, &mut self.out);
        assert_eq!(
            verified,
            self.out.iter().collect::<Vec<_>>(),
            "the verified answer is another one"
        );
    }

    fn compare_overlaps(&mut self, hashes: &[u64]) -> Outcome {
        self.search(&wrap(hashes));
        let hashes = &hashes[..self.naive.in_place(hashes)];
        let mut expected = Vec::new();
        let sets = [
            &Medium::ALL[..],
            &[Medium::Gpu],
            &[Medium::Cpu, Medium::Gpu],
        ];
        let media = sets[(self.now % 3) as usize];
        let stretches = self.index.stretches(&self.out, media);
        for slot in 0..self.shape.workers {
            let depth = self.naive.covered(self.id(slot), hashes, &Medium::ALL, 0);
            prop_assert_eq!(self.out.depth(slot), depth, "overlap of slot {}", slot);
            self.compare_media(slot, &hashes[..depth as usize])?;
            let segments = self.index.segments(&self.out, slot);
            self.compare_held(slot, hashes, &Medium::ALL, &segments)?;
            let own = stretches.iter().filter(|held| held.slot == slot);
            let mut own: Vec<_> = own.map(|held| (held.start, held.end)).collect();
            own.sort_unstable();
            self.compare_held(slot, hashes, media, &own)?;
            if depth > 0 {
                expected.push((slot, depth));
            }
        }
        prop_assert_eq!(
            self.out.iter().map(|(_, depth)| depth).max().unwrap_or(0),
            expected.iter().map(|e| e.1).max().unwrap_or(0)
        );
        prop_assert_eq!(self.out.iter().collect::<Vec<_>>(), expected);
        for most in [self.now as u32 % 16, u32::MAX] {
            self.compare_resume(hashes, most)?;
        }
        Ok(())
    }

    /// The latest answer by medium; `hashes` are the leading blocks held in any.
    pub(super) fn compare_media(&self, slot: u32, hashes: &[u64]) -> Outcome {
        let id = self.id(slot);
        let confirmed = self.naive.covered(id, hashes, &[Medium::Gpu], 0);
        prop_assert_eq!(self.out.confirmed(slot), confirmed, "of slot {}", slot);
        let believed = self.naive.reach(id, hashes, u32::MAX);
        prop_assert_eq!(self.index.media(&self.out, slot), believed, "slot {}", slot);
        if self.now % u64::from(self.shape.workers) == u64::from(slot) {
            for medium in Medium::ALL {
                for &hash in hashes.iter().rev().step_by(1 + hashes.len() / 3) {
                    let holds = self.index.chains().holds(id, SequenceHash(hash), medium);
                    prop_assert_eq!(holds, self.naive.holds(id, hash, medium));
                }
            }
        }
        Ok(())
    }

    /// All that a worker holds of the known path `hashes` in any of `media`.
    fn compare_held(
        &self,
        slot: u32,
        hashes: &[u64],
        media: &[Medium],
        segments: &[(u32, u32)],
    ) -> Outcome {
        let (id, blocks) = (self.id(slot), (0_u32..).zip(hashes));
        let is_held = |hash: u64| media.iter().any(|m| self.naive.holds(id, hash, *m));
        let expected = blocks.filter_map(|(at, hash)| is_held(*hash).then_some(at));
        let are_apart = segments.windows(2).all(|pair| pair[0].1 < pair[1].0);
        prop_assert!(are_apart, "{:?} of slot {}", segments, slot);
        let blocks = segments.iter().flat_map(|(start, end)| *start..*end);
        prop_assert!(blocks.eq(expected), "{:?} of slot {}", segments, slot);
        Ok(())
    }

    fn compare_counts(&self) -> Outcome {
        for slot in 0..self.shape.workers {
            let id = self.id(slot);
            prop_assert_eq!(
                plain(self.index.block_count(id))?,
                self.naive.block_count(id),
                "count of slot {}",
                slot
            );
            let marks = plain(self.index.marks(id))?;
            prop_assert_eq!(marks, self.naive.marks(id), "marks of slot {}", slot);
            if self.shape.prefix_closed {
                prop_assert!(self.naive.is_prefix_closed(id));
            }
        }
        prop_assert_eq!(self.index.stats(), self.naive.stats);
        prop_assert_eq!(
            self.index.len(),
            self.naive.known().count() as u64,
            "blocks known"
        );
        Ok(())
    }

    pub fn validate(&self) -> Outcome {
        self.index
            .validate()
            .map_err(|e| TestCaseError::fail(e.to_string()))
    }

    /// Searching leaves the snapshot byte-identical.
    pub fn check_purity(&mut self, tokens: &[u8]) -> Outcome {
        let before = self.snapshot();
        let hashes = wrap(&self.hasher.chain(tokens));
        self.search(&hashes);
        prop_assert_eq!(before, self.snapshot(), "a search changed the index");
        Ok(())
    }

    /// Compares every held set, by asking a copy to remove each known block of each worker from each medium; what is
    /// then left must be nothing.
    pub fn compare_held_sets(&self) -> Outcome {
        let mut copy = self.copy()?;
        for id in self.naive.ids() {
            for hash in self.naive.known() {
                let got = plain(copy.unmark(id, SequenceHash(hash)))?;
                prop_assert_eq!(got, Some(self.naive.is_marked(id, hash)));
            }
        }
        for id in self.naive.ids() {
            // Speculative blocks before those in device memory, with which they would go uncounted.
            for medium in Medium::ALL.into_iter().rev() {
                let held = self.naive.held_in(id, medium);
                let counts = plain(copy.blocks_by_medium(id))?;
                let count = counts.map(|counts| counts[medium as usize]);
                prop_assert_eq!(count, Some(held.len() as u64), "{:?} in {:?}", id, medium);
                for hash in self.naive.known() {
                    let got = plain(copy.remove(id, &[SequenceHash(hash)], Some(medium)))?;
                    let expected = Some(u32::from(held.contains(&hash)));
                    prop_assert_eq!(got, expected, "{:?} holds {:x} in {:?}", id, hash, medium);
                }
            }
        }
        prop_assert!(
            copy.is_empty(),
            "{} blocks stay after all were removed",
            copy.len()
        );
        copy.validate()
            .map_err(|e| TestCaseError::fail(e.to_string()))
    }

    /// Whoever removes everybody gets the memory back, but for a few rows.
    pub fn check_memory(&self) -> Outcome {
        let mut copy = self.copy()?;
        for id in self.naive.ids() {
            plain(copy.remove_worker(id))?;
        }
        prop_assert!(copy.is_empty());
        let (left, fresh) = (
            copy.memory_bytes(),
            BlockIndex::new(Matcher::Kary).memory_bytes(),
        );
        prop_assert!(
            left <= fresh + 1024,
            "{} bytes stay of an empty index, {} at the start",
            left,
            fresh
        );
        Ok(())
    }
}
