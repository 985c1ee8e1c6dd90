//! Values in the order of their keys.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{ARRAY, CLOSE, KEY, OBJECT, SCALAR, Span, TEXT};
use crate::canon::number::put_number;
use crate::error::Result;
use crate::scan::{Reader, Token};

/// Objects of at most so many keys compare each with each.
const FEW_KEYS: usize = 12;

/// An entry of an open object: its key's mark, its value and the end of it.
#[derive(Debug, Clone, Copy)]
struct Entry {
    key: usize,
    value: usize,
    end: usize,
    /// The last bytes of the key: keys in which they differ are not the same.
    tail: u64,
}

/// The last bytes of the key at the end of `bytes`, which begins at `key`.
#[inline]
fn tail(bytes: &[u8], key: usize) -> u64 {
    let foreign = 8_usize.saturating_sub(bytes.len() - key);
    match bytes.last_chunk() {
        // The bytes before a shorter key are shifted out.
        Some(last) => u64::from_le_bytes(*last) >> (8 * foreign),
        None => bytes[key..]
            .iter()
            .rfold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// A change for keys that come twice: `from` is left out, or gives its place to `to`.
#[derive(Debug, Clone, Copy)]
struct Edit {
    from: Span,
    to: Span,
}

/// The buffers for writing a value, reused.
#[derive(Debug, Default)]
pub(super) struct Values {
    entries: Vec<Entry>,
    order: Vec<(u64, Entry)>,
    edits: Vec<Edit>,
}

impl Values {
    /// Writes the next value in the order of its keys. The last value of a repeated key counts, at the place of
    /// the first, as in JSON parsers.
    pub(super) fn put(
        &mut self,
        reader: &mut Reader<'_>,
        bytes: &mut Vec<u8>,
        seed: u64,
    ) -> Result<()> {
        let start = bytes.len();
        self.entries.clear();
        self.edits.clear();
        self.write(reader, bytes, seed)?;
        if !self.edits.is_empty() {
            self.edits.sort_unstable_by_key(|edit| edit.from.start);
            let end = bytes.len();
            self.copy(bytes, start, end);
            bytes.copy_within(end.., start);
            bytes.truncate(bytes.len() - (end - start));
        }
        Ok(())
    }

    #[inline]
    fn write(&mut self, reader: &mut Reader<'_>, bytes: &mut Vec<u8>, seed: u64) -> Result<()> {
        match reader.peek()? {
            Token::String => {
                bytes.push(TEXT);
                reader.string(bytes)?;
            }
            Token::Number => {
                bytes.push(SCALAR);
                if !reader.natural(bytes) {
                    put_number(reader.number()?, bytes);
                }
            }
            Token::Bool | Token::Null => {
                bytes.push(SCALAR);
                bytes.extend_from_slice(reader.literal()?);
            }
            Token::Object => self.write_object(reader, bytes, seed)?,
            Token::Array => self.write_array(reader, bytes, seed)?,
        }
        Ok(())
    }

    fn write_array(
        &mut self,
        reader: &mut Reader<'_>,
        bytes: &mut Vec<u8>,
        seed: u64,
    ) -> Result<()> {
        bytes.push(ARRAY);
        reader.open()?;
        while reader.element()? {
            self.write(reader, bytes, seed)?;
        }
        bytes.push(CLOSE);
        Ok(())
    }

    fn write_object(
        &mut self,
        reader: &mut Reader<'_>,
        bytes: &mut Vec<u8>,
        seed: u64,
    ) -> Result<()> {
        bytes.push(OBJECT);
        reader.open()?;
        let base = self.entries.len();
        loop {
            let key = bytes.len();
            bytes.push(KEY);
            if !reader.key(bytes)? {
                break;
            }
            let (value, tail) = (bytes.len(), tail(bytes, key));
            self.write(reader, bytes, seed)?;
            let end = bytes.len();
            self.entries.push(Entry {
                key,
                value,
                end,
                tail,
            });
        }
        bytes.pop();
        self.find_doubles(base, bytes, seed);
        bytes.push(CLOSE);
        Ok(())
    }

    /// Closes the object whose entries begin at `base`.
    fn find_doubles(&mut self, base: usize, bytes: &[u8], seed: u64) {
        let entries = &self.entries[base..];
        let key = |entry: &Entry| &bytes[entry.key..entry.value];
        let few = entries.len() <= FEW_KEYS;
        let double = |at: usize| {
            let last = &entries[at];
            let mut before = entries[..at].iter();
            before.any(|one| one.tail == last.tail && key(one) == key(last))
        };
        if few && !(1..entries.len()).any(double) {
            self.entries.truncate(base);
            return;
        }
        self.order.clear();
        for entry in entries {
            let hash = xxh3_64_with_seed(key(entry), seed);
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
    fn copy(&self, bytes: &mut Vec<u8>, mut from: usize, to: usize) {
        let mut next = self.edits.partition_point(|edit| edit.from.start < from);
        while let Some(edit) = self.edits.get(next).copied()
            && edit.from.start < to
        {
            bytes.extend_from_within(from..edit.from.start);
            self.copy(bytes, edit.to.start, edit.to.end);
            from = edit.from.end;
            next += self.edits[next..].partition_point(|edit| edit.from.start < from);
        }
        bytes.extend_from_within(from..to);
    }
}
