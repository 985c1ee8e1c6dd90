//! A hash ring with bounded loads: the first worker clockwise from the key that has room.
//!
//! ```text
//! no key                                   -> cold spread (no-key)
//! first worker of the ring has room        -> hash
//! else the next one that has               -> hash-bounded
//! ```

use crate::load::BookingId;

use super::bounded::Bound;
use super::reason::Reason;
use super::ring::Ring;
use super::rng::Rng;
use super::rule::{Choice, Rule};
use super::view::{View, cold_spread};

/// The rule and its ring.
#[derive(Debug)]
pub struct ConsistentHash {
    /// Points on the ring of a worker of weight 1.
    pub vnodes: u32,
    /// Slack over the fair share of the load; `None` for a ring that never looks at the load.
    pub epsilon: Option<f64>,
    /// Hash seed; routers that must agree share it.
    pub seed: u64,
    ring: Ring,
}

impl ConsistentHash {
    /// A rule that has seen no worker.
    #[must_use]
    pub fn new(vnodes: u32, epsilon: Option<f64>, seed: u64) -> Self {
        Self {
            vnodes,
            epsilon,
            seed,
            ring: Ring::new(vnodes, seed),
        }
    }
}

impl Rule for ConsistentHash {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let Some(key) = view.key else {
            return Choice::cold(cold_spread(view.rows, rng), Reason::NoKey);
        };
        let arcs = self.ring.covering(view);
        let seats = arcs.seats(view.rows);
        let bound = self.epsilon.map(|epsilon| Bound::of(view.rows, epsilon));
        let has_room = |row: &usize| bound.is_none_or(|bound| bound.admits(&view.rows[*row]));
        let home = arcs.walk(&seats, key).next().unwrap_or(0);
        match arcs.walk(&seats, key).find(has_room) {
            Some(row) if row != home => Choice::warm(row, Reason::HashBounded),
            _ => Choice::warm(home, Reason::Hash),
        }
    }

    fn settled(&mut self, view: &View<'_>, _choice: Choice, _served: usize, _booking: BookingId) {
        self.ring.settle(view);
    }

    fn forget(&mut self, order: u64) {
        self.ring.forget(order);
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        self.epsilon.map(|_| view.rows[row].load())
    }

    fn memory_bytes(&self) -> usize {
        self.ring.memory_bytes()
    }

    fn fresh(&self) -> Box<dyn Rule> {
        Box::new(Self::new(self.vnodes, self.epsilon, self.seed))
    }
}
