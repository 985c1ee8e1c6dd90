//! The rules, on hand-made views.

mod boundary_learning;
mod consistent_hash;
mod learned;
mod rendezvous;
mod session;

use cachelb_core::load::Report;

use super::testing::{Scene, cache_aware};
use super::*;

fn rows(pairs: &[(u32, u32)]) -> Scene {
    Scene::new(pairs)
}

fn choose(
    rule: &dyn Rule,
    scene: &Scene,
    total_blocks: Option<u32>,
    key: Option<&str>,
    seed: u64,
) -> (usize, Reason) {
    scene
        .clone()
        .blocks(total_blocks)
        .key(key)
        .choose(rule, seed)
}

fn share(rule: &dyn Rule, scene: &Scene, total_blocks: Option<u32>, picked: usize) -> f64 {
    scene.clone().blocks(total_blocks).share(rule, picked)
}

#[test]
fn threshold_compares_integers_inclusively() {
    let third = Threshold::new(0.3);
    assert!(third.reached(3, 10));
    assert!(!third.reached(2, 10));
    assert!(third.reached(2457, 8190));
    assert!(!third.reached(2456, 8190));
    assert!(Threshold::new(0.0).reached(0, 10));
    assert!(!Threshold::new(1.0).reached(9, 10));
}

#[test]
fn cache_aware_takes_the_least_loaded_holder() {
    assert_eq!(
        choose(
            &cache_aware(),
            &rows(&[(10, 5), (10, 0), (0, 0)]),
            Some(10),
            None,
            1
        ),
        (1, Reason::Prefix)
    );
}

#[test]
fn cache_aware_names_every_fallback() {
    let rule = cache_aware();
    assert_eq!(
        choose(&rule, &rows(&[(2, 1), (0, 0)]), Some(10), None, 1),
        (1, Reason::Cold)
    );
    assert_eq!(
        choose(&rule, &rows(&[(3, 1), (0, 0)]), Some(10), None, 1),
        (0, Reason::Prefix)
    );
    assert_eq!(
        choose(&rule, &rows(&[(0, 1), (0, 0)]), Some(0), None, 1),
        (1, Reason::ShortPrompt)
    );
    assert_eq!(
        choose(&rule, &rows(&[(0, 1), (0, 0)]), None, None, 1),
        (1, Reason::NoKey)
    );
}

#[test]
fn a_threshold_of_zero_still_needs_one_block() {
    let rule = CacheAware {
        cache_threshold: Threshold::new(0.0),
        ..cache_aware()
    };
    assert_eq!(
        choose(&rule, &rows(&[(0, 1), (0, 0)]), Some(10), None, 1),
        (1, Reason::Cold)
    );
    assert_eq!(
        choose(&rule, &rows(&[(1, 1), (0, 0)]), Some(10), None, 1),
        (0, Reason::Prefix)
    );
}

#[test]
fn many_matched_tokens_are_a_hit_whatever_their_share() {
    let by_share = cache_aware();
    let by_tokens = CacheAware {
        min_matched_tokens: Some(32_000),
        ..cache_aware()
    };
    let view = rows(&[(2_999, 1), (0, 0)]);
    assert_eq!(
        choose(&by_share, &view, Some(10_000), None, 1).1,
        Reason::Cold
    );
    assert_eq!(
        choose(&by_tokens, &view, Some(10_000), None, 1),
        (0, Reason::Prefix)
    );
}

#[test]
fn idle_fleets_and_one_request_keep_the_holder() {
    for loads in [[0, 0, 0], [1, 0, 0]] {
        let view = rows(&[(10, loads[0]), (0, loads[1]), (0, loads[2])]);
        assert_eq!(
            choose(&cache_aware(), &view, Some(10), None, 3),
            (0, Reason::Prefix)
        );
    }
}

#[test]
fn the_gate_asks_the_holder_and_never_somebody_else() {
    assert_eq!(
        choose(
            &cache_aware(),
            &rows(&[(10, 0), (0, 50)]),
            Some(10),
            None,
            1
        ),
        (0, Reason::Prefix)
    );
    assert_eq!(
        choose(
            &cache_aware(),
            &rows(&[(10, 100), (0, 0)]),
            Some(10),
            None,
            1
        ),
        (1, Reason::Spill)
    );
}

#[test]
fn equal_holders_share_evenly_over_seeds() {
    let half = share(
        &cache_aware(),
        &rows(&[(10, 0), (10, 0), (0, 0)]),
        Some(10),
        0,
    );
    assert!((0.45..=0.55).contains(&half), "{half}");
}

#[test]
fn least_loaded_divides_by_weight_and_ties_follow_the_cold_order() {
    let rule = LeastLoaded::default();
    let mut view = rows(&[(0, 3), (0, 1), (0, 1)]);
    view.rows[0].weight = 3.0;
    for i in 0..3 {
        let third = share(&rule, &view, None, i);
        assert!((0.26..=0.41).contains(&third), "worker {i}: {third}");
    }
    view.rows[1].last_cold_pick = 5;
    view.rows[2].last_cold_pick = 4;
    view.rows[0].last_cold_pick = 6;
    assert_eq!(
        choose(&rule, &view, None, None, 1),
        (2, Reason::LeastLoaded)
    );
}

#[test]
fn least_loaded_can_count_tokens_or_blocks() {
    let mut view = rows(&[(0, 0), (0, 9)]);
    view.rows[0].pending_prefill_tokens = 100;
    view.loads[1].decode_blocks = 3;
    let by = |load| choose(&(LeastLoaded { load }), &view, None, None, 1).0;
    assert_eq!(by(LoadUnit::Inflight), 0);
    assert_eq!(by(LoadUnit::Tokens), 1);
    assert_eq!(by(LoadUnit::Blocks), 0);
}

#[test]
fn power_of_two_never_mixes_units() {
    let rule = PowerOfTwo {
        choices: 2,
        load: Compare::ExpectedWait,
    };
    let mut view = rows(&[(0, 1), (0, 3)]);
    view.loads[0].report.queued_tokens = Some(1e9).into();
    assert_eq!(
        choose(&rule, &view, None, None, 1).0,
        0,
        "one report missing: requests for both"
    );
    view.loads[1].report.queued_tokens = Some(0.0).into();
    assert_eq!(choose(&rule, &view, None, None, 1).0, 1);
}

#[test]
fn expected_wait_adds_work_and_kv_pressure() {
    let rule = PowerOfTwo {
        choices: 2,
        load: Compare::ExpectedWait,
    };
    let mut view = rows(&[(0, 0), (0, 0)]);
    let report = |queued, usage| Report {
        queued_tokens: Some(queued).into(),
        kv_usage: Some(usage).into(),
        prefill_tps: Some(2_000.0).into(),
        ..Report::NONE
    };
    view.loads[0].report = report(3_000.0, 0.5);
    view.loads[0].dispatched_tokens = 1_000;
    for (queued, picked) in [(4_290.0, 1), (4_310.0, 0)] {
        view.loads[1].report = report(queued, 0.0);
        assert_eq!(
            choose(&rule, &view, None, None, 1).0,
            picked,
            "2.15 s against {}",
            queued / 2_000.0
        );
    }
}

#[test]
fn power_of_two_samples_the_lower_load() {
    let rule = PowerOfTwo {
        choices: 2,
        load: Compare::Inflight,
    };
    assert!((share(&rule, &rows(&[(0, 0), (0, 9)]), None, 0) - 1.0).abs() < 1e-9);
    let worst = share(&rule, &rows(&[(0, 9), (0, 1), (0, 0)]), None, 0);
    assert!(
        worst.abs() < 1e-9,
        "the highest of three can never win a pair"
    );
    assert_eq!(choose(&rule, &rows(&[(0, 7)]), None, None, 1).0, 0);
}

#[test]
fn random_follows_weights() {
    let rule = Random;
    let mut view = rows(&[(0, 5), (0, 0)]);
    assert!((0.42..=0.58).contains(&share(&rule, &view, None, 0)));
    view.rows[0].weight = 3.0;
    assert!((0.68..=0.82).contains(&share(&rule, &view, None, 0)));
    assert_eq!(choose(&rule, &view, None, None, 1).1, Reason::Random);
}
