//! The effect of a message on the conversation once it is read.

use super::Conversation;
use super::contents::{Block, Class, IMAGE, SHOWN};
use super::messages::ASSISTANT;
use super::pieces::{is_result, thoughts};
use crate::canon::{ARRAY, PIECE, Span, TEXT};
use crate::layout::Systems;
use crate::profile::{Engine, Profile};
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
        for part in [calls, fields] {
            if part.len() > 0 {
                self.order.insert(second, part);
            }
        }
        self.note_parts(w, start, dialect);
        w.canon().arrange(start, &self.order);
        let span = w.canon().since(start);
        self.note_system(w, span, (dialect, changes_tools));
    }

    /// Writes what stands before a message with calls, if `more` or the blocks hold some: they are shared as a whole.
    pub(super) fn put_whole_calls(&self, w: &mut Writer, more: Span) -> Span {
        if w.profile.is_likely || self.blocks.is_empty() && more.len() == 0 {
            return Span::default();
        }
        let is_call = |block: &&Block| block.class == Class::Call;
        let calls = self.blocks.iter().filter(is_call).map(|block| block.span);
        w.canon().put_whole(b'q', calls.chain([more]))
    }

    /// Notes the turns that the parts of a message begin, once it lies at `at`, and its reasoning: also that in the
    /// text of an assistant, which templates cut out of it, behind a mark of its own.
    pub(super) fn note_parts(&mut self, w: &mut Writer, mut at: usize, dialect: Dialect) {
        if w.profile.is_likely {
            self.pieces.note(w.bytes(), &self.order, at);
            return;
        }
        let keeps = w.profile.keeps_reasoning;
        let gathers = gathers(w.profile, dialect);
        let is_assistant = |part: &Span, w: &Writer| part.of(w.bytes()) == ASSISTANT;
        if !keeps && self.order.iter().any(|part| is_assistant(part, w)) {
            let thoughts = |part: &Span| match part.of(w.bytes()) {
                ASSISTANT | [PIECE, b'c' | b'd' | b'q' | b'r', ..] => 0,
                text => thoughts(text),
            };
            let count: usize = self.order.iter().map(thoughts).sum();
            if count > 0 {
                // All texts and images before the last thoughts go with them, and reasoning beside them may be left
                // out.
                let mut parts = self.order.iter();
                let is_content = |part: &Span| {
                    let part = part.of(w.bytes());
                    matches!(
                        part,
                        [TEXT | ARRAY, ..] | [PIECE, b'p' | b'r' | b'v' | IMAGE, ..]
                    )
                };
                let text = parts.position(is_content).unwrap_or(1);
                let start = w.canon().begin(b'h').start;
                if count > 1 {
                    w.canon().put_digest(count as u128);
                }
                self.order.insert(text, w.canon().since(start));
            }
        }
        let turns = &mut self.turns;
        let (mut own, mut begun) = (Span::default(), at);
        let mut last: &[u8] = b"";
        let (mut calls, mut text, mut whole) = (false, false, None);
        let mut first = true;
        // Whether engines may take the user's message for another, and its first text is not known yet.
        let mut lookalike = false;
        for part in &self.order {
            match part.of(w.bytes()) {
                [PIECE, b'm', rest @ ..] => {
                    let end = rest.iter().position(|byte| *byte >= PIECE);
                    let end = end.unwrap_or(rest.len());
                    last = &rest[..end];
                    (first, lookalike) = (true, false);
                    if gathers && matches!(last, b"system" | b"developer") {
                        turns.begin_gathered();
                    } else {
                        turns.begin(last, at);
                    }
                    if end == rest.len() {
                        (own, begun) = (*part, at);
                    }
                }
                [PIECE, b'k'] => {
                    first = true;
                    turns.begin(&own.of(w.bytes())[2..], at);
                    if w.profile.engine == Engine::Unset {
                        turns.begin_before(begun);
                    }
                }
                [PIECE, b'r' | b'h', ..] if !keeps => turns.note_reasoning(at),
                [PIECE, b'c' | b'd', ..] => calls = true,
                [PIECE, b'q', ..] => whole = Some(at),
                [PIECE, kind @ (b'g' | SHOWN), _, rest @ ..] => {
                    let rest = rest.get(16..).unwrap_or_default();
                    if last == b"user" && is_result(rest) {
                        turns.note_lookalike();
                    }
                    lookalike = last == b"user" && rest.is_empty();
                    if *kind == SHOWN {
                        turns.note_shown(last != b"user");
                    } else {
                        first = false;
                    }
                }
                [PIECE, IMAGE | b'p', ..] => first = false,
                [TEXT | ARRAY, _, ..] => {
                    if is_result(part.of(w.bytes())) {
                        if lookalike {
                            turns.note_lookalike();
                        }
                        if first {
                            turns.note_result();
                        }
                    }
                    (text, first, lookalike) = (true, false, false);
                }
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
    pub(super) fn note_system(
        &mut self,
        w: &mut Writer,
        span: Span,
        (dialect, changes_tools): (Dialect, bool),
    ) {
        let role = match span.of(w.bytes()) {
            [PIECE, b'm', rest @ ..] => rest,
            _ => &[],
        };
        let is = |name: &[u8]| {
            let rest = role.strip_prefix(name);
            rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte >= PIECE))
        };
        let (system, developer) = (is(b"system"), is(b"developer"));
        let leads = self.turns.lead(system || developer, developer, span.end);
        let moves = !leads || changes_tools;
        if (system || developer) && moves && !w.profile.is_likely {
            let matters = changes_tools || gathers(w.profile, dialect);
            self.turns.note_inline(w.canon(), span, matters);
        }
    }
}

/// Whether system messages may go to the front: `SGLang` puts those of the responses API there, whatever the template
/// does.
fn gathers(profile: Profile, dialect: Dialect) -> bool {
    profile.inline_system != Some(Systems::InPlace)
        || dialect == Dialect::Responses && profile.engine != Engine::Vllm
}
