//! Longest cached prefix first, load among its holders second, with a gate that grows hot prefixes.
//!
//! ```text
//! no tokens, or no full block             -> cold spread (no-key, short-prompt)
//! best overlap below both thresholds      -> cold spread (cold)
//! else the least loaded of the best holders -> prefix, or spill if it is over the gate
//! ```

mod options;

use cachelb_core::rng::Rng;

pub(crate) use self::options::POLICY;
use crate::rule::choice::Choice;
use crate::rule::gate::SpillGate;
use crate::rule::options::{FRACTION, Kind, Value};
use crate::rule::values::field;
use crate::rule::view::View;
use crate::rule::{Properties, Rule};

/// A fraction kept as decimal parts per `DENOMINATOR`, so that 3 of 10 blocks reach 0.3 exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold(u64);

field!(Threshold, |_| Kind::Number(FRACTION), Value::Number(v) => Some(Self::new(v)), |v| Value::Number(v.fraction()));

impl Threshold {
    const DENOMINATOR: u64 = 1_000_000_000;

    /// The threshold nearest to `fraction`, which must lie in 0 to 1.
    #[must_use]
    pub fn new(fraction: f64) -> Self {
        #[expect(clippy::cast_sign_loss, reason = "clamped to 0 or more")]
        let parts = (fraction.clamp(0.0, 1.0) * Self::DENOMINATOR as f64).round() as u64;
        Self(parts)
    }

    /// The fraction.
    #[must_use]
    pub fn fraction(self) -> f64 {
        self.0 as f64 / Self::DENOMINATOR as f64
    }

    /// Whether `hits` of `total` reach it, inclusively.
    #[must_use]
    pub fn reached(self, hits: u32, total: u32) -> bool {
        u128::from(hits) * u128::from(Self::DENOMINATOR) >= u128::from(self.0) * u128::from(total)
    }

    /// Whether `hits` of `total` are more than it.
    #[must_use]
    pub fn exceeded(self, hits: u64, total: u64) -> bool {
        u128::from(hits) * u128::from(Self::DENOMINATOR) > u128::from(self.0) * u128::from(total)
    }
}

/// Settings of the rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheAware {
    /// Share of the prompt's blocks that makes a hit.
    pub cache_threshold: Threshold,
    /// Tokens that make a hit whatever their share.
    pub min_matched_tokens: Option<u64>,
    /// When a holder is too loaded.
    pub gate: SpillGate,
}

impl Rule for CacheAware {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let total = view.total_blocks().unwrap_or(0);
        Choice::by_holders(view, rng, Some(self.gate), |blocks, tokens| {
            self.cache_threshold.reached(blocks, total)
                || self.min_matched_tokens.is_some_and(|m| tokens >= m)
        })
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        Some(f64::from(view.rows[row].overlap))
    }

    fn properties(&self) -> Properties {
        Properties::CACHED
    }
}
