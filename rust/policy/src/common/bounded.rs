//! Bounded load for policies that hash: no worker takes more than its share of the requests in flight, times a slack.
//!
//! The capacities always sum to more than the requests in flight, so some worker has room for the next request.

use crate::common::ring::Ring;
use crate::rule::choice::Choice;
use crate::rule::reason::Reason;
use crate::rule::view::{Candidate, View, ceil};

/// The worker of `key` on the ring, or the next one that has room. Without an `epsilon` all have.
pub(crate) fn choose(ring: &Ring, view: &View<'_>, key: &[u8], epsilon: Option<f64>) -> Choice {
    let arcs = ring.covering(view);
    let seats = arcs.seats(view.rows);
    let bound = epsilon.map(|epsilon| Bound::of(view.rows, epsilon));
    let has_room = |row: &usize| bound.is_none_or(|bound| bound.admits(&view.rows[*row]));
    let home = arcs.walk(&seats, key).next().unwrap_or(0);
    match arcs.walk(&seats, key).find(has_room) {
        Some(row) if row != home => Choice::warm(row, Reason::HashBounded),
        _ => Choice::warm(home, Reason::Hash),
    }
}

/// How many requests each candidate may have in flight, the new one included.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    per_weight: f64,
}

impl Bound {
    /// Capacities over `rows`: `ceil((1 + epsilon) * (requests in flight + 1) * weight / sum of weights)`.
    pub fn of(rows: &[Candidate], epsilon: f64) -> Self {
        let total: u64 = rows.iter().map(|row| u64::from(row.inflight)).sum();
        let weights: f64 = rows.iter().map(|row| row.weight).sum();
        Self {
            per_weight: (1.0 + epsilon) * (total + 1) as f64 / weights,
        }
    }

    /// Requests `row` may have in flight.
    pub fn capacity(self, row: &Candidate) -> f64 {
        // A rounding error in the last place must not add a whole request.
        ceil(self.per_weight * row.weight * (1.0 - 1e-12))
    }

    /// Whether `row` has room for one more.
    pub fn admits(self, row: &Candidate) -> bool {
        f64::from(row.inflight) + 1.0 <= self.capacity(row)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::Scene;

    #[test]
    fn capacities_are_shares_rounded_up() {
        let cases = [
            ([5, 0, 0], [1.0, 1.0, 1.0], 0.25, [3.0, 3.0, 3.0]),
            ([0, 0, 0], [1.0, 1.0, 1.0], 0.25, [1.0, 1.0, 1.0]),
            ([1, 1, 0], [1.0, 1.0, 1.0], 0.0, [1.0, 1.0, 1.0]),
            ([3, 0, 0], [2.0, 1.0, 1.0], 0.0, [2.0, 1.0, 1.0]),
            ([29, 0, 0], [0.1, 0.1, 0.1], 0.0, [10.0, 10.0, 10.0]),
        ];
        for (loads, weights, epsilon, expected) in cases {
            let mut scene = Scene::new(&loads.map(|n| (0, n)));
            for (row, weight) in scene.rows.iter_mut().zip(weights) {
                row.weight = weight;
            }
            let bound = Bound::of(&scene.rows, epsilon);
            let capacities: Vec<f64> = scene.rows.iter().map(|row| bound.capacity(row)).collect();
            assert_eq!(capacities, expected, "{loads:?} {weights:?} {epsilon}");
        }
    }

    proptest! {
        #[test]
        fn somebody_always_has_room(
            fleet in prop::collection::vec((0_u32..100_000, 1e-3..1e3_f64), 1..40),
            epsilon in 0.0..2.0_f64,
        ) {
            let mut scene = Scene::new(&fleet.iter().map(|&(n, _)| (0, n)).collect::<Vec<_>>());
            for (row, (_, weight)) in scene.rows.iter_mut().zip(&fleet) {
                row.weight = *weight;
            }
            let bound = Bound::of(&scene.rows, epsilon);
            prop_assert!(scene.rows.iter().any(|row| bound.admits(row)));
        }
    }
}
