//! Expected waits: units, degraded reports, full workers.

use cachelb_core::ids::Millis;
use cachelb_core::load::{Known, Report};

use super::*;
use crate::testing::Scene;

const RULE: LeastExpectedWait = LeastExpectedWait {
    kv_pressure_weight: wait::KV_PRESSURE_WEIGHT,
    cache_aware: false,
    max_waiting_requests: 0,
};

fn known(value: f64) -> Known {
    Some(value).into()
}

fn report(queued: f64, tps: f64, usage: f64) -> Report {
    Report {
        queued_tokens: known(queued),
        prefill_tps: known(tps),
        kv_usage: known(usage),
        ..Report::NONE
    }
}

fn scene(reports: &[Report]) -> Scene {
    let mut scene = Scene::new(&vec![(0, 0); reports.len()]);
    for (load, report) in scene.loads.iter_mut().zip(reports) {
        load.report = *report;
    }
    scene
}

fn seconds(rule: &LeastExpectedWait, scene: &Scene, row: usize) -> f64 {
    rule.score(&scene.view(), row).unwrap()
}

fn is(got: f64, expected: f64) -> bool {
    (got - expected).abs() < 5e-4
}

#[test]
fn work_over_speed_plus_pressure_decides() {
    let both = scene(&[report(4_000.0, 2_000.0, 0.5), report(1_000.0, 400.0, 0.0)]);
    assert!(is(seconds(&RULE, &both, 0), 2.15));
    assert!(is(seconds(&RULE, &both, 1), 2.5));
    assert_eq!(both.choose(&RULE, 1), (0, Reason::LeastLoaded));
    for (usage, expected) in [(0.95, 2.85), (1.0, 149.85), (0.0, 0.0)] {
        let full = scene(&[report(0.0, 2_000.0, usage)]);
        assert!(is(seconds(&RULE, &full, 0), expected), "{usage}");
    }
    let mut sent = scene(&[report(3_000.0, 2_000.0, 0.5), Report::NONE]);
    sent.loads[0].dispatched_tokens = 1_000;
    sent.loads[1].report.waiting = known(3.0);
    assert!(is(seconds(&RULE, &sent, 0), 2.15));
    // Tokens that were not counted.
    assert!(is(seconds(&RULE, &sent, 1), 3_072.0 / 2_000.0));
}

#[test]
fn speed_is_reported_or_seen_or_assumed() {
    let mut scene = scene(&[Report::NONE]);
    scene.loads[0].report.queued_tokens = known(4_000.0);
    assert!(is(seconds(&RULE, &scene, 0), 2.0));
    scene.loads[0].observed_prefill_tps = known(8_000.0);
    assert!(is(seconds(&RULE, &scene, 0), 0.5));
    scene.loads[0].report.prefill_tps = known(1_000.0);
    assert!(is(seconds(&RULE, &scene, 0), 4.0));
}

#[test]
fn a_worker_without_a_report_is_guessed_by_its_requests() {
    let mut scene = scene(&[report(4_000.0, 3_000.0, 0.0), Report::NONE]);
    scene.rows[1].inflight = 2;
    // 2 * 1,024 tokens at the mean of 3,000 and the assumed 2,000 per second: 0.819 s.
    scene.loads[0].report.queued_tokens = known(0.820 * 3_000.0);
    assert_eq!(scene.choose(&RULE, 1).0, 1);
    scene.loads[0].report.queued_tokens = known(0.818 * 3_000.0);
    assert_eq!(scene.choose(&RULE, 1).0, 0);
}

#[test]
fn without_any_report_requests_decide() {
    let scene = Scene::new(&[(0, 2), (0, 1)]);
    assert_eq!(scene.choose(&RULE, 1), (1, Reason::LeastLoaded));
    assert_eq!(RULE.score(&scene.view(), 0), None, "no seconds");
}

#[test]
fn old_reports_are_named_and_not_used() {
    let mut scene = scene(&[report(0.0, 1.0, 0.0), report(9_000.0, 1.0, 0.0)]);
    scene.rows[0].inflight = 1;
    scene.now = Millis(2_000);
    assert_eq!(scene.choose(&RULE, 1), (0, Reason::LeastLoaded));
    scene.now = Millis(2_001);
    assert_eq!(scene.choose(&RULE, 1), (1, Reason::StaleLoad));
    scene.loads[0].report.at = Millis(1_000);
    let one_is_fresh = scene.choose(&RULE, 1).1;
    assert_eq!(one_is_fresh, Reason::LeastLoaded);
}

#[test]
fn uncached_tokens_of_the_request_count_if_asked() {
    let mut scene = Scene::new(&[(100, 0), (0, 0)]).blocks(Some(125));
    scene.loads[0].report = report(1_000.0, 2_000.0, 0.0);
    scene.loads[1].report = report(0.0, 2_000.0, 0.0);
    assert_eq!(scene.choose(&RULE, 1).0, 1);
    let aware = LeastExpectedWait {
        cache_aware: true,
        ..RULE
    };
    // 0.5 s against 1 s.
    assert_eq!(scene.choose(&aware, 1), (0, Reason::LeastLoaded));
    scene.blocks = None;
    assert_eq!(scene.choose(&aware, 1).1, Reason::NoKey);
}

#[test]
fn full_workers_are_skipped_and_an_all_full_fleet_refuses() {
    let bounded = LeastExpectedWait {
        max_waiting_requests: 4,
        ..RULE
    };
    let with = |waiting: f64, queued: f64| Report {
        waiting: known(waiting),
        ..report(queued, 2_000.0, 0.0)
    };
    let some = scene(&[with(4.0, 0.0), with(3.0, 9_000.0)]);
    assert_eq!(some.choose(&bounded, 1).0, 1);
    assert_eq!(some.choose(&RULE, 1).0, 0);
    let all = scene(&[with(4.0, 0.0), with(7.0, 0.0)]);
    let refused = all.pick(&bounded, 1);
    assert_eq!((refused.reason, refused.refused), (Reason::Full, true));
    assert!(!all.pick(&RULE, 1).refused);
    let unknown = scene(&[with(4.0, 0.0), Report::NONE]);
    assert_eq!(unknown.pick(&bounded, 1).row, 1, "unknown is not full");
}

#[test]
fn equal_waits_are_drawn() {
    let same = scene(&[report(10.0, 2_000.0, 0.1); 2]);
    same.assert_even(&RULE, 0..2);
}
