//! The cost that the model expects on every candidate, and the best of them.

use std::time::Instant;

use cachelb_core::ids::Millis;
use cachelb_core::rng::Rng;
use cachelb_learned::{Model, Reward};

use crate::rule::reason::Reason;
use crate::rule::view::{Candidate, View};
use crate::rules::rendezvous::Rendezvous;

use super::groups::group;
use super::settings::{Learning, Tie};
use super::work::Work;
use super::{IMPOSSIBLE, Learned, PAUSE};

impl Learned {
    /// Fills in the expected costs of the rows of `work`.
    pub(super) fn predict(
        &self,
        model: &Model,
        view: &View<'_>,
        work: &mut Work,
    ) -> Option<Reason> {
        let now = view.now;
        let waiting = match self.settings.reward {
            Reward::Slo { .. } => 0.0,
            _ => self.crowd.waiting(view) as f32 * self.settings.crowding,
        };
        let begun = self.settings.timeout.map(|limit| (limit, Instant::now()));
        work.ask(model, waiting);
        let Work { rows, costs, .. } = work;
        let possible = |cost: &f32| cost.abs() < IMPOSSIBLE;
        if !costs.iter().all(possible) {
            costs.clear();
            return Some(Reason::ModelError);
        }
        let first = costs.first().copied().unwrap_or(0.0);
        let alike = rows.windows(2).all(|pair| pair[0] == pair[1]);
        work.flat = (!alike).then(|| {
            let near = 1e-5 * first.abs().max(1e-3);
            work.costs.iter().all(|cost| (cost - first).abs() <= near)
        });
        if let Some((limit, begun)) = begun
            && begun.elapsed() > limit
        {
            let pause = limit.as_millis().max(1) * PAUSE;
            self.paused.set(Some(Millis(now.0 + pause as u64)));
            return Some(Reason::ModelTimeout);
        }
        None
    }

    /// Rows that the group of the request is kept to, if it is.
    pub(super) fn few(&self, view: &View<'_>) -> Vec<usize> {
        let Learning {
            k,
            tau_sat,
            tau_ben,
            prefix_tokens,
            seed,
            ..
        } = self.settings;
        let n = view.rows.len();
        let held = |row: &Candidate| row.matched_tokens;
        if k == 0 || n <= k || view.rows.iter().map(held).fold(0.0, f64::max) <= tau_ben {
            return Vec::new();
        }
        let usage = |row: &Candidate| view.report(row).kv_usage.get();
        let (mut sum, mut known) = (0.0, 0_u32);
        for usage in view.rows.iter().filter_map(usage) {
            sum += usage;
            known += 1;
        }
        let group = group(view, prefix_tokens).filter(|_| sum > tau_sat * f64::from(known));
        let Some(group) = group.filter(|_| known > 0) else {
            return Vec::new();
        };
        let k = self.groups.spread(group, k, n);
        if k >= n {
            return Vec::new();
        }
        let rendezvous = Rendezvous {
            seed,
            epsilon: None,
        };
        rendezvous.first(view, &group.0.to_le_bytes(), k)
    }

    /// The row the model prefers.
    pub(super) fn best(
        &self,
        view: &View<'_>,
        few: &[usize],
        work: &mut Work,
        rng: &mut Rng,
    ) -> (usize, Reason) {
        // A worker that begins slowly has less to offer than the model thinks.
        let ramp = |at: usize| {
            let row = &view.rows[at];
            (row.weight / view.load(row).weight).clamp(0.01, 1.0) as f32
        };
        let floor = self.settings.reward.resolution();
        let Work {
            at,
            costs,
            added,
            scores,
            near,
            ..
        } = work;
        let added = added.iter().copied().chain(std::iter::repeat(0.0));
        let scored = at.iter().zip(costs.iter().zip(added));
        let cost = |at: u32, cost: f32| cost.max(0.0) / ramp(at as usize) + cost.min(0.0);
        scores.clear();
        scores.extend(scored.map(|(at, (own, added))| (*at as usize, cost(*at, own + added))));
        let least = |keep: &dyn Fn(usize) -> bool| {
            let kept = scores.iter().filter(|(at, _)| keep(*at));
            kept.map(|(_, cost)| *cost).fold(f32::INFINITY, f32::min)
        };
        let in_few = |at: usize| few.contains(&at);
        let best = least(&|_| true);
        let best_few = least(&in_few);
        let slack = self.settings.k_slack.unwrap_or(f32::INFINITY);
        let filtered = best_few.is_finite() && best_few <= best + slack * best.abs().max(floor);
        let bound = if filtered { best_few } else { best };
        let bound = bound + self.settings.delta * bound.abs().max(floor);
        near.clear();
        let is_near = |(at, cost): &&(usize, f32)| *cost <= bound && (!filtered || in_few(*at));
        near.extend(scores.iter().filter(is_near).map(|(at, _)| *at));
        let reason = if filtered && best < best_few {
            Reason::KFilter
        } else if near.len() > 1 {
            Reason::LearnedTie
        } else {
            Reason::Learned
        };
        if self.settings.tie == Tie::Cached {
            let held = |at: usize| view.rows[at].matched_tokens;
            let most = near.iter().map(|at| held(*at)).fold(0.0, f64::max);
            near.retain(|at| held(*at) >= most);
        }
        let row = near.get(rng.below(near.len())).copied().unwrap_or(0);
        (row, reason)
    }
}
