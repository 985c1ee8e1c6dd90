//! The caller's own policy, which decides outside: see `router::survey`. What runs here is what takes its place when it
//! fails.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::least_loaded::LeastLoaded;
use super::reason::Reason;
use super::rng::Rng;
use super::rule::{Choice, Rule};
use super::view::View;

/// Settings of the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Custom {
    /// Whether the policy looks at what the workers hold of the prompt.
    pub tokens: bool,
}

impl Rule for Custom {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        Choice {
            reason: Reason::PolicyError,
            ..LeastLoaded::default().choose(view, rng)
        }
    }

    fn records_placement(&self) -> bool {
        self.tokens
    }

    fn fresh(&self) -> Box<dyn Rule> {
        Box::new(*self)
    }
}

/// A key as a number that says nothing about its text. Routers that must agree share the seed.
#[must_use]
pub fn key_hash(key: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(key, seed)
}
