//! The worker whose KV cache has the largest free share; equal ones in turn.

use cachelb_core::error::Result;
use cachelb_core::rng::Rng;

use super::about::{About, Level, Need, Ruled, Setup};
use super::choice::Choice;
use super::options::{Configure, FRACTION, Policy, options};
use super::reason::Reason;
use super::rule::Rule;
use super::view::{Candidate, View, lowest};

options! {
    /// The worker whose KV cache has the largest free share; equal ones go in turn.
    ///
    /// Blocks of requests in flight count, divided by ``kv_blocks`` of the worker; without it, its reported KV usage.
    ///
    /// Example:
    ///     >>> policy = LeastKv(seed=1)
    ///     >>> decisions = [policy.select_worker(["gpu0", "gpu1"]) for _ in range(4)]
    ///     >>> policy.loads()
    ///     {'gpu0': 2, 'gpu1': 2}
    ///     >>> for decision in decisions:
    ///     ...     decision.on_complete()
    pub struct LeastKvOptions {
        /// A share of the KV cache that counts as none: workers below it are equal.
        ignored_share: f64 = 0.0, FRACTION;
    }
}

/// The policy.
pub(crate) const POLICY: Policy = Policy::of::<LeastKvOptions>(
    About {
        level: Level::Keyed,
        ..About::plain("least-kv", "LeastKv")
    },
    LeastKvOptions::ABOUT,
);

impl Configure for LeastKvOptions {
    fn ruled(&self, _setup: &Setup) -> Result<Ruled> {
        let rule = LeastKv {
            ignored_share: self.ignored_share,
        };
        Ok(Ruled::new(rule, Need::LENGTH))
    }
}

/// The rule.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct LeastKv {
    ignored_share: f64,
}

impl LeastKv {
    fn used_share(self, view: &View<'_>, row: &Candidate) -> f64 {
        let share = match row.kv_blocks {
            0 => view.report(row).kv_usage.get().unwrap_or(0.0),
            all => view.load(row).decode_blocks as f64 / f64::from(all),
        };
        if share < self.ignored_share {
            0.0
        } else {
            share
        }
    }
}

impl Rule for LeastKv {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let cost = |row: &Candidate| (self.used_share(view, row), row.last_cold_pick);
        let row = lowest(view.rows, rng, |_| true, cost).unwrap_or(0);
        Choice::cold(row, Reason::LeastLoaded)
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        Some(self.used_share(view, &view.rows[row]))
    }

    fn fresh(&self) -> Box<dyn Rule> {
        Box::new(*self)
    }
}
