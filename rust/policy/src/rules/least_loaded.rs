//! The least loaded worker; equal loads go to the one whose last pick is longest ago.

use cachelb_core::error::Result;
use cachelb_core::rng::Rng;

use crate::rule::Rule;
use crate::rule::about::{About, Level, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::options::{Configure, Policy, options};
use crate::rule::reason::Reason;
use crate::rule::values::words;
use crate::rule::view::{Candidate, View, lowest};

words!(LoadUnit { Inflight = "inflight", Tokens = "tokens", Blocks = "blocks" });

options! {
    /// The least loaded worker; equal loads go to the one whose last pick is longest ago.
    ///
    /// Loads are divided by the worker's weight.
    ///
    /// Example:
    ///     >>> policy = LeastLoaded(seed=1)
    ///     >>> decisions = [policy.select_worker(["gpu0", "gpu1"], by_load=True) for _ in range(4)]
    ///     >>> policy.loads()
    ///     {'gpu0': 2, 'gpu1': 2}
    ///     >>> for decision in decisions:
    ///     ...     decision.on_complete()
    pub struct LeastLoaded {
        /// The measure of load: requests in flight, uncached prompt tokens without a first token, or blocks held by
        /// requests past it.
        load: LoadUnit = LoadUnit::Inflight;
    }
}

/// The policy.
pub(crate) const POLICY: Policy = Policy::of::<LeastLoaded>(About {
    level: Level::Keyed,
    ..About::plain("least-loaded", "LeastLoaded")
});

impl Configure for LeastLoaded {
    fn ruled(&self, _setup: &Setup) -> Result<Ruled> {
        Ok(Ruled::new(self.clone(), Need::LENGTH))
    }
}

/// The measure of load. All are divided by the worker's weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadUnit {
    /// Requests in flight.
    #[default]
    Inflight,
    /// Uncached prompt tokens without a first token yet.
    Tokens,
    /// Blocks held by requests past their first token.
    Blocks,
}

impl LoadUnit {
    /// The load of a row.
    pub(crate) fn of(self, view: &View<'_>, row: &Candidate) -> f64 {
        match self {
            Self::Inflight => row.load(),
            Self::Tokens => row.pending_prefill_tokens as f64 / row.weight,
            Self::Blocks => view.load(row).decode_blocks as f64 / row.weight,
        }
    }
}

impl Rule for LeastLoaded {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let cost = |row: &Candidate| (self.load.of(view, row), row.last_cold_pick);
        let row = lowest(view.rows, rng, |_| true, cost).unwrap_or(0);
        Choice::cold(row, Reason::LeastLoaded)
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        Some(self.load.of(view, &view.rows[row]))
    }
}
