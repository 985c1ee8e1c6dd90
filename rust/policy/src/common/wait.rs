//! Seconds until a worker would start a new request, from reports of its engine.

use crate::rule::view::{Candidate, View};

/// Seconds that a half-full KV cache is worth, as SMG assumes.
pub(crate) const KV_PRESSURE_WEIGHT: f64 = 0.15;
/// Tokens of a waiting request whose engine counts requests only, as SMG assumes.
pub(crate) const MEAN_PREFILL_TOKENS: f64 = 1_024.0;
/// Tokens per second of a worker that was never seen computing, as SMG assumes.
const DEFAULT_THROUGHPUT: f64 = 2_000.0;

/// Prompt tokens a worker computes per second: as reported, else as seen, else assumed.
pub(crate) fn tps(view: &View<'_>, row: &Candidate) -> f64 {
    let reported = view.report(row).prefill_tps.get();
    let seen = || view.load(row).observed_prefill_tps.get();
    let known = reported.filter(|tps| *tps > 0.0).or_else(seen);
    known.filter(|tps| *tps > 0.0).unwrap_or(DEFAULT_THROUGHPUT)
}

/// Seconds the KV cache is worth: without bound as it fills, nothing if it is not known how full it is.
pub(crate) fn pressure_s(view: &View<'_>, row: &Candidate, weight: f64) -> f64 {
    let usage = view.report(row).kv_usage.get().unwrap_or(0.0).min(0.999);
    weight * usage / (1.0 - usage)
}

/// Seconds of queued work, of requests sent since the report and of `extra_tokens`, plus the pressure on the KV cache.
/// `None` without a report of the queue.
pub(crate) fn seconds(
    view: &View<'_>,
    row: &Candidate,
    extra_tokens: f64,
    weight: f64,
) -> Option<f64> {
    let report = view.report(row);
    let by_requests = || Some(report.waiting.get()? * MEAN_PREFILL_TOKENS);
    let queued = report.queued_tokens.get().or_else(by_requests)?;
    let tokens = queued + view.load(row).dispatched_tokens as f64 + extra_tokens;
    Some(tokens / tps(view, row) + pressure_s(view, row, weight))
}
