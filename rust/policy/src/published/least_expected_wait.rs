//! The shortest wait in seconds, from engine reports and the requests sent since: for fleets of unlike workers.
//!
//! ```text
//! score = (queued tokens + sent since the report + uncached tokens) / tokens per second
//!         + kv_pressure_weight * k / (1 - k);  argmin                       k = KV use, at most 0.999
//! waiting requests instead of tokens -> times 1,024
//! no report of this worker           -> requests in flight * 1,024 / mean tokens per second
//! no report of any                   -> requests in flight (stale-load if there are only old ones)
//! ```

use cachelb_core::error::Result;
use cachelb_core::rng::Rng;

use crate::common::wait;
use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::options::{Configure, NOT_NEGATIVE, Policy, options};
use crate::rule::reason::Reason;
use crate::rule::view::{Candidate, View, lowest};
use crate::rule::{Properties, Rule};

options! {
    /// The worker that would start the request soonest, by its engine's report and the requests sent since.
    ///
    /// Feed it with `update_load`: queued tokens (or waiting requests), prompt tokens per second and KV use. Waits are in
    /// seconds, so workers of unlike speed compare. A worker without a report is judged by its requests in flight; without
    /// any report all are, and if there are only reports too old to use the reason is `stale-load`.
    ///
    /// Example:
    ///     >>> policy = LeastExpectedWait(seed=1)
    ///     >>> policy.update_load("gpu0", queued_tokens=4_000, prefill_tps=8_000)
    ///     >>> policy.update_load("gpu1", queued_tokens=3_000, prefill_tps=2_000)
    ///     >>> policy.select_worker(["gpu0", "gpu1"], tokens=range(100)).worker
    ///     'gpu0'
    pub struct LeastExpectedWait {
        /// Seconds that a half-full KV cache is worth; grows without bound as it fills.
        kv_pressure_weight: f64 = wait::KV_PRESSURE_WEIGHT, NOT_NEGATIVE;
        /// Reported waiting requests at which a worker takes no more; if all are full, none is available. 0 is off.
        max_waiting_requests: u64 = 0, (0, 1 << 32);
        /// Whether the request's own uncached tokens count.
        cache_aware: bool = true;
    }
}

/// The policy.
pub(crate) const POLICY: Policy =
    Policy::of::<LeastExpectedWait>(About::placed("least-expected-wait", "LeastExpectedWait"));

impl Configure for LeastExpectedWait {
    fn ruled(&self, _setup: &Setup) -> Result<Ruled> {
        Ok(Ruled::new(self.clone(), Need::BLOCKS))
    }
}

impl LeastExpectedWait {
    fn extra_tokens(&self, view: &View<'_>, row: &Candidate) -> f64 {
        if self.cache_aware {
            view.uncached_tokens(row)
        } else {
            0.0
        }
    }

    fn reported_s(&self, view: &View<'_>, row: &Candidate) -> Option<f64> {
        wait::seconds(
            view,
            row,
            self.extra_tokens(view, row),
            self.kv_pressure_weight,
        )
    }

    /// Seconds for a row whose queue was not reported.
    fn guessed_s(&self, view: &View<'_>, row: &Candidate, mean_tps: f64) -> f64 {
        let queued = f64::from(row.inflight) * wait::MEAN_PREFILL_TOKENS;
        let tokens = queued + self.extra_tokens(view, row);
        tokens / mean_tps + wait::pressure_s(view, row, self.kv_pressure_weight)
    }

    fn is_full(&self, view: &View<'_>, row: &Candidate) -> bool {
        let (most, waiting) = (self.max_waiting_requests, view.report(row).waiting.get());
        most > 0 && waiting.is_some_and(|n| n >= most as f64)
    }

    /// `NoKey` from a cache-aware rule if the request has no blocks to look up.
    fn reason(&self, view: &View<'_>) -> Reason {
        if self.cache_aware && view.blocks.is_none() {
            Reason::NoKey
        } else {
            Reason::LeastLoaded
        }
    }

    fn anybody_reports(&self, view: &View<'_>) -> bool {
        view.rows
            .iter()
            .any(|row| self.reported_s(view, row).is_some())
    }
}

impl Rule for LeastExpectedWait {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let free = |row: &Candidate| !self.is_full(view, row);
        let any_did = view.rows.iter().any(|row| view.load(row).report.is_known());
        if !(any_did && self.anybody_reports(view)) {
            let cost = |row: &Candidate| (row.load(), row.last_cold_pick);
            let row = lowest(view.rows, rng, |_| true, cost).unwrap_or(0);
            let reason = if any_did && view.rows.iter().any(|row| view.is_stale(row)) {
                Reason::StaleLoad
            } else {
                self.reason(view)
            };
            return Choice::cold(row, reason);
        }
        let tps = view.rows.iter().map(|row| wait::tps(view, row));
        let mean_tps = tps.sum::<f64>() / view.rows.len() as f64;
        let cost = |row: &Candidate| {
            let reported = self.reported_s(view, row);
            reported.unwrap_or_else(|| self.guessed_s(view, row, mean_tps))
        };
        lowest(view.rows, rng, free, cost).map_or_else(
            || Choice {
                refused: true,
                ..Choice::cold(0, Reason::Full)
            },
            |row| Choice::cold(row, self.reason(view)),
        )
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        self.reported_s(view, &view.rows[row])
    }

    fn properties(&self) -> Properties {
        Properties::PLACED
    }
}

#[cfg(test)]
#[path = "tests/least_expected_wait.rs"]
mod tests;
