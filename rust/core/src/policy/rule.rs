//! What a rule is and what one returns.

use std::fmt::Debug;

use crate::error::Result;
use crate::ids::Millis;
use crate::learned::LearnedStats;
use crate::load::{BookingId, Known};

use super::credits::Credits;
use super::reason::Reason;
use super::rng::Rng;
use super::routes::{Claim, Told};
use super::view::View;

/// Outcome of a rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Index into the view's rows.
    pub row: usize,
    /// Why.
    pub reason: Reason,
    /// Whether the pick moves the worker to the newest end of the cold order.
    pub cold: bool,
    /// Milliseconds of prefill this request adds to the worker's queue, 0 for rules that do not estimate it.
    pub estimate_ms: f64,
    /// Whether the request must not be served at all; the reason says why.
    pub refused: bool,
    /// Row whose worker holds blocks that the picked one should fetch.
    pub transfer_from: Option<usize>,
}

impl Choice {
    pub(super) fn cold(row: usize, reason: Reason) -> Self {
        Self {
            row,
            reason,
            cold: true,
            estimate_ms: 0.0,
            refused: false,
            transfer_from: None,
        }
    }

    /// A row chosen outside of any rule.
    pub(crate) fn pinned(row: usize, reason: Reason) -> Self {
        Self {
            cold: reason == Reason::Cold,
            ..Self::warm(row, reason)
        }
    }

    pub(super) fn warm(row: usize, reason: Reason) -> Self {
        Self {
            cold: false,
            ..Self::cold(row, reason)
        }
    }

    /// The row a cost preferred. The reason tells whether it holds any of the prompt, or whoever does was passed over.
    pub(super) fn by_cost(view: &View<'_>, row: usize) -> Self {
        match view.total_blocks() {
            None => Self::cold(row, Reason::NoKey),
            Some(0) => Self::cold(row, Reason::ShortPrompt),
            Some(_) if view.rows[row].overlap > 0 => Self::warm(row, Reason::Prefix),
            Some(_) if view.rows.iter().any(|row| row.overlap > 0) => {
                Self::warm(row, Reason::Spill)
            }
            Some(_) => Self::cold(row, Reason::Cold),
        }
    }
}

/// How a booking ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The worker served it, or nobody said otherwise.
    Served,
    /// It failed or was given up. Without a first token, its placement is taken back.
    Failed,
}

/// One policy's rule: its settings and the little state it keeps.
///
/// `choose` decides, and changes nothing but the generator; the other calls tell what came of it.
pub trait Rule: Debug + Send {
    /// Picks a row. The view has at least one.
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice;

    /// `choice` was taken and booked as `booking`.
    fn settle(&mut self, _view: &View<'_>, _choice: Choice, _booking: BookingId) {}

    /// As [`Rule::settle`], for a rule that decided beside the one whose pick, row `served`, was booked.
    fn settle_beside(
        &mut self,
        view: &View<'_>,
        choice: Choice,
        _served: usize,
        booking: BookingId,
    ) {
        self.settle(view, choice, booking);
    }

    /// The worker of `booking` answered: its first token came at `first_token`, or without anybody having told of one
    /// the request was served.
    fn proven(&mut self, _booking: BookingId, _first_token: Option<Millis>) {}

    /// `booking` was served to its end, `output_tokens` of them if anybody counted. It closes next.
    fn served(&mut self, _booking: BookingId, _output_tokens: Option<u64>, _now: Millis) {}

    /// `booking` is closed.
    fn ended(&mut self, _booking: BookingId, _ended: Ended) {}

    /// Every booking is closed, and nobody knows how: the child of a fork starts over.
    fn ended_all(&mut self) {}

    /// The worker registered as `order` is there, or is described anew.
    fn describe(&mut self, _order: u64, _gpu: Option<&str>) {}

    /// The worker registered as `order` is gone.
    fn forget(&mut self, _order: u64) {}

    /// The worker registered as `order` is there, and its cache is empty.
    fn cache_lost(&mut self, _order: u64) {}

    /// The session called `key` is over. Returns whether the rule had bound it.
    fn finish_session(&mut self, _key: &[u8]) -> bool {
        false
    }

    /// What the rule ranked row `row` by, for explanations; the unit is the rule's own. `None` if it has no number.
    fn score(&self, _view: &View<'_>, _row: usize) -> Option<f64> {
        None
    }

    /// [`Rule::score`] of every row. One call for all of them, so that what they have in common is computed once.
    fn scores(&self, view: &View<'_>) -> Vec<Known> {
        let score = |row| Known::from(self.score(view, row));
        (0..view.rows.len()).map(score).collect()
    }

    /// Whether scores are cheap enough to keep those of every decision; if not, only an explanation asks for them.
    fn scored_in_passing(&self) -> bool {
        true
    }

    /// Whether a higher [`Rule::score`] is better.
    fn higher_is_better(&self) -> bool {
        false
    }

    /// Whether placements are recorded in a block index.
    fn records_placement(&self) -> bool {
        false
    }

    /// What blocks outside device memory are worth to the rule.
    fn credits(&self) -> Credits {
        Credits::DEFAULT
    }

    /// How long a placement is believed on a worker whose events would tell, until one confirms it; 0 records nothing
    /// there. `None` believes it as long as any other.
    fn placement_ttl_ms(&self) -> Option<u64> {
        None
    }

    /// Whether the rule is there to go by what engines say, so that a pick made by anything else must say so.
    fn goes_by_events(&self) -> bool {
        false
    }

    /// Prefixes that the rule itself remembers, beside any index.
    fn routes(&self) -> usize {
        0
    }

    /// How many of them other routers told of.
    fn remote_routes(&self) -> usize {
        0
    }

    /// Calls `each` with the routes that `booking` will teach when it is answered.
    fn teaches(&self, _booking: BookingId, _now: Millis, _each: &mut dyn FnMut(Claim)) {}

    /// Calls `each` with the routes behind `told`, at most `most` of them. Returns how far it came, `None` at the end.
    fn tell_routes(
        &self,
        _told: Told,
        _most: usize,
        _now: Millis,
        _each: &mut dyn FnMut(Claim),
    ) -> Option<Told> {
        None
    }

    /// Another router learned a route. Returns whether it was taken in, `None` from a rule that learns none.
    fn hear_route(&mut self, _claim: Claim, _now: Millis) -> Option<bool> {
        None
    }

    /// Whether the rule keeps the prompts themselves, so that others cannot be told what it knows.
    fn keeps_prompts(&self) -> bool {
        false
    }

    /// What a rule that learns a model tells of it.
    fn learned(&self) -> Option<LearnedStats> {
        None
    }

    /// The model of a rule that learned one, to be loaded by another.
    fn model(&self) -> Option<Vec<u8>> {
        None
    }

    /// Heap bytes of what can grow.
    fn memory_bytes(&self) -> usize {
        0
    }

    /// Recounts what is counted.
    ///
    /// # Errors
    /// [`crate::Error::Invariant`] naming the first disagreement.
    fn validate(&self) -> Result<()> {
        Ok(())
    }

    /// A rule of the same settings that remembers nothing.
    fn fresh(&self) -> Box<dyn Rule>;
}
