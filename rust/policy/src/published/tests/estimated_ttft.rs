//! Estimates of the first token: queues, transfer, objectives.

use cachelb_core::ids::Millis;
use cachelb_core::load::Speed;

use super::*;
use crate::testing::{GATE, Scene};

const RULE: EstimatedTtft = EstimatedTtft {
    options: EstimatedTtftOptions {
        prefill: Some(PrefillTime::DEFAULT),
        transfer_ms_per_token: None,
        kvcache_balancing_threshold: 2.0,
        ttft_slo_ms: None,
        tbt_slo_ms: None,
        on_slo: OnSlo::Route,
        gate: false,
    },
    gate: None,
};

const LINK: Option<f64> = Some(0.010_485_76);

fn with(options: EstimatedTtftOptions) -> EstimatedTtft {
    EstimatedTtft {
        options,
        gate: None,
    }
}

/// A prompt of 8,000 tokens; rows of (prefix tokens, queue in ms).
fn scene(rows: &[(u32, f64)]) -> Scene {
    let overlaps: Vec<(u32, u32)> = rows.iter().map(|(prefix, _)| (prefix / 16, 0)).collect();
    let mut scene = Scene::new(&overlaps).blocks(Some(500));
    for (i, &(prefix, queue)) in rows.iter().enumerate() {
        scene.rows[i].matched_tokens = f64::from(prefix);
        scene.loads[i].pending_ms = queue;
    }
    scene
}

fn estimates(rule: &EstimatedTtft, scene: &Scene) -> Vec<f64> {
    let view = scene.view();
    (0..view.rows.len())
        .map(|i| (rule.score(&view, i).unwrap() * 10.0).round() / 10.0)
        .collect()
}

#[test]
fn the_earliest_first_token_wins() {
    for (held, queue, expected, picked) in [
        (7_000, 100.0, 132.1, (0, Reason::Prefix)),
        (7_000, 200.0, 232.1, (1, Reason::Spill)),
        (0, 5.0, 169.9, (1, Reason::Cold)),
    ] {
        let scene = scene(&[(held, queue), (0, 0.0)]);
        assert_eq!(estimates(&RULE, &scene), [expected, 164.9]);
        assert_eq!(scene.choose(&RULE, 1), picked);
    }
}

#[test]
fn without_a_parabola_prefills_take_as_long_as_first_tokens_showed() {
    let measured = with(EstimatedTtftOptions {
        prefill: None,
        ..RULE.options
    });
    let mut scene = scene(&[(7_000, 100.0), (0, 0.0)]);
    assert_eq!(estimates(&measured, &scene), [200.0, 800.0]); // 0.1 ms a token before any
    let strict = with(EstimatedTtftOptions {
        ttft_slo_ms: Some(1.0),
        on_slo: OnSlo::Reject,
        ..measured.options
    });
    assert!(!scene.pick(&strict, 1).refused);
    for load in &mut scene.loads {
        load.speed = Speed {
            squares: 1e6,
            products: 1e4,
        };
    }
    assert_eq!(estimates(&measured, &scene), [110.0, 80.0]);
    assert!(scene.pick(&strict, 1).refused);
    scene.rows[0].weight = 2.0; // takes the place of its speed
    scene.loads[0].weight = 2.0;
    assert_eq!(estimates(&measured, &scene), [105.0, 80.0]);
}

#[test]
fn the_pick_carries_what_it_adds_to_the_queue() {
    let choice = scene(&[(7_000, 100.0), (0, 0.0)]).pick(&RULE, 1);
    assert!((choice.estimate_ms - 32.1).abs() < 0.05, "{choice:?}");
    assert!(!choice.refused);
}

#[test]
fn a_queue_shrinks_while_its_head_computes() {
    let mut scene = scene(&[(7_000, 200.0), (0, 0.0)]);
    scene.now = Millis(1_100);
    scene.loads[0].head_since = Millis(1_000);
    assert_eq!(scene.choose(&RULE, 1), (0, Reason::Prefix));
}

#[test]
fn a_much_longer_prefix_is_fetched_if_it_can_be() {
    let fetching = with(EstimatedTtftOptions {
        transfer_ms_per_token: LINK,
        ..RULE.options
    });
    let rows = scene(&[(6_000, 500.0), (1_000, 0.0)]);
    assert_eq!(estimates(&fetching, &rows)[1..], [101.0], "52.4 + 48.6");
    let choice = rows.pick(&fetching, 1);
    assert_eq!(choice.row, 1);
    assert!((choice.estimate_ms - 101.0).abs() < 0.05);
    let nothing = scene(&[(6_000, 500.0), (0, 0.0)]);
    assert!(estimates(&fetching, &nothing)[1] < estimates(&RULE, &nothing)[1]);
    // Twice as long is not more than twice as long.
    let half = scene(&[(6_000, 500.0), (3_000, 0.0)]);
    assert_eq!(estimates(&fetching, &half), estimates(&RULE, &half));
    // A threshold below 1 sends nothing to the worker that holds most.
    let eager = with(EstimatedTtftOptions {
        transfer_ms_per_token: LINK,
        kvcache_balancing_threshold: 0.5,
        ..RULE.options
    });
    let alone = scene(&[(6_000, 0.0)]);
    assert_eq!(estimates(&eager, &alone), estimates(&RULE, &alone));
}

#[test]
fn an_objective_nobody_meets_is_named_or_refused() {
    let rows = scene(&[(7_000, 100.0), (0, 0.0)]);
    let meeting = |slo, on_slo| {
        with(EstimatedTtftOptions {
            ttft_slo_ms: Some(slo),
            on_slo,
            ..RULE.options
        })
    };
    for (slo, on_slo, reason, refused) in [
        (100.0, OnSlo::Route, Reason::SloUnattainable, false),
        (100.0, OnSlo::Reject, Reason::SloUnattainable, true),
        (133.0, OnSlo::Reject, Reason::Prefix, false),
    ] {
        let found = rows.pick(&meeting(slo, on_slo), 1);
        let found = (found.row, found.reason, found.refused);
        assert_eq!(found, (0, reason, refused), "{slo}");
    }
}

#[test]
fn who_decodes_too_slowly_is_passed_over_while_another_meets_the_objectives() {
    let rule = with(EstimatedTtftOptions {
        tbt_slo_ms: Some(50.0),
        ..RULE.options
    });
    let mut scene = scene(&[(7_000, 0.0), (0, 0.0)]);
    let report = &mut scene.loads[0].report;
    report.running = Some(30.0).into();
    report.gen_tps = Some(500.0).into();
    assert_eq!(scene.choose(&rule, 1), (1, Reason::Spill), "60 ms a token");
    assert_eq!(scene.choose(&RULE, 1), (0, Reason::Prefix));
    scene.loads[1].report = scene.loads[0].report;
    assert_eq!(scene.choose(&rule, 1), (0, Reason::SloUnattainable));
    scene.loads[0].report.gen_tps = Some(600.0).into();
    assert_eq!(scene.choose(&rule, 1), (0, Reason::Prefix), "50 ms is met");
}

#[test]
fn an_overloaded_winner_is_left_unless_that_breaks_the_objective() {
    let gated = EstimatedTtft {
        gate: Some(GATE),
        ..RULE
    };
    let mut scene = scene(&[(7_000, 0.0), (0, 0.0)]);
    scene.rows[0].inflight = 60;
    assert_eq!(scene.choose(&RULE, 1), (0, Reason::Prefix));
    assert_eq!(scene.choose(&gated, 1), (1, Reason::Spill));
    let bound = EstimatedTtft {
        options: EstimatedTtftOptions {
            ttft_slo_ms: Some(100.0),
            ..RULE.options
        },
        ..gated
    };
    assert_eq!(scene.choose(&bound, 1), (0, Reason::Prefix));
}

#[test]
fn equal_estimates_go_to_the_lower_load_and_are_drawn() {
    let mut idle = scene(&[(0, 0.0); 4]);
    idle.assert_even(&RULE, 0..4);
    idle.rows[2].weight = 2.0;
    assert_eq!(idle.choose(&RULE, 1).0, 2, "twice as fast");
    let busy = Scene::new(&[(0, 2), (0, 1)]);
    assert_eq!(busy.choose(&RULE, 1), (1, Reason::NoKey));
}
