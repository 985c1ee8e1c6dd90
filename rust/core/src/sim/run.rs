//! The event loop: requests, engines and a gateway in simulated time.
//!
//! Events at one instant happen in this order: passes end, messages to the gateway arrive, load is scraped, requests
//! arrive; equal ones in the order they were scheduled. It decides what a burst sees of itself.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::error::{Error, Result};

use super::engine::{Engine, EngineLoad, Output};
use super::gateway::{Attempt, Gateway, Placed};
use super::kv::Change;
use super::options::{Incident, Options, WorkerSettings};
use super::outcome::{Outcomes, Status};
use super::workload::Workload;

#[derive(Debug, Clone)]
enum Kind {
    StepEnd { worker: u32, epoch: u32 },
    Changes { worker: u32, changes: Vec<Change> },
    Reports { at: f64, loads: Vec<EngineLoad> },
    FirstToken { id: u32, placed: Placed },
    Tokens { placed: Placed, n: u32 },
    Finished { id: u32, placed: Placed, last: f64 },
    Failed { id: u32, placed: Placed },
    Ready { worker: u32, ready: bool },
    Scrape,
    Sample,
    Incident { worker: u32, what: Incident },
    Arrival { id: u32 },
    Enqueue { id: u32, placed: Placed },
}

impl Kind {
    fn class(&self) -> u8 {
        match self {
            Self::StepEnd { .. } => 0,
            Self::Incident { .. } => 1,
            Self::Changes { .. }
            | Self::Reports { .. }
            | Self::FirstToken { .. }
            | Self::Tokens { .. }
            | Self::Finished { .. }
            | Self::Failed { .. }
            | Self::Ready { .. } => 2,
            Self::Scrape | Self::Sample => 3,
            Self::Arrival { .. } | Self::Enqueue { .. } => 4,
        }
    }
}

#[derive(Debug)]
struct Event {
    at: f64,
    class: u8,
    number: u64,
    kind: Kind,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Event {}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Event {
    /// The heap gives the greatest first, so what comes first is greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |e: &Self| (e.class, e.number);
        other
            .at
            .total_cmp(&self.at)
            .then_with(|| key(other).cmp(&key(self)))
    }
}

#[derive(Debug)]
struct Worker {
    engine: Engine,
    prefill_only: bool,
    slowdown: Vec<(f64, f64)>,
    alive: bool,
    /// Rises with every crash: passes of an earlier life end nowhere.
    epoch: u32,
}

/// What is known of a request under way.
#[derive(Debug, Clone, Default)]
struct Progress {
    placed: Option<Placed>,
    tried: Vec<u32>,
    last_token: f64,
    unreported: u32,
    done: bool,
}

struct Run<'a, G> {
    workload: &'a Workload,
    options: &'a Options,
    gateway: &'a mut G,
    workers: Vec<Worker>,
    heap: BinaryHeap<Event>,
    scheduled: u64,
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
    workload.check()?;
    options.check(fleet.len())?;
    let mut run = Run::new(workload, fleet, gateway, options)?;
    let mut events = 0_u32;
    while run.left > 0 {
        let Some(event) = run.heap.pop() else { break };
        if event.at > options.until {
            break;
        }
        run.handle(event.at, event.kind).map_err(Stopped::Gateway)?;
        events += 1;
        if events.is_multiple_of(4096) && !progress(workload.len() - run.left) {
            return Err(Stopped::Interrupted);
        }
    }
    Ok(run.finish())
}

impl<'a, G: Gateway> Run<'a, G> {
    fn new(
        workload: &'a Workload,
        fleet: &[WorkerSettings],
        gateway: &'a mut G,
        options: &'a Options,
    ) -> Result<Self> {
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
                slowdown: settings.slowdown.clone(),
                alive: true,
                epoch: 0,
            });
        }
        let n = workload.len();
        let mut children = vec![Vec::new(); n];
        let mut run = Self {
            workload,
            options,
            gateway,
            heap: BinaryHeap::new(),
            scheduled: 0,
            progress: vec![Progress::default(); n],
            left: n,
            outcomes: Outcomes::new(n, workers.len()),
            outputs: Vec::new(),
            gap: (0.0, 0),
            workers,
            children: Vec::new(),
        };
        for id in 0..n as u32 {
            match usize::try_from(workload.parent[id as usize]) {
                Ok(parent) => children[parent].push(id),
                Err(_) => run.at(workload.arrival[id as usize], Kind::Arrival { id }),
            }
        }
        run.children = children;
        for &(at, worker, what) in &options.incidents {
            run.at(at, Kind::Incident { worker, what });
        }
        if options.scrape_interval.is_finite() {
            run.at(0.0, Kind::Scrape);
        }
        if options.sample_interval.is_finite() {
            run.at(0.0, Kind::Sample);
        }
        Ok(run)
    }

    fn at(&mut self, at: f64, kind: Kind) {
        self.scheduled += 1;
        self.heap.push(Event {
            at,
            class: kind.class(),
            number: self.scheduled,
            kind,
        });
    }

    fn handle(&mut self, now: f64, kind: Kind) -> std::result::Result<(), G::Error> {
        match kind {
            Kind::StepEnd { worker, epoch } => {
                if self.workers[worker as usize].epoch == epoch {
                    self.end_step(worker, now);
                }
            }
            Kind::Changes { worker, changes } => self.gateway.changed(worker, &changes, now)?,
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
                    self.gateway.first_token(placed, now)?;
                }
            }
            Kind::Tokens { placed, n } => self.gateway.tokens(placed, n, now)?,
            Kind::Finished { id, placed, last } => {
                let cached = self.outcomes.cached_tokens[id as usize];
                self.gateway.finished(placed, cached, now)?;
                self.over(id, Status::Finished, last, now);
            }
            Kind::Failed { id, placed } => self.failed(id, placed, now)?,
            Kind::Ready { worker, ready } => self.gateway.set_ready(worker, ready, now)?,
            Kind::Scrape => {
                let loads = self.workers.iter().map(|w| w.engine.load()).collect();
                let reports = Kind::Reports { at: now, loads };
                self.at(now + self.options.report_lag, reports);
                self.at(now + self.options.scrape_interval, Kind::Scrape);
            }
            Kind::Sample => {
                self.outcomes.sample_time.push(now);
                for worker in &self.workers {
                    let load = worker.engine.load();
                    self.outcomes.samples.push([
                        load.running as f32,
                        load.waiting as f32,
                        load.queued_tokens as f32,
                        load.kv_usage as f32,
                    ]);
                }
                self.at(now + self.options.sample_interval, Kind::Sample);
            }
            Kind::Incident { worker, what } => self.incident(worker, what, now),
            Kind::Arrival { id } => {
                self.outcomes.arrival[id as usize] = now;
                self.place(id, now)?;
            }
            Kind::Enqueue { id, placed } => self.enqueue(id, placed, now),
        }
        Ok(())
    }

    fn is_current(&self, id: u32, placed: Placed) -> bool {
        let progress = &self.progress[id as usize];
        !progress.done && progress.placed == Some(placed)
    }

    /// Asks the gateway where a request goes.
    fn place(&mut self, id: u32, now: f64) -> std::result::Result<(), G::Error> {
        if self.options.oracle {
            for (at, worker) in (0..).zip(&self.workers) {
                if worker.alive {
                    self.gateway.report(at, worker.engine.load(), now, now)?;
                }
            }
        }
        let progress = &self.progress[id as usize];
        let attempt = Attempt {
            id,
            attempt: progress.tried.len() as u32,
            tried: &progress.tried,
            now,
        };
        self.outcomes.selections += 1;
        let Some(placed) = self.gateway.select(&attempt)? else {
            self.over(id, Status::Rejected, now, now);
            return Ok(());
        };
        let i = id as usize;
        self.outcomes.worker[i] = placed.worker.cast_signed();
        self.outcomes.reason[i] = placed.reason;
        self.outcomes.predicted_tokens[i] = placed.predicted_tokens;
        self.progress[i].placed = Some(placed);
        self.at(now + self.options.net_delay, Kind::Enqueue { id, placed });
        Ok(())
    }

    fn enqueue(&mut self, id: u32, placed: Placed, now: f64) {
        if !self.is_current(id, placed) {
            return;
        }
        let worker = &mut self.workers[placed.worker as usize];
        if !worker.alive {
            self.at(now + self.options.net_delay, Kind::Failed { id, placed });
            return;
        }
        let mut job = self.workload.job(id);
        if worker.prefill_only {
            job.output_tokens = 1;
        }
        if !worker.engine.fits(job) {
            self.at(now + self.options.net_delay, Kind::Failed { id, placed });
            return;
        }
        worker.engine.enqueue(job);
        self.start(placed.worker, now);
    }

    /// Begins a pass, unless one is under way.
    fn start(&mut self, at: u32, now: f64) {
        let worker = &mut self.workers[at as usize];
        if worker.engine.in_step() || !worker.alive {
            return;
        }
        let Some(seconds) = worker.engine.begin_step(self.workload) else {
            return;
        };
        let slower = worker.slowdown.iter().rev().find(|(from, _)| *from <= now);
        let seconds = seconds * slower.map_or(1.0, |(_, factor)| *factor);
        let epoch = worker.epoch;
        self.outcomes.busy[at as usize] += seconds;
        self.at(now + seconds, Kind::StepEnd { worker: at, epoch });
    }

    fn end_step(&mut self, at: u32, now: f64) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.workers[at as usize]
            .engine
            .end_step(self.workload, &mut outputs);
        for output in outputs.drain(..) {
            self.output(output, now);
        }
        self.outputs = outputs;
        let pool = self.workers[at as usize].engine.pool_mut();
        if pool.has_changes() {
            let changes = pool.changes().collect();
            self.at(
                now + self.options.event_lag,
                Kind::Changes {
                    worker: at,
                    changes,
                },
            );
        }
        self.start(at, now);
    }

    fn output(&mut self, output: Output, now: f64) {
        let back = now + self.options.net_delay;
        match output {
            Output::Admitted { id, cached_tokens } => {
                self.outcomes.cached_tokens[id as usize] = cached_tokens;
            }
            Output::FirstToken { id } => {
                let progress = &mut self.progress[id as usize];
                progress.last_token = now;
                let Some(placed) = progress.placed else {
                    return;
                };
                self.at(back, Kind::FirstToken { id, placed });
            }
            Output::Token { id } => {
                let progress = &mut self.progress[id as usize];
                let gap = now - progress.last_token;
                progress.last_token = now;
                progress.unreported += 1;
                let due = progress.unreported >= self.options.tokens_per_message;
                if due && let Some(placed) = progress.placed {
                    let n = std::mem::take(&mut progress.unreported);
                    self.at(back, Kind::Tokens { placed, n });
                }
                self.count_gap(gap);
            }
            Output::Finished { id, preemptions } => {
                self.outcomes.preemptions[id as usize] += preemptions;
                let progress = &mut self.progress[id as usize];
                let Some(placed) = progress.placed else {
                    return;
                };
                let n = std::mem::take(&mut progress.unreported);
                if n > 0 {
                    self.at(back, Kind::Tokens { placed, n });
                }
                self.at(
                    back,
                    Kind::Finished {
                        id,
                        placed,
                        last: back,
                    },
                );
            }
        }
    }

    /// All sequences of a pass have the same gap, so counting is put off while it stays the same.
    fn count_gap(&mut self, gap: f64) {
        if self.gap.1 > 0 && self.gap.0.total_cmp(&gap).is_ne() {
            self.outcomes.gaps.add(self.gap.0, self.gap.1);
            self.gap.1 = 0;
        }
        self.gap = (gap, self.gap.1 + 1);
    }

    fn failed(&mut self, id: u32, placed: Placed, now: f64) -> std::result::Result<(), G::Error> {
        if !self.is_current(id, placed) {
            return Ok(());
        }
        self.gateway.failed(placed, now)?;
        let i = id as usize;
        let too_long = {
            let job = self.workload.job(id);
            !self.workers.iter().any(|worker| worker.engine.fits(job))
        };
        let progress = &mut self.progress[i];
        progress.placed = None;
        progress.unreported = 0;
        progress.tried.push(placed.worker);
        self.outcomes.first_token[i] = f64::NAN;
        if too_long {
            self.over(id, Status::TooLong, now, now);
        } else if progress.tried.len() as u32 <= self.options.retries {
            self.outcomes.retries[i] += 1;
            self.place(id, now)?;
        } else {
            self.over(id, Status::Failed, now, now);
        }
        Ok(())
    }

    /// A request is over; those that follow it come after their thought.
    fn over(&mut self, id: u32, status: Status, finish: f64, now: f64) {
        let i = id as usize;
        debug_assert!(!self.progress[i].done, "a request ends once");
        self.progress[i].done = true;
        self.progress[i].tried = Vec::new();
        self.outcomes.status[i] = status;
        self.outcomes.finish[i] = finish;
        self.outcomes.end = self.outcomes.end.max(finish);
        self.left -= 1;
        for child in std::mem::take(&mut self.children[i]) {
            let think = self.workload.think[child as usize];
            self.at(now + think, Kind::Arrival { id: child });
        }
    }

    fn incident(&mut self, at: u32, what: Incident, now: f64) {
        let known = now + self.options.detection_delay;
        let worker = &mut self.workers[at as usize];
        match what {
            Incident::Crash => {
                worker.alive = false;
                worker.epoch += 1;
                let lost = worker.engine.crash();
                // Nothing is sent by a worker that crashed; what it held is known to be gone when it is back.
                drop(worker.engine.pool_mut().changes());
                self.at(
                    known,
                    Kind::Ready {
                        worker: at,
                        ready: false,
                    },
                );
                for id in lost {
                    if let Some(placed) = self.progress[id as usize].placed {
                        self.at(now + self.options.net_delay, Kind::Failed { id, placed });
                    }
                }
            }
            Incident::Join => {
                worker.alive = true;
                if worker.engine.is_followed() {
                    let changes = vec![Change::Cleared];
                    let kind = Kind::Changes {
                        worker: at,
                        changes,
                    };
                    self.at(known, kind);
                }
                self.at(
                    known,
                    Kind::Ready {
                        worker: at,
                        ready: true,
                    },
                );
            }
            Incident::Drain => self.at(
                now,
                Kind::Ready {
                    worker: at,
                    ready: false,
                },
            ),
        }
    }

    fn finish(mut self) -> Outcomes {
        if self.gap.1 > 0 {
            self.outcomes.gaps.add(self.gap.0, self.gap.1);
        }
        for (i, worker) in self.workers.iter().enumerate() {
            self.outcomes.evicted[i] = worker.engine.pool().evicted();
            self.outcomes.worker_preemptions[i] = worker.engine.preemptions();
        }
        self.outcomes
    }
}
