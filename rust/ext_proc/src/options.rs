//! Options of the picker, as `EndpointPicker` documents them.

use std::collections::HashMap;
use std::time::Duration;

use cachelb_serving::{UnknownHeader, exposed};

use crate::wire::BodySendMode;

/// Endpoints that may be named behind the picked one.
const MOST_FALLBACKS: usize = 3;

/// Thirty years: practically for ever, without overflow of any clock.
pub(crate) const LONGEST: Duration = Duration::from_secs(1_000_000_000);

/// How a proxy sends bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyMode {
    /// It does not.
    None,
    /// It forwards the headers before the body is there.
    Streamed,
    /// It holds headers and body until they have a reply.
    Buffered,
    /// It keeps nothing, so that each byte has to be given back.
    Duplex,
}

impl BodyMode {
    pub(crate) fn number(self) -> i32 {
        let mode = match self {
            Self::None => BodySendMode::None,
            Self::Streamed => BodySendMode::Streamed,
            Self::Buffered => BodySendMode::Buffered,
            Self::Duplex => BodySendMode::FullDuplexStreamed,
        };
        mode as i32
    }
}

/// Treatment of bodies for which there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LargeBodies {
    /// They are answered with 413, or with 503.
    Refuse,
    /// A worker is picked without reading them.
    Pass,
}

/// Options of an endpoint picker.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes of a request's body that are held and read at most.
    pub max_body_bytes: usize,
    /// Treatment of longer ones, and of those for which there is no room.
    pub large_bodies: LargeBodies,
    /// Bytes of all bodies that are unfinished or not yet returned, and of prompts of requests without an answer,
    /// which take half of it at most.
    pub max_held_bytes: usize,
    /// Requests open at once.
    pub max_streams: usize,
    /// Time that a request may take to arrive.
    pub body_timeout: Duration,
    /// Time without a message after which a stream ends.
    pub idle_timeout: Duration,
    /// Time that a request and its answer may take in all.
    pub stream_timeout: Duration,
    /// Workers to name behind the picked one, at most 3.
    pub fallbacks: usize,
    /// Priorities by the name of the objective.
    pub priorities: HashMap<String, i64>,
    /// Requests in flight on a worker from which on those of a negative priority are refused.
    pub shed_inflight: Option<u64>,
    /// Whether a model that a header names is put into the body.
    pub rewrite_model: bool,
    /// The mode of proxies that do not name theirs.
    pub default_body_mode: BodyMode,
    /// Headers of decisions that clients may see, in any case.
    pub expose_headers: Vec<String>,
    /// Whether the test headers of the Gateway API inference extension are obeyed and shown.
    pub conformance: bool,
}

/// An option out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOption {
    /// A number or a time is 0.
    #[error("{0} must be above 0, got 0")]
    Zero(&'static str),
    /// More fallbacks than a proxy may be given.
    #[error("fallbacks must be at most {MOST_FALLBACKS}, got {0}")]
    Fallbacks(usize),
    /// No decision has the header.
    #[error(transparent)]
    Header(#[from] UnknownHeader),
}

impl Options {
    /// Checks the values, cuts times to thirty years, and brings names of headers to lower case.
    ///
    /// # Errors
    ///
    /// An option is out of its range.
    pub fn checked(mut self) -> Result<Self, InvalidOption> {
        let is_zero = [
            ("max_body_bytes", self.max_body_bytes == 0),
            ("max_held_bytes", self.max_held_bytes == 0),
            ("max_streams", self.max_streams == 0),
            ("body_timeout", self.body_timeout.is_zero()),
            ("idle_timeout", self.idle_timeout.is_zero()),
            ("stream_timeout", self.stream_timeout.is_zero()),
            ("shed_inflight", self.shed_inflight == Some(0)),
        ];
        if let Some((name, _)) = is_zero.iter().find(|(_, is_zero)| *is_zero) {
            return Err(InvalidOption::Zero(name));
        }
        if self.fallbacks > MOST_FALLBACKS {
            return Err(InvalidOption::Fallbacks(self.fallbacks));
        }
        for time in [
            &mut self.body_timeout,
            &mut self.idle_timeout,
            &mut self.stream_timeout,
        ] {
            *time = LONGEST.min(*time);
        }
        self.expose_headers = exposed(self.expose_headers)?;
        Ok(self)
    }
}
