//! Samples a few workers and takes the least loaded: almost as even as asking all, without herding on one minimum.

use cachelb_core::error::Result;
use cachelb_core::rng::Rng;

use crate::common::wait;
use crate::rule::Rule;
use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::options::{Configure, Policy, options};
use crate::rule::reason::Reason;
use crate::rule::values::words;
use crate::rule::view::{Candidate, View, lowest_at};

words!(Compare { Inflight = "inflight", ExpectedWait = "expected-wait" });

options! {
    /// The less loaded of a few workers drawn at random: nearly as even as asking all of them, and no herding.
    ///
    /// Example:
    ///     >>> policy = PowerOfTwo(seed=1)
    ///     >>> busy = [policy.select_worker(["gpu0"], by_load=True) for _ in range(9)]
    ///     >>> policy.select_worker(["gpu0", "gpu1"], by_load=True).worker
    ///     'gpu1'
    pub struct PowerOfTwo {
        /// Workers drawn per request.
        choices: usize = 2, (1, 1 << 20);
        /// How they are compared: requests in flight, or seconds of queued work from engine reports (`update_load`);
        /// without a report from each of them, requests in flight.
        load: Compare = Compare::Inflight;
    }
}

/// The policy.
pub(crate) const POLICY: Policy =
    Policy::of::<PowerOfTwo>(About::plain("power-of-two", "PowerOfTwo"));

impl Configure for PowerOfTwo {
    fn ruled(&self, _setup: &Setup) -> Result<Ruled> {
        Ok(Ruled::new(self.clone(), Need::LENGTH))
    }
}

/// How sampled workers are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compare {
    /// Requests in flight per weight.
    #[default]
    Inflight,
    /// Seconds until a new request would start, from engine reports; requests if any sampled worker reported none.
    ExpectedWait,
}

/// The wait of an unknown request, whose own work is the same everywhere.
fn expected_wait_s(view: &View<'_>, row: &Candidate) -> Option<f64> {
    wait::seconds(view, row, 0.0, wait::KV_PRESSURE_WEIGHT)
}

impl Rule for PowerOfTwo {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let sample = sample(view.rows.len(), self.choices, rng);
        let waits: Option<Vec<f64>> = match self.load {
            Compare::ExpectedWait => sample
                .iter()
                .map(|&i| expected_wait_s(view, &view.rows[i]))
                .collect(),
            Compare::Inflight => None,
        };
        // One unit for the whole sample: one worker without a report makes all compare by requests.
        let costs = waits.unwrap_or_else(|| sample.iter().map(|&i| view.rows[i].load()).collect());
        let least = lowest_at(costs.len(), rng, |at| Some(costs[at])).unwrap_or(0);
        Choice::cold(sample[least], Reason::LeastLoaded)
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        let row = &view.rows[row];
        match self.load {
            Compare::ExpectedWait => expected_wait_s(view, row),
            Compare::Inflight => Some(row.load()),
        }
    }
}

/// `k` distinct indices below `n` (all if `k >= n`), every set equally likely (Floyd's algorithm).
fn sample(n: usize, k: usize, rng: &mut Rng) -> Vec<usize> {
    if k >= n {
        return (0..n).collect();
    }
    let mut chosen = Vec::with_capacity(k);
    for top in n - k..n {
        let i = rng.below(top + 1);
        chosen.push(if chosen.contains(&i) { top } else { i });
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_distinct_and_every_worker_is_equally_likely() {
        let mut rng = Rng::new(5);
        let mut counts = [0_u32; 5];
        for _ in 0..50_000 {
            let picked = sample(5, 2, &mut rng);
            assert_eq!(picked.len(), 2);
            assert_ne!(picked[0], picked[1]);
            for i in picked {
                counts[i] += 1;
            }
        }
        let sigma = (50_000.0_f64 * 0.4 * 0.6).sqrt();
        assert!(
            counts
                .iter()
                .all(|&c| (f64::from(c) - 20_000.0).abs() < 5.0 * sigma),
            "{counts:?}"
        );
    }
}
