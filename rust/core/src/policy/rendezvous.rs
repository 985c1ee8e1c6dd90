//! Highest random weight: every worker draws a number from the key and its own name; the highest wins.
//!
//! No state and no randomness, so routers with the same seed agree. When a worker leaves, only its keys move. With a
//! bound, the highest that has room wins.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::bounded::Bound;
use super::reason::Reason;
use super::rng::Rng;
use super::rule::{Choice, Rule};
use super::view::{Candidate, View, cold_spread};

/// Settings of the rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rendezvous {
    /// Hash seed; routers that must agree share it.
    pub seed: u64,
    /// Slack over the fair share of the load; `None` never looks at the load.
    pub epsilon: Option<f64>,
}

impl Rendezvous {
    /// What `row` draws, higher is better, and its name. `text` is scratch that begins with the key.
    fn draw<'a>(
        &self,
        view: &View<'a>,
        row: &Candidate,
        text: &mut Vec<u8>,
        head: usize,
    ) -> (f64, &'a str) {
        let name = view.names.name(row.offer);
        text.truncate(head);
        text.extend_from_slice(name.as_bytes());
        // Within (0, 1): both ends are kept away so that the logarithm is finite and negative.
        let unit = (xxh3_64_with_seed(text, self.seed) as f64 + 0.5) / 18_446_744_073_709_551_616.0;
        (row.weight / -unit.min(1.0 - f64::EPSILON).ln(), name)
    }

    /// The row that draws highest among those `keep` admits; equal draws go to the smaller name.
    pub(super) fn highest(
        &self,
        view: &View<'_>,
        key: &[u8],
        keep: impl Fn(&Candidate) -> bool,
    ) -> Option<usize> {
        let (mut text, head) = text_of(key);
        let mut best: Option<(usize, f64, &str)> = None;
        for (i, row) in view.rows.iter().enumerate().filter(|(_, row)| keep(row)) {
            let (score, name) = self.draw(view, row, &mut text, head);
            if best
                .is_none_or(|(_, high, first)| score.total_cmp(&high).then(first.cmp(name)).is_gt())
            {
                best = Some((i, score, name));
            }
        }
        best.map(|(i, _, _)| i)
    }
}

fn text_of(key: &[u8]) -> (Vec<u8>, usize) {
    let mut text = Vec::with_capacity(key.len() + 64);
    text.extend_from_slice(key);
    text.push(0);
    let head = text.len();
    (text, head)
}

impl Rule for Rendezvous {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let Some(key) = view.key else {
            return Choice::cold(cold_spread(view.rows, rng), Reason::NoKey);
        };
        let home = self.highest(view, key, |_| true).unwrap_or(0);
        let Some(bound) = self.epsilon.map(|epsilon| Bound::of(view.rows, epsilon)) else {
            return Choice::warm(home, Reason::Hash);
        };
        if bound.admits(&view.rows[home]) {
            return Choice::warm(home, Reason::Hash);
        }
        match self.highest(view, key, |row| bound.admits(row)) {
            Some(row) => Choice::warm(row, Reason::HashBounded),
            None => Choice::warm(home, Reason::Hash),
        }
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        let (mut text, head) = text_of(view.key?);
        Some(self.draw(view, &view.rows[row], &mut text, head).0)
    }

    fn higher_is_better(&self) -> bool {
        true
    }

    fn fresh(&self) -> Box<dyn Rule> {
        Box::new(*self)
    }
}
