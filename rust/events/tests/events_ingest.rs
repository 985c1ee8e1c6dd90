//! A simulated engine says what it does, and an ingester must believe what is true: after every message.

mod events_model;

use cachelb_core::ids::{Medium, Millis, SequenceHash, WorkerId};
use cachelb_core::index::{BlockIndex, Matcher};
use cachelb_events::{Holdings, Ingest, IngestSettings};

use events_model::engine::{Engine, Shape};
use events_model::sets::Sets;

/// Per engine; there are thirteen.
const EVENTS: u64 = 80_000;
/// Messages between restarts of the engine.
const LIFE: u64 = 7_000;

/// Follows an engine for [`EVENTS`] events. Nothing is ever held that the engine lacks, and nothing missed but what
/// looked like a report.
fn follow(shape: Shape, exact_copies: bool) {
    let mut engine = Engine::new(shape);
    let mut ingest = Ingest::new(IngestSettings {
        exact_copies,
        ..IngestSettings::new(engine.hasher())
    });
    let mut sets = Sets::default();
    let (mut said, mut messages) = (0, 0_u64);
    let (mut there, mut absent) = (0, 0);
    while said < EVENTS {
        if (messages + 1).is_multiple_of(LIFE) {
            engine.restart();
            ingest.clear(&mut sets);
        }
        let batch = engine.next_batch();
        let events = batch.events.len() as u32;
        said += u64::from(events);
        messages += 1;
        let applied = ingest.apply(batch, Millis(messages), &mut sets);
        if exact_copies {
            assert_eq!(applied, events, "message {messages} of {shape:?}");
        }
        let truth = engine.truth();
        let phantom = sets.held.difference(&truth).next();
        assert_eq!(
            phantom, None,
            "held and not there after message {messages} of {shape:?}"
        );
        there += truth.len();
        absent += truth.len() - sets.held.len();
        let mut missed = truth.difference(&sets.held).peekable();
        if missed.peek().is_some() {
            let allowed = engine.may_be_missed();
            let lost = missed.find(|block| exact_copies || !allowed.contains(block));
            assert_eq!(
                lost, None,
                "there and not held after message {messages} of {shape:?}"
            );
        }
        if messages.is_multiple_of(64) {
            ingest.validate(&sets).expect("the ingester is sound");
        }
    }
    // A quarter of the requests recompute, which is far more than engines do.
    assert!(
        absent * 10 <= there,
        "{absent} of {there} blocks missed by {shape:?}"
    );
    let stats = ingest.stats();
    assert!(
        stats.removals > EVENTS / 20,
        "hardly anything was evicted: {stats:?}"
    );
    assert!(stats.clears > 0 && stats.stores > EVENTS / 20, "{stats:?}");
    assert_eq!(
        stats.reannounced > 0,
        !exact_copies && (shape.reports || shape.recomputes)
    );
    assert!(
        !exact_copies || (stats.unknown_removals, stats.parked) == (0, 0),
        "{stats:?}"
    );
}

#[test]
fn copies_are_counted_exactly_when_nothing_is_reported() {
    let shape = Shape {
        seed: 1,
        recomputes: true,
        ..Shape::default()
    };
    follow(shape, true);
}

#[test]
fn reports_and_copies_never_leave_a_phantom() {
    let shape = Shape {
        seed: 2,
        reports: true,
        recomputes: true,
        ..Shape::default()
    };
    follow(shape, false);
}

#[test]
fn reports_alone_hide_nothing() {
    let shape = Shape {
        seed: 3,
        reports: true,
        pool: 24,
        wide_names: true,
        ..Shape::default()
    };
    follow(shape, false);
}

#[test]
fn reports_of_pages_and_large_blocks_leave_no_phantom_either() {
    for (seed, block_size, host) in [(12, 1, 0), (13, 8, 0), (14, 4, 25)] {
        let shape = Shape {
            seed,
            block_size,
            host,
            pool: 60,
            reports: true,
            recomputes: true,
            ..Shape::default()
        };
        follow(shape, false);
    }
}

#[test]
fn salts_that_are_not_said_give_one_block_several_names() {
    let shape = Shape {
        seed: 4,
        says_salt: false,
        recomputes: true,
        ..Shape::default()
    };
    follow(shape, true);
}

#[test]
fn large_engine_blocks_share_own_blocks() {
    for (seed, block_size) in [(5, 8), (6, 12)] {
        let shape = Shape {
            seed,
            block_size,
            recomputes: true,
            ..Shape::default()
        };
        follow(shape, true);
    }
}

#[test]
fn small_pages_make_own_blocks() {
    for (seed, block_size) in [(7, 1), (8, 2)] {
        let shape = Shape {
            seed,
            block_size,
            chunk: 7,
            pool: 96,
            recomputes: true,
            ..Shape::default()
        };
        follow(shape, true);
    }
}

#[test]
fn blocks_move_to_host_memory_in_either_order() {
    for (seed, block_size) in [(9, 4), (10, 8)] {
        let shape = Shape {
            seed,
            block_size,
            host: 30,
            recomputes: true,
            ..Shape::default()
        };
        follow(shape, true);
    }
}

/// The holdings of one worker in a real index.
struct Indexed {
    index: BlockIndex,
    worker: WorkerId,
}

impl Holdings for Indexed {
    fn store(
        &mut self,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
    ) -> u32 {
        let stored = self.index.announce(self.worker, parent, hashes, medium);
        stored.expect("the worker is registered")
    }

    fn spread(&mut self, hash: SequenceHash, medium: Medium) -> bool {
        let spread = self.index.spread(self.worker, hash, medium);
        spread.expect("the worker is registered")
    }

    fn remove(&mut self, hashes: &[SequenceHash], medium: Medium) -> u32 {
        let removed = self.index.remove(self.worker, hashes, Some(medium));
        removed.expect("the worker is registered")
    }

    fn clear(&mut self) -> u64 {
        self.index
            .clear(self.worker)
            .expect("the worker is registered")
    }

    fn doubt(&mut self) -> u64 {
        let doubted = self.index.doubt(self.worker, None);
        doubted.expect("the worker is registered")
    }

    fn path_to(&self, hash: SequenceHash) -> Vec<SequenceHash> {
        self.index.chains().to(hash).unwrap_or_default()
    }

    fn holds(&self, hash: SequenceHash, medium: Medium) -> bool {
        self.index.chains().holds(self.worker, hash, medium)
    }
}

#[test]
fn a_real_index_holds_what_the_engine_does() {
    let worker = WorkerId {
        slot: 0,
        generation: 0,
    };
    let mut to = Indexed {
        index: BlockIndex::new(Matcher::Kary),
        worker,
    };
    to.index.add_worker(worker, u32::MAX);
    let mut engine = Engine::new(Shape {
        seed: 11,
        host: 20,
        says_salt: false,
        recomputes: true,
        ..Shape::default()
    });
    let mut ingest = Ingest::new(IngestSettings {
        exact_copies: true,
        ..IngestSettings::new(engine.hasher())
    });
    for message in 0..20_000 {
        ingest.apply(engine.next_batch(), Millis(message), &mut to);
        let truth = engine.truth();
        let counts = to
            .index
            .blocks_by_medium(worker)
            .expect("the worker is registered");
        assert_eq!(
            counts.iter().sum::<u64>(),
            truth.len() as u64,
            "after message {message}"
        );
        let lost = truth
            .iter()
            .find(|(hash, medium)| !to.holds(*hash, *medium));
        assert_eq!(lost, None, "after message {message}");
        if message % 64 == 0 {
            ingest.validate(&to).expect("the ingester is sound");
            to.index.validate().expect("the index is sound");
        }
    }
}
