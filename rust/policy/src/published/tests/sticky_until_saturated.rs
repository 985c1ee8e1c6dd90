//! Affinity until saturation: the workers that take part, and when it ends.

use super::*;
use crate::testing::{GATE, Scene};

fn with(options: StickyUntilSaturatedOptions) -> StickyUntilSaturated {
    StickyUntilSaturated {
        options,
        gate: None,
    }
}

fn rule() -> StickyUntilSaturated {
    with(StickyUntilSaturatedOptions::default())
}

/// Rows of (hundredths of the prompt held, prompt tokens waiting).
fn scene(rows: &[(u32, u64)]) -> Scene {
    let overlaps: Vec<(u32, u32)> = rows.iter().map(|&(held, _)| (held, 0)).collect();
    let mut scene = Scene::new(&overlaps).blocks(Some(100));
    for (row, &(_, waiting)) in scene.rows.iter_mut().zip(rows) {
        row.pending_prefill_tokens = waiting;
    }
    scene
}

#[test]
fn holders_are_kept_until_they_are_the_penalty_behind() {
    let never = with(StickyUntilSaturatedOptions {
        max_ttft_penalty_ms: 0.0,
        ..StickyUntilSaturatedOptions::default()
    });
    let exactly = 15_928 * 18;
    let (sticky, broken) = (Reason::Sticky, Reason::StickyBroken);
    let (many, more) = (300_000, 900_000);
    let cases: [(&[(u32, u64)], _); 7] = [
        (&[(100, 100_000), (90, 20_000), (10, 0)], (1, sticky)),
        (&[(100, many), (90, many), (10, 0)], (2, broken)),
        (&[(79, 5_000), (10, 0)], (1, Reason::Cold)),
        (&[(80, 5_000), (10, 0)], (0, sticky)),
        (&[(100, exactly), (0, 0)], (0, sticky)),
        (&[(100, exactly + 1), (0, 0)], (1, broken)),
        (&[(100, more), (90, many)], (1, sticky)),
    ];
    for (rows, expected) in cases {
        assert_eq!(scene(rows).choose(&rule(), 1), expected, "{rows:?}");
    }
    let kept = scene(&[(100, 10_000_000), (0, 0)]).choose(&never, 1);
    assert_eq!(kept, (0, sticky));
}

#[test]
fn many_tokens_make_a_holder_of_a_small_share() {
    let rows = scene(&[(50, 900), (0, 0)]);
    assert_eq!(rows.choose(&rule(), 1), (1, Reason::Cold));
    let by_tokens = with(StickyUntilSaturatedOptions {
        min_matched_tokens: Some(800),
        ..StickyUntilSaturatedOptions::default()
    });
    assert_eq!(rows.choose(&by_tokens, 1), (0, Reason::Sticky));
}

#[test]
fn a_threshold_of_zero_turns_the_filter_off() {
    let off = with(StickyUntilSaturatedOptions {
        affinity_threshold: Threshold::new(0.0),
        ..StickyUntilSaturatedOptions::default()
    });
    let rows = scene(&[(100, 10), (0, 0)]);
    assert_eq!(rows.choose(&off, 1), (1, Reason::Cold));
}

#[test]
fn exploration_lets_everybody_take_part_now_and_then() {
    let curious = with(StickyUntilSaturatedOptions {
        exploration_probability: 0.25,
        ..StickyUntilSaturatedOptions::default()
    });
    let rows = scene(&[(100, 10), (0, 0)]);
    let explored = rows.share(&curious, 1);
    assert!((0.2..=0.3).contains(&explored), "{explored}");
    let mut picks = (0..100).map(|seed| rows.choose(&curious, seed));
    let explored = picks.find(|pick| pick.0 == 1);
    assert_eq!(explored, Some((1, Reason::Explore)));
}

#[test]
fn a_workers_own_speed_replaces_the_assumed_one() {
    let observing = with(StickyUntilSaturatedOptions {
        peak_prefill_throughput: Peak::Observed,
        ..StickyUntilSaturatedOptions::default()
    });
    let mut rows = scene(&[(100, 30_000), (0, 0)]);
    assert_eq!(rows.choose(&observing, 1).1, Reason::Sticky);
    rows.loads[0].observed_prefill_tps = Some(1_000.0).into();
    assert_eq!(rows.choose(&observing, 1), (1, Reason::StickyBroken));
    assert_eq!(rows.choose(&rule(), 1).1, Reason::Sticky);
}

#[test]
fn with_the_gate_an_overloaded_holder_is_left_too() {
    let gated = StickyUntilSaturated {
        gate: Some(GATE),
        ..rule()
    };
    let mut rows = scene(&[(100, 0), (0, 0)]);
    rows.rows[0].inflight = 50;
    assert_eq!(rows.choose(&rule(), 1), (0, Reason::Sticky));
    assert_eq!(rows.choose(&gated, 1), (1, Reason::StickyBroken));
}
