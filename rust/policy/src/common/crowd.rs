//! The cost of a request to those that wait behind it.
//!
//! A rule that minimises the time of the request alone sends it, once holders of its prefix are busy, to workers that
//! compute all of it again. That is the least for this request and more work for the fleet: near saturation it makes
//! queues that make more of it. So the work that a request adds to a worker counts once more for each request that
//! waits there. Their number is the waiting work per worker divided by that of a usual request, which is 0 on an idle
//! fleet.

use crate::rule::view::{Candidate, View};

/// Weight of the newest request.
const NEWEST: f64 = 0.01;
/// Requests until the weights are those of an average over all.
const FIRST: u32 = 100;
/// Most waiting requests that count.
const MOST: f64 = 20.0;
/// Fewer than that do not count.
const LEAST: f64 = 0.02;

/// The tokens that a usual request has a worker compute.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Crowd {
    usual_tokens: f64,
    seen: u32,
}

impl Crowd {
    /// A request went to a worker.
    pub(crate) fn add(&mut self, view: &View<'_>, candidate: &Candidate) {
        self.seen = (self.seen + 1).min(FIRST);
        let weight = NEWEST.max(1.0 / f64::from(self.seen));
        self.usual_tokens += weight * (view.uncached_tokens(candidate) - self.usual_tokens);
    }

    /// Requests per worker whose prompts wait to be computed; 0 where they do not matter.
    pub(crate) fn waiting(&self, view: &View<'_>) -> f64 {
        let pending: u64 = view.rows.iter().map(|row| row.pending_prefill_tokens).sum();
        let per_worker = pending as f64 / view.rows.len().max(1) as f64;
        let waiting = per_worker / self.usual_tokens.max(1.0);
        if waiting < LEAST {
            0.0
        } else {
            waiting.min(MOST)
        }
    }
}
