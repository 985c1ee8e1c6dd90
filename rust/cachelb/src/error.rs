//! Errors of a router.

use cachelb_body::BodyError;

/// Why a call of a [`Router`](crate::Router) failed; every message names the wrong value.
///
/// ```
/// let error = cachelb::Router::new(r#"{"policy": "nearest"}"#).unwrap_err();
/// assert!(matches!(error, cachelb::Error::Options(_)));
/// assert_eq!(error.to_string(), r#"there is no policy "nearest""#);
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is unknown or has a wrong value.
    #[error("{0}")]
    Options(String),
    /// The key of a worker is too long, empty, or begins with a null character.
    #[error("a worker's key must have 1 to {most} bytes and not begin with a null character, got {got} bytes", most = crate::MOST_KEY_BYTES)]
    Key {
        /// Bytes of the key.
        got: usize,
    },
    /// There is no worker of that key.
    #[error("worker {0:?} is not registered")]
    UnknownWorker(String),
    /// No worker may be picked: the reason of each, by key.
    #[error("no worker may be picked{}", listed(.0))]
    NoWorker(Vec<(String, &'static str)>),
    /// The policy declines the request rather than route it badly.
    #[error("the policy declines the request: {0}")]
    Refused(&'static str),
    /// The request body cannot be read; it can still be routed by load.
    #[error("{0}")]
    Body(BodyError),
    /// A snapshot cannot be written or restored.
    #[error("{0}")]
    Snapshot(String),
    /// Anything else.
    #[error("{0}")]
    Other(cachelb_core::Error),
}

fn listed(reasons: &[(String, &'static str)]) -> String {
    let reasons: Vec<String> = reasons
        .iter()
        .take(8)
        .map(|(key, reason)| format!("{key:?} is {reason}"))
        .collect();
    if reasons.is_empty() {
        ": none is registered".to_owned()
    } else {
        format!(": {}", reasons.join(", "))
    }
}

impl Error {
    pub(crate) fn options(text: impl Into<String>) -> Self {
        Self::Options(text.into())
    }
}

impl From<cachelb_core::Error> for Error {
    fn from(error: cachelb_core::Error) -> Self {
        use cachelb_core::Error as Core;
        match error {
            Core::BadOptions(text) => Self::Options(text),
            Core::InvalidSetting { .. } | Core::Unsupported(_) => Self::Options(error.to_string()),
            Core::BadSnapshot(_) => Self::Snapshot(error.to_string()),
            Core::Refused(reason) => Self::Refused(reason),
            other => Self::Other(other),
        }
    }
}

impl From<BodyError> for Error {
    fn from(error: BodyError) -> Self {
        Self::Body(error)
    }
}

/// Result with the [`Error`] of this crate.
pub type Result<T> = std::result::Result<T, Error>;
