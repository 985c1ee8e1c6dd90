//! What became of the decisions: counters, the token funnel, and records of the latest.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ids::Millis;
use crate::policy::{Ended, Reason};

use super::request::PoolId;

/// How a booking ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The engine finished.
    Completed,
    /// The client's fault (4xx).
    Client,
    /// The worker has too much to do (429, 503).
    Backpressure,
    /// The worker or the way to it failed.
    Failed,
    /// Given up.
    Cancelled,
    /// Its owner vanished without a word.
    Abandoned,
    /// No sign of life for the time to live of bookings.
    Expired,
    /// The engine's reports say that it no longer runs.
    Reconciled,
}

impl Ending {
    /// Every ending.
    pub const ALL: [Self; 8] = [
        Self::Completed,
        Self::Client,
        Self::Backpressure,
        Self::Failed,
        Self::Cancelled,
        Self::Abandoned,
        Self::Expired,
        Self::Reconciled,
    ];

    /// Name used in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Client => "client",
            Self::Backpressure => "backpressure",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Abandoned => "abandoned",
            Self::Expired => "expired",
            Self::Reconciled => "reconciled",
        }
    }

    /// Whether the worker may be believed to hold the prompt.
    #[must_use]
    pub fn ended(self) -> Ended {
        match self {
            Self::Completed | Self::Abandoned | Self::Expired | Self::Reconciled => Ended::Served,
            _ => Ended::Failed,
        }
    }
}

/// What the engine counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Prompt tokens from its cache.
    pub cached_tokens: Option<u64>,
    /// Prompt tokens.
    pub prompt_tokens: Option<u64>,
    /// Output tokens.
    pub output_tokens: Option<u64>,
}

/// What a rule beside the first one would have done.
#[derive(Debug, Clone, PartialEq)]
pub struct ShadowPick {
    /// Unique name of the candidate.
    pub name: Arc<str>,
    /// Why.
    pub reason: Reason,
    /// Prompt tokens that candidate need not have computed.
    pub matched_tokens: u64,
}

/// One decision and what came of it. Nothing of the prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Number of the decision.
    pub number: u64,
    /// The model.
    pub pool: PoolId,
    /// Unique name of the candidate.
    pub name: Arc<str>,
    /// Why.
    pub reason: Reason,
    /// Length of the prompt.
    pub prompt_tokens: u64,
    /// Prompt tokens the best candidate held.
    pub best_matched_tokens: u64,
    /// Prompt tokens the picked one held.
    pub matched_tokens: u64,
    /// Candidates.
    pub candidates: u32,
    /// How often the request was tried before.
    pub attempt: u32,
    /// When it was decided.
    pub decided: Millis,
    /// When the first token came.
    pub first_token: Option<Millis>,
    /// When and how it ended.
    pub ended: Option<(Millis, Ending)>,
    /// What the engine counted.
    pub usage: Usage,
    /// What other rules would have done.
    pub shadows: Box<[ShadowPick]>,
}

/// Counters since the start and the latest records.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Decisions by reason, indexed as [`Reason::ALL`].
    pub decisions: Vec<u64>,
    /// Bookings by ending, indexed as [`Ending::ALL`].
    pub endings: [u64; Ending::ALL.len()],
    /// Selections that found nobody.
    pub no_worker: u64,
    /// Workers forgotten because they were no longer offered.
    pub forgotten: u64,
    finished: VecDeque<Record>,
    /// Records finished since the start.
    total: u64,
    capacity: usize,
}

impl Ledger {
    /// Remembers at most `capacity` finished records.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            decisions: vec![0; Reason::ALL.len()],
            capacity,
            ..Self::default()
        }
    }

    pub(super) fn decided(&mut self, reason: Reason) {
        self.decisions[reason as usize] += 1;
    }

    pub(super) fn ended(&mut self, ending: Ending, record: Option<Record>) {
        self.endings[ending as usize] += 1;
        let Some(record) = record else { return };
        if self.capacity > 0 {
            if self.finished.len() == self.capacity {
                self.finished.pop_front();
            }
            self.finished.push_back(record);
            self.total += 1;
        }
    }

    /// Selections that booked a worker.
    #[must_use]
    pub fn selected(&self) -> u64 {
        self.decisions.iter().sum()
    }

    /// Records finished after the first `cursor` ones that are still kept, the cursor after them, and how many were lost.
    #[must_use]
    pub fn since(&self, cursor: u64, limit: usize) -> (Vec<Record>, u64, u64) {
        let oldest = self.total - self.finished.len() as u64;
        let lost = oldest.saturating_sub(cursor);
        let from = cursor.clamp(oldest, self.total);
        let records = self.finished.iter().skip((from - oldest) as usize);
        let records: Vec<Record> = records.take(limit).cloned().collect();
        let next = from + records.len() as u64;
        (records, next, lost)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.finished.capacity() * size_of::<Record>()
    }
}
