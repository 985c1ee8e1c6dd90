//! The next worker in turn.
//!
//! Equal weights: the next eligible worker after the last picked one, in registration order. The cursor names a worker,
//! not a position, so a worker that flaps does not make the others jump. Unequal weights: smooth weighted turns, where
//! every worker's credit grows by its weight and the pick pays the sum, so 5:1:1 gives `a a b a c a a`.

use std::collections::HashMap;

use cachelb_core::error::Result;
use cachelb_core::rng::Rng;

use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::memo::Memos;
use crate::rule::options::{Configure, Policy, options};
use crate::rule::parts::{State, state};
use crate::rule::reason::Reason;
use crate::rule::values::words;
use crate::rule::view::{Candidate, View, weights_are_equal};
use crate::rule::{Properties, Rule};

/// Which worker is first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Drawn by the seed.
    Seeded,
    /// The first registered.
    First,
}

words!(Start { Seeded = "seeded", First = "first" });

options! {
    /// The next worker in turn, in the order of registration.
    ///
    /// The turn belongs to workers, not to positions in the list, so a worker that comes and goes does not make the others
    /// jump. With unequal weights (`set_weight`) turns are smooth: 5:1:1 gives a a b a c a a.
    ///
    /// Example:
    ///     >>> policy = RoundRobin(start="first")
    ///     >>> [policy.select_worker(["gpu0", "gpu1", "gpu2"], by_load=True).worker for _ in range(4)]
    ///     ['gpu0', 'gpu1', 'gpu2', 'gpu0']
    pub struct RoundRobinOptions {
        /// The first worker: drawn, so that several routers do not begin alike, or the first registered.
        start: Start = Start::Seeded;
    }
}

/// The policy.
pub(crate) const POLICY: Policy =
    Policy::of::<RoundRobinOptions>(About::plain("round-robin", "RoundRobin"));

impl Configure for RoundRobinOptions {
    fn ruled(&self, _setup: &Setup) -> Result<Ruled> {
        let rule = RoundRobin::new(self.start == Start::First);
        Ok(Ruled::new(rule, Need::LENGTH))
    }
}

/// The rule and its turn.
#[derive(Debug, Clone, Default)]
pub struct RoundRobin {
    /// Begin at the first registered worker instead of a seeded one.
    pub start_first: bool,
    /// Registration order of the last pick.
    last: Option<u64>,
    /// Credits of smooth weighted turns by registration order.
    credits: HashMap<u64, f64>,
}

impl RoundRobin {
    /// A rule whose first pick is seeded, or the first registered worker.
    #[must_use]
    pub fn new(start_first: bool) -> Self {
        Self {
            start_first,
            ..Self::default()
        }
    }

    fn next(&self, rows: &[Candidate], rng: &mut Rng) -> usize {
        let Some(last) = self.last else {
            let skip = if self.start_first {
                0
            } else {
                rng.below(rows.len())
            };
            let mut turns: Vec<u64> = rows.iter().map(|row| row.order).collect();
            turns.sort_unstable();
            let first = rows.iter().position(|row| row.order == turns[skip]);
            return first.unwrap_or(0);
        };
        // How far after the last one, those before it by way of the largest number.
        let turn = |i: &usize| rows[*i].order.wrapping_sub(last).wrapping_sub(1);
        (0..rows.len()).min_by_key(turn).unwrap_or(0)
    }

    fn credit(&self, row: &Candidate) -> f64 {
        self.credits.get(&row.order).copied().unwrap_or(0.0) + row.weight
    }

    fn richest(&self, rows: &[Candidate]) -> usize {
        let poorer_or_later = |&a: &usize, &b: &usize| {
            self.credit(&rows[a])
                .total_cmp(&self.credit(&rows[b]))
                .then(rows[b].order.cmp(&rows[a].order))
        };
        (0..rows.len()).max_by(poorer_or_later).unwrap_or(0)
    }
}

impl Rule for RoundRobin {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let row = if weights_are_equal(view.rows) {
            self.next(view.rows, rng)
        } else {
            self.richest(view.rows)
        };
        Choice::warm(row, Reason::RoundRobin)
    }

    fn settled(&mut self, view: &View<'_>, choice: Choice, _served: usize, _memos: &mut Memos<'_>) {
        let chosen = choice.row;
        self.last = Some(view.rows[chosen].order);
        if weights_are_equal(view.rows) {
            return;
        }
        for row in view.rows {
            let credit = self.credit(row);
            self.credits.insert(row.order, credit);
        }
        let total: f64 = view.rows.iter().map(|row| row.weight).sum();
        *self.credits.entry(view.rows[chosen].order).or_default() -= total;
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        // There are no credits while weights are equal.
        let row = &view.rows[row];
        self.credits
            .get(&row.order)
            .map(|credit| credit + row.weight)
    }

    fn properties(&self) -> Properties {
        Properties {
            higher_is_better: true,
            ..Properties::PLAIN
        }
    }

    state!(own => *own);
}

impl State for RoundRobin {
    fn forget(&mut self, order: u64) {
        self.credits.remove(&order);
    }
}
