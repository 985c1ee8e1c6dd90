//! Prefill work times batch size: `LMetric`. Nothing to tune.
//!
//! ```text
//! cost = (pending prefill tokens + uncached tokens) * (requests in flight + 1) / weight;  argmin, ties to fewer requests
//! ```
//!
//! A zero on either side would erase the other: hence the 1, and at least one uncached token, the last.

use super::reason::Reason;
use super::rng::Rng;
use super::rule::{Choice, Rule};
use super::view::{Candidate, View, cold_spread, lowest};

/// The rule; it has no settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefillTimesBatch;

/// The cost of a row.
pub(super) fn product(view: &View<'_>, row: &Candidate) -> f64 {
    let tokens = row.pending_prefill_tokens as f64 + view.uncached_tokens(row).max(1.0);
    tokens * (f64::from(row.inflight) + 1.0) / row.weight
}

impl Rule for PrefillTimesBatch {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        if view.blocks.is_none() && view.prompt_tokens == 0 {
            return Choice::cold(cold_spread(view.rows, rng), Reason::NoKey);
        }
        let cost = |row: &Candidate| (product(view, row), row.load());
        let row = lowest(view.rows, rng, |_| true, cost).unwrap_or(0);
        Choice::by_cost(view, row)
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        Some(product(view, &view.rows[row]))
    }

    fn records_placement(&self) -> bool {
        true
    }

    fn fresh(&self) -> Box<dyn Rule> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::Scene;

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
        for (rows, picked) in cases {
            let scene = scene(rows);
            assert_eq!(scene.choose(&PrefillTimesBatch, 1).0, picked, "{rows:?}");
        }
        let view = scene(&[(1_000, 500, 3), (3_000, 0, 0)]);
        let score = |row| PrefillTimesBatch.score(&view.view(), row);
        assert_eq!((score(0), score(1)), (Some(6_000.0), Some(3_000.0)));
    }

    #[test]
    fn an_idle_and_cold_fleet_is_drawn_from() {
        let scene = Scene::new(&[(0, 0); 4]).blocks(Some(10));
        for picked in 0..4 {
            let share = scene.share(&PrefillTimesBatch, picked);
            assert!((0.19..=0.31).contains(&share), "worker {picked}: {share}");
        }
        assert_eq!(scene.choose(&PrefillTimesBatch, 1).1, Reason::Cold);
    }

    #[test]
    fn a_weight_divides_the_cost() {
        let mut view = scene(&[(1_500, 0, 0), (1_000, 0, 0)]);
        view.rows[0].weight = 2.0;
        assert_eq!(view.choose(&PrefillTimesBatch, 1).0, 0);
    }

    #[test]
    fn the_reason_tells_whether_a_holder_was_passed_over() {
        let holder = Scene::new(&[(9, 0), (0, 0)]).blocks(Some(10));
        assert_eq!(holder.choose(&PrefillTimesBatch, 1), (0, Reason::Prefix));
        let busy = Scene::new(&[(9, 50), (0, 0)]).blocks(Some(10));
        assert_eq!(busy.choose(&PrefillTimesBatch, 1), (1, Reason::Spill));
        let short = Scene::new(&[(0, 5), (0, 0)]).blocks(Some(0)).tokens(10);
        assert_eq!(
            short.choose(&PrefillTimesBatch, 1),
            (1, Reason::ShortPrompt)
        );
    }

    #[test]
    fn without_tokens_only_requests_count() {
        let mut scene = Scene::new(&[(0, 1), (0, 2)]);
        scene.rows[0].pending_prefill_tokens = 100_000;
        assert_eq!(scene.choose(&PrefillTimesBatch, 1), (0, Reason::NoKey));
    }
}
