//! What a rule is.

use std::fmt::Debug;

use cachelb_core::error::Result;
use cachelb_core::ids::Millis;
use cachelb_core::load::{BookingId, Known};
use cachelb_core::rng::Rng;
use cachelb_learned::LearnedStats;

use super::choice::Choice;
use super::credits::Credits;
use super::pair::{PairChoice, Pairing};
use super::parts::{Ended, Learns, Part, PartMut, Remembers};
use super::routes::{Claim, RoutePosition};
use super::tiers::Loads;
use super::view::View;

/// What is the same for all requests of a rule.
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
    /// The rule has [`super::parts::Pairs`]. A rule around another one decides pairs half by half.
    pub weighs_pairs: bool,
    /// Credits of blocks outside device memory.
    pub credits: Credits,
    /// What loading such blocks takes, for a rule that credits them by that.
    pub loads: Option<Loads>,
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
        placement_ttl_ms: None,
    };
    /// A rule of placements that ranks by cost.
    pub const PLACED: Self = Self {
        records_placement: true,
        ..Self::PLAIN
    };
    /// A rule of placements that ranks by what is cached.
    pub const CACHED: Self = Self {
        higher_is_better: true,
        ..Self::PLACED
    };
}

/// One policy's rule: its settings and the little state it keeps.
///
/// `choose` decides, and changes nothing but the generator; the other calls report the outcome. A rule that wraps another
/// one passes on `choose`, `settled` and the scores itself, and lists the other's parts behind its own.
pub trait Rule: Debug + Send {
    /// Picks a row. The view has at least one.
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice;

    /// The rule decided `choice`, and row `served` was booked as `booking`: another row where it decided beside the rule
    /// that picks.
    fn settled(&mut self, view: &View<'_>, choice: Choice, served: usize, booking: BookingId) {
        let _ = (view, choice, served, booking);
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

    /// A rule of the same settings without state.
    fn fresh(&self) -> Box<dyn Rule>;

    /// Calls `each` with the optional parts, those of a wrapped rule last: where one answers, the first does.
    fn parts(&self, each: &mut dyn FnMut(Part<'_>)) {
        let _ = each;
    }

    /// The same, for the parts that change.
    fn parts_mut(&mut self, each: &mut dyn FnMut(PartMut<'_>)) {
        let _ = each;
    }
}

/// [`Rule::score`] row by row.
pub(super) fn each_score<R: Rule + ?Sized>(rule: &R, view: &View<'_>) -> Vec<Known> {
    let score = |row| Known::from(rule.score(view, row));
    (0..view.rows.len()).map(score).collect()
}

/// A method for each property.
macro_rules! properties {
    ($($name:ident: $type:ty,)+) => {$(
        #[doc = concat!("See [`Properties::", stringify!($name), "`].")]
        #[must_use]
        pub fn $name(&self) -> $type {
            self.properties().$name
        }
    )+};
}

/// Calls of the optional parts, to be made without knowing which of them a rule has.
impl dyn Rule + '_ {
    properties! {
        records_placement: bool,
        counts_active_blocks: bool,
        goes_by_events: bool,
        keeps_prompts: bool,
        higher_is_better: bool,
        scored_in_passing: bool,
        weighs_pairs: bool,
        credits: Credits,
        loads: Option<Loads>,
        placement_ttl_ms: Option<u64>,
    }

    /// See [`super::parts::Pairs::choose_pair`]. `None` too from a rule that decides halves one by one.
    #[must_use]
    pub fn choose_pair(&self, pairing: &Pairing<'_>, rng: &mut Rng) -> Option<PairChoice> {
        if !self.weighs_pairs() {
            return None;
        }
        self.first(|part| match part {
            Part::Pairs(own) => own.choose_pair(pairing, rng),
            _ => None,
        })
    }

    /// See [`super::parts::Explains::terms`]. Empty from a rule that does not take scores apart.
    #[must_use]
    pub fn terms(&self, view: &View<'_>) -> Vec<Vec<(&'static str, f64)>> {
        let terms = self.first(|part| match part {
            Part::Explains(own) => Some(own.terms(view)),
            _ => None,
        });
        terms.unwrap_or_default()
    }

    /// `choice` was taken and booked as `booking`.
    pub fn settle(&mut self, view: &View<'_>, choice: Choice, booking: BookingId) {
        self.settled(view, choice, choice.row, booking);
    }

    /// See [`Remembers::describe`].
    pub fn describe(&mut self, order: u64, gpu: Option<&str>) {
        self.each_memory(|own| own.describe(order, gpu));
    }

    /// See [`Remembers::forget`].
    pub fn forget(&mut self, order: u64) {
        self.each_memory(|own| own.forget(order));
    }

    /// See [`Remembers::cache_lost`].
    pub fn cache_lost(&mut self, order: u64) {
        self.each_memory(|own| own.cache_lost(order));
    }

    /// See [`Remembers::finish_session`].
    pub fn finish_session(&mut self, key: &[u8]) -> bool {
        let mut known = false;
        self.each_memory(|own| known |= own.finish_session(key));
        known
    }

    /// See [`Remembers::memory_bytes`].
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let mut bytes = 0;
        self.parts(&mut |part| {
            if let Part::Remembers(own) = part {
                bytes += own.memory_bytes();
            }
        });
        bytes
    }

    /// See [`Remembers::validate`].
    ///
    /// # Errors
    /// [`cachelb_core::Error::Invariant`] naming the first disagreement.
    pub fn validate(&self) -> Result<()> {
        let failed = self.first(|part| match part {
            Part::Remembers(own) => own.validate().err(),
            _ => None,
        });
        failed.map_or(Ok(()), Err)
    }

    /// See [`Learns::proven`].
    pub fn proven(&mut self, booking: BookingId, first_token: Option<Millis>) {
        self.each_learner(|own| own.proven(booking, first_token));
    }

    /// See [`Learns::served`].
    pub fn served(&mut self, booking: BookingId, output_tokens: Option<u64>, now: Millis) {
        self.each_learner(|own| own.served(booking, output_tokens, now));
    }

    /// See [`Learns::ended`].
    pub fn ended(&mut self, booking: BookingId, ended: Ended) {
        self.each_learner(|own| own.ended(booking, ended));
    }

    /// See [`Learns::ended_all`].
    pub fn ended_all(&mut self) {
        self.each_learner(|own| own.ended_all());
    }

    /// See [`Learns::learned`].
    #[must_use]
    pub fn learned(&self) -> Option<LearnedStats> {
        self.first(|part| match part {
            Part::Learns(own) => own.learned(),
            _ => None,
        })
    }

    /// See [`Learns::model`].
    #[must_use]
    pub fn model(&self) -> Option<Vec<u8>> {
        self.first(|part| match part {
            Part::Learns(own) => own.model(),
            _ => None,
        })
    }

    /// See [`super::parts::Routed::routes`].
    #[must_use]
    pub fn routes(&self) -> usize {
        let routes = self.first(|part| match part {
            Part::Routed(own) => Some(own.routes()),
            _ => None,
        });
        routes.unwrap_or(0)
    }

    /// See [`super::parts::Routed::remote_routes`].
    #[must_use]
    pub fn remote_routes(&self) -> usize {
        let routes = self.first(|part| match part {
            Part::Routed(own) => Some(own.remote_routes()),
            _ => None,
        });
        routes.unwrap_or(0)
    }

    /// See [`super::parts::Routed::teaches`].
    pub fn teaches(&self, booking: BookingId, now: Millis, each: &mut dyn FnMut(Claim)) {
        self.parts(&mut |part| {
            if let Part::Routed(own) = part {
                own.teaches(booking, now, each);
            }
        });
    }

    /// See [`super::parts::Routed::publish_routes`].
    pub fn publish_routes(
        &self,
        after: RoutePosition,
        most: usize,
        now: Millis,
        each: &mut dyn FnMut(Claim),
    ) -> Option<RoutePosition> {
        self.first(|part| match part {
            Part::Routed(own) => own.publish_routes(after, most, now, each),
            _ => None,
        })
    }

    /// See [`super::parts::Routed::receive_route`]. `None` from a rule that learns no routes.
    pub fn receive_route(&mut self, claim: Claim, now: Millis) -> Option<bool> {
        let mut taken = None;
        self.parts_mut(&mut |part| {
            if let PartMut::Routed(own) = part {
                taken = Some(own.receive_route(claim, now));
            }
        });
        taken
    }

    /// The first answer.
    fn first<T>(&self, mut ask: impl FnMut(Part<'_>) -> Option<T>) -> Option<T> {
        let mut found = None;
        self.parts(&mut |part| {
            if found.is_none() {
                found = ask(part);
            }
        });
        found
    }

    fn each_memory(&mut self, mut each: impl FnMut(&mut dyn Remembers)) {
        self.parts_mut(&mut |part| {
            if let PartMut::Remembers(own) = part {
                each(own);
            }
        });
    }

    fn each_learner(&mut self, mut each: impl FnMut(&mut dyn Learns)) {
        self.parts_mut(&mut |part| {
            if let PartMut::Learns(own) = part {
                each(own);
            }
        });
    }
}
