//! When a model is trained, on what, and whether it takes the place of the one before.
//!
//! Samples collect in an inbox. The first `n_min` of them, and every `theta` after that, start a round: the pools take
//! them in, a model is fitted to what the pools then hold, and it is swapped in if it is any good. A round runs in a
//! thread of its own, which owns the pools meanwhile: no call waits for a lock, and the next call that finds it done
//! takes over its model. Or it runs in the caller, so that a simulation repeats exactly.
//!
//! Every tenth sample of an inbox is kept from the round that it starts and given to the pools afterwards: on those the
//! new model and the one before are compared, as neither has seen them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use cachelb_core::ids::Millis;

use super::{Fitting, Model, Pools, Replay, Scratch};
use crate::features::{Row, Sample};

/// One in so many samples is kept for the comparison.
const KEPT_BACK: usize = 10;
/// Fewer than that compare nothing.
const COMPARABLE: usize = 20;
/// A model may be so much worse than the one before: on few samples, luck makes that much of a difference, and the new
/// one has seen what came since.
const LEEWAY: f32 = 1.1;
/// Rounds due and not done well after which the model is stale.
const OVERDUE: u64 = 5;

/// Where a round runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Training {
    /// In a thread of its own.
    #[default]
    Background,
    /// In the call that brings the last sample for it.
    Inline,
}

/// When and how models are trained.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Samples before the first model.
    pub n_min: u64,
    /// Samples between two.
    pub theta: u64,
    /// The newest samples, all of them kept.
    pub fifo: usize,
    /// Older ones, some of them kept.
    pub replay: usize,
    /// Which.
    pub how: Replay,
    /// Samples after which nothing is learned any more.
    pub freeze_after: Option<u64>,
    /// How a model is fitted.
    pub fitting: Fitting,
    /// Where.
    pub training: Training,
    /// Seed of all that is drawn.
    pub seed: u64,
}

/// The inputs of a round.
#[derive(Debug)]
struct Task {
    inbox: VecDeque<Sample>,
    pools: Pools,
    gpus: Vec<String>,
    /// The model that decides, and whether it is worth comparing with.
    before: Option<Arc<Model>>,
    trusted: bool,
    fitting: Fitting,
    seed: u64,
    version: u64,
}

#[derive(Debug)]
enum Verdict {
    Better(Arc<Model>),
    Refused,
    Failed,
}

/// The results of a round.
#[derive(Debug)]
struct Outcome {
    pools: Pools,
    verdict: Verdict,
    seconds: f64,
}

/// Root mean square and mean absolute error of `model` on `samples`.
fn errors(model: &Model, samples: &[Sample]) -> (f32, f32) {
    let rows: Vec<Row> = samples.iter().map(|sample| sample.row).collect();
    let mut predicted = Vec::new();
    model.predict(&rows, &mut predicted, &mut Scratch::default());
    let errors = || {
        let pairs = predicted.iter().zip(samples);
        pairs.map(|(predicted, sample)| predicted - sample.cost)
    };
    let n = samples.len().max(1) as f32;
    let squares: f32 = errors().map(|error| error * error).sum();
    let absolute: f32 = errors().map(f32::abs).sum();
    ((squares / n).sqrt(), absolute / n)
}

impl Task {
    fn run(self, cancelled: &AtomicBool) -> Outcome {
        let begun = Instant::now();
        let mut pools = self.pools;
        let (mut check, mut learn) = (Vec::new(), Vec::with_capacity(self.inbox.len()));
        for (i, sample) in self.inbox.into_iter().enumerate() {
            if i % KEPT_BACK == KEPT_BACK / 2 {
                check.push(sample);
            } else {
                learn.push(sample);
            }
        }
        let before = self.before.as_deref();
        pools.add(&learn, before);
        let samples = pools.samples();
        let (fitting, seed, version) = (&self.fitting, self.seed, self.version);
        let fitted = Model::fit(&samples, &self.gpus, fitting, seed, version, cancelled);
        let verdict = match fitted {
            Ok(Some(model)) => {
                let before = before.filter(|_| self.trusted && check.len() >= COMPARABLE);
                if is_better(&model, before, &check) {
                    Verdict::Better(Arc::new(model))
                } else {
                    Verdict::Refused
                }
            }
            Ok(None) | Err(_) => Verdict::Failed,
        };
        pools.add(&check, before);
        Outcome {
            pools,
            verdict,
            seconds: begun.elapsed().as_secs_f64(),
        }
    }
}

/// Whether a new model is better than the mean, and not worse than the one before.
fn is_better(model: &Model, before: Option<&Model>, check: &[Sample]) -> bool {
    let own = model.errors();
    let finite = own.rmse.is_finite() && own.mae.is_finite();
    // Costs that are all the same leave nothing to be better at.
    if !finite || own.rmse > own.mean_rmse {
        return false;
    }
    let Some(before) = before else { return true };
    let (new, old) = (errors(model, check), errors(before, check));
    new.0 <= LEEWAY * old.0 || new.1 <= LEEWAY * old.1
}

/// A round in its thread.
#[derive(Debug)]
struct Running {
    handle: JoinHandle<Outcome>,
    cancelled: Arc<AtomicBool>,
    /// Threads do not live on in the child of a fork.
    process: u32,
}

impl Running {
    fn start(task: Task) -> std::result::Result<Self, std::io::Error> {
        let cancelled = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&cancelled);
        let thread = std::thread::Builder::new().name("cachelb-learned".into());
        Ok(Self {
            handle: thread.spawn(move || task.run(&seen))?,
            cancelled,
            process: std::process::id(),
        })
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

/// The samples, the pools and the model of one rule.
#[derive(Debug)]
pub struct Trainer {
    schedule: Schedule,
    inbox: VecDeque<Sample>,
    /// `None` while a round has them.
    pools: Option<Pools>,
    running: Option<Running>,
    model: Option<Arc<Model>>,
    /// The model was loaded, not trained here.
    pub loaded: bool,
    samples: u64,
    pooled: usize,
    rounds: u64,
    refused: u64,
    failed: u64,
    round_s: f64,
    /// Samples when a round last ended well, and when that was.
    confirmed: Option<(u64, Millis)>,
}

impl Trainer {
    /// Nothing learned but `model`.
    #[must_use]
    pub fn new(schedule: Schedule, model: Option<Arc<Model>>) -> Self {
        Self {
            pools: Some(pools(&schedule)),
            inbox: VecDeque::new(),
            running: None,
            loaded: model.is_some(),
            model,
            samples: 0,
            pooled: 0,
            rounds: 0,
            refused: 0,
            failed: 0,
            round_s: 0.0,
            confirmed: None,
            schedule,
        }
    }

    /// The model that decides.
    #[must_use]
    pub fn model(&self) -> Option<&Arc<Model>> {
        self.model.as_ref()
    }

    /// Takes a sample in. Returns whether another model decides from now on. `trusted` unless the one that does is
    /// known to be off.
    pub fn add(&mut self, sample: Sample, gpus: &[String], trusted: bool, now: Millis) -> bool {
        if self.is_frozen() {
            return false;
        }
        self.samples += 1;
        self.inbox.push_back(sample);
        // A round that takes longer than this many samples is given the newest.
        if self.inbox.len() as u64 > self.most_in_inbox() {
            self.inbox.pop_front();
        }
        self.confirmed.get_or_insert((0, now));
        let swapped = self.poll(now);
        self.begin(gpus, trusted);
        (self.schedule.training == Training::Inline && self.finish_inline(gpus, trusted, now))
            || swapped
    }

    fn is_frozen(&self) -> bool {
        let limit = self.schedule.freeze_after;
        limit.is_some_and(|limit| self.samples >= limit)
    }

    fn is_due(&self) -> bool {
        let wanted = if self.samples == self.inbox.len() as u64 {
            self.schedule.n_min
        } else {
            self.schedule.theta
        };
        self.inbox.len() as u64 >= wanted.min(self.most_in_inbox())
    }

    fn most_in_inbox(&self) -> u64 {
        (self.schedule.fifo + self.schedule.replay).max(1) as u64
    }

    fn task(&mut self, gpus: &[String], trusted: bool) -> Option<Task> {
        let pools = self.pools.take()?;
        let tries = self.rounds + self.refused + self.failed;
        let newest = self.model.as_ref().map_or(0, |model| model.version());
        Some(Task {
            inbox: std::mem::take(&mut self.inbox),
            pools,
            gpus: gpus.into(),
            before: self.model.clone(),
            trusted,
            fitting: self.schedule.fitting,
            seed: self.schedule.seed.wrapping_add(tries),
            version: newest + 1,
        })
    }

    /// Starts a round in a thread, if one is due and none runs.
    fn begin(&mut self, gpus: &[String], trusted: bool) {
        if self.schedule.training == Training::Inline || self.running.is_some() || !self.is_due() {
            return;
        }
        let Some(task) = self.task(gpus, trusted) else {
            return;
        };
        match Running::start(task) {
            Ok(running) => self.running = Some(running),
            // No thread is to be had: the samples of this round are lost with it.
            Err(_) => self.start_over(),
        }
    }

    fn finish_inline(&mut self, gpus: &[String], trusted: bool, now: Millis) -> bool {
        if !self.is_due() {
            return false;
        }
        let task = self.task(gpus, trusted);
        task.is_some_and(|task| {
            let outcome = task.run(&AtomicBool::new(false));
            self.take_over(outcome, now)
        })
    }

    /// Takes over what a round left. Returns whether another model decides from now on.
    pub fn poll(&mut self, now: Millis) -> bool {
        let Some(running) = &self.running else {
            return false;
        };
        if !running.is_here() {
            self.abandon();
            return false;
        }
        if !running.handle.is_finished() {
            return false;
        }
        let outcome = self.running.take().map(|running| running.handle.join());
        let Some(Ok(outcome)) = outcome else {
            // It panicked.
            self.start_over();
            return false;
        };
        self.take_over(outcome, now)
    }

    fn take_over(&mut self, outcome: Outcome, now: Millis) -> bool {
        self.pooled = outcome.pools.len();
        self.pools = Some(outcome.pools);
        self.round_s = outcome.seconds;
        match outcome.verdict {
            Verdict::Better(model) => {
                self.rounds += 1;
                self.confirmed = Some((self.samples, now));
                self.model = Some(model);
                self.loaded = false;
                return true;
            }
            Verdict::Refused => {
                self.refused += 1;
                // The one before was tried again, and stands.
                if self.model.is_some() {
                    self.confirmed = Some((self.samples, now));
                }
            }
            Verdict::Failed => self.failed += 1,
        }
        false
    }

    /// A round was lost, and the pools with it.
    fn start_over(&mut self) {
        self.failed += 1;
        self.pools = Some(pools(&self.schedule));
        self.pooled = 0;
    }

    /// Leaves a round to itself that runs in another process, if any.
    pub fn abandon(&mut self) {
        if let Some(running) = self.running.take() {
            if running.is_here() {
                self.running = Some(running);
            } else {
                // Its thread is not here: neither to be joined nor to be detached.
                std::mem::forget(running);
                self.pools = Some(pools(&self.schedule));
                self.pooled = 0;
            }
        }
    }

    /// Whether the model is too old: rounds are due and fail, or none was made for `max_age_ms` though samples came.
    #[must_use]
    pub fn is_stale(&self, max_age_ms: Option<u64>, now: Millis) -> bool {
        if self.running.is_some() || self.is_frozen() {
            return false;
        }
        let (samples, at) = self.confirmed.unwrap_or((self.samples, now));
        let since = self.samples - samples;
        let old = max_age_ms.is_some_and(|most| now.0.saturating_sub(at.0) > most);
        since >= OVERDUE.saturating_mul(self.schedule.theta.max(self.schedule.n_min))
            || (old && since > 0)
    }

    /// Fills in what it knows.
    pub fn tell(&self, stats: &mut super::LearnedStats) {
        stats.samples = self.samples;
        stats.pooled = self.pooled;
        stats.rounds = self.rounds;
        stats.refused = self.refused;
        stats.failed = self.failed;
        stats.training = self.running.is_some();
        stats.round_s = self.round_s;
        if let Some(model) = &self.model {
            let errors = model.errors();
            stats.version = model.version();
            stats.rmse = errors.rmse;
            stats.mae = errors.mae;
            stats.mean_rmse = errors.mean_rmse;
            stats.mean_mae = errors.mean_mae;
        }
    }
}

fn pools(schedule: &Schedule) -> Pools {
    Pools::new(schedule.fifo, schedule.replay, schedule.how, schedule.seed)
}

impl Drop for Trainer {
    fn drop(&mut self) {
        self.abandon();
        if let Some(running) = self.running.take() {
            running.cancelled.store(true, Ordering::Relaxed);
            // Its model, or that it panicked, no longer matters.
            let _ = running.handle.join();
        }
    }
}
