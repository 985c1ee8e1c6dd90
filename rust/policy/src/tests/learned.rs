//! The policy that learns the costs of requests.

mod world;

use std::sync::Arc;

use cachelb_core::ids::{Millis, SequenceHash};
use cachelb_core::load::Known;
use cachelb_learned::{
    COLUMNS, FeatureSet, Fitting, Kind, Model, Replay, Reward, Row, Sample, Schedule, Training,
};

use crate::testing::{Calls, booking};

use self::world::World;
use super::*;
use crate::testing::row;

const GPU: &str = "a30";

fn known(value: f64) -> Known {
    Known::from(Some(value))
}

fn schedule() -> Schedule {
    Schedule {
        n_min: 1_000,
        theta: 1_000,
        fifo: 5_000,
        replay: 5_000,
        how: Replay::None,
        freeze_after: None,
        fitting: Fitting {
            kind: Kind::Linear,
            features: FeatureSet::Paper,
            ..Fitting::default()
        },
        training: Training::Inline,
        seed: 1,
    }
}

fn settings() -> Learning {
    Learning {
        epsilon: 0.0,
        delta: 0.1,
        crowding: 1.0,
        tie: Tie::Random,
        k: 2,
        k_slack: None,
        tau_sat: 0.8,
        tau_ben: 100.0,
        prefix_tokens: 128,
        max_scored: 256,
        outside: Outside::Worker,
        guards: true,
        timeout: None,
        max_model_age_ms: None,
        reward: Reward::Ttft,
        clip_s: 15.0,
        schedule: schedule(),
        model: None,
        seed: 7,
    }
}

fn rule(settings: Learning) -> Learned {
    let mut rule = Learned::new(settings, by_name("prefix-cache-and-load"));
    for order in 0..8 {
        rule.describe(order, Some(GPU));
    }
    rule
}

/// A row within all bounds of [`model`].
fn sample(i: u32) -> Sample {
    let (waiting, blocks) = (i % 13, i * 11 % 63 + 1);
    let hit = (i * 11 % 10) as f32 / 10.0;
    let mut values = [0.0; COLUMNS];
    values[0] = hit;
    values[2] = waiting as f32;
    values[5] = (i * 3 % 11) as f32 / 10.0;
    values[6] = (blocks * 16 - i % 2) as f32;
    values[7] = values[6] * (1.0 - hit);
    Sample {
        row: Row { values, gpu: 0 },
        cost: 0.1 * values[2],
    }
}

/// One that expects a tenth of a second per waiting request, of prompts up to 1,008 tokens.
fn model_of(cost: impl Fn(&Sample) -> f32) -> Arc<Model> {
    let mut samples: Vec<Sample> = (0..4_000).map(sample).collect();
    for sample in &mut samples {
        sample.cost = cost(sample);
    }
    let fitting = schedule().fitting;
    let gpus = [GPU.to_owned()];
    let fitted = Model::fit(&samples, &gpus, &fitting, 1, 9, &false.into());
    Arc::new(fitted.unwrap().unwrap())
}

fn loaded(change: impl FnOnce(&mut Learning)) -> Learned {
    let mut settings = settings();
    settings.model = Some(model_of(|sample| sample.cost));
    change(&mut settings);
    rule(settings)
}

/// Workers that have so many requests waiting.
fn waiting(counts: &[f64]) -> Scene {
    let rows = (0..counts.len()).map(|i| row(i as u32, 0, 0)).collect();
    let mut scene = Scene::of(rows).blocks(Some(20));
    for (load, count) in scene.loads.iter_mut().zip(counts) {
        load.report.waiting = known(*count);
    }
    scene
}

fn picks(rule: &Learned, scene: &Scene) -> (Vec<f64>, Reason) {
    let shares = (0..scene.rows.len()).map(|row| scene.share(rule, row));
    (shares.collect(), scene.choose(rule, 1).1)
}

/// Routes a request to the only row of `scene`, and has it answered after so many milliseconds.
fn teach(rule: &mut Learned, scene: &Scene, entry: u32, ms: u64) {
    let view = scene.view();
    rule.settle(&view, Choice::pinned(0, Reason::Pinned), booking(entry));
    rule.proven(booking(entry), Some(Millis(scene.now.0 + ms)));
    rule.ended(booking(entry), Ended::Served);
}

/// Teaches `n` requests of changing numbers, a tenth of a second per waiting request.
fn teach_many(rule: &mut Learned, n: u32) {
    for i in 0..n {
        let count = i % 13;
        let scene = waiting(&[f64::from(count)]).tokens(u64::from(i * 7 % 1_000) + 1);
        teach(rule, &scene, i, u64::from(count) * 100);
    }
}

#[test]
fn the_first_model_waits_for_enough_samples() {
    let mut settings = settings();
    settings.schedule.n_min = 5_000;
    let mut rule = rule(settings);
    let scene = waiting(&[5.0, 9.0]);
    teach_many(&mut rule, 4_999);
    assert_eq!(scene.choose(&rule, 1).1, Reason::ColdStart);
    assert_eq!(scene.view().rows.len(), 2);
    teach_many(&mut rule, 1);
    assert_eq!(scene.choose(&rule, 1), (0, Reason::Learned));
    assert_eq!(rule.learned().unwrap().rounds, 1);
}

#[test]
fn bounds_belong_to_what_was_seen() {
    let rule = loaded(|_| ());
    let scene = waiting(&[5.0, 9.0]);
    let reason = |tokens| scene.clone().tokens(tokens).choose(&rule, 1).1;
    let reasons = [14, 15, 1_008, 1_009].map(reason);
    let (inside, outside) = (Reason::Learned, Reason::Ood);
    assert_eq!(reasons, [outside, inside, inside, outside]);
}

#[test]
fn predictions_too_close_to_tell_apart_are_drawn_from() {
    let rule = loaded(|_| ());
    let (shares, reason) = picks(&rule, &waiting(&[5.0, 5.4, 6.0]));
    assert_eq!(reason, Reason::LearnedTie);
    assert!((0.45..=0.55).contains(&shares[0]), "{shares:?}");
    assert!(shares[2] < 1e-9, "{shares:?}");
    let rule = loaded(|settings| settings.delta = 0.0);
    let (shares, reason) = picks(&rule, &waiting(&[5.0, 5.4, 6.0]));
    assert_eq!((shares[0], reason), (1.0, Reason::Learned));
}

#[test]
fn of_those_the_one_that_holds_most_serves() {
    let rule = loaded(|settings| settings.tie = Tie::Cached);
    let mut scene = waiting(&[5.0, 5.4, 6.0]);
    for (row, overlap) in scene.rows.iter_mut().zip([2, 8, 12]) {
        row.overlap = overlap;
    }
    let scene = scene.tokens(320);
    let (shares, reason) = picks(&rule, &scene);
    assert_eq!((shares, reason), (vec![0.0, 1.0, 0.0], Reason::LearnedTie));
}

/// The workers that a full cache keeps the prompt to.
fn kept(scene: &Scene, k: usize) -> Vec<usize> {
    let first = SequenceHash(8);
    let rendezvous = Rendezvous {
        seed: settings().seed,
        epsilon: None,
    };
    rendezvous.first(&scene.view(), &first.0.to_le_bytes(), k)
}

/// Four workers, the fourth of which is the least busy; caches full to `usage`, and one holds `tokens` of 1,000.
fn saturated(usage: f64, tokens: f64) -> Scene {
    let mut scene = waiting(&[5.0, 5.0, 5.0, 5.0]).tokens(1_000);
    for load in &mut scene.loads {
        load.report.kv_usage = known(usage);
    }
    scene.rows[2].matched_tokens = tokens;
    let few = kept(&scene, 2);
    let other = (0..4).find(|row| !few.contains(row)).unwrap();
    scene.loads[other].report.waiting = known(1.0);
    scene
}

#[test]
fn a_full_cache_keeps_a_prompt_to_a_few_workers() {
    let rule = loaded(|_| ());
    let scene = saturated(0.85, 500.0);
    let few = kept(&scene, 2);
    let (shares, reason) = picks(&rule, &scene);
    assert_eq!(reason, Reason::KFilter);
    for (row, share) in shares.iter().enumerate() {
        let expected = if few.contains(&row) { 0.5 } else { 0.0 };
        assert!((share - expected).abs() < 0.06, "{shares:?} {few:?}");
    }
}

#[test]
fn no_prompt_is_kept_together_for_little() {
    for (what, usage, tokens, k) in [
        ("not full", 0.8, 500.0, 2),
        ("little cached", 0.85, 100.0, 2),
        ("no filter", 0.85, 500.0, 0),
        ("as many as there are", 0.85, 500.0, 4),
    ] {
        let rule = loaded(|settings| settings.k = k);
        let reason = saturated(usage, tokens).choose(&rule, 1).1;
        assert_eq!(reason, Reason::Learned, "{what}");
    }
}

#[test]
fn a_prompt_leaves_its_workers_where_they_cost_too_much() {
    // 0.5 s there, 0.1 s elsewhere.
    for (slack, reason) in [
        (None, Reason::KFilter),
        (Some(4.1), Reason::KFilter),
        (Some(3.9), Reason::Learned),
    ] {
        let rule = loaded(|settings| settings.k_slack = slack);
        let scene = saturated(0.85, 500.0);
        assert_eq!(scene.choose(&rule, 1).1, reason, "{slack:?}");
    }
}

#[test]
fn a_tie_does_not_undo_the_filter() {
    let rule = loaded(|settings| settings.delta = 100.0);
    let scene = saturated(0.85, 500.0);
    let few = kept(&scene, 2);
    let (shares, _) = picks(&rule, &scene);
    let outside: f64 = (0..4)
        .filter(|row| !few.contains(row))
        .map(|row| shares[row])
        .sum();
    assert!(outside.abs() < 1e-9, "{shares:?}");
}

#[test]
fn some_requests_go_anywhere() {
    let rule = loaded(|settings| settings.epsilon = 0.25);
    let scene = waiting(&[1.0, 9.0, 9.0, 9.0]);
    let explored = (0..4_000).filter(|seed| scene.choose(&rule, *seed).1 == Reason::Explore);
    let explored = explored.count() as f64 / 4_000.0;
    assert!((0.23..=0.27).contains(&explored), "{explored}");
    let share = scene.share(&rule, 3);
    assert!((0.03..=0.1).contains(&share), "{share}");
}

#[test]
fn a_worker_far_beyond_all_that_was_seen_is_passed_over() {
    let mut scene = waiting(&[5.0, 9.0, 100.0]);
    // The fallback prefers the others.
    scene.rows[2].inflight = 3;
    let rule = loaded(|_| ());
    assert_eq!(scene.choose(&rule, 1), (0, Reason::Learned));
    let fleet = loaded(|settings| settings.outside = Outside::Fleet);
    assert_eq!(scene.choose(&fleet, 1).1, Reason::Ood);
    let ignored = loaded(|settings| settings.outside = Outside::Ignored);
    assert_eq!(scene.choose(&ignored, 1), (0, Reason::Learned));
    // The fallback prefers the holder: that it is more loaded than any before is a reason against it all the same.
    scene.rows[2].inflight = 0;
    scene.rows[2].overlap = 9;
    let mut scene = scene.tokens(320);
    assert_eq!(scene.choose(&rule, 1), (0, Reason::Learned));
    // All are.
    for load in &mut scene.loads {
        load.report.waiting = known(100.0);
    }
    assert_eq!(scene.choose(&rule, 1).1, Reason::Ood);
}

#[test]
fn a_worker_more_loaded_than_any_before_is_scored_within_reach() {
    let rule = loaded(|_| ());
    // The most was 12.
    for counts in [[25.0, 24.0], [20.0, 16.0]] {
        let picked = waiting(&counts).choose(&rule, 1);
        assert_eq!(picked, (1, Reason::Learned), "{counts:?}");
    }
    // Features of the prompt have no such reach.
    let long = waiting(&[5.0, 9.0]).tokens(1_009);
    assert_eq!(long.choose(&rule, 1).1, Reason::Ood);
}

#[test]
fn those_who_wait_behind_count() {
    let cost = |sample: &Sample| 0.1 * sample.row.values[2] + 1.0 - sample.row.values[0];
    let mut scene = waiting(&[0.0, 11.0]).tokens(320);
    scene.rows[1].matched_tokens = 288.0;
    for (pending, crowding, row) in [(0, 1.0, 0), (9, 1.0, 1), (9, 0.0, 0)] {
        for candidate in &mut scene.rows {
            candidate.pending_prefill_tokens = pending;
        }
        let rule = loaded(|settings| {
            settings.model = Some(model_of(cost));
            settings.crowding = crowding;
            settings.outside = Outside::Ignored;
        });
        // 1.0 s where nothing is cached, 1.2 s behind others where all is; the others would wait 1.0 s and 0.1 s.
        assert_eq!(scene.choose(&rule, 1).0, row, "{pending} {crowding}");
    }
}

#[test]
fn a_device_that_nobody_was_trained_on_is_left_to_the_fallback() {
    let mut rule = loaded(|_| ());
    rule.describe(0, Some("h100"));
    let scene = waiting(&[1.0, 9.0]);
    let reasons: Vec<Reason> = (0..50).map(|seed| scene.choose(&rule, seed).1).collect();
    assert!(reasons.contains(&Reason::Ood) && reasons.contains(&Reason::Learned));
}

#[test]
fn reports_that_are_too_old_are_not_believed() {
    let rule = loaded(|_| ());
    let mut scene = waiting(&[5.0, 9.0]);
    scene.now = Millis(2_001);
    assert_eq!(scene.choose(&rule, 1).1, Reason::StaleLoad);
    scene.loads[1].report.at = Millis(2_000);
    let reasons: Vec<Reason> = (0..50).map(|seed| scene.choose(&rule, seed).1).collect();
    assert!(reasons.contains(&Reason::StaleLoad) && reasons.contains(&Reason::Learned));
}

#[test]
fn predictions_that_are_no_times_are_not_used() {
    let rule = loaded(|settings| {
        settings.model = Some(model_of(|sample| sample.cost * 1e6));
    });
    assert_eq!(waiting(&[5.0, 9.0]).choose(&rule, 1).1, Reason::ModelError);
}

#[test]
fn predictions_that_take_too_long_are_not_asked_for_again_at_once() {
    let rule = loaded(|settings| settings.timeout = Some(std::time::Duration::ZERO));
    let mut scene = waiting(&[5.0, 9.0]);
    assert_eq!(scene.choose(&rule, 1).1, Reason::ModelTimeout);
    let mut patient = loaded(|_| ());
    scene.now = Millis(5);
    assert_eq!(scene.choose(&rule, 1).1, Reason::ModelTimeout);
    assert_eq!(scene.choose(&patient, 1).1, Reason::Learned);
    let late = Choice::pinned(0, Reason::ModelTimeout);
    patient.settle(&scene.view(), late, booking(0));
    let decisions = patient.learned().unwrap().decisions;
    assert!(decisions.contains(&("model-timeout", 1)), "{decisions:?}");
}

#[test]
fn a_rule_that_may_not_learn_keeps_its_model() {
    let mut settings = settings();
    settings.schedule.freeze_after = Some(1_500);
    let mut rule = rule(settings);
    teach_many(&mut rule, 10_000);
    let stats = rule.learned().unwrap();
    assert_eq!((stats.samples, stats.rounds, stats.version), (1_500, 1, 1));
    assert_eq!(waiting(&[5.0, 9.0]).choose(&rule, 1).1, Reason::Learned);
}

#[test]
fn a_model_that_no_round_confirms_is_stale() {
    let scene = waiting(&[5.0, 9.0]);
    let mut aged = loaded(|settings| settings.max_model_age_ms = Some(1_000));
    teach(&mut aged, &waiting(&[5.0]), 0, 500);
    assert_eq!(scene.choose(&aged, 1).1, Reason::Learned);
    let mut later = waiting(&[5.0, 9.0]);
    later.now = Millis(1_501);
    for load in &mut later.loads {
        load.report.at = later.now;
    }
    assert_eq!(later.choose(&aged, 1).1, Reason::ModelStale);
}

#[test]
fn a_model_of_other_units_is_found_by_what_it_is_asked() {
    let mut rule = loaded(|settings| settings.outside = Outside::Ignored);
    let scene = waiting(&[5.0, 9.0]).tokens(100_000);
    for i in 0..64 {
        assert_ne!(scene.choose(&rule, 1).1, Reason::NormaliserMismatch, "{i}");
        rule.settle(&scene.view(), scene.pick(&rule, 1), booking(i));
    }
    assert_eq!(scene.choose(&rule, 1).1, Reason::NormaliserMismatch);
}

#[test]
fn scores_are_the_expected_times_of_the_workers_that_were_asked() {
    let rule = loaded(|_| ());
    let scene = waiting(&[5.0, 100.0, 7.0]);
    scene.choose(&rule, 1);
    let scores: Vec<Option<f64>> = rule.scores(&scene.view()).iter().map(|s| s.get()).collect();
    assert!((scores[0].unwrap() - 0.5).abs() < 0.01, "{scores:?}");
    assert!((scores[2].unwrap() - 0.7).abs() < 0.01, "{scores:?}");
    assert_eq!(scores[1], None);
    assert_eq!(rule.score(&scene.view(), 1), None);
    assert!(!rule.properties().higher_is_better);
}

#[test]
fn what_is_loaded_is_what_was_saved() {
    let mut rule = rule(settings());
    assert_eq!(rule.model(), None);
    teach_many(&mut rule, 1_000);
    let bytes = rule.model().unwrap();
    let mut settings = settings();
    settings.model = Some(Arc::new(Model::from_bytes(&bytes).unwrap()));
    let copy = self::rule(settings);
    for seed in 0..100 {
        let scene = waiting(&[5.0, 5.2, 6.0]);
        assert_eq!(scene.pick(&copy, seed), scene.pick(&rule, seed));
    }
    assert_eq!(copy.model(), Some(bytes));
    assert_eq!(copy.learned().unwrap().version, 1);
}

#[test]
fn beside_another_policy_it_learns_from_the_worker_that_served() {
    let mut rule = rule(settings());
    for i in 0..1_000 {
        let count = i % 13;
        let scene = waiting(&[f64::from(12 - count), f64::from(count)])
            .tokens(u64::from(i * 7 % 1_000) + 1);
        let own = Choice::pinned(0, Reason::Learned);
        rule.settle_beside(&scene.view(), own, 1, booking(i));
        rule.proven(booking(i), Some(Millis(u64::from(count) * 100)));
    }
    assert_eq!(waiting(&[5.0, 9.0]).choose(&rule, 1), (0, Reason::Learned));
}

#[test]
fn a_request_that_moved_teaches_by_where_it_was_served() {
    let mut rule = rule(settings());
    let scene = waiting(&[5.0, 9.0]);
    rule.settle(&scene.view(), Choice::pinned(0, Reason::Pinned), booking(0));
    rule.ended(booking(0), Ended::Failed);
    rule.proven(booking(0), Some(Millis(100)));
    assert_eq!(rule.learned().unwrap().samples, 0);
    rule.settle(&scene.view(), Choice::pinned(1, Reason::Pinned), booking(1));
    rule.proven(booking(1), Some(Millis(100)));
    let stats = rule.learned().unwrap();
    assert_eq!((stats.samples, stats.pending), (1, 0));
}

#[test]
fn rounds_in_the_background_swap_models_and_end_with_the_rule() {
    let mut settings = settings();
    settings.schedule.training = Training::Background;
    let mut rule = rule(settings);
    let scene = waiting(&[5.0, 9.0]);
    let mut versions = Vec::new();
    for i in 0..200_u64 {
        teach_many(&mut rule, 100);
        // The pick, its kept features and its scores are of one version.
        let before = rule.learned().unwrap().version;
        let choice = scene.pick(&rule, i);
        assert_eq!(rule.learned().unwrap().version, before);
        rule.settle(&scene.view(), choice, booking(1 << 20));
        rule.ended(booking(1 << 20), Ended::Failed);
        versions.push(before);
        std::thread::yield_now();
    }
    while rule.learned().unwrap().training {
        teach_many(&mut rule, 1);
    }
    let last = rule.learned().unwrap();
    assert_eq!(last.failed, 0);
    assert!(last.version >= 1 && last.rounds >= 1, "{last:?}");
    assert!(versions.is_sorted(), "{versions:?}");
    teach_many(&mut rule, 1_000);
    drop(rule);
}

#[test]
fn equal_seeds_and_requests_train_equal_models() {
    let train = || {
        let mut settings = settings();
        settings.schedule.fitting.kind = Kind::Mlp;
        settings.schedule.fitting.epochs = 2;
        let mut rule = rule(settings);
        teach_many(&mut rule, 2_000);
        rule.model()
    };
    assert_eq!(train(), train());
    assert!(train().is_some());
}

#[test]
fn an_honest_model_decides_and_stays() {
    let mut world = World::new(loaded_for_world(|cost| cost), 1);
    let shares = world.run(20_000);
    assert!(shares.learned > 0.97, "{shares:?}");
    assert!(shares.drift < 1e-9, "{shares:?}");
}

#[test]
fn a_poisoned_model_makes_few_decisions() {
    type Poison = fn(f32) -> f32;
    let poisons: [(&str, Poison); 5] = [
        ("inverted", |cost| 3.0 - cost),
        ("negative", |cost| -cost),
        ("huge", |cost| 900.0 + cost),
        ("constant", |_| 0.4),
        ("far too small", |cost| cost / 100.0),
    ];
    for (name, poison) in poisons {
        let mut world = World::new(loaded_for_world(poison), 1);
        let shares = world.run(20_000);
        assert!(shares.learned <= 0.02, "{name}: {shares:?}");
    }
}

/// A rule with a model of the world that was made of costs changed by `change`, and that trains no other.
fn loaded_for_world(change: fn(f32) -> f32) -> Learned {
    let mut settings = settings();
    settings.schedule.n_min = 1_000_000;
    settings.schedule.theta = 1_000_000;
    settings.schedule.fifo = 1_000_000;
    settings.model = Some(world::model(change));
    rule(settings)
}

#[test]
fn a_fleet_that_changes_falls_back_until_the_next_model() {
    let mut settings = settings();
    settings.schedule.theta = 2_000;
    let mut world = World::new(rule(settings), 2);
    let before = world.run(6_000);
    assert!(before.learned > 0.75 && before.drift < 1e-9, "{before:?}");
    world.slow_down(3);
    let change = world.run(3_000);
    assert!(change.drift > 0.1, "{change:?}");
    let after = world.run(6_000);
    assert!(after.learned > 0.75, "{after:?}");
}
