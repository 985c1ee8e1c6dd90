//! Outcomes of decisions: counters, the token funnel, and the latest records.

use std::collections::VecDeque;
use std::sync::Arc;

pub use cachelb_body::Usage;
use cachelb_core::ids::Millis;
use cachelb_core::load::Known;
use cachelb_policy::{Candidate, Ended, Reason, View};

use crate::request::{Pick, PoolId, Source, Wanted};

cachelb_core::named! {
    /// How a booking ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    Ending {
        /// The engine finished.
        Completed = "completed",
        /// The client's fault (4xx).
        Client = "client",
        /// The worker has too much to do (429, 503).
        Backpressure = "backpressure",
        /// The worker or the way to it failed.
        Failed = "failed",
        /// Given up.
        Cancelled = "cancelled",
        /// The decision was dropped without an outcome: given up, too.
        Abandoned = "abandoned",
        /// No sign of life for the time to live of bookings, or of the router that booked it.
        Expired = "expired",
        /// The engine's reports show that it no longer runs.
        Reconciled = "reconciled",
    }
}

impl Ending {
    /// The ending for an HTTP status, `None` for one that is no error. Answers have statuses up to 599; any code beyond
    /// is taken as a failure of the engine.
    #[must_use]
    pub fn of_status(status: u16) -> Option<Self> {
        match status {
            429 | 503 => Some(Self::Backpressure),
            // Proxies write this of clients that left.
            499 => Some(Self::Cancelled),
            400..=499 => Some(Self::Client),
            500..=999 => Some(Self::Failed),
            _ => None,
        }
    }

    /// Whether the worker is assumed to hold the prompt.
    #[must_use]
    pub fn ended(self) -> Ended {
        match self {
            Self::Completed | Self::Expired | Self::Reconciled => Ended::Served,
            _ => Ended::Failed,
        }
    }
}

/// Pick of a rule that decides beside the first.
#[derive(Debug, Clone, PartialEq)]
pub struct ShadowPick {
    /// Key of the worker.
    pub key: Arc<str>,
    /// Why.
    pub reason: Reason,
    /// Prompt tokens that candidate need not have computed.
    pub matched_tokens: u64,
    /// Whether the first rule picked the same.
    pub agrees: bool,
}

/// State of the picked worker before the request was added: with the prompt's length and the outcome, all that a cost
/// model is trained on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkerState {
    /// Prompt tokens it need not compute, by the credits of where they lie.
    pub credited_tokens: f64,
    /// Requests it computes, by a report that is fresh; so are the next two.
    pub running: Known,
    /// Requests that wait there.
    pub waiting: Known,
    /// Share of its KV cache in use.
    pub kv_usage: Known,
    /// Uncached tokens of requests without a first token.
    pub pending_prefill_tokens: u64,
    /// Tokens of the blocks of requests past their first token.
    pub decode_tokens: u64,
    /// Requests in flight.
    pub inflight: u32,
    /// Whether its latest report was too old to be used.
    pub is_stale: bool,
}

impl WorkerState {
    /// That of the worker of `row`.
    #[must_use]
    pub fn of(view: &View<'_>, row: &Candidate) -> Self {
        let (load, report) = (view.load(row), view.report(row));
        Self {
            credited_tokens: row.matched_tokens,
            running: report.running,
            waiting: report.waiting,
            kv_usage: report.kv_usage,
            pending_prefill_tokens: row.pending_prefill_tokens,
            decode_tokens: load.decode_blocks * u64::from(view.block_size),
            inflight: row.inflight,
            is_stale: view.is_stale(row),
        }
    }
}

/// One decision and what came of it. Nothing of the prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Number of the decision.
    pub number: u64,
    /// The part that the worker was picked for.
    pub wanted: Wanted,
    /// The model.
    pub pool: PoolId,
    /// Key of the worker.
    pub key: Arc<str>,
    /// Its rank, `None` if the worker has one rank.
    pub rank: Option<u32>,
    /// Why.
    pub reason: Reason,
    /// Length of the prompt.
    pub prompt_tokens: u64,
    /// Prompt tokens the best candidate held.
    pub best_matched_tokens: u64,
    /// Prompt tokens the picked one could reuse.
    pub matched_tokens: u64,
    /// Those it held for its layers that attend to the whole prefix.
    pub held_tokens: u64,
    /// Those of the matched ones that it read from the shared cache of the model.
    pub shared_tokens: u64,
    /// The peer that its worker was to copy from.
    pub source: Option<Source>,
    /// Candidates.
    pub candidates: u32,
    /// Convention of clients by which the conversation is known.
    pub convention: Option<&'static str>,
    /// How often the request was tried before.
    pub attempt: u32,
    /// How long it waited for room before it was decided, in milliseconds.
    pub queued_ms: u64,
    /// When it was decided.
    pub decided: Millis,
    /// When the first token came.
    pub first_token: Option<Millis>,
    /// When and how it ended.
    pub ended: Option<(Millis, Ending)>,
    /// Token counts reported by the engine.
    pub usage: Usage,
    /// State of the worker at the selection.
    pub worker: WorkerState,
    /// Name of its device's model.
    pub gpu: Option<Arc<str>>,
    /// Picks of the other rules.
    pub shadows: Box<[ShadowPick]>,
}

cachelb_core::counted! {
    /// Where prompt tokens are lost between the prompt and the engine's cache.
    ///
    /// Every sum is over the same requests: those that finished and whose engine reported how many of the prompt tokens
    /// were cached. Counted in the engine's tokens where it reports the prompt's length, since a prompt given as text
    /// is only estimated here.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Funnel {
        /// Requests.
        pub requests: u64,
        /// Tokens of their prompts.
        pub prompt_tokens: u64,
        /// Tokens the best candidate was expected to hold.
        pub best_matched_tokens: u64,
        /// Tokens the picked worker was expected to reuse.
        pub selected_matched_tokens: u64,
        /// Tokens it held for its layers that attend to the whole prefix: more, where others could not resume so far.
        pub selected_held_tokens: u64,
        /// Tokens of the matched ones that it was expected to read from the shared cache of the model.
        pub selected_shared_tokens: u64,
        /// Tokens the engine took from its cache.
        pub engine_cached_tokens: u64,
    }
}

impl Funnel {
    /// Adds a finished request whose engine reported cached tokens.
    fn add(&mut self, record: &Record) {
        let Some(cached) = record.usage.cached_tokens else {
            return;
        };
        // The decode worker of a pair got the whole prompt from the prefill worker and reports it as cached.
        if record.wanted == Wanted::Decode && record.reason != Reason::LocalDecode {
            return;
        }
        let prompt = record.usage.prompt_tokens.unwrap_or(record.prompt_tokens);
        if prompt == 0 {
            return;
        }
        let scaled = |tokens: u64| match record.prompt_tokens {
            0 => 0,
            own => (u128::from(tokens) * u128::from(prompt) / u128::from(own)) as u64,
        };
        self.requests += 1;
        self.prompt_tokens += prompt;
        self.best_matched_tokens += scaled(record.best_matched_tokens);
        self.selected_matched_tokens += scaled(record.matched_tokens);
        self.selected_held_tokens += scaled(record.held_tokens);
        self.selected_shared_tokens += scaled(record.shared_tokens);
        self.engine_cached_tokens += cached.min(prompt);
    }
}

cachelb_core::counted! {
    /// How a shadow compares with the first rule, over the same decisions.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct ShadowTally {
        /// Decisions.
        pub decisions: u64,
        /// Those in which it picked the same.
        pub agreed: u64,
        /// Prompt tokens its picks held.
        pub matched_tokens: u64,
        /// Prompt tokens the first rule's picks held.
        pub first_matched_tokens: u64,
    }
}

/// Counters since the start.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    /// Decisions by part and by reason, indexed as [`Wanted::ALL`] and [`Reason::ALL`].
    pub decisions: [Vec<u64>; Wanted::ALL.len()],
    /// Matches at each pick against the reports of the engines' caches.
    pub funnel: Funnel,
    /// How the shadows compare, by position.
    pub shadows: Vec<ShadowTally>,
    /// Bookings by ending, indexed as [`Ending::ALL`].
    pub endings: [u64; Ending::ALL.len()],
    /// Token counts of engines that could not be read or were implausible.
    pub unread_usage: u64,
    /// Selections without a candidate.
    pub no_worker: u64,
    /// Requests that were refused as every worker was full.
    pub overloaded: u64,
    /// Times that events and metrics of an engine came to disagree about its block size.
    pub size_disagreements: u64,
    /// Workers forgotten because they were no longer offered.
    pub forgotten: u64,
}

/// Counters since the start and the latest records.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Counters since the start.
    pub counters: Counters,
    finished: VecDeque<Record>,
    /// Records finished since the start.
    total: u64,
    capacity: usize,
}

impl Ledger {
    /// Remembers at most `capacity` finished records.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            counters: Counters {
                decisions: Wanted::ALL.map(|_| vec![0; Reason::ALL.len()]),
                ..Counters::default()
            },
            capacity,
            ..Self::default()
        }
    }

    pub(crate) fn decided(&mut self, pick: &Pick, shadows: &[ShadowPick]) {
        self.counters.decisions[pick.wanted as usize][pick.reason as usize] += 1;
        if self.counters.shadows.len() < shadows.len() {
            self.counters
                .shadows
                .resize(shadows.len(), ShadowTally::default());
        }
        for (tally, shadow) in self.counters.shadows.iter_mut().zip(shadows) {
            tally.decisions += 1;
            tally.agreed += u64::from(shadow.agrees);
            tally.matched_tokens += shadow.matched_tokens;
            tally.first_matched_tokens += pick.matched_tokens;
        }
    }

    pub(crate) fn ended(&mut self, ending: Ending, record: Option<Record>) {
        self.counters.endings[ending as usize] += 1;
        let Some(record) = record else { return };
        self.counters.funnel.add(&record);
        if self.capacity > 0 {
            if self.finished.len() == self.capacity {
                self.finished.pop_front();
            }
            self.finished.push_back(record);
            self.total += 1;
        }
    }

    /// Adds the engine's counts to a decision that was ended without them. Returns it if they were missing and it is
    /// still known.
    pub(crate) fn late_usage(&mut self, number: u64, usage: Usage) -> Option<&Record> {
        let mut newest = self.finished.iter_mut().rev();
        let found = newest.find(|record| record.number == number);
        let record = found.filter(|record| {
            let completed = matches!(record.ended, Some((_, Ending::Completed)));
            completed && record.usage == Usage::default()
        })?;
        record.usage = usage;
        self.counters.funnel.add(record);
        Some(record)
    }

    /// Selections that booked a worker.
    #[must_use]
    pub fn selected(&self) -> u64 {
        self.counters.decisions.iter().flatten().sum()
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
}
