//! Longest prefix among the workers that are not busier than most: Algorithm 1 of the Lodestar paper, the one of `AIBrix`.
//!
//! ```text
//! max load - min load > threshold                             -> least loaded (imbalance)
//! else the first of (m desc, load asc) with load <= mean + k * sigma -> prefix, spill, or cold if none holds any
//! ```
//!
//! The first line lets one busy worker drop affinity for all; [`Scope::Candidate`] checks the chosen one instead.

use cachelb_core::error::Result;
use cachelb_core::rng::Rng;

use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::gate::SpillGate;
use crate::rule::options::{Configure, NOT_NEGATIVE, Policy, options};
use crate::rule::reason::Reason;
use crate::rule::values::words;
use crate::rule::view::{Candidate, View, cold_spread, extremes, lowest, mean_load};
use crate::rule::{Properties, Rule};

/// Whose imbalance counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// That of all workers.
    Fleet,
    /// That of the chosen one.
    Candidate,
}

words!(Whose { Fleet = "fleet", Candidate = "candidate" });

options! {
    /// The longest prefix among the workers whose load is not far above the mean; as AIBrix does it.
    ///
    /// If any two workers are more than `imbalance_threshold` requests apart, every request goes to the least loaded one
    /// (`imbalance`), which ends affinity for all of them. `scope="candidate"` asks only the worker that would be picked.
    ///
    /// Example:
    ///     >>> policy = PrefixCacheAndLoad(seed=1)
    ///     >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(100))
    ///     >>> first.on_complete()
    ///     >>> policy.select_worker(["gpu0", "gpu1"], tokens=range(100)).reason
    ///     'prefix'
    ///     >>> busy = [policy.select_worker([first.worker], by_load=True) for _ in range(9)]
    ///     >>> policy.select_worker(["gpu0", "gpu1"], tokens=range(100)).reason
    ///     'imbalance'
    pub struct PrefixCacheAndLoadOptions {
        /// Requests two workers may be apart before load alone decides.
        imbalance_threshold: f64 = 8.0, NOT_NEGATIVE;
        /// Standard deviations above the mean load that a holder may have.
        k: f64 = 1.0, NOT_NEGATIVE;
        /// Whose imbalance counts: "fleet" asks all workers, "candidate" only the chosen one: whether it is above
        /// 1.25 times the mean load, and two standard deviations above it.
        scope: Whose = Whose::Fleet;
    }
}

/// The policy.
pub(crate) const POLICY: Policy = Policy::of::<PrefixCacheAndLoadOptions>(About::placed(
    "prefix-cache-and-load",
    "PrefixCacheAndLoad",
));

impl Configure for PrefixCacheAndLoadOptions {
    fn ruled(&self, setup: &Setup) -> Result<Ruled> {
        let rule = PrefixCacheAndLoad {
            k: self.k,
            scope: match self.scope {
                Whose::Fleet => Scope::Fleet(self.imbalance_threshold),
                Whose::Candidate => Scope::Candidate(setup.default_gate()),
            },
        };
        Ok(Ruled::new(rule, Need::BLOCKS))
    }
}

/// Whose load ends affinity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scope {
    /// Any two workers further apart than this, as published.
    Fleet(f64),
    /// Only the chosen worker's own, against the mean.
    Candidate(SpillGate),
}

/// Settings of the rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefixCacheAndLoad {
    /// Standard deviations over the mean a holder's load may lie.
    pub k: f64,
    /// When load alone decides.
    pub scope: Scope,
}

impl Rule for PrefixCacheAndLoad {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        if let Some(choice) = Choice::unmatchable(view, rng) {
            return choice;
        }
        let (low, high) = extremes(view.rows.iter().map(Candidate::load));
        if let Scope::Fleet(threshold) = self.scope
            && high - low > threshold
        {
            return Choice::cold(cold_spread(view.rows, rng), Reason::Imbalance);
        }
        if view.rows.iter().all(|row| row.overlap == 0) {
            return Choice::cold(cold_spread(view.rows, rng), Reason::Cold);
        }
        // The least loaded always qualifies, whatever rounding does to the mean of equal loads.
        let bound = self.bound(view).max(low);
        let key = |row: &Candidate| (u32::MAX - row.overlap, row.load());
        let chosen = lowest(view.rows, rng, |row| row.load() <= bound, key).unwrap_or(0);
        if let Scope::Candidate(gate) = self.scope
            && let Some(row) = gate.spill(view.rows, chosen, rng)
        {
            return Choice::by_cost(view, row);
        }
        Choice::by_cost(view, chosen)
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        Some(f64::from(view.rows[row].overlap))
    }

    fn properties(&self) -> Properties {
        Properties::CACHED
    }
}

impl PrefixCacheAndLoad {
    fn bound(&self, view: &View<'_>) -> f64 {
        let mean = mean_load(view.rows);
        let squares = view.rows.iter().map(|row| (row.load() - mean).powi(2));
        let sigma = (squares.sum::<f64>() / view.rows.len() as f64).sqrt();
        mean + self.k * sigma
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GATE, Scene};

    fn rule() -> PrefixCacheAndLoad {
        PrefixCacheAndLoad {
            k: 1.0,
            scope: Scope::Fleet(8.0),
        }
    }

    #[test]
    fn the_longest_prefix_below_the_bound_wins() {
        let cases = [
            (vec![(9, 5), (2, 5), (0, 5)], (0, Reason::Prefix)),
            (vec![(9, 8), (5, 2), (0, 2)], (1, Reason::Prefix)),
            (vec![(9, 6), (0, 2), (0, 1)], (2, Reason::Spill)),
            (vec![(9, 8), (0, 0)], (0, Reason::Prefix)),
            (vec![(0, 3), (0, 1)], (1, Reason::Cold)),
        ];
        for (rows, expected) in cases {
            let scene = Scene::new(&rows).blocks(Some(10));
            assert_eq!(scene.choose(&rule(), 1), expected, "{rows:?}");
        }
    }

    #[test]
    fn one_worker_far_ahead_ends_affinity_for_everybody() {
        let scene = Scene::new(&[(0, 0), (9, 9), (0, 0)]).blocks(Some(10));
        let half = scene.share(&rule(), 0);
        assert!((0.45..=0.55).contains(&half), "{half}");
        assert_eq!(scene.choose(&rule(), 1).1, Reason::Imbalance);
        let eight = Scene::new(&[(9, 0), (0, 8)]).blocks(Some(10));
        assert_eq!(eight.choose(&rule(), 1), (0, Reason::Prefix));
    }

    #[test]
    fn asking_the_candidate_keeps_affinity_to_idle_holders() {
        let rule = PrefixCacheAndLoad {
            scope: Scope::Candidate(GATE),
            ..rule()
        };
        let other = Scene::new(&[(9, 0), (0, 50)]).blocks(Some(10));
        assert_eq!(other.choose(&rule, 1), (0, Reason::Prefix));
        let own = Scene::new(&[(9, 50), (0, 0)]).blocks(Some(10));
        let wide = PrefixCacheAndLoad { k: 9.0, ..rule };
        assert_eq!(own.choose(&wide, 1), (1, Reason::Spill));
    }

    #[test]
    fn equal_loads_of_any_weight_leave_every_holder_in_reach() {
        let mut scene = Scene::new(&[(9, 1); 7]).blocks(Some(10));
        for row in &mut scene.rows {
            row.weight = 3.0;
        }
        let rule = PrefixCacheAndLoad { k: 0.0, ..rule() };
        scene.assert_even(&rule, 0..7);
    }
}
