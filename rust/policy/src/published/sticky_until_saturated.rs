//! Stay with the workers that hold the prompt until they are saturated: llm-d's prefix affinity filter.
//!
//! ```text
//! sticky = rows that hold `affinity_threshold` of the prompt's blocks, or `min_matched_tokens` of its tokens
//! none, or a random draw below `exploration_probability`              -> all take part (cold, explore)
//! the best sticky one is `max_ttft_penalty_ms` later than the best other -> all take part (sticky-broken)
//! else only the sticky ones take part (sticky)
//! among those that take part: fewest prompt tokens waiting, then lowest load
//! ```
//!
//! Waiting tokens do not show decoding, so an overloaded winner is left by the spill gate too.

use cachelb_core::error::Result;
use cachelb_core::rng::Rng;

use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::gate::SpillGate;
use crate::rule::options::{Configure, FRACTION, NOT_NEGATIVE, Policy, options};
use crate::rule::reason::Reason;
use crate::rule::values::Peak;
use crate::rule::view::{Candidate, View, cold_spread, lowest};
use crate::rule::{Properties, Rule};
use crate::rules::cache_aware::Threshold;

options! {
    /// The workers that hold most of the prompt, as long as they answer soon enough; llm-d's affinity filter.
    ///
    /// Only workers that hold `affinity_threshold` of the prompt take part (`sticky`), unless the first token would come
    /// `max_ttft_penalty_ms` later there than elsewhere (`sticky-broken`). The one of those that take part with the
    /// fewest prompt tokens waiting is picked.
    ///
    /// The penalty is only as good as the throughput: calibrate `peak_prefill_throughput`, or let it be observed.
    ///
    /// Example:
    ///     >>> policy = StickyUntilSaturated(seed=1)
    ///     >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
    ///     >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
    ///     >>> first.reason, again.reason, again.worker == first.worker
    ///     ('cold', 'sticky', True)
    pub struct StickyUntilSaturatedOptions {
        /// Share of the prompt's blocks that a worker must hold; 0 turns the filter off.
        affinity_threshold: Threshold = Threshold::new(0.8);
        /// Cached tokens that suffice whatever their share, for long prompts with a shared head.
        min_matched_tokens: Option<u64> = None, (1, u64::MAX);
        /// How often every worker takes part all the same (`explore`).
        exploration_probability: f64 = 0.0, FRACTION;
        /// How much later than elsewhere the first token may come; 0 always stays.
        max_ttft_penalty_ms: f64 = 18_000.0, NOT_NEGATIVE;
        /// Prompt tokens per second of every worker; "observed" uses the measured rate of each. The default is a 32B
        /// model on two H100.
        peak_prefill_throughput: Peak = Peak::Fixed(15928.0);
        /// Whether a holder with far more requests than the mean is left too (`sticky-broken`); False is llm-d's rule.
        gate: bool = true;
    }
}

/// The policy.
pub(crate) const POLICY: Policy = Policy::of::<StickyUntilSaturatedOptions>(About::placed(
    "sticky-until-saturated",
    "StickyUntilSaturated",
));

impl Configure for StickyUntilSaturatedOptions {
    fn ruled(&self, setup: &Setup) -> Result<Ruled> {
        let rule = StickyUntilSaturated {
            options: self.clone(),
            gate: self.gate.then(|| setup.default_gate()),
        };
        Ok(Ruled::new(rule, Need::BLOCKS))
    }
}

/// The rule.
#[derive(Debug, Clone)]
pub struct StickyUntilSaturated {
    /// Its options but for the gate.
    pub options: StickyUntilSaturatedOptions,
    /// When a worker is too loaded; `None` never asks, as the peer does.
    pub gate: Option<SpillGate>,
}

impl StickyUntilSaturated {
    /// Tokens per second of a 32B model on two H100, which llm-d assumes.
    pub const PEAK_PREFILL_THROUGHPUT: f64 = 15_928.0;

    fn is_sticky(&self, view: &View<'_>, row: &Candidate) -> bool {
        let total = view.total_blocks().unwrap_or(0);
        let tokens = view.tokens_of(row.overlap.into());
        row.overlap > 0
            && (self.options.affinity_threshold.reached(row.overlap, total)
                || self
                    .options
                    .min_matched_tokens
                    .is_some_and(|least| tokens >= least))
    }

    fn ttft_ms(&self, view: &View<'_>, row: &Candidate) -> f64 {
        let tps = match self.options.peak_prefill_throughput {
            Peak::Fixed(tps) => tps,
            Peak::Observed => {
                let seen = view.load(row).observed_prefill_tps.get();
                seen.filter(|tps| *tps > 0.0)
                    .unwrap_or(Self::PEAK_PREFILL_THROUGHPUT)
            }
        };
        row.pending_prefill_tokens as f64 / row.weight / tps * 1000.0
    }

    /// Whether the sticky workers keep a request waiting for longer than it is worth.
    fn is_saturated(&self, view: &View<'_>) -> bool {
        if self.options.max_ttft_penalty_ms <= 0.0 {
            return false;
        }
        let earliest = |sticky: bool| {
            let rows = view.rows.iter();
            rows.filter(|row| self.is_sticky(view, row) == sticky)
                .map(|row| self.ttft_ms(view, row))
                .fold(f64::INFINITY, f64::min)
        };
        earliest(true) - earliest(false) > self.options.max_ttft_penalty_ms
    }
}

impl Rule for StickyUntilSaturated {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let everybody = |rng: &mut Rng| {
            let key = |row: &Candidate| {
                let tokens = row.pending_prefill_tokens as f64 / row.weight;
                (tokens, row.load(), row.last_cold_pick)
            };
            lowest(view.rows, rng, |_| true, key).unwrap_or(0)
        };
        match view.total_blocks() {
            None => return Choice::cold(cold_spread(view.rows, rng), Reason::NoKey),
            Some(0) => return Choice::cold(everybody(rng), Reason::ShortPrompt),
            Some(_) => {}
        }
        let is_off = self.options.affinity_threshold == Threshold::new(0.0);
        let sticky = |row: &Candidate| self.is_sticky(view, row);
        if is_off || !view.rows.iter().any(sticky) {
            return Choice::cold(everybody(rng), Reason::Cold);
        }
        if self.options.exploration_probability > 0.0
            && rng.unit() < self.options.exploration_probability
        {
            return Choice::warm(everybody(rng), Reason::Explore);
        }
        if self.is_saturated(view) {
            return Choice::warm(everybody(rng), Reason::StickyBroken);
        }
        let key = |row: &Candidate| (row.pending_prefill_tokens as f64 / row.weight, row.load());
        let chosen = lowest(view.rows, rng, sticky, key).unwrap_or(0);
        match self
            .gate
            .and_then(|gate| gate.spill(view.rows, chosen, rng))
        {
            Some(row) => Choice::warm(row, Reason::StickyBroken),
            None => Choice::warm(chosen, Reason::Sticky),
        }
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        Some(self.ttft_ms(view, &view.rows[row]))
    }

    fn properties(&self) -> Properties {
        Properties::PLACED
    }
}

#[cfg(test)]
#[path = "tests/sticky_until_saturated.rs"]
mod tests;
