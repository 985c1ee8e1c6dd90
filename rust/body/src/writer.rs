//! The writer of all parts of a reader, and the steps that all of them take.

use crate::canon::digest::{Fields, Order};
use crate::canon::{Canon, Span, TEXT};
use crate::error::Result;
use crate::profile::{Limits, Profile};
use crate::scan::{Reader, Token};

/// Whose field names are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Chat,
    Responses,
    Messages,
}

/// The arena, the fields collected for digests, and the key and the word that were read last.
#[derive(Default)]
pub(crate) struct Writer {
    pub(crate) profile: Profile,
    pub(crate) limits: Limits,
    canon: Canon,
    fields: Fields,
    key: Vec<u8>,
    word: Vec<u8>,
}

impl Writer {
    pub(crate) fn set(&mut self, profile: Profile, limits: Limits) {
        (self.profile, self.limits) = (profile, limits);
    }

    /// Forgets the last body.
    pub(crate) fn restart(&mut self) {
        self.canon.restart(self.profile.seed);
        self.fields.clear();
    }

    /// The bytes written so far.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.canon.bytes()
    }

    #[inline]
    pub(crate) fn canon(&mut self) -> &mut Canon {
        &mut self.canon
    }

    /// Reads the next key of an object.
    #[inline]
    pub(crate) fn next_key(&mut self, reader: &mut Reader<'_>) -> Result<bool> {
        self.key.clear();
        reader.key(&mut self.key)
    }

    /// The key read last.
    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Reads a string as a word; any other value leaves an empty one. Digest of the value, if it is not null.
    pub(crate) fn read_word(&mut self, reader: &mut Reader<'_>) -> Result<Option<u128>> {
        self.word.clear();
        match reader.peek()? {
            Token::String => {
                reader.string(&mut self.word)?;
                Ok(Some(self.canon.digest(&self.word)))
            }
            Token::Null => {
                reader.literal()?;
                Ok(None)
            }
            _ => {
                let start = self.canon.end();
                self.canon.put_value(reader)?;
                Ok(Some(self.canon.take_digest(start)))
            }
        }
    }

    /// The word read last.
    #[inline]
    pub(crate) fn word(&self) -> &[u8] {
        &self.word
    }

    /// Where the fields of an object that begins now begin.
    #[inline]
    pub(crate) fn fields(&self) -> usize {
        self.fields.base()
    }

    /// Adds a field by the digest of its value, `None` if that is null.
    pub(crate) fn add_field(&mut self, name: &[u8], value: Option<u128>) {
        self.fields.add(&self.canon, name, value);
    }

    /// Adds those fields whose values were written.
    pub(crate) fn add_written(&mut self, names: &[&[u8]], values: &[Span]) {
        for (name, span) in names.iter().zip(values) {
            if span.len() > 0 {
                self.fields.add_span(&self.canon, name, *span);
            }
        }
    }

    /// Reads the value of the key as a field whose order does not count.
    pub(crate) fn read_field(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        self.fields.read(&mut self.canon, &self.key, reader)
    }

    /// Reads the value of the key as a field in `order`.
    pub(crate) fn read_ordered_field(
        &mut self,
        reader: &mut Reader<'_>,
        order: Order,
    ) -> Result<()> {
        let null = reader.peek()? == Token::Null;
        let digest = self.fields.value(&mut self.canon, reader, order)?;
        let digest = (!null).then_some(digest);
        self.fields.add(&self.canon, &self.key, digest);
        Ok(())
    }

    /// Digest of the fields from `base` on, if there are any, and takes them back.
    #[inline]
    pub(crate) fn take_fields(&mut self, base: usize) -> Option<u128> {
        self.fields.take(&mut self.canon, base)
    }

    /// Writes the fields as a piece.
    #[inline]
    pub(crate) fn put_fields(&mut self, base: usize, kind: u8) {
        if let Some(digest) = self.take_fields(base) {
            self.canon.begin(kind);
            self.canon.put_digest(digest);
        }
    }

    /// The next value as a piece of a conversation: nothing for null.
    pub(crate) fn put_piece(&mut self, reader: &mut Reader<'_>, kind: u8) -> Result<Span> {
        let start = self.canon.end();
        match reader.peek()? {
            Token::Null => {
                reader.literal()?;
            }
            Token::String => {
                self.canon.begin(kind);
                self.canon.put_string(reader)?;
            }
            _ => {
                self.canon.begin(kind);
                self.canon.put_value(reader)?;
            }
        }
        Ok(self.canon.since(start))
    }

    /// The next value as text: nothing for null, any other value as it is.
    pub(crate) fn put_text(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        match reader.peek()? {
            Token::Null => reader.skip(),
            Token::String => {
                self.canon.put(&[TEXT]);
                self.canon.put_string(reader)
            }
            _ => self.put_other(reader),
        }
    }

    /// The next value as reasoning: nothing for null.
    pub(crate) fn put_reasoning(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        if reader.peek()? != Token::Null {
            self.canon.begin(b'r');
        }
        self.put_text(reader)
    }

    /// A value of a kind that is not expected there.
    pub(crate) fn put_other(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        self.canon.begin(b'v');
        self.canon.put_value(reader)
    }

    /// Arguments of a call: an object as structure, also if it comes as a string; none for null or an empty string;
    /// any other text as it is.
    pub(crate) fn put_arguments(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        match reader.peek()? {
            Token::Object => self.canon.put_value(reader),
            Token::String => {
                self.word.clear();
                reader.string(&mut self.word)?;
                if !self.put_object_of_word() {
                    self.canon.begin(b'w');
                    self.canon.put(&self.word);
                }
                Ok(())
            }
            Token::Null => {
                self.canon.put_empty_object();
                reader.skip()
            }
            _ => self.put_other(reader),
        }
    }

    /// Writes the word as structure if it is an object of JSON, or empty.
    fn put_object_of_word(&mut self) -> bool {
        if self.word.is_empty() {
            self.canon.put_empty_object();
            return true;
        }
        let start = self.canon.end();
        let mut inner = Reader::new(&self.word, self.limits.depth);
        let done = inner.peek() == Ok(Token::Object)
            && self.canon.put_value(&mut inner).is_ok()
            && inner.end().is_ok();
        if !done {
            self.canon.cut(start);
        }
        done
    }
}
