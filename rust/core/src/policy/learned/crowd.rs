//! What a request costs those behind it.
//!
//! Whoever minimises the time of the request alone sends it, once holders of its prefix are busy, to workers that compute
//! all of it again. That is the least for this request and more work for the fleet: near saturation it makes queues that
//! make more of it. So what a request adds to the work of a worker counts once more for each request that waits there: as
//! many as the work waiting per worker is times that of a usual request, which is 0 on an idle fleet.

use crate::learned::{Model, Row};

use super::super::view::{Candidate, View};

/// Weight of the newest request.
const NEWEST: f64 = 0.01;
/// Requests until the weights are those of an average over all.
const FIRST: u32 = 100;
/// Behind more than so many, nobody counts any more.
const MOST: f64 = 20.0;
/// Fewer than that do not count.
const LEAST: f64 = 0.02;

/// What requests usually have workers compute.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Crowd {
    usual_tokens: f64,
    seen: u32,
}

impl Crowd {
    /// A request went to a worker.
    pub fn add(&mut self, view: &View<'_>, candidate: &Candidate) {
        self.seen = (self.seen + 1).min(FIRST);
        let weight = NEWEST.max(1.0 / f64::from(self.seen));
        self.usual_tokens += weight * (view.uncached_tokens(candidate) - self.usual_tokens);
    }

    /// Requests per worker whose prompts wait to be computed; 0 where they do not matter.
    pub fn waiting(&self, view: &View<'_>) -> f64 {
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

/// Positions of what is about the worker's load in [`crate::learned::FEATURES`].
const LOADS: [usize; 6] = [1, 2, 3, 4, 5, 8];
/// A worker may be so many times as loaded as any before: a model that knows what some load costs knows that more costs more.
/// Left to the fallback at the first request beyond, the holders of a prefix would be avoided when they are busiest, and all
/// that they hold computed again elsewhere.
const REACH: f32 = 2.0;

/// What would be known of the request on the same worker, idle; as idle as any that was seen.
pub(super) fn at_rest(row: &Row, model: &Model) -> Row {
    let (low, _) = model.bounds();
    let mut rest = *row;
    for at in LOADS {
        rest.values[at] = low.get(at).copied().unwrap_or(0.0).max(0.0);
    }
    rest
}

/// The row, with loads that a model can tell of although it has not seen them in the place of those that it has.
pub(super) fn within_reach(row: &Row, model: &Model) -> Row {
    let (low, high) = model.bounds();
    let mut near = *row;
    for at in LOADS {
        if let (Some(low), Some(high)) = (low.get(at), high.get(at)) {
            let value = &mut near.values[at];
            *value = value.max(*low);
            if *value <= REACH * *high {
                *value = value.min(*high);
            }
        }
    }
    near
}

/// Whether a worker is more loaded than a model can tell of.
pub(super) fn is_overloaded(row: &Row, model: &Model) -> bool {
    let (_, high) = model.bounds();
    let beyond = |at: &usize| {
        high.get(*at)
            .is_some_and(|high| row.values[*at] > REACH * high)
    };
    LOADS.iter().any(beyond)
}
