//! What a message that was read means for the conversation.

use super::Conversation;
use super::contents::{Block, Class};
use super::messages::ASSISTANT;
use crate::canon::{ARRAY, PIECE, Span, TEXT};
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
        // A block of an Anthropic system message that is no text adds or removes tools.
        let mut blocks = self.blocks.iter();
        let changes_tools =
            dialect == Dialect::Messages && blocks.any(|block| block.is_media(w.bytes()));
        // Templates may render calls, or fields of their own, before the text.
        let at = w.canon().end();
        w.put_fields(fields, b'x');
        let fields = w.canon().since(at);
        let calls = self.put_whole_calls(w, calls);
        let second = self.order.len().min(1);
        self.order.splice(second..second, [fields, calls]);
        self.note_parts(w, start);
        w.canon().arrange(start, &self.order);
        let span = w.canon().since(start);
        self.note_system(w, span, changes_tools);
    }

    /// Writes what stands before a message with calls, if `more` or the blocks hold some: they are shared as a whole.
    pub(super) fn put_whole_calls(&self, w: &mut Writer, more: Span) -> Span {
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
            let holds = |part: &Span| match part.of(w.bytes()) {
                [PIECE, b'c' | b'd' | b'q' | b'r', ..] => false,
                text => holds_thoughts(text),
            };
            if let Some(thoughts) = self.order.iter().position(holds) {
                // All texts of the message are one when they are cut out.
                let is_text = |part: &Span| part.of(w.bytes()).first() == Some(&TEXT);
                let text = self.order.iter().position(is_text);
                let mark = w.canon().begin(b'h');
                self.order
                    .insert(text.unwrap_or(thoughts).min(thoughts), mark);
            }
        }
        let turns = &mut self.turns;
        let (mut own, mut begun) = (Span::default(), at);
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
                        (own, begun) = (*part, at);
                    } else if rest.ends_with(&[PIECE, b'u']) {
                        turns.begin(b"user", at);
                    }
                }
                [PIECE, b'k'] => {
                    turns.begin(&own.of(w.bytes())[2..], at);
                    turns.begin_before(begun);
                }
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
    pub(super) fn note_system(&mut self, w: &mut Writer, span: Span, changes_tools: bool) {
        let is = |role: &[u8]| {
            let message = span.of(w.bytes());
            let rest = message.strip_prefix(&[PIECE, b'm']);
            let rest = rest.and_then(|rest| rest.strip_prefix(role));
            rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte >= PIECE))
        };
        let (system, developer) = (is(b"system"), is(b"developer"));
        let leads = self.turns.lead(system || developer, developer, span.end());
        if (system || developer) && (!leads || changes_tools) {
            self.turns.note_inline(w.canon(), span, changes_tools);
        }
    }
}

/// Whether a text has thoughts in it.
fn holds_thoughts(text: &[u8]) -> bool {
    const END: &[u8] = b"</think>";
    const BLOCK: usize = 64;
    // Blocks without the first byte are passed over as vectors.
    let mut blocks = text.chunks(BLOCK).zip((0..).step_by(BLOCK));
    blocks.any(|(block, start): (&[u8], usize)| {
        let begins = |any: u8, byte: &u8| any | u8::from(*byte == END[0]);
        let begins = block.iter().fold(0, begins) != 0;
        begins && (start..start + block.len()).any(|at| text[at..].starts_with(END))
    })
}
