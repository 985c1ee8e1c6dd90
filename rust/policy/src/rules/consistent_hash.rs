//! A hash ring with bounded loads: the first worker clockwise from the key that has room.
//!
//! ```text
//! no key                                   -> cold spread (no-key)
//! first worker of the ring has room        -> hash
//! else the next one that has               -> hash-bounded
//! ```

use cachelb_core::error::Result;
use cachelb_core::rng::Rng;

use crate::common::bounded;
use crate::common::ring::{MAX_VNODES, Ring, VNODES};
use crate::rule::Rule;
use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::memo::Memos;
use crate::rule::options::{Configure, NOT_NEGATIVE, Policy, options};
use crate::rule::parts::state;
use crate::rule::reason::Reason;
use crate::rule::view::{View, cold_spread};

options! {
    /// A hash ring with bounded loads: routers with the same seed agree on where a key belongs.
    ///
    /// The key is the session, else the first tokens of the prompt. It belongs to the first worker clockwise (`hash`), and
    /// goes on to the next one that has room (`hash-bounded`) if that worker already has more than its share of the
    /// requests in flight. Requests without a key go to the least loaded worker (`no-key`).
    ///
    /// Example:
    ///     >>> policy = ConsistentHash()
    ///     >>> workers = ["gpu0", "gpu1", "gpu2"]
    ///     >>> first = policy.select_worker(workers, session="chat-17")
    ///     >>> second = policy.select_worker(workers, session="chat-17")
    ///     >>> first.reason, second.reason, first.worker == second.worker
    ///     ('hash', 'hash-bounded', False)
    pub struct ConsistentHashOptions {
        /// Points on the ring of a worker of weight 1; more make shares more even and the ring larger.
        vnodes: u32 = VNODES, (1, MAX_VNODES);
        /// A worker may have this much more than its share of the requests in flight; None never looks at the load.
        epsilon: Option<f64> = Some(0.25), NOT_NEGATIVE;
        /// Leading tokens that make the key of a request without a session.
        prefix_token_count: u32 = 256, (1, u64::from(u32::MAX));
    }
}

/// The policy.
pub(crate) const POLICY: Policy =
    Policy::of::<ConsistentHashOptions>(About::keyed("consistent-hash", "ConsistentHash"));

impl Configure for ConsistentHashOptions {
    fn ruled(&self, setup: &Setup) -> Result<Ruled> {
        let rule = ConsistentHash::new(self.vnodes, self.epsilon, setup.seed);
        Ok(Ruled::new(rule, Need::prefix(self.prefix_token_count)))
    }
}

/// The rule and its ring.
#[derive(Debug)]
pub struct ConsistentHash {
    /// Slack over the fair share of the load; `None` for a ring that never looks at the load.
    pub epsilon: Option<f64>,
    ring: Ring,
}

impl ConsistentHash {
    /// A rule that has seen no worker, with `vnodes` points on the ring of a worker of weight 1. Routers that must agree
    /// share the seed.
    #[must_use]
    pub fn new(vnodes: u32, epsilon: Option<f64>, seed: u64) -> Self {
        Self {
            epsilon,
            ring: Ring::new(vnodes, seed),
        }
    }
}

impl Rule for ConsistentHash {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let Some(key) = view.key else {
            return Choice::cold(cold_spread(view.rows, rng), Reason::NoKey);
        };
        bounded::choose(&self.ring, view, key, self.epsilon)
    }

    fn settled(&mut self, view: &View<'_>, _: Choice, _: usize, _: &mut Memos<'_>) {
        self.ring.settle(view);
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        self.epsilon.map(|_| view.rows[row].load())
    }

    state!(own => own.ring);
}
