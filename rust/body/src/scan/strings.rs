//! Strings: runs of plain bytes are found eight at a time, long ones in blocks that the compiler turns into vectors.

use super::Reader;
use crate::error::{ErrorKind, Result};

/// Where the text of a string goes.
pub(crate) trait Output {
    /// Takes the next bytes of UTF-8.
    fn put(&mut self, bytes: &[u8]);
}

impl Output for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Nowhere.
impl Output for () {
    #[inline]
    fn put(&mut self, _: &[u8]) {}
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;
const WORD: usize = 8;
const BLOCK: usize = 32;

/// High bits of the bytes that end a run: a quote, a backslash or a control character. Exact up to the lowest.
#[inline]
fn specials(word: u64) -> u64 {
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word;
    let quotes = zeros(word ^ (ONES * u64::from(b'"')));
    let slashes = zeros(word ^ (ONES * u64::from(b'\\')));
    let controls = word.wrapping_sub(ONES * 0x20) & !word;
    (quotes | slashes | controls) & HIGHS
}

#[inline]
fn is_special(byte: u8) -> bool {
    byte == b'"' || byte == b'\\' || byte < 0x20
}

/// The first special byte from `at` on, and whether bytes beyond ASCII may lie before it.
#[inline]
fn run(bytes: &[u8], mut at: usize) -> (usize, bool) {
    let mut seen = 0_u64;
    let mut near = at + 2 * BLOCK;
    while let Some(word) = bytes[at..].first_chunk::<WORD>() {
        let word = u64::from_le_bytes(*word);
        let found = specials(word);
        if found != 0 {
            // Those of the bytes before it.
            seen |= word & (found & found.wrapping_neg()).wrapping_sub(1);
            return (at + found.trailing_zeros() as usize / 8, seen & HIGHS != 0);
        }
        seen |= word;
        at += WORD;
        if at >= near {
            at = blocks(bytes, at, &mut seen);
            near = at + 2 * BLOCK;
        }
    }
    let tail = &bytes[at..];
    let count = tail
        .iter()
        .position(|byte| is_special(*byte))
        .unwrap_or(tail.len());
    let high = tail[..count].iter().any(|byte| *byte >= 0x80);
    (at + count, high || seen & HIGHS != 0)
}

/// Moves over whole blocks without a special byte.
fn blocks(bytes: &[u8], mut at: usize, seen: &mut u64) -> usize {
    while let Some(block) = bytes[at..].first_chunk::<BLOCK>() {
        let (mut special, mut high) = (0_u8, 0_u8);
        for byte in block {
            special |= u8::from(is_special(*byte));
            high |= byte;
        }
        if special != 0 {
            break;
        }
        *seen |= u64::from(high);
        at += BLOCK;
    }
    at
}

impl Reader<'_> {
    /// Reads the string at this quote.
    #[inline]
    pub(crate) fn string<O: Output>(&mut self, out: &mut O) -> Result<()> {
        self.at += 1;
        let (end, high) = run(self.bytes, self.at);
        if !high && self.bytes.get(end) == Some(&b'"') {
            out.put(&self.bytes[self.at..end]);
            self.at = end + 1;
            return Ok(());
        }
        self.finish_string(out, end, high)
    }

    /// The rest of a string, whose first run ends at `end`.
    fn finish_string<O: Output>(&mut self, out: &mut O, mut end: usize, high: bool) -> Result<()> {
        let start = self.at;
        let mut beyond_ascii = high;
        loop {
            out.put(&self.bytes[self.at..end]);
            self.at = end;
            match self.bytes.get(end) {
                Some(b'"') => break,
                Some(b'\\') => self.escapes(out)?,
                _ => return Err(self.error(ErrorKind::Syntax)),
            }
            let (next, high) = run(self.bytes, self.at);
            beyond_ascii |= high;
            end = next;
        }
        if beyond_ascii && let Err(error) = std::str::from_utf8(&self.bytes[start..end]) {
            self.at = start + error.valid_up_to();
            return Err(self.error(ErrorKind::Utf8));
        }
        self.at = end + 1;
        Ok(())
    }
}
