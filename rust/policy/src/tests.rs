//! The rules, on hand-made views.

mod boundary_learning;
mod consistent_hash;
mod learned;
mod rendezvous;
mod session;

use cachelb_core::load::Report;

use super::testing::{Scene, cache_aware};
use super::*;

/// The rule of a policy with its defaults.
fn by_name(name: &str) -> Box<dyn Rule> {
    let policy = named(name).unwrap();
    let options = (policy.declared)().into_iter().map(|option| option.default);
    let setup = Setup {
        own_seed: None,
        seed: 3,
        replicas: 1.0,
        block_size: 16,
    };
    let options = (policy.read)(options.collect()).unwrap();
    options.ruled(&setup).unwrap().rule
}

/// The workers of `pairs` and a prompt of ten blocks.
fn rows(pairs: &[(u32, u32)]) -> Scene {
    Scene::new(pairs).blocks(Some(10))
}

#[test]
fn without_a_prompt_or_a_key_load_decides() {
    let by_prompt = [
        "cache-aware",
        "estimated-ttft",
        "kv-aware",
        "overlap-cost",
        "prefill-times-batch",
        "prefix-cache",
        "prefix-cache-and-load",
        "sticky-until-saturated",
    ];
    let by_prompt = by_prompt.map(|name| (name, Reason::ShortPrompt));
    let by_key = ["consistent-hash", "prefix-hash", "rendezvous", "session"];
    let by_key = by_key.map(|name| (name, Reason::NoKey));
    for (name, short) in by_prompt.into_iter().chain(by_key) {
        for (total, reason) in [(None, Reason::NoKey), (Some(0), short)] {
            let scene = Scene::new(&[(0, 20), (0, 0)]).blocks(total);
            assert_eq!(scene.choose(&*by_name(name), 1), (1, reason), "{name}");
        }
    }
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
fn cache_aware_takes_the_least_loaded_holder_that_is_not_overloaded() {
    let low = CacheAware {
        cache_threshold: Threshold::new(0.0),
        ..cache_aware()
    };
    let cases: [(_, &[(u32, u32)], _); 10] = [
        (
            cache_aware(),
            &[(10, 5), (10, 0), (0, 0)],
            (1, Reason::Prefix),
        ),
        (cache_aware(), &[(2, 1), (0, 0)], (1, Reason::Cold)),
        (cache_aware(), &[(3, 1), (0, 0)], (0, Reason::Prefix)),
        // A threshold of zero still needs one block.
        (low, &[(0, 1), (0, 0)], (1, Reason::Cold)),
        (low, &[(1, 1), (0, 0)], (0, Reason::Prefix)),
        (
            cache_aware(),
            &[(10, 0), (0, 0), (0, 0)],
            (0, Reason::Prefix),
        ),
        (
            cache_aware(),
            &[(10, 1), (0, 0), (0, 0)],
            (0, Reason::Prefix),
        ),
        // The gate asks the holder and no other worker.
        (cache_aware(), &[(10, 0), (0, 50)], (0, Reason::Prefix)),
        (cache_aware(), &[(10, 100), (0, 0)], (1, Reason::Spill)),
        (cache_aware(), &[(0, 1), (0, 0)], (1, Reason::Cold)),
    ];
    for (rule, pairs, expected) in cases {
        assert_eq!(rows(pairs).choose(&rule, 1), expected, "{pairs:?}");
    }
    rows(&[(10, 0), (10, 0), (0, 0)]).assert_even(&cache_aware(), 0..2);
}

#[test]
fn many_matched_tokens_are_a_hit_whatever_their_share() {
    let by_tokens = CacheAware {
        min_matched_tokens: Some(32_000),
        ..cache_aware()
    };
    let scene = Scene::new(&[(2_999, 1), (0, 0)]).blocks(Some(10_000));
    assert_eq!(scene.choose(&cache_aware(), 1).1, Reason::Cold);
    assert_eq!(scene.choose(&by_tokens, 1), (0, Reason::Prefix));
}

#[test]
fn least_loaded_divides_by_weight_and_ties_follow_the_cold_order() {
    let rule = LeastLoaded::default();
    let mut scene = Scene::new(&[(0, 3), (0, 1), (0, 1)]);
    scene.rows[0].weight = 3.0;
    scene.assert_even(&rule, 0..3);
    for (row, pick) in scene.rows.iter_mut().zip([6, 5, 4]) {
        row.last_cold_pick = pick;
    }
    assert_eq!(scene.choose(&rule, 1), (2, Reason::LeastLoaded));
}

#[test]
fn least_loaded_can_count_tokens_or_blocks() {
    let mut scene = Scene::new(&[(0, 0), (0, 9)]);
    scene.rows[0].pending_prefill_tokens = 100;
    scene.loads[1].decode_blocks = 3;
    let units = [LoadUnit::Inflight, LoadUnit::Tokens, LoadUnit::Blocks];
    let picks = units.map(|load| scene.choose(&LeastLoaded { load }, 1).0);
    assert_eq!(picks, [0, 1, 0]);
}

fn two_by(load: Compare) -> PowerOfTwo {
    PowerOfTwo { choices: 2, load }
}

#[test]
fn power_of_two_never_mixes_units() {
    let rule = two_by(Compare::ExpectedWait);
    let mut scene = Scene::new(&[(0, 1), (0, 3)]);
    scene.loads[0].report.queued_tokens = Some(1e9).into();
    let picked = scene.choose(&rule, 1).0;
    assert_eq!(picked, 0, "one report missing: requests for both");
    scene.loads[1].report.queued_tokens = Some(0.0).into();
    assert_eq!(scene.choose(&rule, 1).0, 1);
}

#[test]
fn expected_wait_adds_work_and_kv_pressure() {
    let rule = two_by(Compare::ExpectedWait);
    let mut scene = Scene::new(&[(0, 0), (0, 0)]);
    let report = |queued, usage| Report {
        queued_tokens: Some(queued).into(),
        kv_usage: Some(usage).into(),
        prefill_tps: Some(2_000.0).into(),
        ..Report::NONE
    };
    scene.loads[0].report = report(3_000.0, 0.5);
    scene.loads[0].dispatched_tokens = 1_000;
    // 2.15 s against 2.145 s and 2.155 s.
    for (queued, picked) in [(4_290.0, 1), (4_310.0, 0)] {
        scene.loads[1].report = report(queued, 0.0);
        assert_eq!(scene.choose(&rule, 1).0, picked, "{queued}");
    }
}

#[test]
fn power_of_two_samples_the_lower_load() {
    let rule = two_by(Compare::Inflight);
    Scene::new(&[(0, 0), (0, 9)]).assert_even(&rule, 0..1);
    let worst = Scene::new(&[(0, 9), (0, 1), (0, 0)]).share(&rule, 0);
    assert!(worst < 1e-9, "the highest of three can never win a pair");
    assert_eq!(Scene::new(&[(0, 7)]).choose(&rule, 1).0, 0);
}

#[test]
fn random_follows_weights() {
    let mut scene = Scene::new(&[(0, 5), (0, 0)]);
    scene.assert_even(&Random, 0..2);
    scene.rows[0].weight = 3.0;
    assert!((0.68..=0.82).contains(&scene.share(&Random, 0)));
    assert_eq!(scene.choose(&Random, 1).1, Reason::Random);
}
