//! The real selector before engines with several cache groups: what it predicts is what they serve.

use std::sync::Arc;

use cachelb::About;
use cachelb::selector::Facts;
use cachelb_core::groups::{CacheGroup, GroupKind, Retention};
use proptest::prelude::*;

use super::groups::{any_layout, prompts, rounds_beyond};
use super::pairs::at_once;
use super::routed::{Front, NAMES, rule_of};
use super::run::fleet;
use super::*;

/// By request: a prompt, and how many of its last tokens are generated.
type Row = (usize, u32);

/// Requests to one engine, one after the other: tokens that the router predicts and that it finds, of those that fit.
fn served(
    layout: &CacheLayout,
    prompts: &[(Vec<SequenceHash>, u32)],
    rows: &[Row],
    (kv_blocks, pass_tokens): (u32, u64),
    followed: bool,
) -> Vec<(u32, u32)> {
    let mut w = Workload {
        block_size: layout.hash_block(),
        offsets: vec![0],
        ..Workload::default()
    };
    for (i, &(at, output)) in (0_u32..).zip(rows) {
        let (names, all) = &prompts[at % prompts.len()];
        let output = output.min(all - 1);
        w.arrival.push(f64::from(i) * 1_000.0);
        w.parent.push(-1);
        w.think.push(0.0);
        w.prompt_tokens.push(all - output);
        w.output_tokens.push(output);
        // Without events a router knows nothing of answers: no prompt continues one.
        let prompt = ((all - output) / layout.hash_block()) as usize;
        w.hashes
            .extend(&names[..if followed { names.len() } else { prompt }]);
        w.offsets.push(w.hashes.len() as u64);
    }
    let mut workers = fleet(NAMES.len(), kv_blocks);
    for worker in &mut workers {
        worker.engine = EngineSettings {
            block_size: layout.hash_block(),
            max_num_batched_tokens: pass_tokens,
            cache_layout: Some(Arc::new(layout.clone())),
            followed,
            ..settings(kv_blocks)
        };
    }
    let facts = Facts {
        block_size: Some(layout.full_block()),
        ..Facts::default()
    };
    let about = NAMES.map(|_| About {
        resuming: layout.resuming(),
        ..About::default()
    });
    let size = layout.hash_block();
    let front = Front::of(rule_of("kv-aware", size), size, about, facts);
    let mut gateway = front.routed(&w, &workers);
    let options = Options {
        scrape_interval: 500.0,
        sample_interval: 500.0,
        pinned: vec![0; w.len()],
        ..at_once()
    };
    let out = run(&w, &workers, &mut gateway, &options, |_| true).unwrap();
    front.into_selector();
    let each = out
        .status
        .iter()
        .zip(&out.predicted_tokens)
        .zip(&out.cached_tokens);
    each.filter(|((status, _), _)| **status == Status::Finished)
        .map(|((_, predicted), cached)| (*predicted, *cached))
        .collect()
}

fn shapes() -> impl Strategy<Value = Vec<(usize, u32, u32)>> {
    prop::collection::vec((any::<usize>(), 0_u32..20, 4_u32..60), 1..10)
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    prop::collection::vec((any::<usize>(), 1_u32..12), 1..60)
}

proptest! {
    /// From events, evicted or not. Blocks beyond a place count in those of the group with the largest: it may be less.
    #[test]
    fn events_say_what_engines_serve(
        layout in any_layout(),
        shapes in shapes(),
        rows in rows(),
        kv_blocks in 60_u32..300,
        pass_tokens in 8_u64..64,
    ) {
        let prompts = prompts(&layout, &shapes);
        let sizes = (kv_blocks, pass_tokens);
        for (predicted, cached) in served(&layout, &prompts, &rows, sizes, true) {
            let is_rounded = rounds_beyond(&layout);
            prop_assert!(predicted == cached || is_rounded && predicted < cached, "{predicted} of {cached}");
        }
    }

    /// From placements and the groups alone, while nothing is evicted, never more.
    #[test]
    fn groups_alone_promise_no_more_than_engines_serve(
        layout in any_layout(),
        shapes in shapes(),
        rows in rows(),
        pass_tokens in 8_u64..64,
    ) {
        let prompts = prompts(&layout, &shapes);
        let sizes = (100_000, pass_tokens);
        for (predicted, cached) in served(&layout, &prompts, &rows, sizes, false) {
            prop_assert!(predicted <= cached, "{predicted} of {cached}");
        }
    }
}

#[test]
fn a_policy_counts_what_is_resumed_and_not_what_is_held() {
    let group = |kind| CacheGroup {
        kind,
        block_size: 32,
    };
    let groups = [
        group(GroupKind::SlidingWindow { window: 128 }),
        group(GroupKind::Full),
    ];
    let layout = CacheLayout::new(groups, Retention::Ends, false).unwrap();
    let family = |own: u64| {
        let names = (0..9).map(|at| SequenceHash(if at < 6 { at } else { own * 100 + at }));
        (names.collect::<Vec<_>>(), 301)
    };
    let prompts = [family(1), family(2), family(3)];
    let rows = [(0, 1), (1, 1), (2, 1), (2, 1)];
    for followed in [true, false] {
        let served = served(&layout, &prompts, &rows, (10_000, 2_048), followed);
        assert_eq!(served, [(0, 0), (0, 0), (192, 192), (288, 288)]);
    }
}
