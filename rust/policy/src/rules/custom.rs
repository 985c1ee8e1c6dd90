//! The caller's own policy, which decides outside: see `router::survey`. The rule here takes its place when it fails.

use cachelb_core::error::Result;
use cachelb_core::rng::Rng;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::options::{Configure, Policy, options};
use crate::rule::reason::Reason;
use crate::rule::view::View;
use crate::rule::{Properties, Rule};
use crate::rules::least_loaded::LeastLoaded;

options! {
    /// The inputs of a policy of the caller's own, and how its placements are remembered.
    pub struct CustomOptions {
        /// The tokens of the prompt that the workers hold.
        tokens: bool = false;
        /// The session, or the first tokens of the prompt.
        session: bool = false;
        /// How many of them.
        prefix_token_count: u32 = 256, (1, u64::from(u32::MAX));
    }
}

/// The policy, which has no class.
pub(crate) const POLICY: Policy = Policy::of::<CustomOptions>(About::placed("custom", "Custom"));

impl Configure for CustomOptions {
    fn ruled(&self, _setup: &Setup) -> Result<Ruled> {
        let key = Need::prefix(self.prefix_token_count);
        let need = Need {
            prefix: key.prefix.filter(|_| self.session),
            blocks: self.tokens,
            ..Need::LENGTH
        };
        let rule = Custom {
            tokens: self.tokens,
        };
        Ok(Ruled::new(rule, need))
    }
}

/// Settings of the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Custom {
    /// Whether the policy reads the overlap of the workers with the prompt.
    pub tokens: bool,
}

impl Rule for Custom {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        Choice {
            reason: Reason::PolicyError,
            ..LeastLoaded::default().choose(view, rng)
        }
    }

    fn properties(&self) -> Properties {
        Properties {
            records_placement: self.tokens,
            ..Properties::PLAIN
        }
    }
}

/// A key as a number that does not reveal its text. Routers that must agree share the seed.
#[must_use]
pub fn key_hash(key: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(key, seed)
}
