//! Why a body has no prompt. Nothing here holds content of a body.

use std::fmt;

/// What is wrong with a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A byte that JSON does not allow there.
    Syntax,
    /// The body ends inside a value.
    Truncated,
    /// A string that is not UTF-8.
    Utf8,
    /// Half of a surrogate pair, escaped or in UTF-8.
    Surrogate,
    /// Bytes behind the value.
    Trailing,
    /// The value is not an object.
    NotObject,
    /// `NaN` or `Infinity`, which some readers of JSON take.
    NotFinite,
    /// UTF-16 or UTF-32, which some readers of JSON take.
    Encoding,
    /// More bytes than [`Limits::bytes`](crate::Limits::bytes).
    TooLarge,
    /// Nested deeper than [`Limits::depth`](crate::Limits::depth).
    TooDeep,
    /// More messages, or more parts, than [`Limits::parts`](crate::Limits::parts).
    TooManyParts,
    /// More token ids than [`Limits::ids`](crate::Limits::ids).
    TooManyIds,
    /// A token id that is no whole number from 0 to 2^32 - 1.
    TokenId,
}

impl ErrorKind {
    /// All of them, in order.
    pub const ALL: [Self; 13] = [
        Self::Syntax,
        Self::Truncated,
        Self::Utf8,
        Self::Surrogate,
        Self::Trailing,
        Self::NotObject,
        Self::NotFinite,
        Self::Encoding,
        Self::TooLarge,
        Self::TooDeep,
        Self::TooManyParts,
        Self::TooManyIds,
        Self::TokenId,
    ];

    /// Whether Python's `json.loads` refuses such a body, too, or gives no dict. All else is a limit of this reader, and
    /// may be a valid request.
    #[must_use]
    pub fn is_invalid(self) -> bool {
        use ErrorKind::{NotObject, Syntax, Trailing, Truncated, Utf8};
        matches!(self, Syntax | Truncated | Utf8 | Trailing | NotObject)
    }

    /// Name as used for counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Syntax => "syntax",
            Self::Truncated => "truncated",
            Self::Utf8 => "utf8",
            Self::Surrogate => "surrogate",
            Self::Trailing => "trailing",
            Self::NotObject => "not-object",
            Self::NotFinite => "not-finite",
            Self::Encoding => "encoding",
            Self::TooLarge => "too-large",
            Self::TooDeep => "too-deep",
            Self::TooManyParts => "too-many-parts",
            Self::TooManyIds => "too-many-ids",
            Self::TokenId => "token-id",
        }
    }
}

/// A body that cannot be read, by kind and place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BodyError {
    /// What is wrong.
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
