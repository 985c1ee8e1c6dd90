//! Longest cached prefix first, load among its holders second, with a gate that grows hot prefixes.
//!
//! ```text
//! no tokens, or no full block             -> cold spread (no-key, short-prompt)
//! KV use out of balance                   -> least loaded (imbalance)
//! best overlap below both thresholds      -> cold spread (cold)
//! else best holder by score, then load    -> prefix, or spill if it is over the gate
//! ```

mod options;

pub(super) use self::options::POLICY;
use super::choice::Choice;
use super::gate::SpillGate;
use super::reason::Reason;
use super::rule::{Properties, Rule};
use super::view::{Candidate, View, cold_spread, draw, lowest};
use crate::rng::Rng;

/// A fraction kept as decimal parts per `DENOMINATOR`, so that 3 of 10 blocks reach 0.3 exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold(u64);

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
    /// Blocks a holder may be behind the best one.
    pub holder_slack: u32,
    /// How fast a backlog devalues an overlap: `score / (1 + decay * excess)`.
    pub overlap_decay: f64,
    /// Softmax temperature over the holders' scores; 0 takes the best.
    pub temperature: f64,
    /// Spread of reported KV use above which load decides; 1 turns it off.
    pub kv_spread: f64,
    /// Reported KV use above which load decides; 1 turns it off.
    pub kv_ceiling: f64,
    /// When a holder is too loaded.
    pub gate: SpillGate,
}

impl Rule for CacheAware {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        if let Some(choice) = Choice::unmatchable(view, rng) {
            return choice;
        }
        let total = view.total_blocks().unwrap_or(0);
        if self.kv_out_of_balance(view) {
            return Choice::cold(cold_spread(view.rows, rng), Reason::Imbalance);
        }
        let best = view.rows.iter().map(|row| row.overlap).max().unwrap_or(0);
        let tokens = u64::from(best) * u64::from(view.block_size);
        let enough = self.cache_threshold.reached(best, total)
            || self.min_matched_tokens.is_some_and(|m| tokens >= m);
        if best == 0 || !enough {
            return Choice::cold(cold_spread(view.rows, rng), Reason::Cold);
        }
        let chosen = self.holder(view, best, rng);
        let spilled = self.gate.spill(view.rows, chosen, rng);
        Choice::warm(chosen, Reason::Prefix).or_spilled(spilled)
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        Some(self.effective(view, &view.rows[row], self.least_queued(view, 0)))
    }

    fn properties(&self) -> Properties {
        Properties::CACHED
    }

    fn fresh(&self) -> Box<dyn Rule> {
        Box::new(*self)
    }
}

impl CacheAware {
    /// Reports only: a worker that never reported is neither full nor empty.
    fn kv_out_of_balance(&self, view: &View<'_>) -> bool {
        if self.kv_spread >= 1.0 && self.kv_ceiling >= 1.0 {
            return false;
        }
        let known = || {
            let reports = view.rows.iter().map(|row| view.report(row));
            reports.filter_map(|report| report.kv_usage.get())
        };
        let (low, high) = (
            known().fold(f64::INFINITY, f64::min),
            known().fold(f64::NEG_INFINITY, f64::max),
        );
        (self.kv_spread < 1.0 && high - low > self.kv_spread)
            || (self.kv_ceiling < 1.0 && high > self.kv_ceiling)
    }

    /// The least backlog any row of at least `floor` blocks reported.
    fn least_queued(&self, view: &View<'_>, floor: u32) -> f64 {
        if self.overlap_decay <= 0.0 {
            return 0.0;
        }
        let holders = view.rows.iter().filter(|row| row.overlap >= floor);
        holders
            .filter_map(|row| view.report(row).queued_tokens.get())
            .fold(f64::INFINITY, f64::min)
    }

    /// Overlap devalued by the backlog beyond `least_queued`, in units of the request.
    fn effective(&self, view: &View<'_>, row: &Candidate, least_queued: f64) -> f64 {
        let overlap = f64::from(row.overlap);
        if self.overlap_decay <= 0.0 {
            return overlap;
        }
        let blocks = f64::from(view.total_blocks().unwrap_or(1).max(1));
        let request_tokens = blocks * f64::from(view.block_size);
        view.report(row)
            .queued_tokens
            .get()
            .map_or(overlap, |queued| {
                overlap / (1.0 + self.overlap_decay * (queued - least_queued) / request_tokens)
            })
    }

    /// The best holder: highest effective score, then lowest load; or a softmax draw.
    fn holder(&self, view: &View<'_>, best: u32, rng: &mut Rng) -> usize {
        let floor = best.saturating_sub(self.holder_slack).max(1);
        let holds = |row: &Candidate| row.overlap >= floor;
        let least_queued = self.least_queued(view, floor);
        let score = |row: &Candidate| self.effective(view, row, least_queued);
        if self.temperature > 0.0 {
            let holders = view.rows.iter().filter(|row| holds(row));
            let (low, high) = holders
                .map(score)
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), s| {
                    (low.min(s), high.max(s))
                });
            let spread = if high > low { high - low } else { 1.0 };
            // At most exp(0): shifted by the maximum, so no temperature overflows.
            return draw(view.rows, rng, |row| {
                if holds(row) {
                    ((score(row) - high) / spread / self.temperature).exp()
                } else {
                    0.0
                }
            });
        }
        lowest(view.rows, rng, holds, |row| (-score(row), row.load())).unwrap_or(0)
    }
}
