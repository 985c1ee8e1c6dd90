//! Cached blocks that a worker takes from the host memory of another one.

use super::cost::close;
use super::pairs::at_once;
use super::pool::by_token;
use super::routed::{Front, NAMES, families, rule};
use super::run::{InTurn, done, fleet, workload};
use super::*;
use crate::sources::Sources;

const STARTUP: f64 = 0.027;
const PER_TOKEN: f64 = 1e-4;
const TIMEOUT: f64 = 30.0;

/// Workers that compute a token in a millisecond and take one from another in a tenth of that.
fn peers(count: usize, tier_blocks: u32) -> Vec<WorkerSettings> {
    let mut all = fleet(count, 64);
    for worker in &mut all {
        worker.timing = by_token();
        share(worker, tier_blocks);
    }
    all
}

/// Gives a worker host memory, from which it serves others, and takes from theirs.
pub fn share(worker: &mut WorkerSettings, tier_blocks: u32) {
    worker.tier = Some(PoolTerms {
        blocks: tier_blocks,
        seconds_per_token: 1e-6,
    });
    worker.peers = Some(PeerTerms {
        startup: STARTUP,
        seconds_per_token: PER_TOKEN,
        timeout: TIMEOUT,
        best_from: Some(16),
    });
}

fn ran(workers: &[WorkerSettings], rows: &[(f64, u32, u32, u64)], options: &Options) -> Outcomes {
    done(&workload(rows), workers, options).0
}

#[test]
fn blocks_come_while_the_engine_computes_for_others() {
    let rows = [
        (0.0, 64, 1, 1),
        (10.0, 64, 1, 1),
        (10.0, 64, 1, 2),
        (10.01, 64, 1, 3),
    ];
    let workers = peers(2, 64);
    let out = ran(&workers, &rows, &at_once());
    assert_eq!(out.cached_tokens, [0, 48, 0, 0]);
    assert_eq!(out.pulled_tokens, [0, 48, 0, 0]);
    // The last block is computed here, behind the prompt that came meanwhile.
    let arrived = 10.0 + STARTUP + 48.0 * PER_TOKEN;
    close(out.first_token[3], 10.01 + 0.064);
    close(out.first_token[1], arrived.max(10.01 + 0.064) + 0.016);
    close(out.first_token[2], 10.064);
}

#[test]
fn a_link_carries_one_transfer_at_a_time() {
    let rows = [(0.0, 64, 1, 1), (10.0, 64, 1, 1), (10.0, 64, 1, 1)];
    let out = ran(&peers(3, 64), &rows, &at_once());
    assert_eq!(out.pulled_tokens, [0, 48, 48]);
    let each = 48.0 * PER_TOKEN;
    for (id, before) in [(1, 1.0), (2, 2.0)] {
        close(out.first_token[id], 10.0 + STARTUP + before * each + 0.016);
    }
}

#[test]
fn a_source_that_has_evicted_or_gone_away_costs_no_answer() {
    let rows = [(0.0, 64, 1, 1), (10.0, 64, 1, 1)];
    // It keeps two of four blocks.
    let out = ran(&peers(2, 2), &rows, &at_once());
    assert_eq!(out.pulled_tokens, [0, 32]);
    let crash = |at| Options {
        incidents: vec![(at, 0, Incident::Crash)],
        ..at_once()
    };
    // None takes it as a source after it went away; in the middle of a transfer it is waited for.
    for (at, waits) in [(9.0, 0.0), (10.001, STARTUP + 48.0 * PER_TOKEN + TIMEOUT)] {
        let out = ran(&peers(2, 64), &rows, &crash(at));
        assert_eq!((out.status[1], out.pulled_tokens[1]), (Status::Finished, 0));
        close(out.first_token[1], 10.0 + waits + 0.064);
    }
    let mut gateway = InTurn::new(2);
    gateway.source = Some(0);
    let w = workload(&rows);
    let out = run(&w, &peers(2, 64), &mut gateway, &crash(9.0), |_| true).unwrap();
    close(out.first_token[1], 10.0 + TIMEOUT + 0.064);
}

/// A worker that finds nothing in its cache.
fn placed(worker: u32, predicted_tokens: u32) -> Placed {
    Placed {
        worker,
        ticket: 0,
        predicted_tokens,
        reason: 0,
        gateway: 0,
        source: None,
    }
}

#[test]
fn the_longest_prefix_is_named_and_of_equal_ones_that_of_the_shorter_queue() {
    let names: Vec<_> = (1..=8).map(SequenceHash).collect();
    let mut sources = Sources::new(48, 16, 5);
    let stored = |hash, medium| Change::Stored {
        hash,
        parent: None,
        medium,
    };
    for (worker, blocks) in [(0, 8), (1, 6), (2, 6), (3, 2)] {
        let changes = names[..blocks]
            .iter()
            .map(|name| stored(*name, Medium::Cpu));
        sources.changed(worker, &changes.collect::<Vec<_>>());
    }
    let on_device = names.iter().map(|name| stored(*name, Medium::Gpu));
    sources.changed(4, &on_device.collect::<Vec<_>>());
    assert_eq!(sources.pick(&names, placed(4, 0)), Some(0));
    assert_eq!(sources.pick(&names, placed(4, 80)), Some(0));
    assert_eq!(sources.pick(&names, placed(4, 81)), None, "47 tokens");
    assert_eq!(sources.pick(&names[..2], placed(4, 0)), None);
    sources.mark_ready(0, false);
    sources.report(2, 3);
    let picks = (0..4_000).filter_map(|_| sources.pick(&names, placed(0, 0)));
    let of_second = picks.filter(|source| *source == 2).count();
    assert!((700..900).contains(&of_second), "{of_second}, not a fifth");
    for worker in [1, 2] {
        let hash = names[3];
        let medium = Medium::Cpu;
        sources.changed(worker, &[Change::Removed { hash, medium }]);
        assert_eq!(sources.pick(&names, placed(4, 0)), Some(2));
        sources.changed(worker, &[Change::Cleared]);
    }
    assert_eq!(sources.pick(&names, placed(4, 0)), None);
}

#[test]
fn a_router_names_sources_where_it_is_told_from_how_many_tokens_on() {
    let w = families();
    let mut workers = fleet(NAMES.len(), 24);
    for worker in &mut workers {
        share(worker, 512);
        worker.peers.as_mut().unwrap().best_from = None;
    }
    let pulled = |pull_min_tokens| {
        let front = Front::new(rule("round-robin"));
        let keys = Keys {
            pull_min_tokens,
            ..Keys::default()
        };
        let fleet = (&NAMES[..], &workers[..]);
        let router = (&front.registry, &front.selector);
        let mut gateway = Routed::new(router, &w, fleet, keys).unwrap();
        let out = run(&w, &workers, &mut gateway, &at_once(), |_| true).unwrap();
        out.pulled_tokens.iter().sum::<u32>()
    };
    assert_eq!(pulled(None), 0);
    assert_eq!(pulled(Some(129)), 0);
    assert!(pulled(Some(64)) > 41 * 64, "{}", pulled(Some(64)));
}
