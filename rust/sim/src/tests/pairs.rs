//! Prompts that one worker computes and another generates from.

use cachelb::selector::Role;

use super::cost::close;
use super::engine::job;
use super::run::{done, fleet, workload};
use super::*;

/// Workers that generate, then workers that compute prompts.
pub fn split(decode: usize, prefill: usize, kv_blocks: u32) -> Vec<WorkerSettings> {
    let mut all = fleet(decode + prefill, kv_blocks);
    for (i, worker) in all.iter_mut().enumerate() {
        let decodes = i < decode;
        worker.role = if decodes { Role::Decode } else { Role::Prefill };
    }
    all
}

/// Nothing takes time on the way.
pub fn at_once() -> Options {
    Options {
        net_delay: 0.0,
        event_lag: 0.0,
        ..Options::default()
    }
}

#[test]
fn a_request_is_computed_here_and_generated_there() {
    // A pass takes a second; 64 tokens of 1,000 bytes at a megabyte per second behind half a second take 0.564.
    let w = workload(&[(0.0, 64, 3, 1), (10.0, 64, 1, 1)]);
    let options = Options {
        net_delay: 0.25,
        ..at_once()
    };
    let (out, gateway) = done(&w, &split(1, 1, 16), &options);
    assert_eq!(out.status, [Status::Finished; 2]);
    assert_eq!((out.prefill_worker[0], out.worker[0]), (1, 0));
    // To the prefill worker, a pass, back, to the decode worker, transfer, a pass, back.
    let first = 0.25 + 1.0 + 0.25 + 0.25 + 0.564 + 1.0 + 0.25;
    close(out.first_token[0], first);
    close(out.finish[0], first + 2.0);
    // Both hold the prompt now: all but the last block need not be computed, nor sent.
    assert_eq!(out.cached_tokens, [0, 48]);
    let again = 10.0 + 0.25 * 4.0 + 2.0 + 0.5 + 0.016;
    close(out.first_token[1], again);
    assert_eq!(gateway.held[&0], gateway.held[&1]);
    assert_eq!(gateway.held[&0].len(), 4);
}

fn fetch(id: u32, tokens: u32) -> Fetch {
    Fetch {
        id,
        tokens,
        source: None,
        loading: 0.0,
    }
}

#[test]
fn blocks_are_allocated_before_they_are_sent_for() {
    let mut prompts = Prompts::default();
    let (a, b) = (prompts.add([1, 2]), prompts.add([3, 4]));
    let mut engine = Engine::new(settings(3), a_second()).unwrap();
    for id in [a, b] {
        engine.enqueue(Job {
            remote: true,
            source: None,
            ..job(id, 32, 2)
        });
    }
    assert_eq!(engine.load().queued_tokens, Some(0), "nothing to compute");
    assert_eq!(engine.begin_step(&prompts), None);
    assert_eq!(engine.fetches(), [fetch(a, 32)]);
    assert_eq!((engine.cache.pool.free, engine.load().waiting), (1, 2));
    engine.validate().unwrap();
    assert!(!engine.arrived(b, None, &prompts), "it has no blocks yet");
    assert!(engine.arrived(a, None, &prompts) && !engine.arrived(a, None, &prompts));
    let mut out = Vec::new();
    for _ in 0..2 {
        assert_eq!(engine.begin_step(&prompts), Some(1.0), "a decode");
        engine.validate().unwrap();
        engine.end_step(&prompts, &mut out);
    }
    let (id, preemptions) = (a, 0);
    let [first, second] = [Output::FirstToken { id }, Output::Token { id }];
    assert_eq!(out, [first, second, Output::Finished { id, preemptions }]);
    assert_eq!(engine.begin_step(&prompts), None);
    assert_eq!(engine.fetches(), [fetch(b, 32)]);
}

#[test]
fn what_came_from_elsewhere_is_computed_here_once_it_is_preempted() {
    let mut prompts = Prompts::default();
    let (a, b) = (prompts.add([1]), prompts.add([2]));
    let mut engine = Engine::new(settings(3), a_second()).unwrap();
    for id in [a, b] {
        engine.enqueue(Job {
            remote: true,
            source: None,
            ..job(id, 16, 20)
        });
        assert_eq!(engine.begin_step(&prompts), None);
    }
    assert_eq!(engine.fetches().len(), 2);
    assert!(engine.arrived(a, None, &prompts) && engine.arrived(b, None, &prompts));
    let mut out = Vec::new();
    for _ in 0..200 {
        if engine.begin_step(&prompts).is_some() {
            engine.validate().unwrap();
            engine.end_step(&prompts, &mut out);
        }
    }
    assert!(is_idle(&engine) && engine.preemptions > 0);
    let tokens = out.iter().filter(|o| matches!(o, Output::Token { .. }));
    assert_eq!(tokens.count(), 2 * 19);
    assert!(!out.iter().any(|o| matches!(o, Output::Admitted { .. })));
}

#[test]
fn a_prompt_whose_worker_crashes_before_it_is_sent_is_computed_again() {
    let w = workload(&[(0.0, 64, 3, 1)]);
    let options = Options {
        // The transfer is from 1 to 1.564.
        incidents: vec![(1.5, 2, Incident::Crash), (1.51, 2, Incident::Join)],
        ..at_once()
    };
    let (out, _) = done(&w, &split(2, 1, 16), &options);
    assert_eq!((out.status[0], out.retries[0]), (Status::Finished, 1));
    assert_eq!((out.worker[0], out.prefill_worker[0]), (1, 2));
}
