//! The event loop: requests, engines and a gateway in simulated time.
//!
//! Events at one instant happen in this order: passes and transfers end, incidents, messages to the gateway arrive, load
//! is scraped, requests arrive; equal ones in the order they were scheduled. It decides what a burst sees of itself.
//!
//! | file | holds |
//! |---|---|
//! | `heap` | what happens when |
//! | `clients` | requests at the gateway, from their arrival to their end |
//! | `notices` | what gateways hear of answers, and when |
//! | `pairs` | requests whose prompt another worker computes |
//! | `passes` | passes of engines and what they bring |
//! | `feeds` | KV events that may get lost |
//! | `faults` | what happens to workers |
//! | `check` | a recount of everything |

mod check;
mod clients;
mod faults;
mod feeds;
mod heap;
mod notices;
mod pairs;
mod passes;

use cachelb_core::error::{Error, Result};
use cachelb_router::Role;

use crate::engine::{Engine, EngineLoad, Output};
use crate::gateway::{Gateway, Placed};
use crate::options::{Link, Options, WorkerSettings};
use crate::outcome::Outcomes;
use crate::workload::Workload;

use feeds::Feed;
use heap::{Heap, Kind, Notice};
use pairs::Half;

type Outcome<G> = std::result::Result<(), <G as Gateway>::Error>;

#[derive(Debug)]
struct Worker {
    engine: Engine,
    prefill_only: bool,
    role: Role,
    link: Link,
    slowdown: Vec<(f64, f64)>,
    alive: bool,
    /// Rises with every crash: passes of an earlier life end nowhere.
    epoch: u32,
}

/// What is known of a request under way.
#[derive(Debug, Clone, Default)]
struct Progress {
    /// Where it is; of a request on two workers, its half at work.
    placed: Option<Placed>,
    /// The other half.
    half: Option<Box<Half>>,
    tried: Vec<u32>,
    last_token: f64,
    unreported: u32,
    /// When the gateway has notice of its first token, if that is late.
    noticed: f64,
    done: bool,
}

impl Progress {
    /// Whether its prompt is being computed for another worker.
    fn prefills(&self) -> bool {
        matches!(self.half.as_deref(), Some(Half::Next(_)))
    }
}

/// A run under way. [`run`] is one from its beginning to its end.
#[derive(Debug)]
pub struct Run<'a, G> {
    workload: &'a Workload,
    options: &'a Options,
    gateway: &'a mut G,
    workers: Vec<Worker>,
    /// Whether requests go to two workers.
    pairs: bool,
    /// By worker, if messages are lost.
    feeds: Vec<Feed>,
    /// Late notices under way.
    unheard: usize,
    /// By gateway: the end of its last decision, if decisions take time.
    decided: Vec<f64>,
    heap: Heap,
    now: f64,
    progress: Vec<Progress>,
    children: Vec<Vec<u32>>,
    left: usize,
    outcomes: Outcomes,
    outputs: Vec<Output>,
    /// The gap that was counted last, and how often.
    gap: (f64, u64),
}

/// What ends a run early.
#[derive(Debug)]
pub enum Stopped<E> {
    /// The gateway's error.
    Gateway(E),
    /// A setting or the workload is out of range.
    Invalid(Error),
    /// The caller wanted no more.
    Interrupted,
}

impl<E> From<Error> for Stopped<E> {
    fn from(error: Error) -> Self {
        Self::Invalid(error)
    }
}

/// Runs `workload` over `fleet`, routed by `gateway`. `progress` is told how many requests are over, every thousand
/// events or so, and whether to go on is its answer.
///
/// # Errors
/// [`Stopped`].
pub fn run<G: Gateway>(
    workload: &Workload,
    fleet: &[WorkerSettings],
    gateway: &mut G,
    options: &Options,
    mut progress: impl FnMut(usize) -> bool,
) -> std::result::Result<Outcomes, Stopped<G::Error>> {
    let mut run = Run::new(workload, fleet, gateway, options)?;
    let mut events = 0_u32;
    while run.step().map_err(Stopped::Gateway)? {
        events += 1;
        if events.is_multiple_of(4096) && !progress(workload.len() - run.left) {
            return Err(Stopped::Interrupted);
        }
    }
    Ok(run.finish())
}

impl<'a, G: Gateway> Run<'a, G> {
    /// A run of which nothing happened yet.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a setting or a workload out of range.
    pub fn new(
        workload: &'a Workload,
        fleet: &[WorkerSettings],
        gateway: &'a mut G,
        options: &'a Options,
    ) -> Result<Self> {
        workload.check()?;
        options.check(fleet.len())?;
        let workers = workers(workload, fleet)?;
        let lossy = options.event_loss > 0.0;
        let feeds = (0..workers.len() as u64).filter(|_| lossy);
        let n = workload.len();
        let mut children = vec![Vec::new(); n];
        let mut heap = Heap::default();
        for id in 0..n as u32 {
            match usize::try_from(workload.parent[id as usize]) {
                Ok(parent) => children[parent].push(id),
                Err(_) => heap.at(workload.arrival[id as usize], Kind::Arrival { id }),
            }
        }
        for &(at, worker, what) in &options.incidents {
            heap.at(at, Kind::Incident { worker, what });
        }
        if options.scrape_interval.is_finite() {
            heap.at(0.0, Kind::Scrape);
        }
        if options.sample_interval.is_finite() {
            heap.at(0.0, Kind::Sample);
        }
        Ok(Self {
            workload,
            options,
            gateway,
            pairs: workers.iter().any(|worker| worker.role == Role::Prefill),
            unheard: 0,
            decided: Vec::new(),
            feeds: feeds.map(|worker| Feed::new(options, worker)).collect(),
            heap,
            now: 0.0,
            progress: vec![Progress::default(); n],
            left: n,
            outcomes: Outcomes::new(n, workers.len()),
            outputs: Vec::new(),
            gap: (0.0, 0),
            workers,
            children,
        })
    }

    /// Lets the next thing happen. Returns whether there was one before the run's end.
    ///
    /// # Errors
    /// The gateway's.
    pub fn step(&mut self) -> std::result::Result<bool, G::Error> {
        if self.left == 0 && self.unheard == 0 {
            return Ok(false);
        }
        let Some(event) = self.heap.pop() else {
            return Ok(false);
        };
        if event.at > self.options.until {
            return Ok(false);
        }
        self.now = event.at;
        self.gateway.elapse(event.at)?;
        self.handle(event.at, event.kind)?;
        Ok(true)
    }

    fn handle(&mut self, now: f64, kind: Kind) -> Outcome<G> {
        match kind {
            Kind::StepEnd { worker, epoch } => {
                if self.workers[worker as usize].epoch == epoch {
                    self.end_step(worker, now);
                }
            }
            Kind::Fetched { id, worker, epoch } => {
                if self.workers[worker as usize].epoch == epoch {
                    self.fetched(id, worker, now);
                }
            }
            Kind::Changes { worker, changes } => self.gateway.changed(worker, &changes, now)?,
            Kind::Message { worker, epoch, seq } => self.received(worker, epoch, seq, now)?,
            Kind::Replay {
                worker,
                epoch,
                from,
            } => self.replay(worker, epoch, from, now)?,
            Kind::Reports { at, loads } => {
                for (worker, load) in (0..).zip(loads) {
                    if self.workers[worker as usize].alive {
                        self.gateway.report(worker, load, at, now)?;
                    }
                }
            }
            Kind::FirstToken { id, placed } => {
                if self.is_current(id, placed) {
                    self.outcomes.first_token[id as usize] = now;
                    self.progress[id as usize].noticed = now + self.options.first_token_delay;
                    self.notice(id, placed, Notice::FirstToken, now)?;
                }
            }
            Kind::Tokens { id, placed, n } => {
                if self.is_current(id, placed) {
                    self.notice(id, placed, Notice::Tokens(n), now)?;
                }
            }
            Kind::Finished { id, placed } => {
                if self.is_current(id, placed) {
                    self.finished(id, placed, now)?;
                }
            }
            Kind::Notice { id, placed, notice } => {
                self.unheard -= 1;
                if self.progress[id as usize].placed == Some(placed) {
                    self.hear(placed, notice, now)?;
                }
            }
            Kind::Failed { id, placed } => {
                if self.is_current(id, placed) {
                    self.failed(id, placed, now)?;
                }
            }
            Kind::Ready { worker, ready } => self.gateway.set_ready(worker, ready, now)?,
            Kind::Scrape => {
                let loads = self.workers.iter().map(|w| self.reported(w)).collect();
                let reports = Kind::Reports { at: now, loads };
                self.heap.at(now + self.options.report_lag, reports);
                let next = now + self.options.scrape_interval;
                self.heap.at(next, Kind::Scrape);
            }
            Kind::Sample => self.sample(now),
            Kind::Incident { worker, what } => self.incident(worker, what, now)?,
            Kind::Arrival { id } => self.arrive(id, now)?,
            Kind::Decide { id } => {
                if !self.progress[id as usize].done {
                    self.decide(id, now)?;
                }
            }
            Kind::Enqueue { id, placed } => self.enqueue(id, placed, now),
            Kind::Abort { id } => self.abort(id, now)?,
            Kind::Drop { id, worker } => self.drop_request(id, worker, now),
        }
        Ok(())
    }

    /// What a worker says of its load.
    fn reported(&self, worker: &Worker) -> EngineLoad {
        let load = worker.engine.load();
        EngineLoad {
            queued_tokens: load
                .queued_tokens
                .filter(|_| self.options.report_queued_tokens),
            ..load
        }
    }

    fn sample(&mut self, now: f64) {
        self.outcomes.sample_time.push(now);
        for worker in &self.workers {
            let load = worker.engine.load();
            self.outcomes.samples.push([
                load.running as f32,
                load.waiting as f32,
                load.queued_tokens.unwrap_or(0) as f32,
                load.kv_usage as f32,
            ]);
        }
        let next = now + self.options.sample_interval;
        self.heap.at(next, Kind::Sample);
    }

    /// What it brought so far.
    #[must_use]
    pub fn finish(mut self) -> Outcomes {
        if self.gap.1 > 0 {
            self.outcomes.gaps.add(self.gap.0, self.gap.1);
        }
        for (i, worker) in self.workers.iter().enumerate() {
            self.outcomes.evicted[i] = worker.engine.pool().evicted();
            self.outcomes.worker_preemptions[i] = worker.engine.preemptions();
        }
        for (i, feed) in self.feeds.iter().enumerate() {
            self.outcomes.replays[i] = feed.replays();
        }
        self.outcomes
    }
}

fn workers(workload: &Workload, fleet: &[WorkerSettings]) -> Result<Vec<Worker>> {
    let mut workers = Vec::with_capacity(fleet.len());
    for settings in fleet {
        if settings.engine.block_size != workload.block_size {
            return Err(Error::InvalidSetting {
                name: "block_size",
                expected: "that of the workload",
                got: settings.engine.block_size.to_string(),
            });
        }
        workers.push(Worker {
            engine: Engine::new(settings.engine, settings.timing.clone())?,
            prefill_only: settings.prefill_only,
            role: settings.role,
            link: settings.link,
            slowdown: settings.slowdown.clone(),
            alive: true,
            epoch: 0,
        });
    }
    Ok(workers)
}
