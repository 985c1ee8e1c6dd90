//! The closed set of rules and what one returns.

use super::cache_aware::CacheAware;
use super::least_loaded::LeastLoaded;
use super::power_of_two::PowerOfTwo;
use super::random::Random;
use super::reason::Reason;
use super::rendezvous::Rendezvous;
use super::rng::Rng;
use super::round_robin::RoundRobin;
use super::view::View;

/// Outcome of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// Index into the view's rows.
    pub row: usize,
    /// Why.
    pub reason: Reason,
    /// Whether the pick moves the worker to the newest end of the cold order.
    pub cold: bool,
}

impl Choice {
    pub(super) fn cold(row: usize, reason: Reason) -> Self {
        Self {
            row,
            reason,
            cold: true,
        }
    }

    pub(super) fn warm(row: usize, reason: Reason) -> Self {
        Self {
            row,
            reason,
            cold: false,
        }
    }
}

/// One policy's rule with its settings and the little state it keeps.
#[derive(Debug, Clone)]
pub enum Rule {
    /// See [`CacheAware`].
    CacheAware(CacheAware),
    /// See [`LeastLoaded`].
    LeastLoaded(LeastLoaded),
    /// See [`PowerOfTwo`].
    PowerOfTwo(PowerOfTwo),
    /// See [`Rendezvous`].
    Rendezvous(Rendezvous),
    /// See [`RoundRobin`].
    RoundRobin(RoundRobin),
    /// See [`Random`].
    Random(Random),
}

impl Rule {
    /// Picks a row. Changes nothing but the generator.
    #[must_use]
    pub fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        match self {
            Self::CacheAware(rule) => rule.choose(view, rng),
            Self::LeastLoaded(rule) => rule.choose(view, rng),
            Self::PowerOfTwo(rule) => rule.choose(view, rng),
            Self::Rendezvous(rule) => rule.choose(view, rng),
            Self::RoundRobin(rule) => rule.choose(view, rng),
            Self::Random(Random) => Random::choose(view, rng),
        }
    }

    /// Tells the rule that `choice` was taken.
    pub(super) fn settle(&mut self, view: &View<'_>, choice: Choice) {
        if let Self::RoundRobin(rule) = self {
            rule.settle(view, choice.row);
        }
    }

    /// Tells the rule that the worker registered as `order` is gone.
    pub(super) fn forget(&mut self, order: u64) {
        if let Self::RoundRobin(rule) = self {
            rule.forget(order);
        }
    }

    /// Whether placements are recorded in a block index.
    #[must_use]
    pub fn records_placement(&self) -> bool {
        matches!(self, Self::CacheAware(_))
    }
}
