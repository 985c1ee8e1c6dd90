//! What a rule is.

use std::fmt::Debug;

use crate::error::Result;
use crate::ids::Millis;
use crate::learned::LearnedStats;
use crate::load::{BookingId, Known};

use super::choice::Choice;
use super::credits::Credits;
use super::pair::{PairChoice, Pairing};
use super::routes::{Claim, Told};
use super::view::View;
use crate::rng::Rng;

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
///
/// A rule that stands around another one names it in [`Rule::inner`] and [`Rule::inner_mut`]: every method it leaves out is
/// then the other's. A method that it does have must pass the call on itself where the other keeps state.
pub trait Rule: Debug + Send {
    /// The rule that this one stands around, if any.
    fn inner(&self) -> Option<&dyn Rule> {
        None
    }

    /// The same, to change it.
    fn inner_mut(&mut self) -> Option<&mut dyn Rule> {
        None
    }

    /// Picks a row. The view has at least one.
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice;

    /// Whether the rule has [`Rule::choose_pair`], so that it decides both halves of a pair at once.
    fn weighs_pairs(&self) -> bool {
        false
    }

    /// Picks a worker for each half of a request, or one for both. `None` if no worker may take it, and from a rule that
    /// decides halves one by one. A rule around another one decides for itself whether it does.
    fn choose_pair(&self, pairing: &Pairing<'_>, rng: &mut Rng) -> Option<PairChoice> {
        let _ = (pairing, rng);
        None
    }

    /// `choice` was taken and booked as `booking`. Rules have [`Rule::settled`] instead.
    fn settle(&mut self, view: &View<'_>, choice: Choice, booking: BookingId) {
        self.settled(view, choice, choice.row, booking);
    }

    /// The rule decided `choice`, and row `served` was booked as `booking`: another row where it decided beside the rule
    /// that picks.
    fn settled(&mut self, view: &View<'_>, choice: Choice, served: usize, booking: BookingId) {
        if let Some(inner) = self.inner_mut() {
            inner.settled(view, choice, served, booking);
        }
    }

    /// The worker of `booking` answered: its first token came at `first_token`, or without anybody having told of one
    /// the request was served.
    fn proven(&mut self, booking: BookingId, first_token: Option<Millis>) {
        if let Some(inner) = self.inner_mut() {
            inner.proven(booking, first_token);
        }
    }

    /// `booking` was served to its end, `output_tokens` of them if anybody counted. It closes next.
    fn served(&mut self, booking: BookingId, output_tokens: Option<u64>, now: Millis) {
        if let Some(inner) = self.inner_mut() {
            inner.served(booking, output_tokens, now);
        }
    }

    /// `booking` is closed.
    fn ended(&mut self, booking: BookingId, ended: Ended) {
        if let Some(inner) = self.inner_mut() {
            inner.ended(booking, ended);
        }
    }

    /// Every booking is closed, and nobody knows how: the child of a fork starts over.
    fn ended_all(&mut self) {
        if let Some(inner) = self.inner_mut() {
            inner.ended_all();
        }
    }

    /// The worker registered as `order` is there, or is described anew.
    fn describe(&mut self, order: u64, gpu: Option<&str>) {
        if let Some(inner) = self.inner_mut() {
            inner.describe(order, gpu);
        }
    }

    /// The worker registered as `order` is gone.
    fn forget(&mut self, order: u64) {
        if let Some(inner) = self.inner_mut() {
            inner.forget(order);
        }
    }

    /// The worker registered as `order` is there, and its cache is empty.
    fn cache_lost(&mut self, order: u64) {
        if let Some(inner) = self.inner_mut() {
            inner.cache_lost(order);
        }
    }

    /// The session called `key` is over. Returns whether the rule had bound it.
    fn finish_session(&mut self, key: &[u8]) -> bool {
        self.inner_mut()
            .is_some_and(|inner| inner.finish_session(key))
    }

    /// What the rule ranked row `row` by, for explanations; the unit is the rule's own. `None` if it has no number.
    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        self.inner()?.score(view, row)
    }

    /// [`Rule::score`] of every row. One call for all of them, so that what they have in common is computed once.
    fn scores(&self, view: &View<'_>) -> Vec<Known> {
        match self.inner() {
            Some(inner) => inner.scores(view),
            None => each_score(self, view),
        }
    }

    /// What the score of every row is made of, by name, for explanations; empty if the rule does not take scores apart.
    fn terms(&self, view: &View<'_>) -> Vec<Vec<(&'static str, f64)>> {
        self.inner()
            .map_or_else(Vec::new, |inner| inner.terms(view))
    }

    /// Whether scores are cheap enough to keep those of every decision; if not, only an explanation asks for them.
    fn scored_in_passing(&self) -> bool {
        self.inner().is_none_or(Rule::scored_in_passing)
    }

    /// Whether a higher [`Rule::score`] is better.
    fn higher_is_better(&self) -> bool {
        self.inner().is_some_and(Rule::higher_is_better)
    }

    /// Whether placements are recorded in a block index.
    fn records_placement(&self) -> bool {
        self.inner().is_some_and(Rule::records_placement)
    }

    /// Whether blocks that requests in flight share are to be counted once: see [`View::active_blocks`].
    fn counts_active_blocks(&self) -> bool {
        self.inner().is_some_and(Rule::counts_active_blocks)
    }

    /// What blocks outside device memory are worth to the rule.
    fn credits(&self) -> Credits {
        self.inner().map_or(Credits::DEFAULT, Rule::credits)
    }

    /// How long a placement is believed on a worker whose events would tell, until one confirms it; 0 records nothing
    /// there. `None` believes it as long as any other.
    fn placement_ttl_ms(&self) -> Option<u64> {
        self.inner()?.placement_ttl_ms()
    }

    /// Whether the rule is there to go by what engines say, so that a pick made by anything else must say so.
    fn goes_by_events(&self) -> bool {
        self.inner().is_some_and(Rule::goes_by_events)
    }

    /// Prefixes that the rule itself remembers, beside any index.
    fn routes(&self) -> usize {
        self.inner().map_or(0, Rule::routes)
    }

    /// How many of them other routers told of.
    fn remote_routes(&self) -> usize {
        self.inner().map_or(0, Rule::remote_routes)
    }

    /// Calls `each` with the routes that `booking` will teach when it is answered.
    fn teaches(&self, booking: BookingId, now: Millis, each: &mut dyn FnMut(Claim)) {
        if let Some(inner) = self.inner() {
            inner.teaches(booking, now, each);
        }
    }

    /// Calls `each` with the routes behind `told`, at most `most` of them. Returns how far it came, `None` at the end.
    fn tell_routes(
        &self,
        told: Told,
        most: usize,
        now: Millis,
        each: &mut dyn FnMut(Claim),
    ) -> Option<Told> {
        self.inner()?.tell_routes(told, most, now, each)
    }

    /// Another router learned a route. Returns whether it was taken in, `None` from a rule that learns none.
    fn hear_route(&mut self, claim: Claim, now: Millis) -> Option<bool> {
        self.inner_mut()?.hear_route(claim, now)
    }

    /// Whether the rule keeps the prompts themselves, so that others cannot be told what it knows.
    fn keeps_prompts(&self) -> bool {
        self.inner().is_some_and(Rule::keeps_prompts)
    }

    /// What a rule that learns a model tells of it.
    fn learned(&self) -> Option<LearnedStats> {
        self.inner()?.learned()
    }

    /// The model of a rule that learned one, to be loaded by another.
    fn model(&self) -> Option<Vec<u8>> {
        self.inner()?.model()
    }

    /// Heap bytes of what can grow.
    fn memory_bytes(&self) -> usize {
        self.inner().map_or(0, Rule::memory_bytes)
    }

    /// Recounts what is counted.
    ///
    /// # Errors
    /// [`crate::Error::Invariant`] naming the first disagreement.
    fn validate(&self) -> Result<()> {
        self.inner().map_or(Ok(()), Rule::validate)
    }

    /// A rule of the same settings that remembers nothing.
    fn fresh(&self) -> Box<dyn Rule>;
}

/// [`Rule::score`] row by row.
pub(super) fn each_score<R: Rule + ?Sized>(rule: &R, view: &View<'_>) -> Vec<Known> {
    let score = |row| Known::from(rule.score(view, row));
    (0..view.rows.len()).map(score).collect()
}
