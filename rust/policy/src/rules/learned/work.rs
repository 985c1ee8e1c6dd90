//! The scores of the latest decision, kept for explanations and for the booking that follows.

use cachelb_core::ids::{Millis, SequenceHash};
use cachelb_learned::{Model, Row, Scratch};

use super::distinct::Distinct;
use super::reach::at_rest;
use crate::rule::view::View;

/// Tells one request from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Stamp {
    now: Millis,
    prompt_tokens: u64,
    last: Option<SequenceHash>,
    rows: usize,
    version: u64,
}

/// Buffers, reused.
#[derive(Debug, Default)]
pub(super) struct Work {
    stamp: Stamp,
    /// Positions in the view's rows, rising, their features, and their expected costs.
    pub at: Vec<u32>,
    pub rows: Vec<Row>,
    pub costs: Vec<f32>,
    /// The time that the request adds to those waiting there; empty if none wait.
    pub added: Vec<f32>,
    /// The sum of cost and added time of every row, by position, and the positions of those as good as the best.
    pub scores: Vec<(usize, f32)>,
    pub near: Vec<usize>,
    /// The rows that the model is asked about, which of them the rows and the same on idle workers are, and the answers.
    distinct: Distinct,
    which: Vec<u32>,
    answers: Vec<f32>,
    pub scratch: Scratch,
    /// Whether the rows differed and the costs did not.
    pub flat: Option<bool>,
}

impl Work {
    /// Begins with the request of `view` and the model of that version.
    pub fn begin(&mut self, view: &View<'_>, version: u64) {
        self.stamp = stamp(view, version);
        self.at.clear();
        self.rows.clear();
        self.costs.clear();
        self.added.clear();
        self.flat = None;
    }

    /// Fills in the expected costs of the rows, and the time that the request adds to `waiting` others there.
    ///
    /// One call of the model: its matrix products take as long for one row as for four.
    pub fn ask(&mut self, model: &Model, waiting: f32) {
        let Self {
            rows,
            costs,
            added,
            distinct,
            which,
            answers,
            scratch,
            ..
        } = self;
        let n = rows.len();
        distinct.begin(2 * n);
        which.clear();
        which.extend(rows.iter().map(|row| distinct.position(row)));
        if waiting > 0.0 {
            let idle = rows.iter().map(|row| at_rest(row, model));
            which.extend(idle.map(|row| distinct.position(&row)));
        }
        model.predict(distinct.rows(), answers, scratch);
        let answer = |which: &u32| answers[*which as usize];
        let (own, idle) = which.split_at(n);
        costs.clear();
        costs.extend(own.iter().map(answer));
        added.clear();
        added.extend(idle.iter().map(|which| waiting * answer(which).max(0.0)));
    }

    /// Whether this was the request, and the model.
    pub fn is_of(&self, view: &View<'_>, version: u64) -> bool {
        self.stamp == stamp(view, version)
    }

    /// The expected cost of row `at` with the features `row`; `None` if it was not scored.
    pub fn cost(&self, at: usize, row: &Row) -> Option<f32> {
        let found = self.at.binary_search(&(at as u32)).ok()?;
        let cost = self.costs.get(found)?;
        (self.rows[found] == *row).then_some(*cost)
    }
}

fn stamp(view: &View<'_>, version: u64) -> Stamp {
    Stamp {
        now: view.now,
        prompt_tokens: view.prompt_tokens,
        last: view.blocks.and_then(|blocks| blocks.last().copied()),
        rows: view.rows.len(),
        version,
    }
}
