//! Canonical bytes: UTF-8 between marks that UTF-8 never holds, so that no text looks like structure.
//!
//! ```text
//! F8 kind text   a piece of a conversation: message and role, name, tool call, ...
//! F9 text        a string
//! FA text        a key of an object, its value behind it
//! FB .. FD       an object, in the order of its keys
//! FC .. FD       an array
//! FE text        a number, true, false, null
//! FF 16 bytes    a digest
//! ```
//!
//! A reader from the left finds every mark, and more conversation only appends.

pub mod digest;
pub mod number;
mod values;

use xxhash_rust::xxh3::xxh3_128_with_seed;

use self::values::Values;
use crate::error::Result;
use crate::scan::Reader;

pub(crate) const PIECE: u8 = 0xF8;
pub(crate) const TEXT: u8 = 0xF9;
pub(crate) const KEY: u8 = 0xFA;
pub(crate) const OBJECT: u8 = 0xFB;
pub(crate) const ARRAY: u8 = 0xFC;
pub(crate) const CLOSE: u8 = 0xFD;
pub(crate) const SCALAR: u8 = 0xFE;
pub(crate) const DIGEST: u8 = 0xFF;

/// A range of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Span {
    pub(crate) fn len(self) -> usize {
        self.end - self.start
    }

    pub(crate) fn of<T>(self, arena: &[T]) -> &[T] {
        &arena[self.start..self.end]
    }
}

/// The arena of canonical bytes, with what a value needs while it is written. All of it is reused.
#[derive(Debug, Default)]
pub(crate) struct Canon {
    bytes: Vec<u8>,
    values: Values,
    seed: u64,
}

impl Canon {
    /// Forgets what was written; digests have the key `seed` from now on.
    pub(crate) fn restart(&mut self, seed: u64) {
        self.bytes.clear();
        self.seed = seed;
    }

    /// The bytes written so far.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes that it takes.
    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.bytes.capacity()
    }

    /// Where the next byte goes.
    #[inline]
    pub(crate) fn end(&self) -> usize {
        self.bytes.len()
    }

    /// Takes back what was written since `start`.
    pub(crate) fn cut(&mut self, start: usize) {
        self.bytes.truncate(start);
    }

    /// Makes the piece at `at` one of another kind.
    pub(crate) fn set_kind(&mut self, at: usize, kind: u8) {
        self.bytes[at + 1] = kind;
    }

    /// Makes reasoning at `at`, the mark of that in a text, or a message one that `later` messages follow.
    pub(crate) fn move_kind(&mut self, at: usize, later: u8) {
        let first = match self.bytes[at + 1] {
            b'r' => 0x80,
            b'h' => 0xA0,
            _ => 0xE0,
        };
        self.set_kind(at, first + later);
    }

    /// The bytes written since `start`.
    #[inline]
    pub(crate) fn since(&self, start: usize) -> Span {
        let end = self.bytes.len();
        Span { start, end }
    }

    /// Writes `bytes`, and where.
    #[inline]
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.since(start)
    }

    /// Writes what lies at `span` again.
    pub(crate) fn copy(&mut self, span: Span) {
        self.bytes.extend_from_within(span.start..span.end);
    }

    /// Begins a piece of a conversation.
    #[inline]
    pub(crate) fn begin(&mut self, kind: u8) -> Span {
        self.put(&[PIECE, kind])
    }

    /// Begins a message.
    pub(crate) fn begin_message(&mut self, role: &[u8]) -> Span {
        let start = self.begin(b'm').start;
        self.bytes.extend_from_slice(role);
        self.since(start)
    }

    /// Writes `{}`.
    pub(crate) fn put_empty_object(&mut self) -> Span {
        self.put(&[OBJECT, CLOSE])
    }

    /// Writes the text of the next string.
    #[inline]
    pub(crate) fn put_string(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        reader.string(&mut self.bytes)
    }

    /// Writes the next key of an object, if there is one.
    pub(crate) fn put_key(&mut self, reader: &mut Reader<'_>) -> Result<bool> {
        reader.key(&mut self.bytes)
    }

    /// Keyed digest of `bytes`.
    pub(crate) fn digest(&self, bytes: &[u8]) -> u128 {
        xxh3_128_with_seed(bytes, self.seed)
    }

    /// Keyed digest of what was written since `start`, which is then taken back.
    pub(crate) fn take_digest(&mut self, start: usize) -> u128 {
        let digest = self.digest(&self.bytes[start..]);
        self.bytes.truncate(start);
        digest
    }

    /// Writes a digest.
    pub(crate) fn put_digest(&mut self, digest: u128) {
        self.bytes.push(DIGEST);
        self.bytes.extend_from_slice(&digest.to_le_bytes());
    }

    /// Writes a digest of `parts`, if they are not empty, to stand before them: what shares a part of them shares
    /// nothing of them.
    pub(crate) fn put_whole(&mut self, kind: u8, parts: impl IntoIterator<Item = Span>) -> Span {
        let start = self.end();
        for part in parts {
            self.copy(part);
        }
        if self.end() > start {
            let digest = self.take_digest(start);
            self.begin(kind);
            self.put_digest(digest);
        }
        self.since(start)
    }

    /// Makes the digest in the piece at `at` one of itself and `part` too.
    pub(crate) fn add_to_whole(&mut self, at: usize, part: Span) {
        let whole = [
            self.digest(&self.bytes[at..at + 19]),
            self.digest(part.of(&self.bytes)),
        ];
        let whole = self.digest(whole.map(u128::to_le_bytes).as_flattened());
        self.bytes[at + 3..at + 19].copy_from_slice(&whole.to_le_bytes());
    }

    /// Writes the next value in the order of its keys. The last value of a repeated key counts, at the place of
    /// the first, as in JSON parsers.
    pub(crate) fn put_value(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        self.values.put(reader, &mut self.bytes, self.seed)
    }

    /// Makes what was written since `start` the sequence of `parts`, all of which lie there.
    pub(crate) fn arrange(&mut self, start: usize, parts: &[Span]) {
        let mut at = start;
        let in_order = parts.iter().all(|part| {
            let follows = part.start == at || part.len() == 0;
            at += part.len();
            follows
        });
        if in_order && at == self.bytes.len() {
            return;
        }
        let end = self.bytes.len();
        for part in parts {
            self.bytes.extend_from_within(part.start..part.end);
        }
        self.bytes.copy_within(end.., start);
        self.bytes.truncate(self.bytes.len() - (end - start));
    }
}

impl From<std::ops::Range<usize>> for Span {
    fn from(range: std::ops::Range<usize>) -> Self {
        Self {
            start: range.start,
            end: range.end,
        }
    }
}
