//! The cost against a slow model of it, its properties, and named cases.

use std::collections::{BTreeMap, BTreeSet};

use cachelb_core::ids::{Millis, SequenceHash, WorkerId};
use cachelb_core::load::{Load, LoadBook, Pace, Speed, Work};
use proptest::prelude::*;

use super::*;
use crate::Reason;
use crate::rule::view::PeerCopy;
use crate::testing::{Scene, row};

pub(in crate::rules::adaptive) const OBJECTIVES: [(Objective, f64); 4] = [
    (Objective::Balanced, 0.3),
    (Objective::Ttft, 0.1),
    (Objective::E2e, 1.0),
    (Objective::Median, 0.3),
];
const BALANCED: Adaptive = Adaptive::new(Objective::Balanced);
const E2E: Adaptive = Adaptive::new(Objective::E2e);

// === the model ===

/// One worker in plain numbers.
#[derive(Debug, Clone)]
pub(in crate::rules::adaptive) struct Plain {
    pub uncached: f64,
    /// Tokens that it copies from a peer, and milliseconds.
    pub copied: (f64, f64),
    pub pending_tokens: f64,
    pub pending_pairs: f64,
    pub queued: f64,
    pub running: f64,
    pub kv_blocks: f64,
    /// Prompt blocks of others in flight, each once, and which share of them waits.
    pub prompt_blocks: f64,
    pub waiting_share: f64,
    pub output_blocks: f64,
    /// KV use of a fresh report.
    pub kv_usage: Option<f64>,
    pub kind: u32,
    /// Sums of work squared and of work times milliseconds.
    pub speed: Option<(f64, f64)>,
    /// As `speed`, for output tokens.
    pub decode: Option<(f64, f64)>,
    pub weight: f64,
}

/// Blocks of a worker of which no number is known: as many as others have in the mean.
pub(in crate::rules::adaptive) fn model_usual(fleet: &[Plain]) -> f64 {
    let known = fleet
        .iter()
        .map(|worker| worker.kv_blocks)
        .filter(|&blocks| blocks > 0.0);
    known.clone().sum::<f64>() / f64::max(known.count() as f64, 1.0)
}

/// The memory cost of a request of so many blocks, computed after `wait_ms` and answered within `answer_ms`: a factor
/// of all but its wait, and milliseconds.
pub(in crate::rules::adaptive) fn model_room(
    worker: &Plain,
    (blocks, usual): (f64, f64),
    (wait_ms, answer_ms): (f64, f64),
) -> (f64, f64) {
    let all = if worker.kv_blocks > 0.0 {
        worker.kv_blocks
    } else {
        usual
    };
    if all == 0.0 {
        return (1.0 / (1.0 - 0.5 * worker.kv_usage.unwrap_or(0.0)), 0.0);
    }
    let mut others = [
        worker.prompt_blocks * (1.0 - worker.waiting_share) + worker.output_blocks,
        worker.prompt_blocks + worker.output_blocks,
    ];
    if answer_ms > 0.0 && wait_ms > answer_ms {
        others = others.map(|blocks| blocks / wait_ms * answer_ms);
    }
    let [running, in_flight] = others.map(|others| (others + blocks) / all);
    let mut ms = f64::max(in_flight - 1.0, 0.0) * 10.0 * answer_ms;
    if blocks > all {
        ms += 1e12;
    }
    (1.0 / f64::max(1.0 - 0.5 * running, 0.05), ms)
}

/// The cost on every worker of a request of `prompt` tokens in `blocks` blocks, with `output` tokens to come.
fn model(
    fleet: &[Plain],
    (prompt, blocks, output): (f64, f64, f64),
    per_context: f64,
    (running, followers, yields): (f64, f64, bool),
) -> Vec<f64> {
    let waits = model_waits(fleet, per_context);
    let mean = waits.iter().sum::<f64>() / waits.len() as f64;
    let cost = |(worker, (speed, step)): (&Plain, (f64, f64))| {
        // Every uncached token attends to all before it: in the mean, to those cached and half of the others.
        let compute = |tokens: f64| tokens * (1.0 + per_context * (prompt - tokens / 2.0));
        let waiting = worker.pending_tokens + per_context * worker.pending_pairs / 2.0;
        let followers = match waiting / speed {
            wait if yields && mean > 0.0 => followers * 2.0 * mean / (mean + wait),
            _ => followers,
        };
        let (factor, room) = model_room(
            worker,
            (blocks, model_usual(fleet)),
            (waiting / speed, output * step),
        );
        let total = |(copied, copy_ms): (f64, f64)| {
            let own = compute(worker.uncached - copied);
            // The blocks that the copied tokens evict are copied or computed again.
            let saved_ms = (compute(worker.uncached) - own) / speed;
            let copying = if copied > 0.0 {
                copy_ms + 1.5 * f64::min(copy_ms, saved_ms)
            } else {
                0.0
            };
            let pushed_out = own * 1.5;
            let delayed = own * worker.queued * followers
                + running * own * worker.running
                + running * output * (worker.queued + worker.running);
            let ms = (own + pushed_out + delayed) / speed + running * output * step + copying;
            (waiting / speed + ms * factor + room) / worker.weight
        };
        f64::min(total((0.0, 0.0)), total(worker.copied))
    };
    fleet.iter().zip(model_speeds(fleet)).map(cost).collect()
}

/// Milliseconds that the prefill on each worker waits.
pub(in crate::rules::adaptive) fn model_waits(fleet: &[Plain], per_context: f64) -> Vec<f64> {
    let wait = |(worker, (speed, _)): (&Plain, (f64, f64))| {
        (worker.pending_tokens + per_context * worker.pending_pairs / 2.0) / speed
    };
    fleet.iter().zip(model_speeds(fleet)).map(wait).collect()
}

fn sum(speeds: &[(f64, f64)]) -> (f64, f64) {
    speeds.iter().fold((0.0, 0.0), |(squares, products), one| {
        (squares + one.0, products + one.1)
    })
}

/// Prompt tokens per millisecond and milliseconds per output token, for every worker.
pub(in crate::rules::adaptive) fn model_speeds(fleet: &[Plain]) -> Vec<(f64, f64)> {
    let prefill = model_rates(fleet, |worker| worker.speed, 6.0);
    let decode = model_rates(fleet, |worker| worker.decode, 1.0);
    let both = |at: usize| {
        (
            prefill.as_ref().map_or(10.0, |rates| rates[at]),
            decode.as_ref().map_or(0.0, |rates| 1.0 / rates[at]),
        )
    };
    (0..fleet.len()).map(both).collect()
}

/// Tokens per millisecond of every worker: its own observations, with `times` more of the mean of its kind, which in
/// turn is that of its workers with a fifth of one of the fleet. `None` if no worker has any.
fn model_rates(
    fleet: &[Plain],
    shown: impl Fn(&Plain) -> Option<(f64, f64)>,
    times: f64,
) -> Option<Vec<f64>> {
    let mut kinds: BTreeMap<u32, Vec<(f64, f64)>> = BTreeMap::new();
    for worker in fleet {
        kinds.entry(worker.kind).or_default().extend(shown(worker));
    }
    let all: Vec<(f64, f64)> = fleet.iter().filter_map(&shown).collect();
    if all.is_empty() {
        return None;
    }
    let (squares, products) = sum(&all);
    let of_fleet = squares / products;
    let fleet_mean = products / all.len() as f64;
    let weighted = fleet
        .iter()
        .any(|worker| worker.weight.to_bits() != 1.0_f64.to_bits());
    let rate = |worker: &Plain| {
        let kind = &kinds[&worker.kind];
        if weighted || kind.is_empty() {
            return of_fleet;
        }
        let (squares, products) = sum(kind);
        let of_kind = (squares + 0.2 * of_fleet * fleet_mean) / (products + 0.2 * fleet_mean);
        let kind_mean = products / kind.len() as f64;
        let (own_squares, own_products) = shown(worker).unwrap_or((0.0, 0.0));
        (own_squares + times * of_kind * kind_mean) / (own_products + times * kind_mean)
    };
    Some(fleet.iter().map(rate).collect())
}

/// A pace whose tokens take that many times as long per token of context, about; at most a thousandth.
fn pace(per_context: f64) -> Pace {
    let (mut book, worker) = (
        LoadBook::<()>::default(),
        WorkerId {
            slot: 0,
            generation: 0,
        },
    );
    book.add_worker(worker);
    for i in 0..260_u64 {
        let tokens = if i % 13 == 0 { 6_000 } else { 500 };
        let work = Work {
            prompt_tokens: tokens,
            prefill_tokens: tokens,
            estimate_ms: 0.0,
            block_size: 16,
        };
        let took = tokens as f64 * (1.0 + per_context * tokens as f64 / 2.0);
        let id = book.book(worker, work, Millis(0)).unwrap();
        #[expect(clippy::cast_sign_loss, reason = "it is not below 0")]
        book.first_token(id, Millis(took as u64));
        book.close(id);
    }
    book.pace
}

/// A fleet as the rule and as the model have it.
#[derive(Debug, Clone)]
pub(in crate::rules::adaptive) struct Case {
    pub scene: Scene,
    pub plain: Vec<Plain>,
}

impl Case {
    fn model(&self, objective: Objective, running: f64) -> Vec<f64> {
        let prompt = self.scene.prompt_tokens as f64;
        let blocks = match &self.scene.blocks {
            Some(blocks) => blocks.len() as f64,
            None => prompt / 16.0,
        };
        let per_context = self.scene.pace.per_context();
        // So many before any request has ended.
        let output = self.scene.expected_output_tokens.unwrap_or(256) as f64;
        let followers = if self.scene.is_child { 3.0 } else { 1.0 };
        let weights = (running, followers, objective == Objective::Median);
        model(&self.plain, (prompt, blocks, output), per_context, weights)
    }
}

fn scores(rule: &Adaptive, scene: &Scene) -> Vec<f64> {
    let scores = rule.scores(&scene.view());
    scores
        .into_iter()
        .map(|score| score.get().unwrap())
        .collect()
}

pub(in crate::rules::adaptive) fn close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * one.abs().max(other.abs())
}

/// The share of memory, and the sum of all terms.
fn put_together(terms: &[(&'static str, f64)]) -> (f64, f64) {
    let names = terms.iter().map(|(name, _)| *name);
    let names: Vec<&str> = names.filter(|name| *name != "copy_ms").collect();
    let expected = [
        "waiting_ms",
        "own_ms",
        "cache_ms",
        "queued_ms",
        "running_ms",
        "decoding_ms",
        "memory_ms",
    ];
    assert_eq!(names, expected);
    let memory = terms.last().unwrap().1;
    (memory, terms.iter().map(|(_, ms)| ms).sum())
}

/// A speed of `rate` tokens per millisecond, seen on so many of them.
pub(in crate::rules::adaptive) fn speed(rate: f64, tokens: f64) -> Speed {
    Speed {
        squares: tokens * tokens,
        products: tokens * tokens / rate,
    }
}

/// One worker: its own values, in order of the columns.
fn worker() -> impl Strategy<Value = (Candidate, Load, Plain)> {
    let queue = (0_u64..200_000, 0_u64..1 << 34, (0_u32..200, 0_u32..20));
    let cache = (
        prop_oneof![Just(0_u32), 1_u32..50_000],
        (0_u64..60_000, 0_u64..20_000, (0_u64..60_000, 0_u64..60_000)),
        prop::option::of((0.0_f64..=1.0, any::<bool>())),
    );
    let pace = || prop::option::of((0.1_f64..100.0, 1.0_f64..1e6));
    (0.0_f64..=1.0, queue, cache, 0_u32..12, (pace(), pace())).prop_map(
        |(cached, (tokens, pairs, (running, queued)), (kv_blocks, blocks, report), kind, paces)| {
            let mut load = Load::VACANT;
            load.pending = queued;
            let (prompts, outputs, (waits, runs)) = blocks;
            let waits = if queued > 0 { waits } else { 0 };
            (load.pending_pairs, load.active_blocks, load.output_blocks) =
                (pairs, prompts, outputs);
            (load.prompt_blocks, load.decode_blocks) = (waits, runs + outputs);
            if let Some((share, fresh)) = report {
                load.report.kv_usage = Some(share).into();
                load.report.at = Millis(if fresh { 8_000 } else { 7_999 });
            }
            let (prefill, decode) = paces;
            if let Some((rate, tokens)) = prefill {
                load.speed = speed(rate, tokens);
            }
            if let Some((rate, tokens)) = decode {
                load.decode = speed(rate / 100.0, tokens);
            }
            let row = Candidate {
                matched_tokens: cached,
                pending_prefill_tokens: tokens,
                kv_blocks,
                kind,
                ..row(0, 0, running + queued)
            };
            let plain = Plain {
                uncached: 0.0,
                copied: (0.0, 0.0),
                pending_tokens: tokens as f64,
                pending_pairs: pairs as f64,
                queued: f64::from(queued),
                running: f64::from(running),
                kv_blocks: f64::from(kv_blocks),
                prompt_blocks: prompts as f64,
                waiting_share: if queued > 0 {
                    1.0 - runs as f64 / ((waits + runs) as f64).max(1.0)
                } else {
                    0.0
                },
                output_blocks: outputs as f64,
                kv_usage: report.and_then(|(share, fresh)| fresh.then_some(share)),
                kind,
                speed: prefill.map(|_| (load.speed.squares, load.speed.products)),
                decode: decode.map(|_| (load.decode.squares, load.decode.products)),
                weight: 1.0,
            };
            (row, load, plain)
        },
    )
}

pub(in crate::rules::adaptive) fn case() -> impl Strategy<Value = Case> {
    (
        prop::collection::vec(worker(), 1..8),
        (1_u64..200_000, any::<bool>()),
        prop_oneof![Just(0.0), Just(1e-4), Just(1.0)],
        prop_oneof![
            3 => Just(None),
            1 => prop::collection::vec(prop_oneof![Just(1.0), 0.1_f64..10.0], 8).prop_map(Some),
        ],
    )
        .prop_map(|(workers, (prompt, in_blocks), per_context, weights)| {
            let mut scene = Scene::new(&vec![(0, 0); workers.len()]);
            let mut plain = Vec::new();
            for (at, (row, load, mut own)) in workers.into_iter().enumerate() {
                let matched = (row.matched_tokens * (prompt - 1) as f64).floor();
                own.uncached = prompt as f64 - matched;
                own.weight = weights.as_ref().map_or(1.0, |weights| weights[at]);
                scene.rows[at] = Candidate {
                    order: at as u64,
                    offer: at as u32,
                    slot: at as u32,
                    matched_tokens: matched,
                    weight: own.weight,
                    ..row
                };
                scene.loads[at] = load;
                scene.loads[at].weight = own.weight;
                plain.push(own);
            }
            scene.prompt_tokens = prompt;
            scene.pace = pace(per_context);
            scene.now = Millis(10_000);
            scene.is_child = prompt % 2 == 0;
            scene.expected_output_tokens = in_blocks.then_some(prompt % 700);
            scene.blocks = in_blocks.then(|| (0..prompt / 16).map(SequenceHash).collect());
            Case { scene, plain }
        })
}

proptest! {
    #[test]
    fn costs_are_those_of_the_model(
        mut case in case(),
        copies in prop::option::of(prop::collection::vec((0.0_f64..=1.0, 0.0_f64..5_000.0), 8)),
    ) {
        for (plain, (share, ms)) in case.plain.iter_mut().zip(copies.into_iter().flatten()) {
            plain.copied = ((share * (plain.uncached - 1.0)).floor(), ms);
            #[expect(clippy::cast_sign_loss, reason = "a token is left")]
            let tokens = plain.copied.0 as u64;
            case.scene.copies.push(PeerCopy { tokens, ms });
        }
        let kinds: BTreeSet<u32> = case.plain.iter().map(|plain| plain.kind).collect();
        prop_assume!(kinds.len() <= 8);
        for (objective, running) in OBJECTIVES {
            let rule = Adaptive::new(objective);
            let (got, expected) = (scores(&rule, &case.scene), case.model(objective, running));
            for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
                prop_assert!(close(*got, *expected), "{at}: {got} and {expected} of {case:?}");
                let one = rule.score(&case.scene.view(), at).unwrap();
                prop_assert_eq!(one.to_bits(), got.to_bits());
                let (memory, sum) = put_together(&rule.terms(&case.scene.view())[at]);
                prop_assert!(memory >= 0.0 && close(sum, *got), "{sum} is not {got}");
            }
            let picked = case.scene.choose(&rule, 1).0;
            let least = expected.iter().copied().fold(f64::INFINITY, f64::min);
            prop_assert!(close(expected[picked], least), "picked {picked} of {expected:?}");
        }
    }
}

// === speeds ===

#[test]
fn more_kinds_than_are_told_apart_count_as_one() {
    let kinds = 12_u32;
    let fleet = |from: u32| {
        let mut scene = Scene::new(&vec![(0, 0); kinds as usize]).blocks(Some(100));
        for at in 0..kinds {
            let kind = (at + from) % kinds;
            scene.rows[at as usize].kind = kind;
            // The first seven are slow, all others fast.
            let rate = if at < 7 { 5.0 } else { 50.0 };
            scene.loads[at as usize].speed = speed(rate, 10_000.0);
        }
        scene
    };
    for from in 0..kinds {
        let costs = scores(&BALANCED, &fleet(from));
        assert!(costs.iter().all(|cost| cost.is_finite() && *cost > 0.0));
        let slowest = costs[7..].iter().copied().fold(0.0, f64::max);
        for cost in &costs[..7] {
            assert!(*cost > 5.0 * slowest, "{costs:?}");
        }
        for pair in costs[7..].windows(2) {
            assert!(close(pair[0], pair[1]), "{costs:?}");
        }
    }
}

// === the pick ===

#[test]
fn with_nothing_known_the_least_work_ahead_is_picked() {
    let mut scene = Scene::new(&[(90, 0), (0, 0), (50, 2)]).blocks(Some(100));
    scene.rows[0].pending_prefill_tokens = 3_700;
    scene.rows[2].pending_prefill_tokens = 300;
    assert_eq!(scene.choose(&BALANCED, 1), (2, Reason::Prefix));
    scene.rows[2].inflight = 8;
    assert_eq!(scene.choose(&BALANCED, 1), (1, Reason::Spill));
    scene.rows[0].pending_prefill_tokens = 3_200;
    assert_eq!(scene.choose(&BALANCED, 1), (0, Reason::Prefix));
}

#[test]
fn the_smallest_weights_leave_costs_finite() {
    let mut scene = Scene::new(&[(0, 3), (0, 1)]);
    for row in &mut scene.rows {
        row.weight = 5e-324;
    }
    let costs = scores(&BALANCED, &scene);
    assert!(costs.iter().all(|cost| cost.is_finite()), "{costs:?}");
}

#[test]
fn of_equal_ones_that_with_fewer_requests_is_picked() {
    let mut scene = Scene::new(&[(0, 1), (0, 0)]);
    scene.prompt_tokens = 2;
    scene.rows[1].pending_prefill_tokens = 258;
    let costs = scores(&E2E, &scene);
    assert_eq!(costs[0].to_bits(), costs[1].to_bits());
    for seed in 0..50 {
        assert_eq!(scene.choose(&E2E, seed).0, 1);
    }
}

#[test]
fn of_equal_ones_that_was_longest_without_a_new_prompt_is_picked() {
    let mut scene = Scene::new(&[(0, 0); 4]).blocks(Some(10));
    for (row, pick) in scene.rows.iter_mut().zip([4, 2, 3, 5]) {
        row.last_cold_pick = pick;
    }
    for seed in 0..50 {
        assert_eq!(scene.choose(&BALANCED, seed), (1, Reason::Cold));
    }
    assert!(scene.pick(&BALANCED, 1).cold);
    scene.rows[3].last_cold_pick = 0;
    assert_eq!(scene.choose(&BALANCED, 1).0, 3, "never is longest");
}

#[test]
fn an_idle_fleet_is_drawn_from_evenly() {
    for scene in [
        Scene::new(&[(0, 0); 4]),
        Scene::new(&[(0, 0); 4]).blocks(Some(10)),
        Scene::new(&[(7, 3); 4]).blocks(Some(10)),
    ] {
        scene.assert_even(&BALANCED, 0..4);
    }
}

#[test]
fn a_request_without_a_prompt_goes_by_requests_and_what_waits() {
    let mut scene = Scene::new(&[(0, 3), (0, 2), (0, 9)]);
    assert_eq!(scene.choose(&BALANCED, 1), (1, Reason::NoKey));
    scene.rows[1].pending_prefill_tokens = 500;
    assert_eq!(scene.choose(&BALANCED, 1).0, 0);
}

#[test]
fn of_equal_workers_the_home_is_picked() {
    let mut scene = Scene::new(&[(0, 1), (0, 1), (0, 1)]).blocks(Some(10));
    scene.home = Some(scene.rows[1].order);
    let picked: BTreeSet<usize> = (0..50)
        .map(|seed| scene.choose(&BALANCED, seed).0)
        .collect();
    assert_eq!(picked, BTreeSet::from([1]));
    // It is no more than that.
    scene.rows[1].pending_prefill_tokens = 1;
    assert_ne!(scene.choose(&BALANCED, 1).0, 1);
}

// === bounds ===

#[test]
fn costs_of_the_largest_numbers_are_finite() {
    const MOST: u64 = 1 << 40;
    let mut scene = Scene::new(&[(0, u32::MAX), (0, 0)]);
    scene.pace = pace(1.0);
    assert!(close(scene.pace.per_context(), 0.001));
    scene.prompt_tokens = MOST;
    scene.now = Millis(u64::MAX);
    scene.rows[0].pending_prefill_tokens = MOST;
    scene.rows[0].kv_blocks = 1;
    scene.loads[0].pending_pairs = u64::MAX;
    scene.loads[0].active_blocks = MOST;
    scene.loads[0].output_blocks = MOST;
    for load in &mut scene.loads {
        load.speed = speed(1e-3, 1e12);
    }
    for (objective, _) in OBJECTIVES {
        let costs = scores(&Adaptive::new(objective), &scene);
        assert!(
            costs.iter().all(|cost| cost.is_finite() && *cost > 0.0),
            "{costs:?}"
        );
        assert_eq!(scene.choose(&Adaptive::new(objective), 1).0, 1);
    }
    // A prompt that is cached whole, by credits beyond its last token.
    scene.rows[1].matched_tokens = MOST as f64 + 16.0;
    let least = scores(&BALANCED, &scene)[1];
    assert!(least.is_finite() && least > 0.0, "{least}");
}

#[test]
fn a_worker_without_columns_counts_as_idle() {
    let mut scene = Scene::new(&[(0, 0), (0, 0)]).blocks(Some(10));
    scene.rows[1].slot = Candidate::NO_SLOT;
    scene.rows[0].pending_prefill_tokens = 1;
    assert_eq!(scene.choose(&BALANCED, 1).0, 1);
    assert!(scores(&BALANCED, &scene)[1].is_finite());
}
