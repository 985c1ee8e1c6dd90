//! What a reader holds while it walks over a body, and the steps that all parts of it take.

use std::fmt;

use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::body::{Facts, Place};
use crate::canon::{Canon, PIECE, Span};
use crate::digest::Fields;
use crate::error::{ErrorKind, Result};
use crate::profile::{Limits, Profile};
use crate::scan::{Reader, Token};
use crate::turns::Turns;

/// What a block is to the message around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Reasoning,
    Content,
    Call,
    Result,
}

/// A block in the arena.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) class: Class,
    pub(crate) span: Span,
}

/// What was found beside the conversation.
#[derive(Debug, Default)]
pub(crate) struct Head {
    pub(crate) model: Option<Span>,
    pub(crate) tools: Option<Span>,
    /// Effort of reasoning, by the three fields that name it.
    pub(crate) efforts: [Option<u128>; 3],
    /// `max_completion_tokens`, and its other names.
    pub(crate) most: [Option<u32>; 2],
    /// Of `nvext.agent_hints`.
    pub(crate) hints: Hints,
    /// Ids of what the body continues: response, conversation, stored prompt, session.
    pub(crate) continues: [Option<Span>; 4],
}

/// Hints of an agent, as the router takes them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Hints {
    pub(crate) expected_output: Option<u32>,
    /// The lower first.
    pub(crate) priority: Option<i64>,
}

/// Whose field names are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Chat,
    Responses,
    Messages,
}

/// Reads bodies, one after another, into memory that it keeps.
#[derive(Default)]
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
    /// The field that the prompts are from.
    pub(crate) prompt_field: &'static [u8],
    pub(crate) tokens: Vec<u32>,
    pub(crate) stream: Vec<Span>,
    pub(crate) places: Vec<Place>,
    pub(crate) continues: Vec<Span>,
    /// Strings beside the prompt, by their path.
    pub(crate) noted: Vec<(&'static str, Span)>,
}

/// Without content.
impl fmt::Debug for BodyReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reader = f.debug_struct("BodyReader");
        reader
            .field("profile", &self.profile)
            .field("limits", &self.limits);
        reader.finish_non_exhaustive()
    }
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

    /// Reads the next bodies so, in the same memory.
    pub fn set(&mut self, profile: Profile, limits: Limits) {
        (self.profile, self.limits, self.canon.seed) = (profile, limits, profile.seed);
    }

    /// Forgets the last body.
    pub(crate) fn clear(&mut self) {
        self.canon.clear();
        self.fields.clear();
        self.facts = Facts::default();
        self.head = Head::default();
        self.turns.clear();
        self.prompt_field = b"";
        self.tokens.clear();
        self.stream.clear();
        self.places.clear();
        self.continues.clear();
        self.noted.clear();
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
        self.turns.starts.push(self.canon.bytes.len());
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
