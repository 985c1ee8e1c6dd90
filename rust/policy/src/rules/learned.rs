//! The least expected cost, by a model that learns the costs of requests: Algorithms 3 and 4 of Lodestar.
//!
//! ```text
//! h <- the fallback's choice; it stands when the model cannot be asked, with the reason why:
//!     no model yet                                           -> cold-start
//!     the model is off, too old, of other units, too slow    -> model-drift, model-stale, normaliser-mismatch, model-timeout
//!     h lies where the model cannot predict                  -> stale-load, ood, model-drift
//!     it gives no number                                     -> model-error
//! a draw below epsilon                                       -> any worker (explore)
//! C <- the workers that the model can predict;  t_i <- the expected cost of the request on them
//! the cache is full and a hit is worth it                    -> K <- k rendezvous choices of the prompt's group
//!     else, and where they cost far more than the others     -> K <- C
//! s_i = t_i + crowding * L * w_i                             L requests per worker wait; w_i is t_i if the worker were idle
//! N <- those of K with s_i <= (1 + delta) * min over K       -> one of N (learned, learned-tie; k-filter if the best of C is not in K)
//! ```
//!
//! The model cannot predict a worker whose report is too old, that has a feature outside the training data, or whose
//! recent predictions were off. Such a worker is left to the fallback: a worker more loaded than any before is avoided,
//! and one that the fallback prefers is used, and learned from.
//!
//! The features of the worker that serves a request are kept until the request is answered, and become a sample.

mod columns;
mod distinct;
mod groups;
mod options;
mod reach;
mod scoring;
mod settings;
mod work;

use std::cell::{Cell, RefCell};

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::Millis;
use cachelb_core::load::Known;
use cachelb_core::rng::Rng;
use cachelb_learned::{
    Drift, LearnedStats, Measured, Model, Normaliser, Pending, PendingRows, Row, Trainer,
};

use self::columns::{Gpus, narrow, row};
use self::groups::{Groups, group};
pub(crate) use self::options::POLICY;
use self::reach::{is_overloaded, within_reach};
pub use self::settings::{Learning, Outside, Tie};
use self::work::Work;
use crate::common::crowd::Crowd;
use crate::rule::choice::Choice;
use crate::rule::memo::{Memory, Memos};
use crate::rule::parts::{self, Ended, state};
use crate::rule::reason::Reason;
use crate::rule::view::View;
use crate::rule::{Properties, Rule};

/// Reasons that are counted.
const COUNTED: [Reason; 12] = [
    Reason::Learned,
    Reason::LearnedTie,
    Reason::KFilter,
    Reason::Explore,
    Reason::ColdStart,
    Reason::Ood,
    Reason::StaleLoad,
    Reason::ModelError,
    Reason::ModelTimeout,
    Reason::ModelStale,
    Reason::ModelDrift,
    Reason::NormaliserMismatch,
];
/// A prediction that took too long is not asked for again for so many times its limit.
const PAUSE: u128 = 10;
/// Nothing costs that much: an hour.
const IMPOSSIBLE: f32 = 3_600.0;

/// The rule, its fallback, and all that it learns.
#[derive(Debug)]
pub struct Learned {
    settings: Learning,
    fallback: Box<dyn Rule>,
    gpus: Gpus,
    pending: PendingRows,
    trainer: Trainer,
    drift: Drift,
    normaliser: Option<Normaliser>,
    groups: Groups,
    crowd: Crowd,
    decisions: [u64; COUNTED.len()],
    work: RefCell<Work>,
    /// After a prediction that took too long, none is asked for until then.
    paused: Cell<Option<Millis>>,
}

impl Learned {
    /// A rule that has learned nothing but the model it is given.
    #[must_use]
    pub fn new(settings: Learning, fallback: Box<dyn Rule>) -> Self {
        let model = settings.model.clone();
        let mut rule = Self {
            gpus: Gpus::new(model.as_ref().map_or(&[], |model| model.gpus())),
            pending: PendingRows::new(settings.reward, settings.clip_s),
            drift: Drift::default(),
            normaliser: model
                .as_ref()
                .map(|model| Normaliser::new(model.normaliser())),
            trainer: Trainer::new(settings.schedule.clone(), model),
            groups: Groups::default(),
            crowd: Crowd::default(),
            decisions: [0; COUNTED.len()],
            work: RefCell::default(),
            paused: Cell::new(None),
            settings,
            fallback,
        };
        rule.start();
        rule
    }

    /// Another model decides from now on.
    fn start(&mut self) {
        if let Some(model) = self.trainer.model() {
            let floor = self.settings.reward.resolution();
            self.drift.start((model.errors().mae as f32).max(floor));
        }
        if !self.trainer.loaded {
            self.normaliser = None;
        }
    }

    fn version(&self) -> u64 {
        self.trainer.model().map_or(0, |model| model.version())
    }

    /// Why the model cannot be asked at all.
    fn refusal(&self, now: Millis) -> Option<Reason> {
        if !self.settings.guards {
            return None;
        }
        let mismatched = self.normaliser.as_ref();
        if mismatched.is_some_and(|normaliser| normaliser.mismatch) {
            Some(Reason::NormaliserMismatch)
        } else if self.drift.is_off() {
            Some(Reason::ModelDrift)
        } else if self.trainer.is_stale(self.settings.max_model_age_ms, now) {
            Some(Reason::ModelStale)
        } else if self.paused.get().is_some_and(|until| now < until) {
            Some(Reason::ModelTimeout)
        } else {
            None
        }
    }

    /// Why the model cannot tell of a worker.
    fn unknown(&self, model: &Model, view: &View<'_>, at: usize, row: &Row) -> Option<Reason> {
        let candidate = &view.rows[at];
        if view.is_stale(candidate) {
            Some(Reason::StaleLoad)
        } else if self.settings.outside != Outside::Ignored
            && model.outside(&within_reach(row, model)).is_some()
        {
            Some(Reason::Ood)
        } else if self.settings.guards && self.drift.is_off_on(candidate.order) {
            Some(Reason::ModelDrift)
        } else {
            None
        }
    }

    /// Fills `work` with the rows to be scored. Returns why the fallback's row `heuristic` stands, if it does.
    fn look(
        &self,
        model: &Model,
        view: &View<'_>,
        (heuristic, few): (usize, &[usize]),
        work: &mut Work,
        rng: &mut Rng,
    ) -> Option<Reason> {
        let n = view.rows.len();
        let sampled = (n > self.settings.max_scored).then(|| {
            let wanted: Vec<usize> = few.iter().copied().chain([heuristic]).collect();
            narrow(view, &wanted, self.settings.max_scored, rng)
        });
        // Why a worker was passed over, and whether it is the fallback's.
        let mut passed: Option<(Reason, bool)> = None;
        let mut see = |at: usize| {
            let row = row(view, &view.rows[at], &self.gpus);
            match self.unknown(model, view, at, &row) {
                // That the fallback would have it makes a worker no less overloaded than any before.
                Some(reason)
                    if at == heuristic
                        && !(reason == Reason::Ood && is_overloaded(&row, model)) =>
                {
                    passed = Some((reason, true));
                }
                Some(reason) => {
                    passed.get_or_insert((reason, false));
                }
                None => {
                    work.at.push(at as u32);
                    work.rows.push(row);
                }
            }
        };
        match sampled {
            Some(rows) => rows.into_iter().for_each(|at| see(at as usize)),
            None => (0..n).for_each(see),
        }
        let (reason, of_heuristic) = passed?;
        let stands = of_heuristic || work.at.is_empty() || self.settings.outside == Outside::Fleet;
        stands.then_some(reason)
    }

    /// The model's choice, or why the fallback's, row `heuristic`, stands.
    fn ask(
        &self,
        view: &View<'_>,
        heuristic: usize,
        rng: &mut Rng,
    ) -> std::result::Result<(usize, Reason), Reason> {
        let model = self.trainer.model().ok_or(Reason::ColdStart)?;
        let work = &mut *self.work.borrow_mut();
        work.begin(view, model.version());
        if let Some(reason) = self.refusal(view.now) {
            return Err(reason);
        }
        let few = self.few(view);
        if let Some(reason) = self.look(model, view, (heuristic, &few), work, rng) {
            return Err(reason);
        }
        if self.settings.epsilon > 0.0 && rng.unit() < self.settings.epsilon {
            return Ok((rng.below(view.rows.len()), Reason::Explore));
        }
        if let Some(reason) = self.predict(model, view, work) {
            return Err(reason);
        }
        Ok(self.best(view, &few, work, rng))
    }

    /// The expected cost of row `at`; `None` without a model, and where it was not trained.
    fn expected(&self, view: &View<'_>, at: usize, row: &Row) -> Option<f32> {
        let model = self.trainer.model()?;
        let work = &mut *self.work.borrow_mut();
        if work.is_of(view, model.version())
            && let Some(cost) = work.cost(at, row)
        {
            return Some(cost);
        }
        if model.outside(row).is_some() {
            return None;
        }
        let mut cost = Vec::with_capacity(1);
        model.predict(std::slice::from_ref(row), &mut cost, &mut work.scratch);
        cost.pop().filter(|cost| cost.is_finite())
    }

    /// Keeps the features of row `at`, which serves the request, until it is answered.
    fn keep(&mut self, view: &View<'_>, at: usize, memos: &mut Memos<'_>) {
        let row = row(view, &view.rows[at], &self.gpus);
        let pending = Pending {
            row,
            order: view.rows[at].order,
            at: view.now,
            predicted: self.expected(view, at, &row),
            version: self.version(),
            expected_output: view.expected_output_tokens,
            first_token: None,
        };
        if let Some(normaliser) = &mut self.normaliser {
            normaliser.observe(&row);
        }
        if let Some(group) = group(view, self.settings.prefix_tokens) {
            self.groups.add(group);
        }
        self.crowd.add(view, &view.rows[at]);
        // The features of a worker whose report is stale are not those it had.
        if !view.is_stale(&view.rows[at]) {
            memos.keep(Memory::Features(self.pending.open(pending)));
        }
        if self.trainer.poll(view.now) {
            self.start();
        }
    }

    fn learn(&mut self, measured: Option<Measured>, now: Millis) {
        let Some(Measured { pending, sample }) = measured else {
            return;
        };
        if let Some(predicted) = pending.predicted
            && pending.version == self.version()
        {
            self.drift.observe(pending.order, predicted, sample.cost);
        }
        let trusted = self.refusal(now).is_none();
        if self.trainer.add(sample, &self.gpus.names, trusted, now) {
            self.start();
        }
    }

    fn count(&mut self, reason: Reason) {
        if let Some(at) = COUNTED.iter().position(|counted| *counted == reason) {
            self.decisions[at] += 1;
        }
    }

    fn took(&mut self, view: &View<'_>, choice: Choice) {
        self.count(choice.reason);
        let learned = matches!(
            choice.reason,
            Reason::Learned | Reason::LearnedTie | Reason::KFilter
        );
        let flat = self.work.get_mut();
        if let Some(flat) = flat.flat.take().filter(|_| learned && view.rows.len() > 1) {
            self.drift.scored(flat);
        }
    }
}

impl Rule for Learned {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        // The scores of the fallback are not those of the model.
        let heuristic = self.fallback.choose(&view.unscored(), rng);
        // Without a prompt there is nothing to ask about.
        if heuristic.refused || view.rows.len() < 2 || view.prompt_tokens == 0 {
            return heuristic;
        }
        match self.ask(view, heuristic.row, rng) {
            Err(reason) => Choice {
                reason,
                ..heuristic
            },
            Ok((row, reason)) if view.rows[row].overlap > 0 => Choice::warm(row, reason),
            Ok((row, reason)) => Choice::cold(row, reason),
        }
    }

    fn settled(&mut self, view: &View<'_>, choice: Choice, served: usize, memos: &mut Memos<'_>) {
        let fallback = &mut self.fallback;
        fallback.settled(view, choice, served, &mut memos.inner());
        self.took(view, choice);
        self.keep(view, served, memos);
    }

    /// The expected cost of the request; unknown where the model cannot predict.
    fn score(&self, view: &View<'_>, at: usize) -> Option<f64> {
        let row = row(view, &view.rows[at], &self.gpus);
        let work = self.work.borrow();
        if work.is_of(view, self.version()) {
            return work.cost(at, &row).map(f64::from);
        }
        drop(work);
        self.expected(view, at, &row).map(f64::from)
    }

    fn scores(&self, view: &View<'_>) -> Vec<Known> {
        let mut scores = vec![Known::UNKNOWN; view.rows.len()];
        let work = &mut *self.work.borrow_mut();
        let version = self.version();
        if self.trainer.model().is_none() || !work.is_of(view, version) {
            return scores;
        }
        for (at, cost) in work.at.iter().zip(&work.costs) {
            scores[*at as usize] = Some(f64::from(*cost)).into();
        }
        scores
    }

    fn properties(&self) -> Properties {
        Properties {
            records_placement: true,
            higher_is_better: false,
            scored_in_passing: true,
            weighs_pairs: false,
            ..self.fallback.properties()
        }
    }

    fn inner(&self) -> Option<&dyn Rule> {
        Some(&*self.fallback)
    }

    fn inner_mut(&mut self) -> Option<&mut Box<dyn Rule>> {
        Some(&mut self.fallback)
    }

    state!(own => *own);
}

impl parts::State for Learned {
    fn describe(&mut self, order: u64, gpu: Option<&str>) {
        self.gpus.describe(order, gpu);
    }

    fn forget(&mut self, order: u64) {
        self.gpus.forget(order);
        self.drift.forget(order);
    }

    fn validate(&self) -> Result<()> {
        if !self.groups.agrees() {
            return Err(Error::Invariant("groups of prompts are miscounted".into()));
        }
        Ok(())
    }

    fn proven(&mut self, memory: &mut Memory, first_token: Option<Millis>) {
        if let Memory::Features(pending) = memory {
            let measured = self.pending.answered(pending, first_token);
            self.learn(measured, first_token.unwrap_or_default());
        }
    }

    fn served(&mut self, memory: &mut Memory, output_tokens: Option<u64>, now: Millis) {
        if let Memory::Features(pending) = memory {
            let measured = self.pending.served(pending, output_tokens, now);
            self.learn(measured, now);
        }
    }

    fn ended(&mut self, memory: &mut Memory, _ended: Ended) {
        if let Memory::Features(pending) = memory {
            self.pending.ended(pending);
        }
    }

    fn ended_all(&mut self) {
        self.trainer.abandon();
    }

    fn learned(&self) -> Option<LearnedStats> {
        let mut stats = LearnedStats {
            pending: self.pending.open,
            dropped: self.pending.dropped,
            drift: self.drift.error().into(),
            drifting: self.drift.off(),
            decisions: COUNTED
                .iter()
                .zip(self.decisions)
                .map(|(reason, count)| (reason.name(), count))
                .collect(),
            ..LearnedStats::default()
        };
        self.trainer.tell(&mut stats);
        Some(stats)
    }

    fn model(&self) -> Option<Vec<u8>> {
        self.trainer.model().map(|model| model.to_bytes())
    }
}
