//! A router's view of an engine is wrong although every message came: it notices and starts over. An engine that is
//! only busy evicting never causes that.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

#[path = "../../events/src/tests/events_model/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod events_model;
#[path = "events_repair/served.rs"]
mod served;
#[path = "events_repair/world.rs"]
mod world;

use cachelb_events::{Fault, FeedState};

use world::{Nature, World};

/// Requests of a healthy world.
const REQUESTS: u64 = 8_000;

fn natures() -> Vec<(&'static str, Nature)> {
    let common = Nature::default();
    let of = |seed, lag_ms| Nature {
        seed,
        lag_ms,
        ..common
    };
    let mut all = vec![
        ("prompt", common),
        ("slow", of(2, 400)),
        ("stalling", of(3, common.lag_ms)),
        ("crowded", of(4, 60)),
        ("speculating", of(5, 100)),
        ("resetting", of(6, 40)),
        ("sometimes not reading", of(7, common.lag_ms)),
        ("unnumbered in size", of(8, 30)),
    ];
    (all[2].1.stalls, all[2].1.blocks) = (5, 240);
    (all[3].1.under_way, all[3].1.blocks) = (60, 280);
    all[4].1.recomputes_last = true;
    (all[5].1.resets, all[5].1.under_way) = (true, 3);
    all[6].1.unread = 4;
    all[7].1.blocks_known = false;
    all
}

/// No block is assumed that is not there. Few are missed: a store of known blocks from the root on may be a report, and
/// is taken for one.
fn assert_true(world: &World, name: &str) {
    let (phantoms, missed) = world.wrong();
    let most = world.nature.blocks / 4;
    assert_eq!(phantoms, 0, "{name}");
    assert!(missed <= most, "{name}: {missed}");
}

#[test]
fn an_engine_that_evicts_all_the_time_is_never_suspected() {
    for (name, nature) in natures() {
        let mut world = World::new(nature);
        world.run(REQUESTS);
        let (checked, mismatches) = world.checked();
        let (evicted, disappointed) = (world.evicted(), world.disappointed);
        let repairs = Fault::ALL.map(|fault| world.repairs(fault));
        assert_eq!(repairs, [0, 0], "{name}");
        assert!(checked > REQUESTS / 10, "{name}: {checked}");
        assert!(evicted > 3 * REQUESTS, "{name}: {evicted}");
        if nature.unread == 0 {
            assert_eq!(mismatches, 0, "{name}");
            // Else there would be no difference to excuse.
            assert!(disappointed > REQUESTS / 100, "{name}: {disappointed}");
        }
        world.settle();
        assert_true(&world, name);
    }
}

#[test]
fn removals_that_went_missing_are_noticed_and_made_good_by_a_replay() {
    for (name, nature) in natures() {
        for seed in [0, 100] {
            let mut world = World::new(Nature {
                seed: nature.seed + seed,
                blocks_known: false,
                ..nature
            });
            world.run(1_000);
            world.swallow = 400;
            let took = world.until_repaired(Fault::CachedTokens, 600);
            assert!(took.is_some(), "{name}");
            world.settle();
            assert_true(&world, name);
            assert_eq!(world.state(), FeedState::Live, "{name}");
            world.run(3_000);
            assert_eq!(world.repairs(Fault::CachedTokens), 1, "{name}");
        }
    }
}

#[test]
fn without_a_replay_nothing_is_left_of_what_was_wrong() {
    for (name, nature) in natures() {
        let mut world = World::new(Nature {
            replayable: false,
            blocks_known: false,
            ..nature
        });
        world.run(1_000);
        world.swallow = 400;
        let took = world.until_repaired(Fault::CachedTokens, 600);
        assert!(took.is_some(), "{name}");
        world.settle();
        let fine = nature.resets && world.state() == FeedState::Live;
        assert!(fine || world.state() == FeedState::Degraded);
        assert_eq!(world.wrong().0, 0, "{name}");
    }
}

#[test]
fn a_cache_that_is_gone_without_a_word_is_noticed_at_once() {
    let mut world = World::new(Nature {
        under_way: 3,
        blocks_known: false,
        ..Nature::default()
    });
    world.run(1_000);
    world.settle();
    world.engine.reset(false);
    let took = world.until_repaired(Fault::CachedTokens, 100).unwrap();
    assert!(took <= 60, "{took}");
}

#[test]
fn more_blocks_than_there_are_is_noticed_where_the_size_is_known() {
    for (name, nature) in natures() {
        if !nature.blocks_known {
            continue;
        }
        let mut world = World::new(nature);
        world.run(1_000);
        world.swallow = 60;
        let took = world.until_repaired(Fault::Capacity, 20);
        assert!(took.is_some(), "{name}");
        world.swallow = 0;
        world.settle();
        assert_true(&world, name);
    }
}

#[test]
fn an_engine_that_cannot_be_mirrored_is_not_started_over_all_the_time() {
    let mut world = World::new(Nature {
        blocks_known: false,
        replayable: false,
        ..Nature::default()
    });
    world.run(1_000);
    world.swallow = usize::MAX;
    let minutes = 16;
    world.run_for(minutes * 60_000);
    // At 0, 1, 3, 7 and 15 minutes from the first on.
    let repairs = world.repairs(Fault::CachedTokens);
    assert!((4..=5).contains(&repairs), "{repairs}");
}
