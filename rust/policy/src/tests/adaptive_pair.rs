//! Pairs against a slow model that weighs every worker with every other, and named cases.

use proptest::prelude::*;

use super::super::tests::{
    Case, OBJECTIVES, Plain, case, close, model_room, model_speeds, model_usual, model_waits, speed,
};
use super::*;
use crate::rule::pair::Handover;
use crate::testing::Scene;
use crate::{Objective, Reason, Rng, Rule};

/// The view of some rows of a scene.
fn half<'a>(scene: &'a Scene, rows: &'a [Candidate]) -> View<'a> {
    View {
        rows,
        best_overlap: rows.iter().map(|row| row.overlap).max().unwrap_or(0),
        ..scene.view()
    }
}

/// The rows of a scene that `wanted` selects.
fn rows(scene: &Scene, wanted: impl Fn(usize) -> bool) -> Vec<Candidate> {
    let all = scene.rows.iter().enumerate();
    let some = all.filter(|(at, _)| wanted(*at));
    some.map(|(_, row)| *row).collect()
}

// === the model ===

/// The roles of a worker, and its inputs for pairs.
#[derive(Debug, Clone, Copy)]
struct Part {
    prefills: bool,
    decodes: bool,
    apart: u32,
    prefiller: Prefiller,
}

fn part() -> impl Strategy<Value = Part> {
    let prefiller = prop_oneof![
        3 => Just(Prefiller::Any),
        1 => Just(Prefiller::Itself),
        1 => Just(Prefiller::Another),
    ];
    let role = prop_oneof![Just((true, false)), Just((false, true)), Just((true, true))];
    (role, 0_u32..25, prefiller).prop_map(|((prefills, decodes), apart, prefiller)| Part {
        prefills,
        decodes,
        apart,
        prefiller,
    })
}

/// The request, and the terms of all workers.
#[derive(Debug, Clone, Copy)]
struct Terms {
    prompt: f64,
    /// Blocks of the prompt, and of a worker whose number is not known.
    blocks: (f64, f64),
    output: f64,
    per_context: f64,
    weight: f64,
    followers: f64,
    /// 0 if delays count alike.
    mean_wait: f64,
    handover: Handover,
}

/// Milliseconds of the whole, of the prompt alone, and of the answer alone with its handover.
fn model(terms: Terms, worker: &Plain, part: Part, (speed, step): (f64, f64)) -> [f64; 3] {
    let cached = terms.prompt - worker.uncached;
    let own = worker.uncached * (1.0 + terms.per_context * (cached + worker.uncached / 2.0));
    let waiting = worker.pending_tokens + terms.per_context * worker.pending_pairs / 2.0;
    let elsewhere = f64::min(f64::from(part.apart), worker.queued);
    let behind = worker.queued - elsewhere;
    let beside = worker.running + elsewhere;
    let all = worker.running + worker.queued;
    let delay = f64::max(own - 128.0, 0.0) * terms.weight * beside;
    let share = match terms.mean_wait {
        mean if mean > 0.0 => 2.0 * mean / (mean + waiting / speed),
        _ => 1.0,
    };
    let prompt = own * 2.5 + own * behind * terms.followers * share + delay;
    let context = (worker.prompt_blocks + worker.output_blocks) * 16.0 + terms.prompt * all;
    let answer = terms.weight * terms.output * (all + context / 1_000.0 + step * speed);
    let times = (waiting / speed, terms.output * step);
    let (factor, room) = model_room(worker, terms.blocks, times);
    let ms =
        |waiting: f64, work: f64| (waiting / speed + work * factor / speed + room) / worker.weight;
    let handover = terms.handover.ms + terms.handover.ms_per_token * worker.uncached;
    [
        ms(waiting, prompt + answer),
        ms(waiting, prompt),
        ms(0.0, answer) + handover,
    ]
}

/// The least cost of a request with every worker that decodes, and whether by itself: `None` if it may not.
fn cheapest(costs: &[[f64; 3]], parts: &[Part]) -> Vec<Option<(f64, bool)>> {
    let workers = 0..parts.len();
    let nobody = !parts.iter().any(|part| part.prefills);
    let cost = |decode: usize| {
        let others = workers
            .clone()
            .filter(|&p| p != decode && parts[p].prefills);
        let pairs = others.map(|p| costs[p][1] + costs[decode][2]);
        let pair = pairs.reduce(f64::min).map(|ms| (ms, false));
        let itself = Some((costs[decode][0], true));
        match parts[decode].prefiller {
            Prefiller::Itself => itself,
            _ if nobody => None,
            Prefiller::Another => pair.or(itself),
            Prefiller::Any => pair.filter(|pair| pair.0 < costs[decode][0]).or(itself),
        }
    };
    let decoding = workers.clone().filter(|&at| parts[at].decodes);
    decoding.map(cost).collect()
}

fn pair_case() -> impl Strategy<Value = (Case, Vec<Part>, Handover)> {
    let handover = (0.0_f64..100.0, 0.0_f64..0.1);
    let handover = handover.prop_map(|(ms, ms_per_token)| Handover { ms, ms_per_token });
    (case(), prop::collection::vec(part(), 8), handover).prop_map(|(mut case, mut parts, way)| {
        parts.truncate(case.plain.len());
        case.scene.apart = parts.iter().map(|part| part.apart).collect();
        (case, parts, way)
    })
}

proptest! {
    #[test]
    fn pairs_are_those_of_the_model((case, parts, handover) in pair_case()) {
        let Case { scene, plain } = &case;
        for (objective, weight) in OBJECTIVES {
            let prefill = rows(scene, |at| parts[at].prefills);
            let decode = rows(scene, |at| parts[at].decodes);
            prop_assume!(!decode.is_empty());
            // A worker of both roles counts in either.
            let seen = prefill.iter().chain(&decode).map(|row| row.offer as usize);
            let seen: Vec<usize> = seen.collect();
            let fleet: Vec<Plain> = seen.iter().map(|&at| plain[at].clone()).collect();
            let kinds: std::collections::BTreeSet<u32> = fleet.iter().map(|one| one.kind).collect();
            prop_assume!(kinds.len() <= 8);
            let speeds = model_speeds(&fleet);
            let usual = model_usual(&fleet[prefill.len()..]);
            let mut waits = model_waits(&fleet, scene.pace.per_context());
            if objective != Objective::Median {
                waits.fill(0.0);
            }
            let terms = Terms {
                prompt: scene.prompt_tokens as f64,
                blocks: match &scene.blocks {
                    Some(blocks) => (blocks.len() as f64, usual),
                    None => (scene.prompt_tokens as f64 / 16.0, usual),
                },
                output: scene.expected_output_tokens.unwrap_or(256) as f64,
                per_context: scene.pace.per_context(),
                weight,
                followers: if scene.is_child { 3.0 } else { 1.0 },
                mean_wait: waits.iter().sum::<f64>() / waits.len() as f64,
                handover,
            };
            let cost = |at: usize| {
                let found = seen.iter().position(|&seen| seen == at).unwrap();
                model(terms, &plain[at], parts[at], speeds[found])
            };
            let costs: Vec<[f64; 3]> = (0..parts.len()).map(cost).collect();
            let expected = cheapest(&costs, &parts);
            let pairing = Pairing {
                prefill: half(scene, &prefill),
                decode: half(scene, &decode),
                prefiller: &|row: &Candidate| parts[row.offer as usize].prefiller,
                handover,
            };
            let found = Adaptive::new(objective).choose_pair(&pairing, &mut Rng::new(1));
            let least = expected.iter().flatten().map(|cost| cost.0).reduce(f64::min);
            prop_assert_eq!(found.is_some(), least.is_some());
            let Some(found) = found else { continue };
            for (row, score) in prefill.iter().zip(&found.prefill_scores) {
                prop_assert!(close(score.get().unwrap(), costs[row.offer as usize][1]));
            }
            for (score, expected) in found.decode_scores.iter().zip(&expected) {
                prop_assert_eq!(score.get().is_some(), expected.is_some());
                if let Some((score, expected)) = score.get().zip(*expected) {
                    prop_assert!(close(score, expected.0), "{score} is not {expected:?}");
                }
            }
            let picked = expected[found.decode.row].unwrap();
            prop_assert!(close(picked.0, least.unwrap()));
            let at = decode[found.decode.row].offer as usize;
            let ms = match found.prefill {
                None => costs[at][0],
                Some(choice) => {
                    let other = prefill[choice.row].offer as usize;
                    prop_assert!(other != at);
                    costs[other][1] + costs[at][2]
                }
            };
            prop_assert!(close(ms, picked.0), "{ms} was not the {} it was picked for", picked.0);
        }
    }
}

// === named cases ===

/// Two workers that prefill and two that decode, all idle, of 10 tokens per millisecond; a prompt of 1,600 tokens.
fn fleet(overlaps: [u32; 4]) -> Scene {
    let mut scene = Scene::new(&overlaps.map(|overlap| (overlap, 0))).blocks(Some(100));
    scene.apart = vec![0; 4];
    for load in &mut scene.loads {
        load.speed = speed(10.0, 10_000.0);
    }
    scene
}

fn pick(scene: &Scene) -> PairChoice {
    let (prefill, decode) = (rows(scene, |at| at < 2), rows(scene, |at| at >= 2));
    let pairing = Pairing {
        prefill: half(scene, &prefill),
        decode: half(scene, &decode),
        prefiller: &|_| Prefiller::Any,
        handover: Handover::DEFAULT,
    };
    Adaptive::default()
        .choose_pair(&pairing, &mut Rng::new(1))
        .unwrap()
}

#[test]
fn an_idle_decode_worker_does_it_all_and_one_that_generates_for_many_does_not() {
    let mut scene = fleet([0; 4]);
    assert_eq!(pick(&scene).prefill, None);
    // 1,472 of 1,600 tokens that each delay one in three by more than the handover's 28 ms.
    scene.rows[2].inflight = 3;
    scene.rows[3].inflight = 3;
    assert!(pick(&scene).prefill.is_some());
}

#[test]
fn reasons_tell_what_each_half_holds() {
    let mut scene = fleet([0, 60, 0, 0]);
    for row in &mut scene.rows[2..] {
        row.inflight = 8;
    }
    let found = pick(&scene);
    assert_eq!(found.prefill.unwrap().reason, Reason::Prefix);
    assert_eq!(found.decode.reason, Reason::Cold);
}
