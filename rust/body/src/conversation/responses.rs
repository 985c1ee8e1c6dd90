//! Items of the responses API as messages.

use super::Conversation;
use super::calls::whole_call;
use super::contents::{Block, Class};
use super::messages::ASSISTANT;
use crate::canon::{ARRAY, CLOSE, DIGEST, PIECE, Span, TEXT};
use crate::error::Result;
use crate::profile::Engine;
use crate::scan::{Reader, Token};
use crate::writer::{Dialect, Writer};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Message,
    Call,
    Output,
    Reasoning,
    Other,
}

const ROLE: usize = 0;
const CONTENT: usize = 1;
const CALL_ID: usize = 2;
const NAME: usize = 3;
const ARGUMENTS: usize = 4;
const OUTPUT: usize = 5;
const SUMMARY: usize = 6;
const NAMES: [&[u8]; 7] = [
    b"role",
    b"content",
    b"call_id",
    b"name",
    b"arguments",
    b"output",
    b"summary",
];

impl Conversation {
    /// `instructions`: a system message before all others.
    pub(crate) fn read_instructions(
        &mut self,
        w: &mut Writer,
        reader: &mut Reader<'_>,
    ) -> Result<()> {
        let start = w.canon().begin_message(b"system").start;
        let null = reader.peek()? == Token::Null;
        self.contents.put(w, reader, Dialect::Responses)?;
        let system = w.canon().since(start);
        self.turns.set_system((!null).then_some(system));
        Ok(())
    }

    /// `input`: the text of a user, or items.
    pub(crate) fn read_items(&mut self, w: &mut Writer, reader: &mut Reader<'_>) -> Result<()> {
        let start = w.canon().end();
        self.turns.restart(start);
        self.pieces.restart();
        match reader.peek()? {
            Token::String => {
                self.count_message(w, reader)?;
                w.canon().begin_message(b"user");
                self.turns.begin(b"user", start);
                self.pieces.ask(start);
                w.put_text(reader)?;
            }
            Token::Array => {
                reader.open()?;
                self.blocks.clear();
                self.late_media = false;
                self.apart = Apart::default();
                while reader.element()? {
                    self.count_message(w, reader)?;
                    if reader.peek()? == Token::Object {
                        self.put_item(w, reader)?;
                    } else {
                        let start = w.canon().end();
                        w.put_other(reader)?;
                        let item = w.canon().since(start);
                        self.close_run(w, item);
                        self.turns.lead(false, false, w.canon().end());
                    }
                }
                let end = w.canon().end();
                self.close_run(w, Span::from(end..end));
            }
            _ => {
                self.turns.drop_all();
                return reader.skip();
            }
        }
        self.turns.end(w.canon().end());
        Ok(())
    }

    /// An item: a message, or a part of the assistant's.
    fn put_item(&mut self, w: &mut Writer, reader: &mut Reader<'_>) -> Result<()> {
        let (start, fields) = (w.canon().end(), w.fields());
        let media = self.contents.media;
        let mut known = [Span::default(); NAMES.len()];
        let mut parts = [0; NAMES.len()];
        let mut kind = Type::Message;
        reader.open()?;
        while w.next_key(reader)? {
            let at = w.canon().end();
            let Some(field) = NAMES.iter().position(|name| **name == *w.key()) else {
                match w.key() {
                    b"type" => {
                        let digest = w.read_word(reader)?;
                        kind = match (digest, w.word()) {
                            (None, _) | (_, b"message") => Type::Message,
                            (_, b"function_call" | b"custom_tool_call") => Type::Call,
                            (_, b"function_call_output" | b"custom_tool_call_output") => {
                                Type::Output
                            }
                            (_, b"reasoning") => Type::Reasoning,
                            _ => Type::Other,
                        };
                        let other = kind == Type::Other || w.word().starts_with(b"custom");
                        w.add_field(b"type", digest.filter(|_| other));
                    }
                    b"id" | b"status" => reader.skip()?,
                    _ => w.read_field(reader)?,
                }
                continue;
            };
            match field {
                ROLE => _ = w.put_piece(reader, b'm')?,
                CALL_ID => _ = w.put_piece(reader, b'd')?,
                NAME => _ = w.put_piece(reader, b'c')?,
                ARGUMENTS => w.put_arguments(reader)?,
                _ => {
                    let before = self.contents.parts;
                    self.contents.put(w, reader, Dialect::Responses)?;
                    parts[field] = self.contents.parts - before;
                }
            }
            known[field] = w.canon().since(at);
        }
        let class = match kind {
            Type::Call => Some(Class::Call),
            Type::Reasoning => Some(Class::Reasoning),
            Type::Message if known[ROLE].of(w.bytes()) == ASSISTANT => Some(Class::Content),
            _ => None,
        };
        let engine = w.profile.engine;
        // vLLM takes an answer that begins with no text as it is.
        let stays = class == Some(Class::Content)
            && engine != Engine::Sglang
            && !begins_with_text(known[CONTENT].of(w.bytes()));
        let joins = class.is_some_and(|class| {
            let vllm = self.joins(Engine::Vllm, class) && !stays;
            self.apart.add(class, (!vllm).then_some(self.blocks.len()));
            if engine == Engine::Vllm {
                vllm
            } else {
                self.joins(engine, class)
            }
        });
        self.apart.messages += usize::from(class.is_some() && !joins);
        let order = order(w, kind, &mut known, parts, joins);
        w.add_written(&NAMES, &known);
        w.canon().arrange(start, &order);
        w.put_fields(fields, b'x');
        let item = w.canon().since(start);
        let Some(class) = class else {
            let item = self.close_run(w, item);
            let role = item.of(w.bytes()).iter().skip(1);
            let role = role.take_while(|byte| **byte < PIECE).count();
            let content = item.start + 1 + role;
            self.order.clear();
            let parts = [item.start..content, content..item.end];
            self.order.extend(parts.map(Span::from));
            self.note_parts(w, item.start, Dialect::Responses);
            self.note_system(w, item, (Dialect::Responses, false));
            return Ok(());
        };
        let has_media = self.contents.media > media;
        self.late_media |= has_media && !self.blocks.is_empty();
        let span = match (engine == Engine::Vllm, joins) {
            (true, true) => {
                self.turns.join();
                item
            }
            (true, false) => self.close_run(w, item),
            (false, _) => item,
        };
        let shown = span.end;
        self.blocks.push(Block { class, span, shown });
        self.turns.lead(false, false, w.canon().end());
        Ok(())
    }

    /// Whether an item of the assistant goes on with the message of the one before it. vLLM joins all of them until one
    /// comes twice that a message has once; others at least calls with what comes before them.
    fn joins(&self, engine: Engine, class: Class) -> bool {
        let latest = &self.blocks[self.apart.start.min(self.blocks.len())..];
        let has = |class| latest.iter().any(|block| block.class == class);
        match (engine, self.blocks.last()) {
            (_, None) => false,
            (Engine::Vllm, Some(_)) => class == Class::Call || !has(class),
            (_, Some(last)) => class == Class::Call && last.class != Class::Content,
        }
    }

    /// Closes the assistant's items before `item`, which lies behind them; where it lies then. vLLM renders reasoning
    /// first and calls last; others may, and images before texts, so that a run in another order is shared as a whole or not at all.
    fn close_run(&mut self, w: &mut Writer, item: Span) -> Span {
        let Some((first, last)) = self.blocks.first().zip(self.blocks.last()) else {
            return item;
        };
        let run = Span::from(first.span.start..last.span.end);
        self.order.clear();
        let mut moved = false;
        if w.profile.engine == Engine::Vllm {
            let begin = Span::from(run.start..run.start + ASSISTANT.len());
            self.order.push(begin);
            self.blocks[0].span = Span::from(begin.end..self.blocks[0].span.end);
            self.blocks.sort_by_key(|block| block.class);
        } else if self.late_media || !self.blocks.is_sorted_by_key(|block| block.class) {
            let whole = w.canon().put_whole(b'g', [run]);
            self.order.push(whole);
            moved = self.blocks.iter().any(Block::is_reasoning);
        }
        let calls = self.put_whole_calls(w, Span::default());
        self.order.push(calls);
        for block in &self.blocks {
            let mut rest = block.span;
            if rest.of(w.bytes()).starts_with(ASSISTANT) {
                let begin = Span::from(rest.start..rest.start + ASSISTANT.len());
                self.order.push(begin);
                rest = Span::from(begin.end..rest.end);
                if moved {
                    self.order.push(w.canon().begin(b'h'));
                }
            }
            self.order.push(rest);
        }
        self.blocks.clear();
        self.late_media = false;
        let begun = self.turns.begun;
        self.note_parts(w, run.start, Dialect::Responses);
        let answer = std::mem::take(&mut self.apart).last_answer();
        if answer > 0 && w.profile.engine == Engine::Unset {
            self.turns.note_apart(begun + answer);
        }
        self.order.push(item);
        w.canon().arrange(run.start, &self.order);
        let end = w.canon().end();
        let item = Span::from(end - item.len()..end);
        if item.len() > 0 {
            self.turns.move_last(item.start);
        }
        item
    }
}

/// How many messages the assistant's items in a row are, and the last that ends with an answer without calls to vLLM.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Apart {
    messages: usize,
    answer: usize,
    calls: bool,
    /// Where its latest message begins.
    start: usize,
}

impl Apart {
    /// An item, with which vLLM begins a message if it has this number.
    fn add(&mut self, class: Class, begins: Option<usize>) {
        if let Some(at) = begins {
            (self.answer, self.calls, self.start) = (self.last_answer(), false, at);
        }
        self.calls |= class == Class::Call;
    }

    /// The number of that message, 0 for none.
    fn last_answer(self) -> usize {
        if self.calls {
            self.answer
        } else {
            self.messages
        }
    }
}

/// Whether the first part of a content is a text.
fn begins_with_text(content: &[u8]) -> bool {
    let content = match content {
        [PIECE, b'g', DIGEST, rest @ ..] => rest.get(16..).unwrap_or_default(),
        content => content,
    };
    content.first() == Some(&TEXT)
}

/// Takes the fields of an item out of `known` in their order.
fn order(
    w: &mut Writer,
    kind: Type,
    known: &mut [Span; NAMES.len()],
    parts: [u32; NAMES.len()],
    joins: bool,
) -> [Span; 5] {
    let none = Span::default();
    for field in [CONTENT, SUMMARY] {
        if kind == Type::Reasoning && known[field].of(w.bytes()) == [ARRAY, CLOSE] {
            known[field] = none;
        }
    }
    let summary = known[CONTENT].len() == 0;
    let mut take = |field: usize| std::mem::take(&mut known[field]);
    let begin = match kind {
        Type::Call | Type::Reasoning if !joins => w.canon().begin_message(b"assistant"),
        Type::Output => w.canon().begin_message(b"tool"),
        _ => none,
    };
    match kind {
        Type::Message => {
            let mut role = take(ROLE);
            if joins {
                role = none;
            } else if role.len() == 0 {
                role = w.canon().begin(b'm');
            }
            [role, take(CONTENT), none, none, none]
        }
        Type::Call => {
            let id = take(CALL_ID);
            let [name, arguments] = whole_call(w, [take(NAME), take(ARGUMENTS)]);
            [begin, id, name, arguments, none]
        }
        Type::Output => {
            let call = take(CALL_ID);
            if call.len() > 0 {
                // It names the call whose result this is.
                w.canon().set_kind(call.start, b'i');
            }
            [begin, call, take(OUTPUT), none, none]
        }
        Type::Reasoning => {
            let mark = w.canon().begin(b'r');
            let field = if summary { SUMMARY } else { CONTENT };
            let text = take(field);
            let mut around = [none; 2];
            if parts[field] > 1 {
                // Several texts are not one with a content behind it.
                around = [ARRAY, CLOSE].map(|mark| w.canon().put(&[mark]));
            }
            [begin, mark, around[0], text, around[1]]
        }
        Type::Other => [w.canon().begin(b'o'), none, none, none, none],
    }
}
