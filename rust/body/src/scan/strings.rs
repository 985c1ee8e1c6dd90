//! Strings: short ones of plain ASCII are found a word at a time, the others are read by jiter.

use jiter::{Jiter, JiterErrorType, JsonErrorType};

use super::Reader;
use crate::error::{ErrorKind, Result};

/// Where the text of a string goes.
pub trait Output {
    /// Takes the next bytes of UTF-8.
    fn put(&mut self, bytes: &[u8]);

    /// Takes the first `count` bytes of `bytes`, which go on behind them.
    fn put_first(&mut self, bytes: &[u8], count: usize);
}

impl Output for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    /// Copies a block where less is wanted: a copy whose length the compiler knows is much cheaper than one that is
    /// just long enough, and most strings are short.
    #[inline]
    fn put_first(&mut self, bytes: &[u8], count: usize) {
        match bytes.first_chunk::<BLOCK>() {
            Some(block) if count <= BLOCK => {
                let end = self.len() + count;
                self.extend_from_slice(block);
                self.truncate(end);
            }
            _ => self.extend_from_slice(&bytes[..count]),
        }
    }
}

/// Nowhere.
impl Output for () {
    #[inline]
    fn put(&mut self, _: &[u8]) {}

    #[inline]
    fn put_first(&mut self, _: &[u8], _: usize) {}
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;
const WORD: usize = 8;
const BLOCK: usize = 32;

/// High bits of the bytes that end a run of plain ASCII: quotes, backslashes, control characters and what is no ASCII.
/// Exact up to the lowest.
#[inline]
fn ends_of(word: u64) -> u64 {
    let quotes = (word ^ (ONES * u64::from(b'"'))).wrapping_sub(ONES);
    let slashes = (word ^ (ONES * u64::from(b'\\'))).wrapping_sub(ONES);
    let controls = word.wrapping_sub(ONES * 0x20);
    HIGHS & (quotes | slashes | controls | word)
}

/// Length of the run of plain ASCII that `bytes` begin with, if it ends within a block.
#[inline]
fn short_run(bytes: &[u8]) -> Option<usize> {
    let (words, _) = bytes[..bytes.len().min(BLOCK)].as_chunks();
    let mut ends = words.iter().map(|word| ends_of(u64::from_le_bytes(*word)));
    let at = ends.position(|ends| ends != 0)?;
    let found = ends_of(u64::from_le_bytes(words[at]));
    Some(at * WORD + found.trailing_zeros() as usize / 8)
}

impl Reader<'_> {
    /// Reads the string at this quote.
    ///
    /// # Errors
    /// With what stands here instead.
    #[inline]
    pub fn string<O: Output>(&mut self, out: &mut O) -> Result<()> {
        let rest = &self.bytes[self.at + 1..];
        match short_run(rest) {
            Some(count) if rest[count] == b'"' => {
                out.put_first(rest, count);
                self.at += count + 2;
                Ok(())
            }
            _ => self.any_string(out),
        }
    }

    #[inline(never)]
    fn any_string<O: Output>(&mut self, out: &mut O) -> Result<()> {
        let rest = &self.bytes[self.at..];
        let mut jiter = Jiter::new(rest);
        let error = match jiter.known_str() {
            Ok(text) => {
                out.put(text.as_bytes());
                self.at += jiter.current_index();
                return Ok(());
            }
            Err(error) => error,
        };
        self.at += error.index;
        let kind = match error.error_type {
            JiterErrorType::JsonError(JsonErrorType::InvalidUnicodeCodePoint) => {
                let valid = std::str::from_utf8(rest).map_or_else(|e| e.valid_up_to(), str::len);
                self.at = self.at - error.index + valid;
                ErrorKind::Utf8
            }
            JiterErrorType::JsonError(
                JsonErrorType::LoneLeadingSurrogateInHexEscape
                | JsonErrorType::UnexpectedEndOfHexEscape,
            ) => ErrorKind::Surrogate,
            _ => ErrorKind::Syntax,
        };
        Err(self.error(kind))
    }
}
