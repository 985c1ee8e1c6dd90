//! Conversations of chats, of the responses API and of Anthropic's messages.

mod calls;
mod contents;
mod finish;
mod messages;
mod responses;
mod turns;

use self::contents::{Block, Contents};
use self::turns::Turns;
use crate::canon::Span;
use crate::profile::{InlineSystem, ToolsPlace};
use crate::tools::Tools;
use crate::writer::Writer;

/// The conversation of a body.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    turns: Turns,
    contents: Contents,
    /// System blocks that carry the attribution header of a client.
    attribution: u32,
    /// Blocks of the message that is read.
    blocks: Vec<Block>,
    /// Whether an item behind the first of those holds media.
    late_media: bool,
    /// Parts of the message that is read, in their order.
    order: Vec<Span>,
    /// The digest of the head, and tools, as they lie in the arena.
    beside: [Span; 2],
}

impl Conversation {
    /// Forgets the last body.
    pub(crate) fn clear(&mut self) {
        self.turns.clear();
        self.contents.clear();
        self.attribution = 0;
        self.beside = Default::default();
    }

    /// Where the messages lie.
    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Parts, those that are media, and system blocks of attribution.
    pub(crate) fn counts(&self) -> [u32; 3] {
        [
            self.contents.parts(),
            self.contents.media(),
            self.attribution,
        ]
    }

    /// Where the digest of the head, and tools, lie in the arena; empty where there are none.
    pub(crate) fn beside(&self) -> [Span; 2] {
        self.beside
    }

    /// The slices of the prompt in their order, if there is a conversation: `[digest][system][tools][messages]`, or as
    /// the profile has it.
    pub(crate) fn lay_out(&mut self, w: &mut Writer, tools: &Tools) -> Option<[Span; 6]> {
        let keeps_reasoning = w.profile().keeps_reasoning;
        let parts = self.turns.parts(w.canon(), keeps_reasoning)?;
        let mut place = w.profile().tools_place;
        w.add_field(b"inline", self.turns.inline());
        if self.turns.has_systems() && w.profile().inline_system == InlineSystem::Merged {
            // Templates may render the last one only.
            w.add_written(&[b"leading"], &[parts.system[1]]);
        }
        if place == ToolsPlace::AfterSystem && tools.span().len() > 0 {
            if self.turns.has_one_leader() {
                // Templates announce tools in front of the system text too.
                w.add_field(b"tools", Some(1));
            } else {
                place = ToolsPlace::Unknown;
            }
        }
        if place == ToolsPlace::LastUser && self.turns.moves_users() {
            let all = Span::from(parts.before.start()..parts.behind.end());
            w.add_written(&[b"messages", b"their tools"], &[all, tools.span()]);
        }
        if place == ToolsPlace::Unknown {
            w.add_written(&[b"tools"], &[tools.span()]);
        }
        let start = w.canon().end();
        if let Some(digest) = w.take_fields(0) {
            w.canon().put_digest(digest);
        }
        let head = w.canon().since(start);
        let (before, behind, tools) = (parts.before, parts.behind, tools.span());
        let [system, leading] = parts.system;
        self.beside = [head, tools];
        Some(match place {
            ToolsPlace::Unknown | ToolsPlace::AfterSystem => {
                [head, system, leading, tools, before, behind]
            }
            ToolsPlace::BeforeSystem => [head, tools, system, leading, before, behind],
            ToolsPlace::LastUser => [head, system, leading, before, tools, behind],
        })
    }
}
