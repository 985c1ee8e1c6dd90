//! The prompts of a body: a conversation, or texts or token ids as they are.

use crate::canon::{Span, TEXT};
use crate::error::{ErrorKind, Result};
use crate::facts::Kind;
use crate::scan::{Reader, Token};
use crate::text::{Prompt, Text};
use crate::writer::Writer;

/// Fields that hold prompts.
const FIELDS: [&[u8]; 6] = [
    b"prompt",
    b"text",
    b"inputs",
    b"token_ids",
    b"input_ids",
    b"input",
];

/// Where a prompt lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// These slices.
    Text(Span),
    /// These ids.
    Tokens(Span),
}

/// All prompts of a body.
#[derive(Debug, Default)]
pub(crate) struct Prompts {
    places: Vec<Place>,
    slices: Vec<Span>,
    tokens: Vec<u32>,
    /// The field that they are from.
    field: &'static [u8],
}

impl Prompts {
    /// Forgets them.
    pub(crate) fn clear(&mut self) {
        self.places.clear();
        self.slices.clear();
        self.tokens.clear();
        self.field = b"";
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The kind of the first prompt, if there is one.
    pub(crate) fn kind(&self) -> Option<Kind> {
        Some(match self.places.first()? {
            Place::Text(_) => Kind::Text,
            Place::Tokens(_) => Kind::Tokens,
        })
    }

    /// All of them; texts lie in `arena`.
    pub(crate) fn iter<'a>(&'a self, arena: &'a [u8]) -> impl Iterator<Item = Prompt<'a>> + 'a {
        self.places.iter().map(move |place| match place {
            Place::Text(slices) => Prompt::Text(Text::new(arena, slices.of(&self.slices))),
            Place::Tokens(ids) => Prompt::Tokens(ids.of(&self.tokens)),
        })
    }

    /// Adds a prompt of `parts`, slices of the arena.
    pub(crate) fn put_text(&mut self, parts: &[Span]) {
        let start = self.slices.len();
        for part in parts {
            match self.slices[start..].last_mut() {
                Some(last) if last.end == part.start => {
                    *last = Span::from(last.start..part.end);
                }
                _ if part.len() > 0 => self.slices.push(*part),
                _ => {}
            }
        }
        let slices = Span::from(start..self.slices.len());
        self.places.push(Place::Text(slices));
    }

    /// Digest of all of them, and of what is `beside` them.
    pub(crate) fn digest(&self, w: &mut Writer, beside: Option<u128>) -> u128 {
        let canon = w.canon();
        let start = canon.end();
        canon.put_digest(beside.unwrap_or_default());
        for place in &self.places {
            canon.put(&[TEXT]);
            match place {
                Place::Text(slices) => {
                    for slice in slices.of(&self.slices) {
                        canon.copy(*slice);
                    }
                }
                Place::Tokens(ids) => {
                    for id in ids.of(&self.tokens) {
                        canon.put(&id.to_le_bytes());
                    }
                }
            }
        }
        canon.take_digest(start)
    }

    /// Bytes of the text before `end`, which is a place in the arena.
    pub(crate) fn offset(&self, end: usize) -> Option<usize> {
        let mut before = 0;
        for slice in &self.slices {
            if slice.start < end && end <= slice.end {
                return Some(before + end - slice.start);
            }
            before += slice.len();
        }
        None
    }

    /// A text, ids, or a list of either.
    pub(crate) fn read(&mut self, w: &mut Writer, reader: &mut Reader<'_>) -> Result<()> {
        let field = FIELDS.into_iter().find(|field| *field == w.key());
        let field = field.unwrap_or_default();
        if reader.peek()? == Token::Null && self.field != field {
            return reader.skip();
        }
        self.clear();
        self.field = field;
        match reader.peek()? {
            Token::String => self.read_text(w, reader),
            Token::Array => self.read_list(w, reader),
            _ => reader.skip(),
        }
    }

    fn read_list(&mut self, w: &mut Writer, reader: &mut Reader<'_>) -> Result<()> {
        reader.open()?;
        let mut ids = false;
        while reader.element()? {
            match reader.peek()? {
                Token::Number => {
                    ids = true;
                    self.read_token(w, reader)?;
                }
                Token::String => self.read_text(w, reader)?,
                Token::Array => {
                    let start = self.tokens.len();
                    reader.open()?;
                    while reader.element()? {
                        if reader.peek()? != Token::Number {
                            return Err(reader.error(ErrorKind::TokenId));
                        }
                        self.read_token(w, reader)?;
                    }
                    self.add_tokens(w, reader, start)?;
                }
                _ => reader.skip()?,
            }
        }
        if ids && self.is_empty() {
            self.add_tokens(w, reader, 0)?;
        }
        Ok(())
    }

    fn read_text(&mut self, w: &mut Writer, reader: &mut Reader<'_>) -> Result<()> {
        let start = w.canon().end();
        w.canon().put_string(reader)?;
        self.check_room(w, reader)?;
        let at = self.slices.len();
        self.slices.push(w.canon().since(start));
        self.places.push(Place::Text((at..at + 1).into()));
        Ok(())
    }

    fn add_tokens(&mut self, w: &Writer, reader: &Reader<'_>, start: usize) -> Result<()> {
        self.check_room(w, reader)?;
        let ids = Span::from(start..self.tokens.len());
        self.places.push(Place::Tokens(ids));
        Ok(())
    }

    fn check_room(&self, w: &Writer, reader: &Reader<'_>) -> Result<()> {
        if self.places.len() >= w.limits.parts {
            return Err(reader.error(ErrorKind::TooManyParts));
        }
        Ok(())
    }

    fn read_token(&mut self, w: &Writer, reader: &mut Reader<'_>) -> Result<()> {
        let before = *reader;
        let digits = reader.number()?;
        let id = digits.iter().try_fold(0_u32, |id, digit| {
            let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
            id.checked_mul(10)?.checked_add(u32::from(digit))
        });
        let Some(id) = id else {
            return Err(before.error(ErrorKind::TokenId));
        };
        if self.tokens.len() >= w.limits.ids {
            return Err(before.error(ErrorKind::TooManyIds));
        }
        self.tokens.push(id);
        Ok(())
    }
}
