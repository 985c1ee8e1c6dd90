use cachelb_core::load::BookingId;

use crate::testing::Calls;
use crate::testing::{Scene, row};
use crate::*;

const BOOKING: BookingId = BookingId {
    entry: 0,
    generation: 0,
};

fn rule(boundaries: &[u64]) -> PrefixHash {
    let options = PrefixHashOptions {
        cache_boundaries: boundaries.to_vec(),
        ..PrefixHashOptions::default()
    };
    PrefixHash::new(options, 1337)
}

fn loads(loads: &[u32], key: &str) -> Scene {
    Scene::new(&loads.iter().map(|&load| (0, load)).collect::<Vec<_>>()).key(Some(key))
}

/// A key at home on the first of `n` workers.
fn key_of_first(n: usize) -> String {
    let keys = (0..1000).map(|i| format!("head-{i}"));
    let is_first = |key: &String| loads(&vec![0; n], key).choose(&rule(&[]), 1).0 == 0;
    keys.into_iter().find(is_first).unwrap()
}

/// A prompt of `blocks` blocks whose head has key `key`.
fn prompt(scene: &Scene, blocks: u32, key: &str) -> Scene {
    let scene = scene.clone().blocks(Some(blocks)).key(Some(key));
    Scene {
        key_is_session: false,
        ..scene
    }
}

#[test]
fn an_overloaded_home_is_left_only_over_both_margins() {
    let key = key_of_first(4);
    let stays = loads(&[13, 0, 0, 0], &key).choose(&rule(&[]), 1);
    assert_eq!(stays, (0, Reason::Hash), "bound 13.5");
    let (row, reason) = loads(&[14, 0, 0, 0], &key).choose(&rule(&[]), 1);
    assert_ne!(row, 0, "bound 13.75");
    assert_eq!(reason, Reason::HashBounded);
    assert_eq!(
        loads(&[100; 4], &key).choose(&rule(&[]), 1),
        (0, Reason::Hash)
    );
    assert_eq!(
        loads(&[40, 35, 36, 37], &key).choose(&rule(&[]), 1),
        (0, Reason::Hash),
        "over neither margin"
    );
}

#[test]
fn overflow_goes_to_the_least_loaded_and_ties_are_even() {
    let key = key_of_first(4);
    assert_eq!(
        loads(&[40, 3, 2, 3], &key).choose(&rule(&[]), 1),
        (2, Reason::HashBounded)
    );
    let scene = loads(&[40, 2, 2, 2], &key);
    for row in 1..4 {
        let third = scene.share(&rule(&[]), row);
        let five_sigma = 5.0 * (1.0_f64 / 3.0 * 2.0 / 3.0 / 1000.0).sqrt();
        assert!((third - 1.0 / 3.0).abs() < five_sigma, "row {row}: {third}");
    }
}

#[test]
fn loads_are_per_weight() {
    let key = key_of_first(4);
    let mut scene = loads(&[14, 0, 0, 0], &key);
    scene.rows[0].weight = 4.0;
    let home = scene.choose(&rule(&[]), 1);
    assert_eq!(home, (0, Reason::Hash), "3.5 per weight");
}

#[test]
fn the_deepest_boundary_reached_is_the_key() {
    let rule = rule(&[1920, 512]);
    let scene = loads(&[0; 8], "unused");
    let at = |blocks: u32, key: &str| prompt(&scene, blocks, key).choose(&rule, 1).0;
    // Block `i` of a scene has hash `i + 1`; a session of the same bytes has the same home.
    let block = |number: u8| {
        let key = String::from_utf8(u64::from(number).to_le_bytes().to_vec()).unwrap();
        scene.clone().key(Some(&key)).choose(&rule, 1).0
    };
    assert_eq!(at(62, "head"), block(32), "1,000 tokens end at 512");
    assert_eq!(at(120, "head"), block(120), "1,920 tokens");
    assert_eq!(at(32, "head"), block(32), "512 tokens");
    let heads: std::collections::HashSet<usize> =
        (0..40).map(|i| at(31, &format!("head-{i}"))).collect();
    assert!(heads.len() > 4, "below the smallest the head decides");
    let sessions: std::collections::HashSet<usize> = (0..40)
        .map(|i| {
            let mut scene = prompt(&scene, 128, &format!("chat-{i}"));
            scene.key_is_session = true;
            scene.choose(&rule, 1).0
        })
        .collect();
    assert!(sessions.len() > 4, "a session outranks the boundaries");
}

#[test]
fn an_overloaded_boundary_tries_the_next_shallower() {
    let (deep, both) = (rule(&[2048]), rule(&[512, 2048]));
    let idle = loads(&[0; 8], "unused");
    let home = prompt(&idle, 128, "head").choose(&deep, 1).0;
    let shallow = prompt(&idle, 32, "head").choose(&both, 1).0;
    assert_ne!(home, shallow, "pick other boundaries");
    let mut busy = idle.clone();
    busy.rows[home].inflight = 40;
    for row in (0..8).filter(|&row| row != home) {
        busy.rows[row].inflight = u32::from(row == shallow);
    }
    let moved = prompt(&busy, 128, "head").choose(&both, 1);
    assert_eq!(
        moved,
        (shallow, Reason::HashBounded),
        "though others are idle"
    );
    busy.rows[shallow].inflight = 40;
    let (row, reason) = prompt(&busy, 128, "head").choose(&both, 1);
    assert!(row != home && row != shallow, "least loaded of the rest");
    assert_eq!(reason, Reason::HashBounded);
}

#[test]
fn no_key_goes_to_the_least_loaded() {
    let mut scene = loads(&[1, 0], "unused");
    scene.key = None;
    assert_eq!(scene.choose(&rule(&[512]), 1), (1, Reason::NoKey));
}

#[test]
fn homes_survive_a_worker_that_flaps_or_leaves() {
    let mut rule = rule(&[]);
    let all = loads(&[0; 4], "x");
    rule.settle(&all.view(), all.pick(&rule, 1), BOOKING);
    let without = Scene::of(vec![row(0, 0, 0), row(1, 0, 0), row(3, 0, 0)]);
    for forgotten in [false, true] {
        if forgotten {
            rule.forget(2);
        }
        for i in 0..200 {
            let key = i.to_string();
            let before = all.clone().key(Some(&key)).choose(&rule, 1).0 as u32;
            let (after, _) = without.clone().key(Some(&key)).choose(&rule, 1);
            let after = without.rows[after].offer;
            assert!(before == 2 || before == after);
        }
    }
}
