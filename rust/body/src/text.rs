//! One prompt of a body.

use std::fmt;

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
}
