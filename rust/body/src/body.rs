//! The result of reading a body.

use std::fmt;
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::canon::Span;
use crate::conversation::Conversation;
use crate::facts::{Facts, Kind};
use crate::head::Head;
use crate::identity::{Clues, session_of_user};
use crate::outline::Outline;
use crate::prompts::Prompts;
use crate::text::Prompt;

/// A body that was read. It borrows the reader, which the next body reuses.
#[derive(Clone, Copy)]
pub struct Body<'a> {
    arena: &'a [u8],
    prompts: &'a Prompts,
    conversation: &'a Conversation,
    head: &'a Head,
    facts: Facts,
}

/// Without content.
impl fmt::Debug for Body<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut body = f.debug_struct("Body");
        body.field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl<'a> Body<'a> {
    /// A body whose parts lie in `arena`.
    pub(crate) fn new(
        arena: &'a [u8],
        (prompts, conversation, head): (&'a Prompts, &'a Conversation, &'a Head),
        facts: Facts,
    ) -> Self {
        Self {
            arena,
            prompts,
            conversation,
            head,
            facts,
        }
    }

    /// Its figures.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// The kind of answer that it asks for.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.facts.kind
    }

    /// `model`.
    #[must_use]
    pub fn model(&self) -> Option<&'a str> {
        self.head.model().map(|span| self.str(span))
    }

    /// Id of the stored response that a continuation continues; those of conversations and sessions are
    /// [clues](Self::identify).
    #[must_use]
    pub fn previous_response(&self) -> Option<&'a str> {
        self.head.previous_response().map(|span| self.str(span))
    }

    /// A string beside the prompt: `/cache_salt`, `/extra_key`, `/nvext/cache_salt` or `/lora_path`.
    #[must_use]
    pub fn noted(&self, path: &str) -> Option<&'a str> {
        let (_, span) = self.head.noted().find(|(known, _)| *known == path)?;
        Some(self.str(span))
    }

    /// Adds what names the conversation to `clues`.
    pub fn identify(&self, clues: &mut Clues<'a>) {
        for (path, span) in self.head.noted() {
            let value = self.str(span);
            match path {
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
        self.prompts.iter(self.arena)
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
        let chat = (self.facts.kind == Kind::Chat).then_some(self.conversation);
        let placed = chat.into_iter().flat_map(|chat| &chat.pieces.ends);
        let placed = placed.copied();
        let last = self.prompts().next().map_or(0, |prompt| prompt.len());
        let is_placed = self.conversation.pieces.is_placed();
        let ends = chat
            .filter(|_| !is_placed)
            .into_iter()
            .flat_map(Conversation::ends);
        let inner = ends.filter_map(move |end| body.prompts.offset(end));
        placed
            .chain(inner)
            .filter(move |end| *end < last)
            .chain(chat.map(|_| last))
    }

    /// Digests of the parts of the prompt of a likely conversation, by which it is compared under every layout, with
    /// the key `seed`; `None` if there are too many.
    #[must_use]
    pub fn outline(&self, seed: u64) -> Option<Outline> {
        let chat = (self.facts.kind == Kind::Chat).then_some(self.conversation)?;
        chat.pieces
            .outline(self.arena, |part| xxh3_64_with_seed(part, seed))
    }

    /// Where the digest of the head, and tools, lie in the prompt of a conversation, in bytes; empty where there are
    /// none.
    #[must_use]
    pub fn beside(&self) -> [Range<usize>; 2] {
        self.conversation.beside.map(|part| {
            let end = self.prompts.offset(part.end).filter(|_| part.len() > 0);
            end.map_or(0..0, |end| end - part.len()..end)
        })
    }

    /// Whether the first of the [ends](Self::ends) is that of system text beside the messages.
    #[must_use]
    pub fn has_system(&self) -> bool {
        self.conversation.has_system_first()
    }

    fn str(&self, span: Span) -> &'a str {
        std::str::from_utf8(span.of(self.arena)).unwrap_or_default()
    }
}
