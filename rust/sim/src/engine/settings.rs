//! Settings of one engine.

use std::sync::Arc;

use crate::engine::layout::CacheLayout;
use cachelb_core::error::{Error, Result};

/// When a block that a pass computes can be found by others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Commit {
    /// As soon as it is scheduled, as vLLM does.
    #[default]
    Schedule,
    /// When the pass ends.
    StepEnd,
}

/// Settings of one engine, by vLLM's names where it has one.
#[expect(
    clippy::struct_excessive_bools,
    reason = "switches of their own, by the engine's names"
)]
#[derive(Debug, Clone, PartialEq)]
pub struct EngineSettings {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks of the KV cache, which its groups share.
    pub kv_blocks: u32,
    /// Tokens one pass may compute.
    pub max_num_batched_tokens: u64,
    /// Sequences that may run at once.
    pub max_num_seqs: usize,
    /// Most tokens of one prompt per pass, `None` for no limit of its own.
    pub long_prefill_token_threshold: Option<u64>,
    /// Share of the blocks that admission leaves free.
    pub watermark: f64,
    /// Whether a request is admitted only if all of it fits now.
    pub scheduler_reserve_full_isl: bool,
    /// Whether nothing is admitted in a pass that preempted.
    pub hold_after_preemption: bool,
    /// Whether prefixes are cached.
    pub prefix_caching: bool,
    /// When computed blocks can be found.
    pub commit: Commit,
    /// Whether changes of the cache are recorded.
    pub followed: bool,
    /// Its cache groups, `None` for one that attends to the whole prefix.
    pub cache_layout: Option<Arc<CacheLayout>>,
}

impl EngineSettings {
    /// Tokens of a prompt that a pass computes which has `left` for it.
    pub(super) fn chunk(&self, need: u64, left: u64) -> u32 {
        let cap = self.long_prefill_token_threshold.unwrap_or(u64::MAX);
        need.min(cap).min(left) as u32
    }

    /// Checks that every setting is in its range.
    pub(super) fn check(&self) -> Result<()> {
        for (name, value) in [
            ("block_size", u64::from(self.block_size)),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_num_seqs", self.max_num_seqs as u64),
        ] {
            if value == 0 {
                return Err(Error::setting(name, "at least 1", 0));
            }
        }
        let layout = self.cache_layout.as_ref();
        if layout.is_some_and(|layout| layout.hash_block() != self.block_size) {
            return Err(Error::setting(
                "block_size",
                "the greatest common divisor of the blocks of cache_layout",
                self.block_size,
            ));
        }
        if !(0.0..1.0).contains(&self.watermark) {
            return Err(Error::setting(
                "watermark",
                "at least 0 and less than 1",
                self.watermark,
            ));
        }
        Ok(())
    }
}
