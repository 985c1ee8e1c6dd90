//! The one error type of the crate.

use crate::ids::WorkerId;

/// An error of the caller; every message names the wrong value.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting lies outside its range.
    #[error("{name} must be {expected}, got {got}")]
    InvalidSetting {
        /// Name of the argument.
        name: &'static str,
        /// The accepted range, in words.
        expected: &'static str,
        /// The value given.
        got: String,
    },
    /// Options of a policy contradict each other.
    #[error("{0}")]
    BadOptions(String),
    /// The worker was removed (or never added); its id may not be written to.
    #[error("worker {0:?} is not registered (removed, or an id of an earlier incarnation)")]
    UnknownWorker(WorkerId),
    /// Two workers of one list have the same key.
    #[error("worker key {0:?} occurs twice in `workers`; keys must be unique")]
    DuplicateWorker(String),
    /// No offered worker may be picked.
    #[error("no worker may be picked")]
    NoCandidate,
    /// The policy declines the request rather than route it badly.
    #[error("the policy declines the request: {0}")]
    Refused(&'static str),
    /// Every worker that may be picked has as much load as admission allows, or other requests go first.
    #[error("admission refuses the request: {why}; a worker has room in about {wait_ms} ms")]
    Overloaded {
        /// Time until one has room, by the speed of their earlier prefills.
        wait_ms: u64,
        /// Why it does not wait.
        why: &'static str,
    },
    /// The worker chosen outside the selector is no candidate any more.
    #[error("the chosen worker is no candidate any more")]
    Moved,
    /// A tree of text was given tokens, or the other way round.
    #[error("this tree holds {0}; give it {0}, or make another tree")]
    KeyKind(&'static str),
    /// Not available in the mode that is kept for study.
    #[error(
        "{0} is not available with hashing=\"positional\", which is kept for study; use hashing=\"chained\""
    )]
    Unsupported(&'static str),
    /// The blocks of an engine cannot be mapped to those of the indexes.
    #[error(
        "the engine of worker {worker:?} has blocks of {engine} tokens, the router of {ours}: one must be a multiple of \
         the other; build it with block_size={engine}"
    )]
    EngineBlockSize {
        /// Key of the worker.
        worker: String,
        /// Tokens per block of its engine.
        engine: u32,
        /// Those of the indexes it serves, in words.
        ours: String,
    },
    /// A snapshot cannot be restored.
    #[error("snapshot refused: {0}")]
    BadSnapshot(String),
    /// A message of another router cannot be read.
    #[error("message refused: {0}")]
    BadMessage(String),
    /// An internal invariant is broken; `validate()` found it.
    #[error("broken invariant: {0}")]
    Invariant(String),
}

impl Error {
    /// The value `got` for the argument `name`, where one `expected` in words is accepted.
    pub fn setting(
        name: &'static str,
        expected: &'static str,
        got: impl std::fmt::Display,
    ) -> Self {
        let got = got.to_string();
        Self::InvalidSetting {
            name,
            expected,
            got,
        }
    }
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
