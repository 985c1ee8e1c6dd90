use proptest::prelude::*;

use super::super::*;
use super::consistent_hash::{fleet, owner};
use crate::testing::{NAMES, Scene};

const PLAIN: Rendezvous = Rendezvous {
    seed: 1337,
    epsilon: None,
};

#[test]
fn only_the_keys_of_the_worker_that_left_move() {
    let mut used = [0; 3];
    for i in 0..300 {
        let key = format!("session-{i}");
        let before = owner(&PLAIN, &fleet(&[0, 1, 2]), &key);
        let after = owner(&PLAIN, &fleet(&[0, 2]), &key);
        used[before as usize] += 1;
        assert!(before == 1 || before == after, "{key}");
        assert_ne!(after, 1);
        assert_eq!(owner(&PLAIN, &fleet(&[2, 1, 0]), &key), before);
    }
    assert!(used.iter().all(|&n| n > 60), "{used:?}");
}

#[test]
fn shares_follow_weights() {
    let mut scene = fleet(&[0, 1, 2]);
    scene.rows[0].weight = 2.0;
    let mut used = [0.0_f64; 3];
    for i in 0..40_000 {
        used[owner(&PLAIN, &scene, &i.to_string()) as usize] += 1.0 / 400.0;
    }
    for (got, want) in used.iter().zip([50.0_f64, 25.0, 25.0]) {
        assert!((got - want).abs() <= 1.0, "{used:?}");
    }
}

/// The draw of worker `name` for `key`, by the definition.
fn draw(key: &str, name: &str, weight: f64) -> f64 {
    let text = [key, "\0", name].concat();
    let hash = xxhash_rust::xxh3::xxh3_64_with_seed(text.as_bytes(), 1337);
    let unit = (hash as f64 + 0.5) / 2.0_f64.powi(64);
    weight / -unit.ln()
}

#[test]
fn the_pick_draws_highest_for_keys_of_any_length_and_any_weights() {
    let lengths = (0..100).chain([188, 189, 190, 191, 192, 193, 5_000]);
    for length in lengths {
        let key = "k".repeat(length);
        for third in [1.0, 3.0] {
            let mut scene = fleet(&[0, 1, 2, 3]).key(Some(&key));
            scene.rows[2].weight = third;
            let score = |row: usize| draw(&key, NAMES[row], scene.rows[row].weight);
            let best = (0..4).max_by(|a, b| score(*a).total_cmp(&score(*b)));
            let picked = scene.choose(&PLAIN, 1);
            assert_eq!(picked, (best.unwrap(), Reason::Hash), "{length} {third}");
            assert_eq!(PLAIN.score(&scene.view(), 1), Some(score(1)));
        }
    }
}

#[test]
fn a_bound_walks_down_the_scores() {
    let idle = fleet(&[0, 1, 2]).key(Some("hot"));
    let mut order = [0, 1, 2];
    let score = |row: usize| draw("hot", NAMES[row], 1.0);
    order.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
    let cases = [
        ([5, 0, 0], 0.25, 1, Reason::HashBounded),
        ([2, 2, 2], 0.25, 0, Reason::Hash),
        ([0, 0, 0], 0.25, 0, Reason::Hash),
        ([1, 1, 0], 0.0, 2, Reason::HashBounded),
    ];
    for (loads, epsilon, place, reason) in cases {
        let mut scene = idle.clone();
        for (place, load) in loads.into_iter().enumerate() {
            scene.rows[order[place]].inflight = load;
        }
        let rule = Rendezvous {
            epsilon: Some(epsilon),
            ..PLAIN
        };
        assert_eq!(scene.choose(&rule, 1), (order[place], reason), "{loads:?}");
    }
}

proptest! {
    #[test]
    fn movers_land_on_the_worker_that_came(seed: u64, weights in prop::collection::vec(0.1..10.0_f64, 6)) {
        let rule = Rendezvous { seed, epsilon: None };
        let mut all = fleet(&[0, 1, 2, 3, 4, 5]);
        for (row, weight) in all.rows.iter_mut().zip(&weights) {
            row.weight = *weight;
        }
        let before = Scene::of(all.rows[..5].to_vec());
        for i in 0..100 {
            let key = i.to_string();
            let (was, is) = (owner(&rule, &before, &key), owner(&rule, &all, &key));
            prop_assert!(was == is || is == 5);
        }
    }
}
