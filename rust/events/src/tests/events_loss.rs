//! Messages of a simulated engine are lost and nothing sends them again. After every message that arrives, confirmed
//! blocks are there, and blocks that may be there are not forgotten: they are doubtful.

use std::collections::HashSet;

use cachelb_core::groups::Resuming;
use cachelb_core::ids::{Medium, Millis, SequenceHash, WorkerId};
use cachelb_core::index::{BlockIndex, Matcher};
use cachelb_core::rng::Rng;
use cachelb_events::{Holdings, Ingest, IngestSettings};

use super::events_model::engine::{Engine, Shape};
use super::events_model::sets::Sets;

const MESSAGES: u64 = 20_000;
/// Messages between restarts that nothing shows but a gap.
const LIFE: u64 = 3_000;

/// Messages between losses if none is lost: restarts make the only gaps.
const NEVER: usize = usize::MAX;

const WORKER: WorkerId = WorkerId {
    slot: 0,
    generation: 0,
};

/// A worker's holdings as sets, and in a real index that must agree.
struct Both {
    sets: Sets,
    /// None for pages: behind a block of which pages are missing, an index takes nothing.
    index: Option<BlockIndex>,
}

impl Both {
    fn new(indexed: bool) -> Self {
        let mut index = BlockIndex::new(Matcher::Kary);
        index.add_worker(WORKER, u32::MAX);
        Self {
            sets: Sets::default(),
            index: indexed.then_some(index),
        }
    }

    /// Writes to both and compares their results.
    fn write<T: PartialEq + std::fmt::Debug>(
        &mut self,
        sets: impl FnOnce(&mut Sets) -> T,
        index: impl FnOnce(&mut BlockIndex) -> cachelb_core::Result<T>,
    ) -> T {
        let outcome = sets(&mut self.sets);
        if let Some(found) = self.index.as_mut().map(index) {
            assert_eq!(found.as_ref(), Ok(&outcome));
        }
        outcome
    }

    fn check(&self, message: u64) {
        let Some(index) = &self.index else {
            return;
        };
        index.validate().expect("the index is sound");
        let counts = index.blocks_by_medium(WORKER).expect("registered");
        let doubtful = self.sets.doubtful.iter();
        let doubtful = doubtful.map(|hash| (*hash, Medium::Speculative));
        let held = doubtful.chain(self.sets.held.iter().copied());
        let mut expected = [0; 4];
        for (hash, medium) in held {
            let found = index.chains().holds(WORKER, hash, medium);
            assert!(found, "{hash:?} in {medium:?} after message {message}");
            expected[medium as usize] += 1;
        }
        assert_eq!(counts, expected, "after message {message}");
    }
}

impl Holdings for Both {
    fn store(
        &mut self,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
    ) -> u32 {
        self.write(
            |sets| sets.store(parent, hashes, medium),
            |index| index.announce(WORKER, parent, hashes, medium, None),
        )
    }

    fn spread(&mut self, hash: SequenceHash, medium: Medium) -> bool {
        self.write(
            |sets| sets.spread(hash, medium),
            |index| index.spread(WORKER, hash, medium),
        )
    }

    fn remove(&mut self, hashes: &[SequenceHash], medium: Medium) -> u32 {
        self.write(
            |sets| sets.remove(hashes, medium),
            |index| index.remove(WORKER, hashes, Some(medium)),
        )
    }

    fn clear(&mut self) -> u64 {
        if let Some(index) = &mut self.index {
            index.clear(WORKER).expect("registered");
        }
        self.sets.clear()
    }

    fn doubt(&mut self) -> u64 {
        self.write(Sets::doubt, |index| index.doubt(WORKER, None))
    }

    fn path_to(&self, hash: SequenceHash) -> Vec<SequenceHash> {
        let path = self.sets.path_to(hash);
        match &self.index {
            Some(index) => index
                .chains()
                .to(hash)
                .inspect(|known| assert_eq!(known, &path)),
            None => Some(path),
        }
        .unwrap_or_default()
    }

    fn set_resumes(&mut self, _: bool, _: u32, _: Option<Resuming>) {}

    fn mark(&mut self, _: SequenceHash, _: Medium) -> bool {
        false
    }

    fn unmark(&mut self, _: SequenceHash) -> bool {
        false
    }

    fn holds(&self, hash: SequenceHash, medium: Medium) -> bool {
        self.sets.holds(hash, medium)
    }
}

/// Follows an engine of which one message in `one_in` is lost. Returns the shares of its blocks in device memory that are
/// confirmed, and that are at least doubtful.
fn follow(shape: Shape, exact_copies: bool, one_in: usize) -> [f64; 2] {
    let mut engine = Engine::new(shape);
    let mut ingest = Ingest::new(IngestSettings {
        reports: !exact_copies,
        ..IngestSettings::new(engine.hasher())
    });
    let mut to = Both::new(shape.block_size >= shape.own_block_size);
    let mut random = Rng::new(shape.seed);
    let mut gap = false;
    let (mut confirmed, mut known, mut there) = (0, 0, 0);
    for message in 0..MESSAGES {
        if message % LIFE == LIFE - 1 {
            engine.restart();
            gap = true;
        }
        let batch = engine.next_batch();
        if random.below(one_in) == 0 {
            gap = true;
            continue;
        }
        if std::mem::take(&mut gap) {
            ingest.lost(&mut to);
        }
        ingest.apply(batch, Millis(message), &mut to);
        let truth = engine.truth();
        let phantom = to.sets.held.difference(&truth).next();
        assert_eq!(
            phantom, None,
            "confirmed and not there after message {message} of {shape:?}"
        );
        if exact_copies && to.sets.doubtful.is_empty() && one_in == NEVER {
            assert_eq!(to.sets.held, truth, "after message {message} of {shape:?}");
        }
        if message % 16 == 0 {
            ingest.validate(&to).expect("the ingester is sound");
            to.check(message);
        }
        let device = truth.iter().filter(|(_, medium)| *medium == Medium::Gpu);
        let device: HashSet<SequenceHash> = device.map(|(hash, _)| *hash).collect();
        there += device.len();
        let sure = |hash: &&SequenceHash| to.sets.held.contains(&(**hash, Medium::Gpu));
        confirmed += device.iter().filter(sure).count();
        let found = device.intersection(&to.sets.doubtful).count();
        known += device.iter().filter(sure).count() + found;
    }
    let stats = &ingest.stats;
    assert!(stats.doubted_blocks > 0, "{stats:?}");
    let part_of = |part: usize, of: usize| part as f64 / of.max(1) as f64;
    [part_of(confirmed, there), part_of(known, there)]
}

#[test]
fn what_is_confirmed_is_there_whatever_is_lost() {
    for (seed, one_in) in [(1, 2), (2, 20), (3, 200)] {
        let shape = Shape {
            seed,
            host: 10,
            ..Shape::default()
        };
        let [confirmed, known] = follow(shape, true, one_in);
        if one_in == 20 {
            assert!(confirmed > 0.3 && known > 0.5, "{confirmed} {known}");
        }
    }
}

#[test]
fn reports_copies_and_wide_names_leave_no_phantom() {
    let shape = Shape {
        seed: 4,
        reports: true,
        recomputes: true,
        wide_names: true,
        ..Shape::default()
    };
    for one_in in [3, 20] {
        follow(shape, false, one_in);
    }
}

#[test]
fn larger_blocks_and_pages_leave_no_phantom() {
    for (seed, block_size, says_salt) in [(5, 8, true), (6, 1, true), (7, 4, false)] {
        let shape = Shape {
            seed,
            block_size,
            says_salt,
            recomputes: true,
            ..Shape::default()
        };
        for exact_copies in [false, true] {
            follow(shape, exact_copies, 20);
        }
    }
}

#[test]
fn a_real_index_holds_what_the_engine_does() {
    let shape = Shape {
        seed: 11,
        host: 20,
        says_salt: false,
        recomputes: true,
        ..Shape::default()
    };
    follow(shape, true, NEVER);
}
