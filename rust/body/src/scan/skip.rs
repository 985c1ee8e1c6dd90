//! Values that are not needed: checked, not read.

use super::{Reader, Token};
use crate::error::Result;

/// Objects and arrays at a time: one bit each tells which.
pub(super) const MOST_DEPTH: usize = 128;

impl Reader<'_> {
    /// Checks the next value and moves behind it.
    ///
    /// # Errors
    /// With the first thing that is wrong.
    pub fn skip(&mut self) -> Result<()> {
        let base = self.depth;
        // The kinds of what is open above `base`, the innermost in the lowest bit: 1 is an object.
        let mut objects = 0_u128;
        loop {
            match self.peek()? {
                Token::Object => {
                    self.open()?;
                    objects = objects << 1 | 1;
                }
                Token::Array => {
                    self.open()?;
                    objects <<= 1;
                }
                Token::String => self.string(&mut ())?,
                Token::Number => {
                    self.number()?;
                }
                Token::Bool | Token::Null => {
                    self.literal()?;
                }
            }
            loop {
                if self.depth == base {
                    return Ok(());
                }
                let more = if objects & 1 == 1 {
                    self.key(&mut ())?
                } else {
                    self.element()?
                };
                if more {
                    break;
                }
                objects >>= 1;
            }
        }
    }
}

/// Checks that `bytes` are one JSON value, nested at most `most_depth` (128) deep.
///
/// # Errors
/// With the first thing that is wrong.
pub fn check(bytes: &[u8], most_depth: usize) -> Result<()> {
    let mut reader = Reader::new(bytes, most_depth);
    reader.skip()?;
    reader.end()
}
