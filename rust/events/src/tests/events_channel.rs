//! A simulated engine sends to a feed through a channel that loses, repeats, disorders, damages and forgets: whenever
//! everything has arrived, the feed has the true state, or reports that it is incomplete.

#[path = "events_channel/link.rs"]
mod link;

use cachelb_events::{FeedState, FeedStats};

use super::events_model::engine::Shape;
use link::{Faults, Link};

const EVENTS: u64 = 100_000;

/// Follows an engine and settles again and again. Returns the counters, and how often the stream was degraded.
fn follow(shape: Shape, faults: Faults) -> (FeedStats, u32) {
    let mut link = Link::new(shape, faults);
    let (mut degraded, mut rounds) = (0, 0);
    while link.said < EVENTS {
        for _ in 0..200 {
            link.step();
        }
        link.settle();
        rounds += 1;
        let truth = link.engine.truth();
        let held = &link.believed.held;
        let phantom = held.difference(&truth).next();
        assert_eq!(
            phantom,
            None,
            "held and not there in round {rounds}, {:?}",
            link.feed.stats()
        );
        match link.state() {
            FeedState::Live => {
                let allowed = link.engine.may_be_missed();
                let missed = truth
                    .difference(held)
                    .find(|block| !shape.reports || !allowed.contains(block));
                assert_eq!(missed, None, "there and not held in round {rounds}");
            }
            FeedState::Degraded => degraded += 1,
            state => panic!("{state:?} although everything arrived, in round {rounds}"),
        }
        link.feed
            .validate(&link.believed)
            .expect("the feed is sound");
    }
    (link.feed.stats(), degraded)
}

const RELIABLE: Faults = Faults {
    loss: 0,
    duplicates: 0,
    overtaking: 0,
    damage: 0,
    lasting_damage: 0,
    disconnects: 0,
    restarts: 0,
    failing_replays: 0,
    torn_replays: 0,
    late_notice: false,
    kept: 10_000,
    may_wait: 8_192,
};

fn shape(seed: u64) -> Shape {
    Shape {
        seed,
        host: 10,
        ..Shape::default()
    }
}

#[test]
fn replays_make_good_for_loss_duplicates_disorder_and_damage() {
    let (stats, degraded) = follow(
        shape(1),
        Faults {
            loss: 50,
            duplicates: 50,
            overtaking: 50,
            damage: 20,
            disconnects: 100,
            ..RELIABLE
        },
    );
    let tally = stats.tally;
    assert_eq!((degraded, tally.resyncs, tally.restarts), (0, 0, 0));
    assert!(tally.gaps > 100 && tally.duplicates > 500, "{tally:?}");
}

#[test]
fn reports_of_what_is_held_survive_replays() {
    let reporting = Shape {
        reports: true,
        recomputes: true,
        host: 0,
        ..shape(6)
    };
    let faults = Faults {
        loss: 50,
        duplicates: 50,
        ..RELIABLE
    };
    let (stats, degraded) = follow(reporting, faults);
    assert!(degraded == 0 && stats.events.reannounced > 100, "{stats:?}");
}

#[test]
fn restarts_leave_nothing_of_the_life_before() {
    for late_notice in [false, true] {
        let (stats, _) = follow(
            shape(2),
            Faults {
                loss: 50,
                duplicates: 20,
                disconnects: 50,
                restarts: 200,
                late_notice,
                ..RELIABLE
            },
        );
        assert!(stats.tally.restarts > 50, "{:?}", stats.tally);
    }
}

#[test]
fn short_replays_are_never_taken_for_whole_ones() {
    let (stats, degraded) = follow(
        shape(3),
        Faults {
            loss: 100,
            disconnects: 200,
            restarts: 20,
            kept: 6,
            may_wait: 5,
            ..RELIABLE
        },
    );
    let tally = stats.tally;
    assert!(degraded > 10 && tally.replays_short > 10, "{tally:?}");
}

#[test]
fn everything_at_once_leaves_no_phantom() {
    let (stats, degraded) = follow(
        shape(4),
        Faults {
            loss: 50,
            duplicates: 50,
            overtaking: 20,
            damage: 20,
            lasting_damage: 5,
            disconnects: 100,
            restarts: 50,
            failing_replays: 100,
            torn_replays: 50,
            late_notice: true,
            kept: 200,
            may_wait: 40,
        },
    );
    let tally = stats.tally;
    assert!(
        tally.replays_failed > 20 && tally.restarts > 20,
        "{tally:?}"
    );
    assert!(tally.resyncs > 20 && degraded > 10, "{tally:?}");
}

#[test]
fn without_replays_losses_start_over() {
    let (stats, degraded) = follow(
        shape(5),
        Faults {
            loss: 20,
            duplicates: 20,
            overtaking: 5,
            damage: 5,
            kept: 0,
            ..RELIABLE
        },
    );
    assert!(
        stats.tally.resyncs > 100 && degraded > 10,
        "{:?}",
        stats.tally
    );
}
