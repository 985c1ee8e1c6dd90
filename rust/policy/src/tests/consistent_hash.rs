use proptest::prelude::*;

use super::super::*;
use crate::testing::Calls;
use crate::testing::{NAMES, Scene, booking, row};

fn rule(epsilon: Option<f64>) -> ConsistentHash {
    ConsistentHash::new(150, epsilon, 1337)
}

/// The workers `offers`, idle.
pub(super) fn fleet(offers: &[u32]) -> Scene {
    Scene::of(offers.iter().map(|&offer| row(offer, 0, 0)).collect())
}

/// Offer of the worker that `key` goes to.
pub(super) fn owner(rule: &dyn Rule, scene: &Scene, key: &str) -> u32 {
    let (row, _) = scene.clone().key(Some(key)).choose(rule, 1);
    scene.rows[row].offer
}

/// The owners of 300 keys.
fn owners(rule: &ConsistentHash, scene: &Scene) -> Vec<u32> {
    let keys = (0..300).map(|i: u32| i.to_string());
    keys.map(|key| owner(rule, scene, &key)).collect()
}

/// A key whose walk meets a, then b, then c.
fn key_in_order() -> String {
    let plain = rule(None);
    let meets = |key: &str| {
        owner(&plain, &fleet(&[0, 1, 2]), key) == 0 && owner(&plain, &fleet(&[1, 2]), key) == 1
    };
    let keys = (0..1000).map(|i| format!("session-{i}"));
    keys.into_iter().find(|key| meets(key)).unwrap()
}

#[test]
fn overflow_walks_to_the_next_worker_with_room() {
    let key = key_in_order();
    let cases = [
        ([5, 0, 0], Some(0.25), 1, Reason::HashBounded),
        ([2, 2, 2], Some(0.25), 0, Reason::Hash),
        ([0, 0, 0], Some(0.25), 0, Reason::Hash),
        ([1, 1, 0], Some(0.0), 2, Reason::HashBounded),
        ([500, 0, 0], None, 0, Reason::Hash),
    ];
    for (loads, epsilon, picked, reason) in cases {
        let scene = Scene::new(&loads.map(|load| (0, load))).key(Some(&key));
        let found = scene.choose(&rule(epsilon), 1);
        assert_eq!(found, (picked, reason), "{loads:?} {epsilon:?}");
    }
}

#[test]
fn a_heavier_worker_has_a_larger_bound() {
    let key = key_in_order();
    let mut scene = Scene::new(&[(0, 2), (0, 0), (0, 0)]).key(Some(&key));
    assert_eq!(scene.choose(&rule(Some(0.25)), 1).0, 1, "bound 2");
    scene.rows[0].weight = 3.0;
    let key = (0..100).map(|i| format!("heavy-{i}"));
    let heavy = |key: &String| owner(&rule(None), &scene, key) == 0;
    let scene = scene.clone().key(key.into_iter().find(heavy).as_deref());
    let stays = scene.choose(&rule(Some(0.25)), 1);
    assert_eq!(stays, (0, Reason::Hash), "bound 3");
}

#[test]
fn an_unready_worker_is_skipped_and_its_arcs_return_intact() {
    let mut rule = rule(None);
    let (all, without_b) = (fleet(&[0, 1, 2]), fleet(&[0, 2]));
    let before = owners(&rule, &all);
    for scene in [&all, &without_b] {
        let scene = scene.clone().key(Some("x"));
        let choice = scene.pick(&rule, 1);
        rule.settle(&scene.view(), choice, booking(0));
    }
    for (before, during) in before.iter().zip(owners(&rule, &without_b)) {
        assert!(during != 1 && (*before == during || *before == 1));
    }
    assert_eq!(owners(&rule, &all), before);
}

#[test]
fn a_removed_worker_leaves_nothing_and_its_name_returns_to_its_keys() {
    let mut rule = rule(None);
    let all = fleet(&[0, 1, 2]).key(Some("x"));
    rule.settle(&all.view(), all.pick(&rule, 1), booking(0));
    let before = owners(&rule, &all);
    rule.forget(1);
    assert!(!format!("{rule:?}").contains("\"b\""));
    let mut again = all.clone();
    again.rows[1].order = 7;
    assert_eq!(before, owners(&rule, &again));
}

#[test]
fn points_follow_weights_of_any_size() {
    for unit in [0.001, 0.3, 1.0, 5.0, 300.0] {
        let mut scene = fleet(&[0, 1, 2]);
        scene.rows[0].weight = 2.0 * unit;
        scene.rows[1].weight = unit;
        scene.rows[2].weight = unit;
        let mut rule = rule(None);
        rule.settle(&scene.view(), scene.pick(&rule, 1), booking(0));
        let mut used = [0.0_f64; 3];
        for i in 0..10_000 {
            used[owner(&rule, &scene, &i.to_string()) as usize] += 1.0 / 100.0;
        }
        for (got, want) in used.iter().zip([50.0_f64, 25.0, 25.0]) {
            assert!((got - want).abs() <= 7.0, "unit {unit}: {used:?}");
        }
    }
}

#[test]
fn the_score_is_the_load_that_is_bounded() {
    let mut scene = Scene::new(&[(0, 5), (0, 0)]);
    scene.rows[0].weight = 2.0;
    let scores = |rule: &ConsistentHash| [0, 1].map(|row| rule.score(&scene.view(), row));
    assert_eq!(scores(&rule(Some(0.25))), [Some(2.5), Some(0.0)]);
    assert_eq!(scores(&rule(None)), [None, None]);
}

proptest! {
    #[test]
    fn only_the_keys_of_the_worker_that_leaves_move(gone in 0_u32..8, seed: u64, settled: bool) {
        let mut rule = ConsistentHash::new(40, None, seed);
        let all = fleet(&[0, 1, 2, 3, 4, 5, 6, 7]);
        if settled {
            rule.settle(&all.view(), all.pick(&rule, 1), booking(0));
        }
        let rest: Vec<u32> = (0..8).filter(|&offer| offer != gone).collect();
        let mut shuffled = rest.clone();
        shuffled.rotate_left(gone as usize % 7);
        for i in 0..200 {
            let key = format!("{}-{i}", NAMES[gone as usize]);
            let (before, after) = (owner(&rule, &all, &key), owner(&rule, &fleet(&rest), &key));
            prop_assert!(before == after || before == gone);
            prop_assert_eq!(after, owner(&rule, &fleet(&shuffled), &key));
        }
    }

    #[test]
    fn no_worker_ever_exceeds_its_bound(
        steps in prop::collection::vec((any::<bool>(), 0_u32..12, any::<prop::sample::Index>()), 1..300),
        epsilon in 0.0..1.0_f64,
        hashed_by_score: bool,
    ) {
        let ring = rule(Some(epsilon));
        let draw = Rendezvous { seed: 1337, epsilon: Some(epsilon) };
        let rule: &dyn Rule = if hashed_by_score { &draw } else { &ring };
        let mut scene = fleet(&[0, 1, 2, 3, 4]);
        scene.rows[4].weight = 2.5;
        let mut open: Vec<usize> = Vec::new();
        for (arrives, key, which) in steps {
            if arrives || open.is_empty() {
                let keyed = scene.clone().key(Some(&key.to_string()));
                let (row, _) = keyed.choose(rule, 1);
                let total: u32 = scene.rows.iter().map(|row| row.inflight).sum();
                let share = scene.rows[row].weight / 6.5;
                let bound = (1.0 + epsilon) * f64::from(total + 1) * share;
                prop_assert!(f64::from(scene.rows[row].inflight + 1) < bound + 1.0);
                scene.rows[row].inflight += 1;
                open.push(row);
            } else {
                let row = open.swap_remove(which.index(open.len()));
                scene.rows[row].inflight -= 1;
            }
        }
    }
}
