//! The view of a rule that decides both halves of a request at once, and its choice.

use cachelb_core::load::Known;

use crate::rule::choice::Choice;
use crate::rule::view::{Candidate, View};

/// The time to hand a computed prompt to another worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Handover {
    /// Milliseconds, however long the prompt is: messages, and the pass in which the other worker joins in.
    pub ms: f64,
    /// Milliseconds per token that the other worker does not hold.
    pub ms_per_token: f64,
}

impl Handover {
    /// 128 KiB of KV cache per token, as of a model of 8 billion parameters, at 25 GB/s.
    pub const DEFAULT: Self = Self {
        ms: 20.0,
        ms_per_token: 0.005,
    };
}

impl Default for Handover {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The workers that may compute the prompt of a request that a worker decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefiller {
    /// The one that costs less.
    Any,
    /// The worker itself.
    Itself,
    /// Another one, or if there is none, itself as one of those that prefill.
    Another,
}

/// Both halves of a request. The views differ in their rows alone; a worker may be in both.
#[derive(Clone, Copy)]
pub struct Pairing<'a> {
    /// The workers that may compute the prompt; may have no rows.
    pub prefill: View<'a>,
    /// The workers that may generate.
    pub decode: View<'a>,
    /// The workers that may compute the prompt for a decode worker.
    pub prefiller: &'a dyn Fn(&Candidate) -> Prefiller,
    /// The time to hand the prompt from one to the other.
    pub handover: Handover,
}

impl std::fmt::Debug for Pairing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rows = (self.prefill.rows, self.decode.rows);
        f.debug_tuple("Pairing").field(&rows).finish()
    }
}

/// Outcome of a rule for a pair.
#[derive(Debug, Clone, PartialEq)]
pub struct PairChoice {
    /// Among the rows that prefill, `None` if the decode worker does it itself.
    pub prefill: Option<Choice>,
    /// Among the rows that decode.
    pub decode: Choice,
    /// The scores of the rows that prefill.
    pub prefill_scores: Vec<Known>,
    /// The scores of the rows that decode, with the prompt, wherever it is computed.
    pub decode_scores: Vec<Known>,
}
