//! Contents of messages: texts, media, and Anthropic's blocks.

use crate::canon::{ARRAY, CLOSE, PIECE, Span, TEXT};
use crate::error::Result;
use crate::scan::{Reader, Token};
use crate::state::{Block, BodyReader, Class, Dialect};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Type {
    Text,
    Thinking,
    ToolUse,
    ToolResult,
    #[default]
    Other,
}

impl Type {
    fn of(name: &[u8], dialect: Dialect) -> Self {
        match name {
            b"text" | b"input_text" | b"output_text" => Self::Text,
            b"reasoning_text" | b"summary_text" if dialect == Dialect::Responses => Self::Text,
            b"thinking" if dialect == Dialect::Messages => Self::Thinking,
            b"tool_use" if dialect == Dialect::Messages => Self::ToolUse,
            b"tool_result" if dialect == Dialect::Messages => Self::ToolResult,
            _ => Self::Other,
        }
    }
}

/// Fields of a block that are read as they come; a block has few of them. Those that its type does not use count as any
/// other field.
const TEXT_FIELD: usize = 0;
const THINKING: usize = 1;
const ID: usize = 2;
const NAME: usize = 3;
const INPUT: usize = 4;
const RESULT_OF: usize = 5;
const CONTENT: usize = 6;
const NAMES: [&[u8]; 7] = [
    b"text",
    b"thinking",
    b"id",
    b"name",
    b"input",
    b"tool_use_id",
    b"content",
];

impl BodyReader {
    /// The next value as the content of a message: nothing for null.
    pub(crate) fn put_content(&mut self, reader: &mut Reader<'_>, dialect: Dialect) -> Result<()> {
        match reader.peek()? {
            Token::Array => {
                reader.open()?;
                let start = self.canon.bytes.len();
                while reader.element()? {
                    self.put_block(reader, dialect)?;
                }
                if self.canon.bytes.len() == start {
                    self.canon.bytes.extend_from_slice(&[ARRAY, CLOSE]);
                }
                Ok(())
            }
            _ => self.put_text(reader),
        }
    }

    /// The next value as text: nothing for null, any other value as it is.
    pub(crate) fn put_text(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        match reader.peek()? {
            Token::Null => {
                reader.literal()?;
            }
            Token::String => {
                self.canon.bytes.push(TEXT);
                reader.string(&mut self.canon.bytes)?;
            }
            _ => self.put_other(reader)?,
        }
        Ok(())
    }

    /// The next value as reasoning: nothing for null.
    pub(crate) fn put_reasoning(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        if reader.peek()? != Token::Null {
            self.canon.bytes.extend_from_slice(&[PIECE, b'r']);
        }
        self.put_text(reader)
    }

    /// A value of a kind that is not expected there.
    pub(crate) fn put_other(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        self.canon.bytes.extend_from_slice(&[PIECE, b'v']);
        self.canon.put_value(reader)
    }

    /// The next value as a block of a content.
    pub(crate) fn put_block(&mut self, reader: &mut Reader<'_>, dialect: Dialect) -> Result<Block> {
        self.count_part(reader)?;
        let start = self.canon.bytes.len();
        let class = if reader.peek()? == Token::Object {
            self.put_block_object(reader, dialect, start)?
        } else {
            self.put_text(reader)?;
            Class::Content
        };
        let span = self.canon.since(start);
        Ok(Block { class, span })
    }

    fn put_block_object(
        &mut self,
        reader: &mut Reader<'_>,
        dialect: Dialect,
        start: usize,
    ) -> Result<Class> {
        reader.open()?;
        let fields = self.fields.base();
        let mut known = [Span::default(); NAMES.len()];
        let mut kind = Type::Other;
        while self.next_key(reader)? {
            let at = self.canon.bytes.len();
            let field = NAMES.iter().position(|name| **name == self.key);
            let messages = dialect == Dialect::Messages;
            match field {
                Some(TEXT_FIELD) => self.put_text(reader)?,
                Some(THINKING) if messages => self.put_reasoning(reader)?,
                Some(ID) if messages => self.put_piece(reader, b'd')?,
                Some(NAME) if messages => self.put_piece(reader, b'c')?,
                Some(INPUT) if messages => self.put_arguments(reader)?,
                Some(RESULT_OF) if messages => self.put_piece(reader, b'i')?,
                Some(CONTENT) if messages => self.put_content(reader, Dialect::Chat)?,
                _ => {
                    match self.key.as_slice() {
                        b"type" => {
                            let word = self.read_word(reader)?;
                            kind = Type::of(&self.word, dialect);
                            let digest = if kind == Type::Other { word } else { None };
                            self.fields.add(&self.canon, b"type", digest);
                        }
                        b"cache_control" => reader.skip()?,
                        b"signature" if messages => reader.skip()?,
                        b"annotations" | b"logprobs" if dialect == Dialect::Responses => {
                            reader.skip()?;
                        }
                        b"is_error" if reader.peek()? == Token::Bool => {
                            let set = reader.literal()? == b"true";
                            self.fields.add(&self.canon, b"is_error", set.then_some(1));
                        }
                        _ => self.read_field(reader)?,
                    }
                    continue;
                }
            }
            if let Some(field) = field {
                known[field] = self.canon.since(at);
            }
        }
        Ok(self.finish_block(start, fields, kind, known))
    }

    /// Puts the fields of a block in order.
    fn finish_block(
        &mut self,
        start: usize,
        fields: usize,
        kind: Type,
        mut known: [Span; NAMES.len()],
    ) -> Class {
        let none = Span::default();
        let plain = known[TEXT_FIELD].len() > 0;
        let mut parts = [none; 4];
        let mut take = |field: usize| std::mem::take(&mut known[field]);
        let class = match kind {
            Type::Text if plain => {
                parts[0] = take(TEXT_FIELD);
                Class::Content
            }
            Type::Thinking => {
                parts[0] = take(THINKING);
                Class::Reasoning
            }
            Type::ToolUse => {
                parts = [take(ID), take(NAME), take(INPUT), none];
                if parts[2].len() == 0 {
                    parts[2] = self.put_no_arguments();
                }
                Class::Call
            }
            Type::ToolResult => {
                parts = [none, take(RESULT_OF), take(CONTENT), none];
                parts[0] = self.canon.written(&[PIECE, b'm']);
                let tool = self.canon.written(b"tool");
                parts[0].end = tool.end;
                Class::Result
            }
            _ => Class::Content,
        };
        for (name, span) in NAMES.iter().zip(known) {
            if span.len() > 0 {
                self.fields.add_span(&self.canon, name, span);
            }
        }
        self.canon.arrange(start, &parts);
        let digest = self.fields.take(&mut self.canon, fields);
        let known = parts.iter().any(|part| part.len() > 0);
        if !known {
            self.facts.media += 1;
            self.canon.bytes.extend_from_slice(&[PIECE, b'p']);
        } else if digest.is_some() {
            self.canon.bytes.extend_from_slice(&[PIECE, b'z']);
        }
        if let Some(digest) = digest {
            self.canon.put_digest(digest);
        }
        class
    }
}
