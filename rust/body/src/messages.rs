//! Messages of chats and of Anthropic's API.

use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::canon::{CLOSE, OBJECT, PIECE, Span};
use crate::error::Result;
use crate::profile::{Engine, InlineSystem};
use crate::scan::{Reader, Token};
use crate::state::{BodyReader, Class, Dialect};

/// Fields of a message in canonical order.
const ROLE: usize = 0;
const NAME: usize = 1;
const RESULT_OF: usize = 2;
const CONTENT: usize = 6;
const CALLS: usize = 7;
const NAMES: [&[u8]; 8] = [
    b"role",
    b"name",
    b"tool_call_id",
    b"reasoning",
    b"reasoning_content",
    b"thinking",
    b"content",
    b"tool_calls",
];

impl BodyReader {
    pub(crate) fn restart_turns(&mut self) {
        self.turns.restart(self.canon.bytes.len());
    }

    /// `messages`.
    pub(crate) fn read_messages(
        &mut self,
        reader: &mut Reader<'_>,
        dialect: Dialect,
    ) -> Result<()> {
        self.restart_turns();
        if reader.peek()? != Token::Array {
            self.turns.span = None;
            return reader.skip();
        }
        let start = self.canon.bytes.len();
        reader.open()?;
        while reader.element()? {
            self.count_message(reader)?;
            if reader.peek()? == Token::Object {
                self.put_message(reader, dialect)?;
            } else {
                self.turns.only_system = false;
                self.put_other(reader)?;
            }
        }
        self.turns.span = Some(self.canon.since(start));
        Ok(())
    }

    /// `system` of Anthropic's API.
    pub(crate) fn read_system(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        const HEADER: &[u8] = b"x-anthropic-billing-header";
        let start = self.canon.bytes.len();
        self.facts.attribution = 0;
        self.canon.bytes.extend_from_slice(&[PIECE, b'm']);
        self.canon.bytes.extend_from_slice(b"system");
        let begun = self.canon.bytes.len();
        let parts = self.facts.parts;
        if reader.peek()? == Token::Array {
            reader.open()?;
            while reader.element()? {
                let block = self.put_block(reader, Dialect::Chat)?.span;
                let text = &self.canon.bytes[block.start..];
                if text.len() > 1 && text[1..].starts_with(HEADER) {
                    self.facts.attribution += 1;
                    if self.profile.engine == Engine::Vllm {
                        self.canon.bytes.truncate(block.start);
                    }
                }
            }
        } else {
            self.put_text(reader)?;
        }
        // One whose blocks are all left out is still one.
        let empty = self.canon.bytes.len() == begun && self.facts.parts == parts;
        self.turns.system = (!empty).then(|| self.canon.since(start));
        Ok(())
    }

    /// A message in the order of its fields.
    pub(crate) fn put_message(&mut self, reader: &mut Reader<'_>, dialect: Dialect) -> Result<()> {
        let start = self.canon.bytes.len();
        let fields = self.fields.base();
        let mut known = [Span::default(); NAMES.len()];
        let mut has_blocks = false;
        reader.open()?;
        while self.next_key(reader)? {
            let at = self.canon.bytes.len();
            let Some(field) = NAMES.iter().position(|name| **name == self.key) else {
                match self.key.as_slice() {
                    b"cache_control" => reader.skip()?,
                    b"type" | b"id" | b"status" if dialect == Dialect::Responses => {
                        reader.skip()?;
                    }
                    _ => self.read_field(reader)?,
                }
                continue;
            };
            match field {
                ROLE => self.put_piece(reader, b'm')?,
                NAME => self.put_piece(reader, b'n')?,
                RESULT_OF => self.put_piece(reader, b'i')?,
                CONTENT => {
                    has_blocks = dialect == Dialect::Messages && reader.peek()? == Token::Array;
                    if has_blocks {
                        self.put_blocks(reader)?;
                    } else {
                        self.put_content(reader, dialect)?;
                    }
                }
                CALLS => self.put_calls(reader)?,
                _ => self.put_reasoning(reader)?,
            }
            known[field] = self.canon.since(at);
        }
        if known[ROLE].len() == 0 {
            known[ROLE] = self.canon.written(&[PIECE, b'm']);
        }
        self.order.clear();
        if has_blocks {
            self.order_blocks(known);
        } else {
            self.order.extend_from_slice(&known);
        }
        self.finish_message(start, fields, dialect);
        Ok(())
    }

    /// Arranges a message by `self.order`, and counts what it is made of.
    pub(crate) fn finish_message(&mut self, start: usize, fields: usize, dialect: Dialect) {
        let order = std::mem::take(&mut self.order);
        let mut at = start;
        let mut own = Span::default();
        for part in &order {
            match part.of(&self.canon.bytes) {
                [PIECE, b'm', rest @ ..] => {
                    let end = rest.iter().position(|byte| *byte >= PIECE);
                    let end = end.unwrap_or(rest.len());
                    self.turns.begin(&rest[..end], at);
                    if end == rest.len() {
                        own = *part;
                    }
                }
                [PIECE, b'k'] => self.turns.begin(&own.of(&self.canon.bytes)[2..], at),
                [PIECE, b'r', ..] if !self.profile.keeps_reasoning => self.turns.note_reasoning(at),
                _ => {}
            }
            at += part.len();
        }
        self.canon.arrange(start, &order);
        self.order = order;
        if let Some(digest) = self.fields.take(&mut self.canon, fields) {
            self.canon.bytes.extend_from_slice(&[PIECE, b'x']);
            self.canon.put_digest(digest);
        }
        let message = &self.canon.bytes[start..];
        let is = |role: &[u8]| {
            let rest = message[2..].strip_prefix(role);
            rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte >= PIECE))
        };
        let system = is(b"system");
        if dialect == Dialect::Messages {
            if system && self.profile.inline_system == InlineSystem::Merged {
                let mut digest = xxh3_128_with_seed(message, self.profile.seed);
                if let Some(before) = self.turns.inline {
                    let both = [before.to_le_bytes(), digest.to_le_bytes()];
                    digest = xxh3_128_with_seed(both.as_flattened(), self.profile.seed);
                }
                self.turns.inline = Some(digest);
            }
        } else if self.turns.only_system && (system || is(b"developer")) {
            self.turns.leading = self.canon.bytes.len();
        } else {
            self.turns.only_system = false;
        }
    }

    /// Reads the blocks of a content to `self.blocks`.
    fn put_blocks(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        self.blocks.clear();
        reader.open()?;
        while reader.element()? {
            let block = self.put_block(reader, Dialect::Messages)?;
            self.blocks.push(block);
        }
        Ok(())
    }

    /// Puts the blocks of a message in order. Results of tools are messages of their own, for vLLM before the others,
    /// which takes reasoning first and calls last too.
    fn order_blocks(&mut self, known: [Span; NAMES.len()]) {
        let sorted = self.profile.engine == Engine::Vllm;
        let results = self.blocks.iter().any(|block| block.class == Class::Result);
        let again = if results && !sorted {
            self.canon.written(&[PIECE, b'k'])
        } else {
            Span::default()
        };
        let order = &mut self.order;
        let (mut begun, mut inside) = (false, false);
        let mut put = |class: Class, span: Span| {
            if class != Class::Result && !inside {
                // The fields of the message come once, however many results part its blocks.
                if begun {
                    order.push(again);
                } else {
                    order.extend_from_slice(&known[..CONTENT]);
                }
                begun = true;
            }
            inside = class != Class::Result;
            order.push(span);
        };
        if sorted {
            for class in [Class::Result, Class::Reasoning, Class::Content, Class::Call] {
                let blocks = self.blocks.iter().filter(|block| block.class == class);
                blocks.for_each(|block| put(class, block.span));
            }
        } else {
            self.blocks
                .iter()
                .for_each(|block| put(block.class, block.span));
        }
        if self.blocks.is_empty() {
            order.extend_from_slice(&known[..CONTENT]);
        }
        order.extend_from_slice(&known[CALLS..]);
    }

    /// `tool_calls`: nothing for null or none.
    fn put_calls(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        match reader.peek()? {
            Token::Array => {
                reader.open()?;
                while reader.element()? {
                    self.count_part(reader)?;
                    if reader.peek()? == Token::Object {
                        self.put_call(reader)?;
                    } else {
                        self.put_other(reader)?;
                    }
                }
                Ok(())
            }
            Token::Null => reader.skip(),
            _ => self.put_other(reader),
        }
    }

    fn put_call(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let start = self.canon.bytes.len();
        let fields = self.fields.base();
        let [mut id, mut name, mut arguments] = [Span::default(); 3];
        reader.open()?;
        while self.next_key(reader)? {
            match self.key.as_slice() {
                b"id" => id = self.piece(reader, b'd')?,
                b"function" => {
                    (name, arguments) = Default::default();
                    if reader.peek()? == Token::Object {
                        (name, arguments) = self.put_function(reader)?;
                    } else {
                        self.read_field(reader)?;
                    }
                }
                b"type" => {
                    let digest = self.read_word(reader)?;
                    let digest = if self.word == b"function" {
                        None
                    } else {
                        digest
                    };
                    self.fields.add(&self.canon, b"type", digest);
                }
                b"index" | b"cache_control" => reader.skip()?,
                _ => self.read_field(reader)?,
            }
        }
        if name.len() == 0 {
            name = self.canon.written(&[PIECE, b'c']);
        }
        if arguments.len() == 0 {
            arguments = self.put_no_arguments();
        }
        self.canon.arrange(start, &[id, name, arguments]);
        if let Some(digest) = self.fields.take(&mut self.canon, fields) {
            self.canon.bytes.extend_from_slice(&[PIECE, b'y']);
            self.canon.put_digest(digest);
        }
        Ok(())
    }

    /// Name and arguments of a call.
    fn put_function(&mut self, reader: &mut Reader<'_>) -> Result<(Span, Span)> {
        let (mut name, mut arguments) = Default::default();
        let fields = self.fields.base();
        reader.open()?;
        while self.next_key(reader)? {
            match self.key.as_slice() {
                b"name" => name = self.piece(reader, b'c')?,
                b"arguments" => {
                    let at = self.canon.bytes.len();
                    self.put_arguments(reader)?;
                    arguments = self.canon.since(at);
                }
                _ => self.read_field(reader)?,
            }
        }
        let others = self.fields.take(&mut self.canon, fields);
        self.fields.add(&self.canon, b"function", others);
        Ok((name, arguments))
    }

    /// Arguments of a call: an object as structure, also if it comes as a string; none for null or an empty string;
    /// any other text as it is.
    pub(crate) fn put_arguments(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        match reader.peek()? {
            Token::Object => self.canon.put_value(reader),
            Token::String => {
                self.word.clear();
                reader.string(&mut self.word)?;
                if !self.put_object_text() {
                    self.canon.bytes.extend_from_slice(&[PIECE, b'w']);
                    self.canon.bytes.extend_from_slice(&self.word);
                }
                Ok(())
            }
            Token::Null => {
                reader.literal()?;
                self.put_no_arguments();
                Ok(())
            }
            _ => self.put_other(reader),
        }
    }

    pub(crate) fn put_no_arguments(&mut self) -> Span {
        self.canon.written(&[OBJECT, CLOSE])
    }

    /// Writes `self.word` as structure if it is an object of JSON, or empty.
    fn put_object_text(&mut self) -> bool {
        if self.word.is_empty() {
            self.put_no_arguments();
            return true;
        }
        let start = self.canon.bytes.len();
        let mut inner = Reader::new(&self.word, self.limits.depth);
        let done = inner.peek() == Ok(Token::Object)
            && self.canon.put_value(&mut inner).is_ok()
            && inner.end().is_ok();
        if !done {
            self.canon.bytes.truncate(start);
        }
        done
    }
}
