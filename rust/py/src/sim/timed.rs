//! What selections cost in real time, which the core has no clock for.

use std::time::Instant;

use cachelb_core::sim::{Attempt, Change, EngineLoad, Gateway, Placed};

/// A gateway and how long each of its selections took.
#[derive(Debug)]
pub struct Timed<G> {
    inner: G,
    nanoseconds: Vec<u32>,
}

impl<G> Timed<G> {
    pub fn new(inner: G) -> Self {
        Self {
            inner,
            nanoseconds: Vec::new(),
        }
    }

    pub fn into_nanoseconds(self) -> Vec<u32> {
        self.nanoseconds
    }
}

impl<G: Gateway> Gateway for Timed<G> {
    type Error = G::Error;

    fn select(&mut self, attempt: &Attempt<'_>) -> Result<Option<Placed>, G::Error> {
        let begin = Instant::now();
        let placed = self.inner.select(attempt);
        let ns = u32::try_from(begin.elapsed().as_nanos()).unwrap_or(u32::MAX);
        self.nanoseconds.push(ns);
        placed
    }

    fn first_token(&mut self, placed: Placed, now: f64) -> Result<(), G::Error> {
        self.inner.first_token(placed, now)
    }

    fn tokens(&mut self, placed: Placed, n: u32, now: f64) -> Result<(), G::Error> {
        self.inner.tokens(placed, n, now)
    }

    fn finished(&mut self, placed: Placed, cached_tokens: u32, now: f64) -> Result<(), G::Error> {
        self.inner.finished(placed, cached_tokens, now)
    }

    fn failed(&mut self, placed: Placed, now: f64) -> Result<(), G::Error> {
        self.inner.failed(placed, now)
    }

    fn report(&mut self, worker: u32, load: EngineLoad, at: f64, now: f64) -> Result<(), G::Error> {
        self.inner.report(worker, load, at, now)
    }

    fn changed(&mut self, worker: u32, changes: &[Change], now: f64) -> Result<(), G::Error> {
        self.inner.changed(worker, changes, now)
    }

    fn set_ready(&mut self, worker: u32, ready: bool, now: f64) -> Result<(), G::Error> {
        self.inner.set_ready(worker, ready, now)
    }
}
