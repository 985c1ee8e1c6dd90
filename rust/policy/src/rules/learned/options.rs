//! Options of `learned`.

use std::sync::Arc;
use std::time::Duration;

use cachelb_core::error::Result;
use cachelb_learned::{FeatureSet, Fitting, Kind, Model, Replay, Reward, Schedule, Training};

use super::{Learned, Learning, Outside, Tie};
use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::options::{
    ABOVE_ZERO, Configure, FRACTION, LONGEST_S, MAX_TOKENS, NOT_NEGATIVE, Policy, Seconds,
    conflict, options,
};
use crate::rule::values::{Within, words};

/// The outcome that is learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RewardFor {
    /// The time to the first token.
    Ttft,
    /// The time to the end.
    E2e,
    /// Whether the first token was late.
    Slo,
}

words!(RewardFor { Ttft = "ttft", E2e = "e2e", Slo = "slo" });
words!(Tie { Cached = "cached", Random = "random" });
words!(Outside { Worker = "worker", Fleet = "fleet", Ignored = "ignore" });
words!(Replay { Weighted = "weighted", Lodestar = "lodestar", None = "none", All = "all" });
words!(Training { Background = "background", Inline = "inline" });
words!(Kind { Mlp = "mlp", Linear = "linear", Trees = "trees" });
words!(FeatureSet { Extended = "extended", Paper = "paper" });

/// Most samples of a pool.
const MAX_SAMPLES: u64 = 1_000_000;

options! {
    /// Send a request where a model expects the shortest time to its first token; the model learns from every answer.
    ///
    /// After Lodestar (Lim et al., 2026). A sample is the state of a request and a worker when it is routed (cached
    /// share of the prompt, running and waiting requests, tokens in flight, KV use, the GPU) and the time that its
    /// first token then took. After `n_min` of them a small network is trained, in a thread of its own, and again after
    /// every `theta`. From then on a request goes to one of the workers that are within `delta` of the least expected
    /// time (`learned`, `learned-tie`); a share of `epsilon` goes anywhere, to be learned from (`explore`).
    ///
    /// As long as there is no model (`cold-start`), and wherever it cannot be trusted, `fallback` decides, with a
    /// reason of its own: `ood` for values outside its training data, `stale-load` for reports that are too old,
    /// `model-drift` when its errors grew, `model-stale`, `model-timeout`, `model-error`, `normaliser-mismatch`. While the
    /// KV caches are full, prompts that begin alike are kept to `k` workers (`k-filter` where that made the difference).
    ///
    /// It is no better than its training data: in simulations it was 10 times behind the best rule on agents new to it.
    ///
    /// Only first tokens teach: call `Decision.on_first_token`, or `on_tokens`. Requests that fail teach nothing. Give GPU
    /// models with `Router.add_worker(gpu=)` where workers differ, and load reports (`Router.update_load`): without them
    /// the model sees only bookings made here.
    ///
    /// Example:
    ///     >>> policy = Learned(n_min=200, theta=200, training="inline", model_kind="linear", seed=1)
    ///     >>> for i in range(300):
    ///     ...     with policy.select_worker(["gpu0", "gpu1"], tokens=range(i, i + 160 + 16 * (i % 7))) as decision:
    ///     ...         decision.on_first_token()
    ///     >>> decision.reason in {"learned", "learned-tie", "explore", "ood", "cold-start"}
    ///     True
    ///     >>> policy.learned_stats().samples
    ///     300
    pub struct LearnedOptions {
        /// Share of the requests that go to any worker.
        epsilon: f64 = 0.01, FRACTION;
        /// Workers whose expected time is within this share of the least are as good.
        delta: f64 = 0.1, NOT_NEGATIVE;
        /// Which of them serves: "cached" one that holds most of the prompt, since tokens that are not computed again
        /// delay no other request, or a "random" one, as published.
        tie: Tie = Tie::Cached;
        /// Weight of the requests that wait behind this one: its expected time on the same worker, idle, is added once
        /// for each request that waits per worker, times this. 0 counts the request alone, as published; then requests
        /// spread as the load grows, are computed again, and add to it.
        crowding: f64 = 1.0, NOT_NEGATIVE;
        /// Workers that prompts which begin alike are kept to while the caches are full, or as many as their share of
        /// the requests needs; 0 keeps them to none.
        k: usize = 2, (0, u64::from(u32::MAX));
        /// A request leaves them where they are expected to cost more than this share above the least; None never, as
        /// published.
        k_slack: Option<f64> = Some(0.1), NOT_NEGATIVE;
        /// The caches are full from this mean KV use on.
        tau_sat: f64 = 0.8, FRACTION;
        /// Prompts are kept together only if a worker holds more than so many tokens of them.
        tau_ben: f64 = 100.0, NOT_NEGATIVE;
        /// Leading tokens by which prompts begin alike, of those without boundaries.
        prefix_token_length: u64 = 128, (1, MAX_TOKENS);
        /// Most workers that are scored: those that hold most of the prompt, and a sample of the others.
        max_scored: usize = 256, (2, u64::from(u32::MAX));
        /// The policy that decides where the model cannot: a name, or a policy whose options are taken. How placements
        /// are remembered is this policy's own matter.
        fallback: Within = Within::Name("prefix-cache-and-load");
        /// How workers outside the training data are treated: "worker" leaves those workers to the fallback, "fleet"
        /// leaves it the whole decision as soon as there is one such worker, as published, and "ignore" uses the model
        /// anyway.
        outside: Outside = Outside::Worker;
        /// Notice a model that is off, too old, or of other units. False is for experiments.
        guards: bool = true;
        /// Predictions that take longer are not used, and not asked for again at once; None waits. Not with
        /// training="inline", which is for runs that repeat.
        timeout_ms: Option<f64> = Some(10.0), ABOVE_ZERO;
        /// Seconds after which a model is not used if samples came since; None is no limit. A model is stale in any
        /// case when five rounds of training are due.
        max_model_age_s: Option<Seconds> = None;
        /// The outcome that is learned: "ttft" the time to the first token; "e2e" the time to the end, for an output of
        /// the length that the caller expects, if given; "slo" whether the first token took longer than `slo_ttft_ms`.
        reward: RewardFor = RewardFor::Ttft;
        /// Objective of `reward="slo"` in milliseconds.
        slo_ttft_ms: Option<f64> = None, ABOVE_ZERO;
        /// Longer times to a first token count as this.
        clip_ttft_s: f64 = 15.0, ABOVE_ZERO;
        /// Samples before the first model.
        n_min: u64 = 1000, (1, MAX_SAMPLES);
        /// Samples between two.
        theta: u64 = 1000, (1, MAX_SAMPLES);
        /// The newest samples, all of which are trained on.
        fifo_size: usize = 5000, (1, MAX_SAMPLES);
        /// Older samples that are trained on.
        replay_size: usize = 5000, (0, MAX_SAMPLES);
        /// Which: "weighted" those with large errors that differ most, "lodestar" as in its repository, "none", or
        /// "all" of them, however many.
        replay: Replay = Replay::Weighted;
        /// Samples after which nothing is learned any more; None never stops.
        freeze_after: Option<u64> = None, (0, u64::MAX);
        /// "background" trains in a thread, "inline" in the call that brings the last sample for it.
        training: Training = Training::Background;
        /// "mlp" is Lodestar's network; "linear" and "trees" are lighter.
        model_kind: Kind = Kind::Mlp;
        /// "paper" leaves out uncached tokens and requests in flight, which the router counts itself.
        features: FeatureSet = FeatureSet::Extended;
        /// A model to begin with: one that was trained, a saved one, or the path of that.
        model: Option<Arc<Model>> = None;
    }
}

/// The policy.
pub(crate) const POLICY: Policy = Policy::of::<LearnedOptions>(About::placed("learned", "Learned"));

impl Configure for LearnedOptions {
    fn ruled(&self, setup: &Setup) -> Result<Ruled> {
        let Some(fallback) = self.fallback.policy() else {
            return Err(conflict("fallback must be a policy"));
        };
        if fallback.policy.about.name == POLICY.about.name {
            return Err(conflict(
                "fallback must not be a learned policy: it decides where the model cannot",
            ));
        }
        let fallback = fallback.ruled_within(setup)?;
        let need = Need::BOUNDARIES.and(fallback.need);
        let schedule = Schedule {
            n_min: self.n_min,
            theta: self.theta,
            fifo: self.fifo_size,
            replay: self.replay_size,
            how: self.replay,
            freeze_after: self.freeze_after,
            fitting: Fitting {
                kind: self.model_kind,
                features: self.features,
                ..Fitting::default()
            },
            training: self.training,
            seed: setup.own_seed.unwrap_or(setup.seed),
        };
        let settings = Learning {
            epsilon: self.epsilon,
            delta: self.delta as f32,
            crowding: self.crowding as f32,
            tie: self.tie,
            k: self.k,
            k_slack: self.k_slack.map(|slack| slack as f32),
            tau_sat: self.tau_sat,
            tau_ben: self.tau_ben,
            prefix_tokens: self.prefix_token_length,
            max_scored: self.max_scored,
            outside: self.outside,
            guards: self.guards,
            // A run that is to be repeated must not depend on how fast the machine is.
            timeout: self
                .timeout_ms
                .filter(|_| self.training == Training::Background)
                .map(|limit| Duration::from_secs_f64((limit / 1e3).min(LONGEST_S))),
            max_model_age_ms: self.max_model_age_s.map(Seconds::millis),
            reward: match (self.reward, self.slo_ttft_ms) {
                (RewardFor::Ttft, _) => Reward::Ttft,
                (RewardFor::E2e, _) => Reward::E2e,
                (RewardFor::Slo, Some(ttft_ms)) => Reward::Slo { ttft_ms },
                (RewardFor::Slo, None) => {
                    return Err(conflict("reward=\"slo\" needs slo_ttft_ms"));
                }
            },
            clip_s: self.clip_ttft_s,
            schedule,
            model: self.model.clone(),
            seed: setup.seed,
        };
        Ok(Ruled::new(Learned::new(settings, fallback.rule), need))
    }
}
