//! Input of an engine, and its reports.

use cachelb_core::ids::SequenceHash;

/// Where a request's hashes lie, and how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Job {
    /// Number of the request, the caller's.
    pub id: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens to generate, at least 1.
    pub output_tokens: u32,
    /// Whether another engine computes the prompt.
    pub remote: bool,
    /// Worker whose host memory has cached blocks of the prompt.
    pub source: Option<u32>,
}

/// Names of a request's full blocks: those of the prompt, then as far as known those that its output fills.
pub trait Content {
    /// Hashes of the full blocks of request `id`.
    fn blocks(&self, id: u32) -> &[SequenceHash];
}

/// A result of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// A request was admitted for the first time with so many prompt tokens cached.
    Admitted {
        /// Its number.
        id: u32,
        /// Cached prompt tokens.
        cached_tokens: u32,
    },
    /// A request has its first token.
    FirstToken {
        /// Its number.
        id: u32,
    },
    /// A request has one more token.
    Token {
        /// Its number.
        id: u32,
    },
    /// A request has all its tokens, with the one of this pass.
    Finished {
        /// Its number.
        id: u32,
        /// How often it was preempted.
        preemptions: u32,
    },
}

/// Load report of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineLoad {
    /// Sequences being computed.
    pub running: u32,
    /// Requests waiting.
    pub waiting: u32,
    /// Prompt tokens of those waiting, `None` in a report without them.
    pub queued_tokens: Option<u64>,
    /// Share of the KV cache in use by requests.
    pub kv_usage: f64,
}
