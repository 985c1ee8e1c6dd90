//! Options of the picker, as `EndpointPicker` documents them.

use std::collections::HashMap;
use std::time::Duration;

use crate::wire::BodySendMode;

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

/// Options of an endpoint picker. Counts and times are above 0,
/// times a year at most.
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
    /// Headers of decisions that clients may see, in lower case.
    pub expose_headers: Vec<String>,
    /// Whether the test headers of the Gateway API inference extension are obeyed and shown.
    pub conformance: bool,
}
