//! Strings: runs of plain bytes are found in blocks that the compiler turns into vectors.

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
const STEP: usize = 2 * WORD;
const BLOCK: usize = 32;

/// Whether a byte ends a run: a quote, a backslash or a control character; in a run of ASCII also any beyond it.
#[inline]
#[expect(
    clippy::needless_bitwise_bool,
    reason = "no vectors come of lazy operators"
)]
fn ends<const ASCII: bool>(byte: u8) -> bool {
    (byte == b'"') | (byte == b'\\') | (byte < 0x20) | (ASCII & (byte >= 0x80))
}

/// High bits of the bytes that end a run of ASCII. Exact up to the lowest.
#[inline]
fn ends_of(word: u64) -> u64 {
    let quotes = (word ^ (ONES * u64::from(b'"'))).wrapping_sub(ONES);
    let slashes = (word ^ (ONES * u64::from(b'\\'))).wrapping_sub(ONES);
    let controls = word.wrapping_sub(ONES * 0x20);
    HIGHS & (quotes | slashes | controls | word)
}

/// How many bytes lie before the first that ends a run.
#[inline]
fn plain<const ASCII: bool>(step: &[u8; STEP]) -> usize {
    // One vector, as long as the loop is no map and has no other steps.
    let mut found = [0; STEP];
    for (found, byte) in found.iter_mut().zip(step) {
        *found = if ends::<ASCII>(*byte) { 0xFF } else { 0 };
    }
    let ([first, second], []) = found.as_chunks() else {
        return 0;
    };
    let first = u64::from_le_bytes(*first);
    if first != 0 {
        return first.trailing_zeros() as usize / 8;
    }
    WORD + u64::from_le_bytes(*second).trailing_zeros() as usize / 8
}

/// Length of the run of ASCII that `bytes` begin with.
#[inline]
fn ascii_run(bytes: &[u8]) -> usize {
    let (words, _) = bytes.as_chunks();
    if let [first, second, ..] = words {
        let found = ends_of(u64::from_le_bytes(*first));
        if found != 0 {
            return found.trailing_zeros() as usize / 8;
        }
        let found = ends_of(u64::from_le_bytes(*second));
        if found != 0 {
            return WORD + found.trailing_zeros() as usize / 8;
        }
        return run::<true>(bytes, 2 * WORD);
    }
    run::<true>(bytes, 0)
}

/// Where the run ends that is known up to `at`.
#[inline(never)]
fn run<const ASCII: bool>(bytes: &[u8], mut at: usize) -> usize {
    let (blocks, _) = bytes[at..].as_chunks::<BLOCK>();
    for block in blocks {
        let found = block
            .iter()
            .fold(false, |found, byte| found | ends::<ASCII>(*byte));
        if found {
            break;
        }
        at += BLOCK;
    }
    while let Some(step) = bytes[at..].first_chunk() {
        let count = plain::<ASCII>(step);
        at += count;
        if count < STEP {
            return at;
        }
    }
    let tail = &bytes[at..];
    let end = tail.iter().position(|byte| ends::<ASCII>(*byte));
    at + end.unwrap_or(tail.len())
}

impl Reader<'_> {
    /// Reads the string at this quote.
    ///
    /// # Errors
    /// With what stands here instead.
    pub fn string<O: Output>(&mut self, out: &mut O) -> Result<()> {
        self.at += 1;
        let rest = &self.bytes[self.at..];
        let count = ascii_run(rest);
        if rest.get(count) != Some(&b'"') {
            return self.finish_string(out, count);
        }
        out.put_first(rest, count);
        self.at += count + 1;
        Ok(())
    }

    /// A string that does not end with its first run, `count` bytes of plain ASCII.
    #[inline(never)]
    fn finish_string<O: Output>(&mut self, out: &mut O, mut count: usize) -> Result<()> {
        let start = self.at;
        let mut beyond_ascii = false;
        loop {
            let rest = &self.bytes[self.at..];
            if rest.get(count).is_some_and(|byte| *byte >= 0x80) {
                beyond_ascii = true;
                count = run::<false>(rest, count);
            }
            out.put_first(rest, count);
            self.at += count;
            match rest.get(count) {
                Some(b'"') => break,
                Some(b'\\') => self.escapes(out)?,
                _ => return Err(self.error(ErrorKind::Syntax)),
            }
            count = ascii_run(&self.bytes[self.at..]);
        }
        let text = &self.bytes[start..self.at];
        if beyond_ascii && let Err(error) = std::str::from_utf8(text) {
            self.at = start + error.valid_up_to();
            return Err(self.error(ErrorKind::Utf8));
        }
        self.at += 1;
        Ok(())
    }
}
