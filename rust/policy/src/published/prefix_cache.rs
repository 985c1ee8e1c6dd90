//! The longest prefix if it is long enough, load otherwise: Algorithm 2 of the Lodestar paper, a baseline.
//!
//! ```text
//! m = cached tokens / prompt tokens;  i = argmax m, ties to the lower load
//! m of i > tau  -> i (prefix)         no load term: every request of a popular prefix goes to one worker
//! else          -> least loaded (cold)
//! ```

use cachelb_core::error::Result;
use cachelb_core::rng::Rng;

use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::gate::SpillGate;
use crate::rule::options::{Configure, Policy, options};
use crate::rule::view::View;
use crate::rule::{Properties, Rule};
use crate::rules::cache_aware::Threshold;

options! {
    /// The holder of the longest prefix if it is long enough, the least loaded worker otherwise; a baseline.
    ///
    /// Above `tau` load does not count: every request with a popular prefix goes to the same worker. `cache-aware` is
    /// this policy with a remedy; so is `gate=True` here.
    ///
    /// Example:
    ///     >>> policy = PrefixCache(seed=1)
    ///     >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(100))
    ///     >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(100))
    ///     >>> first.reason, again.reason, again.worker == first.worker
    ///     ('cold', 'prefix', True)
    pub struct PrefixCacheOptions {
        /// Share of the prompt's tokens that must be exceeded for a hit; 1 is least loaded.
        tau: Threshold = Threshold::new(0.5);
        /// Whether an overloaded holder is left for the least loaded worker (`spill`).
        gate: bool = false;
    }
}

/// The policy.
pub(crate) const POLICY: Policy =
    Policy::of::<PrefixCacheOptions>(About::placed("prefix-cache", "PrefixCache"));

impl Configure for PrefixCacheOptions {
    fn ruled(&self, setup: &Setup) -> Result<Ruled> {
        let rule = PrefixCache {
            tau: self.tau,
            gate: self.gate.then(|| setup.default_gate()),
        };
        Ok(Ruled::new(rule, Need::BLOCKS))
    }
}

/// Settings of the rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefixCache {
    /// Share of the prompt that must be exceeded.
    pub tau: Threshold,
    /// When a holder is too loaded; `None` never asks, as the paper does.
    pub gate: Option<SpillGate>,
}

impl Rule for PrefixCache {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let enough = |_, tokens| self.tau.exceeded(tokens, view.prompt_tokens);
        Choice::by_holders(view, rng, self.gate, enough)
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        let tokens = view.tokens_of(view.rows[row].overlap.into());
        Some(tokens as f64 / view.prompt_tokens.max(1) as f64)
    }

    fn properties(&self) -> Properties {
        Properties::CACHED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::reason::Reason;
    use crate::testing::{GATE, Scene};

    fn rule(tau: f64) -> PrefixCache {
        PrefixCache {
            tau: Threshold::new(tau),
            gate: None,
        }
    }

    #[test]
    fn the_longest_prefix_wins_above_tau_only() {
        let cases = [
            (0.5, [(50, 9), (20, 0)], (1, Reason::Cold)),
            (0.5, [(51, 9), (20, 0)], (0, Reason::Prefix)),
            (0.5, [(90, 4), (90, 2)], (1, Reason::Prefix)),
            (1.0, [(100, 3), (0, 0)], (1, Reason::Cold)),
            (0.3, [(30, 3), (0, 0)], (1, Reason::Cold)),
            (0.0, [(1, 3), (0, 0)], (0, Reason::Prefix)),
            (0.0, [(0, 3), (0, 0)], (1, Reason::Cold)),
        ];
        for (tau, rows, expected) in cases {
            let scene = Scene::new(&rows).blocks(Some(100));
            assert_eq!(scene.choose(&rule(tau), 1), expected, "tau {tau}, {rows:?}");
        }
    }

    #[test]
    fn equal_holders_share_over_seeds() {
        let scene = Scene::new(&[(90, 2), (90, 2), (0, 0)]).blocks(Some(100));
        scene.assert_even(&rule(0.5), 0..2);
    }

    #[test]
    fn only_with_the_gate_does_an_overloaded_holder_spill() {
        let scene = Scene::new(&[(90, 100), (0, 0)]).blocks(Some(100));
        assert_eq!(scene.choose(&rule(0.5), 1), (0, Reason::Prefix));
        let gated = PrefixCache {
            gate: Some(GATE),
            ..rule(0.5)
        };
        assert_eq!(scene.choose(&gated, 1), (1, Reason::Spill));
    }
}
