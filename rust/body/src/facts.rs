//! The kind of answer that a body asks for, and its figures.

cachelb_core::named! {
    /// The work that a body asks for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    Kind {
        /// A conversation; its prompt is canonical bytes.
        Chat = "chat",
        /// Texts to complete, as they are.
        Text = "text",
        /// Token ids.
        Tokens = "tokens",
        /// The body lacks the history of its conversation: it goes where that lies, and has no prompt.
        Continuation = "continuation",
        /// Texts or ids to embed, score or rank.
        Pooling = "pooling",
        /// Counts as load only.
        LoadOnly = "load-only",
        /// Multipart audio.
        Audio = "audio",
        /// Not known, or without anything that is known.
        #[default]
        Unknown = "unknown",
    }
}

/// Figures and switches of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// The kind of answer that it asks for.
    pub kind: Kind,
    /// Messages; of a response, items of the input that are one.
    pub messages: u32,
    /// Parts of their contents.
    pub parts: u32,
    /// Parts that are neither text, call nor result: images and the like.
    pub media: u32,
    /// System blocks that carry the attribution header of a client.
    pub attribution: u32,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Answers per prompt, `n`.
    pub answers: Option<u32>,
    /// Most tokens to generate.
    pub max_output: Option<u32>,
    /// Tokens that an agent expects, no more than that.
    pub expected_output: Option<u32>,
    /// Priority, the lower first, as vLLM has it.
    pub priority: Option<i64>,
    /// Digest of media beside the prompt: prompts with different ones must not meet, so it belongs into the namespace.
    pub beside: Option<u128>,
}
