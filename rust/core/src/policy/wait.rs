//! Seconds until a worker would start a new request, from what its engine reports.

use super::view::{Candidate, View};

/// Tokens of a waiting request whose engine counts requests only, as SMG assumes.
pub(super) const MEAN_PREFILL_TOKENS: f64 = 1_024.0;
/// Tokens per second of a worker that was never seen computing, as SMG assumes.
const DEFAULT_THROUGHPUT: f64 = 2_000.0;

/// How reports become seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpectedWait {
    /// Seconds a worker at half-full KV cache is worth.
    pub kv_pressure_weight: f64,
}

impl ExpectedWait {
    /// What SMG assumes.
    pub const DEFAULT: Self = Self {
        kv_pressure_weight: 0.15,
    };

    /// Prompt tokens a worker computes per second: as reported, else as seen, else assumed.
    pub(super) fn tps(&self, view: &View<'_>, row: &Candidate) -> f64 {
        let reported = view.report(row).prefill_tps.get();
        let seen = || view.load(row).observed_prefill_tps.get();
        let known = reported.filter(|tps| *tps > 0.0).or_else(seen);
        known.filter(|tps| *tps > 0.0).unwrap_or(DEFAULT_THROUGHPUT)
    }

    /// Seconds the KV cache is worth: without bound as it fills, nothing if nobody said how full it is.
    pub(super) fn pressure_s(&self, view: &View<'_>, row: &Candidate) -> f64 {
        let usage = view.report(row).kv_usage.get().unwrap_or(0.0).min(0.999);
        self.kv_pressure_weight * usage / (1.0 - usage)
    }

    /// Seconds of queued work, of what was sent since the report and of `extra_tokens`, plus the pressure on the KV
    /// cache. `None` without a report of the queue.
    pub(super) fn seconds(
        &self,
        view: &View<'_>,
        row: &Candidate,
        extra_tokens: f64,
    ) -> Option<f64> {
        let report = view.report(row);
        let by_requests = || Some(report.waiting.get()? * MEAN_PREFILL_TOKENS);
        let queued = report.queued_tokens.get().or_else(by_requests)?;
        let tokens = queued + view.load(row).dispatched_tokens as f64 + extra_tokens;
        Some(tokens / self.tps(view, row) + self.pressure_s(view, row))
    }
}
