//! The scheduler, pass by pass.

use proptest::prelude::*;

use super::*;

pub fn job(id: u32, prompt_tokens: u32, output_tokens: u32) -> Job {
    Job {
        id,
        prompt_tokens,
        output_tokens,
        ..Job::default()
    }
}

/// Runs a pass; returns what it brought.
fn step(engine: &mut Engine, prompts: &Prompts) -> Vec<Output> {
    let mut out = Vec::new();
    if engine.begin_step(prompts).is_some() {
        engine.validate().unwrap();
        engine.end_step(prompts, &mut out);
    }
    engine.validate().unwrap();
    out
}

pub fn drain(engine: &mut Engine, prompts: &Prompts) -> Vec<Output> {
    let mut all = Vec::new();
    for _ in 0..10_000 {
        if is_idle(engine) {
            return all;
        }
        all.extend(step(engine, prompts));
    }
    panic!("never idle: {:?}", engine.load());
}

pub fn cached(outputs: &[Output], id: u32) -> u32 {
    let of = |output: &Output| match *output {
        Output::Admitted {
            id: at,
            cached_tokens,
        } if at == id => Some(cached_tokens),
        _ => None,
    };
    outputs.iter().find_map(of).unwrap()
}

#[test]
fn the_last_token_of_a_cached_prompt_is_computed_again() {
    let mut prompts = Prompts::default();
    let (a, b) = (prompts.add([1, 2]), prompts.add([1, 2]));
    let mut engine = Engine::new(settings(64), a_second()).unwrap();
    engine.enqueue(job(a, 32, 1));
    drain(&mut engine, &prompts);
    engine.enqueue(job(b, 32, 1));
    assert_eq!(cached(&drain(&mut engine, &prompts), b), 16);
}

#[test]
fn long_prompts_are_computed_in_chunks_beside_decodes() {
    let mut prompts = Prompts::default();
    let (a, b) = (prompts.add(1..=1), prompts.add(100..=131));
    let mut engine = Engine::new(settings(64), a_second()).unwrap();
    engine.enqueue(job(a, 16, 4));
    let first = step(&mut engine, &prompts);
    assert_eq!(first.last(), Some(&Output::FirstToken { id: a }));
    engine.enqueue(job(b, 512, 1));
    // 255 of the budget are left beside a decode.
    for _ in 0..2 {
        assert!(step(&mut engine, &prompts).contains(&Output::Token { id: a }));
        assert_eq!(engine.load().running, 2);
    }
    let last = step(&mut engine, &prompts);
    assert!(last.contains(&Output::FirstToken { id: b }), "{last:?}");
}

#[test]
fn a_block_is_found_when_it_is_scheduled_or_when_its_pass_ends() {
    for (commit, expected) in [(Commit::Schedule, 16), (Commit::StepEnd, 0)] {
        let mut prompts = Prompts::default();
        let (a, b) = (prompts.add([1, 2]), prompts.add([1, 3]));
        let settings = EngineSettings {
            commit,
            ..settings(64)
        };
        let mut engine = Engine::new(settings, a_second()).unwrap();
        engine.enqueue(job(a, 32, 1));
        engine.enqueue(job(b, 32, 1));
        let outputs = step(&mut engine, &prompts);
        assert_eq!(cached(&outputs, b), expected, "{commit:?}");
    }
}

#[test]
fn tails_are_evicted_before_their_heads() {
    let mut prompts = Prompts::default();
    let (a, b) = (prompts.add(1..=4), prompts.add(10..=15));
    let mut engine = Engine::new(settings(8), a_second()).unwrap();
    engine.enqueue(job(a, 64, 1));
    drain(&mut engine, &prompts);
    engine.enqueue(job(b, 96, 1));
    drain(&mut engine, &prompts);
    let held = [1, 2, 3, 4].map(|hash| engine.cache.pool.prefix(&[SequenceHash(hash)]) == 1);
    assert_eq!(held, [true, true, false, false]);
    assert_eq!(engine.cache.pool.evicted, 2);
}

#[test]
fn the_last_admitted_gives_way_and_begins_again() {
    let mut prompts = Prompts::default();
    let (a, b) = (prompts.add(1..=2), prompts.add(11..=12));
    let settings = EngineSettings {
        scheduler_reserve_full_isl: false,
        ..settings(5)
    };
    let mut engine = Engine::new(settings, a_second()).unwrap();
    // Two blocks each; the fifth goes to the first, whose next token needs a third one.
    engine.enqueue(job(a, 32, 20));
    engine.enqueue(job(b, 32, 20));
    let all = drain(&mut engine, &prompts);
    let preempted = all.iter().filter_map(|output| match output {
        Output::Finished { id, preemptions } => Some((*id, *preemptions > 0)),
        _ => None,
    });
    let preempted: std::collections::BTreeMap<_, _> = preempted.collect();
    assert_eq!(preempted, [(a, false), (b, true)].into());
}

#[test]
fn nothing_behind_a_request_that_does_not_fit_is_tried() {
    let mut prompts = Prompts::default();
    let ids: Vec<u32> = (0..3).map(|i| prompts.add(i * 100..i * 100 + 6)).collect();
    let mut engine = Engine::new(settings(8), a_second()).unwrap();
    engine.enqueue(job(ids[0], 96, 10));
    engine.enqueue(job(ids[1], 96, 1));
    engine.enqueue(job(ids[2], 16, 1));
    step(&mut engine, &prompts);
    assert_eq!((engine.load().running, engine.load().waiting), (1, 2));
    drain(&mut engine, &prompts);
}

#[test]
fn equal_blocks_computed_side_by_side_are_two_copies() {
    let mut prompts = Prompts::default();
    let (a, b, c) = (prompts.add([1]), prompts.add([1]), prompts.add(20..=22));
    let settings = EngineSettings {
        commit: Commit::StepEnd,
        ..settings(4)
    };
    let mut engine = Engine::new(settings, a_second()).unwrap();
    engine.enqueue(job(a, 16, 1));
    engine.enqueue(job(b, 16, 1));
    drain(&mut engine, &prompts);
    let stored = |engine: &mut Engine| engine.cache.changes();
    // The second copy announces nothing new.
    assert_eq!(stored(&mut engine).len(), 1);
    // Three blocks: two unused ones, and one copy.
    engine.enqueue(job(c, 48, 1));
    drain(&mut engine, &prompts);
    assert_eq!(engine.cache.pool.prefix(&[SequenceHash(1)]), 1);
}

#[test]
fn a_crash_loses_everything() {
    let mut prompts = Prompts::default();
    let (a, b) = (prompts.add(1..=6), prompts.add(11..=16));
    let mut engine = Engine::new(settings(8), a_second()).unwrap();
    engine.enqueue(job(a, 96, 5));
    engine.enqueue(job(b, 96, 5));
    step(&mut engine, &prompts);
    assert_eq!(engine.crash(), [a, b]);
    assert!(is_idle(&engine) && engine.cache.pool.free == 8);
    assert_eq!(engine.cache.pool.prefix(&[SequenceHash(1)]), 0);
    engine.validate().unwrap();
}

proptest! {
    /// Any requests: every one gets all its tokens, blocks never exceed the cache, and the recount agrees.
    #[test]
    fn every_request_ends_once_with_all_its_tokens(
        jobs in prop::collection::vec((1_u32..200, 1_u32..40, 0_u64..4, any::<bool>()), 1..24),
        kv_blocks in 16_u32..64,
        budget in 1_u64..300,
        seqs in 1_usize..6,
        full in any::<bool>(),
        late in any::<bool>(),
    ) {
        let settings = EngineSettings {
            max_num_batched_tokens: budget,
            max_num_seqs: seqs,
            scheduler_reserve_full_isl: full,
            commit: if late { Commit::StepEnd } else { Commit::Schedule },
            ..settings(kv_blocks)
        };
        let mut engine = Engine::new(settings, a_second()).unwrap();
        let mut prompts = Prompts::default();
        let mut outputs = Vec::new();
        let mut expected = Vec::new();
        for (prompt, output, family, pause) in jobs {
            let blocks = u64::from(prompt / 16);
            let id = prompts.add((0..blocks).map(|depth| family * 1_000 + depth));
            expected.push(output);
            engine.enqueue(job(id, prompt, output));
            if pause {
                outputs.extend(step(&mut engine, &prompts));
            }
        }
        outputs.extend(drain(&mut engine, &prompts));
        for (id, &tokens) in (0..).zip(&expected) {
            let count = |wanted: fn(&Output) -> Option<u32>| outputs.iter().filter(|o| wanted(o) == Some(id)).count() as u32;
            let first = count(|o| match o { Output::FirstToken { id } => Some(*id), _ => None });
            let more = count(|o| match o { Output::Token { id } => Some(*id), _ => None });
            let ends = count(|o| match o { Output::Finished { id, .. } => Some(*id), _ => None });
            let starts = count(|o| match o { Output::Admitted { id, .. } => Some(*id), _ => None });
            prop_assert_eq!((starts, first, more, ends), (1, 1, tokens - 1, 1));
        }
        prop_assert_eq!(engine.cache.pool.free, kv_blocks);
    }
}
