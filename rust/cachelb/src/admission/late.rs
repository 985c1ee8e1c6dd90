//! First tokens that are reported late: work that is done in that time still counts as pending here.

use cachelb_core::collections::slot_mut;
use cachelb_core::ids::{Millis, WorkerId};

/// Milliseconds over which the rate of first tokens is averaged.
const SPAN_MS: f64 = 10_000.0;

/// How many first tokens a worker has in a millisecond.
#[derive(Debug, Clone, Copy, Default)]
struct Rate {
    generation: u32,
    requests: f64,
    tokens: f64,
    at: Millis,
}

impl Rate {
    /// The part of it that is left at `now`.
    fn share(&self, now: Millis) -> f64 {
        (-(now.0.saturating_sub(self.at.0) as f64) / SPAN_MS).exp()
    }
}

/// How late first tokens are, and how many there are of each worker.
#[derive(Debug, Default)]
pub(crate) struct Late {
    lag_ms: f64,
    rates: Vec<Rate>,
}

impl Late {
    /// First tokens that are reported so many milliseconds late.
    pub fn new(lag_ms: f64) -> Self {
        Self {
            lag_ms,
            ..Self::default()
        }
    }

    /// A request of so many uncached tokens has its first one.
    pub fn first_token(&mut self, worker: WorkerId, tokens: u64, now: Millis) {
        if self.lag_ms <= 0.0 {
            return;
        }
        let rate = slot_mut(&mut self.rates, worker.slot);
        if rate.generation != worker.generation {
            *rate = Rate::default();
        }
        let share = rate.share(now);
        *rate = Rate {
            generation: worker.generation,
            requests: rate.requests * share + 1.0 / SPAN_MS,
            tokens: rate.tokens * share + tokens as f64 / SPAN_MS,
            at: now,
        };
    }

    /// Requests and tokens that a worker is likely to have computed, and that are still pending here.
    pub fn computed(&self, slot: u32, now: Millis) -> (f64, f64) {
        let rate = self.rates.get(slot as usize);
        rate.map_or((0.0, 0.0), |rate| {
            let span = self.lag_ms * rate.share(now);
            (rate.requests * span, rate.tokens * span)
        })
    }
}

/// Limits of the pending load on the workers now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds<'a> {
    pub limits: super::PendingLimits,
    pub late: &'a Late,
    pub now: Millis,
}

impl Bounds<'_> {
    /// Tokens that the worker in `slot` must compute before it has room, 0 if it has.
    pub fn excess_tokens(&self, slot: u32, load: &cachelb_core::load::Load) -> f64 {
        let computed = self.late.computed(slot, self.now);
        self.limits.excess_tokens(load, computed)
    }

    /// The milliseconds that takes, if it computes as fast as before and nothing else comes.
    pub fn wait_ms(&self, slot: u32, load: &cachelb_core::load::Load) -> f64 {
        1000.0 * self.excess_tokens(slot, load) / self.limits.tokens_per_s(load)
    }
}
