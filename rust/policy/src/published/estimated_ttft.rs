//! The earliest first token by estimate: Mooncake's Algorithm 1.
//!
//! ```text
//! another worker holds more than `kvcache_balancing_threshold` times as much, and blocks can be sent:
//!      ttft = transfer of the difference + queue + prefill(prompt - best prefix)
//! else ttft = queue + prefill(prompt - own prefix)
//! argmin ttft; over an objective: on_slo
//! ```
//!
//! A prefill takes as long as the caller's parabola gives, or as first tokens showed. A queue is the sum of the same
//! estimate over bookings without a first token, less the time its head has been computing. Decoding does not show in it,
//! so an overloaded winner is left by the spill gate.

use cachelb_core::error::Result;
use cachelb_core::load::{Known, Prefill};
use cachelb_core::rng::Rng;

use super::estimate::{PrefillTime, queue_ms};
use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::gate::SpillGate;
use crate::rule::options::{ABOVE_ZERO, Configure, NOT_NEGATIVE, Policy, options};
use crate::rule::reason::Reason;
use crate::rule::values::words;
use crate::rule::view::{Candidate, View, ceil, cheapest, known};
use crate::rule::{Properties, Rule};
use crate::rules::adaptive::Speeds;

words!(OnSlo { Route = "route", Reject = "reject" });

options! {
    /// Queue plus prefill in milliseconds, the lowest of all workers: Mooncake's Algorithm 1.
    ///
    /// A worker's queue is the sum of the estimates of its requests without a first token, less the time the first of them
    /// has been computing: report first tokens (`on_first_token`). If blocks can be sent between workers, one that holds
    /// little may fetch them. If no worker meets an objective, the earliest is taken (`slo-unattainable`) or none.
    ///
    /// Example:
    ///     >>> policy = EstimatedTtft(seed=1, ttft_slo_ms=40, prefill=(4.2e-7, 0.0152, 16.5))
    ///     >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(8000))
    ///     >>> first.on_first_token()
    ///     >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(8000))
    ///     >>> first.reason, again.reason, again.worker == first.worker
    ///     ('slo-unattainable', 'prefix', True)
    pub struct EstimatedTtftOptions {
        /// Milliseconds of a prefill per token squared, per token and per request, fitted to your hardware; None takes the
        /// speed that first tokens showed.
        prefill: Option<PrefillTime> = None;
        /// Milliseconds to fetch the keys and values of a token from another worker, None if that is not possible. It is
        /// 0.01 for an 8B model over 100 Gbit/s.
        transfer_ms_per_token: Option<f64> = None, NOT_NEGATIVE;
        /// How many times longer the best prefix must be to be fetched.
        kvcache_balancing_threshold: f64 = 2.0, NOT_NEGATIVE;
        /// Longest time to the first token, None for any; without `prefill` it applies once a first token has come.
        ttft_slo_ms: Option<f64> = None, ABOVE_ZERO;
        /// Longest time between two tokens, by reports of engines, None for any.
        tbt_slo_ms: Option<f64> = None, ABOVE_ZERO;
        /// The action if no worker meets them: "route" to the earliest, or "reject".
        on_slo: OnSlo = OnSlo::Route;
        /// Whether a worker with far more requests than the mean is left for the least loaded (`spill`): decoding does
        /// not show in the estimate. False is the published rule.
        gate: bool = true;
    }
}

/// The policy.
pub(crate) const POLICY: Policy =
    Policy::of::<EstimatedTtftOptions>(About::placed("estimated-ttft", "EstimatedTtft"));

impl Configure for EstimatedTtftOptions {
    fn ruled(&self, setup: &Setup) -> Result<Ruled> {
        let rule = EstimatedTtft {
            options: self.clone(),
            gate: self.gate.then(|| setup.default_gate()),
        };
        Ok(Ruled::new(rule, Need::BLOCKS))
    }
}

/// The action if no worker meets the objectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnSlo {
    /// Take the earliest anyway, with the reason `slo-unattainable`.
    #[default]
    Route,
    /// Refuse the request.
    Reject,
}

/// The rule.
#[derive(Debug, Clone)]
pub struct EstimatedTtft {
    /// Its options but for the gate.
    pub options: EstimatedTtftOptions,
    /// When a worker is too loaded; `None` never checks, as in the paper.
    pub gate: Option<SpillGate>,
}

/// The estimate for one row.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Estimate {
    /// Sending and computing, which the request adds to the queue.
    own_ms: f64,
    queue_ms: f64,
}

impl Estimate {
    fn ttft_ms(self) -> f64 {
        self.own_ms + self.queue_ms
    }
}

/// The terms that the estimates of all rows have in common.
struct Common {
    /// The longest prefix that a worker holds, 0 unless blocks can be sent.
    longest: f64,
    prefill: PrefillBy,
}

#[expect(clippy::large_enum_variant, reason = "one per decision, on the stack")]
enum PrefillBy {
    Given(PrefillTime),
    FirstTokens { speeds: Speeds, per_context: f64 },
}

impl PrefillBy {
    /// Whether estimates are worth comparing with an objective: before the first token they are the same for all workers, and
    /// a request that is refused for them teaches nothing.
    fn is_known(&self) -> bool {
        match self {
            Self::Given(_) => true,
            Self::FirstTokens { speeds, .. } => speeds.known,
        }
    }

    /// Milliseconds that the worker of a row takes for the last `uncached` tokens of the prompt.
    fn ms(&self, view: &View<'_>, row: &Candidate, uncached: f64) -> f64 {
        let ms = match self {
            Self::Given(time) => time.ms(uncached),
            Self::FirstTokens {
                speeds,
                per_context,
            } => {
                #[expect(clippy::cast_sign_loss, reason = "none is below 0")]
                let work = Prefill::of(view.prompt_tokens, uncached as u64).work(*per_context);
                work * speeds.token_ms(row, view.load(row))
            }
        };
        ms / row.weight
    }
}

/// Milliseconds between two tokens of one request as the engine reports it; `None` if it does not.
fn tbt_ms(view: &View<'_>, row: &Candidate) -> Option<f64> {
    let report = view.report(row);
    let per_request = report.gen_tps.get()? / report.running.get()?.max(1.0);
    (per_request > 0.0).then(|| 1000.0 / per_request)
}

impl EstimatedTtft {
    fn common(&self, view: &View<'_>) -> Common {
        let matched = view.rows.iter().map(|row| row.matched_tokens);
        Common {
            longest: self
                .options
                .transfer_ms_per_token
                .map_or(0.0, |_| matched.fold(0.0, f64::max)),
            prefill: self.options.prefill.map_or_else(
                || PrefillBy::FirstTokens {
                    speeds: Speeds::of([view.workers()]),
                    per_context: view.pace.per_context(),
                },
                PrefillBy::Given,
            ),
        }
    }

    fn estimate(&self, view: &View<'_>, row: &Candidate, common: &Common) -> Estimate {
        let longest = common.longest;
        let own = row.matched_tokens;
        let times = self.options.kvcache_balancing_threshold;
        let fetch =
            (self.options.transfer_ms_per_token).filter(|_| longest > own && longest > own * times);
        let (prefix, sending_ms) = fetch.map_or((own, 0.0), |ms_per_token| {
            (longest, (longest - own) * ms_per_token)
        });
        let uncached = ceil((view.prompt_tokens as f64 - prefix).max(0.0));
        Estimate {
            own_ms: sending_ms + common.prefill.ms(view, row, uncached),
            queue_ms: queue_ms(view.load(row), view.now),
        }
    }

    fn ttfts_ms(&self, view: &View<'_>, common: &Common) -> Vec<f64> {
        let ttft_ms = |row| self.estimate(view, row, common).ttft_ms();
        view.rows.iter().map(ttft_ms).collect()
    }

    /// The earliest row, of those that decode fast enough if `fast`.
    fn earliest(
        &self,
        view: &View<'_>,
        rng: &mut Rng,
        ttfts_ms: &[f64],
        fast: bool,
    ) -> Option<usize> {
        let too_slow = |row: &Candidate| match (self.options.tbt_slo_ms, tbt_ms(view, row)) {
            (Some(slo), Some(tbt)) => tbt > slo,
            _ => false,
        };
        cheapest(view.rows, ttfts_ms, rng, |row| !fast || !too_slow(row))
    }
}

impl Rule for EstimatedTtft {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let common = &self.common(view);
        let ttfts_ms = self.ttfts_ms(view, common);
        let slo_ms = self.options.ttft_slo_ms;
        let slo_ms = slo_ms.filter(|_| common.prefill.is_known());
        let meets = |row: &usize| slo_ms.is_none_or(|slo_ms| ttfts_ms[*row] <= slo_ms);
        let meeting = self.earliest(view, rng, &ttfts_ms, true).filter(meets);
        let mut choice = if let Some(row) = meeting {
            let spilled = self.gate.and_then(|gate| gate.spill(view.rows, row, rng));
            // No request is moved past an objective to even out the load.
            let spilled = spilled.filter(meets);
            Choice::by_cost(view, spilled.unwrap_or(row))
        } else {
            let row = self.earliest(view, rng, &ttfts_ms, false).unwrap_or(0);
            Choice {
                reason: Reason::SloUnattainable,
                refused: self.options.on_slo == OnSlo::Reject,
                ..Choice::by_cost(view, row)
            }
        };
        let estimate = self.estimate(view, &view.rows[choice.row], common);
        choice.estimate_ms = estimate.own_ms;
        view.leave_scores(ttfts_ms);
        choice
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        let estimate = self.estimate(view, &view.rows[row], &self.common(view));
        Some(estimate.ttft_ms())
    }

    fn scores(&self, view: &View<'_>) -> Vec<Known> {
        known(self.ttfts_ms(view, &self.common(view)))
    }

    fn properties(&self) -> Properties {
        Properties::PLACED
    }
}

#[cfg(test)]
#[path = "tests/estimated_ttft.rs"]
mod tests;
