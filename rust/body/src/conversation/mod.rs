//! Conversations of chats, of the responses API and of Anthropic's messages.

mod calls;
mod contents;
mod finish;
mod messages;
mod pieces;
mod responses;
mod turns;

use self::contents::{Block, Contents};
pub(crate) use self::pieces::Pieces;
use self::turns::Turns;
use crate::canon::Span;
use crate::layout::Layout;
use crate::layout::{Systems, Tools as Place};
use crate::tools::Tools;
use crate::writer::{Dialect, Writer};

/// The conversation of a body.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    /// Where the messages lie.
    pub(crate) turns: Turns,
    contents: Contents,
    /// System blocks that carry the attribution header of a client.
    attribution: u32,
    /// Blocks of the message that is read.
    blocks: Vec<Block>,
    /// Whether an item behind the first of those holds media.
    late_media: bool,
    /// The form that vLLM gives them, if the engine may be vLLM.
    apart: responses::Apart,
    /// Parts of the message that is read, in their order.
    order: Vec<Span>,
    /// The digest of the head, and tools, as they lie in the arena.
    pub(crate) beside: [Span; 2],
    /// Where messages end in the arena that come before system text in the prompt.
    split: usize,
    /// The parts that a layout arranges.
    pub(crate) pieces: Pieces,
}

impl Conversation {
    /// Forgets the last body.
    pub(crate) fn clear(&mut self) {
        self.turns.clear();
        self.contents.clear();
        self.pieces.clear();
        self.attribution = 0;
        (self.beside, self.split) = Default::default();
    }

    /// Where messages and system text beside them end in the arena, in the order of the prompt, but for its end.
    pub(crate) fn ends(&self) -> impl Iterator<Item = usize> {
        self.turns.ends(self.split)
    }

    /// Whether the first of those is that of system text beside the messages.
    pub(crate) fn has_system_first(&self) -> bool {
        self.turns.has_system() && self.split == 0
    }

    /// The slices of the prompt in the order of a layout, if there is a conversation.
    pub(crate) fn lay_out_by(
        &mut self,
        w: &mut Writer,
        tools: &Tools,
        dialect: Dialect,
        layout: Layout,
    ) -> Option<&[Span]> {
        let (system, messages, leading) = self.turns.sections()?;
        let start = w.canon().end();
        if let Some(digest) = w.take_fields(0) {
            w.canon().put_digest(digest);
        }
        let head = w.canon().since(start);
        self.beside = [head, tools.span()];
        let merges = dialect == Dialect::Responses && w.profile.merges_responses;
        let spans = [head, system, tools.span(), messages];
        self.pieces.lay_out(w.canon(), spans, leading, merges);
        self.attribution = self.pieces.attribution;
        Some(self.pieces.arrange(layout))
    }

    /// Parts, those that are media, and system blocks of attribution.
    pub(crate) fn counts(&self) -> [u32; 3] {
        [self.contents.parts, self.contents.media, self.attribution]
    }

    /// The slices of the prompt in their order, if there is a conversation: `[digest][system][tools][messages]`, or as
    /// the profile has it; `[digest][messages][tools][system][last user message ...]` for tools at the last user's.
    pub(crate) fn lay_out(&mut self, w: &mut Writer, tools: &Tools) -> Option<[Span; 7]> {
        let keeps_reasoning = w.profile.keeps_reasoning;
        let parts = self.turns.parts(w.canon(), keeps_reasoning)?;
        let mut place = w.profile.tools_place;
        let merges = w.profile.inline_system != Some(Systems::InPlace);
        w.add_field(b"inline", self.turns.inline(merges));
        if self.turns.has_systems() && merges {
            // Templates may render the last one only.
            w.add_written(&[b"leading"], &[parts.system[1]]);
        }
        if place == Some(Place::AfterSystem) && tools.span().len() > 0 {
            if self.turns.has_one_leader() {
                // Templates announce tools in front of the system text too.
                w.add_field(b"tools", Some(1));
            } else {
                place = None;
            }
        }
        if place == Some(Place::LastUser)
            && (self.turns.moves_users() || self.turns.inline(merges).is_some())
        {
            // The parts that go to the last user message are not known, or which message that is.
            let all = Span::from(parts.before.start..parts.behind.end);
            w.add_written(&[b"messages", b"their tools"], &[all, tools.span()]);
        }
        if place == Some(Place::LastUser) {
            // Templates render system text there too, others at the beginning.
            w.add_written(&[b"system", b"system messages"], &parts.system);
            let some = parts.system.iter().any(|part| part.len() > 0) || tools.span().len() > 0;
            if parts.asks.is_none() && some {
                w.add_field(b"no user", Some(1));
            }
        }
        if place.is_none() {
            w.add_written(&[b"tools"], &[tools.span()]);
        }
        let start = w.canon().end();
        if let Some(digest) = w.take_fields(0) {
            w.canon().put_digest(digest);
        }
        let head = w.canon().since(start);
        let (before, behind, tools) = (parts.before, parts.behind, tools.span());
        let [system, leading] = parts.system;
        let none = Span::default();
        self.beside = [head, tools];
        Some(match place {
            None | Some(Place::AfterSystem | Place::Absent) => {
                [head, system, leading, tools, none, before, behind]
            }
            Some(Place::BeforeSystem) => [head, tools, none, system, leading, before, behind],
            Some(Place::LastUser) => {
                // Some render it only if nothing follows that message.
                let late = parts.asks != Some(true) && system.len() + leading.len() > 0;
                let mark = if late { w.canon().begin(b'l') } else { none };
                if before.len() > 0 {
                    self.split = before.end;
                }
                [head, before, tools, mark, system, leading, behind]
            }
        })
    }
}
