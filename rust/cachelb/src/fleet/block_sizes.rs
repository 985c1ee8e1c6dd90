//! Block sizes of engines that differ from the router's: the one place that converts between the two.
//!
//! An index has blocks of its own size, and an engine reuses whole blocks of its own only. So the blocks that a worker
//! holds are cut to whole blocks of both, and its capacity, counted in the engine's blocks, is converted. Both the
//! engine's events and its metrics report the size. Where both are known events win, since prompts are compared with
//! their blocks; a difference is counted and can be queried.
//!
//! Matches are exact. So is the capacity of workers with events; of two prompts that part inside a block of the engine's,
//! one without events has that block twice and the index shares a part of it, so each such fork takes up to one engine
//! block less room here.

use std::fmt;

use cachelb_core::groups::{Resuming, Retention, common_divisor};

cachelb_core::named! {
    /// The program that an engine is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    EngineKind {
        /// vLLM.
        Vllm = "vllm",
        /// `SGLang`.
        Sglang = "sglang",
        /// `TensorRT-LLM`.
        TensorRtLlm = "tensorrt-llm",
    }
}

/// Cache properties reported by an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// Blocks it has.
    pub kv_blocks: Option<u32>,
    /// Blocks that it has by its load reports, which contradict those.
    pub learned: Option<u32>,
    /// Tokens per block.
    pub block_size: Option<u32>,
    /// How it resumes, if some of its layers do not attend to the whole prefix.
    pub resuming: Option<Resuming>,
    /// Blocks that it retains to resume behind, by its metrics.
    pub retention: Option<Retention>,
    /// The program that it is.
    pub kind: Option<EngineKind>,
}

/// An engine whose events and metrics report different block sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disagreement {
    /// Tokens per block by its events.
    pub(crate) announced: u32,
    /// By its metrics.
    pub(crate) stated: u32,
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { announced, stated } = self;
        write!(
            f,
            "the engine's blocks hold {announced} tokens by its events and {stated} by its metrics"
        )
    }
}

/// Block sizes of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EngineSizes {
    /// Tokens per block by its events.
    pub announced: Option<u32>,
    /// Sizes by its metrics.
    pub engine: Facts,
}

impl EngineSizes {
    /// Blocks of `block_size` tokens that the engine can only use together: as many as whole blocks of both take.
    pub fn per_block(self, block_size: u32) -> u32 {
        let size = self.announced.or(self.engine.block_size);
        let divisor = |size: u32| common_divisor(size.into(), block_size.into()).max(1) as u32;
        size.map_or(1, |size| (size / divisor(size)).max(1))
    }

    /// Blocks of `block_size` tokens that its cache holds, at least one, `None` if that is not known.
    pub fn capacity(self, block_size: u32) -> Option<u32> {
        let (blocks, size) = self.stated(block_size)?;
        let blocks = (blocks * size / u64::from(block_size)).clamp(1, u32::MAX.into());
        Some(blocks as u32)
    }

    /// Tokens that its cache holds, `None` if that is not known.
    pub fn tokens(self, block_size: u32) -> Option<u64> {
        self.stated(block_size).map(|(blocks, size)| blocks * size)
    }

    /// Whether a prompt of so many tokens fits into its cache, as far as that is known.
    pub fn have_room(self, tokens: u64, block_size: u32) -> bool {
        self.tokens(block_size).is_none_or(|most| tokens <= most)
    }

    /// The fewest tokens in whole blocks of the engine that its cache cannot hold, `None` if its size is not exactly known.
    pub fn too_many_tokens(self, block_size: u32) -> Option<u64> {
        let exact = self.engine.learned.is_none();
        let (blocks, size) = self.stated(block_size).filter(|_| exact)?;
        // The blocks may have been converted to a size other than that of events, and the remainder dropped.
        Some(blocks * size + size.max(self.announced.map_or(0, u64::from)))
    }

    /// How many blocks the engine has, and of how many tokens.
    fn stated(self, block_size: u32) -> Option<(u64, u64)> {
        let size = self
            .engine
            .block_size
            .or(self.announced)
            .unwrap_or(block_size);
        let blocks = self.engine.learned.or(self.engine.kv_blocks)?;
        Some((blocks.into(), size.into()))
    }

    /// Why the block size is not sure, `None` if its sources agree.
    pub fn disagreement(self) -> Option<Disagreement> {
        let (announced, stated) = self.announced.zip(self.engine.block_size)?;
        (announced != stated).then_some(Disagreement { announced, stated })
    }
}

impl Facts {
    /// These facts, with those of `news` added or replaced.
    #[must_use]
    pub fn updated(self, news: Self) -> Self {
        let is_same = news.kv_blocks.or(self.kv_blocks) == self.kv_blocks;
        Self {
            kv_blocks: news.kv_blocks.or(self.kv_blocks),
            learned: news.learned.or(self.learned.filter(|_| is_same)),
            block_size: news.block_size.or(self.block_size),
            resuming: news.resuming.or(self.resuming),
            retention: news.retention.or(self.retention),
            kind: news.kind.or(self.kind),
        }
    }

    /// Whether it is said to draft with EAGLE or MTP.
    #[must_use]
    pub fn drafts(self) -> bool {
        self.resuming.is_some_and(|rule| rule.above > 0)
    }

    /// A rule with the retention that the engine's metrics report, if they do.
    #[must_use]
    pub fn retained(self, rule: Resuming) -> Resuming {
        self.retention
            .map_or(rule, |retention| rule.retaining(retention))
    }
}
