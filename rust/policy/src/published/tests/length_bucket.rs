use cachelb_core::ids::Millis;

use crate::testing::{Calls, Scene, booking, row};
use crate::*;

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
    rule.settle(&scene.view(), choice, booking(0));
    (scene.rows[choice.row].offer, choice.reason)
}

const ALL: [u32; 4] = [0, 1, 2, 3];

#[test]
fn equal_ranges_divide_l_max_and_the_last_is_open() {
    let mut unknown = scene(&[0, 1], 0, 0);
    unknown.blocks = None;
    unknown.rows[0].inflight = 1;
    assert_eq!(pick(&rule(), &unknown, 1), (1, Reason::NoKey));
    let lengths = [0, 1_023, 1_024, 2_047, 3_071, 3_072, 9_999];
    for (tokens, worker) in lengths.into_iter().zip([0, 0, 1, 1, 2, 3, 3]) {
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
    // Workers 0 and 2.
    without(1_500).assert_even(&rule, 0..2);
    send(&mut rule, &scene(&ALL, 2_100, 0));
    // The less loaded neighbour; others keep their range.
    assert_eq!(pick(&rule, &without(1_500), 1).0, 0);
    assert_eq!(pick(&rule, &without(500), 1).0, 0);
    assert_eq!(pick(&rule, &scene(&[0, 1], 9_000, 0), 1).0, 1);
    assert_eq!(pick(&rule, &scene(&[3], 0, 0), 1).0, 3);
}

#[test]
fn a_window_out_of_balance_by_both_thresholds_goes_to_the_least() {
    let mut rule = rule();
    assert_eq!(send(&mut rule, &scene(&ALL, 8_192, 0)).0, 3);
    // 8,192 apart is not more.
    let third = send(&mut rule, &scene(&ALL, 4_000, 1));
    assert_eq!(third, (3, Reason::LengthBucket));
    let (least, reason) = send(&mut rule, &scene(&ALL, 4_000, 2));
    assert_eq!(reason, Reason::Imbalance);
    assert_ne!(least, 3);
    for worker in (0..3).filter(|&worker| worker != least) {
        let half = scene(&ALL, 1, 3).share(&rule, worker as usize);
        assert!((0.45..=0.55).contains(&half), "{half}");
    }
    // The first prompt has left the window.
    let (_, reason) = pick(&rule, &scene(&ALL, 4_000, 5_000), 1);
    assert_eq!(reason, Reason::LengthBucket);
    let relative = LengthBucketOptions {
        balance_abs_threshold: 0.0,
        balance_rel_threshold: 2.0,
        ..LengthBucketOptions::default()
    };
    let mut rule = LengthBucket::new(relative);
    assert_eq!(send(&mut rule, &scene(&[0, 1], 1_000, 0)).0, 0);
    let second = send(&mut rule, &scene(&[0, 1], 2_000, 0));
    assert_eq!(second, (1, Reason::Imbalance));
    // 2,000 is not more than twice 1,000.
    let third = pick(&rule, &scene(&[0, 1], 1, 0), 1);
    assert_eq!(third, (0, Reason::LengthBucket));
}

#[test]
fn loads_are_per_weight() {
    let mut rule = rule();
    let mut all = scene(&[0, 1], 10_000, 0);
    all.rows[1].weight = 10.0;
    assert_eq!(send(&mut rule, &all).0, 1);
    assert_eq!(pick(&rule, &all, 1), (1, Reason::LengthBucket));
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
    let at = |rule: &LengthBucket, tokens| pick(rule, &scene(&[0, 1], tokens, 200), 1).0;
    assert_eq!(at(&rule, 1_000), 0, "2,048 is the cut");
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
