//! Options of `boundary-learning`.

use super::{BoundaryLearning, Teaches};
use crate::rule::about::{About, Level, Need, Ruled, Setup};
use crate::rule::options::{Configure, MAX_TOKENS, NOT_NEGATIVE, Policy, Seconds, options};
use crate::rule::values::words;
use cachelb_core::error::Result;

words!(Teaches { Served = "served", Original = "original" });

/// Most routes remembered.
const MAX_ROUTES: u64 = 100_000_000;

options! {
    /// A prefix that ends with a message goes where it was served before.
    ///
    /// When a request is answered, a route is learned at the end of each of its messages: this prefix lies on that worker.
    /// The deepest route that begins a later prompt decides (`prefix`): the next turn finds the whole conversation, a
    /// conversation that branches finds its last common message, a new one its system prompt. A prompt without a
    /// route goes to a hash ring with bounded loads, by its first message (`hash`, `hash-bounded`). A worker whose load
    /// is above `load_imbalance_factor` times the lower median plus 2 is left for the least loaded one (`diverted`),
    /// which then is a holder too.
    ///
    /// `boundaries=` gives the ends of messages; `cachelb.boundaries.message_boundaries` finds them in tokens, and for
    /// `messages=` they are known. The only route of a prompt without boundaries is its first `prefix_token_length`
    /// tokens. Ends are rounded down to whole blocks, since an engine's cache shares nothing less.
    ///
    /// A route is lost when it was not served for `ttl_s`, when its worker leaves or its cache is reset, and when there are
    /// more than `max_routes`: then the least recently used goes first, and within one conversation the deepest. A
    /// request that fails before its first token teaches nothing. `stats()["routes"]` counts them.
    ///
    /// Example:
    ///     >>> policy, workers = BoundaryLearning(), ["gpu0", "gpu1", "gpu2"]
    ///     >>> system, question = list(range(256)), [7] * 50
    ///     >>> first = policy.select_worker(workers, tokens=system + question, boundaries=[256, 306])
    ///     >>> first.on_complete()
    ///     >>> other = policy.select_worker(workers, tokens=system + [9] * 40, boundaries=[256, 296])
    ///     >>> first.reason, other.reason, other.worker == first.worker
    ///     ('hash', 'prefix', True)
    pub struct BoundaryLearningOptions {
        /// Routes remembered; as many conversations as times their messages. One takes about 200 bytes.
        max_routes: usize = 100_000, (1, MAX_ROUTES);
        /// Seconds after which a worker that served a prefix is no longer assumed to hold it, None for ever.
        ttl_s: Option<Seconds> = Some(Seconds::of(3_600));
        /// Tokens that a prompt without boundaries is known by.
        prefix_token_length: u64 = 128, (1, MAX_TOKENS);
        /// Boundaries before that, in whole blocks, are left out.
        min_prefix_boundary_tokens: u64 = 4, (0, MAX_TOKENS);
        /// A worker is left only above this many times the lower median load plus 2; None never leaves it.
        load_imbalance_factor: Option<f64> = Some(2.0), NOT_NEGATIVE;
        /// Slack of the hash ring over the fair share of requests in flight; None never looks at the load.
        epsilon: Option<f64> = Some(0.25), NOT_NEGATIVE;
        /// Learn at every boundary, not only at the first.
        multi_depth: bool = true;
        /// The worker whose route a diverted request makes: the one that served it, which becomes a holder beside the
        /// other, or the one it was diverted from.
        learn: Teaches = Teaches::Served;
    }
}

/// The policy.
pub(crate) const POLICY: Policy = Policy::of::<BoundaryLearningOptions>(About {
    needs: &["tokens"],
    level: Level::Hashed,
    ..About::keyed("boundary-learning", "BoundaryLearning")
});

impl Configure for BoundaryLearningOptions {
    fn ruled(&self, setup: &Setup) -> Result<Ruled> {
        let rule = BoundaryLearning::new(self.clone(), setup.replicas, setup.seed);
        Ok(Ruled::new(rule, Need::BOUNDARIES))
    }
}
