//! A JSON reader over bytes that builds nothing: the caller asks for the next key, element or value.
//!
//! It accepts the texts that RFC 8259 and `serde_json` accept, within a depth. Every byte is read a constant number of
//! times.

mod skip;
mod strings;

use crate::error::{BodyError, ErrorKind, Result};
pub use skip::check;
pub use strings::Output;

/// The kind of a value, by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// `{`
    Object,
    /// `[`
    Array,
    /// `"`
    String,
    /// A digit or `-`.
    Number,
    /// `true` or `false`.
    Bool,
    /// `null`
    Null,
}

/// A position in a JSON text.
///
/// `open` enters an object or array, whose content [`Reader::key`] or [`Reader::element`] then walk to its end.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    most_depth: usize,
    /// Between an opening bracket and what follows it, where no comma may stand.
    opened: bool,
}

impl<'a> Reader<'a> {
    /// A reader at the beginning of `bytes` that enters at most `most_depth` objects and arrays at a time.
    #[must_use]
    pub fn new(bytes: &'a [u8], most_depth: usize) -> Self {
        Self {
            bytes,
            at: 0,
            depth: 0,
            most_depth: most_depth.min(skip::MOST_DEPTH),
            opened: false,
        }
    }

    /// An error at this place.
    #[must_use]
    pub fn error(&self, kind: ErrorKind) -> BodyError {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let kind = match (kind, rest) {
            (ErrorKind::Syntax, []) => ErrorKind::Truncated,
            (ErrorKind::Syntax, _) if rest.starts_with(b"NaN") => ErrorKind::NotFinite,
            (ErrorKind::Syntax, _) if rest.starts_with(b"Infinity") => ErrorKind::NotFinite,
            (ErrorKind::Utf8, [0xED, 0xA0..=0xBF, 0x80..=0xBF, ..]) => ErrorKind::Surrogate,
            _ => kind,
        };
        BodyError {
            kind,
            offset: self.at,
        }
    }

    /// The kind of the next value.
    ///
    /// # Errors
    /// With what stands here instead.
    #[inline]
    pub fn peek(&mut self) -> Result<Token> {
        Ok(match self.next_byte() {
            b'"' => Token::String,
            b'{' => Token::Object,
            b'[' => Token::Array,
            b'-' | b'0'..=b'9' => Token::Number,
            b't' | b'f' => Token::Bool,
            b'n' => Token::Null,
            _ => return Err(self.error(ErrorKind::Syntax)),
        })
    }

    /// Enters the object or array whose bracket [`Reader::peek`] found.
    ///
    /// # Errors
    /// With what stands here instead.
    #[inline]
    pub fn open(&mut self) -> Result<()> {
        if self.depth >= self.most_depth {
            return Err(self.error(ErrorKind::TooDeep));
        }
        self.depth += 1;
        self.at += 1;
        self.opened = true;
        Ok(())
    }

    /// Whether another element follows; leaves the array if not.
    ///
    /// # Errors
    /// With what stands here instead.
    #[inline]
    pub fn element(&mut self) -> Result<bool> {
        self.follows(b']')
    }

    /// Whether another key follows, which is then read into `out`, with its colon; leaves the object if not.
    ///
    /// # Errors
    /// With what stands here instead.
    #[inline]
    pub fn key<O: Output>(&mut self, out: &mut O) -> Result<bool> {
        if !self.follows(b'}')? {
            return Ok(false);
        }
        if self.next_byte() != b'"' {
            return Err(self.error(ErrorKind::Syntax));
        }
        self.string(out)?;
        if self.next_byte() != b':' {
            return Err(self.error(ErrorKind::Syntax));
        }
        self.at += 1;
        Ok(true)
    }

    /// The literal that [`Reader::peek`] found.
    ///
    /// # Errors
    /// With what stands here instead.
    pub fn literal(&mut self) -> Result<&'static [u8]> {
        let word: &[u8] = match self.bytes[self.at] {
            b't' => b"true",
            b'f' => b"false",
            _ => b"null",
        };
        for expected in word {
            if self.bytes.get(self.at) != Some(expected) {
                return Err(self.error(ErrorKind::Syntax));
            }
            self.at += 1;
        }
        Ok(word)
    }

    /// The number that [`Reader::peek`] found, as it is written.
    ///
    /// # Errors
    /// With what stands here instead.
    pub fn number(&mut self) -> Result<&'a [u8]> {
        let start = self.at;
        if self.byte() == b'-' {
            self.at += 1;
        }
        match self.byte() {
            b'0' => self.at += 1,
            b'1'..=b'9' => self.digits()?,
            _ => return Err(self.error(ErrorKind::Syntax)),
        }
        if self.byte() == b'.' {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.byte(), b'e' | b'E') {
            self.at += 1;
            if matches!(self.byte(), b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(&self.bytes[start..self.at])
    }

    /// Reads the number that [`Reader::peek`] found, if it is a natural one: it then stays as it is written.
    #[inline]
    pub(crate) fn natural<O: Output>(&mut self, out: &mut O) -> bool {
        let rest = &self.bytes[self.at..];
        let count = rest.iter().position(|byte| !byte.is_ascii_digit());
        let count = count.unwrap_or(rest.len());
        let zero = rest[0] == b'0' && count > 1;
        if count == 0 || zero || matches!(rest.get(count), Some(b'.' | b'e' | b'E')) {
            return false;
        }
        out.put_first(rest, count);
        self.at += count;
        true
    }

    /// Checks that nothing follows.
    ///
    /// # Errors
    /// With what stands here instead.
    pub fn end(&mut self) -> Result<()> {
        self.next_byte();
        if self.at < self.bytes.len() {
            return Err(self.error(ErrorKind::Trailing));
        }
        Ok(())
    }

    /// One digit or more.
    fn digits(&mut self) -> Result<()> {
        let rest = &self.bytes[self.at..];
        let count = rest
            .iter()
            .position(|byte| !byte.is_ascii_digit())
            .unwrap_or(rest.len());
        self.at += count;
        if count == 0 {
            return Err(self.error(ErrorKind::Syntax));
        }
        Ok(())
    }

    #[inline]
    fn follows(&mut self, close: u8) -> Result<bool> {
        let byte = self.next_byte();
        if byte == close {
            self.opened = false;
            self.depth -= 1;
            self.at += 1;
            return Ok(false);
        }
        if self.opened {
            self.opened = false;
            return Ok(true);
        }
        if byte != b',' {
            return Err(self.error(ErrorKind::Syntax));
        }
        self.at += 1;
        Ok(true)
    }

    /// The byte here, 0 at the end; no JSON text has a 0 outside strings.
    #[inline]
    fn byte(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    /// The byte behind white space.
    #[inline]
    fn next_byte(&mut self) -> u8 {
        loop {
            let byte = self.byte();
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return byte;
            }
            self.at += 1;
        }
    }
}
