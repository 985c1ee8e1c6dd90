//! Prompts with the same head go to the same worker of a hash ring, unless it is overloaded.
//!
//! ```text
//! key: the session, else the deepest boundary the prompt reaches, else the head of fixed length; none -> no-key
//! home(key) within the bound                          -> hash
//! home of a shallower boundary within the bound       -> hash-bounded
//! least loaded worker within the bound                -> hash-bounded
//! nobody within the bound                             -> hash, the first home
//! bound: max(average * load_factor, average + balance_abs_threshold), average = (in flight + 1) / weights
//! ```
//!
//! Both margins are needed: the relative one alone fires on noise where several routers share the load.

use cachelb_core::error::Result;
use cachelb_core::ids::SequenceHash;
use cachelb_core::rng::Rng;

use crate::common::ring::{Ring, VNODES};
use crate::rule::Rule;
use crate::rule::about::{About, Level, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::memo::Memos;
use crate::rule::options::{AT_LEAST_ONE, Configure, NOT_NEGATIVE, Policy, conflict, options};
use crate::rule::parts::state;
use crate::rule::reason::Reason;
use crate::rule::view::{Candidate, View, cold_spread, lowest};

options! {
    /// The head of the prompt picks a worker on a hash ring; an overloaded one is passed over.
    ///
    /// Nothing is remembered about prompts, so routers with the same seed agree without sharing state. The key is the
    /// session, else the longest of the `cache_boundaries` that the prompt reaches, else its first tokens. The key's
    /// worker serves (`hash`) unless its load is over both margins. Then the next shorter boundary's worker is tried,
    /// then the least loaded one (`hash-bounded`). If all are as busy, the request stays. Requests without a key go
    /// to the least loaded worker (`no-key`).
    ///
    /// If every prompt begins with one system prompt longer than `prefix_token_count`, all of them have the same key: set
    /// boundaries past it.
    ///
    /// Example:
    ///     >>> policy = PrefixHash(cache_boundaries=[512, 2048])
    ///     >>> workers = ["gpu0", "gpu1", "gpu2"]
    ///     >>> system = list(range(512))
    ///     >>> picks = [policy.select_worker(workers, tokens=system + [n] * 100) for n in range(3)]
    ///     >>> len({pick.worker for pick in picks}), picks[0].reason
    ///     (1, 'hash')
    pub struct PrefixHashOptions {
        /// Leading tokens that make the key of a prompt that reaches no boundary.
        prefix_token_count: u32 = 256, (1, u64::from(u32::MAX));
        /// A worker is overloaded only above this many times the average load.
        load_factor: f64 = 1.25, AT_LEAST_ONE;
        /// A worker is overloaded only above the average load plus this many requests.
        balance_abs_threshold: f64 = 10.0, NOT_NEGATIVE;
        /// Lengths in tokens at which prompts are hashed, such as the ends of the system prompts; each is rounded
        /// down to whole blocks.
        cache_boundaries: Vec<u64> = Vec::new(), (1, u64::from(u32::MAX));
    }
}

/// The policy.
pub(crate) const POLICY: Policy = Policy::of::<PrefixHashOptions>(About {
    needs: &["tokens"],
    level: Level::Hashed,
    ..About::keyed("prefix-hash", "PrefixHash")
});

impl Configure for PrefixHashOptions {
    fn ruled(&self, setup: &Setup) -> Result<Ruled> {
        let least = u64::from(setup.block_size);
        let mut ends = self.cache_boundaries.iter().enumerate();
        if let Some((i, short)) = ends.find(|(_, tokens)| **tokens < least) {
            let most = u32::MAX;
            return Err(conflict(format!(
                "cache_boundaries[{i}] must be from {least} to {most}, got {short}"
            )));
        }
        let need = Need {
            blocks: !self.cache_boundaries.is_empty(),
            ..Need::prefix(self.prefix_token_count)
        };
        let options = Self {
            balance_abs_threshold: self.balance_abs_threshold / setup.replicas,
            ..self.clone()
        };
        Ok(Ruled::new(PrefixHash::new(options, setup.seed), need))
    }
}

/// The rule and its ring.
#[derive(Debug)]
pub struct PrefixHash {
    options: PrefixHashOptions,
    ring: Ring,
}

impl PrefixHash {
    /// A rule that has seen no worker.
    #[must_use]
    pub fn new(mut options: PrefixHashOptions, seed: u64) -> Self {
        options.cache_boundaries.sort_unstable();
        Self {
            ring: Ring::new(VNODES, seed),
            options,
        }
    }

    /// The load a worker may have before the request.
    fn bound(&self, rows: &[Candidate]) -> f64 {
        let total: u64 = rows.iter().map(|row| u64::from(row.inflight)).sum();
        let weights: f64 = rows.iter().map(|row| row.weight).sum();
        let average = (total + 1) as f64 / weights;
        let absolute = average + self.options.balance_abs_threshold;
        (average * self.options.load_factor).max(absolute)
    }

    /// Hashes at the boundaries that a prompt without a session reaches, deepest first.
    fn boundaries<'a>(&'a self, view: &View<'a>) -> impl Iterator<Item = SequenceHash> + 'a {
        let blocks = view.blocks.filter(|_| !view.key_is_session);
        let block_size = u64::from(view.block_size);
        let depth = move |tokens: &u64| (tokens / block_size).checked_sub(1);
        let deepest_first = self.options.cache_boundaries.iter().rev();
        deepest_first
            .filter_map(depth)
            .filter_map(move |last| blocks?.get(last as usize).copied())
    }
}

impl Rule for PrefixHash {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let arcs = self.ring.covering(view);
        let seats = arcs.seats(view.rows);
        let home = |key: &[u8]| arcs.walk(&seats, key).next().unwrap_or(0);
        let mut homes = self
            .boundaries(view)
            .map(|hash| home(&hash.0.to_le_bytes()));
        let Some(first) = homes.next().or_else(|| view.key.map(home)) else {
            return Choice::cold(cold_spread(view.rows, rng), Reason::NoKey);
        };
        let bound = self.bound(view.rows);
        let fits = |row: &Candidate| row.load() <= bound;
        if fits(&view.rows[first]) {
            return Choice::warm(first, Reason::Hash);
        }
        let other = homes
            .find(|&row| fits(&view.rows[row]))
            .or_else(|| lowest(view.rows, rng, fits, Candidate::load));
        match other {
            Some(row) => Choice::warm(row, Reason::HashBounded),
            None => Choice::warm(first, Reason::Hash),
        }
    }

    fn settled(&mut self, view: &View<'_>, _: Choice, _: usize, _: &mut Memos<'_>) {
        self.ring.settle(view);
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        Some(view.rows[row].load())
    }

    state!(own => own.ring);
}

#[cfg(test)]
#[path = "tests/prefix_hash.rs"]
mod tests;
