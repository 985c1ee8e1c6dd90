//! A draw proportional to weight.

use cachelb_core::error::Result;
use cachelb_core::rng::Rng;

use crate::rule::Rule;
use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::options::{Configure, Policy, options};
use crate::rule::reason::Reason;
use crate::rule::view::{View, draw, weights_are_equal};

options! {
    /// A worker drawn at random, in proportion to weight (`set_weight`).
    ///
    /// Example:
    ///     >>> policy = Random(seed=1)
    ///     >>> policy.select_worker(["gpu0", "gpu1"], by_load=True).reason
    ///     'random'
    pub struct RandomOptions {
    }
}

/// The policy.
pub(crate) const POLICY: Policy = Policy::of::<RandomOptions>(About::plain("random", "Random"));

impl Configure for RandomOptions {
    fn ruled(&self, _setup: &Setup) -> Result<Ruled> {
        Ok(Ruled::new(Random, Need::LENGTH))
    }
}

/// The rule; it has no settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Random;

impl Rule for Random {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let row = if weights_are_equal(view.rows) {
            rng.below(view.rows.len())
        } else {
            draw(view.rows, rng, |row| row.weight)
        };
        Choice::warm(row, Reason::Random)
    }
}
