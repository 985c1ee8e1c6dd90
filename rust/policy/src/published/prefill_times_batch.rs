//! Prefill work times batch size: `LMetric`.
//!
//! ```text
//! cost = (pending prefill tokens + uncached tokens) * (requests in flight + 1) / weight;  argmin, ties to fewer requests
//! ```
//!
//! A zero on either side would erase the other: hence the 1, and at least one uncached token, the last.
//!
//! Near saturation holders of a prefix are busy, so the product leaves them, and workers that hold nothing of it compute
//! all of it again: more work, which makes more of them busy. `crowding` counts the work of a request once more for
//! each request that waits per worker, and puts the mean batch into every batch, so that differences between them weigh
//! less.
//!
//! ```text
//! cost = (pending + uncached * (1 + crowding * L)) * (requests + 1 + crowding * mean requests) / weight
//! ```

use cachelb_core::error::Result;
use cachelb_core::load::Known;
use cachelb_core::rng::Rng;

use crate::common::crowd::Crowd;
use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::memo::Memos;
use crate::rule::options::{Configure, NOT_NEGATIVE, Policy, options};
use crate::rule::reason::Reason;
use crate::rule::view::{View, cheapest, cold_spread, known};
use crate::rule::{Properties, Rule};

options! {
    /// Prompt tokens to compute times requests in flight, the lowest of all workers.
    ///
    /// The tokens are those queued on the worker and those of this request it does not hold. LMetric's rule: for short
    /// chats while KV memory has room, and for the prefill side of prefill and decode pairs. Long agents fill KV memory
    /// with it: in simulations it was 15 times behind the best rule at half load. Near saturation it leaves holders of a
    /// prefix that are busy, and others compute the prefix again, until all are; `crowding=1` minds only the latter.
    ///
    /// Example:
    ///     >>> policy = PrefillTimesBatch(seed=1)
    ///     >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
    ///     >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
    ///     >>> again.worker == first.worker, again.reason
    ///     (False, 'spill')
    ///     >>> first.on_complete()
    ///     >>> policy.select_worker(["gpu0", "gpu1"], tokens=range(1600)).worker == first.worker
    ///     True
    pub struct PrefillTimesBatchOptions {
        /// Weight of the requests that wait behind this one: the tokens that it adds to a worker count so many times
        /// more for each request that waits per worker, and every batch is larger by so many times the mean one. 0 is
        /// the rule as published.
        crowding: f64 = 0.0, NOT_NEGATIVE;
    }
}

/// The policy.
pub(crate) const POLICY: Policy = Policy::of::<PrefillTimesBatchOptions>(About::placed(
    "prefill-times-batch",
    "PrefillTimesBatch",
));

impl Configure for PrefillTimesBatchOptions {
    fn ruled(&self, _setup: &Setup) -> Result<Ruled> {
        Ok(Ruled::new(
            PrefillTimesBatch::new(self.crowding),
            Need::BLOCKS,
        ))
    }
}

/// The rule.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PrefillTimesBatch {
    crowding: f64,
    crowd: Crowd,
}

impl PrefillTimesBatch {
    /// The rule; `crowding` of 0 is it as published.
    #[must_use]
    pub fn new(crowding: f64) -> Self {
        Self {
            crowding,
            crowd: Crowd::default(),
        }
    }

    fn costs(&self, view: &View<'_>) -> Vec<f64> {
        let (times, others) = self.common(view);
        let cost = |row| view.prefill_times_batch(row, times, others);
        view.rows.iter().map(cost).collect()
    }

    /// Times that a token of the request counts, and requests that every worker has beside its own and this one.
    fn common(&self, view: &View<'_>) -> (f64, f64) {
        if self.crowding <= 0.0 {
            return (1.0, 0.0);
        }
        let requests: f64 = view.rows.iter().map(|row| f64::from(row.inflight)).sum();
        (
            1.0 + self.crowding * self.crowd.waiting(view),
            self.crowding * requests / view.rows.len().max(1) as f64,
        )
    }
}

impl Rule for PrefillTimesBatch {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        if view.blocks.is_none() && view.prompt_tokens == 0 {
            return Choice::cold(cold_spread(view.rows, rng), Reason::NoKey);
        }
        let costs = self.costs(view);
        let row = cheapest(view.rows, &costs, rng, |_| true).unwrap_or(0);
        view.leave_scores(costs);
        Choice::by_cost(view, row)
    }

    fn settled(&mut self, view: &View<'_>, choice: Choice, _served: usize, _memos: &mut Memos<'_>) {
        if self.crowding > 0.0 {
            self.crowd.add(view, &view.rows[choice.row]);
        }
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        let (times, others) = self.common(view);
        Some(view.prefill_times_batch(&view.rows[row], times, others))
    }

    fn scores(&self, view: &View<'_>) -> Vec<Known> {
        known(self.costs(view))
    }

    fn properties(&self) -> Properties {
        Properties::PLACED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Calls, Scene, booking};

    /// (uncached tokens of 3,000, pending tokens, requests)
    type Row = (u64, u64, u32);

    fn scene(rows: &[Row]) -> Scene {
        let mut scene = Scene::new(&vec![(0, 0); rows.len()]).tokens(3_000);
        scene.blocks = Some(Vec::new());
        for (row, &(uncached, pending, inflight)) in scene.rows.iter_mut().zip(rows) {
            row.matched_tokens = (3_000 - uncached) as f64;
            row.pending_prefill_tokens = pending;
            row.inflight = inflight;
        }
        scene
    }

    #[test]
    fn work_times_batch_decides_and_ties_go_to_fewer_requests() {
        let cases: [(&[Row], usize); 5] = [
            (&[(100, 0, 9), (1_000, 0, 0)], 1),
            (&[(100, 0, 9), (10, 2_000, 0)], 0),
            (&[(10, 2_000, 0), (1_000, 0, 0)], 1),
            (&[(1, 0, 100), (2_000, 0, 0)], 0),
            (&[(1_000, 500, 3), (3_000, 0, 0)], 1),
        ];
        let rule = PrefillTimesBatch::default();
        for (rows, picked) in cases {
            assert_eq!(scene(rows).choose(&rule, 1).0, picked, "{rows:?}");
        }
        let view = scene(&[(1_000, 500, 3), (3_000, 0, 0)]);
        let scores = [0, 1].map(|row| rule.score(&view.view(), row));
        assert_eq!(scores, [Some(6_000.0), Some(3_000.0)]);
        let mut weighted = scene(&[(1_500, 0, 0), (1_000, 0, 0)]);
        weighted.rows[0].weight = 2.0;
        assert_eq!(weighted.choose(&rule, 1).0, 0);
    }

    #[test]
    fn an_idle_and_cold_fleet_is_drawn_from() {
        let scene = Scene::new(&[(0, 0); 4]).blocks(Some(10));
        let rule = PrefillTimesBatch::default();
        scene.assert_even(&rule, 0..4);
        assert_eq!(scene.choose(&rule, 1).1, Reason::Cold);
    }

    #[test]
    fn the_reason_tells_whether_a_holder_was_passed_over() {
        let mut unknown = Scene::new(&[(0, 1), (0, 2)]);
        unknown.rows[0].pending_prefill_tokens = 100_000;
        let short = Scene::new(&[(0, 5), (0, 0)]).blocks(Some(0)).tokens(10);
        let holder = |inflight| Scene::new(&[(9, inflight), (0, 0)]).blocks(Some(10));
        for (scene, expected) in [
            (holder(0), (0, Reason::Prefix)),
            (holder(50), (1, Reason::Spill)),
            (short, (1, Reason::ShortPrompt)),
            (unknown, (0, Reason::NoKey)),
        ] {
            assert_eq!(scene.choose(&PrefillTimesBatch::default(), 1), expected);
        }
    }

    #[test]
    fn crowding_keeps_to_holders_while_others_wait() {
        // A holder with work for 4,000 tokens beside a worker that holds nothing and has nothing to do.
        let rows: &[Row] = &[(100, 4_000, 3), (2_000, 0, 2)];
        let mut rule = PrefillTimesBatch::new(1.0);
        assert_eq!(scene(rows).choose(&PrefillTimesBatch::default(), 1).0, 1);
        let seen = scene(&[(500, 0, 0)]);
        rule.settle(&seen.view(), seen.pick(&rule, 1), booking(0));
        // 2,000 tokens wait per worker, four times the usual 500; 2.5 requests run on each.
        let view = scene(rows);
        let score = |row| rule.score(&view.view(), row);
        let expected = [(4_000.0 + 500.0) * 6.5, 2_000.0 * 5.0 * 5.5];
        assert_eq!((score(0), score(1)), (Some(expected[0]), Some(expected[1])));
        let scores: Vec<_> = rule.scores(&view.view()).iter().map(|s| s.get()).collect();
        assert_eq!(scores, [score(0), score(1)]);
        assert_eq!(view.choose(&rule, 1).0, 0);
        let idle = scene(&[(100, 0, 0), (2_000, 0, 0)]);
        assert_eq!(rule.score(&idle.view(), 0), Some(100.0), "nothing waits");
    }
}
