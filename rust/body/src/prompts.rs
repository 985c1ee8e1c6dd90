//! Prompts that are texts or token ids as they are.

use crate::body::Place;
use crate::canon::Span;
use crate::error::{ErrorKind, Result};
use crate::scan::{Reader, Token};
use crate::state::BodyReader;

/// Fields that hold prompts.
const FIELDS: [&[u8]; 6] = [
    b"prompt",
    b"text",
    b"inputs",
    b"token_ids",
    b"input_ids",
    b"input",
];

impl BodyReader {
    /// A text, ids, or a list of either.
    pub(crate) fn read_prompts(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let field = FIELDS.into_iter().find(|field| **field == *self.key);
        let field = field.unwrap_or_default();
        if reader.peek()? == Token::Null && self.prompt_field != field {
            return reader.skip();
        }
        self.prompt_field = field;
        self.stream.clear();
        self.places.clear();
        self.tokens.clear();
        match reader.peek()? {
            Token::String => self.read_text(reader),
            Token::Array => self.read_list(reader),
            _ => reader.skip(),
        }
    }

    fn read_list(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        reader.open()?;
        let mut ids = false;
        while reader.element()? {
            match reader.peek()? {
                Token::Number => {
                    ids = true;
                    self.read_token(reader)?;
                }
                Token::String => self.read_text(reader)?,
                Token::Array => {
                    let start = self.tokens.len();
                    reader.open()?;
                    while reader.element()? {
                        if reader.peek()? != Token::Number {
                            return Err(reader.error(ErrorKind::TokenId));
                        }
                        self.read_token(reader)?;
                    }
                    self.add_prompt(reader, Place::Tokens((start..self.tokens.len()).into()))?;
                }
                _ => reader.skip()?,
            }
        }
        if ids && self.places.is_empty() {
            self.add_prompt(reader, Place::Tokens((0..self.tokens.len()).into()))?;
        }
        Ok(())
    }

    fn read_text(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let start = self.canon.bytes.len();
        reader.string(&mut self.canon.bytes)?;
        let at = self.stream.len();
        self.stream.push(self.canon.since(start));
        let slices = Span {
            start: at,
            end: at + 1,
        };
        self.add_prompt(reader, Place::Text(slices))
    }

    fn add_prompt(&mut self, reader: &Reader<'_>, place: Place) -> Result<()> {
        if self.places.len() >= self.limits.parts {
            return Err(reader.error(ErrorKind::TooManyParts));
        }
        self.places.push(place);
        Ok(())
    }

    fn read_token(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let before = *reader;
        let digits = reader.number()?;
        let id = digits.iter().try_fold(0_u32, |id, digit| {
            let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
            id.checked_mul(10)?.checked_add(u32::from(digit))
        });
        let Some(id) = id else {
            return Err(before.error(ErrorKind::TokenId));
        };
        if self.tokens.len() >= self.limits.ids {
            return Err(before.error(ErrorKind::TooManyIds));
        }
        self.tokens.push(id);
        Ok(())
    }
}
