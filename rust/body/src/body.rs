//! What was read.

use std::fmt;

use cachelb_core::hashing::{Hasher, Namespace};
use cachelb_core::ids::SequenceHash;

use crate::canon::Span;
use crate::identity::{Clues, session_of_user};

/// What a body asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Kind {
    /// A conversation; its prompt is canonical bytes.
    Chat,
    /// Texts to complete, as they are.
    Text,
    /// Token ids.
    Tokens,
    /// The body lacks the history of its conversation: it goes where that lies, and has no prompt.
    Continuation,
    /// Texts or ids to embed, score or rank.
    Pooling,
    /// Counts as load only.
    LoadOnly,
    /// Multipart audio.
    Audio,
    /// Not known, or without anything that is known.
    #[default]
    Unknown,
}

impl Kind {
    /// All of them, in order.
    pub const ALL: [Self; 8] = [
        Self::Chat,
        Self::Text,
        Self::Tokens,
        Self::Continuation,
        Self::Pooling,
        Self::LoadOnly,
        Self::Audio,
        Self::Unknown,
    ];

    /// Name as used for counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Text => "text",
            Self::Tokens => "tokens",
            Self::Continuation => "continuation",
            Self::Pooling => "pooling",
            Self::LoadOnly => "load-only",
            Self::Audio => "audio",
            Self::Unknown => "unknown",
        }
    }
}

/// Figures and switches of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// What it asks for.
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

/// Where the parts of a prompt lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// These slices of the stream.
    Text(Span),
    /// These ids.
    Tokens(Span),
}

/// One prompt of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prompt<'a> {
    /// Canonical bytes.
    Text(Text<'a>),
    /// Token ids.
    Tokens(&'a [u32]),
}

impl Prompt<'_> {
    /// Bytes, or ids.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Tokens(ids) => ids.len(),
        }
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Canonical bytes: slices of the arena, in canonical order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<'a> {
    arena: &'a [u8],
    slices: &'a [Span],
}

/// Without content.
impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Text({} bytes)", self.len())
    }
}

impl<'a> Text<'a> {
    /// The slices.
    pub fn slices(self) -> impl Iterator<Item = &'a [u8]> {
        self.slices.iter().map(|slice| slice.of(self.arena))
    }

    /// Bytes of all.
    #[must_use]
    pub fn len(self) -> usize {
        self.slices.iter().map(|slice| slice.len()).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// All of it in a row: where it lies, or copied to `spare`.
    #[must_use]
    pub fn joined<'b>(self, spare: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        if let [slice] = self.slices {
            return slice.of(self.arena);
        }
        spare.clear();
        for slice in self.slices() {
            spare.extend_from_slice(slice);
        }
        spare
    }

    /// Replaces the content of `out` with one hash per full chunk, as [`Hasher::hash_text`] does; `spare` is room for
    /// a copy.
    pub fn hash(
        self,
        hasher: &Hasher,
        chunk_bytes: usize,
        namespace: Namespace,
        spare: &mut Vec<u8>,
        out: &mut Vec<SequenceHash>,
    ) {
        hasher.hash_text(self.joined(spare), chunk_bytes, namespace, out);
    }
}

/// A body that was read. It borrows the reader, which the next body reuses.
#[derive(Clone, Copy)]
pub struct Body<'a> {
    pub(crate) arena: &'a [u8],
    pub(crate) tokens: &'a [u32],
    pub(crate) stream: &'a [Span],
    pub(crate) prompts: &'a [Place],
    pub(crate) model: Option<Span>,
    pub(crate) continues: &'a [Span],
    pub(crate) noted: &'a [(&'static str, Span)],
    /// System text beside the messages.
    pub(crate) system: Option<Span>,
    /// Of the messages, in the arena.
    pub(crate) starts: &'a [usize],
    pub(crate) facts: Facts,
    pub(crate) bytes: usize,
}

/// Without content.
impl fmt::Debug for Body<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut body = f.debug_struct("Body");
        body.field("facts", &self.facts).field("bytes", &self.bytes);
        body.finish_non_exhaustive()
    }
}

impl<'a> Body<'a> {
    /// Its figures.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// What it asks for.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.facts.kind
    }

    /// `model`.
    #[must_use]
    pub fn model(&self) -> Option<&'a str> {
        self.model.map(|span| self.str(span))
    }

    /// What a continuation continues: ids of a response, a conversation, a stored prompt or a session.
    pub fn continues(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let body = *self;
        self.continues.iter().map(move |span| body.str(*span))
    }

    /// A string beside the prompt: `/cache_salt`, `/extra_key`, `/nvext/cache_salt` or `/lora_path`.
    #[must_use]
    pub fn noted(&self, path: &str) -> Option<&'a str> {
        let (_, span) = self.noted.iter().find(|(known, _)| *known == path)?;
        Some(self.str(*span))
    }

    /// Adds what names the conversation to `clues`.
    pub fn identify(&self, clues: &mut Clues<'a>) {
        for (path, span) in self.noted {
            let value = self.str(*span);
            match *path {
                "/metadata/user_id" => {
                    if let Some(session) = session_of_user(value) {
                        clues.note(path, session);
                    }
                }
                _ => clues.note(path, value),
            }
        }
    }

    /// The prompts, each of which is a request to an engine.
    pub fn prompts(&self) -> impl Iterator<Item = Prompt<'a>> + use<'a> {
        let body = *self;
        self.prompts.iter().map(move |place| body.prompt(*place))
    }

    /// The longest prompt, by which it is routed; the first of those that are equally long.
    #[must_use]
    pub fn longest(&self) -> Option<Prompt<'a>> {
        self.prompts().reduce(|best, prompt| {
            if prompt.len() > best.len() {
                prompt
            } else {
                best
            }
        })
    }

    /// Where the messages of a conversation end, system text beside them among them, in bytes of its prompt, rising.
    pub fn ends(&self) -> impl Iterator<Item = usize> + use<'a> {
        let body = *self;
        let last = body.stream.iter().map(|slice| slice.len()).sum();
        let is_chat = body.facts.kind == Kind::Chat;
        let system = self.system.map(|span| span.end);
        let ends = system
            .into_iter()
            .chain(self.starts.iter().skip(1).copied());
        let inner = ends.filter_map(move |at| body.offset(at));
        let all = inner
            .filter(move |end| *end < last)
            .chain(std::iter::once(last));
        all.filter(move |_| is_chat)
    }

    /// Bytes of the prompt before an end in the arena.
    fn offset(&self, at: usize) -> Option<usize> {
        let mut before = 0;
        for slice in self.stream {
            if slice.start < at && at <= slice.end {
                return Some(before + at - slice.start);
            }
            before += slice.len();
        }
        None
    }

    /// Bytes or ids of all prompts, to book; without a prompt, bytes of the body.
    #[must_use]
    pub fn size(&self) -> usize {
        if self.prompts.is_empty() {
            return self.bytes;
        }
        self.prompts().map(|prompt| prompt.len()).sum()
    }

    fn prompt(&self, place: Place) -> Prompt<'a> {
        match place {
            Place::Text(slices) => Prompt::Text(Text {
                arena: self.arena,
                slices: &self.stream[slices.start..slices.end],
            }),
            Place::Tokens(ids) => Prompt::Tokens(&self.tokens[ids.start..ids.end]),
        }
    }

    fn str(&self, span: Span) -> &'a str {
        std::str::from_utf8(span.of(self.arena)).unwrap_or_default()
    }
}
