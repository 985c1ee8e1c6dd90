//! The reader: one walk over the fields of a body.

use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::blocks::Block;
use crate::body::{Body, Facts, Kind, Place};
use crate::canon::{Canon, PIECE, Span};
use crate::digest::Fields;
use crate::endpoint::Endpoint;
use crate::error::{ErrorKind, Result};
use crate::head::Head;
use crate::messages::Turns;
use crate::profile::{Limits, Profile};
use crate::prompts::Prompts;
use crate::scan::{Reader, Token};

/// Whose field names are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Chat,
    Responses,
    Messages,
}

/// Reads bodies, one after another, into memory that it keeps.
#[derive(Debug, Default)]
pub struct BodyReader {
    pub(crate) profile: Profile,
    pub(crate) limits: Limits,
    pub(crate) canon: Canon,
    pub(crate) fields: Fields,
    /// The key read last, and the word read last.
    pub(crate) key: Vec<u8>,
    pub(crate) word: Vec<u8>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) order: Vec<Span>,
    pub(crate) facts: Facts,
    pub(crate) head: Head,
    pub(crate) turns: Turns,
    pub(crate) prompts: Prompts,
    pub(crate) tokens: Vec<u32>,
    pub(crate) stream: Vec<Span>,
    pub(crate) places: Vec<Place>,
    pub(crate) continues: Vec<Span>,
}

impl BodyReader {
    /// A reader for bodies to engines of `profile` that hold at most `limits`.
    #[must_use]
    pub fn new(profile: Profile, limits: Limits) -> Self {
        let mut reader = Self {
            profile,
            limits,
            ..Self::default()
        };
        reader.canon.seed = profile.seed;
        reader
    }

    /// Reads the body of a request to `path`.
    ///
    /// # Errors
    /// If the body is no valid JSON object or holds more than the limits. It is then routed by load.
    pub fn read(&mut self, path: &str, body: &[u8]) -> Result<Body<'_>> {
        self.clear();
        let endpoint = Endpoint::of(path);
        let mut reader = Reader::new(body, self.limits.depth);
        if body.len() > self.limits.bytes {
            return Err(reader.error(ErrorKind::TooLarge));
        }
        if endpoint == Endpoint::Audio {
            self.facts.kind = Kind::Audio;
        } else {
            if reader.peek()? != Token::Object {
                reader.skip()?;
                reader.end()?;
                return Err(reader.error(ErrorKind::NotObject));
            }
            reader.open()?;
            while self.next_key(&mut reader)? {
                self.read_body_field(&mut reader, endpoint)?;
            }
            reader.end()?;
            self.lay_out(endpoint);
        }
        Ok(Body {
            arena: &self.canon.bytes,
            tokens: &self.tokens,
            stream: &self.stream,
            prompts: &self.places,
            model: self.head.model,
            continues: &self.continues,
            facts: self.facts,
            bytes: body.len(),
        })
    }

    fn clear(&mut self) {
        self.canon.clear();
        self.fields.clear();
        self.facts = Facts::default();
        self.head = Head::default();
        self.turns.clear();
        self.prompts = Prompts::default();
        self.tokens.clear();
        self.stream.clear();
        self.places.clear();
        self.continues.clear();
    }

    fn read_body_field(&mut self, reader: &mut Reader<'_>, endpoint: Endpoint) -> Result<()> {
        match (endpoint, self.key.as_slice()) {
            (Endpoint::Chat, b"messages") => self.read_messages(reader, Dialect::Chat),
            (Endpoint::Messages, b"messages") => self.read_messages(reader, Dialect::Messages),
            (Endpoint::Messages, b"system") => self.read_system(reader),
            (Endpoint::Responses, b"instructions") => self.read_instructions(reader),
            (Endpoint::Responses, b"input") => self.read_items(reader),
            (Endpoint::Chat, b"tools") => self.read_tools(reader, Dialect::Chat),
            (Endpoint::Messages, b"tools") => self.read_tools(reader, Dialect::Messages),
            (Endpoint::Responses, b"tools") => self.read_tools(reader, Dialect::Responses),
            (Endpoint::Completions, b"prompt")
            | (Endpoint::Generate, b"text" | b"inputs" | b"token_ids" | b"input_ids")
            | (Endpoint::Pooling, b"input") => self.read_prompts(reader),
            _ => self.read_head_field(reader, endpoint),
        }
    }

    /// Reads the next key of an object to `self.key`.
    #[inline]
    pub(crate) fn next_key(&mut self, reader: &mut Reader<'_>) -> Result<bool> {
        self.key.clear();
        reader.key(&mut self.key)
    }

    /// Reads the value of `self.key` as a field whose order does not count.
    pub(crate) fn read_field(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        self.fields.read(&mut self.canon, &self.key, reader)
    }

    /// Reads a string to `self.word`, which any other value leaves empty. Digest of the value, if it is not null.
    pub(crate) fn read_word(&mut self, reader: &mut Reader<'_>) -> Result<Option<u128>> {
        self.word.clear();
        match reader.peek()? {
            Token::String => {
                reader.string(&mut self.word)?;
                Ok(Some(xxh3_128_with_seed(&self.word, self.profile.seed)))
            }
            Token::Null => {
                reader.literal()?;
                Ok(None)
            }
            _ => {
                let start = self.canon.bytes.len();
                self.canon.put_value(reader)?;
                Ok(Some(self.canon.take_digest(start)))
            }
        }
    }

    /// The next value as a piece of a conversation: nothing for null.
    pub(crate) fn put_piece(&mut self, reader: &mut Reader<'_>, kind: u8) -> Result<()> {
        match reader.peek()? {
            Token::Null => {
                reader.literal()?;
            }
            Token::String => {
                self.canon.bytes.extend_from_slice(&[PIECE, kind]);
                reader.string(&mut self.canon.bytes)?;
            }
            _ => {
                self.canon.bytes.extend_from_slice(&[PIECE, kind]);
                self.canon.put_value(reader)?;
            }
        }
        Ok(())
    }

    /// The piece, as a place in the arena.
    pub(crate) fn piece(&mut self, reader: &mut Reader<'_>, kind: u8) -> Result<Span> {
        let start = self.canon.bytes.len();
        self.put_piece(reader, kind)?;
        Ok(self.canon.since(start))
    }

    pub(crate) fn count_message(&mut self, reader: &Reader<'_>) -> Result<()> {
        self.facts.messages += 1;
        if self.facts.messages as usize > self.limits.parts {
            return Err(reader.error(ErrorKind::TooManyParts));
        }
        Ok(())
    }

    pub(crate) fn count_part(&mut self, reader: &Reader<'_>) -> Result<()> {
        self.facts.parts += 1;
        if self.facts.parts as usize > self.limits.parts {
            return Err(reader.error(ErrorKind::TooManyParts));
        }
        Ok(())
    }
}
