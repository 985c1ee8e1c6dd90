//! Requests over a fixed throughput, which the Lodestar paper calls Mooncake; kept to compare against.
//!
//! ```text
//! cost = (requests in flight + 1) / (throughput * weight);  argmin
//! ```

use std::collections::HashMap;

use cachelb_core::error::Result;
use cachelb_core::rng::Rng;

use crate::rule::Rule;
use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::options::{Configure, Policy, options};
use crate::rule::reason::Reason;
use crate::rule::values::ByWorker;
use crate::rule::view::{Candidate, View, lowest};

options! {
    /// Requests in flight over a throughput given once; a baseline that the literature calls Mooncake.
    ///
    /// `estimated-ttft` is Mooncake's published algorithm.
    ///
    /// Example:
    ///     >>> policy = QueueOverThroughput(throughput={"gpu0": 3.0, "gpu1": 1.0}, seed=1)
    ///     >>> held = [policy.select_worker(["gpu0", "gpu1"], by_load=True) for _ in range(2)]
    ///     >>> [decision.worker for decision in held]
    ///     ['gpu0', 'gpu0']
    pub struct QueueOverThroughputOptions {
        /// One number for all workers, or by worker key, in any one unit. A worker left out has the mean of the others.
        throughput: ByWorker = ByWorker::All(1.0);
    }
}

/// The policy.
pub(crate) const POLICY: Policy = Policy::of::<QueueOverThroughputOptions>(About::plain(
    "queue-over-throughput",
    "QueueOverThroughput",
));

impl Configure for QueueOverThroughputOptions {
    fn ruled(&self, _setup: &Setup) -> Result<Ruled> {
        let (throughput, default_throughput) = match &self.throughput {
            ByWorker::All(all) => (HashMap::new(), *all),
            ByWorker::Each(each) if each.is_empty() => (HashMap::new(), 1.0),
            ByWorker::Each(each) => (each.clone(), each.values().sum::<f64>() / each.len() as f64),
        };
        let rule = QueueOverThroughput {
            throughput,
            default_throughput,
        };
        Ok(Ruled::new(rule, Need::LENGTH))
    }
}

/// Settings of the rule.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueOverThroughput {
    /// Throughput by worker, in any one unit.
    pub throughput: HashMap<String, f64>,
    /// That of workers not named there.
    pub default_throughput: f64,
}

impl QueueOverThroughput {
    fn cost(&self, view: &View<'_>, row: &Candidate) -> f64 {
        let own = if self.throughput.is_empty() {
            None
        } else {
            self.throughput.get(view.names.name(row.offer))
        };
        let throughput = own.copied().unwrap_or(self.default_throughput);
        (f64::from(row.inflight) + 1.0) / (throughput * row.weight)
    }
}

impl Rule for QueueOverThroughput {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let row = lowest(view.rows, rng, |_| true, |row| self.cost(view, row)).unwrap_or(0);
        Choice::cold(row, Reason::LeastLoaded)
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        Some(self.cost(view, &view.rows[row]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scene;

    fn rule(throughput: &[(&str, f64)]) -> QueueOverThroughput {
        QueueOverThroughput {
            throughput: throughput
                .iter()
                .map(|&(name, tps)| (name.to_owned(), tps))
                .collect(),
            default_throughput: 100.0,
        }
    }

    #[test]
    fn the_shortest_queue_over_throughput_wins() {
        let scene = Scene::new(&[(0, 1), (0, 3)]);
        assert_eq!(scene.choose(&rule(&[]), 1), (0, Reason::LeastLoaded));
        assert_eq!(
            scene.choose(&rule(&[("b", 250.0)]), 1).0,
            1,
            "2/100 against 4/250"
        );
        assert_eq!(scene.choose(&rule(&[("a", 250.0)]), 1).0, 0);
        let mut heavy = scene;
        heavy.rows[1].weight = 3.0;
        assert_eq!(heavy.choose(&rule(&[]), 1).0, 1);
    }

    #[test]
    fn ties_are_drawn() {
        let scene = Scene::new(&[(0, 1), (0, 3)]);
        let half = scene.share(&rule(&[("b", 200.0)]), 0);
        assert!((0.45..=0.55).contains(&half), "{half}");
    }
}
