//! Digests of fields whose order does not count: parts of a content, head fields, unknown fields.

use crate::canon::{Canon, Span};
use crate::error::Result;
use crate::scan::{Reader, Token};

/// A field: digest of its key, its place among those collected, digest of its value (`None`: null, as if missing).
type Field = (u128, usize, Option<u128>);

/// Begins the bytes that a digest of fields covers; no value begins with it.
const FIELDS: u8 = 0xF8;

/// Which objects of a value are compared without the order of their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// None.
    Kept,
    /// The value itself.
    Free,
    /// The value itself, in which null is as good as missing.
    FreeWithoutNull,
}

/// Fields collected for digests, those of the innermost object last.
#[derive(Debug, Default)]
pub(crate) struct Fields(Vec<Field>);

impl Fields {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Where the fields of an object that begins now begin.
    pub(crate) fn base(&self) -> usize {
        self.0.len()
    }

    /// Adds a field.
    pub(crate) fn add(&mut self, canon: &Canon, key: &[u8], value: Option<u128>) {
        let key = canon.digest(key);
        self.0.push((key, self.0.len(), value));
    }

    /// Adds a field whose value was written to the arena.
    pub(crate) fn add_span(&mut self, canon: &Canon, key: &[u8], value: Span) {
        let value = canon.digest(value.of(canon.bytes()));
        self.add(canon, key, Some(value));
    }

    /// Reads the next value as a field.
    pub(crate) fn read(
        &mut self,
        canon: &mut Canon,
        key: &[u8],
        reader: &mut Reader<'_>,
    ) -> Result<()> {
        let value = if reader.peek()? == Token::Null {
            reader.literal()?;
            None
        } else {
            Some(self.value(canon, reader, Order::FreeWithoutNull)?)
        };
        self.add(canon, key, value);
        Ok(())
    }

    /// Digest of the next value.
    pub(crate) fn value(
        &mut self,
        canon: &mut Canon,
        reader: &mut Reader<'_>,
        order: Order,
    ) -> Result<u128> {
        let start = canon.end();
        if order == Order::Kept || reader.peek()? != Token::Object {
            canon.put_value(reader)?;
            return Ok(canon.take_digest(start));
        }
        reader.open()?;
        let base = self.base();
        while canon.put_key(reader)? {
            let key = canon.take_digest(start);
            let null = order == Order::FreeWithoutNull && reader.peek()? == Token::Null;
            let value = self.value(canon, reader, Order::Kept)?;
            self.0.push((key, self.0.len(), (!null).then_some(value)));
        }
        Ok(self.digest(canon, base))
    }

    /// Digest of the fields from `base` on, if there are any, and takes them back.
    #[inline]
    pub(crate) fn take(&mut self, canon: &mut Canon, base: usize) -> Option<u128> {
        if self.0.len() == base {
            return None;
        }
        self.take_some(canon, base)
    }

    fn take_some(&mut self, canon: &mut Canon, base: usize) -> Option<u128> {
        if self.0[base..].iter().all(|field| field.2.is_none()) {
            self.0.truncate(base);
            return None;
        }
        let before = canon.end();
        let empty = self.digest_into(canon, base);
        let digest = canon.take_digest(before);
        (!empty).then_some(digest)
    }

    fn digest(&mut self, canon: &mut Canon, base: usize) -> u128 {
        let before = canon.end();
        self.digest_into(canon, base);
        canon.take_digest(before)
    }

    /// Writes the fields from `base` on by key, the last of each, and whether there is none.
    fn digest_into(&mut self, canon: &mut Canon, base: usize) -> bool {
        canon.put(&[FIELDS]);
        let fields = &mut self.0[base..];
        fields.sort_unstable_by_key(|field| (field.0, field.1));
        let mut empty = true;
        for same in fields.chunk_by(|one, other| one.0 == other.0) {
            if let [.., (key, _, Some(value))] = same {
                canon.put(&key.to_le_bytes());
                canon.put(&value.to_le_bytes());
                empty = false;
            }
        }
        self.0.truncate(base);
        empty
    }
}
