//! The event loop: requests, engines and a gateway in simulated time.
//!
//! Events at one instant happen in this order: passes and transfers end, incidents, messages to the gateway arrive,
//! load is scraped, requests arrive; equal ones in the order they were scheduled. The order decides what a burst sees
//! of itself.
//!
//! | file | holds |
//! |---|---|
//! | `heap` | the queue of future steps, by time |
//! | `worker`, `requests` | their state |
//! | `clients` | requests at the gateway, from their arrival to their end |
//! | `notices` | notices of answers to gateways, which may be late |
//! | `pairs` | requests whose prompt another worker computes |
//! | `passes` | passes of engines and their results |
//! | `pooled` | the pool that workers share |
//! | `feeds` | KV events that may get lost |
//! | `faults` | incidents of workers |

#[cfg(test)]
#[path = "tests/check.rs"]
mod check;
mod clients;
mod faults;
mod feeds;
mod heap;
mod notices;
mod pairs;
mod passes;
mod pooled;
mod requests;
mod worker;

use cachelb::selector::Role;
use cachelb_core::error::{Error, Result};

use crate::engine::Output;
use crate::gateway::{Gateway, News};
use crate::options::{Options, WorkerSettings};
use crate::outcome::Outcomes;
use crate::workload::Workload;

use feeds::Feed;
use heap::{Heap, Kind};
use requests::Requests;
use worker::Worker;

type Outcome<G> = std::result::Result<(), <G as Gateway>::Error>;

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
    requests: Requests,
    outcomes: Outcomes,
    outputs: Vec<Output>,
}

/// The reason that a run ended early.
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

/// Runs `workload` over `fleet`, routed by `gateway`. `progress` is called with the number of requests that are over,
/// every thousand events or so, and returns whether to go on.
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
        if events.is_multiple_of(4096) && !progress(workload.len() - run.requests.left) {
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
        let workers = (0..).zip(fleet);
        let workers = workers.map(|(at, settings)| Worker::new(at, settings, workload));
        let mut workers = workers.collect::<Result<Vec<_>>>()?;
        pooled::join(&mut workers, fleet)?;
        let lossy = options.event_loss > 0.0;
        let feeds = (0..workers.len() as u32).filter(|_| lossy);
        let mut heap = Heap::default();
        let requests = Requests::new(workload, &mut heap);
        for &(at, worker, what) in &options.incidents {
            heap.at(at, Kind::Incident(worker, what));
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
            requests,
            outcomes: Outcomes::new(workload.len(), workers.len()),
            outputs: Vec::new(),
            workers,
        })
    }

    /// Lets the next thing happen. Returns whether there was one before the run's end.
    ///
    /// # Errors
    /// The gateway's.
    pub fn step(&mut self) -> std::result::Result<bool, G::Error> {
        if self.requests.left == 0 && self.unheard == 0 {
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
        self.admit(event.at)?;
        Ok(true)
    }

    fn handle(&mut self, now: f64, kind: Kind) -> Outcome<G> {
        match kind {
            Kind::StepEnd(life) => {
                if self.workers[life.worker as usize].life == life {
                    self.end_step(life.worker, now);
                }
            }
            Kind::Fetched(id, life) => {
                if self.workers[life.worker as usize].life == life {
                    self.fetched(id, life.worker, now);
                }
            }
            Kind::Pulled(id, life, source, tokens) => {
                if self.workers[life.worker as usize].life == life {
                    self.pulled(id, life, source, tokens, now);
                }
            }
            Kind::Changes(worker, changes) => {
                self.gateway.news(News::Changed(worker, &changes), now)?;
            }
            Kind::PoolChanges(changes) => {
                self.gateway.news(News::PoolChanged(&changes), now)?;
            }
            Kind::Message(life, seq) => {
                self.feeds[life.worker as usize].receive(life, seq);
                self.relay(life.worker, now)?;
            }
            Kind::Replay(life, from) => {
                let i = life.worker as usize;
                self.feeds[i].replay(life, from, self.workers[i].alive);
                self.relay(life.worker, now)?;
            }
            Kind::Reports(at, loads) => {
                for (worker, load) in (0..).zip(loads) {
                    if self.workers[worker as usize].alive {
                        self.gateway.news(News::Report(worker, load, at), now)?;
                    }
                }
            }
            Kind::Request(id, placed, step) => {
                if self.requests.all[id as usize].is_at(placed) {
                    self.proceed(id, placed, step, now)?;
                }
            }
            Kind::Notice(id, placed, notice) => {
                self.unheard -= 1;
                if self.requests.all[id as usize].placed == Some(placed) {
                    self.gateway.notice(placed, notice, now)?;
                }
            }
            Kind::Ready(worker, ready) => self.gateway.news(News::Ready(worker, ready), now)?,
            Kind::Scrape => {
                let loads = self
                    .workers
                    .iter()
                    .map(|w| w.report(self.options))
                    .collect();
                let reports = Kind::Reports(now, loads);
                self.heap.at(now + self.options.report_lag, reports);
                let next = now + self.options.scrape_interval;
                self.heap.at(next, Kind::Scrape);
            }
            Kind::Sample => {
                let loads = self.workers.iter().map(|worker| worker.engine.load());
                self.outcomes.sample(now, loads);
                let next = now + self.options.sample_interval;
                self.heap.at(next, Kind::Sample);
            }
            Kind::Incident(worker, what) => self.incident(worker, what, now)?,
            Kind::Arrival(id) => self.arrive(id, now)?,
            Kind::Decide(id) => {
                if !self.requests.all[id as usize].done {
                    self.decide(id, now)?;
                }
            }
            Kind::Expire(id) => {
                if self.requests.all[id as usize].is_held {
                    self.decide(id, now)?;
                }
            }
            Kind::Abort(id) => self.abort(id, now)?,
            Kind::Drop(id, worker) => {
                if self.workers[worker as usize].engine.abort(id) {
                    self.start(worker, now);
                }
            }
        }
        Ok(())
    }

    /// The outcomes so far.
    #[must_use]
    pub fn finish(mut self) -> Outcomes {
        self.outcomes.gaps.settle();
        for (i, worker) in self.workers.iter().enumerate() {
            self.outcomes.evicted[i] = worker.engine.cache.pool.evicted;
            self.outcomes.worker_preemptions[i] = worker.engine.preemptions;
        }
        for (i, feed) in self.feeds.iter().enumerate() {
            self.outcomes.replays[i] = feed.replays();
        }
        self.outcomes
    }
}
