//! What selections cost in real time, which the core has no clock for.

use std::time::Instant;

use cachelb_events::FeedState;
use cachelb_sim::{Attempt, Change, EngineLoad, Gateway, Pair, Placed};

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

    fn timed<T>(&mut self, select: impl FnOnce(&mut G) -> T) -> T {
        let begin = Instant::now();
        let selected = select(&mut self.inner);
        let ns = u32::try_from(begin.elapsed().as_nanos()).unwrap_or(u32::MAX);
        self.nanoseconds.push(ns);
        selected
    }

    pub fn into_nanoseconds(self) -> Vec<u32> {
        self.nanoseconds
    }
}

impl<G: Gateway> Gateway for Timed<G> {
    type Error = G::Error;

    fn select(&mut self, attempt: &Attempt<'_>) -> Result<Option<Placed>, G::Error> {
        self.timed(|inner| inner.select(attempt))
    }

    fn select_pair(&mut self, attempt: &Attempt<'_>) -> Result<Option<Pair>, G::Error> {
        self.timed(|inner| inner.select_pair(attempt))
    }

    fn held(&mut self, id: u32) -> Result<Option<f64>, G::Error> {
        self.inner.held(id)
    }

    fn called(&mut self, now: f64) -> Result<Vec<u32>, G::Error> {
        self.inner.called(now)
    }

    fn give_up(&mut self, id: u32) -> Result<(), G::Error> {
        self.inner.give_up(id)
    }

    fn elapse(&mut self, now: f64) -> Result<(), G::Error> {
        self.inner.elapse(now)
    }

    fn publish(&mut self) -> Result<Vec<Vec<u8>>, G::Error> {
        self.inner.publish()
    }

    fn receive(&mut self, message: &[u8], now: f64) -> Result<(), G::Error> {
        self.inner.receive(message, now)
    }

    fn entrance(&self, id: u32) -> u16 {
        self.inner.entrance(id)
    }

    fn first_token(&mut self, placed: Placed, now: f64) -> Result<(), G::Error> {
        self.inner.first_token(placed, now)
    }

    fn tokens(&mut self, placed: Placed, n: u32, now: f64) -> Result<(), G::Error> {
        self.inner.tokens(placed, n, now)
    }

    fn finished(
        &mut self,
        placed: Placed,
        cached_tokens: Option<u32>,
        now: f64,
    ) -> Result<(), G::Error> {
        self.inner.finished(placed, cached_tokens, now)
    }

    fn failed(&mut self, placed: Placed, now: f64) -> Result<(), G::Error> {
        self.inner.failed(placed, now)
    }

    fn cancelled(&mut self, placed: Placed, now: f64) -> Result<(), G::Error> {
        self.inner.cancelled(placed, now)
    }

    fn report(&mut self, worker: u32, load: EngineLoad, at: f64, now: f64) -> Result<(), G::Error> {
        self.inner.report(worker, load, at, now)
    }

    fn changed(&mut self, worker: u32, changes: &[Change], now: f64) -> Result<(), G::Error> {
        self.inner.changed(worker, changes, now)
    }

    fn pool_changed(&mut self, changes: &[Change], now: f64) -> Result<(), G::Error> {
        self.inner.pool_changed(changes, now)
    }

    fn lost(&mut self, worker: u32, now: f64) -> Result<(), G::Error> {
        self.inner.lost(worker, now)
    }

    fn feed(&mut self, worker: u32, state: FeedState, now: f64) -> Result<(), G::Error> {
        self.inner.feed(worker, state, now)
    }

    fn set_ready(&mut self, worker: u32, ready: bool, now: f64) -> Result<(), G::Error> {
        self.inner.set_ready(worker, ready, now)
    }
}
