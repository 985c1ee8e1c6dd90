//! What a message that was read means for the conversation.

use std::ops::Range;

use super::Conversation;
use super::contents::{Block, Class};
use super::messages::ASSISTANT;
use crate::canon::{ARRAY, PIECE, Span, TEXT};
use crate::profile::InlineSystem;
use crate::writer::{Dialect, Writer};

impl Conversation {
    /// Arranges a message by the order of its parts, and notes the turns that it is made of.
    pub(super) fn finish_message(
        &mut self,
        w: &mut Writer,
        start: usize,
        fields: usize,
        (calls, dialect): (Span, Dialect),
    ) {
        // Templates may render calls, or fields of their own, before the text.
        let at = w.canon().end();
        w.put_fields(fields, b'x');
        let fields = w.canon().since(at);
        let calls = self.put_whole_calls(w, calls);
        let second = self.order.len().min(1);
        for part in [calls, fields] {
            if part.len() > 0 {
                self.order.insert(second, part);
            }
        }
        self.note_parts(w, start);
        w.canon().arrange(start, &self.order);
        let span = w.canon().since(start);
        self.note_system(w, span, dialect);
    }

    /// Writes what stands before a message with calls, if `more` or the blocks hold some: they are shared as a whole.
    pub(super) fn put_whole_calls(&self, w: &mut Writer, more: Span) -> Span {
        if self.blocks.is_empty() && more.len() == 0 {
            return more;
        }
        let is_call = |block: &&Block| block.class == Class::Call;
        let calls = self.blocks.iter().filter(is_call).map(|block| block.span);
        w.canon().put_whole(b'q', calls.chain([more]))
    }

    /// Notes the turns that the parts of a message begin, once it lies at `at`, and its reasoning: also that in the text
    /// of an assistant, which templates cut out of it, behind a mark of its own.
    pub(super) fn note_parts(&mut self, w: &mut Writer, mut at: usize) {
        let keeps = w.profile().keeps_reasoning;
        let is_assistant = |part: &Span, w: &Writer| part.of(w.bytes()) == ASSISTANT;
        if !keeps && self.order.iter().any(|part| is_assistant(part, w)) {
            let mut parts = self.order.iter();
            let thinks = |part: &Span| !is_assistant(part, w) && holds_thoughts(part.of(w.bytes()));
            if let Some(text) = parts.position(thinks) {
                let mark = w.canon().begin(b'h');
                self.order.insert(text, mark);
            }
        }
        let turns = &mut self.turns;
        let mut own = Span::default();
        let mut last: &[u8] = b"";
        let (mut calls, mut text, mut whole) = (false, false, None);
        for part in &self.order {
            match part.of(w.bytes()) {
                [PIECE, b'm', rest @ ..] => {
                    let end = rest.iter().position(|byte| *byte >= PIECE);
                    let end = end.unwrap_or(rest.len());
                    last = &rest[..end];
                    turns.begin(last, at);
                    if end == rest.len() {
                        own = *part;
                    }
                }
                [PIECE, b'k'] => turns.begin(&own.of(w.bytes())[2..], at),
                [PIECE, b'r' | b'h', ..] if !keeps => turns.note_reasoning(at),
                [PIECE, b'c' | b'd', ..] => calls = true,
                [PIECE, b'q', ..] => whole = Some(at),
                [TEXT, result @ ..] if result.starts_with(b"<tool_response>") => {
                    turns.note_result();
                }
                [TEXT | ARRAY, _, ..] => text = true,
                _ => {}
            }
            at += part.len();
        }
        if let Some(whole) = whole.filter(|_| text) {
            turns.note_calls(whole);
        }
        if last == b"assistant" && !calls {
            turns.note_final();
        }
    }

    /// Notes whether a message, which was arranged, is one of the system.
    pub(super) fn note_system(&mut self, w: &mut Writer, span: Span, dialect: Dialect) {
        let role = match span.of(w.bytes()) {
            [PIECE, b'm', rest @ ..] => rest,
            _ => &[],
        };
        let is = |name: &[u8]| {
            let rest = role.strip_prefix(name);
            rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte >= PIECE))
        };
        let (system, developer) = (is(b"system"), is(b"developer"));
        let leads = dialect != Dialect::Messages
            && self.turns.lead(system || developer, developer, span.end());
        if (system || developer) && !leads && w.profile().inline_system == InlineSystem::Merged {
            self.turns.note_inline(w.canon(), span);
        }
    }
}

/// Whether a text has thoughts in it.
fn holds_thoughts(text: &[u8]) -> bool {
    const END: &[u8] = b"</think>";
    const BLOCK: usize = 32;
    let begins = |block: &[u8; BLOCK]| {
        let begins = |any: u8, byte: &u8| any | u8::from(*byte == END[0]);
        block.iter().fold(0, begins) != 0
    };
    let holds = |mut places: Range<usize>| places.any(|at| text[at..].starts_with(END));
    let Some(places) = text.len().checked_sub(END.len() - 1) else {
        return false;
    };
    // Blocks without the first byte are passed over as vectors; the last of them overlaps.
    let (blocks, rest) = text.as_chunks();
    let behind = text.len() - rest.len();
    let mut blocks = blocks.iter().zip((0..).step_by(BLOCK));
    blocks.any(|(block, start)| begins(block) && holds(start..start + BLOCK))
        || text.last_chunk().is_none_or(begins) && holds(behind..places)
}
