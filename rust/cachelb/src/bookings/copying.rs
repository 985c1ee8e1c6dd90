//! The copy from a peer that a booked request waits for.

use crate::request::Source;

/// A copy from a peer that a request waits for.
#[derive(Debug)]
pub(crate) struct Copying {
    pub source: Source,
    /// Until when it takes the links, and for how much longer than others do: out of the source, into the worker.
    pub until: f64,
    pub longer: [f64; 2],
    /// Whether its links are free, and its worker has no other prompt to compute.
    pub is_alone: bool,
    /// Whether its first token came, or it ended.
    pub is_over: bool,
}
