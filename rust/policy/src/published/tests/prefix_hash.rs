use crate::testing::{Calls, Scene, booking, row};
use crate::*;

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
    let mut over = loads(&[14, 0, 0, 0], &key);
    let (row, reason) = over.choose(&rule(&[]), 1);
    assert_ne!(row, 0, "bound 13.75");
    assert_eq!(reason, Reason::HashBounded);
    over.rows[0].weight = 4.0;
    assert_eq!(over.choose(&rule(&[]), 1).0, 0, "3.5 per weight");
    // The bound of the first is 13.5; the last is over neither margin.
    for counts in [[13, 0, 0, 0], [100; 4], [40, 35, 36, 37]] {
        let stays = loads(&counts, &key).choose(&rule(&[]), 1);
        assert_eq!(stays, (0, Reason::Hash), "{counts:?}");
    }
}

#[test]
fn overflow_goes_to_the_least_loaded_and_ties_are_even() {
    let key = key_of_first(4);
    let least = loads(&[40, 3, 2, 3], &key).choose(&rule(&[]), 1);
    assert_eq!(least, (2, Reason::HashBounded));
    loads(&[40, 2, 2, 2], &key).assert_even(&rule(&[]), 1..4);
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
    let session = |key: &str| {
        let mut scene = prompt(&scene, 128, key);
        scene.key_is_session = true;
        scene.choose(&rule, 1).0
    };
    let several = |home: &dyn Fn(&str) -> usize| {
        let homes = (0..40).map(|i| home(&i.to_string()));
        homes.collect::<std::collections::HashSet<_>>().len() > 4
    };
    assert!(several(&|key| at(31, key)), "below the smallest boundary");
    assert!(several(&session), "a session outranks the boundaries");
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
    assert_eq!(moved, (shallow, Reason::HashBounded));
    busy.rows[shallow].inflight = 40;
    let (row, reason) = prompt(&busy, 128, "head").choose(&both, 1);
    assert!(row != home && row != shallow, "least loaded of the rest");
    assert_eq!(reason, Reason::HashBounded);
}

#[test]
fn homes_survive_a_worker_that_flaps_or_leaves() {
    let mut rule = rule(&[]);
    let all = loads(&[0; 4], "x");
    rule.settle(&all.view(), all.pick(&rule, 1), booking(0));
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
