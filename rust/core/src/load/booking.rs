//! One booking: its share of its worker's load, and its phase.

use super::named::Name;
use super::pace::Prefill;
use crate::ids::{BookingId, Millis, WorkerId};

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

/// The load that one request adds to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    /// Length of the prompt.
    pub prompt_tokens: u64,
    /// How many of them the worker must compute.
    pub prefill_tokens: u64,
    /// How long that takes by the rule's estimate, 0 if it makes none.
    pub estimate_ms: f64,
    /// Tokens per block of the model.
    pub block_size: u32,
}

/// The part of its request that a booking is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Half {
    /// All of it.
    #[default]
    Whole,
    /// The prompt, for another worker.
    Prefill,
    /// The answer, from a prompt that another worker computes.
    Decode,
}

/// Phase of an open booking. A closed booking has no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Sent to the worker, no output yet.
    Booked,
    /// The first token arrived.
    Decoding,
}

/// The entries beside one in its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Neighbours {
    pub older: u32,
    pub newer: u32,
}

impl Neighbours {
    /// Alone, or in no list.
    pub const NONE: Self = Self {
        older: NONE,
        newer: NONE,
    };
}

/// State kept beside the load of a booking, by the owner of the book.
pub trait Payload: Default {
    /// Whether it is needed after the end of its booking, until [`super::Bookings::release`].
    fn lingers(&self) -> bool {
        false
    }
}

impl Payload for () {}

#[derive(Debug)]
pub(super) struct Booking<T> {
    pub generation: u32,
    /// The part of its request that it is for.
    pub half: Half,
    /// `None`: closed, or the entry is free.
    pub phase: Option<Phase>,
    pub worker: WorkerId,
    pub neighbours: Neighbours,
    /// Prompt plus output tokens so far.
    pub tokens: u64,
    pub prompt_tokens: u64,
    /// The uncomputed rest of its prompt.
    pub prefill: Prefill,
    /// All that its worker had to compute when it came, itself included.
    pub backlog: Prefill,
    pub estimate_ms: f64,
    pub block_size: u64,
    pub decode_blocks: u64,
    pub unnamed_blocks: u64,
    pub named: Option<Name>,
    /// In a prefill half, the booking that waits for its prompt; in a decode half, the one that it waits for.
    pub partner: Option<BookingId>,
    /// When it was sent to the worker, or when the prompt that it waited for was computed.
    pub booked: Millis,
    /// When its first token arrived; until then, when it was booked.
    pub first_token: Millis,
    /// Its last sign of life.
    pub touched: Millis,
    pub payload: T,
}

impl<T> Booking<T> {
    /// Blocks that its output filled.
    pub fn output_blocks(&self) -> u64 {
        // It holds none before its first token.
        let prompt_blocks = self.prompt_tokens / self.block_size;
        self.decode_blocks.saturating_sub(prompt_blocks)
    }
}
