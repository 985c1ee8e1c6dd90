//! How the events of an engine are taken, and why they may be of no use.

use std::fmt;

use cachelb_core::hashing::{Hasher, Scheme};

/// Settings of an ingester.
#[derive(Debug, Clone, Copy)]
pub struct IngestSettings {
    /// Hashes own blocks.
    pub hasher: Hasher,
    /// Most blocks that wait for their parent.
    pub orphan_blocks: u32,
    /// For how long they wait, in milliseconds.
    pub orphan_ttl_ms: u64,
    /// Whether a store from the root that repeats held blocks may be a report of present blocks, which adds no copy.
    /// Learned from the stream if clients ask the engine for such reports.
    pub reports: bool,
    /// Whether the blocks are those of a cache that workers share: then all places are one medium.
    pub is_shared_cache: bool,
    /// Whether the engine drafts with EAGLE or MTP layers, which need the block above the point where a prompt resumes.
    pub eagle: bool,
    /// Most blocks remembered, the engine's or own ones, whichever are more; at most 16,777,216.
    pub max_blocks: u64,
}

impl IngestSettings {
    /// The settings that suit an engine that nothing is known about.
    #[must_use]
    pub fn new(hasher: Hasher) -> Self {
        Self {
            hasher,
            orphan_blocks: 4096,
            orphan_ttl_ms: 30_000,
            reports: false,
            is_shared_cache: false,
            eagle: false,
            max_blocks: 4 << 20,
        }
    }
}

/// Why the events of an engine cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Neither block size is a multiple of the other.
    BlockSize {
        /// Tokens per block of the engine.
        engine: u32,
        /// Tokens per block here.
        ours: u32,
    },
    /// A scheme whose hashes cannot be continued from a parent and a block's own tokens.
    Scheme(Scheme),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockSize { engine, ours } => write!(
                f,
                "the engine's blocks hold {engine} tokens and the router's {ours}: one must be a multiple of the other"
            ),
            Self::Scheme(scheme) => write!(
                f,
                "hashing={:?} cannot follow KV events; use hashing=\"chained\"",
                scheme.name()
            ),
        }
    }
}

/// Whether blocks of an engine can be mapped to own ones: one size must be a multiple of the other.
#[must_use]
pub fn sizes_fit(engine: u32, ours: u32) -> bool {
    engine > 0 && (engine.is_multiple_of(ours) || ours.is_multiple_of(engine))
}
