//! Optional parts of a rule, each a small trait: what it remembers of workers, learns of bookings, publishes, explains.

use cachelb_core::error::Result;
use cachelb_core::ids::Millis;
use cachelb_core::load::BookingId;
use cachelb_core::rng::Rng;
use cachelb_learned::LearnedStats;

use super::pair::{PairChoice, Pairing};
use super::routes::{Claim, RoutePosition};
use super::view::View;

/// How a booking ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The worker served it, or no failure was reported.
    Served,
    /// It failed or was given up. Without a first token, its placement is taken back.
    Failed,
}

/// State by worker or session.
pub trait Remembers {
    /// The worker registered as `order` joined, or its description changed.
    fn describe(&mut self, order: u64, gpu: Option<&str>) {
        let _ = (order, gpu);
    }

    /// The worker registered as `order` is gone.
    fn forget(&mut self, order: u64);

    /// The worker registered as `order` is still there, its cache is empty.
    fn cache_lost(&mut self, order: u64) {
        let _ = order;
    }

    /// The session called `key` is over. Returns whether it was bound to a worker.
    fn finish_session(&mut self, key: &[u8]) -> bool {
        let _ = key;
        false
    }

    /// Heap bytes of what can grow.
    fn memory_bytes(&self) -> usize;

    /// Recounts what is counted.
    ///
    /// # Errors
    /// [`cachelb_core::Error::Invariant`] naming the first disagreement.
    fn validate(&self) -> Result<()> {
        Ok(())
    }
}

/// State by booking, and the model made of it.
pub trait Learns {
    /// The worker of `booking` answered: its first token came at `first_token`; `None` if the request was served without
    /// a report of one.
    fn proven(&mut self, booking: BookingId, first_token: Option<Millis>);

    /// `booking` was served to its end, with `output_tokens` if they were counted. It closes next.
    fn served(&mut self, booking: BookingId, output_tokens: Option<u64>, now: Millis) {
        let _ = (booking, output_tokens, now);
    }

    /// `booking` is closed.
    fn ended(&mut self, booking: BookingId, ended: Ended);

    /// Every booking is closed, in an unknown way: the child of a fork starts over.
    fn ended_all(&mut self);

    /// Statistics of a learned model.
    fn learned(&self) -> Option<LearnedStats> {
        None
    }

    /// The learned model, to be loaded by another rule.
    fn model(&self) -> Option<Vec<u8>> {
        None
    }
}

/// Prefixes that a rule remembers beside any index, and that routers share.
pub trait Routed {
    /// How many there are.
    fn routes(&self) -> usize;

    /// How many of them came from other routers.
    fn remote_routes(&self) -> usize;

    /// Calls `each` with the routes that `booking` will teach when it is answered.
    fn teaches(&self, booking: BookingId, now: Millis, each: &mut dyn FnMut(Claim));

    /// Calls `each` with the routes behind `after`, at most `most` of them. Returns how far it came, `None` at the end.
    fn publish_routes(
        &self,
        after: RoutePosition,
        most: usize,
        now: Millis,
        each: &mut dyn FnMut(Claim),
    ) -> Option<RoutePosition>;

    /// Another router learned a route. Returns whether it was taken in.
    fn receive_route(&mut self, claim: Claim, now: Millis) -> bool;
}

/// A decision of both halves of a request at once.
pub trait Pairs {
    /// Picks a worker for each half, or one for both. `None` if no worker may take it.
    fn choose_pair(&self, pairing: &Pairing<'_>, rng: &mut Rng) -> Option<PairChoice>;
}

/// Scores that can be taken apart.
pub trait Explains {
    /// The terms of every row's score, by name.
    fn terms(&self, view: &View<'_>) -> Vec<Vec<(&'static str, f64)>>;
}

/// A part of a rule.
#[expect(missing_debug_implementations, reason = "traits without Debug")]
pub enum Part<'a> {
    /// See [`Remembers`].
    Remembers(&'a dyn Remembers),
    /// See [`Learns`].
    Learns(&'a dyn Learns),
    /// See [`Routed`].
    Routed(&'a dyn Routed),
    /// See [`Pairs`].
    Pairs(&'a dyn Pairs),
    /// See [`Explains`].
    Explains(&'a dyn Explains),
}

/// A part of a rule that changes.
#[expect(missing_debug_implementations, reason = "traits without Debug")]
pub enum PartMut<'a> {
    /// See [`Remembers`].
    Remembers(&'a mut dyn Remembers),
    /// See [`Learns`].
    Learns(&'a mut dyn Learns),
    /// See [`Routed`].
    Routed(&'a mut dyn Routed),
}

/// Lists the parts of a rule: which field has which trait, or `*own` if the rule itself does.
macro_rules! parts {
    ($own:ident: $($kind:ident($part:expr)),+) => {
        fn parts(&self, each: &mut dyn FnMut($crate::parts::Part<'_>)) {
            let $own = self;
            $(each($crate::parts::Part::$kind(&$part));)+
        }

        fn parts_mut(&mut self, each: &mut dyn FnMut($crate::parts::PartMut<'_>)) {
            let $own = self;
            $(each($crate::parts::PartMut::$kind(&mut $part));)+
        }
    };
}
pub(super) use parts;
