//! Why a body has no prompt. Nothing here holds content of a body.

use std::fmt;

cachelb_core::named! {
    /// A fault of a body.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    ErrorKind {
        /// A byte that JSON does not allow there.
        Syntax = "syntax",
        /// The body ends inside a value.
        Truncated = "truncated",
        /// A string that is not UTF-8.
        Utf8 = "utf8",
        /// Half of a surrogate pair, escaped or in UTF-8.
        Surrogate = "surrogate",
        /// Bytes behind the value.
        Trailing = "trailing",
        /// The value is not an object.
        NotObject = "not-object",
        /// `NaN` or `Infinity`, which some readers of JSON take.
        NotFinite = "not-finite",
        /// UTF-16 or UTF-32, which some readers of JSON take.
        Encoding = "encoding",
        /// More bytes than [`Limits::bytes`](crate::Limits::bytes).
        TooLarge = "too-large",
        /// Nested deeper than [`Limits::depth`](crate::Limits::depth).
        TooDeep = "too-deep",
        /// More messages, or more parts, than [`Limits::parts`](crate::Limits::parts).
        TooManyParts = "too-many-parts",
        /// More token ids than [`Limits::ids`](crate::Limits::ids).
        TooManyIds = "too-many-ids",
        /// A token id that is no whole number from 0 to 2^32 - 1.
        TokenId = "token-id",
    }
}

impl ErrorKind {
    /// Whether Python's `json.loads` refuses such a body, too, or gives no dict. All else is a limit of this reader,
    /// and may be a valid request.
    #[must_use]
    pub fn is_invalid(self) -> bool {
        use ErrorKind::{NotObject, Syntax, Trailing, Truncated, Utf8};
        matches!(self, Syntax | Truncated | Utf8 | Trailing | NotObject)
    }
}

/// A body that cannot be read, by kind and place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BodyError {
    /// The kind of error.
    pub kind: ErrorKind,
    /// Byte of the body where it was noticed.
    pub offset: usize,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "request body: {} at byte {}",
            self.kind.name(),
            self.offset
        )
    }
}

impl std::error::Error for BodyError {}

/// Shorthand of this crate.
pub type Result<T> = std::result::Result<T, BodyError>;
