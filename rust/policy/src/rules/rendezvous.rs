//! Highest random weight: every worker draws a number from the key and its own name; the highest wins.
//!
//! No state and no randomness, so routers with the same seed agree. When a worker leaves, only its keys move. With a
//! bound, the highest that has room wins.

use cachelb_core::error::Result;
use cachelb_core::rng::Rng;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::common::bounded::Bound;
use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::options::{Configure, NOT_NEGATIVE, Policy, options};
use crate::rule::reason::Reason;
use crate::rule::view::{Candidate, View, cold_spread, weights_are_equal};
use crate::rule::{Properties, Rule};

options! {
    /// Highest random weight hashing: routers with the same seed agree without sharing state.
    ///
    /// The key is the session, else the first tokens of the prompt. When a worker leaves, only its keys move; when it
    /// returns, it gets exactly its old keys back. With `bounded=True`, a worker that already has more than its share of
    /// the requests in flight is passed over for the next best (`hash-bounded`). Requests without a key go to the least
    /// loaded worker (`no-key`).
    ///
    /// Example:
    ///     >>> here, there = Rendezvous(), Rendezvous()
    ///     >>> workers = ["gpu0", "gpu1", "gpu2"]
    ///     >>> decision = here.select_worker(workers, session="chat-17")
    ///     >>> decision.worker == there.select_worker(workers[::-1], session="chat-17").worker, decision.reason
    ///     (True, 'hash')
    pub struct RendezvousOptions {
        /// Keep every worker's requests in flight within its share.
        bounded: bool = false;
        /// How much more than its share a worker may have if `bounded`.
        epsilon: f64 = 0.25, NOT_NEGATIVE;
        /// Leading tokens that make the key of a request without a session.
        prefix_token_count: u32 = 256, (1, u64::from(u32::MAX));
    }
}

/// The policy.
pub(crate) const POLICY: Policy =
    Policy::of::<RendezvousOptions>(About::keyed("rendezvous", "Rendezvous"));

impl Configure for RendezvousOptions {
    fn ruled(&self, setup: &Setup) -> Result<Ruled> {
        let rule = Rendezvous {
            seed: setup.seed,
            epsilon: self.bounded.then_some(self.epsilon),
        };
        Ok(Ruled::new(rule, Need::prefix(self.prefix_token_count)))
    }
}

/// Settings of the rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rendezvous {
    /// Hash seed; routers that must agree share it.
    pub seed: u64,
    /// Slack over the fair share of the load; `None` never looks at the load.
    pub epsilon: Option<f64>,
}

/// Texts up to this long are hashed without an allocation.
const SHORT: usize = 192;

/// The draws of one key.
struct Draws<'a> {
    seed: u64,
    key: &'a [u8],
    /// The key and a zero byte, then the name drawn for last; unused if that is longer than `SHORT`.
    text: [u8; SHORT],
}

impl<'a> Draws<'a> {
    fn new(seed: u64, key: &'a [u8]) -> Self {
        let mut text = [0; SHORT];
        if let Some(head) = text.get_mut(..key.len()) {
            head.copy_from_slice(key);
        }
        Self { seed, key, text }
    }

    fn hash(&mut self, name: &str) -> u64 {
        let head = self.key.len() + 1;
        let length = head + name.len();
        if length <= SHORT {
            self.text[head..length].copy_from_slice(name.as_bytes());
            xxh3_64_with_seed(&self.text[..length], self.seed)
        } else {
            xxh3_64_with_seed(&[self.key, &[0], name.as_bytes()].concat(), self.seed)
        }
    }

    /// The draw of the worker `name`, higher is better.
    fn score(&mut self, name: &str, weight: f64) -> f64 {
        // Within (0, 1): both ends are kept away so that the logarithm is finite and negative.
        let unit = (self.hash(name) as f64 + 0.5) / 18_446_744_073_709_551_616.0;
        weight / -unit.min(1.0 - f64::EPSILON).ln()
    }
}

impl Rendezvous {
    /// The row that draws highest among those `keep` admits; equal draws go to the smaller name.
    pub(crate) fn highest(
        &self,
        view: &View<'_>,
        key: &[u8],
        keep: impl Fn(&Candidate) -> bool,
    ) -> Option<usize> {
        let mut draws = Draws::new(self.seed, key);
        if weights_are_equal(view.rows) {
            // The hashes rank as the scores do.
            highest(view, keep, |name, _| draws.hash(name))
        } else {
            highest(view, keep, |name, weight| draws.score(name, weight))
        }
    }
}

impl Rendezvous {
    /// The `k` rows that draw highest.
    #[cfg(feature = "learned")]
    pub(crate) fn first(&self, view: &View<'_>, key: &[u8], k: usize) -> Vec<usize> {
        let mut draws = Draws::new(self.seed, key);
        let name = |row: usize| view.names.name(view.rows[row].offer);
        let score = |(i, row): (usize, &Candidate)| (draws.score(name(i), row.weight), i);
        let mut scored: Vec<(f64, usize)> = view.rows.iter().enumerate().map(score).collect();
        let order = |a: &(f64, usize), b: &(f64, usize)| {
            b.0.total_cmp(&a.0).then_with(|| name(a.1).cmp(name(b.1)))
        };
        if k > 0 && k < scored.len() {
            scored.select_nth_unstable_by(k - 1, order);
        }
        scored.truncate(k);
        scored.into_iter().map(|(_, row)| row).collect()
    }
}

fn highest<S: PartialOrd>(
    view: &View<'_>,
    keep: impl Fn(&Candidate) -> bool,
    mut score: impl FnMut(&str, f64) -> S,
) -> Option<usize> {
    let mut best: Option<(usize, S, &str)> = None;
    for (i, row) in view.rows.iter().enumerate().filter(|(_, row)| keep(row)) {
        let name = view.names.name(row.offer);
        let own = score(name, row.weight);
        if best
            .as_ref()
            .is_none_or(|(_, high, first)| own > *high || (own == *high && name < *first))
        {
            best = Some((i, own, name));
        }
    }
    best.map(|(i, _, _)| i)
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
        let mut draws = Draws::new(self.seed, view.key?);
        Some(draws.score(view.names.name(row.offer), row.weight))
    }

    fn properties(&self) -> Properties {
        Properties {
            scored_in_passing: false,
            higher_is_better: true,
            ..Properties::PLAIN
        }
    }
}
