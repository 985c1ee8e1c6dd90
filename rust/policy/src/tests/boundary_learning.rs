//! Routes at the ends of messages: how they are learned, found and left.

use cachelb_core::ids::{Millis, SequenceHash};

use super::super::{
    BoundaryLearning, BoundaryLearningOptions, Choice, Claim, Ended, Reason, Rng, Rule, Teaches,
};
use crate::testing::Scene;
use crate::testing::{Calls, booking};

fn learner(options: BoundaryLearningOptions) -> BoundaryLearning {
    BoundaryLearning::new(options, 1.0, 1337)
}

/// Hashes of a prompt: of its first blocks those of `from`, then its own.
fn path(shared: u64, from: u64, own: u64, total: u64) -> Vec<SequenceHash> {
    let block = |at: u64| {
        let name = if at < shared { from } else { own };
        SequenceHash((name << 32 | (at + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    };
    (0..total).map(block).collect()
}

fn scene(loads: &[u32], blocks: Vec<SequenceHash>, boundaries: &[u32]) -> Scene {
    let pairs: Vec<(u32, u32)> = loads.iter().map(|&load| (0, load)).collect();
    let mut scene = Scene::new(&pairs);
    scene.prompt_tokens = blocks.len() as u64 * 16;
    scene.blocks = Some(blocks);
    scene.boundaries = boundaries.to_vec();
    scene
}

/// Serves the scene's request on row `row`.
fn serve(rule: &mut BoundaryLearning, scene: &Scene, row: usize) {
    rule.settle(&scene.view(), Choice::warm(row, Reason::Hash), booking(0));
    rule.ended(booking(0), Ended::Served);
    rule.validate().unwrap();
}

/// Another router saw the worker of row `order` serve the prefix of `depth` blocks that ends with `hash`.
fn hear(rule: &mut BoundaryLearning, hash: SequenceHash, depth: u32, order: u64, now: Millis) {
    let claim = Claim {
        order,
        age_ms: 0,
        key: rule.key(hash),
        depth,
    };
    assert!(rule.receive_route(claim, now).is_some());
    rule.validate().unwrap();
}

fn pick(rule: &BoundaryLearning, scene: &Scene) -> (usize, Reason) {
    scene.choose(rule, 1)
}

#[test]
fn boundaries_before_the_least_length_are_left_out() {
    let mut rule = learner(BoundaryLearningOptions {
        min_prefix_boundary_tokens: 64,
        ..BoundaryLearningOptions::default()
    });
    let asked = scene(&[0; 2], path(0, 0, 1, 9), &[1, 3, 4, 9]);
    serve(&mut rule, &asked, 0);
    let nine = scene(&[0; 2], path(0, 0, 1, 9), &[]);
    assert_eq!(rule.depths(&nine.view()), [4, 9]);
}

#[test]
fn a_holder_beyond_the_bound_is_left_for_the_least_loaded_worker() {
    let asked = |loads: &[u32]| scene(loads, path(0, 0, 1, 20), &[16, 20]);
    let cases: [(&[u32], Option<f64>, Reason); 8] = [
        (&[12, 2, 2, 2], Some(2.0), Reason::Diverted),
        (&[6, 2, 2, 2], Some(2.0), Reason::Prefix),
        (&[7, 2, 2, 2], Some(2.0), Reason::Diverted),
        (&[12, 2, 2, 2], None, Reason::Prefix),
        // The lower median of two is the other worker's load.
        (&[3, 0], Some(2.0), Reason::Diverted),
        (&[2, 0], Some(2.0), Reason::Prefix),
        (&[100], Some(2.0), Reason::Prefix),
        (&[12, 5, 5, 5], Some(2.0), Reason::Prefix),
    ];
    for (loads, load_imbalance_factor, reason) in cases {
        let mut rule = learner(BoundaryLearningOptions {
            load_imbalance_factor,
            ..BoundaryLearningOptions::default()
        });
        serve(&mut rule, &asked(loads), 0);
        let (row, found) = pick(&rule, &asked(loads));
        assert_eq!(found, reason, "{loads:?}");
        assert_eq!(row == 0, reason == Reason::Prefix, "{loads:?}");
    }
}

#[test]
fn a_diversion_teaches_the_server_or_leaves_no_trace() {
    for (learn, second) in [(Teaches::Served, 3), (Teaches::Original, 0)] {
        let mut rule = learner(BoundaryLearningOptions {
            learn,
            ..BoundaryLearningOptions::default()
        });
        let calm = scene(&[0; 4], path(0, 0, 1, 20), &[16, 20]);
        serve(&mut rule, &calm, 0);
        let busy = scene(&[12, 2, 2, 1], path(0, 0, 1, 20), &[16, 20]);
        let choice = busy.pick(&rule, 1);
        assert_eq!((choice.row, choice.reason), (3, Reason::Diverted));
        rule.settle(&busy.view(), choice, booking(5));
        rule.proven(booking(5), None);
        // Now w3 is a holder too, so nothing is diverted to it; or it never was there.
        let later = scene(&[4, 1, 1, 0], path(0, 0, 1, 20), &[16, 20]);
        assert_eq!(pick(&rule, &later), (second, Reason::Prefix), "{learn:?}");
        // The first holder keeps its route.
        let gone = scene(&[0, 1, 1, 1], path(0, 0, 1, 20), &[16, 20]);
        assert_eq!(pick(&rule, &gone), (0, Reason::Prefix));
    }
}

#[test]
fn only_what_was_answered_is_learned() {
    let asked = scene(&[0; 4], path(0, 0, 1, 20), &[16, 20]);
    let mut rule = learner(BoundaryLearningOptions::default());
    let choice = Choice::warm(1, Reason::Hash);
    rule.settle(&asked.view(), choice, booking(1));
    assert_eq!(rule.routes(), 0);
    rule.ended(booking(1), Ended::Failed);
    assert_eq!(rule.routes(), 0);
    rule.settle(&asked.view(), choice, booking(2));
    rule.ended_all();
    rule.ended(booking(2), Ended::Served);
    assert_eq!(rule.routes(), 0);
    rule.settle(&asked.view(), choice, booking(3));
    rule.proven(booking(3), None);
    rule.ended(booking(3), Ended::Failed);
    assert_eq!(rule.routes(), 2);
}

#[test]
fn what_nobody_served_goes_by_hash_of_its_first_message_within_the_bound() {
    let rule = learner(BoundaryLearningOptions::default());
    let home = pick(&rule, &scene(&[0; 4], path(0, 0, 1, 20), &[16, 20]));
    assert_eq!(home.1, Reason::Hash);
    for own in 2..12 {
        let other = scene(&[0; 4], path(16, 1, own, 24), &[16, 24]);
        assert_eq!(pick(&rule, &other), home);
    }
    let of = |own| pick(&rule, &scene(&[0; 4], path(0, 0, own, 24), &[16, 24])).0;
    let homes: Vec<usize> = (2..40).map(of).collect();
    assert!((0..4).all(|row| homes.contains(&row)), "{homes:?}");
    let mut loads = [0; 4];
    loads[home.0] = 9;
    let full = scene(&loads, path(0, 0, 1, 20), &[16, 20]);
    let (row, reason) = pick(&rule, &full);
    assert!(row != home.0 && reason == Reason::HashBounded);
    let plain = learner(BoundaryLearningOptions {
        epsilon: None,
        ..BoundaryLearningOptions::default()
    });
    assert_eq!(pick(&plain, &full), home);
}

#[test]
fn prompts_without_a_key_go_to_the_least_loaded_worker() {
    let rule = learner(BoundaryLearningOptions::default());
    let short = scene(&[3, 1, 2], Vec::new(), &[]);
    assert_eq!(pick(&rule, &short), (1, Reason::ShortPrompt));
    let mut unknown = short.clone();
    unknown.blocks = None;
    assert_eq!(pick(&rule, &unknown), (1, Reason::NoKey));
    assert_eq!(pick(&rule, &unknown.key(Some("chat"))).1, Reason::Hash);
}

#[test]
fn a_route_whose_workers_are_away_gives_way_to_a_shallower_one() {
    let mut rule = learner(BoundaryLearningOptions::default());
    serve(&mut rule, &scene(&[0; 4], path(0, 0, 1, 16), &[16]), 0);
    serve(&mut rule, &scene(&[0; 4], path(16, 1, 2, 24), &[24]), 3);
    let mut asked = scene(&[0; 4], path(16, 1, 2, 24), &[24]);
    assert_eq!(pick(&rule, &asked), (3, Reason::Prefix));
    asked.rows.truncate(3);
    assert_eq!(pick(&rule, &asked), (0, Reason::Prefix));
}

#[test]
fn routes_end_with_their_time_their_worker_and_its_cache() {
    let asked = scene(&[0; 4], path(0, 0, 1, 20), &[16, 20]);
    let learned = || {
        let mut rule = learner(BoundaryLearningOptions::default());
        serve(&mut rule, &asked, 0);
        rule
    };
    for (now, reason) in [(3_599_999, Reason::Prefix), (3_600_000, Reason::Hash)] {
        let later = Scene {
            now: Millis(now),
            ..asked.clone()
        };
        assert_eq!(pick(&learned(), &later).1, reason, "after {now} ms");
    }
    let ways: [fn(&mut BoundaryLearning); 2] = [|rule| rule.forget(0), |rule| rule.cache_lost(0)];
    for end in ways {
        let mut rule = learned();
        rule.settle(&asked.view(), Choice::warm(1, Reason::Hash), booking(7));
        end(&mut rule);
        assert_eq!(rule.routes(), 0);
        rule.proven(booking(7), None);
        assert_eq!(rule.routes(), 2);
    }
    let mut rule = learned();
    rule.settle(&asked.view(), Choice::warm(0, Reason::Prefix), booking(8));
    rule.forget(0);
    rule.proven(booking(8), None);
    assert_eq!(rule.routes(), 0);
}

#[test]
fn at_the_cap_the_deepest_of_the_idlest_conversation_goes_first() {
    let mut rule = learner(BoundaryLearningOptions {
        max_routes: 5,
        ..BoundaryLearningOptions::default()
    });
    let idle = scene(&[0; 4], path(0, 0, 1, 20), &[16, 20]);
    let busy = scene(&[0; 4], path(16, 1, 2, 24), &[16, 20, 24]);
    serve(&mut rule, &idle, 0);
    serve(&mut rule, &busy, 1);
    assert_eq!(rule.routes(), 4);
    serve(&mut rule, &scene(&[0; 4], path(0, 0, 3, 24), &[16, 24]), 2);
    assert_eq!(rule.routes(), 5);
    // The idle conversation lost its last turn, and its system prompt lives on with the busy one.
    let shared = scene(&[0; 4], path(16, 1, 9, 30), &[]);
    assert_eq!(pick(&rule, &shared).1, Reason::Prefix);
    serve(&mut rule, &busy, 1);
    assert_eq!(rule.routes(), 5);
}

#[test]
fn what_others_saw_goes_first_and_never_overwrites() {
    let mut rule = learner(BoundaryLearningOptions {
        max_routes: 3,
        ..BoundaryLearningOptions::default()
    });
    let own = scene(&[0; 4], path(0, 0, 1, 20), &[16, 20]);
    serve(&mut rule, &own, 0);
    let hashes = own.blocks.clone().unwrap();
    hear(&mut rule, hashes[15], 16, 3, Millis(9));
    let system = scene(&[9, 9, 9, 0], path(16, 1, 2, 16), &[]);
    let calm = scene(&[0; 4], path(16, 1, 2, 16), &[]);
    assert_eq!(pick(&rule, &calm), (0, Reason::Prefix));
    // The first is no more loaded than most.
    assert_eq!(pick(&rule, &system).1, Reason::Prefix);
    let heard = path(0, 0, 5, 20);
    hear(&mut rule, heard[19], 20, 2, Millis(9));
    let of_others = scene(&[0; 4], heard.clone(), &[20]);
    assert_eq!(pick(&rule, &of_others), (2, Reason::Prefix));
    // There is room for three: another remote route evicts a remote one only.
    hear(&mut rule, path(0, 0, 6, 20)[19], 20, 2, Millis(10));
    assert_eq!((rule.routes(), rule.remote_routes()), (3, 1));
    assert_eq!(pick(&rule, &own), (0, Reason::Prefix));
    serve(&mut rule, &scene(&[0; 4], path(0, 0, 7, 20), &[20]), 1);
    assert_eq!(rule.routes(), 3);
    assert_eq!(pick(&rule, &of_others).1, Reason::Hash);
    assert_eq!(pick(&rule, &own), (0, Reason::Prefix));
    // Seen here, it is as good as any.
    hear(&mut rule, heard[19], 20, 2, Millis(11));
    assert_eq!(pick(&rule, &of_others).1, Reason::Hash, "no room");
}

#[test]
fn of_several_holders_the_least_loaded_serves_and_ties_are_drawn() {
    let mut rule = learner(BoundaryLearningOptions::default());
    let asked = |loads: &[u32]| scene(loads, path(0, 0, 1, 20), &[16, 20]);
    for row in [0, 2] {
        serve(&mut rule, &asked(&[0; 4]), row);
    }
    assert_eq!(pick(&rule, &asked(&[3, 0, 2, 0])), (2, Reason::Prefix));
    let share = asked(&[0; 4]).share(&rule, 0);
    assert!((0.45..0.55).contains(&share), "{share}");
}

#[test]
fn choosing_changes_nothing() {
    let mut rule = learner(BoundaryLearningOptions::default());
    let asked = scene(&[0; 4], path(0, 0, 1, 20), &[16, 20]);
    serve(&mut rule, &asked, 0);
    let before = format!("{rule:?}");
    let _ = rule.choose(&asked.view(), &mut Rng::new(3));
    assert_eq!(format!("{rule:?}"), before);
    assert!(rule.memory_bytes() > 0);
}
