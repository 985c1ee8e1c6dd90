//! The trait of selection rules, and their properties.

pub mod about;
pub mod choice;
pub mod credits;
pub mod gate;
pub mod length;
pub mod memo;
pub mod options;
pub mod pair;
pub mod parts;
pub mod placements;
pub mod reason;
pub mod routes;
pub mod tiers;
pub mod values;
pub mod view;

use std::fmt::Debug;

use cachelb_core::error::Result;
use cachelb_core::ids::Millis;
use cachelb_core::load::Known;
use cachelb_core::rng::Rng;
#[cfg(feature = "learned")]
use cachelb_learned::LearnedStats;

use crate::rule::choice::Choice;
use crate::rule::credits::Credits;
use crate::rule::memo::{Memory, Memos};
use crate::rule::pair::{PairChoice, Pairing};
use crate::rule::parts::State;
use crate::rule::routes::{Claim, Rank, RoutePosition, Routes};
use crate::rule::tiers::Loads;
use crate::rule::view::View;

/// Properties of a rule, the same for all requests.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent answers, read by name"
)]
pub struct Properties {
    /// Placements are recorded in a block index.
    pub records_placement: bool,
    /// Blocks that requests in flight share are to be counted once: see [`View::active_blocks`].
    pub counts_active_blocks: bool,
    /// The rule relies on events of engines, so that a pick made without them must carry its own reason.
    pub goes_by_events: bool,
    /// The rule keeps the prompts themselves, so that its state cannot be shared.
    pub keeps_prompts: bool,
    /// A higher [`Rule::score`] is better.
    pub higher_is_better: bool,
    /// Scores are cheap enough to keep those of every decision; if not, only an explanation asks for them.
    pub scored_in_passing: bool,
    /// The rule has [`Rule::choose_pair`]. A rule around another one decides pairs half by half.
    pub weighs_pairs: bool,
    /// Credits of blocks outside device memory.
    pub credits: Credits,
    /// The time to load such blocks, for a rule that credits them by that.
    pub loads: Option<Loads>,
    /// The rule reads [`View::copies`].
    pub weighs_copies: bool,
    /// How long a placement is trusted on a worker with KV events until one confirms it; 0 records nothing there. `None`
    /// trusts it as long as any other.
    pub placement_ttl_ms: Option<u64>,
}

impl Properties {
    /// A rule of loads or keys.
    pub const PLAIN: Self = Self {
        records_placement: false,
        counts_active_blocks: false,
        goes_by_events: false,
        keeps_prompts: false,
        higher_is_better: false,
        scored_in_passing: true,
        weighs_pairs: false,
        credits: Credits::DEFAULT,
        loads: None,
        weighs_copies: false,
        placement_ttl_ms: None,
    };
    /// A rule of placements that ranks by cost.
    pub const PLACED: Self = Self {
        records_placement: true,
        ..Self::PLAIN
    };
    /// A rule of placements that ranks by cached tokens.
    pub const CACHED: Self = Self {
        higher_is_better: true,
        ..Self::PLACED
    };
}

/// One policy's rule: its settings and the little state it keeps.
///
/// `choose` decides, and changes nothing but the generator; the other calls report the outcome. A rule that wraps another
/// one passes on `choose`, `settled` and the scores itself; calls of [`State`] and `Routes` reach all rules.
pub trait Rule: Debug + Send {
    /// Picks a row. The view has at least one.
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice;

    /// The rule decided `choice`, and row `served` was booked: another row where it decided beside the rule that picks.
    /// The state that it keeps for the booking goes to `memos`.
    fn settled(&mut self, view: &View<'_>, choice: Choice, served: usize, memos: &mut Memos<'_>) {
        let _ = (view, choice, served, memos);
    }

    /// The number that row `row` was ranked by, for explanations; the unit is the rule's own. `None` if there is none.
    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        let _ = (view, row);
        None
    }

    /// [`Rule::score`] of every row. One call for all of them, so that common terms are computed once.
    fn scores(&self, view: &View<'_>) -> Vec<Known> {
        each_score(self, view)
    }

    /// The properties of the rule, which never change.
    fn properties(&self) -> Properties {
        Properties::PLAIN
    }

    /// The terms of every row's score, by name. Empty from a rule that does not take scores apart.
    fn terms(&self, view: &View<'_>) -> Vec<Vec<(&'static str, f64)>> {
        let _ = view;
        Vec::new()
    }

    /// Picks a worker for each half of a request, or one for both. `None` if no worker may take it, and from a rule that
    /// decides halves one by one.
    fn choose_pair(&self, pairing: &Pairing<'_>, rng: &mut Rng) -> Option<PairChoice> {
        let _ = (pairing, rng);
        None
    }

    /// The rule that this one wraps.
    fn inner(&self) -> Option<&dyn Rule> {
        None
    }

    /// As above, to be changed.
    fn inner_mut(&mut self) -> Option<&mut Box<dyn Rule>> {
        None
    }

    /// The rule's own state, without that of a wrapped one.
    fn state(&self) -> Option<&dyn State> {
        None
    }

    /// As above, to be changed.
    fn state_mut(&mut self) -> Option<&mut dyn State> {
        None
    }

    /// The routes of the rule, or of the one that it wraps.
    fn routed(&self) -> Option<&Routes> {
        self.inner()?.routed()
    }

    /// As above, to be changed.
    fn routed_mut(&mut self) -> Option<&mut Routes> {
        self.inner_mut()?.routed_mut()
    }
}

/// [`Rule::score`] row by row.
pub(super) fn each_score<R: Rule + ?Sized>(rule: &R, view: &View<'_>) -> Vec<Known> {
    let score = |row| Known::from(rule.score(view, row));
    (0..view.rows.len()).map(score).collect()
}

/// Calls of the state and the routes of a rule and of those that it wraps, whichever of them there are.
impl dyn Rule + '_ {
    /// The state of the rule that `depth` others are around.
    pub fn state_at(&mut self, depth: u32) -> Option<&mut dyn State> {
        match depth.checked_sub(1) {
            None => self.state_mut(),
            Some(depth) => self.inner_mut()?.state_at(depth),
        }
    }

    /// Calls `each` with the states of this rule and of those that it wraps.
    pub fn each_state(&mut self, each: &mut dyn FnMut(&mut dyn State)) {
        if let Some(own) = self.state_mut() {
            each(own);
        }
        if let Some(inner) = self.inner_mut() {
            inner.each_state(each);
        }
    }

    /// See [`State::learned`].
    #[cfg(feature = "learned")]
    #[must_use]
    pub fn learned(&self) -> Option<LearnedStats> {
        self.states().find_map(State::learned)
    }

    /// See [`State::model`].
    #[must_use]
    pub fn model(&self) -> Option<Vec<u8>> {
        self.states().find_map(State::model)
    }

    /// See [`State::memory_bytes`].
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.states().map(State::memory_bytes).sum()
    }

    /// See [`State::validate`].
    ///
    /// # Errors
    /// [`cachelb_core::Error::Invariant`] naming the first disagreement.
    pub fn validate(&self) -> Result<()> {
        self.states().try_for_each(State::validate)
    }

    /// How many prefixes are remembered beside any index.
    #[must_use]
    pub fn routes(&self) -> usize {
        self.routed().map_or(0, Routes::len)
    }

    /// How many of them came from other routers.
    #[must_use]
    pub fn remote_routes(&self) -> usize {
        self.routed().map_or(0, Routes::remote)
    }

    /// Calls `each` with the routes that a booking will teach when it is answered.
    pub fn teaches(&self, memory: &Memory, now: Millis, each: &mut dyn FnMut(Claim)) {
        if let (Some(own), Memory::Lesson(lesson)) = (self.routed(), memory) {
            own.claims(lesson, now).for_each(each);
        }
    }

    /// Calls `each` with the routes behind `after`, at most `most` of them. Returns how far it came, `None` at the end.
    pub fn publish_routes(
        &self,
        after: RoutePosition,
        most: usize,
        now: Millis,
        each: &mut dyn FnMut(Claim),
    ) -> Option<RoutePosition> {
        self.routed()?.publish(after, most, now, each)
    }

    /// Another router learned a route. Returns whether it was taken in, `None` from a rule that learns no routes.
    pub fn receive_route(&mut self, claim: Claim, now: Millis) -> Option<bool> {
        Some(self.routed_mut()?.learn(claim, Rank::Remote, now))
    }

    /// The states of this rule and of those that it wraps.
    fn states(&self) -> impl Iterator<Item = &dyn State> {
        let rules = std::iter::successors(Some(self), |rule| rule.inner());
        rules.filter_map(|rule| rule.state())
    }
}
