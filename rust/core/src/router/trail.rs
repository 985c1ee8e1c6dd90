//! What the latest decisions saw, kept for explanations.
//!
//! A ring of a fixed number of decisions, each with at most [`KEPT_ROWS`] workers. Buffers are reused, so a decision allocates nothing once the ring is full.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::events::FeedState;
use crate::ids::Medium;
use crate::load::Known;

use super::fleet::Standing;

/// Decisions kept.
const KEPT: usize = 256;
/// Candidates kept of one decision.
pub(super) const KEPT_ROWS: usize = 64;

/// How leading blocks are known, and where they lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Blocks that events of the engine confirmed in device memory, and from there on in host memory and on disk.
    pub confirmed: [u32; 3],
    /// Blocks that it was sent and nobody confirmed.
    pub speculative: u32,
}

impl Held {
    /// Media of [`Self::confirmed`].
    pub const MEDIA: [Medium; 3] = Medium::ANNOUNCED;
}

/// What a selection saw of one offered worker, before it booked anything. Zeros for one that was no candidate.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Unique name of the candidate.
    pub name: Arc<str>,
    /// Whether it took part.
    pub standing: Standing,
    /// Whether it was picked.
    pub picked: bool,
    /// Leading blocks it held.
    pub overlap_blocks: u32,
    /// How those are known, and where they lie.
    pub held: Held,
    /// How far the events of its engine can be believed, `None` without.
    pub events: Option<FeedState>,
    /// Prompt tokens it need not compute, by the credits of where they lie.
    pub matched_tokens: f64,
    /// Requests in flight before this one.
    pub inflight: u32,
    /// Uncached tokens before this one.
    pub pending_prefill_tokens: u64,
    /// Blocks of requests past their first token.
    pub decode_blocks: u64,
    /// Relative capacity.
    pub weight: f64,
    /// What the rule ranked it by.
    pub score: Known,
}

impl Seen {
    /// A worker that took no part.
    pub(super) fn absent(name: Arc<str>, standing: Standing) -> Self {
        Self {
            name,
            standing,
            picked: false,
            overlap_blocks: 0,
            held: Held::default(),
            events: None,
            matched_tokens: 0.0,
            inflight: 0,
            pending_prefill_tokens: 0,
            decode_blocks: 0,
            weight: 0.0,
            score: Known::UNKNOWN,
        }
    }
}

/// What one decision saw.
#[derive(Debug, Default)]
pub(super) struct Entry {
    number: u64,
    pub rows: Vec<Seen>,
}

/// The latest decisions, by number.
#[derive(Debug, Default)]
pub(super) struct Trail(VecDeque<Entry>);

impl Trail {
    /// An empty entry for decision `number`; the oldest one's memory, once there are enough.
    pub fn recycle(&mut self, number: u64) -> Entry {
        let mut entry = if self.0.len() == KEPT {
            self.0.pop_front().unwrap_or_default()
        } else {
            Entry::default()
        };
        entry.number = number;
        entry.rows.clear();
        entry
    }

    /// Keeps a filled entry.
    pub fn push(&mut self, entry: Entry) {
        self.0.push_back(entry);
    }

    /// What decision `number` saw, `None` once it is no longer kept.
    pub fn get(&self, number: u64) -> Option<&[Seen]> {
        let entry = self.0.iter().rev().find(|entry| entry.number == number)?;
        Some(&entry.rows)
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn memory_bytes(&self) -> usize {
        let rows: usize = self.0.iter().map(|entry| entry.rows.capacity()).sum();
        rows * size_of::<Seen>() + self.0.capacity() * size_of::<Entry>()
    }
}
