//! Items of the responses API as messages.

use super::Conversation;
use super::calls::whole_call;
use crate::canon::{ARRAY, CLOSE, Span};
use crate::error::Result;
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
        let start = w.canon().begin_message(b"system").start();
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
        match reader.peek()? {
            Token::String => {
                self.count_message(w, reader)?;
                w.canon().begin_message(b"user");
                self.turns.begin(b"user", start);
                w.put_text(reader)?;
            }
            Token::Array => {
                reader.open()?;
                let mut open = false;
                while reader.element()? {
                    self.count_message(w, reader)?;
                    if reader.peek()? == Token::Object {
                        open = self.put_item(w, reader, open)?;
                    } else {
                        w.put_other(reader)?;
                        open = false;
                    }
                }
            }
            _ => {
                self.turns.drop_all();
                return reader.skip();
            }
        }
        self.turns.end(w.canon().end());
        Ok(())
    }

    /// An item; `open` says that the one before it began a message of the assistant that a call continues. Whether this
    /// one did.
    fn put_item(&mut self, w: &mut Writer, reader: &mut Reader<'_>, open: bool) -> Result<bool> {
        let (start, fields) = (w.canon().end(), w.fields());
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
                            (_, b"function_call") => Type::Call,
                            (_, b"function_call_output") => Type::Output,
                            (_, b"reasoning") => Type::Reasoning,
                            _ => Type::Other,
                        };
                        w.add_field(b"type", digest.filter(|_| kind == Type::Other));
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
                    let before = self.contents.parts();
                    self.contents.put(w, reader, Dialect::Responses)?;
                    parts[field] = self.contents.parts() - before;
                }
            }
            known[field] = w.canon().since(at);
        }
        let order = order(w, kind, &mut known, parts, open);
        w.add_written(&NAMES, &known);
        self.order.clear();
        self.order.extend_from_slice(&order);
        self.finish_message(w, start, fields, Dialect::Responses);
        Ok(matches!(kind, Type::Call | Type::Reasoning))
    }
}

/// Takes the fields of an item out of `known` in their order.
fn order(
    w: &mut Writer,
    kind: Type,
    known: &mut [Span; NAMES.len()],
    parts: [u32; NAMES.len()],
    open: bool,
) -> [Span; 5] {
    let none = Span::default();
    for field in [CONTENT, SUMMARY] {
        if kind == Type::Reasoning && known[field].of(w.bytes()) == [ARRAY, CLOSE] {
            known[field] = none;
        }
    }
    let summary = known[CONTENT].len() == 0;
    let mut take = |field: usize| std::mem::take(&mut known[field]);
    match kind {
        Type::Message => {
            let mut role = take(ROLE);
            if role.len() == 0 {
                role = w.canon().begin(b'm');
            }
            [role, take(CONTENT), none, none, none]
        }
        Type::Call => {
            let begin = if open {
                none
            } else {
                w.canon().begin_message(b"assistant")
            };
            let id = take(CALL_ID);
            let [name, arguments] = whole_call(w, [take(NAME), take(ARGUMENTS)]);
            [begin, id, name, arguments, none]
        }
        Type::Output => {
            let call = take(CALL_ID);
            if call.len() > 0 {
                // It names the call whose result this is.
                w.canon().set_kind(call.start(), b'i');
            }
            let begin = w.canon().begin_message(b"tool");
            [begin, call, take(OUTPUT), none, none]
        }
        Type::Reasoning => {
            let begin = w.canon().begin_message(b"assistant");
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
