//! What is known about the engines behind a router, and what a body may hold.

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

/// Where the chat template puts tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolsPlace {
    /// Before or behind the leading system messages: with other tools, nothing is shared.
    #[default]
    Unknown,
    /// Behind the leading system message; if there are several, or a developer's, as if not known.
    AfterSystem,
    /// At the beginning.
    BeforeSystem,
    /// Before the last user message; leading system text at the beginning or in that message.
    LastUser,
}

/// What an Anthropic `role: system` among the messages does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InlineSystem {
    /// It may move into the leading system message: the head names its text.
    #[default]
    Merged,
    /// It stays where it is.
    InPlace,
}

/// How bodies become prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Profile {
    /// The engine.
    pub engine: Engine,
    /// Where tools are rendered.
    pub tools_place: ToolsPlace,
    /// Whether the template renders all reasoning, whatever follows it.
    pub keeps_reasoning: bool,
    /// What system messages among the others do.
    pub inline_system: InlineSystem,
    /// Whether prompts are arranged by a [layout](crate::Layout), in vLLM's order of what a message holds, and match up
    /// to their first difference in it.
    pub is_likely: bool,
    /// Whether a layout merges the system messages of the responses API whatever it says, as `SGLang` does.
    pub merges_responses: bool,
    /// Key of the digests; routers that share state have the same.
    pub seed: u64,
}

/// What a body may hold. One beyond them is an error and routed by load.
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
