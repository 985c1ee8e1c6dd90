//! The settings of a reader by the engines behind a router, and the limits of a body.

use crate::layout::{Systems, Tools};

/// The engine that renders the prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Engine {
    /// Not known: nothing is equal that some engine renders differently.
    #[default]
    Unset,
    /// vLLM.
    Vllm,
    /// `SGLang`.
    Sglang,
}

/// How bodies become prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Profile {
    /// The engine.
    pub engine: Engine,
    /// Where tools are rendered, nowhere excepted. Not known: with other tools, nothing is shared. Behind the leading
    /// system message: if there are several, or a developer's, as if not known.
    pub tools_place: Option<Tools>,
    /// Whether the template renders all reasoning, whatever follows it.
    pub keeps_reasoning: bool,
    /// The place of an Anthropic `role: system` among the messages. But in place, it may move into the leading system
    /// message: the head names its text.
    pub inline_system: Option<Systems>,
    /// Whether prompts are arranged by a [layout](crate::Layout), in vLLM's order of what a message holds, and match up
    /// to their first difference in it.
    pub is_likely: bool,
    /// Whether a layout merges the system messages of the responses API in any case, as `SGLang` does.
    pub merges_responses: bool,
    /// Key of the digests; routers that share state have the same.
    pub seed: u64,
}

/// The limits of a body. One beyond them is an error and routed by load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes.
    pub bytes: usize,
    /// Objects and arrays within each other, at most 128.
    pub depth: usize,
    /// Messages, and also parts of their contents.
    pub parts: usize,
    /// Token ids.
    pub ids: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 16 << 20,
            depth: 128,
            parts: 100_000,
            ids: 1_000_000,
        }
    }
}
