use cachelb_core::ids::Millis;
use cachelb_core::load::BookingId;

use crate::testing::Calls;
use crate::testing::{Scene, row};
use crate::*;

const BOOKING: BookingId = BookingId {
    entry: 0,
    generation: 0,
};
fn rule() -> LengthBucket {
    LengthBucket::new(LengthBucketOptions::default())
}

/// The workers `offers` and a prompt of `tokens` tokens at `ms`.
fn scene(offers: &[u32], tokens: u64, ms: u64) -> Scene {
    let mut scene = Scene::of(offers.iter().map(|&offer| row(offer, 0, 0)).collect());
    scene.blocks = Some(Vec::new());
    scene.prompt_tokens = tokens;
    scene.now = Millis(ms);
    scene
}

/// Offer and reason of the pick, which is not settled.
fn pick(rule: &LengthBucket, scene: &Scene, seed: u64) -> (u32, Reason) {
    let (row, reason) = scene.choose(rule, seed);
    (scene.rows[row].offer, reason)
}

/// Routes one prompt.
fn send(rule: &mut LengthBucket, scene: &Scene) -> (u32, Reason) {
    let choice = scene.pick(rule, 1);
    rule.settle(&scene.view(), choice, BOOKING);
    (scene.rows[choice.row].offer, choice.reason)
}

const ALL: [u32; 4] = [0, 1, 2, 3];

#[test]
fn equal_ranges_divide_l_max_and_the_last_is_open() {
    let cases = [
        (0, 0),
        (1_023, 0),
        (1_024, 1),
        (2_047, 1),
        (3_071, 2),
        (3_072, 3),
        (9_999, 3),
    ];
    for (tokens, worker) in cases {
        let mut settled = rule();
        send(&mut settled, &scene(&ALL, 0, 0));
        for rule in [rule(), settled] {
            let picked = pick(&rule, &scene(&ALL, tokens, 0), 1);
            assert_eq!(picked, (worker, Reason::LengthBucket), "{tokens} tokens");
        }
        let shuffled = pick(&rule(), &scene(&[2, 0, 3, 1], tokens, 0), 1);
        assert_eq!(shuffled.0, worker, "ranges follow registration");
    }
}

#[test]
fn the_range_of_an_unready_worker_is_served_by_its_neighbours() {
    let mut rule = rule();
    send(&mut rule, &scene(&ALL, 0, 0));
    let without = |tokens| scene(&[0, 2, 3], tokens, 0);
    let picks: Vec<u32> = (0..1000)
        .map(|seed| pick(&rule, &without(1_500), seed).0)
        .collect();
    let first = picks.iter().filter(|&&offer| offer == 0).count() as f64;
    assert!(picks.iter().all(|offer| [0, 2].contains(offer)));
    assert!(
        (first - 500.0).abs() < 5.0 * (1000.0_f64 / 4.0).sqrt(),
        "{first}"
    );
    send(&mut rule, &scene(&ALL, 2_100, 0));
    assert_eq!(
        pick(&rule, &without(1_500), 1).0,
        0,
        "the less loaded neighbour"
    );
    assert_eq!(
        pick(&rule, &without(500), 1).0,
        0,
        "others keep their range"
    );
    assert_eq!(pick(&rule, &scene(&[0, 1], 9_000, 0), 1).0, 1);
    assert_eq!(pick(&rule, &scene(&[3], 0, 0), 1).0, 3);
}

#[test]
fn an_unknown_length_goes_to_the_least_loaded() {
    let mut scene = scene(&[0, 1], 0, 0);
    scene.blocks = None;
    scene.rows[0].inflight = 1;
    assert_eq!(pick(&rule(), &scene, 1), (1, Reason::NoKey));
}

#[test]
fn a_window_out_of_balance_by_both_thresholds_goes_to_the_least() {
    let mut rule = rule();
    assert_eq!(send(&mut rule, &scene(&ALL, 8_192, 0)).0, 3);
    assert_eq!(
        send(&mut rule, &scene(&ALL, 4_000, 1)),
        (3, Reason::LengthBucket),
        "8,192 apart is not more"
    );
    let (least, reason) = send(&mut rule, &scene(&ALL, 4_000, 2));
    assert_eq!(reason, Reason::Imbalance);
    assert_ne!(least, 3);
    for worker in (0..3).filter(|&worker| worker != least) {
        let ties = (0..1000).filter(|&seed| pick(&rule, &scene(&ALL, 1, 3), seed).0 == worker);
        let half = ties.count() as f64;
        assert!(
            (half - 500.0).abs() < 5.0 * (1000.0_f64 / 4.0).sqrt(),
            "{half}"
        );
    }
    assert_eq!(
        pick(&rule, &scene(&ALL, 4_000, 5_000), 1).1,
        Reason::LengthBucket,
        "the first prompt has left the window"
    );
    let relative = LengthBucketOptions {
        balance_abs_threshold: 0.0,
        balance_rel_threshold: 2.0,
        ..LengthBucketOptions::default()
    };
    let mut rule = LengthBucket::new(relative);
    assert_eq!(send(&mut rule, &scene(&[0, 1], 1_000, 0)).0, 0);
    assert_eq!(
        send(&mut rule, &scene(&[0, 1], 2_000, 0)),
        (1, Reason::Imbalance)
    );
    assert_eq!(
        pick(&rule, &scene(&[0, 1], 1, 0), 1),
        (0, Reason::LengthBucket),
        "2,000 is not more than twice 1,000"
    );
}

#[test]
fn loads_are_per_weight() {
    let mut rule = rule();
    let mut all = scene(&[0, 1], 10_000, 0);
    all.rows[1].weight = 10.0;
    assert_eq!(send(&mut rule, &all).0, 1);
    assert_eq!(
        pick(&rule, &all, 1),
        (1, Reason::LengthBucket),
        "1,000 per weight"
    );
    assert_eq!(rule.score(&all.view(), 1), Some(1_000.0));
}

#[test]
fn ranges_are_cut_anew_so_that_tokens_are_equal() {
    let mut rule = LengthBucket::new(LengthBucketOptions {
        balance_abs_threshold: 1e9,
        ..LengthBucketOptions::default()
    });
    // 100 prompts of 100 tokens and 10 of 1,000: half of the tokens each.
    for i in 0..110 {
        let tokens = if i % 11 == 10 { 1_000 } else { 100 };
        send(&mut rule, &scene(&[0, 1], tokens, i));
    }
    assert_eq!(
        pick(&rule, &scene(&[0, 1], 1_000, 200), 1).0,
        0,
        "2,048 is the cut"
    );
    send(&mut rule, &scene(&[0, 1], 100, 5_000));
    let at = |rule: &LengthBucket, tokens| pick(rule, &scene(&[0, 1], tokens, 5_001), 1).0;
    assert_eq!((at(&rule, 100), at(&rule, 101)), (0, 1));
    // Other lengths, but within a factor of two of the traffic: the cut stays.
    for i in 0..140 {
        send(&mut rule, &scene(&[0, 1], 75, 6_000 + i));
    }
    send(&mut rule, &scene(&[0, 1], 75, 10_000));
    assert_eq!((at(&rule, 100), at(&rule, 101)), (0, 1));
    for i in 0..60 {
        send(&mut rule, &scene(&[0, 1], 75, 11_500 + i));
    }
    send(&mut rule, &scene(&[0, 1], 75, 15_000));
    assert_eq!((at(&rule, 75), at(&rule, 76)), (0, 1), "half");
}

#[test]
fn heavier_workers_get_more_of_the_tokens() {
    let mut rule = rule();
    let weighted = |tokens, ms| {
        let mut scene = scene(&[0, 1], tokens, ms);
        scene.rows[1].weight = 3.0;
        scene
    };
    for i in 0..100 {
        send(&mut rule, &weighted(1 + i, i));
    }
    send(&mut rule, &weighted(1, 5_000));
    let first = |tokens| pick(&rule, &weighted(tokens, 5_001), 1).0;
    assert_eq!((first(50), first(51)), (0, 1), "1,275 of 5,051 tokens");
}

#[test]
fn too_few_prompts_do_not_cut() {
    let mut rule = rule();
    send(&mut rule, &scene(&ALL, 10, 0));
    send(&mut rule, &scene(&ALL, 10, 5_000));
    assert_eq!(pick(&rule, &scene(&ALL, 1_023, 5_001), 1).0, 0);
}

#[test]
fn workers_that_come_or_go_start_over_with_equal_ranges() {
    let mut rule = rule();
    for i in 0..=50 {
        send(&mut rule, &scene(&[0, 1], 100, i * 100));
    }
    assert_eq!(pick(&rule, &scene(&[0, 1], 101, 5_001), 1).0, 1, "cut");
    assert_eq!(pick(&rule, &scene(&ALL, 1_023, 5_001), 1).0, 0);
    send(&mut rule, &scene(&ALL, 1_024, 5_001));
    rule.forget(0);
    assert!(!format!("{rule:?}").contains("order: 0,"));
    assert_eq!(pick(&rule, &scene(&[1, 2, 3], 1_364, 5_002), 1).0, 1);
    assert_eq!(pick(&rule, &scene(&[1, 2, 3], 1_365, 5_002), 1).0, 2);
}

#[test]
fn equal_prompts_never_stay_on_one_worker() {
    let mut rule = rule();
    let mut used = [0; 4];
    for i in 0..400 {
        used[send(&mut rule, &scene(&ALL, 4_160, i)).0 as usize] += 1;
    }
    assert!(used.iter().all(|n| (95..=105).contains(n)), "{used:?}");
}
