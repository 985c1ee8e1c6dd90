//! Outcome of a rule.

use cachelb_core::rng::Rng;

use crate::rule::gate::SpillGate;
use crate::rule::reason::Reason;
use crate::rule::view::{Candidate, View, cold_spread, lowest};

/// Outcome of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Choice {
    /// Index into the view's rows.
    pub row: usize,
    /// Why.
    pub reason: Reason,
    /// Whether the pick moves the worker to the newest end of the cold order.
    pub cold: bool,
    /// Milliseconds of prefill this request adds to the worker's queue, 0 for rules that do not estimate it.
    pub estimate_ms: f64,
    /// Whether the request must not be served at all; `reason` holds the cause.
    pub refused: bool,
}

impl Choice {
    pub(crate) fn cold(row: usize, reason: Reason) -> Self {
        Self {
            row,
            reason,
            cold: true,
            estimate_ms: 0.0,
            refused: false,
        }
    }

    /// The least loaded row, for a prompt without a full block.
    pub(crate) fn unmatchable(view: &View<'_>, rng: &mut Rng) -> Option<Self> {
        let reason = view.unmatchable()?;
        Some(Self::cold(cold_spread(view.rows, rng), reason))
    }

    /// The least loaded of the rows that hold most of the prompt, if `enough` accepts their blocks and tokens, unless the
    /// gate moves the request; else the least loaded row.
    pub(crate) fn by_holders(
        view: &View<'_>,
        rng: &mut Rng,
        gate: Option<SpillGate>,
        enough: impl FnOnce(u32, u64) -> bool,
    ) -> Self {
        if let Some(choice) = Self::unmatchable(view, rng) {
            return choice;
        }
        let best = view.best_overlap;
        if best == 0 || !enough(best, view.tokens_of(best.into())) {
            return Self::cold(cold_spread(view.rows, rng), Reason::Cold);
        }
        let holds = |row: &Candidate| row.overlap == best;
        let chosen = lowest(view.rows, rng, holds, Candidate::load).unwrap_or(0);
        let spilled = gate.and_then(|gate| gate.spill(view.rows, chosen, rng));
        Self::warm(chosen, Reason::Prefix).or_spilled(spilled)
    }

    /// Row `other`, to which the spill gate moves a request, else this choice.
    pub(crate) fn or_spilled(self, other: Option<usize>) -> Self {
        other.map_or(self, |row| Self::warm(row, Reason::Spill))
    }

    /// A row chosen outside of any rule.
    #[must_use]
    pub fn pinned(row: usize, reason: Reason) -> Self {
        Self {
            cold: reason == Reason::Cold,
            ..Self::warm(row, reason)
        }
    }

    pub(crate) fn warm(row: usize, reason: Reason) -> Self {
        Self {
            cold: false,
            ..Self::cold(row, reason)
        }
    }

    /// The row a cost preferred. The reason tells whether it holds any of the prompt, or a holder was passed over.
    pub(crate) fn by_cost(view: &View<'_>, row: usize) -> Self {
        match view.unmatchable() {
            Some(reason) => Self::cold(row, reason),
            None if view.rows[row].overlap > 0 => Self::warm(row, Reason::Prefix),
            None if view.best_overlap > 0 => Self::warm(row, Reason::Spill),
            None => Self::cold(row, Reason::Cold),
        }
    }
}
