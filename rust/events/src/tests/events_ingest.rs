//! A simulated engine announces its changes, and an ingester must have its true state after every message.

use cachelb_core::ids::Millis;
use cachelb_events::{Ingest, IngestSettings};

use super::events_model::engine::{Engine, Shape};
use super::events_model::sets::Sets;

/// Per engine; there are thirteen.
const EVENTS: u64 = 80_000;
/// Messages between restarts of the engine.
const LIFE: u64 = 7_000;

/// Follows an engine for [`EVENTS`] events. Nothing is ever held that the engine lacks, and nothing missed but copies
/// that looked like a report.
fn follow(shape: Shape, exact_copies: bool) {
    let mut engine = Engine::new(shape);
    let mut ingest = Ingest::new(IngestSettings {
        reports: !exact_copies,
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
    let stats = &ingest.stats;
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

fn shape(seed: u64, block_size: usize, host: usize) -> Shape {
    Shape {
        seed,
        block_size,
        host,
        recomputes: true,
        ..Shape::default()
    }
}

/// With blocks like own ones, large ones that share own blocks, and host memory to which blocks move in either order.
#[test]
fn copies_are_counted_exactly_when_nothing_is_reported() {
    for (seed, block_size, host) in [(1, 4, 0), (5, 8, 0), (6, 12, 0), (9, 4, 30), (10, 8, 30)] {
        follow(shape(seed, block_size, host), true);
    }
}

#[test]
fn small_pages_make_own_blocks() {
    for (seed, block_size) in [(7, 1), (8, 2)] {
        let (chunk, pool) = (7, 96);
        let small = shape(seed, block_size, 0);
        let small = Shape {
            pool,
            chunk,
            ..small
        };
        follow(small, true);
    }
}

#[test]
fn salts_that_are_not_said_give_one_block_several_names() {
    let says_salt = false;
    follow(
        Shape {
            says_salt,
            ..shape(4, 4, 0)
        },
        true,
    );
}

#[test]
fn reports_and_copies_never_leave_a_phantom() {
    let reports = true;
    follow(
        Shape {
            reports,
            ..shape(2, 4, 0)
        },
        false,
    );
    for (seed, block_size, host) in [(12, 1, 0), (13, 8, 0), (14, 4, 25)] {
        let pool = 60;
        follow(
            Shape {
                pool,
                reports,
                ..shape(seed, block_size, host)
            },
            false,
        );
    }
}

#[test]
fn reports_alone_hide_nothing() {
    let alone = Shape {
        reports: true,
        recomputes: false,
        pool: 24,
        wide_names: true,
        ..shape(3, 4, 0)
    };
    follow(alone, false);
}
