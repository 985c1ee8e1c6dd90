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

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use crate::error::Result;
use crate::number::put_number;
use crate::scan::{Reader, Token};

pub(crate) const PIECE: u8 = 0xF8;
pub(crate) const TEXT: u8 = 0xF9;
pub(crate) const KEY: u8 = 0xFA;
pub(crate) const OBJECT: u8 = 0xFB;
pub(crate) const ARRAY: u8 = 0xFC;
pub(crate) const CLOSE: u8 = 0xFD;
pub(crate) const SCALAR: u8 = 0xFE;
pub(crate) const DIGEST: u8 = 0xFF;

/// Objects of at most so many keys compare each with each.
const FEW_KEYS: usize = 12;

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

    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start..self.end]
    }
}

/// An entry of an open object: its key's mark, its value and the end of it.
#[derive(Debug, Clone, Copy)]
struct Entry {
    key: usize,
    value: usize,
    end: usize,
}

/// A change for keys that come twice: `from` is left out, or gives its place to `to`.
#[derive(Debug, Clone, Copy)]
struct Edit {
    from: Span,
    to: Span,
}

/// The arena of canonical bytes, with what a value needs while it is written. All of it is reused.
#[derive(Debug, Default)]
pub(crate) struct Canon {
    pub(crate) bytes: Vec<u8>,
    entries: Vec<Entry>,
    order: Vec<(u64, Entry)>,
    edits: Vec<Edit>,
    pub(crate) seed: u64,
}

impl Canon {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.edits.clear();
    }

    /// What was written since `start`.
    pub(crate) fn since(&self, start: usize) -> Span {
        let end = self.bytes.len();
        Span { start, end }
    }

    /// Writes `bytes` and names their place.
    pub(crate) fn written(&mut self, bytes: &[u8]) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.since(start)
    }

    /// Keyed digest of what was written since `start`, which is then taken back.
    pub(crate) fn take_digest(&mut self, start: usize) -> u128 {
        let digest = xxh3_128_with_seed(&self.bytes[start..], self.seed);
        self.bytes.truncate(start);
        digest
    }

    /// Writes a digest.
    pub(crate) fn put_digest(&mut self, digest: u128) {
        self.bytes.push(DIGEST);
        self.bytes.extend_from_slice(&digest.to_le_bytes());
    }

    /// Writes the next value in the order of its keys. Of keys that come twice the last value counts, at the place of
    /// the first: what parsers make of them.
    pub(crate) fn put_value(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let start = self.bytes.len();
        self.entries.clear();
        self.edits.clear();
        self.write(reader)?;
        if !self.edits.is_empty() {
            self.edits.sort_unstable_by_key(|edit| edit.from.start);
            let end = self.bytes.len();
            self.copy(start, end);
            self.bytes.copy_within(end.., start);
            self.bytes.truncate(self.bytes.len() - (end - start));
        }
        Ok(())
    }

    fn write(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        match reader.peek()? {
            Token::Object => {
                self.bytes.push(OBJECT);
                reader.open()?;
                let base = self.entries.len();
                loop {
                    let key = self.bytes.len();
                    self.bytes.push(KEY);
                    if !reader.key(&mut self.bytes)? {
                        break;
                    }
                    let value = self.bytes.len();
                    self.write(reader)?;
                    let end = self.bytes.len();
                    self.entries.push(Entry { key, value, end });
                }
                self.bytes.pop();
                self.find_doubles(base);
                self.bytes.push(CLOSE);
            }
            Token::Array => {
                self.bytes.push(ARRAY);
                reader.open()?;
                while reader.element()? {
                    self.write(reader)?;
                }
                self.bytes.push(CLOSE);
            }
            Token::String => {
                self.bytes.push(TEXT);
                reader.string(&mut self.bytes)?;
            }
            Token::Number => {
                self.bytes.push(SCALAR);
                put_number(reader.number()?, &mut self.bytes);
            }
            Token::Bool | Token::Null => {
                self.bytes.push(SCALAR);
                self.bytes.extend_from_slice(reader.literal()?);
            }
        }
        Ok(())
    }

    /// Closes the object whose entries begin at `base`.
    fn find_doubles(&mut self, base: usize) {
        let entries = &self.entries[base..];
        let bytes = &self.bytes;
        let key = |entry: &Entry| &bytes[entry.key..entry.value];
        let few = entries.len() <= FEW_KEYS;
        let double = |at: usize| {
            entries[..at]
                .iter()
                .any(|one| key(one) == key(&entries[at]))
        };
        if few && !(1..entries.len()).any(double) {
            self.entries.truncate(base);
            return;
        }
        self.order.clear();
        for entry in entries {
            let hash = xxh3_64_with_seed(key(entry), self.seed);
            self.order.push((hash, *entry));
        }
        self.order.sort_unstable_by(|(left, one), (right, other)| {
            let by_hash = left.cmp(right);
            by_hash
                .then_with(|| key(one).cmp(key(other)))
                .then(one.key.cmp(&other.key))
        });
        let same = |one: &(u64, Entry), other: &(u64, Entry)| {
            one.0 == other.0 && key(&one.1) == key(&other.1)
        };
        for group in self.order.chunk_by(same) {
            let [(_, first), others @ .., (_, last)] = group else {
                continue;
            };
            let (from, to) = (first.value..first.end, last.value..last.end);
            self.edits.push(Edit {
                from: from.into(),
                to: to.into(),
            });
            for (_, entry) in others.iter().chain([&group[group.len() - 1]]) {
                let (from, to) = (entry.key..entry.end, 0..0);
                self.edits.push(Edit {
                    from: from.into(),
                    to: to.into(),
                });
            }
        }
        self.entries.truncate(base);
    }

    /// Appends what lies between, edited. An edit inside a part that is left out never applies.
    fn copy(&mut self, mut from: usize, to: usize) {
        let mut next = self.edits.partition_point(|edit| edit.from.start < from);
        while let Some(edit) = self.edits.get(next).copied()
            && edit.from.start < to
        {
            self.bytes.extend_from_within(from..edit.from.start);
            self.copy(edit.to.start, edit.to.end);
            from = edit.from.end;
            next += self.edits[next..].partition_point(|edit| edit.from.start < from);
        }
        self.bytes.extend_from_within(from..to);
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
