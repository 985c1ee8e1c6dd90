//! One prompt of a body.

use std::fmt;

use cachelb_core::hashing::{Hasher, Namespace};
use cachelb_core::ids::SequenceHash;

use crate::canon::Span;

/// One prompt of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prompt<'a> {
    /// Canonical bytes.
    Text(Text<'a>),
    /// Token ids.
    Tokens(&'a [u32]),
}

impl Prompt<'_> {
    /// Bytes, or ids.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Tokens(ids) => ids.len(),
        }
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Canonical bytes: slices of the arena, in canonical order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<'a> {
    arena: &'a [u8],
    slices: &'a [Span],
}

/// Without content.
impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Text({} bytes)", self.len())
    }
}

impl<'a> Text<'a> {
    /// The text of `slices` of `arena`.
    pub(crate) fn new(arena: &'a [u8], slices: &'a [Span]) -> Self {
        Self { arena, slices }
    }

    /// The slices.
    pub fn slices(self) -> impl Iterator<Item = &'a [u8]> {
        self.slices.iter().map(|slice| slice.of(self.arena))
    }

    /// Bytes of all.
    #[must_use]
    pub fn len(self) -> usize {
        self.slices.iter().map(|slice| slice.len()).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// All of it in a row: where it lies, or copied to `spare`.
    #[must_use]
    pub fn joined<'b>(self, spare: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        if let [slice] = self.slices {
            return slice.of(self.arena);
        }
        spare.clear();
        for slice in self.slices() {
            spare.extend_from_slice(slice);
        }
        spare
    }

    /// Replaces the content of `out` with one hash per full chunk, as [`Hasher::hash_text`] does; `spare` is room for
    /// a copy.
    pub fn hash(
        self,
        hasher: &Hasher,
        chunk_bytes: usize,
        namespace: Namespace,
        spare: &mut Vec<u8>,
        out: &mut Vec<SequenceHash>,
    ) {
        hasher.hash_text(self.joined(spare), chunk_bytes, namespace, out);
    }
}
