//! Highest random weight: every worker draws a number from the key and its own name; the highest wins.
//!
//! No state and no randomness, so routers with the same seed agree. When a worker leaves, only its keys move.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::reason::Reason;
use super::rng::Rng;
use super::rule::{Choice, Rule};
use super::view::{View, cold_spread};

/// Settings of the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rendezvous {
    /// Hash seed; routers that must agree share it.
    pub seed: u64,
}

impl Rule for Rendezvous {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let Some(key) = view.key else {
            return Choice::cold(cold_spread(view.rows, rng), Reason::NoKey);
        };
        let mut text = Vec::with_capacity(key.len() + 64);
        text.extend_from_slice(key);
        text.push(0);
        let head = text.len();
        let mut best: Option<(usize, f64, &str)> = None;
        for (i, row) in view.rows.iter().enumerate() {
            let name = view.names.name(row.offer);
            text.truncate(head);
            text.extend_from_slice(name.as_bytes());
            // Within (0, 1): both ends are kept away so that the logarithm is finite and negative.
            let unit =
                (xxh3_64_with_seed(&text, self.seed) as f64 + 0.5) / 18_446_744_073_709_551_616.0;
            let score = row.weight / -unit.min(1.0 - f64::EPSILON).ln();
            if best
                .is_none_or(|(_, high, first)| score.total_cmp(&high).then(first.cmp(name)).is_gt())
            {
                best = Some((i, score, name));
            }
        }
        Choice::warm(best.map_or(0, |(i, _, _)| i), Reason::Hash)
    }

    fn fresh(&self) -> Box<dyn Rule> {
        Box::new(*self)
    }
}
