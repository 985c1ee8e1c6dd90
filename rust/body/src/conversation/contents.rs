//! Contents of messages: texts, media, and Anthropic's blocks.

use crate::canon::{ARRAY, CLOSE, PIECE, Span};
use crate::error::{ErrorKind, Result};
use crate::profile::Engine;
use crate::scan::{Reader, Token};
use crate::writer::{Dialect, Writer};

/// The role of a block in the message around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Reasoning,
    Content,
    Call,
    Result,
}

/// A block in the arena.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) class: Class,
    pub(super) span: Span,
    /// Where images of a result begin that an engine may put into a message of their own, or its end.
    pub(super) shown: usize,
}

impl Block {
    /// Whether it is reasoning.
    pub(super) fn is_reasoning(&self) -> bool {
        self.class == Class::Reasoning
    }

    /// Whether it is neither text, call nor result.
    pub(super) fn is_media(self, arena: &[u8]) -> bool {
        matches!(self.span.of(arena), [PIECE, b'p' | IMAGE, ..])
    }
}

/// Begins an image of Anthropic's API.
pub(super) const IMAGE: u8 = b'I';
/// Begins a result with images that an engine may put into a user's message behind it.
pub(super) const SHOWN: u8 = b'U';

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Type {
    Text,
    Thinking,
    ToolUse,
    ToolResult,
    Image,
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
            b"image" if dialect != Dialect::Responses => Self::Image,
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

/// Counts of what contents are made of.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Parts so far.
    pub(super) parts: u32,
    /// Those that are neither text, call nor result.
    pub(super) media: u32,
    /// Parts of the result that is read, in their order.
    order: Vec<Span>,
    /// Bytes at its end that an engine may put into a message of their own.
    shown: usize,
}

impl Contents {
    /// Forgets the last body.
    pub(super) fn clear(&mut self) {
        (self.parts, self.media, self.shown) = Default::default();
    }

    /// Counts a part.
    pub(super) fn count(&mut self, w: &Writer, reader: &Reader<'_>) -> Result<()> {
        self.parts += 1;
        if self.parts as usize > w.limits.parts {
            return Err(reader.error(ErrorKind::TooManyParts));
        }
        Ok(())
    }

    /// The next value as the content of a message: nothing for null.
    pub(super) fn put(
        &mut self,
        w: &mut Writer,
        reader: &mut Reader<'_>,
        dialect: Dialect,
    ) -> Result<()> {
        if reader.peek()? != Token::Array {
            return w.put_text(reader);
        }
        reader.open()?;
        let start = w.canon().end();
        let (mut text, mut moves) = (false, false);
        while reader.element()? {
            let block = self.put_block(w, reader, dialect)?;
            let media = block.is_media(w.bytes());
            moves |= media && text;
            text |= !media;
        }
        if w.canon().end() == start {
            w.canon().put(&[ARRAY, CLOSE]);
        } else if moves && !w.profile.is_likely {
            // Templates of plain texts get what stands for media before the text.
            let content = w.canon().since(start);
            let whole = w.canon().put_whole(b'g', [content]);
            w.canon().arrange(start, &[whole, content]);
        }
        Ok(())
    }

    /// The content of a result. vLLM puts its images into a user's message behind it; others may, so that a content
    /// with images is shared as a whole or not at all.
    fn put_result(&mut self, w: &mut Writer, reader: &mut Reader<'_>) -> Result<()> {
        self.shown = 0;
        if w.profile.engine == Engine::Sglang || reader.peek()? != Token::Array {
            return self.put(w, reader, Dialect::Chat);
        }
        let start = w.canon().end();
        self.order.clear();
        reader.open()?;
        while reader.element()? {
            let block = self.put_block(w, reader, Dialect::Chat)?;
            self.order.push(block.span);
        }
        if w.canon().end() == start {
            w.canon().put(&[ARRAY, CLOSE]);
        }
        let is_image = |span: &Span| span.of(w.bytes()).starts_with(&[PIECE, IMAGE]);
        let images = self.order.iter().filter(|span| is_image(span)).count();
        if images == 0 {
            return Ok(());
        }
        if w.profile.engine == Engine::Vllm {
            self.order.sort_by_key(is_image);
            let user = w.canon().begin_message(b"user");
            self.order.insert(self.order.len() - images, user);
            w.canon().arrange(start, &self.order);
            let shown = &self.order[self.order.len() - images - 1..];
            self.shown = shown.iter().map(|span| span.len()).sum();
        } else {
            let content = w.canon().since(start);
            let whole = w.canon().put_whole(SHOWN, [content]);
            w.canon().arrange(start, &[whole, content]);
            self.shown = w.canon().since(start).len();
        }
        Ok(())
    }

    /// The next value as a block of a content.
    pub(super) fn put_block(
        &mut self,
        w: &mut Writer,
        reader: &mut Reader<'_>,
        dialect: Dialect,
    ) -> Result<Block> {
        self.count(w, reader)?;
        let start = w.canon().end();
        let (class, shown) = if reader.peek()? == Token::Object {
            self.put_fields(w, reader, dialect)?
        } else {
            w.put_text(reader)?;
            (Class::Content, None)
        };
        let span = w.canon().since(start);
        let shown = shown.unwrap_or(span.end);
        Ok(Block { class, span, shown })
    }

    fn put_fields(
        &mut self,
        w: &mut Writer,
        reader: &mut Reader<'_>,
        dialect: Dialect,
    ) -> Result<(Class, Option<usize>)> {
        reader.open()?;
        let (start, fields) = (w.canon().end(), w.fields());
        let mut known = [Span::default(); NAMES.len()];
        let mut kind = Type::Other;
        let messages = dialect == Dialect::Messages;
        while w.next_key(reader)? {
            let at = w.canon().end();
            let field = NAMES.iter().position(|name| **name == *w.key());
            match field {
                Some(TEXT_FIELD) => w.put_text(reader)?,
                Some(THINKING) if messages => w.put_reasoning(reader)?,
                Some(ID) if messages => _ = w.put_piece(reader, b'd')?,
                Some(NAME) if messages => _ = w.put_piece(reader, b'c')?,
                Some(INPUT) if messages => w.put_arguments(reader)?,
                Some(RESULT_OF) if messages => _ = w.put_piece(reader, b'i')?,
                Some(CONTENT) if messages => self.put_result(w, reader)?,
                _ => {
                    match w.key() {
                        b"type" => {
                            let word = w.read_word(reader)?;
                            kind = Type::of(w.word(), dialect);
                            let other = matches!(kind, Type::Other | Type::Image);
                            w.add_field(b"type", word.filter(|_| other));
                        }
                        b"cache_control" => reader.skip()?,
                        b"signature" if messages => reader.skip()?,
                        b"annotations" | b"logprobs" if dialect == Dialect::Responses => {
                            reader.skip()?;
                        }
                        b"is_error" if reader.peek()? == Token::Bool => {
                            let set = reader.literal()? == b"true";
                            w.add_field(b"is_error", set.then_some(1));
                        }
                        _ => w.read_field(reader)?,
                    }
                    continue;
                }
            }
            if let Some(field) = field {
                known[field] = w.canon().since(at);
            }
        }
        let (class, parts) = order(w, kind, &mut known);
        w.add_written(&NAMES, &known);
        w.canon().arrange(start, &parts);
        let shown = match class {
            Class::Result if parts[2].len() > 0 && self.shown > 0 => {
                Some(w.canon().end() - self.shown)
            }
            _ => None,
        };
        let digest = w.take_fields(fields);
        let is_known = parts.iter().any(|part| part.len() > 0);
        if !is_known {
            self.media += 1;
            let image = kind == Type::Image;
            w.canon().begin(if image { IMAGE } else { b'p' });
        } else if digest.is_some() {
            w.canon().begin(b'z');
        }
        if let Some(digest) = digest {
            w.canon().put_digest(digest);
        }
        Ok((class, shown))
    }
}

/// Takes the fields of a block out of `known` in their order.
fn order(w: &mut Writer, kind: Type, known: &mut [Span; NAMES.len()]) -> (Class, [Span; 3]) {
    let none = Span::default();
    let has_text = known[TEXT_FIELD].len() > 0;
    let mut take = |field: usize| std::mem::take(&mut known[field]);
    match kind {
        Type::Text if has_text => (Class::Content, [take(TEXT_FIELD), none, none]),
        Type::Thinking => (Class::Reasoning, [take(THINKING), none, none]),
        Type::ToolUse => {
            let mut parts = [take(ID), take(NAME), take(INPUT)];
            if parts[2].len() == 0 {
                parts[2] = w.canon().put_empty_object();
            }
            (Class::Call, parts)
        }
        Type::ToolResult => {
            let begin = w.canon().begin_message(b"tool");
            (Class::Result, [begin, take(RESULT_OF), take(CONTENT)])
        }
        _ => (Class::Content, [none; 3]),
    }
}
