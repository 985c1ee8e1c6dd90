//! The longest match in a tree of prompts, unless queues are too unlike: Ray Serve's prefix cache affinity.
//!
//! ```text
//! longest queue - shortest > imbalanced_threshold -> power of two (imbalance)
//! no prompt, or an empty one                      -> power of two (no-key, short-prompt)
//! nobody is known to hold anything                -> power of two (cold)
//! match / prompt < match_rate_threshold           -> the workers known to hold least (cold)
//! else                                            -> the workers of the deepest match (prefix)
//! of those the shortest queue; over the gate      -> least loaded (spill)
//! ```

use cachelb_core::error::Result;
use cachelb_core::ids::Millis;
use cachelb_core::load::Known;
use cachelb_core::rng::Rng;

use super::prompts::Prompts;
use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::gate::SpillGate;
use crate::rule::memo::{Memory, Memos};
use crate::rule::options::{ANY_NUMBER, Configure, FRACTION, Policy, Seconds, conflict, options};
use crate::rule::parts::state;
use crate::rule::reason::Reason;
use crate::rule::values::words;
use crate::rule::view::{Candidate, View, extremes, lowest_at};
use crate::rule::{Properties, Rule};
use crate::rules::power_of_two::{Compare, PowerOfTwo};

/// A system whose defaults are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compat {
    /// Ray Serve.
    Ray,
}

words!(Compat { Ray = "ray" });

options! {
    /// Ray Serve's prefix cache affinity: the longest match in a tree of texts, unless queues are too unlike.
    ///
    /// If the longest queue is more than `imbalanced_threshold` requests longer than the shortest, two random workers are
    /// compared (`imbalance`). Else the tree gives the workers that saw the longest beginning of the prompt, to the
    /// character. If that is `match_rate_threshold` of the prompt or more, the worker with the shortest queue among
    /// those that saw it serves (`prefix`), else the one of which the tree knows the least text (`cold`). A worker far
    /// above the mean load is left for the least loaded one (`spill`), which holds the prompt from then on. Requests
    /// without a prompt go to the better of two random workers (`no-key`, `short-prompt`).
    ///
    /// Prompts given as tokens are compared to the token, prompts given as hashes to the block; sizes count four characters
    /// a token then. `compat="ray"` is Ray's own behaviour: no queue is too long, no gate, and nothing is ever evicted.
    ///
    /// Example:
    ///     >>> policy = PrefixAffinity(seed=1)
    ///     >>> workers = ["gpu0", "gpu1"]
    ///     >>> first = policy.select_worker(workers, tokens=range(10))
    ///     >>> again = policy.select_worker(workers, tokens=[*range(7), 70, 80, 90])
    ///     >>> first.reason, again.reason, again.worker == first.worker
    ///     ('cold', 'prefix', True)
    pub struct PrefixAffinityOptions {
        /// Requests that the longest queue may be longer than the shortest. None is 10, as Ray's guide has it, and
        /// without limit with `compat="ray"`, as its code has it.
        imbalanced_threshold: Option<f64> = None, ANY_NUMBER;
        /// Share of the prompt that must match, inclusive.
        match_rate_threshold: f64 = 0.1, FRACTION;
        /// Whether the tree forgets. None is True, and False with `compat="ray"`: such a tree grows without limit.
        do_eviction: Option<bool> = None;
        /// Characters known of one worker above which the least recently used leave.
        eviction_threshold_chars: u64 = 400_000, (1, u64::MAX);
        /// Characters that are left then.
        eviction_target_chars: u64 = 360_000, (0, u64::MAX);
        /// Seconds between two looks at the sizes. One at twice the threshold does not wait.
        eviction_interval_secs: Seconds = Seconds::of(10);
        /// "ray" for the defaults of Ray Serve.
        compat: Option<Compat> = None;
        /// Whether a worker with far more requests than the mean is left for the least loaded. None is True, and False
        /// with `compat="ray"`: then a text that all share may send everything to one worker.
        gate: Option<bool> = None;
    }
}

/// The policy.
pub(crate) const POLICY: Policy =
    Policy::of::<PrefixAffinityOptions>(About::placed("prefix-affinity", "PrefixAffinity"));

impl Configure for PrefixAffinityOptions {
    fn ruled(&self, setup: &Setup) -> Result<Ruled> {
        let as_ray = self.compat.is_some();
        let limit = if as_ray { f64::INFINITY } else { 10.0 };
        let forgets = self.do_eviction.unwrap_or(!as_ray);
        if forgets && self.eviction_target_chars > self.eviction_threshold_chars {
            return Err(conflict(format!(
                "eviction_target_chars is {}, more than the {} of eviction_threshold_chars",
                self.eviction_target_chars, self.eviction_threshold_chars
            )));
        }
        let forgetting = Forgetting {
            threshold: self.eviction_threshold_chars,
            target: self.eviction_target_chars,
            interval_ms: self.eviction_interval_secs.millis(),
        };
        let gate = self.gate.unwrap_or(!as_ray);
        let rule = PrefixAffinity::new(Affinity {
            imbalanced_threshold: self.imbalanced_threshold.unwrap_or(limit) / setup.replicas,
            match_rate_threshold: self.match_rate_threshold,
            forgetting: forgets.then_some(forgetting),
            gate: gate.then(|| setup.default_gate()),
        });
        Ok(Ruled::new(rule, Need::CONTENT))
    }
}

/// Settings of the rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Affinity {
    /// Requests that the longest queue may be longer than the shortest.
    pub imbalanced_threshold: f64,
    /// Share of the prompt that must match.
    pub match_rate_threshold: f64,
    /// When the tree forgets, `None` for never.
    pub forgetting: Option<Forgetting>,
    /// When a worker is too loaded; `None` never asks, as Ray does.
    pub gate: Option<SpillGate>,
}

/// When texts are forgotten, by their size in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgetting {
    /// Characters of one worker above which it happens.
    pub threshold: u64,
    /// Characters that are left.
    pub target: u64,
    /// Time between two looks.
    pub interval_ms: u64,
}

/// The rule with its tree.
#[derive(Debug)]
pub struct PrefixAffinity {
    settings: Affinity,
    prompts: Prompts,
    looked: Millis,
}

const TWO: PowerOfTwo = PowerOfTwo {
    choices: 2,
    load: Compare::Inflight,
};

impl PrefixAffinity {
    /// A rule that has seen no prompt.
    #[must_use]
    pub fn new(settings: Affinity) -> Self {
        Self {
            settings,
            prompts: Prompts::default(),
            looked: Millis(0),
        }
    }

    fn is_imbalanced(&self, rows: &[Candidate]) -> bool {
        let (low, high) = extremes(rows.iter().map(Candidate::load));
        high - low > self.settings.imbalanced_threshold
    }

    fn forget_some(&mut self, view: &View<'_>, latest: &Candidate) {
        let Some(forgetting) = self.settings.forgetting else {
            return;
        };
        if view.now.0.saturating_sub(self.looked.0) >= forgetting.interval_ms {
            self.looked = view.now;
            self.prompts.shrink(forgetting.threshold, forgetting.target);
        } else if self.prompts.size(latest) > forgetting.threshold.saturating_mul(2) {
            self.prompts.shrink_one(latest, forgetting.target);
        }
    }
}

impl Rule for PrefixAffinity {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let two = |rng: &mut Rng, reason| Choice {
            reason,
            ..TWO.choose(view, rng)
        };
        if self.is_imbalanced(view.rows) {
            return two(rng, Reason::Imbalance);
        }
        let depths = match self.prompts.depths(view) {
            None => return two(rng, Reason::NoKey),
            Some(depths) if depths.total == 0 => return two(rng, Reason::ShortPrompt),
            Some(depths) => depths,
        };
        let sizes: Vec<u64> = view.rows.iter().map(|row| self.prompts.size(row)).collect();
        if sizes.iter().all(|size| *size == 0) {
            return two(rng, Reason::Cold);
        }
        let best = depths.held.iter().copied().max().unwrap_or(0);
        let matches = best > 0
            && f64::from(best) >= self.settings.match_rate_threshold * f64::from(depths.total);
        let least = sizes.iter().copied().min().unwrap_or(0);
        let queue = |i: usize| {
            let stands = if matches {
                depths.held[i] == best
            } else {
                sizes[i] == least
            };
            stands.then(|| view.rows[i].load())
        };
        let chosen = lowest_at(view.rows.len(), rng, queue).unwrap_or(0);
        let gate = self.settings.gate;
        let kept = if matches {
            Choice::warm(chosen, Reason::Prefix)
        } else {
            Choice::cold(chosen, Reason::Cold)
        };
        kept.or_spilled(gate.and_then(|gate| gate.spill(view.rows, chosen, rng)))
    }

    fn settled(&mut self, view: &View<'_>, choice: Choice, _served: usize, memos: &mut Memos<'_>) {
        let row = &view.rows[choice.row];
        if let Some(sent) = self.prompts.record(view, row) {
            memos.keep(Memory::Prompt(sent));
        }
        self.forget_some(view, row);
    }

    /// Share of the prompt.
    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        let depths = self.prompts.depths(view)?;
        Some(f64::from(depths.held[row]) / f64::from(depths.total.max(1)))
    }

    fn scores(&self, view: &View<'_>) -> Vec<Known> {
        let depths = self.prompts.depths(view).unwrap_or_default();
        let share = |held: &u32| f64::from(*held) / f64::from(depths.total.max(1));
        let mut scores: Vec<_> = depths
            .held
            .iter()
            .map(|held| Some(share(held)).into())
            .collect();
        scores.resize(view.rows.len(), Known::UNKNOWN);
        scores
    }

    fn properties(&self) -> Properties {
        Properties {
            keeps_prompts: true,
            // After the request was recorded every row would count it: only an explanation asks.
            scored_in_passing: false,
            ..Properties::CACHED
        }
    }

    state!(own => own.prompts);
}

#[cfg(test)]
#[path = "tests/prefix_affinity.rs"]
mod tests;
