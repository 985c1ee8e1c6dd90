//! Engines and runs: known cases, and random ones that are recounted.

mod cost;
mod engine;
mod faults;
mod groups;
mod hybrid;
mod notices;
mod pairs;
mod peers;
mod pool;
mod random;
mod routed;
mod run;
mod sharing;

use super::*;
use cachelb_core::ids::{Medium, SequenceHash};

/// Whether an engine has no request.
fn is_idle(engine: &Engine) -> bool {
    let load = engine.load();
    load.running + load.waiting == 0
}

/// A pass takes a second, whatever it computes.
fn a_second() -> Timing {
    Timing::Table(Table::new(vec![(1.0, 1.0)], vec![(1.0, 1.0)]).unwrap())
}

/// Half a second for prefill and half for decode, so that a pass with both takes one.
fn settings(kv_blocks: u32) -> EngineSettings {
    EngineSettings {
        block_size: 16,
        kv_blocks,
        max_num_batched_tokens: 256,
        max_num_seqs: 8,
        long_prefill_token_threshold: None,
        watermark: 0.0,
        scheduler_reserve_full_isl: true,
        hold_after_preemption: true,
        prefix_caching: true,
        commit: Commit::Schedule,
        followed: true,
        cache_layout: None,
    }
}

/// Requests by hand: prompts as hashes of their full blocks, and lengths.
#[derive(Debug, Default)]
struct Prompts(Vec<Vec<SequenceHash>>);

impl Prompts {
    fn add(&mut self, hashes: impl IntoIterator<Item = u64>) -> u32 {
        self.0.push(hashes.into_iter().map(SequenceHash).collect());
        self.0.len() as u32 - 1
    }
}

impl Content for Prompts {
    fn blocks(&self, id: u32) -> &[SequenceHash] {
        &self.0[id as usize]
    }
}
