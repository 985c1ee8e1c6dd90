//! Messages of chats and of Anthropic's API.

use super::Conversation;
use super::contents::{Block, Class, SHOWN};
use super::pieces::HEADER;
use crate::canon::Span;
use crate::error::Result;
use crate::profile::Engine;
use crate::scan::{Reader, Token};
use crate::writer::{Dialect, Writer};

/// Fields of a message in canonical order.
const ROLE: usize = 0;
const NAME: usize = 1;
const RESULT_OF: usize = 2;
const REASONING: [usize; 3] = [3, 4, 5];
const CONTENT: usize = 6;
const CALLS: usize = 7;
const FIELDS: usize = 8;

fn field(name: &[u8]) -> Option<usize> {
    Some(match name {
        b"role" => ROLE,
        b"name" => NAME,
        b"tool_call_id" => RESULT_OF,
        b"reasoning" => REASONING[0],
        b"reasoning_content" => REASONING[1],
        b"thinking" => REASONING[2],
        b"content" => CONTENT,
        b"tool_calls" => CALLS,
        _ => return None,
    })
}

/// Begins a message of the assistant.
pub(super) const ASSISTANT: &[u8] = b"\xF8massistant";

/// A user's message.
const USER: &[u8] = b"\xF8muser";

impl Conversation {
    /// `messages`.
    pub(crate) fn read_messages(
        &mut self,
        w: &mut Writer,
        reader: &mut Reader<'_>,
        dialect: Dialect,
    ) -> Result<()> {
        self.turns.restart(w.canon().end());
        self.pieces.restart();
        if reader.peek()? != Token::Array {
            self.turns.drop_all();
            return reader.skip();
        }
        reader.open()?;
        while reader.element()? {
            self.count_message(w, reader)?;
            if reader.peek()? == Token::Object {
                self.put_message(w, reader, dialect)?;
            } else {
                w.put_other(reader)?;
                self.turns.lead(false, false, w.canon().end());
            }
        }
        self.turns.end(w.canon().end());
        Ok(())
    }

    /// Counts a message that begins here.
    pub(super) fn count_message(&mut self, w: &mut Writer, reader: &Reader<'_>) -> Result<()> {
        let most = w.limits.parts;
        self.turns.count(w.canon().end(), most, reader)
    }

    /// `system` of Anthropic's API.
    pub(crate) fn read_system(&mut self, w: &mut Writer, reader: &mut Reader<'_>) -> Result<()> {
        self.attribution = 0;
        let message = w.canon().begin_message(b"system");
        let parts = self.contents.parts;
        if reader.peek()? == Token::Array {
            reader.open()?;
            while reader.element()? {
                let block = self.contents.put_block(w, reader, Dialect::Chat)?.span;
                let text = block.of(w.bytes());
                let is_likely = w.profile.is_likely;
                if !is_likely && text.len() > 1 && text[1..].starts_with(HEADER) {
                    self.attribution += 1;
                    if w.profile.engine == Engine::Vllm {
                        w.canon().cut(block.start);
                    }
                }
            }
        } else {
            w.put_text(reader)?;
        }
        // One whose blocks are all left out is still one.
        let empty = w.canon().end() == message.end && self.contents.parts == parts;
        let system = w.canon().since(message.start);
        self.turns.set_system((!empty).then_some(system));
        Ok(())
    }

    /// A message in the order of its fields.
    fn put_message(
        &mut self,
        w: &mut Writer,
        reader: &mut Reader<'_>,
        dialect: Dialect,
    ) -> Result<()> {
        let (start, fields) = (w.canon().end(), w.fields());
        let mut known = [Span::default(); FIELDS];
        let mut has_blocks = false;
        reader.open()?;
        while w.next_key(reader)? {
            let at = w.canon().end();
            let Some(field) = field(w.key()) else {
                match w.key() {
                    b"cache_control" => reader.skip()?,
                    b"type" | b"id" | b"status" if dialect == Dialect::Responses => {
                        reader.skip()?;
                    }
                    _ => w.read_field(reader)?,
                }
                continue;
            };
            match field {
                ROLE => _ = w.put_piece(reader, b'm')?,
                NAME => _ = w.put_piece(reader, b'n')?,
                RESULT_OF => _ = w.put_piece(reader, b'i')?,
                CONTENT => {
                    has_blocks = dialect == Dialect::Messages && reader.peek()? == Token::Array;
                    if has_blocks {
                        self.put_blocks(w, reader)?;
                    } else {
                        self.contents.put(w, reader, dialect)?;
                    }
                }
                CALLS => self.contents.put_calls(w, reader)?,
                _ => {
                    if field == REASONING[2] && w.profile.engine != Engine::Sglang {
                        // vLLM renders none of that name.
                        let is_some = reader.peek()? != Token::Null;
                        w.add_field(b"thinking", is_some.then_some(1));
                    }
                    w.put_reasoning(reader)?;
                }
            }
            known[field] = w.canon().since(at);
        }
        if known[ROLE].len() == 0 {
            known[ROLE] = w.canon().begin(b'm');
        }
        self.order.clear();
        if has_blocks {
            self.order_blocks(w, known);
        } else {
            self.blocks.clear();
            for part in known {
                if part.len() > 0 {
                    self.order.push(part);
                }
            }
        }
        self.finish_message(w, start, fields, (known[CALLS], dialect));
        Ok(())
    }

    /// Reads the blocks of a content.
    fn put_blocks(&mut self, w: &mut Writer, reader: &mut Reader<'_>) -> Result<()> {
        self.blocks.clear();
        reader.open()?;
        while reader.element()? {
            let block = self.contents.put_block(w, reader, Dialect::Messages)?;
            self.blocks.push(block);
        }
        Ok(())
    }

    /// Makes results of tools contents of their message: engines write those of others than users into its text.
    fn hide_results(&mut self, w: &mut Writer) {
        for block in &mut self.blocks {
            if block.class == Class::Result {
                block.class = Class::Content;
                block.span = w.canon().put_whole(b'p', [block.span]);
                block.shown = block.span.end;
            }
        }
    }

    /// Puts the blocks of a message in order. Results of tools are messages of their own, for vLLM before the others,
    /// which takes reasoning first and calls last too.
    fn order_blocks(&mut self, w: &mut Writer, known: [Span; FIELDS]) {
        let ends = self.blocks.first().zip(self.blocks.last());
        let all = ends.map(|(first, last)| Span::from(first.span.start..last.span.end));
        if known[ROLE].of(w.bytes()) != USER {
            self.hide_results(w);
        }
        let sorted = w.profile.engine == Engine::Vllm;
        let results = self.blocks.iter().any(|block| block.class == Class::Result);
        let again = if results && !sorted {
            w.canon().begin(b'k')
        } else {
            Span::default()
        };
        let order = &mut self.order;
        let (mut begun, mut inside) = (false, false);
        let mut put = |block: &Block| {
            let class = block.class;
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
            let (start, end) = (block.span.start, block.span.end);
            order.push(Span::from(start..block.shown));
            if block.shown < end {
                order.push(Span::from(block.shown..end));
            }
        };
        if sorted {
            for class in [Class::Result, Class::Reasoning, Class::Content, Class::Call] {
                let blocks = self.blocks.iter().filter(|block| block.class == class);
                blocks.for_each(&mut put);
            }
        } else {
            self.blocks.iter().for_each(put);
        }
        if self.blocks.is_empty() {
            order.extend_from_slice(&known[..CONTENT]);
        }
        order.extend_from_slice(&known[CALLS..]);
        let Some(all) = all.filter(|_| !w.profile.is_likely) else {
            return;
        };
        let arena = w.bytes();
        let engine = w.profile.engine;
        // `SGLang` leaves results where they are.
        let ranks = self.blocks.iter().map(|block| match block.class {
            Class::Result => None,
            class => Some(class),
        });
        let mut ranks = ranks.filter(|rank| rank.is_some() || engine == Engine::Unset);
        let moves = engine != Engine::Vllm && !ranks.by_ref().is_sorted();
        let media = self.blocks.iter().skip_while(|block| block.is_media(arena));
        if moves || media.into_iter().any(|block| block.is_media(arena)) {
            // Results behind the text of a message may be moved before it as well.
            let kind = if moves && results { SHOWN } else { b'g' };
            let whole = w.canon().put_whole(kind, [all]);
            self.order.insert(1, whole);
            if moves && self.blocks.iter().any(Block::is_reasoning) {
                // Engines render it first.
                let mark = w.canon().begin(b'h');
                self.order.insert(1, mark);
            }
        }
    }
}
