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

/// Texts up to this long are hashed without an allocation.
const SHORT: usize = 256;

impl Rendezvous {
    /// What the worker called `name` draws for `key`, higher is better.
    fn draw(&self, key: &[u8], name: &str, weight: f64) -> f64 {
        let (head, length) = (key.len() + 1, key.len() + 1 + name.len());
        let hash = if length <= SHORT {
            let mut text = [0; SHORT];
            text[..key.len()].copy_from_slice(key);
            text[head..length].copy_from_slice(name.as_bytes());
            xxh3_64_with_seed(&text[..length], self.seed)
        } else {
            xxh3_64_with_seed(&[key, &[0], name.as_bytes()].concat(), self.seed)
        };
        // Within (0, 1): both ends are kept away so that the logarithm is finite and negative.
        let unit = (hash as f64 + 0.5) / 18_446_744_073_709_551_616.0;
        weight / -unit.min(1.0 - f64::EPSILON).ln()
    }

    /// The row that draws highest among those `keep` admits; equal draws go to the smaller name.
    pub(super) fn highest(
        &self,
        view: &View<'_>,
        key: &[u8],
        keep: impl Fn(&Candidate) -> bool,
    ) -> Option<usize> {
        let mut best: Option<(usize, f64, &str)> = None;
        for (i, row) in view.rows.iter().enumerate().filter(|(_, row)| keep(row)) {
            let name = view.names.name(row.offer);
            let score = self.draw(key, name, row.weight);
            if best
                .is_none_or(|(_, high, first)| score.total_cmp(&high).then(first.cmp(name)).is_gt())
            {
                best = Some((i, score, name));
            }
        }
        best.map(|(i, _, _)| i)
    }
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
        let row = &view.rows[row];
        Some(self.draw(view.key?, view.names.name(row.offer), row.weight))
    }

    fn higher_is_better(&self) -> bool {
        true
    }

    fn fresh(&self) -> Box<dyn Rule> {
        Box::new(*self)
    }
}
