//! Items of the responses API as messages.

use crate::canon::{ARRAY, CLOSE, PIECE, Span};
use crate::error::Result;
use crate::scan::{Reader, Token};
use crate::state::{BodyReader, Dialect};

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

impl BodyReader {
    /// `instructions`: a system message before all others.
    pub(crate) fn read_instructions(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let start = self.canon.bytes.len();
        self.canon.bytes.extend_from_slice(&[PIECE, b'm']);
        self.canon.bytes.extend_from_slice(b"system");
        let null = reader.peek()? == Token::Null;
        self.put_content(reader, Dialect::Responses)?;
        self.turns.system = (!null).then(|| self.canon.since(start));
        Ok(())
    }

    /// `input`: the text of a user, or items.
    pub(crate) fn read_items(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        self.restart_turns();
        let start = self.canon.bytes.len();
        match reader.peek()? {
            Token::String => {
                self.count_message(reader)?;
                self.canon.bytes.extend_from_slice(&[PIECE, b'm']);
                self.canon.bytes.extend_from_slice(b"user");
                self.turns.begin(b"user", start);
                self.put_text(reader)?;
            }
            Token::Array => {
                reader.open()?;
                let mut open = false;
                while reader.element()? {
                    self.count_message(reader)?;
                    if reader.peek()? == Token::Object {
                        open = self.put_item(reader, open)?;
                    } else {
                        self.put_other(reader)?;
                        open = false;
                    }
                }
            }
            _ => {
                self.turns.span = None;
                return reader.skip();
            }
        }
        self.turns.span = Some(self.canon.since(start));
        Ok(())
    }

    /// An item; `open` says that the one before it began a message of the assistant that a call continues. Whether this
    /// one did.
    fn put_item(&mut self, reader: &mut Reader<'_>, open: bool) -> Result<bool> {
        let start = self.canon.bytes.len();
        let fields = self.fields.base();
        let mut known = [Span::default(); NAMES.len()];
        let mut parts = [0; NAMES.len()];
        let mut kind = Type::Message;
        reader.open()?;
        while self.next_key(reader)? {
            let at = self.canon.bytes.len();
            let Some(field) = NAMES.iter().position(|name| **name == self.key) else {
                match self.key.as_slice() {
                    b"type" => {
                        let digest = self.read_word(reader)?;
                        kind = match (digest, self.word.as_slice()) {
                            (None, _) | (_, b"message") => Type::Message,
                            (_, b"function_call") => Type::Call,
                            (_, b"function_call_output") => Type::Output,
                            (_, b"reasoning") => Type::Reasoning,
                            _ => Type::Other,
                        };
                        let other = digest.filter(|_| kind == Type::Other);
                        self.fields.add(&self.canon, b"type", other);
                    }
                    b"id" | b"status" => reader.skip()?,
                    _ => self.read_field(reader)?,
                }
                continue;
            };
            match field {
                ROLE => self.put_piece(reader, b'm')?,
                CALL_ID => self.put_piece(reader, b'd')?,
                NAME => self.put_piece(reader, b'c')?,
                ARGUMENTS => self.put_arguments(reader)?,
                _ => {
                    let before = self.facts.parts;
                    self.put_content(reader, Dialect::Responses)?;
                    parts[field] = self.facts.parts - before;
                }
            }
            known[field] = self.canon.since(at);
        }
        self.order_item(kind, known, parts, open);
        self.finish_message(start, fields, Dialect::Responses);
        Ok(matches!(kind, Type::Call | Type::Reasoning))
    }

    fn order_item(
        &mut self,
        kind: Type,
        mut known: [Span; NAMES.len()],
        parts: [u32; NAMES.len()],
        open: bool,
    ) {
        let none = Span::default();
        for field in [CONTENT, SUMMARY] {
            if kind == Type::Reasoning && known[field].of(&self.canon.bytes) == [ARRAY, CLOSE] {
                known[field] = none;
            }
        }
        let mut take = |field: usize| std::mem::take(&mut known[field]);
        let order = match kind {
            Type::Message => {
                let role = take(ROLE);
                let role = if role.len() > 0 {
                    role
                } else {
                    self.canon.written(&[PIECE, b'm'])
                };
                [role, take(CONTENT), none, none, none]
            }
            Type::Call => {
                let begin = if open {
                    none
                } else {
                    self.put_role(b"assistant")
                };
                let (id, mut name, mut arguments) = (take(CALL_ID), take(NAME), take(ARGUMENTS));
                if name.len() == 0 {
                    name = self.canon.written(&[PIECE, b'c']);
                }
                if arguments.len() == 0 {
                    arguments = self.put_no_arguments();
                }
                [begin, id, name, arguments, none]
            }
            Type::Output => {
                let call = take(CALL_ID);
                if call.len() > 0 {
                    // It names the call whose result this is.
                    self.canon.bytes[call.start + 1] = b'i';
                }
                [self.put_role(b"tool"), call, take(OUTPUT), none, none]
            }
            Type::Reasoning => {
                let begin = self.put_role(b"assistant");
                let mark = self.canon.written(&[PIECE, b'r']);
                let field = if known[CONTENT].len() > 0 {
                    CONTENT
                } else {
                    SUMMARY
                };
                let text = std::mem::take(&mut known[field]);
                let mut around = [none; 2];
                if parts[field] > 1 {
                    // Several texts are not one with a content behind it.
                    around = [&[ARRAY], &[CLOSE]].map(|mark| self.canon.written(mark));
                }
                [begin, mark, around[0], text, around[1]]
            }
            Type::Other => [self.canon.written(&[PIECE, b'o']), none, none, none, none],
        };
        for (name, span) in NAMES.iter().zip(known) {
            if span.len() > 0 {
                self.fields.add_span(&self.canon, name, span);
            }
        }
        self.order.clear();
        self.order.extend_from_slice(&order);
    }

    /// Begins a message.
    fn put_role(&mut self, role: &[u8]) -> Span {
        let start = self.canon.bytes.len();
        self.canon.bytes.extend_from_slice(&[PIECE, b'm']);
        self.canon.bytes.extend_from_slice(role);
        self.canon.since(start)
    }
}
