//! Pairs of texts, as scores and ranks have them: each pair is a request to an engine.

use crate::canon::Span;
use crate::error::{ErrorKind, Result};
use crate::prompts::Prompts;
use crate::scan::{Reader, Token};
use crate::writer::Writer;

/// Fields with one side of the pairs, and those with the other.
const SIDES: [&[&[u8]]; 2] = [
    &[b"query", b"queries", b"text_1", b"data_1"],
    &[b"documents", b"texts", b"items", b"text_2", b"data_2"],
];

/// The texts of both sides.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    sides: [Vec<Span>; 2],
}

impl Pairs {
    /// Forgets them.
    pub(crate) fn clear(&mut self) {
        self.sides.iter_mut().for_each(Vec::clear);
    }

    /// Reads the field whose name was read last. Returns whether it has texts.
    pub(crate) fn read_field(&mut self, w: &mut Writer, reader: &mut Reader<'_>) -> Result<bool> {
        let key = w.key();
        let Some(side) = SIDES.iter().position(|names| names.contains(&key)) else {
            return Ok(false);
        };
        let texts = &mut self.sides[side];
        texts.clear();
        if reader.peek()? != Token::Array {
            read_text(texts, w, reader)?;
            return Ok(true);
        }
        reader.open()?;
        while reader.element()? {
            read_text(texts, w, reader)?;
        }
        Ok(true)
    }

    /// Adds each pair to `prompts`: one with all others, or each with its own.
    pub(crate) fn put(&self, prompts: &mut Prompts) {
        let [ones, others] = &self.sides;
        if ones.len() != others.len() && ones.len() != 1 {
            return;
        }
        for (one, other) in ones.iter().cycle().zip(others) {
            prompts.put_text(&[*one, *other]);
        }
    }
}

/// A string, or an object around one and images; anything else has no text.
fn read_text(texts: &mut Vec<Span>, w: &mut Writer, reader: &mut Reader<'_>) -> Result<()> {
    let start = w.canon().end();
    match reader.peek()? {
        Token::String => w.canon().put_string(reader)?,
        Token::Object => w.canon().put_value(reader)?,
        _ => return reader.skip(),
    }
    if texts.len() >= w.limits.parts {
        return Err(reader.error(ErrorKind::TooManyParts));
    }
    texts.push(w.canon().since(start));
    Ok(())
}
