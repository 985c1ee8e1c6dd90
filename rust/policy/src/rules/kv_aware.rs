//! Longest prefix by the engines' events, loads second; blocks outside device memory count by their credit.
//!
//! ```text
//! scoring prefix: most matched tokens, then lowest load, then the spill gate; none holds any -> cold spread
//! scoring cost:   lowest (uncached + pending prefill tokens) * (requests in flight + 1), then fewest requests
//! ```
//!
//! A temperature draws by softmax of the cost instead, which is the uncached tokens if prefixes are scored.

use cachelb_core::error::Result;
use cachelb_core::rng::Rng;

use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::credits::{Continuation, Credits};
use crate::rule::gate::{Margin, SpillGate};
use crate::rule::options::{AT_LEAST_ONE, Configure, NOT_NEGATIVE, Policy, options};
use crate::rule::reason::Reason;
use crate::rule::values::{MediumCredits, words};
use crate::rule::view::{Candidate, View, cold_spread, draw, lowest};
use crate::rule::{Properties, Rule};

words!(Scoring { Prefix = "prefix", Cost = "cost" });
words!(Continuation { Longest = "longest", BestCredit = "best-credit" });

options! {
    /// Longest prefix by the engines' own events first, load second.
    ///
    /// Blocks in host memory, in a shared store or on disk count by their credit. A placement counts at once
    /// (`enable_speculative`) and for `speculative_ttl_ms` more unless an event confirms it. Without events the policy goes
    /// by its own placements, as `cache-aware` does; and so it does for text, which events do not cover (`text-only`).
    /// If the picked worker's event stream is behind, its confirmed blocks are doubtful (`stale-events`).
    ///
    /// Example:
    ///     >>> policy = KvAware(seed=1)
    ///     >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(100))
    ///     >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(100))
    ///     >>> first.reason, again.reason, again.worker == first.worker
    ///     ('cold', 'prefix', True)
    pub struct KvAwareOptions {
        /// Whether a placement counts before an event confirms it.
        enable_speculative: bool = true;
        /// Milliseconds it counts without one.
        speculative_ttl_ms: u64 = 2000, (1, 1 << 40);
        /// The credit of a block by medium, 0 to 1: "gpu" 1.0, "cpu" 0.8, "external" 0.6 and "disk" 0.3 unless given.
        credits: Option<MediumCredits> = None;
        /// Which medium continues the device's prefix if several do: the longest, which engines load, or the one worth
        /// most.
        continuation: Continuation = Continuation::Longest;
        /// "prefix" takes the longest prefix, "cost" the lowest product of prefill work and batch size.
        scoring: Scoring = Scoring::Prefix;
        /// A holder is overloaded only above this many times the mean load.
        load_factor: f64 = 1.25, AT_LEAST_ONE;
        /// A holder is overloaded only above the mean load plus this many requests; "auto" is two standard deviations,
        /// from 4 to 32.
        balance_abs_threshold: Margin = Margin::Auto;
        /// Above 0, workers are drawn by softmax over the uncached tokens, or over the cost.
        router_temperature: f64 = 0.0, NOT_NEGATIVE;
    }
}

/// The policy.
pub(crate) const POLICY: Policy =
    Policy::of::<KvAwareOptions>(About::placed("kv-aware", "KvAware"));

impl Configure for KvAwareOptions {
    fn ruled(&self, setup: &Setup) -> Result<Ruled> {
        let credits = self
            .credits
            .map_or(Credits::DEFAULT, |MediumCredits(credits)| credits);
        let rule = KvAware {
            scoring: self.scoring,
            credits: Credits {
                continuation: self.continuation,
                ..credits
            },
            gate: setup.gate(self.load_factor, self.balance_abs_threshold),
            router_temperature: self.router_temperature,
            speculative_ttl_ms: self.enable_speculative.then_some(self.speculative_ttl_ms),
        };
        Ok(Ruled::new(rule, Need::BLOCKS))
    }
}

/// The score that ranks the candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scoring {
    /// Matched tokens.
    #[default]
    Prefix,
    /// Prefill work times batch size.
    Cost,
}

/// Settings of the rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvAware {
    /// The score that ranks the candidates.
    pub scoring: Scoring,
    /// The credit of blocks by medium.
    pub credits: Credits,
    /// When a holder is too loaded.
    pub gate: SpillGate,
    /// Softmax temperature in the unit of the cost; 0 takes the best.
    pub router_temperature: f64,
    /// How long a placement counts on a worker whose events have not confirmed it; `None` records none there.
    pub speculative_ttl_ms: Option<u64>,
}

impl KvAware {
    /// With the defaults of its options, for one router.
    pub const DEFAULT: Self = Self {
        scoring: Scoring::Prefix,
        credits: Credits::DEFAULT,
        gate: SpillGate::DEFAULT,
        router_temperature: 0.0,
        speculative_ttl_ms: Some(2_000),
    };

    fn cost(&self, view: &View<'_>, row: &Candidate) -> f64 {
        match self.scoring {
            Scoring::Prefix => view.uncached_tokens(row),
            Scoring::Cost => view.prefill_times_batch(row, 1.0, 0.0),
        }
    }

    fn best(&self, view: &View<'_>, rng: &mut Rng) -> usize {
        if self.router_temperature > 0.0 {
            let costs = view.rows.iter().map(|row| self.cost(view, row));
            let low = costs.fold(f64::INFINITY, f64::min);
            return draw(view.rows, rng, |row| {
                ((low - self.cost(view, row)) / self.router_temperature).exp()
            });
        }
        let key = |row: &Candidate| match self.scoring {
            Scoring::Prefix => (-row.matched_tokens, row.load()),
            Scoring::Cost => (self.cost(view, row), row.load()),
        };
        lowest(view.rows, rng, |_| true, key).unwrap_or(0)
    }
}

impl Rule for KvAware {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        if let Some(choice) = Choice::unmatchable(view, rng) {
            return choice;
        }
        if self.scoring == Scoring::Cost {
            return Choice::by_cost(view, self.best(view, rng));
        }
        if view.rows.iter().all(|row| row.overlap == 0) {
            return Choice::cold(cold_spread(view.rows, rng), Reason::Cold);
        }
        let chosen = self.best(view, rng);
        Choice::by_cost(view, chosen).or_spilled(self.gate.spill(view.rows, chosen, rng))
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        let row = &view.rows[row];
        Some(match self.scoring {
            Scoring::Prefix => row.matched_tokens,
            Scoring::Cost => self.cost(view, row),
        })
    }

    fn properties(&self) -> Properties {
        Properties {
            goes_by_events: true,
            higher_is_better: self.scoring == Scoring::Prefix,
            credits: self.credits,
            placement_ttl_ms: Some(self.speculative_ttl_ms.unwrap_or(0)),
            ..Properties::PLACED
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scene;

    const RULE: KvAware = KvAware::DEFAULT;

    fn by_cost() -> KvAware {
        KvAware {
            scoring: Scoring::Cost,
            ..RULE
        }
    }

    #[test]
    fn the_longest_credited_prefix_wins_and_a_hot_one_spills() {
        let cases = [
            (vec![(2, 0), (0, 0)], (0, Reason::Prefix)),
            (vec![(9, 5), (9, 0), (0, 0)], (1, Reason::Prefix)),
            (vec![(9, 100), (0, 0)], (1, Reason::Spill)),
            (vec![(9, 0), (0, 50)], (0, Reason::Prefix)),
            (vec![(0, 3), (0, 0)], (1, Reason::Cold)),
        ];
        for (rows, expected) in cases {
            let scene = Scene::new(&rows).blocks(Some(10));
            assert_eq!(scene.choose(&RULE, 1), expected, "{rows:?}");
        }
        // Ten blocks on disk are worth less than five on the device.
        let mut tiers = Scene::new(&[(10, 0), (5, 0)]).blocks(Some(12));
        tiers.rows[0].matched_tokens = 10.0 * 0.3 * 16.0;
        assert_eq!(tiers.choose(&RULE, 1), (1, Reason::Prefix));
    }

    #[test]
    fn cost_weighs_work_against_batch_size() {
        let scene = Scene::new(&[(9, 0), (0, 0)]).blocks(Some(10));
        assert_eq!(scene.choose(&by_cost(), 1), (0, Reason::Prefix));
        let busy = Scene::new(&[(9, 11), (0, 0)]).blocks(Some(10));
        assert_eq!(busy.choose(&by_cost(), 1), (1, Reason::Spill));
        assert_eq!(RULE.score(&busy.view(), 0), Some(144.0));
        assert_eq!(by_cost().score(&busy.view(), 0), Some(192.0));
    }

    #[test]
    fn temperature_is_in_tokens_and_not_scaled() {
        let soft = |t: f64| KvAware {
            router_temperature: t,
            ..RULE
        };
        let scene = Scene::new(&[(2, 0), (1, 0)]).blocks(Some(10));
        let share = scene.share(&soft(16.0), 0);
        assert!((0.68..=0.78).contains(&share), "1 / (1 + 1/e), got {share}");
        scene.assert_even(&soft(16_000.0), 0..2);
        let wide = Scene::new(&[(8_000, 0), (0, 0)]).blocks(Some(10_000));
        assert!((wide.share(&soft(16.0), 0) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn equal_holders_share() {
        let scene = Scene::new(&[(9, 0), (9, 0), (0, 0)]).blocks(Some(10));
        scene.assert_even(&RULE, 0..2);
    }

    #[test]
    fn unconfirmed_placements_have_a_deadline_or_none_at_all() {
        assert_eq!(RULE.properties().placement_ttl_ms, Some(2_000));
        let off = KvAware {
            speculative_ttl_ms: None,
            ..RULE
        };
        assert_eq!(off.properties().placement_ttl_ms, Some(0));
    }
}
