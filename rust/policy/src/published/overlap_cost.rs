//! Dynamo's cost in blocks: prefill to do, less the cached blocks, plus the blocks that requests hold.
//!
//! ```text
//! decay  = 1 / (1 + overlap_score_credit_decay * (active prefill - min active prefill) / request)
//! credit = overlap_score_credit * decay * gpu + host_cache_hit_weight * cpu + disk_cache_hit_weight * disk
//!          + shared_cache_multiplier * shared beyond gpu
//! cost   = prefill_load_scale * max(0, active prefill + request - credit) + active blocks
//!          + decode_active_request_weight * requests in flight
//! ```
//!
//! Active are the blocks of the prompts in flight, also of those that wait for their first token, but not those of
//! outputs, which Dynamo counts only as an option. Blocks that several requests share count once, and those that this
//! request shares not at all: Dynamo adds the request's own blocks unless they are among the active ones, which is the
//! same but for the length of the request. Requests without a prompt count the blocks they would fill.
//!
//! On workers that publish events, blocks are cached once an event reports them. Placements before that are credited
//! only for `router_predicted_ttl_secs`, if given, as in Dynamo.
//!
//! A temperature draws by softmax over costs scaled to 0..1, which gives up locality quickly: measured on a
//! conversation trace, 0.5 was slower than round robin.

use cachelb_core::error::Result;
use cachelb_core::load::Known;
use cachelb_core::rng::Rng;

use crate::rule::choice::Choice;
use crate::rule::credits::{Continuation, Credits};
use crate::rule::{Properties, Rule};

use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::options::{Configure, NOT_NEGATIVE, Policy, Seconds, options};
use crate::rule::placements::Placements;
use crate::rule::view::{Candidate, Media, View, cheapest, draw_at, extremes, known, per_weight};

/// How long a placement counts as cached in Dynamo.
const TTL_MS: u64 = 120_000;

options! {
    /// Dynamo's cost function, with its option names and defaults.
    ///
    /// Per worker, in blocks: the prefill queued there and of this request, less the cached blocks, plus those of the
    /// prompts in flight, those that several of them share counted once and those of this request not at all. Report first
    /// tokens (`on_first_token`), or every request counts as prefill until it ends.
    ///
    /// A placement counts as cached for 120 seconds unless `ttl_s` is given.
    ///
    /// Measured on a conversation trace, a `router_temperature` of 0.5 was slower than round robin: it gives up locality.
    ///
    /// Example:
    ///     >>> policy = OverlapCost(seed=1)
    ///     >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
    ///     >>> first.on_first_token()
    ///     >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
    ///     >>> again.reason, again.worker == first.worker
    ///     ('prefix', True)
    pub struct OverlapCost {
        /// Blocks of prefill saved per block in device memory; above 1 favours holders further.
        overlap_score_credit: f64 = 1.0, NOT_NEGATIVE;
        /// How fast prefill queued beyond the least anywhere, in units of the request, devalues device blocks.
        overlap_score_credit_decay: f64 = 0.0, NOT_NEGATIVE;
        /// Cost of a block of prefill.
        prefill_load_scale: f64 = 1.0, NOT_NEGATIVE;
        /// Cost of a request in flight.
        decode_active_request_weight: f64 = 0.0, NOT_NEGATIVE;
        /// Blocks of prefill saved per block in host memory.
        host_cache_hit_weight: f64 = 0.75, NOT_NEGATIVE;
        /// Blocks of prefill saved per block on disk.
        disk_cache_hit_weight: f64 = 0.25, NOT_NEGATIVE;
        /// Blocks of prefill saved per block in a shared store; 0.5 is usual where there is one.
        shared_cache_multiplier: f64 = 0.0, NOT_NEGATIVE;
        /// Above 0, workers are drawn by softmax over their costs, scaled to between 0 and 1.
        router_temperature: f64 = 0.0, NOT_NEGATIVE;
        /// Seconds a placement counts as cached on workers that publish events; None credits nothing there before an
        /// event confirms it.
        router_predicted_ttl_secs: Option<Seconds> = None;
    }
}

/// The policy.
pub(crate) const POLICY: Policy =
    Policy::of::<OverlapCost>(About::placed("overlap-cost", "OverlapCost"));

impl Configure for OverlapCost {
    fn ruled(&self, _setup: &Setup) -> Result<Ruled> {
        Ok(Ruled::new(self.clone(), Need::BLOCKS))
    }

    fn placements(&self, given: Placements, _block_size: u32) -> Result<Placements> {
        Ok(Placements {
            ttl_ms: given.ttl_ms.or(Some(TTL_MS)),
            ..given
        })
    }
}

/// Prefill blocks on a worker already.
fn active_prefill(view: &View<'_>, row: &Candidate) -> f64 {
    row.pending_prefill_tokens as f64 / f64::from(view.block_size)
}

/// The least of them, which only a decay asks for.
fn least_active(view: &View<'_>, decay: f64) -> f64 {
    if decay <= 0.0 {
        return 0.0;
    }
    let active = view.rows.iter().map(|row| active_prefill(view, row));
    active.fold(f64::INFINITY, f64::min)
}

impl OverlapCost {
    /// Blocks saved: the device run, then host memory from its end, then disk from theirs; and all that a shared cache
    /// holds beyond the device run, though other media hold it too or a gap lies before it.
    #[inline(never)] // few fleets have tiers, and every row of the others would carry it
    fn credit(&self, media: &Media, decay: f64) -> f64 {
        let length = |(start, end): (u32, u32)| f64::from(end - start);
        self.overlap_score_credit * decay * f64::from(media.gpu)
            + self.host_cache_hit_weight * length(media.cpu)
            + self.disk_cache_hit_weight * length(media.disk)
            + self.shared_cache_multiplier * f64::from(media.shared)
    }

    /// Blocks of the prompt, and the least of those that a worker computes already: the same for all of them.
    fn terms(&self, view: &View<'_>) -> (f64, f64) {
        let request = view.prompt_tokens as f64 / f64::from(view.block_size);
        (request, least_active(view, self.overlap_score_credit_decay))
    }

    fn costs(&self, view: &View<'_>) -> Vec<f64> {
        let terms = self.terms(view);
        let cost = |row| self.cost(view, terms, row);
        (0..view.rows.len()).map(cost).collect()
    }

    #[inline]
    fn cost(&self, view: &View<'_>, (request, least_active): (f64, f64), i: usize) -> f64 {
        let row = &view.rows[i];
        let active = active_prefill(view, row);
        let decay = if self.overlap_score_credit_decay > 0.0 && request > 0.0 {
            1.0 / (1.0 + self.overlap_score_credit_decay * (active - least_active) / request)
        } else {
            1.0
        };
        let credit = match view.media.get(i) {
            Some(media) => self.credit(media, decay),
            None => self.overlap_score_credit * decay * f64::from(row.overlap),
        };
        let cost = self.prefill_load_scale * (active + request - credit).max(0.0)
            + view.active_blocks(row) as f64
            + self.decode_active_request_weight * f64::from(row.inflight);
        per_weight(cost, row.weight)
    }
}

impl Rule for OverlapCost {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let costs = self.costs(view);
        let row = if self.router_temperature > 0.0 {
            let (low, high) = extremes(costs.iter().copied());
            let spread = if high > low { high - low } else { 1.0 };
            draw_at(view.rows.len(), rng, |i| {
                (-(costs[i] - low) / spread / self.router_temperature).exp()
            })
        } else {
            cheapest(view.rows, &costs, rng, |_| true).unwrap_or(0)
        };
        view.leave_scores(costs);
        Choice::by_cost(view, row)
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        Some(self.cost(view, self.terms(view), row))
    }

    fn scores(&self, view: &View<'_>) -> Vec<Known> {
        known(self.costs(view))
    }

    fn properties(&self) -> Properties {
        Properties {
            counts_active_blocks: true,
            credits: Credits {
                gpu: 1.0,
                cpu: self.host_cache_hit_weight.min(1.0),
                external: self.shared_cache_multiplier.min(1.0),
                disk: self.disk_cache_hit_weight.min(1.0),
                continuation: Continuation::Longest,
            },
            placement_ttl_ms: Some(self.router_predicted_ttl_secs.map_or(0, Seconds::millis)),
            ..Properties::PLACED
        }
    }
}

#[cfg(test)]
#[path = "tests/overlap_cost.rs"]
mod tests;
